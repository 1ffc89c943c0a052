"""JVMs of tests have one of Java's two compilers: most live for seconds.

A Spark that starts and counts ten rows takes 23 CPU s with both, and 12 with one.  Benchmarks run
their JVMs with both.

Pure.
"""

from typing import Final

QUICK: Final = "-XX:TieredStopAtLevel=1"

SPARK: Final = {"SPARK_SUBMIT_OPTS": QUICK, "SPARK_LAUNCHER_OPTS": QUICK}
"""Variables of Spark's own scripts."""
