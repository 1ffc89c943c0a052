"""If it broke, a read would begin outside the log, skip a range that was deleted, or read ahead of
consumers that do not read on."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.read_plan import (
    Batches,
    OffsetOutOfRangeError,
    SequentialReaders,
    Tier,
    check_sealed,
    find_tier,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import empty_manifest

TOPIC_ID = UUID(int=7)


def log_of(log_start: int, sealed_end: int, high_watermark: int, log_end: int) -> PartitionLog:
    log = PartitionLog(
        topic="t", topic_id=TOPIC_ID, partition=0, leader_epoch=1, sealed_end=sealed_end
    )
    log.log_start, log.log_end = log_start, log_end
    data = FlushBatches.__new__(FlushBatches)
    log.commit(TailSlice(sealed_end, high_watermark, data, 0, 1, 10, StoredAt("key", 0)), 0.0)
    return log


def test_an_offset_is_in_one_tier() -> None:
    """
    Below the sealed end in segments, then in the tail's slice, and nowhere from the high watermark
    to the log's end; outside of these it is out of range.
    """
    log = log_of(2, 4, 6, 8)

    found = [find_tier(log, offset) for offset in range(2, 9)]

    tail = log.slices[0]
    assert [Tier.SEALED] * 2 + [tail] * 2 + [Tier.END] * 3 == found
    for offset in (1, 9):
        with pytest.raises(OffsetOutOfRangeError):
            find_tier(log, offset)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.CLOSED, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (State.OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_log_that_is_not_served_has_no_tier(state: State, code: ErrorCode) -> None:
    """
    Also for an offset that is out of range: another agent may know it.
    """
    log = log_of(0, 4, 6, 6)
    log.state = state

    for offset in (0, 5, 99):
        with pytest.raises(RefusedError) as caught:
            find_tier(log, offset)
        assert code == caught.value.code


def test_a_range_that_is_deleted_while_the_manifest_is_read_is_no_gap() -> None:
    """
    Log start is the larger of the log's and the manifest's; above the manifest's end the object is
    missing, which is tried again.
    """
    log = log_of(2, 10, 12, 12)
    manifest = empty_manifest("t", TopicPartition(TOPIC_ID, 0))
    manifest = replace(manifest, log_start=4, end=8)

    check_sealed(log, manifest, 4)
    check_sealed(log, manifest, 7)
    for offset in (2, 3):
        with pytest.raises(OffsetOutOfRangeError):
            check_sealed(log, manifest, offset)
    with pytest.raises(ObjectUnavailableError):
        check_sealed(log, manifest, 8)


def test_a_read_that_begins_where_another_ended_is_followed_once() -> None:
    """
    A single read is not, and the same place is read ahead once at a time.
    """
    log = log_of(0, 100, 200, 200)
    readers = SequentialReaders()

    assert readers.follow(log, 0, Batches([], 10, 50)) is None
    place = readers.follow(log, 10, Batches([], 20, 50))
    assert place == (TOPIC_ID, 0, 50)
    assert readers.follow(log, 20, Batches([], 30, 50)) is None
    readers.finished(place)
    assert place == readers.follow(log, 30, Batches([], 40, 50))
    assert readers.follow(log, 77, Batches([], 80, 90)) is None


def test_only_the_latest_sequential_readers_are_remembered() -> None:
    """
    Consumers that come and go take no memory.
    """
    log = log_of(0, 100, 200, 200)
    readers = SequentialReaders()
    for i in range(5_000):
        readers.follow(log, 1_000_000 + 2 * i, Batches([], 2 * i, 0))

    assert readers.follow(log, 0, Batches([], 9_999, 7)) is None
    assert readers.follow(log, 2 * 4_999, Batches([], 9_998, 7)) is not None
