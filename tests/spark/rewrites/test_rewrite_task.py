"""Tasks of compaction and merging follow their topic, or lose what was acknowledged meanwhile.

If it failed: a topic that is not compacted any more would be compacted.  No JVM runs here.
"""

from pathlib import Path

import pytest

from driftlog_spark_reader.rewrites.rewrite_task import (
    Compaction,
    Merge,
    PartitionWork,
    RewriteTask,
)
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
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
        works={},
        done=lambda _: None,
    )
    return task.rewrite(PartitionWork("t", topic.topic_id, 0))


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
