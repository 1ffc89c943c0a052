"""`make spark-classes`: Spark's classes, read and checked once for all tests.

    python -m tools.spark_archive

A Spark starts, works a little, and writes its classes to an archive as it ends
(`-XX:ArchiveClassesAtExit`, JEP 350).  A JVM that is told of it (`-XX:SharedArchiveFile`) maps it,
and goes on without it where it is missing or of other jars.

Root.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(__file__).resolve().parents[1] / ".cache" / "spark-classes.jsa"

_STAGED: Final = ARCHIVE.with_suffix(".tmp")
"""The archive is whole or not there: tests may run meanwhile."""

_OPTIONS: Final = f"-Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit={_STAGED}"

_WORK: Final = """
import tempfile
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
with tempfile.TemporaryDirectory() as folder:
    rows = spark.range(100).selectExpr("id", "cast(id as string) as text", "id % 3 as key")
    rows.write.parquet(folder + "/rows")
    found = spark.read.parquet(folder + "/rows").where("id > 3").groupBy("key").count()
    assert 3 == len(found.collect())
spark.stop()
"""


def main() -> int:
    """Write the archive; returns 0 also where Spark does not start: tests say why themselves."""
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": _OPTIONS, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", _WORK], env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode == 0 and _STAGED.exists():
        _STAGED.replace(ARCHIVE)
    else:
        print(f"driftlog: no {ARCHIVE.name}; Spark starts slower in tests\n{done.stderr[-500:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
