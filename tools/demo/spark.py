"""Spark's half of the demo, in a process of its own: from the files to an answer.

    python -m tools.demo.spark LOCATION TOPIC QUERY WAREHOUSE      prints one line of JSON

Root.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader import read_topic
from tools.demo.answers import PARTITIONS, Table


def main() -> int:
    """Print ``{"start_seconds", "query_seconds", "answer"}``."""
    location, topic, query, warehouse = sys.argv[1:]
    # Without these, workers use another Python, and the driver binds a public address.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    begin = time.monotonic()
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("driftlog demo")
        # A minute's work ends before the second compiler pays off: without it, half the time.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", warehouse)
        .getOrCreate()
    )
    started = time.monotonic()
    records = read_topic(spark, location, topic)
    answer = {name: _rows(table) for name, table in QUERIES[query](records).items()}
    answer[PARTITIONS] = _rows(_partitions(records))
    done = time.monotonic()
    spark.stop()
    print(
        json.dumps(
            {"start_seconds": started - begin, "query_seconds": done - started, "answer": answer}
        )
    )
    return 0


def _flights(records: DataFrame) -> dict[str, DataFrame]:
    delay = F.from_json(F.col("value").cast("string"), "dep_delay INT")["dep_delay"]
    headers = F.map_from_entries("headers")
    count = F.count("*")
    return {
        "carriers": records.groupBy(F.col("key").cast("string")).agg(
            count, F.count(delay), F.sum(delay), F.avg(delay)
        ),
        "routes": records.groupBy(
            headers["origin"].cast("string"), headers["dest"].cast("string")
        ).agg(count),
        "days": records.groupBy(F.date_format("timestamp", "yyyy-MM-dd")).agg(count),
    }


def _ndjson(records: DataFrame) -> dict[str, DataFrame]:
    fields = F.array_distinct(F.json_object_keys(F.col("value").cast("string")))
    return {"fields": records.select(F.explode(fields).alias("field")).groupBy("field").count()}


def _partitions(records: DataFrame) -> DataFrame:
    return records.groupBy("partition").agg(
        F.count("*"), F.sum(F.length("value")), F.sum(F.crc32("value"))
    )


QUERIES: Final[dict[str, Callable[[DataFrame], dict[str, DataFrame]]]] = {
    "flights": _flights,
    "ndjson": _ndjson,
}


def _rows(table: DataFrame) -> Table:
    return sorted(list(row) for row in table.collect())


if __name__ == "__main__":
    sys.exit(main())
