"""From a Kafka client through real agents into a bucket, out through Spark, record by record."""

import itertools
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader import OffsetOutOfRangeError, read_topic
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0: Final = 1_700_000_000_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

KEYS: Final = (None, b"", b"k", "schlüssel".encode(), bytes(range(256)))
VALUES: Final = (b"value " * 40, None, b"", b"\x00\xff" * 100)
HEADERS: Final[tuple[list[tuple[str, bytes | None]], ...]] = (
    [],
    [("source", b"JFK")],
    [("same", b"1"), ("same", b"2"), ("empty", b""), ("null", None)],
)
ROUND: Final = 60
"""So many records have every combination of a key, a value and headers."""

LOG: Final = "log"
TABLE: Final = "table"
TOPICS: Final = {LOG: 8, TABLE: 3}
"""Partitions.  Placement leaves no agent of two without one of `LOG`: seven are its most."""

COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0",
}
TABLE_KEYS: Final = 50

SESSION_MS: Final = 3_000
_WAIT_S: Final = 60.0


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


def _place(row: Row) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


class Writer:
    """Idempotent producers, one of each codec, and what they were told, as Spark has it."""

    def __init__(self, bootstrap: str) -> None:
        self._acknowledged: list[Row] = []
        self._refused: list[KafkaError] = []
        self._numbers = itertools.count()
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "log_level": 2,
        }
        self._producers = [Producer({**settings, "compression.type": codec}) for codec in CODECS]

    def write(self, topic: str, partitions: int, rounds: int) -> None:
        """Each round by another producer; event times are of 2023."""
        for number in self._next(rounds):
            self._send(
                number,
                KEYS[number % len(KEYS)],
                VALUES[number % len(VALUES)],
                topic,
                number % partitions,
                T0 + 977 * number,
                HEADERS[number % len(HEADERS)],
            )

    def update(self, topic: str, partitions: int, rounds: int) -> None:
        """Few keys again and again, and a tombstone of each now and then."""
        for number in self._next(rounds):
            key = b"k%d" % (number % TABLE_KEYS)
            value = None if number % 7 == 0 else b"%d/" % number + key * 20
            partition = zlib.crc32(key) % partitions
            self._send(number, key, value, topic, partition, int(time.time() * 1000), [])

    def _next(self, rounds: int) -> Iterator[int]:
        for _ in range(rounds * ROUND):
            yield next(self._numbers)

    def _send(
        self,
        number: int,
        key: bytes | None,
        value: bytes | None,
        topic: str,
        partition: int,
        timestamp: int,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._refused.append(error)
                return
            offset = message.offset()
            assert offset is not None
            found = tuple(headers) or None
            row = Row(key, value, topic, partition, offset, timestamp, 0, found)
            self._acknowledged.append(row)

        producer = self._producers[number // ROUND % len(CODECS)]
        producer.produce(
            topic,
            value,
            key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,  # type: ignore[arg-type]  # its stub knows no null header
            on_delivery=delivered,
        )
        producer.poll(0.0005)

    def flush(self) -> list[Row]:
        """Wait for every answer, none of which may be an error; what is acknowledged so far."""
        assert [0] * len(CODECS) == [producer.flush(_WAIT_S) for producer in self._producers]
        assert [] == self._refused
        return sorted(self._acknowledged, key=_place)


def create(agent: DriftlogProcess, topic: str, partitions: int, **configs: str) -> None:
    """A topic that keeps its records: they are of 2023."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    kept = {"retention.ms": "-1", **configs}
    admin.create_topics([NewTopic(topic, partitions, config=kept)])[topic].result(30)


def rows(
    spark: SparkSession, location: str, topic: str | Sequence[str], **options: Any
) -> list[Row]:
    """What Spark reads, in the order of topic, partition and offset."""
    df = read_topic(spark, location, topic, **options)
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


def consume(bootstrap: str, topics: Mapping[str, int]) -> list[Row]:
    """All that a consumer gets of so many partitions of each topic, in the order of `rows`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    unread = {(topic, n) for topic, partitions in topics.items() for n in range(partitions)}
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for topic, n in unread])
    found: list[Row] = []
    try:
        while unread:
            message = consumer.poll(_WAIT_S)
            assert message is not None, f"no end of {unread}"
            error = message.error()
            if error is None:
                found.append(_consumed(message))
            else:
                assert KafkaError._PARTITION_EOF == error.code(), error
                unread.discard((str(message.topic()), message.partition() or 0))
    finally:
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


# ── One agent, a directory ──


@pytest.fixture
def agent() -> Iterator[DriftlogProcess]:
    """`driftlog dev`."""
    with DriftlogProcess() as running:
        yield running


@pytest.mark.verify
def test_spark_sees_exactly_what_is_sealed(spark: SparkSession, agent: DriftlogProcess) -> None:
    """
    Acknowledged records that are not sealed yet are not in the DataFrame, asking for their offsets
    raises, and the next seal brings them.
    """
    location = str(agent.directory / "objects")
    create(agent, "tail", 3)
    writer = Writer(agent.bootstrap)
    writer.write("tail", 3, rounds=1)
    sealed = writer.flush()
    agent.seal("tail")
    writer.write("tail", 3, rounds=1)
    everything = writer.flush()

    assert sealed == rows(spark, location, "tail")
    with pytest.raises(OffsetOutOfRangeError):
        read_topic(spark, location, "tail", ending_offsets={0: 21})

    agent.seal("tail")
    assert everything == rows(spark, location, "tail")
    starts = dict.fromkeys(range(3), 20)
    tail = [row for row in everything if row.offset >= 20]
    assert tail == rows(spark, location, "tail", starting_offsets=starts)


