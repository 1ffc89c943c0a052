"""JVMs of tests have one compiler of Java's two: most live for seconds, and the second takes half of
their CPU time.

A Spark that starts and counts ten rows takes 23 CPU s with both, and 12 with one.  Benchmarks run
their JVMs with both.

Pure.
"""

from typing import Final

QUICK: Final = "-XX:TieredStopAtLevel=1"

SPARK: Final = {"SPARK_SUBMIT_OPTS": QUICK, "SPARK_LAUNCHER_OPTS": QUICK}
"""Variables of Spark's own scripts."""
