"""An agent serves a hundred busy partitions and ten thousand idle ones."""

import time
import uuid
from collections.abc import Iterator
from typing import Any, Final, cast

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import make_topic, make_topics, seal
from tests.clients.sockets import Raw
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("many_partitions")]

PARTITIONS: Final = 100
RECORDS: Final = 50
"""Of each partition."""


def test_a_hundred_partitions_are_written_and_read(agent: DriftlogProcess) -> None:
    """
    Keyed records over 100 partitions: each partition has its own, in order, before and after
    sealing and a kill.
    """
    topic = make_topic(agent, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    for n in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d/%d" % (partition, n), partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0
    expected = {p: [(n, b"%d/%d" % (p, n)) for n in range(RECORDS)] for p in range(PARTITIONS)}

    recent = read_all(agent, topic)
    sealed_ends = seal(agent, topic)
    agent.kill()
    agent.start()
    sealed = read_all(agent, topic)

    assert expected == recent
    assert dict.fromkeys(range(PARTITIONS), RECORDS) == sealed_ends
    assert expected == sealed


def read_all(agent: DriftlogProcess, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Offset and value of every record, by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,  # there are no groups yet: it would wait for one
            "log_level": 2,
        }
    )
    found: dict[int, list[tuple[int, Any]]] = {p: [] for p in range(PARTITIONS)}
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        deadline = time.monotonic() + 60
        while sum(map(len, found.values())) < PARTITIONS * RECORDS and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.5):
                assert message.error() is None, message.error()
                partition: Any = message.partition()
                found[partition].append((cast(int, message.offset()), message.value()))
    finally:
        consumer.close()
    return found


@pytest.fixture(scope="module")
def crowded() -> Iterator[tuple[DriftlogProcess, list[str]]]:
    """An agent with ten thousand partitions in 20 topics, one record in one of them."""
    with DriftlogProcess() as process:
        topics = [f"idle-{n}-{uuid.uuid4().hex[:6]}" for n in range(20)]
        make_topics(process, dict.fromkeys(topics, 500))
        yield process, topics


def test_ten_thousand_idle_partitions_are_listed_and_restarted(
    crowded: tuple[DriftlogProcess, list[str]], record_property: Any
) -> None:
    """
    They are created, listed, and led again after a kill; idle, they cost next to nothing, which
    is recorded and not asserted, but for what would be a leak.
    """
    process, topics = crowded
    record_property("rss_mb_created", process.usage().rss_bytes >> 20)
    listed = listed_partitions(process)
    process.kill()
    began = time.monotonic()
    process.start()
    record_property("restart_s", round(time.monotonic() - began, 2))
    again = listed_partitions(process)
    before = process.usage()
    time.sleep(5)
    after = process.usage()
    idle_cpu = (after.cpu_seconds - before.cpu_seconds) / 5
    record_property("rss_mb_restarted", after.rss_bytes >> 20)
    record_property("idle_cpu_percent", round(idle_cpu * 100, 1))
    print(f"restarted: {after.rss_bytes >> 20} MB, idle {idle_cpu:.1%} of a core")
    with Raw(process.port) as raw:
        ends = raw.offsets(topics[-1], range(500), -1)

    assert dict.fromkeys(topics, 500) == listed == again
    assert dict.fromkeys(range(500), 0) == ends
    assert after.rss_bytes < 1 << 30
    assert idle_cpu < 0.5


def listed_partitions(process: DriftlogProcess) -> dict[str, int]:
    """Partitions that have a leader, by topic."""
    admin = AdminClient({"bootstrap.servers": process.bootstrap, "log_level": 2})
    metadata = admin.list_topics(timeout=60)
    return {
        name: sum(p.leader >= 0 for p in topic.partitions.values())
        for name, topic in metadata.topics.items()
    }
