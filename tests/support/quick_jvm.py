"""JVMs of tests compile only once: most live for seconds, of which a second compiler takes half.

A Spark that starts and counts ten rows takes 23 CPU s with it, and 12 without.  Benchmarks have it.

Pure.
"""

from typing import Final

QUICK: Final = "-XX:TieredStopAtLevel=1"

SPARK: Final = {"SPARK_SUBMIT_OPTS": QUICK, "SPARK_LAUNCHER_OPTS": QUICK}
"""Variables of Spark's own scripts."""
