"""Retention as clients see it, on an agent and on an Apache Kafka: the log starts alike.

Broken: a disk or a bucket fills up, or a consumer loses records that are young enough.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.clients.conftest import metrics
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("retention")]

INTERVAL_MS = 500
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    """An agent that checks twice a second."""
    lines = ("--config", f"log.retention.check.interval.ms={INTERVAL_MS}")
    with DriftlogProcess(arguments=lines) as process:
        yield process


@pytest.fixture(scope="module")
def kafka_bootstrap() -> Iterator[str]:
    """An Apache Kafka that does the same."""
    properties = {
        "log.retention.check.interval.ms": str(INTERVAL_MS),
        "log.initial.task.delay.ms": str(INTERVAL_MS),
        "log.segment.delete.delay.ms": "0",
    }
    with KafkaPeer(properties=properties) as peer:
        yield peer.bootstrap


_KAFKA = pytest.param(
    "kafka", marks=pytest.mark.skipif(kafka_jars() is None, reason="Kafka's jars are missing")
)


@pytest.fixture(params=["driftlog", _KAFKA])
def servers(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of the agent, then of the Apache Kafka."""
    if request.param == "driftlog":
        process: DriftlogProcess = request.getfixturevalue("agent")
        return process.bootstrap
    address: str = request.getfixturevalue("kafka_bootstrap")
    return address


def new_topic(servers: str, **configs: str) -> str:
    """A topic with one partition; `_` in the names of *configs* stands for a dot."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, 1, 1, config=dotted)])[name].result(30)
    return name


def alter(servers: str, topic: str, **configs: str) -> None:
    """Set configs of a topic."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.incremental_alter_configs([resource])[resource].result(30)


def put(
    servers: str, topic: str, *values: bytes, age_ms: int = 0, key: bytes | None = None
) -> None:
    """Write *values*, which are *age_ms* old."""
    producer = KafkaProducer(
        {"bootstrap.servers": servers, "log_level": 2, "message.max.bytes": 2 * MIB}
    )
    for value in values:
        producer.produce(topic, value, key, timestamp=int(time.time() * 1000) - age_ms, partition=0)
    assert 0 == producer.flush(30)


def consumer(servers: str, group: str = "", reset: str = "earliest") -> KafkaConsumer:
    """A consumer of a group, or of none that matters."""
    return KafkaConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group or uuid.uuid4().hex,
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )


def bounds(servers: str, topic: str) -> tuple[int, int]:
    """ListOffsets: the earliest and the latest offset."""
    asking = consumer(servers)
    try:
        found: tuple[int, int] = asking.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        return found
    finally:
        asking.close()


def becomes(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until it *holds*."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.1)


def test_records_expire_though_their_segment_was_open(servers: str) -> None:
    """
    All that is old goes, also what was never sealed; what comes after it is there.
    """
    topic = new_topic(servers, retention_ms="2000")
    put(servers, topic, b"a", b"b", b"c")
    assert (0, 3) == bounds(servers, topic)

    becomes(lambda: bounds(servers, topic) == (3, 3))
    put(servers, topic, b"d")

    assert (3, 4) == bounds(servers, topic)


def test_a_consumer_below_the_new_start_goes_on_there(servers: str) -> None:
    """
    With `auto.offset.reset`; without it, it gets OFFSET_OUT_OF_RANGE.  What its group has committed
    stays.
    """
    topic, group = new_topic(servers, retention_ms="2000"), uuid.uuid4().hex
    put(servers, topic, b"a", b"b", b"c")
    mine = consumer(servers, group)
    mine.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    becomes(lambda: bounds(servers, topic) == (3, 3))
    alter(servers, topic, retention_ms="-1")
    put(servers, topic, b"d")

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    committed = answer.result(30).topic_partitions[0].offset
    mine.subscribe([topic])
    message = mine.poll(30)
    mine.close()
    strict = consumer(servers, reset="error")
    strict.assign([TopicPartition(topic, 0, 0)])
    refused = strict.poll(30)
    strict.close()

    assert 1 == committed != OFFSET_INVALID
    assert message is not None
    assert (b"d", 3) == (message.value(), message.offset())
    assert refused is not None
    error = refused.error()
    assert error is not None
    assert KafkaError._AUTO_OFFSET_RESET == error.code()
    assert "out of range" in error.str().lower()


def test_record_timestamps_decide(servers: str) -> None:
    """
    Records of long ago go at the next check, and one from the future holds what is behind it.
    """
    topic = new_topic(servers, retention_ms="600000", message_timestamp_after_max_ms="9000000")
    put(servers, topic, b"old", age_ms=3_600_000)
    becomes(lambda: bounds(servers, topic) == (1, 1))

    put(servers, topic, b"future", age_ms=-3_000_000)
    put(servers, topic, b"old", age_ms=3_600_000)
    time.sleep(4 * INTERVAL_MS / 1000)

    assert (1, 3) == bounds(servers, topic)


def test_a_changed_retention_holds_without_a_restart(servers: str) -> None:
    """
    And a compacted topic keeps what is old, whatever its retention.
    """
    configs = {"retention_ms": "-1", "cleanup_policy": "compact"}
    topic = new_topic(servers, **configs)
    put(servers, topic, b"a", b"b", key=b"k", age_ms=3_600_000)
    time.sleep(4 * INTERVAL_MS / 1000)
    assert (0, 2) == bounds(servers, topic)

    alter(servers, topic, retention_ms="60000")
    time.sleep(4 * INTERVAL_MS / 1000)
    assert (0, 2) == bounds(servers, topic)
    alter(servers, topic, cleanup_policy="compact,delete")

    becomes(lambda: bounds(servers, topic) == (2, 2))


def test_by_size_the_newest_segments_stay(servers: str) -> None:
    """
    At least `retention.bytes`, and less than a segment more.
    """
    size, count, retained = 200_000, 30, 2 * MIB
    topic = new_topic(
        servers, retention_ms="-1", retention_bytes=str(retained), segment_bytes=str(MIB)
    )
    for _ in range(count):
        put(servers, topic, os.urandom(size))

    def left() -> int:
        earliest, latest = bounds(servers, topic)
        return (latest - earliest) * size

    becomes(lambda: left() < retained + 2 * MIB)
    time.sleep(4 * INTERVAL_MS / 1000)

    assert left() > retained - size


def test_an_agent_counts_what_expires(agent: DriftlogProcess) -> None:
    """
    By reason, from the start; and describes the agent's default.
    """
    before = metrics(agent)
    topic = new_topic(agent.bootstrap, retention_ms="1000")
    put(agent.bootstrap, topic, b"a", b"b")

    becomes(lambda: bounds(agent.bootstrap, topic) == (2, 2))

    after = metrics(agent)
    name = 'driftlog_expired_records_total{{reason="{}"}}'
    assert 2 == after[name.format("time")] - before[name.format("time")]
    assert name.format("size") in before
    assert after['driftlog_expired_bytes_total{reason="time"}'] > 0


def test_a_retention_that_cannot_be_is_refused(servers: str) -> None:
    """
    As Kafka refuses it.
    """
    with pytest.raises(KafkaException) as refused:
        new_topic(servers, retention_ms="-2")

    assert KafkaError.INVALID_CONFIG == refused.value.args[0].code()
