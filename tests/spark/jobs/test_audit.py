"""An audit finds what is lost, there twice, or other than in another cluster; and nothing else.

If it failed: `driftlog spark audit` would call a damaged topic whole.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import SparkSession

from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.jobs.audit import audit_topic
from driftlog_spark_reader.jobs.command_line import audit_status
from driftlog_spark_reader.jobs.offset_gaps import BITS, Gap
from driftlog_tiering.formats.manifest import SetLogStart
from tests.spark.conftest import kafka_jars
from tests.support.driftlog_process import DriftlogProcess
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000


def message(number: int, value: bytes | None = b"v") -> Message:
    """A record a millisecond, with a header at every second one."""
    headers = (("h", None if number % 4 else b""),) if number % 2 else ()
    return Message(T0 + number, f"k{number}".encode() if number % 3 else None, value, headers)


def sealed(root: Path, *segments: Sequence[Message | None]) -> str:
    """A topic of one partition."""
    SealedTopic(str(root), "t").create().seal(0, 0, *segments)
    return str(root)


def test_a_dense_topic_is_whole_and_its_digest_is_not_of_its_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    One segment or three; other records, another digest.
    """
    records = [message(n) for n in range(100)]
    one = audit_topic(spark, sealed(tmp_path / "one", records), "t")
    three = audit_topic(
        spark, sealed(tmp_path / "three", records[:10], records[10:70], records[70:]), "t"
    )

    assert [] == one.faults
    assert one.partitions == three.partitions
    (found,) = one.partitions
    assert (0, 100, 100, 0, ()) == (
        found.start,
        found.end,
        found.records,
        found.missing,
        found.gaps,
    )
    assert found.is_dense
    assert found.gaps_are_all


@pytest.mark.parametrize(
    "other",
    [
        Message(T0, b"k", b""),
        Message(T0, None, b"k"),
        Message(T0, b"k", b"x"),
        Message(T0 + 1, b"k", None),
        Message(T0, b"k", None, (("h", None),)),
    ],
)
def test_a_digest_tells_records_apart(spark: SparkSession, tmp_path: Path, other: Message) -> None:
    """
    Null from empty, key from value, timestamps, headers.
    """
    digests = [
        audit_topic(spark, sealed(tmp_path / str(n), [record]), "t").partitions[0].digest
        for n, record in enumerate([Message(T0, b"k", None), other])
    ]

    assert digests[0] != digests[1]


