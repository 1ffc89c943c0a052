"""Compaction and merging by Spark lose no record beside live agents, and say what they did not do.

If it failed: `driftlog spark compact` would lose a key's newest value, or stop agents.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import SparkSession

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_spark_reader import (
    JobError,
    UnknownTopicError,
    audit_topic,
    compact_topics,
    merge_topics,
    read_topic,
)
from driftlog_spark_reader.rewrites.rewrite_topics import Rewrites
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.formats.manifest import Busy, SetBusy
from tests.support.clusters import AUTHOR
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

T0 = 1_700_000_000_000
COMPACT = {"cleanup.policy": "compact"}
WAIT_S = 60.0


def message(number: int, keys: int = 7) -> Message:
    """A value of one of the keys, or its deletion."""
    value = None if number % 5 == 0 else b"v%d" % number
    return Message(T0 + number, b"k%d" % (number % keys), value, (("h", b"%d" % number),))


def topic_at(
    location: object,
    name: str = "t",
    *,
    partitions: int = 2,
    segments: int = 4,
    configs: dict[str, str] | None = None,
    grace: Grace | None = None,
    cluster: Cluster = AUTHOR,
) -> SealedTopic:
    """A topic with so many segments of ten records in each partition."""
    topic = SealedTopic(
        str(location),
        name,
        partitions=partitions,
        configs=COMPACT if configs is None else configs,
        grace=grace or Grace(),
        cluster=cluster,
    ).create()
    for partition in range(partitions):
        for base in range(0, 10 * segments, 10):
            topic.seal(partition, base, [message(n) for n in range(base, base + 10)])
    return topic


def table(spark: SparkSession, location: object, name: str = "t") -> dict[bytes, bytes]:
    """What a consumer of the topic ends with."""
    rows = read_topic(spark, str(location), name).orderBy("partition", "offset").collect()
    found: dict[bytes, bytes] = {}
    for row in rows:
        if row.value is None:
            found.pop(bytes(row.key), None)
        else:
            found[bytes(row.key)] = bytes(row.value)
    return found


def outcomes(reports: tuple[RewriteReport, ...]) -> list[Outcome]:
    return [each.outcome for each in reports]


def test_each_key_keeps_its_newest_record_and_a_second_run_does_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Records stay at their offsets; progress tells of each partition; other topics are left out.
    """
    topic_at(tmp_path)
    topic_at(tmp_path, "other", configs={})
    before, told = table(spark, tmp_path), []
    found = compact_topics(
        spark,
        str(tmp_path),
        progress=lambda done, count, each: told.append((done, count, each.partition)),
    )
    again = compact_topics(spark, str(tmp_path), "t", min_dirty_ratio=0)

    assert [Outcome.DONE] * 2 == outcomes(found.partitions)
    assert [("t", 0, 40, 7), ("t", 1, 40, 7)] == [
        (each.topic, each.partition, each.records_before, each.records) for each in found.partitions
    ]
    assert [(1, 2), (2, 2)] == [(done, count) for done, count, _ in told]
    assert {0, 1} == {partition for *_, partition in told}
    assert before == table(spark, tmp_path)
    rows = read_topic(spark, str(tmp_path), "t", partitions=[0]).orderBy("offset").collect()
    assert list(range(33, 40)) == [row.offset for row in rows]
    assert [Outcome.CLEAN] * 2 == outcomes(again.partitions)
    assert [] == audit_topic(spark, str(tmp_path), "t").faults


def test_merging_changes_no_record(spark: SparkSession, tmp_path: Path) -> None:
    """
    Of any topic; with the factor that is asked for.
    """
    topic_at(tmp_path, configs={"retention.ms": "-1"})
    before = audit_topic(spark, str(tmp_path), "t")
    few = merge_topics(spark, str(tmp_path), "t", factor=5)
    found = merge_topics(spark, str(tmp_path), factor=4)
    after = audit_topic(spark, str(tmp_path), "t")

    assert [Outcome.CLEAN] * 2 == outcomes(few.partitions)
    assert [(Outcome.DONE, 4, 1)] * 2 == [
        (each.outcome, each.segments_before, each.segments) for each in found.partitions
    ]
    assert before == after