def test_spark_and_a_consumer_read_the_same(spark: SparkSession, agent: DriftlogProcess) -> None:
    """
    Before and after sealing a consumer gets the records that Spark reads, with the time that the
    agent gave them where the topic says LogAppendTime.
    """
    create(agent, "times", 3, **{"message.timestamp.type": "LogAppendTime"})
    writer = Writer(agent.bootstrap)
    writer.write("times", 3, rounds=len(CODECS))
    acknowledged = writer.flush()
    before = consume(agent.bootstrap, {"times": 3})

    agent.seal("times")
    after = consume(agent.bootstrap, {"times": 3})

    assert len(acknowledged) == len(before)
    assert {1} == {row.timestamp_type for row in before}
    assert before == after == rows(spark, str(agent.directory / "objects"), "times")


# ── Two agents on one etcd, S3 ──


@pytest.fixture
def agents(s3a: S3Server, tmp_path: Path) -> Iterator[list[DriftlogProcess]]:
    """They compact soon."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with (
        etcd_server.start(etcd_server.newest_version(), folder, members=1) as etcd,
        ExitStack() as stack,
    ):
        arguments = (
            *("--etcd", ",".join(etcd.endpoints), "--store", store_of(s3a)),
            *("--session-timeout-ms", str(SESSION_MS)),
            *("--config", "log.cleaner.backoff.ms=100"),
        )
        started = []
        for name in ("one", "two"):
            agent = DriftlogProcess(
                tmp_path / name, arguments, s3a.environment, command=("agent", "run")
            )
            stack.callback(agent.close)
            agent.launch()
            started.append(agent)
        for agent in started:
            agent.wait_until_ready()
        yield started


def store_of(server: S3Server) -> str:
    """Where the agents' objects are."""
    return f"{server.location}/a/prefix"


def leaders(agent: DriftlogProcess, topics: Collection[str] = tuple(TOPICS)) -> list[int]:
    """The port of the agent that leads each partition, as *agent* tells clients; 0: none does."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    told = admin.list_topics(timeout=30)
    ports = {node: broker.port for node, broker in told.brokers.items()}
    return [
        ports.get(partition.leader, 0)
        for topic in topics
        for _, partition in sorted(told.topics[topic].partitions.items())
    ]


def await_leaders(expected: list[DriftlogProcess], seconds: float = _WAIT_S) -> None:
    """Return when each of them leads partitions, and no other agent does."""
    deadline = time.monotonic() + seconds
    while set(led := leaders(expected[0])) != {agent.port for agent in expected}:
        assert time.monotonic() < deadline, led
        time.sleep(0.05)


def compacted(bootstrap: str) -> list[Row]:
    """What a consumer gets of `TABLE` when there is one record of each key."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = consume(bootstrap, {TABLE: TOPICS[TABLE]})
        if len(found) == len({row.key for row in found}):
            return found
        assert time.monotonic() < deadline, f"{len(found)} records of {TABLE_KEYS} keys"
        time.sleep(0.2)


@pytest.mark.verify
@pytest.mark.parametrize("s3a", ["moto_s3", "localstack_s3"], indirect=True)
def test_the_whole_path_from_clients_to_spark(
    spark: SparkSession, s3a: S3Server, agents: list[DriftlogProcess]
) -> None:
    """
    Produce, take over, seal, compact, Spark.  Clients write with every codec while an agent that
    leads partitions of both topics is killed; the other leads all within a session and ten seconds.
    Back on its disk the killed agent gets a share, and everything when the other one stops.  No
    record is refused.  Once sealed and compacted, a consumer and Spark have each acknowledged
    record of one topic once, and of the other the newest of each key, at the offset that was told.
    """
    create(agents[0], LOG, TOPICS[LOG])
    create(agents[0], TABLE, TOPICS[TABLE], **COMPACTED)
    await_leaders(agents)
    writer = Writer(",".join(agent.bootstrap for agent in agents))

    def write(rounds: int) -> None:
        for _ in range(rounds):
            writer.write(LOG, TOPICS[LOG], 1)
            writer.update(TABLE, TOPICS[TABLE], 1)

    write(10)
    port = leaders(agents[0], [TABLE])[0]
    killed, other = sorted(agents, key=lambda agent: agent.port != port)
    assert killed.port in leaders(other, [LOG])
    killed.kill()
    write(10)
    await_leaders([other], SESSION_MS / 1000 + 10)
    write(5)
    writer.flush()
    killed.start()
    await_leaders(agents)
    write(5)
    writer.flush()
    assert 0 == other.terminate()
    await_leaders([killed])
    write(5)
    acknowledged = writer.flush()

    for topic in TOPICS:
        killed.seal(topic)
    table = compacted(killed.bootstrap)
    log = consume(killed.bootstrap, {LOG: TOPICS[LOG]})

    newest = {row.key: row for row in acknowledged if row.topic == TABLE}  # offsets ascend
    assert TABLE_KEYS == len(newest)
    assert sorted(newest.values(), key=_place) == table
    assert [row for row in acknowledged if row.topic == LOG] == log
    assert [*log, *table] == rows(spark, store_of(s3a), list(TOPICS))
