"""One Spark session for all tests here, with S3A and Spark's Kafka source where their jars are."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.s3_servers import S3Server, moto_endpoint, moto_s3

__all__ = ["moto_endpoint", "moto_s3"]

JARS = Path(__file__).resolve().parents[2] / ".cache" / "spark-jars"
S3A_JARS = ("hadoop-aws-*.jar", "bundle-*.jar", "analyticsaccelerator-s3-*.jar")
KAFKA_JARS = (
    "spark-sql-kafka-*.jar",
    "spark-token-provider-kafka-*.jar",
    "kafka-clients-*.jar",
    "commons-pool2-*.jar",
)


def s3a_jars() -> list[Path]:
    """The connector and its SDK; empty unless both are there."""
    return _jars(S3A_JARS)


def kafka_jars() -> list[Path]:
    """Spark's Kafka source and sink, and what they need; empty unless all are there."""
    return _jars(KAFKA_JARS)


def _jars(patterns: tuple[str, ...]) -> list[Path]:
    found = [sorted(JARS.glob(pattern)) for pattern in patterns]
    return [jar for jars in found for jar in jars] if all(found) else []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, moto_endpoint: str) -> Iterator[SparkSession]:
    """A local session of two threads; S3A knows the test servers' credentials.

    Python data sources run in processes of the JVM, which has the environment that it started with.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or later, and there is none on PATH nor in JAVA_HOME")
    # Without these, workers are of another Python, and the driver binds a public address.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(S3Server(endpoint_url=moto_endpoint, bucket="of-the-test").environment)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("driftlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.maxMetadataStringLength", "10000")  # Plans are looked at whole.
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Asia/Kathmandu")  # No test may hang on the zone.
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.jars", ",".join(map(str, [*s3a_jars(), *kafka_jars()])))
        .config("spark.hadoop.fs.s3a.access.key", "testing")
        .config("spark.hadoop.fs.s3a.secret.key", "testing")
        .config("spark.hadoop.fs.s3a.path.style.access", "true")
        .config("spark.hadoop.fs.s3a.connection.ssl.enabled", "false")
        .config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
        # The default of Hadoop 3.5, "analytics", needs more jars than this test is about.
        .config("spark.hadoop.fs.s3a.input.stream.type", "classic")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def s3a(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> S3Server:
    """A bucket that Spark reaches through S3A, and aiobotocore through the environment.

    It is moto's, or of the fixture that the test's parameter names.
    """
    if not s3a_jars():
        pytest.skip("S3A's jars are not in .cache/spark-jars: run `make spark-jars`")
    server: S3Server = request.getfixturevalue(getattr(request, "param", "moto_s3"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    spark.conf.set(f"fs.s3a.bucket.{server.bucket}.endpoint", server.endpoint_url)
    return server