def test_a_bucket_in_s3_is_compacted(spark: SparkSession, s3a: S3Server) -> None:
    """
    With the credentials in AWS_* variables; a location of S3A is the same.
    """
    topic_at(s3a.location)
    before = table(spark, s3a.location)
    found = compact_topics(spark, s3a.location.replace("s3://", "s3a://"), "t")

    assert [Outcome.DONE] * 2 == outcomes(found.partitions)
    assert before == table(spark, s3a.location)


def test_a_damaged_partition_is_named_and_the_others_are_compacted(
    tmp_path: Path,
) -> None:
    """
    By the command: the damaged one is as it was, and the exit status is 1.
    """
    topic = topic_at(tmp_path)
    segment = topic.manifest(1).segments[2]
    path = tmp_path / segment.key
    path.write_bytes(bytes(segment.size_bytes))
    before = topic.manifest(1)

    driftlog = driftlog_command()
    assert driftlog is not None
    command = [driftlog, "spark", "compact", "t", "--store", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--master", "local[2]"], capture_output=True, text=True, check=False
    )

    assert 1 == ended.returncode
    assert segment.key in ended.stderr
    assert "driftlog verify" in ended.stderr
    assert "2 of 2" in ended.stderr
    after = topic.manifest(1)
    assert (before.segments, before.cleaned_end, None) == (
        after.segments,
        after.cleaned_end,
        after.busy,
    )
    assert 40 == topic.manifest(0).cleaned_end
    assert "40 → 7" in ended.stdout


