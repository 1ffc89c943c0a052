"""From a Kafka client through a real agent into a bucket, out through Spark, record by record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader import OffsetOutOfRangeError, read_topic
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
STORES = ("directory", "s3")

KEYS = (None, b"", b"k", "schlüssel".encode(), bytes(range(256)))
VALUES = (b"value " * 40, None, b"", b"\x00\xff" * 100)
HEADERS: tuple[list[tuple[str, bytes | None]], ...] = (
    [],
    [("source", b"JFK")],
    [("same", b"1"), ("same", b"2"), ("empty", b""), ("null", None)],
)


class Row(NamedTuple):
    """A record as Spark shows it; the timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


class Cluster(NamedTuple):
    """An agent, and where its objects are."""

    agent: DriftlogProcess
    location: str


@pytest.fixture(params=STORES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """`driftlog dev` on a directory, and on a bucket of moto's that Spark reads through S3A."""
    with _cluster(request) as running:
        yield running


@contextmanager
def _cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "directory":
        with DriftlogProcess() as agent:
            yield Cluster(agent, str(agent.directory / "objects"))
    else:
        server = request.getfixturevalue("s3a")
        location = f"{server.location}/a/prefix"
        with DriftlogProcess(
            arguments=("--store", location), environment=server.environment
        ) as agent:
            yield Cluster(agent, location)


def create(agent: DriftlogProcess, topic: str, **configs: str) -> None:
    """A topic with three partitions that keeps its records: they are of 2023."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    kept = {"retention.ms": "-1", **configs}
    admin.create_topics([NewTopic(topic, PARTITIONS, config=kept)])[topic].result(30)


def produce(
    agent: DriftlogProcess, topic: str, codec: str, count: int, first: int = 0
) -> list[Row]:
    """Every combination of keys, values and headers; what was acknowledged, as Spark has it."""
    producer = Producer(
        {"bootstrap.servers": agent.bootstrap, "compression.type": codec, "linger.ms": 20}
    )
    acknowledged: list[Row] = []

    def send(number: int) -> None:
        key, value = KEYS[number % len(KEYS)], VALUES[number % len(VALUES)]
        headers = HEADERS[number % len(HEADERS)]
        timestamp = T0 + 977 * number

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            found = tuple(headers) or None
            acknowledged.append(Row(key, value, topic, partition, offset, timestamp, 0, found))

        producer.produce(
            topic,
            value,
            key,
            partition=number % PARTITIONS,
            timestamp=timestamp,
            headers=headers,  # type: ignore[arg-type]  # its stub knows no null header
            on_delivery=delivered,
        )

    for number in range(first, first + count):
        send(number)
    assert 0 == producer.flush(60), "not everything was acknowledged"
    return acknowledged


def rows(spark: SparkSession, cluster: Cluster, topic: str, **options: Any) -> list[Row]:
    """What Spark reads, in order of partition and offset."""
    df = read_topic(spark, cluster.location, topic, **options)
    found = df.withColumn("timestamp", F.unix_millis("timestamp")).collect()
    return sorted(map(_row, found), key=_place)


def _row(row: Sequence[Any]) -> Row:
    key, value, topic, partition, offset, timestamp, kind, headers = row
    return Row(
        _bytes(key),
        _bytes(value),
        topic,
        partition,
        offset,
        timestamp,
        kind,
        None if headers is None else tuple((name, _bytes(text)) for name, text in headers),
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _place(row: Row) -> tuple[int, int]:
    return row.partition, row.offset


@pytest.mark.verify
def test_what_was_acknowledged_is_what_spark_reads(spark: SparkSession, cluster: Cluster) -> None:
    """
    Every codec, null and empty keys and values, headers and event times: each record equal, at the
    offset that its producer was told; from a directory and from S3.
    """
    create(cluster.agent, "all")
    sent: list[Row] = []
    for i, codec in enumerate(CODECS):
        sent += produce(cluster.agent, "all", codec, 180, first=180 * i)

    cluster.agent.seal("all")

    assert sorted(sent, key=_place) == rows(spark, cluster, "all")


@pytest.mark.verify
def test_spark_sees_exactly_what_is_sealed(spark: SparkSession, cluster: Cluster) -> None:
    """
    Acknowledged records that are not sealed yet are not in the DataFrame, asking for their offsets
    raises, and the next seal brings them.
    """
    create(cluster.agent, "tail")
    sealed = sorted(produce(cluster.agent, "tail", "lz4", 90), key=_place)
    cluster.agent.seal("tail")
    tail = produce(cluster.agent, "tail", "none", 30, first=90)

    assert sealed == rows(spark, cluster, "tail")
    with pytest.raises(OffsetOutOfRangeError):
        read_topic(spark, cluster.location, "tail", ending_offsets={0: 31})

    cluster.agent.seal("tail")
    assert sorted(sealed + tail, key=_place) == rows(spark, cluster, "tail")
    assert sorted(tail, key=_place) == rows(
        spark, cluster, "tail", starting_offsets=dict.fromkeys(range(PARTITIONS), 30)
    )


@pytest.mark.parametrize("cluster", ["directory"], indirect=True)
def test_spark_and_a_consumer_read_the_same(spark: SparkSession, cluster: Cluster) -> None:
    """
    Before and after sealing a consumer gets the records that Spark reads, with the time that the
    agent gave them where the topic says LogAppendTime.
    """
    create(cluster.agent, "times", **{"message.timestamp.type": "LogAppendTime"})
    count = len(produce(cluster.agent, "times", "zstd", 120))
    before = consume(cluster.agent, "times", count)

    cluster.agent.seal("times")
    after = consume(cluster.agent, "times", count)

    assert {1} == {row.timestamp_type for row in before}
    assert before == after == rows(spark, cluster, "times")


def consume(agent: DriftlogProcess, topic: str, count: int) -> list[Row]:
    """*count* records from the first offset of every partition on."""
    consumer = Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found = [_consumed(message) for message in consumer.consume(count, 60)]
    consumer.close()
    return sorted(found, key=_place)


def _consumed(message: Message) -> Row:
    kind, timestamp = message.timestamp()
    headers: Any = message.headers()
    place = message.topic(), message.partition(), message.offset()
    topic, partition, offset = place
    assert topic is not None
    assert partition is not None
    assert offset is not None
    key: Any = message.key()
    value: Any = message.value()
    found = tuple(headers) if headers else None
    # librdkafka's TIMESTAMP_CREATE_TIME is 1, and its TIMESTAMP_LOG_APPEND_TIME 2.
    return Row(key, value, topic, partition, offset, timestamp, kind - 1, found)
