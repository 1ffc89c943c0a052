"""JVMs of tests start fast: most live for seconds.

They have one of Java's two compilers, and Spark maps the classes that `tools/spark_archive` has
read and checked once.  On a busy machine a Spark that starts and counts ten rows takes 16 CPU s
with one compiler, and 8 with the archive, too.  Benchmarks run their JVMs without either.

Shell.
"""

from typing import Final

from tools.spark_archive import ARCHIVE

QUICK: Final = "-XX:TieredStopAtLevel=1"

_SPARK: Final = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK

SPARK: Final = {"SPARK_SUBMIT_OPTS": _SPARK, "SPARK_LAUNCHER_OPTS": QUICK}
"""Variables of Spark's own scripts."""
