"""The Spark session of the benchmarks: two threads, quiet, its files in a folder of its own.

Shell.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import SparkSession

_JARS: Final = Path(__file__).resolve().parents[1] / ".cache" / "spark-jars"


@contextmanager
def spark_session(
    folder: Path | str, config: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """A session on ``local[2]``, with the jars of Spark's Kafka source where those are here.

    Args:
        folder: of its warehouse and temporary files.
        config: more settings.
    """
    # Without these, workers are of another Python, and the driver binds a public address.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings: dict[str, str | bool | float | int | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        "spark.jars": ",".join(map(str, sorted(_JARS.glob("*.jar")))),
        **config,
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