def test_what_another_rewrites_is_left_alone_and_told(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_at(tmp_path)
    until_ms = round((time.time() + 500) * 1000)
    topic.edit(0, SetBusy(None, Busy("spark compact of another", until_ms)))

    found = compact_topics(spark, str(tmp_path), "t")

    assert [Outcome.BUSY, Outcome.DONE] == outcomes(found.partitions)
    assert "spark compact of another rewrites the partition" in found.partitions[0].reason
    assert not found.failed
    assert 4 == len(topic.manifest(0).segments)


def test_what_cannot_be_compacted_is_refused_with_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    A topic that is not compacted, or unknown, or has no such partition; a cluster of a low level.
    """
    topic_at(tmp_path / "a", configs={})
    topic_at(tmp_path / "b", cluster=replace(AUTHOR, format_version=1), segments=0)
    a = str(tmp_path / "a")
    with pytest.raises(JobError, match=r"no cleanup.policy of its own.*cleanup.policy=compact"):
        compact_topics(spark, a, "t")
    with pytest.raises(UnknownTopicError, match="there are: t"):
        compact_topics(spark, a, "u")
    with pytest.raises(JobError, match="partitions 0 to 1"):
        merge_topics(spark, a, "t", partitions=[2])
    with pytest.raises(JobError, match="driftlog cluster upgrade --finalize"):
        compact_topics(spark, str(tmp_path / "b"), "t")
    with pytest.raises(ValueError, match="at least 2"):
        merge_topics(spark, a, "t", factor=1)
    with pytest.raises(ValueError, match="0 to 1"):
        compact_topics(spark, a, "t", min_dirty_ratio=2)
    assert () == compact_topics(spark, a).partitions


def test_a_partition_of_another_cluster_fails_and_is_not_edited(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Its manifest is of the cluster that the bucket had before.
    """
    topic = topic_at(tmp_path)
    topic.cluster = Cluster("another-cluster")
    moved = SealedTopic(str(tmp_path), "moved", configs=COMPACT, cluster=topic.cluster).create()
    moved.seal(0, 0, [message(n) for n in range(10)])

    found = compact_topics(spark, str(tmp_path), ["moved"])

    assert [Outcome.FAILED] == outcomes(found.partitions)
    assert "another cluster" in found.partitions[0].reason
    assert moved.manifest(0).busy is None


_CONNECT = """
import sys
from pyspark.sql import SparkSession
from driftlog_spark_reader import compact_topics

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect."), type(spark)
found = compact_topics(spark, sys.argv[1], progress=lambda *_: None)
print([(each.outcome.value, each.records) for each in found.partitions])
spark.stop()
"""


def test_a_session_of_spark_connect_compacts_too(tmp_path: Path) -> None:
    """
    It has no accumulators and no RDDs.
    """
    topic_at(tmp_path)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, "-c", _CONNECT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert 0 == ended.returncode, ended.stderr
    assert "[('done', 7), ('done', 7)]" in ended.stdout


def test_a_partition_without_its_work_is_told_by_the_exit_status() -> None:
    """
    A void one, too: nobody would run the job again.
    """
    reports = [RewriteReport(topic="t", partition=0, outcome=each) for each in Outcome]
    found = Rewrites("compact", tuple(reports)).unfinished
    assert [Outcome.VOID, Outcome.FAILED] == outcomes(tuple(found))


def test_speculation_is_refused(tmp_path: Path) -> None:
    """
    Two attempts of a task have the same mark, and each makes the other void.
    """
    topic_at(tmp_path, segments=1)
    driftlog = driftlog_command()
    assert driftlog is not None
    command = [driftlog, "spark", "compact", "t", "--store", str(tmp_path), "--master", "local[1]"]
    ended = subprocess.run(
        [*command, "--conf", "spark.speculation=true"], capture_output=True, text=True, check=False
    )
    assert 1 == ended.returncode
    assert "spark.speculation=true runs tasks twice" in ended.stderr


# ── Killed ──


def test_a_job_that_was_killed_is_run_again_when_its_marks_have_lapsed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    The second run does what is left, and nothing is lost.
    """
    partitions = 12
    topic = topic_at(tmp_path, partitions=partitions, segments=12, grace=Grace(8_000))
    before = table(spark, tmp_path)
    command = [sys.executable, "-m", "driftlog_spark_reader.jobs", "compact", "t"]
    job = subprocess.Popen(
        [*command, "--store", str(tmp_path), "--master", "local[2]"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert job.stderr is not None
    for line in job.stderr:
        if f" of {partitions}" in line:
            break
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    assert before == table(spark, tmp_path)

    deadline = time.monotonic() + WAIT_S
    while True:
        found = compact_topics(spark, str(tmp_path), "t", min_dirty_ratio=0)
        if Outcome.BUSY not in outcomes(found.partitions):
            break
        assert time.monotonic() < deadline, "a killed job's mark does not lapse"
    assert not found.failed
    manifests = [topic.manifest(partition) for partition in range(partitions)]
    assert [(120, None)] * partitions == [(each.cleaned_end, each.busy) for each in manifests]
    assert before == table(spark, tmp_path)
    assert partitions * 7 == read_topic(spark, str(tmp_path), "t").count()


# ── Beside agents ──


class Writer(threading.Thread):
    """Produces values of a few keys until it is told to stop; knows the newest acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic = topic
        self._partitions = partitions
        self._ended = threading.Event()
        self.count = 0
        self.newest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        """Offset and value by partition and key."""

    def run(self) -> None:
        while not self._ended.is_set():
            for _ in range(50):
                self._send(self.count)
                self.count += 1
            self._producer.poll(0.01)

    def _send(self, number: int) -> None:
        key = b"k%d" % (number % 40)
        value = None if number % 11 == 0 else b"v%d" % number

        def delivered(error: object, sent: object) -> None:
            assert error is None, error
            partition, offset = sent.partition(), sent.offset()  # type: ignore[attr-defined]
            if self.newest.get((partition, key), (-1, None))[0] < offset:
                self.newest[partition, key] = offset, value

        self._producer.produce(
            self._topic, value, key, partition=number % self._partitions, on_delivery=delivered
        )

    def stop(self) -> None:
        self._ended.set()
        self.join()
        assert 0 == self._producer.flush(WAIT_S)


def consumed(bootstrap: str, topic: str, partitions: int) -> dict[tuple[int, bytes], bytes]:
    """The table of a consumer that reads everything."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    ends = {p.partition: consumer.get_watermark_offsets(p, timeout=WAIT_S)[1] for p in places}
    consumer.assign(places)
    found: dict[tuple[int, bytes], bytes] = {}
    while any(each.offset < ends[each.partition] for each in consumer.position(places)):
        got = consumer.poll(1)
        if got is None:
            continue
        assert got.error() is None, got.error()
        partition, key, value = got.partition() or 0, got.key() or b"", got.value()
        if value is None:
            found.pop((partition, key), None)
        else:
            found[partition, key] = value
    consumer.close()
    return found


@pytest.fixture(params=["agents compact, too", "agents compact nothing"])
def agent(request: pytest.FixtureRequest) -> Iterator[DriftlogProcess]:
    enabled = str(request.param == "agents compact, too").lower()
    with DriftlogProcess(
        arguments=(
            *("--config", "log.cleaner.backoff.ms=300"),
            *("--config", f"log.cleaner.enable={enabled}"),
        )
    ) as running:
        yield running


def test_beside_an_agent_that_is_written_nothing_is_lost(
    spark: SparkSession, agent: DriftlogProcess
) -> None:
    """
    It seals, compacts and merges meanwhile.  In the end each key has one record, and consumers of
    the agent have the newest value of each.
    """
    partitions, topic, location = 2, "table", str(agent.directory / "objects")
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    configs = {**COMPACT, "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic(topic, partitions, config=configs)])[topic].result(30)
    writer = Writer(agent.bootstrap, topic, partitions)
    writer.start()
    seen: list[RewriteReport] = []
    ends = time.monotonic() + 12
    while time.monotonic() < ends or Outcome.DONE not in outcomes(tuple(seen)):
        seen += compact_topics(spark, location, topic, min_dirty_ratio=0).partitions
        seen += merge_topics(spark, location, topic, factor=2).partitions
    writer.stop()
    agent.seal(topic)
    while True:
        found = compact_topics(spark, location, topic, min_dirty_ratio=0)
        if Outcome.VOID not in outcomes(found.partitions):
            break

    assert Outcome.FAILED not in outcomes((*seen, *found.partitions)), seen
    expected = {at: value for at, (_, value) in writer.newest.items() if value is not None}
    assert expected == consumed(agent.bootstrap, topic, partitions)
    rows = read_topic(spark, location, topic).collect()
    places = {(row.partition, bytes(row.key)): row.offset for row in rows}
    assert len(places) == len(rows), "a key has two records"
    assert {at: offset for at, (offset, _) in writer.newest.items()} == places
    assert "partition_offline" not in agent.log
    assert [] == audit_topic(spark, location, topic).faults


def test_merging_beside_an_agent_loses_no_record(
    spark: SparkSession, agent: DriftlogProcess
) -> None:
    """
    Of a topic that is not compacted; the agent seals and merges meanwhile.
    """
    partitions, topic, location = 2, "events", str(agent.directory / "objects")
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    configs = {"segment.ms": "300", "retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, partitions, config=configs)])[topic].result(30)
    writer = Writer(agent.bootstrap, topic, partitions)
    writer.start()
    seen: list[RewriteReport] = []
    ends = time.monotonic() + 8
    while time.monotonic() < ends or Outcome.DONE not in outcomes(tuple(seen)):
        seen += merge_topics(spark, location, topic, factor=2).partitions
    writer.stop()
    agent.seal(topic)

    assert Outcome.FAILED not in outcomes(tuple(seen)), seen
    found = audit_topic(spark, location, topic, require_dense=True)
    assert ([], writer.count) == (found.faults, sum(each.records for each in found.partitions))
    expected = {at: value for at, (_, value) in writer.newest.items() if value is not None}
    assert expected == consumed(agent.bootstrap, topic, partitions)
    assert "partition_offline" not in agent.log
