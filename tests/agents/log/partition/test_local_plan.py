"""If it broke, a fetch of the recent log would skip or repeat batches, return more than its limit,
or read a buffer file again and again for batches that lie side by side."""

from array import array
from itertools import accumulate, pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.local_plan import file_reads, local_spans
from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches, tail_slice
from driftlog_tiering.formats.flush_object import Slice

TOPIC_ID = UUID(int=7)
GAP_BYTES = 1024


def flush(base: int, lengths: list[int]) -> FlushBatches:
    """Batches of one record each, of *lengths* bytes."""
    return FlushBatches(
        session_id="s",
        base_offsets=array("q", range(base, base + len(lengths))),
        lengths=array("i", lengths),
        positions=array("i", accumulate(lengths[:-1], initial=0)),
        max_timestamps_ms=array("q", [0] * len(lengths)),
    )


def log_of(flushes: list[list[int]]) -> PartitionLog:
    log = PartitionLog(topic="t", topic_id=TOPIC_ID, partition=0, leader_epoch=1)
    for lengths in flushes:
        base = log.high_watermark
        log.log_end = base + len(lengths)
        s = Slice(TOPIC_ID, 0, base, log.log_end, 0, len(lengths))
        data = flush(base, lengths)
        data.views = [b""] * len(lengths)
        log.commit(tail_slice(data, s, StoredAt("key", 0)), 0.0)
    return log


def planned(log: PartitionLog, offset: int, max_bytes: int) -> list[int]:
    """The offsets of the batches in the plan; each batch has one."""
    return [
        data.base_offsets[i]
        for data, first, end in local_spans(log, offset, max_bytes)
        for i in range(first, end)
    ]


sizes = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=6)


@given(flushes=sizes, at=st.integers(0, 40), max_bytes=st.integers(0, 300))
def test_a_plan_is_as_many_batches_as_fit_and_at_least_one(
    flushes: list[list[int]], at: int, max_bytes: int
) -> None:
    """
    Batches follow each other over all flushes, as if they were one.
    """
    lengths = [length for one in flushes for length in one]
    offset = at % len(lengths)
    expected, room = [offset], max_bytes - lengths[offset]
    for following in range(offset + 1, len(lengths)):
        if room <= 0 or lengths[following] > room:
            break
        expected.append(following)
        room -= lengths[following]

    assert expected == planned(log_of(flushes), offset, max_bytes)


@pytest.mark.parametrize("state", [State.ONLINE, State.CLOSED])
def test_no_plan_begins_outside_the_committed_log(state: State) -> None:
    """
    Below log start, at the high watermark, and in a partition that is not led any more.
    """
    log = log_of([[10, 10], [10, 10]])
    log.log_start = 1
    log.state = state

    found = [planned(log, offset, 1_000) for offset in (0, 1, 3, 4)]

    assert ([[], [1, 2, 3], [3], []] if state is State.ONLINE else [[]] * 4) == found


def test_sealed_slices_that_are_still_local_are_planned_before_the_tail() -> None:
    """
    Consumers a little behind the tail do not wait for the bucket.
    """
    log = log_of([[10, 10], [10, 10]])
    sealed: list[TailSlice] = log.seal(2)
    assert [] == planned(log, 0, 1_000)

    log.sealed_slices += sealed

    assert [0, 1, 2, 3] == planned(log, 0, 1_000)


def test_a_plan_ends_where_batches_are_in_the_bucket_only() -> None:
    """
    The others are read at once, without waiting for the bucket.
    """
    log = log_of([[10, 10], [10, 10], [10, 10]])
    data = log.slices[1].data
    assert isinstance(data, FlushBatches)
    data.views = None

    assert [[0, 1], [], [4, 5]] == [planned(log, offset, 1_000) for offset in (0, 2, 4)]


placed = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 3_000), st.sampled_from((0, 48, 1_500, 90_000))),
    min_size=1,
    max_size=30,
)


@given(batches=placed)
def test_reads_of_buffer_files_cover_each_batch_once_and_waste_little(
    batches: list[tuple[int, int, int]],
) -> None:
    """
    Each read holds its batches, in one file, and no two neighbours could be one cheap read.
    """
    data = flush(0, [length for _, length, _ in batches])
    data.file_numbers = array("B", sorted(number for number, _, _ in batches))
    ends = {0: 0, 1: 0}
    data.file_positions = array("q")
    for number, (_, length, gap) in zip(data.file_numbers, batches, strict=True):
        data.file_positions.append(ends[number] + gap)
        ends[number] += gap + length

    reads = list(file_reads(data, 0, len(batches)))

    assert [0, *(end for *_, end in reads)] == [*(first for *_, first, _ in reads), len(batches)]
    for number, position, size, first, end in reads:
        assert {number} == set(data.file_numbers[first:end])
        assert position == data.file_positions[first]
        assert position + size == data.file_positions[end - 1] + data.lengths[end - 1]
        wanted = sum(data.lengths[first:end])
        assert size - wanted <= max(wanted // 4, GAP_BYTES * (end - first - 1))
    halves = [(a, b) for a, b in pairwise(reads) if a[0] == b[0] and a[1] + a[2] == b[1]]
    assert all(a[4] == b[3] for a, b in halves)


def test_batches_that_stand_side_by_side_take_one_read() -> None:
    """
    A partition that is written alone costs one system call a fetch.
    """
    data = flush(0, [16_384] * 64)
    data.file_numbers = array("B", [0] * 64)
    data.file_positions = array("q", [i * (16_384 + 48) for i in range(64)])

    assert [(0, 0, 64 * 16_384 + 63 * 48, 0, 64)] == list(file_reads(data, 0, 64))
