"""Tasks of compaction and merging follow their topic, or lose what was acknowledged meanwhile.

If it failed: a topic that is not compacted any more would be compacted.  No JVM runs here.
"""

from pathlib import Path

import pytest

from driftlog_metadata.schema.codec import encode_configs
from driftlog_spark_reader.rewrites.rewrite_task import (
    Compaction,
    Merge,
    PartitionWork,
    RewriteTask,
)
from driftlog_tiering.compaction import broker_defaults
from driftlog_tiering.compaction.broker_defaults import BrokerDefaults
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import (
    GroupSnapshot,
    decode_group_snapshot,
    encode_group_snapshot,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.sealed_topics import Message, SealedTopic

COMPACTION = Compaction(min_dirty_ratio=0, map_bytes=1 << 20)


def sealed(location: Path, **configs: str) -> SealedTopic:
    """A topic of four segments, each with the same key."""
    topic = SealedTopic(str(location), "t", configs=configs).create()
    for offset in range(4):
        topic.seal(0, offset, [Message(1_000, b"k", b"%d" % offset)])
    return topic


def rewritten(topic: SealedTopic, rewriting: Compaction | Merge) -> RewriteReport:
    """What an executor does, long after the driver chose the topic."""
    task = RewriteTask(
        location=topic.location,
        by="job",
        cluster_id=topic.cluster.cluster_id,
        rewriting=rewriting,
        defaults=BrokerDefaults(),
        works={},
        done=lambda _: None,
    )
    return task.rewrite(PartitionWork("t", topic.topic_id, 0))


def set_on_all_brokers(topic: SealedTopic, **configs: str) -> None:
    """As agents write it a minute later."""

    async def put(store: ObjectStore) -> None:
        values = {"brokers": encode_configs(configs)}
        snapshot = GroupSnapshot(topic.cluster.cluster_id, 7, {}, values)
        key = layout.group_snapshot_key(topic.cluster.cluster_id, 7)
        await store.put(key, [encode_group_snapshot(snapshot)])

    topic.with_store(put)


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact", "min.compaction.lag.ms": str(2**62)},
    ],
)
def test_configs_that_changed_since_the_driver_read_them_count(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    topic = sealed(tmp_path, **{"cleanup.policy": "compact"})
    topic.alter(configs)
    found = rewritten(topic, COMPACTION)
    assert (Outcome.CLEAN, 4) == (found.outcome, len(topic.manifest(0).segments))

    topic.alter({"cleanup.policy": "compact"})
    assert (Outcome.DONE, 1) == ((found := rewritten(topic, COMPACTION)).outcome, found.records)


def test_a_topic_that_was_deleted_meanwhile_is_left_alone(tmp_path: Path) -> None:
    topic = sealed(tmp_path, **{"cleanup.policy": "compact"})
    topic.delete()
    for rewriting in (COMPACTION, Merge(factor=2)):
        found = rewritten(topic, rewriting)
        assert Outcome.CLEAN == found.outcome
        assert "its topic is deleted" in found.reason
    assert 4 == len(topic.manifest(0).segments)


def test_what_all_brokers_have_counts_where_the_topic_has_nothing_of_its_own(
    tmp_path: Path,
) -> None:
    """
    Else a lag that holds in the whole cluster would not hold for jobs.
    """
    topic = sealed(tmp_path, **{"cleanup.policy": "compact"})
    set_on_all_brokers(topic, **{"log.cleaner.min.compaction.lag.ms": str(2**62)})
    assert Outcome.CLEAN == rewritten(topic, COMPACTION).outcome
    topic.alter({"cleanup.policy": "compact", "min.compaction.lag.ms": "0"})
    assert Outcome.DONE == rewritten(topic, COMPACTION).outcome


def test_a_topic_is_compacted_only_where_it_says_so_itself(tmp_path: Path) -> None:
    """
    The snapshot is of a minute ago: since then the brokers' policy may be delete again, and agents
    have accepted records without a key, which compaction drops.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    for offset in range(4):
        topic.seal(0, offset, [Message(1_000, None, b"%d" % offset)])
    set_on_all_brokers(topic, **{"log.cleanup.policy": "compact"})
    found = rewritten(topic, COMPACTION)
    assert (Outcome.CLEAN, 4) == (found.outcome, len(topic.manifest(0).segments))


def test_the_snapshot_of_groups_is_read_once_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It has the offsets of all groups: else each merge would read it again.
    """
    topic = sealed(tmp_path)
    set_on_all_brokers(topic, **{"log.segment.bytes": "1000000"})
    read: list[bytes] = []

    def counted(data: Buffer) -> GroupSnapshot:
        read.append(bytes(data))
        return decode_group_snapshot(data)

    monkeypatch.setattr(broker_defaults, "decode_group_snapshot", counted)
    assert Outcome.DONE == rewritten(topic, Merge(factor=2)).outcome
    assert 1 == len(read)
