"""If it failed: small segments would stay for ever, or each look would open every list again."""

from dataclasses import replace
from uuid import UUID

from driftlog_agents.log.merging.merge_looks import MergeLooks
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import SegmentList, SegmentRef, empty_manifest, list_ref
from driftlog_tiering.merging.policy import MergePolicy

TP = TopicPartition(UUID(int=1), 0)
POLICY = MergePolicy(segment_bytes=1_000, span_ms=None, factor=4)


def segment(base: int) -> SegmentRef:
    """A small segment of ten records, put at its offset."""
    return SegmentRef(
        key=f"segment-{base}",
        base=base,
        end=base + 10,
        size_bytes=1,
        records=10,
        raw_bytes=10,
        min_timestamp_ms=base,
        max_timestamp_ms=base,
    )


SEGMENTS = tuple(segment(base) for base in range(0, 80, 10))
MANIFEST = replace(empty_manifest("t", TP), version=1, end=80, segments=SEGMENTS)


def sealed_log(end: int = 80) -> PartitionLog:
    """The partition."""
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    log.sealed_end = log.high_watermark = log.log_end = end
    return log


def test_what_is_not_sealed_by_the_partitions_key_or_deleted_is_not_merged() -> None:
    """
    A segment above the key's end may be of an edit that this session does not know.
    """
    log = sealed_log(60)
    found = MergeLooks().of(log, POLICY)
    chosen = found.choose(MANIFEST, SEGMENTS, 1_000)
    log.log_start = 30
    later = found.choose(MANIFEST, SEGMENTS, 1_000)

    assert chosen
    assert 60 >= chosen[-1].end
    assert not later or later[0].base >= 30


def test_a_partition_is_looked_at_again_after_a_change_or_when_a_segment_is_old_enough() -> None:
    """
    Otherwise a look costs nothing.
    """
    log = sealed_log()
    found = MergeLooks().of(log, POLICY)
    before = found.may_be_due(MANIFEST.version, 0)
    found.found_nothing(MANIFEST.version)
    found.due_ms = 100
    due = [found.may_be_due(MANIFEST.version, now_ms) for now_ms in (99, 100)]
    log.log_start = 5

    assert (True, [False, True]) == (before, due)
    assert found.may_be_due(MANIFEST.version, 0)
    log.log_start = 0
    assert not found.may_be_due(MANIFEST.version, 0)
    assert found.may_be_due(MANIFEST.version + 1, 0)


def test_another_policy_looks_at_everything_again_and_keeps_what_was_sealed_at_first() -> None:
    """
    A partition that is not led any more is forgotten.
    """
    log, looks = sealed_log(40), MergeLooks()
    found = looks.of(log, POLICY)
    found.settled = 30
    log.sealed_end = 80
    same = looks.of(log, POLICY)
    other = looks.of(log, replace(POLICY, factor=2))
    looks.keep([])

    assert found is same
    assert (0, 40, True) == (other.settled, other.first_sealed_end, other.opens_lists)
    assert not looks.of(log, POLICY).opens_lists


def test_a_list_is_opened_once_and_only_if_it_may_have_small_segments() -> None:
    """
    One below log start has nothing that is read.
    """
    found = MergeLooks().of(sealed_log(), POLICY)
    ref = list_ref("list", SegmentList(1, segments=SEGMENTS[:4]))
    first = found.may_have_more(MANIFEST, ref)
    deleted = found.may_have_more(replace(MANIFEST, log_start=ref.end), ref)
    found.settled = ref.end

    assert (True, False, False) == (first, deleted, found.may_have_more(MANIFEST, ref))