def test_gaps_of_a_compacted_topic_are_named_and_no_fault(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Within a block of offsets, over whole blocks, at both ends; below the log start none.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    holes: list[Message | None] = [message(n) if n not in (20, 21, 30) else None for n in range(40)]
    topic.seal(0, 0, holes)
    topic.seal(0, 40, [None] * (2 * BITS) + [message(0)] + [None] * 9)
    topic.edit(0, SetLogStart(log_start=10))

    found = audit_topic(spark, str(tmp_path), "t")

    assert [] == found.faults
    first, second = found.partitions
    end = 40 + 2 * BITS
    assert (Gap(20, 22), Gap(30, 31), Gap(40, end), Gap(end + 1, end + 10)) == first.gaps
    assert (10, end + 10, 28, end + 10 - 10 - 28) == (
        first.start,
        first.end,
        first.records,
        first.missing,
    )
    assert (0, 0, ()) == (second.start, second.end, second.gaps)
    dense = audit_topic(spark, str(tmp_path), "t", require_dense=True)
    assert [f"t-0: offsets without a record: {first.missing}"] == dense.faults


def test_an_offset_that_is_there_twice_is_a_fault(spark: SparkSession, tmp_path: Path) -> None:
    """
    A file in the place of another one: its offsets twice, and those of the other in a gap.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    refs = topic.seal(0, 0, *([message(n) for n in range(b, b + 10)] for b in (0, 10)))
    shutil.copy(tmp_path / refs[0].key, tmp_path / refs[1].key)

    found = audit_topic(spark, str(tmp_path), "t")

    assert ["t-0: offsets 0 to 32767 have an offset twice"] == found.faults
    assert (Gap(10, 20),) == found.partitions[0].gaps
    assert 1 == audit_status(found)


def test_records_of_another_partition_or_range_are_faults(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    And a file with fewer records than its manifest says.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    (ours,) = topic.seal(0, 0, [message(n) for n in range(10)])
    (theirs,) = topic.seal(1, 0, [message(n) for n in range(5)])
    shutil.copy(tmp_path / theirs.key, tmp_path / ours.key)

    faults = audit_topic(spark, str(tmp_path), "t", partitions=[0]).faults

    assert [
        "t: files have records of partition 1",
        "t-0: the files have 0 records, and the manifest 10",
    ] == faults
    with pytest.raises(JobError, match="partitions 0 to 1"):
        audit_topic(spark, str(tmp_path), "t", partitions=[2])


def test_batches_that_cannot_be_decoded_are_faults_and_the_audit_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    They are counted from the log start on, and 20 are named; so is what is wrong behind them.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    topic.seal_raw(0, 0, 4)
    topic.seal(0, 4, [message(4)])
    for base in range(5, 27):
        topic.seal_raw(0, base, base + 1)
    topic.edit(0, SetLogStart(log_start=2))
    refs = topic.seal(1, 0, [message(0)], [message(1)])
    shutil.copy(tmp_path / refs[0].key, tmp_path / refs[1].key)

    found = audit_topic(spark, str(tmp_path), "t")

    named = ", ".join(["2 to 3", *(f"{n} to {n}" for n in range(5, 24))])
    assert [
        f"t-0: 24 offsets are of batches that cannot be decoded: {named}, and 3 more",
        "t-1: offsets 0 to 32767 have an offset twice",
    ] == found.faults
    assert [1, 2] == [each.records for each in found.partitions]
    assert (Gap(2, 4), Gap(5, 27)) == found.partitions[0].gaps
    assert 1 == audit_status(found)


@pytest.mark.skipif(not kafka_jars(), reason="run `make spark-jars`")
def test_the_topic_of_another_cluster_has_the_same_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Read through Spark's Kafka source; one other value, and fewer records, are faults.
    """
    with DriftlogProcess() as agent:
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        kept = {"retention.ms": "-1"}  # the records are of 2023
        made = admin.create_topics([NewTopic(name, 2, config=kept) for name in "abc"])
        for future in made.values():
            future.result(30)
        producer = Producer({"bootstrap.servers": agent.bootstrap})
        for name in "abc":
            for n in range(60):
                value = b"other" if (name, n) == ("b", 8) else f"v{n}".encode()
                for partition in range(2):
                    if (name, partition, n) != ("c", 1, 59):
                        producer.produce(
                            name,
                            None if n % 5 == 2 else value,
                            None if n % 7 == 0 else f"k{n}".encode(),
                            partition=partition,
                            timestamp=T0 + n,
                            headers=[("h", None), ("i", b"")] if n % 2 else None,
                        )
        assert 0 == producer.flush(30)
        agent.seal("a")
        location = str(agent.directory / "objects")
        there = {"kafka.bootstrap.servers": agent.bootstrap}
        same, other, fewer = (
            audit_topic(spark, location, "a", compare=there, compare_topic=name) for name in "abc"
        )

    assert [] == same.faults
    assert 0 == audit_status(same)
    assert [
        f"a-{p}: offsets 0 to 32767 differ from the other cluster's" for p in range(2)
    ] == other.faults
    assert f"c-1: {agent.bootstrap} has offsets 0 to 59, and here are 0 to 60" in fewer.faults
    assert agent.bootstrap == same.compared_with
    assert json.loads(json.dumps(other.to_dict()))["faults"] == other.faults
