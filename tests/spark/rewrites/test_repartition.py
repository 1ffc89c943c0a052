"""A repartitioned topic has every record of its source once, and each key in its order.

If it failed: `driftlog spark repartition` would lose records, or turn updates of a key around.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import SparkSession

from driftlog_spark_reader import (
    DataLossError,
    ImportTopicError,
    audit_topic,
    compact_topics,
    repartition_topic,
)
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

T0_MS = 1_700_000_000_000
WAIT_S = 60.0
SOURCE_PARTITIONS = 3


class Record(NamedTuple):
    """A record as a client sees it; the timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp: int


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    with DriftlogProcess() as running:
        yield running


def location(agent: DriftlogProcess) -> str:
    return str(agent.directory / "objects")


def history(count: int) -> list[Record]:
    """Records of 50 keys, and of none; clocks of producers go back now and then."""
    rng = Random(1)
    return [
        Record(
            key=None if n % 7 == 0 else b"key-%d" % rng.randrange(50),
            value=None if n % 11 == 0 else b"value %d" % n,
            headers=(("n", b"%d" % n), ("null", None)) if n % 5 == 0 else None,
            timestamp=T0_MS + n * 10 - rng.choice((0, 0, 0, 5_000)),
        )
        for n in range(count)
    ]


def produce(
    agent: DriftlogProcess, topic: str, records: list[Record], partitions: int, **configs: str
) -> list[list[Record]]:
    """Make the topic, and seal the records, each key in one partition; returns the partitions."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    kept = {"retention.ms": "-1", **configs}
    admin.create_topics([NewTopic(topic, partitions, config=kept)])[topic].result(30)
    producer = Producer({"bootstrap.servers": agent.bootstrap})
    placed: list[list[Record]] = [[] for _ in range(partitions)]
    for number, one in enumerate(records):
        at = number % partitions
        if one.key is not None:
            at = confluent_kafka.murmur2(one.key, partitions)
        placed[at].append(one)
        producer.produce(
            topic,
            one.value,
            one.key,
            partition=at,
            timestamp=one.timestamp,
            headers=list(one.headers or ()),
        )
    assert 0 == producer.flush(WAIT_S)
    agent.seal(topic)
    return placed


def consumed(agent: DriftlogProcess, topic: str, partitions: int) -> list[list[Record]]:
    """All records of each partition, whose offsets are dense from 0."""
    consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    ends = [consumer.get_watermark_offsets(place, timeout=WAIT_S)[1] for place in places]
    consumer.assign(places)
    found: list[list[Record]] = [[] for _ in ends]
    while sum(map(len, found)) < sum(ends):
        got = consumer.poll(WAIT_S)
        assert got is not None, "a record is missing"
        assert got.error() is None
        of_partition = found[got.partition() or 0]
        assert len(of_partition) == got.offset()
        headers = got.headers()
        of_partition.append(
            Record(
                got.key(),
                got.value(),
                None if headers is None else tuple(headers),  # type: ignore[arg-type]  # its stub
                got.timestamp()[1],
            )
        )
    consumer.close()
    return found


def by_key(partitions: list[list[Record]]) -> dict[bytes | None, list[Record]]:
    """The records of each key, in the order of its partition."""
    found: dict[bytes | None, list[Record]] = defaultdict(list)
    for records in partitions:
        for one in records:
            found[one.key].append(one)
    return found


@pytest.mark.parametrize("partitions", [2, 7])
def test_every_record_is_there_once_and_each_key_in_its_order(
    spark: SparkSession, agent: DriftlogProcess, partitions: int
) -> None:
    """
    Where Kafka's clients expect it; also where timestamps go back; records without keys are
    spread; producers go on behind it.
    """
    source, target = f"of-{partitions}", f"in-{partitions}"
    placed = produce(agent, source, history(4_000), SOURCE_PARTITIONS, **{"segment.ms": "7654321"})
    report = repartition_topic(
        spark,
        location(agent),
        source,
        target,
        partitions=partitions,
        bootstrap_servers=agent.bootstrap,
        segment_bytes=20_000,
    )
    found = consumed(agent, target, partitions)

    before, after = by_key(placed), by_key(found)
    assert (4_000, partitions) == (report.records, report.partitions)
    assert report.segments > partitions
    assert sorted(map(repr, before.pop(None))) == sorted(map(repr, after.pop(None)))
    assert before == after
    for number, records in enumerate(found):
        assert {number} == {
            confluent_kafka.murmur2(one.key, partitions) for one in records if one.key is not None
        }
        assert any(one.key is None for one in records)
    producer = Producer({"bootstrap.servers": agent.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(target, b"next", b"key-1")
    assert 0 == producer.flush(WAIT_S)
    again = consumed(agent, target, partitions)[confluent_kafka.murmur2(b"key-1", partitions)]
    assert b"next" == again[-1].value
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    resource = confluent_kafka.admin.ConfigResource("topic", target)  # type: ignore[attr-defined]
    configs = admin.describe_configs([resource])[resource].result(30)
    assert ("7654321", "-1") == (configs["segment.ms"].value, configs["retention.ms"].value)
    agent.seal(target)
    assert [] == audit_topic(spark, location(agent), target).faults


def test_source_partitions_are_joined_by_time(spark: SparkSession, agent: DriftlogProcess) -> None:
    """
    Retention would otherwise keep all of a partition until its last record has expired.
    """
    count = 3_000
    records = [
        Record(b"key-%d" % (n % 50), b"%d" % n, None, T0_MS + n * 1_000) for n in range(count)
    ]
    produce(agent, "times", records, SOURCE_PARTITIONS)
    repartition_topic(
        spark,
        location(agent),
        "times",
        "times-1",
        partitions=1,
        bootstrap_servers=agent.bootstrap,
    )
    (found,) = consumed(agent, "times-1", 1)

    times = [one.timestamp for one in found]
    newest, back_ms = 0, 0
    for time_ms in times:
        newest = max(newest, time_ms)
        back_ms = max(back_ms, newest - time_ms)
    assert count == len(times)
    assert back_ms < 2 * 256 * SOURCE_PARTITIONS * 1_000 < times[-1] - times[0]


def test_a_compacted_topic_keeps_its_table_and_its_deletions(
    spark: SparkSession, agent: DriftlogProcess
) -> None:
    """
    And its policy.
    """
    records = [one for one in history(2_000) if one.key is not None]
    placed = produce(agent, "table", records, SOURCE_PARTITIONS, **{"cleanup.policy": "compact"})
    compact_topics(spark, location(agent), "table", min_dirty_ratio=0)
    repartition_topic(
        spark,
        location(agent),
        "table",
        "table-5",
        partitions=5,
        bootstrap_servers=agent.bootstrap,
    )
    newest = {key: values[-1] for key, values in by_key(placed).items()}
    found = by_key(consumed(agent, "table-5", 5))

    assert {key: [one] for key, one in newest.items()} == found
    assert any(one.value is None for one in newest.values())
    compacted = compact_topics(spark, location(agent), "table-5", min_dirty_ratio=0)
    assert 5 == len(compacted.partitions)


def test_the_command_copies_and_refuses_a_name_that_is_taken(agent: DriftlogProcess) -> None:
    """
    Nothing of the second run is there.
    """
    produce(agent, "small", history(100), 1)
    driftlog = driftlog_command()
    assert driftlog is not None
    command = [driftlog, "spark", "repartition", "small", "small-2", "--partitions", "2"]
    command += ["--store", location(agent), "--master", "local[2]", "-b", agent.bootstrap]
    runs = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]

    assert [0, 1] == [run.returncode for run in runs], runs
    assert "100 records of small in 2 partitions" in runs[0].stdout
    assert "small-2" in runs[1].stderr
    assert 100 == sum(map(len, consumed(agent, "small-2", 2)))


def test_records_that_cannot_be_decoded_and_a_failure_leave_no_topic(
    spark: SparkSession, agent: DriftlogProcess, tmp_path: Path
) -> None:
    topic = SealedTopic(str(tmp_path), "raw").create()
    topic.seal(0, 0, [Message(T0_MS, b"k", b"v")])
    topic.seal_raw(0, 1, 3)
    with pytest.raises(DataLossError, match="cannot be decoded"):
        repartition_topic(
            spark, str(tmp_path), "raw", "new", partitions=2, bootstrap_servers=agent.bootstrap
        )
    SealedTopic(str(tmp_path), "good").create().seal(0, 0, [Message(T0_MS, b"k", b"v")])
    with pytest.raises(ImportTopicError, match="not where the agents store"):
        repartition_topic(
            spark, str(tmp_path), "good", "new", partitions=2, bootstrap_servers=agent.bootstrap
        )
    SealedTopic(str(tmp_path), "keyless").create().seal(0, 0, [Message(T0_MS, None, b"v")])
    with pytest.raises(ValueError, match="records have no key"):
        repartition_topic(
            spark,
            str(tmp_path),
            "keyless",
            "new",
            partitions=2,
            bootstrap_servers=agent.bootstrap,
            configs={"cleanup.policy": "compact"},
        )
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    assert "new" not in admin.list_topics(timeout=WAIT_S).topics
