"""If it failed: clean partitions would be read at each look, or dirty ones never compacted."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_agents.log.compaction.compaction_looks import CompactionLooks
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.compaction.policy import CompactionPolicy, dirtiness
from driftlog_tiering.formats.manifest import SegmentRef, empty_manifest

TP = TopicPartition(UUID(int=1), 0)
POLICY = CompactionPolicy(min_dirty_ratio=0.4)


def segment(base: int, end: int, size: int) -> SegmentRef:
    """A segment of *size* bytes as received."""
    return SegmentRef(
        key=f"segment-{base}",
        base=base,
        end=end,
        size_bytes=1,
        records=end - base,
        raw_bytes=size,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


MANIFEST = replace(
    empty_manifest("t", TP),
    version=1,
    end=30,
    cleaned_end=20,
    segments=(segment(0, 10, 50), segment(10, 20, 50), segment(20, 30, 100)),
)


def sealed_log() -> PartitionLog:
    """Its partition."""
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    log.sealed_end = log.high_watermark = log.log_end = 30
    log.manifest_version = 1
    return log


@pytest.mark.parametrize("change", ["none", "sealed", "policy", "expired", "forgotten"])
def test_a_partition_that_was_not_due_is_looked_at_again_after_a_change(change: str) -> None:
    """
    One that was never sealed is not looked at.
    """
    looks, log = CompactionLooks(), sealed_log()
    policy = replace(POLICY, min_dirty_ratio=0.9)
    at_first = looks.is_wanted(log, policy, 0)
    found = dirtiness(MANIFEST, MANIFEST.segments[2:], 30, policy, 1_000)
    ratio = looks.ratio(log, found, policy, 1_000)
    log.sealed_end += change == "sealed"
    log.log_start += 10 if change == "expired" else 0
    looks.keep([] if change == "forgotten" else [log])

    assert (True, None) == (at_first, ratio)
    asked = POLICY if change == "policy" else policy
    assert (change != "none") == looks.is_wanted(log, asked, 1_000)
    log.manifest_version = 0
    assert not looks.is_wanted(log, asked, 1_000)


def test_a_partition_that_is_due_is_told_with_its_share() -> None:
    """
    The dirtiest is compacted first.
    """
    looks, log = CompactionLooks(), sealed_log()
    found = dirtiness(MANIFEST, MANIFEST.segments[2:], 30, POLICY, 1_000)

    assert 0.5 == looks.ratio(log, found, POLICY, 1_000)
    assert looks.is_wanted(log, POLICY, 1_000)
