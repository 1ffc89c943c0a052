"""A session of Spark Connect, whose client has no JVM, reads topics as any other session does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.quick_jvm import SPARK
from tests.support.sealed_topics import Message, SealedTopic

pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: make setup")

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

T0 = 1_700_000_000_000
QUERIES = """
import json, sys
from pyspark.sql import SparkSession
from driftlog_spark_reader import describe_topic, read_topic, register

location, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
def values(df):
    return sorted(bytes(row.value).decode() for row in df.collect())
found = {"client": type(spark).__module__}
found["read_topic"] = values(read_topic(spark, location, "flights"))
found["cut"] = values(read_topic(spark, location, "flights", starting_offsets={0: 1}))
options = {"location": location, "subscribe": "flights"}
found["format"] = values(spark.read.format("driftlog").options(**options).load())
register(spark, location)
found["view"] = values(spark.sql("SELECT value FROM flights WHERE offset = 0"))
spark.sql(
    "CREATE TEMPORARY VIEW opened USING driftlog "
    f"OPTIONS (location '{location}', subscribe 'flights')"
)
found["sql"] = values(spark.sql("SELECT value FROM opened"))
query = (
    spark.readStream.format("driftlog").options(**options).option("startingOffsets", "earliest")
    .load().writeStream.format("memory").queryName("followed")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
found["stream"] = values(spark.sql("SELECT value FROM followed"))
described = describe_topic(spark, location, "flights")
found["records"] = sum(each.records for each in described.partitions)
spark.stop()
print(json.dumps(found))
"""


def test_a_client_without_a_jvm_reads_describes_and_follows_a_topic(tmp_path: Path) -> None:
    """read_topic, views, SQL, the format, streams and describe_topic, all in one session."""
    topic = SealedTopic(str(tmp_path / "log"), "flights").create()
    topic.seal(0, 0, [Message(T0, value=b"a"), Message(T0 + 1, value=b"b")])
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PYSPARK_", "SPARK_")) or name in SPARK
    }
    given = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", QUERIES, str(tmp_path / "log"), str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        env={**mine, **given},
        check=False,
        cwd=tmp_path,
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in found.pop("client")
    assert found == {
        "read_topic": ["a", "b"],
        "cut": ["b"],
        "format": ["a", "b"],
        "view": ["a"],
        "sql": ["a", "b"],
        "stream": ["a", "b"],
        "records": 2,
    }
