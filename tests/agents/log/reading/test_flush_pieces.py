"""If it broke, a consumer behind the local disk would miss or repeat batches, or cost one GET a
fetch instead of one a piece."""

from array import array
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches, tail_slice
from driftlog_agents.log.reading.flush_pieces import (
    FlushPiece,
    piece_at,
    plan_pieces,
    split_piece,
    take,
)
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.tiers import make_batch

TOPIC_ID = UUID(int=7)
SHIFT = 17


def log_of(flushes: list[list[int]]) -> PartitionLog:
    """Flushes of batches of one record each, by their lengths; each in an object of its own."""
    log = PartitionLog(topic="t", topic_id=TOPIC_ID, partition=0, leader_epoch=1)
    for lengths in flushes:
        base = log.high_watermark
        log.log_end = base + len(lengths)
        data = FlushBatches(
            session_id="s",
            base_offsets=array("q", range(base, log.log_end)),
            lengths=array("i", lengths),
            positions=array("i", accumulate(lengths[:-1], initial=0)),
            max_timestamps_ms=array("q", [0] * len(lengths)),
        )
        s = Slice(TOPIC_ID, 0, base, log.log_end, 0, len(lengths))
        log.commit(tail_slice(data, s, StoredAt(f"flush/{base}", SHIFT)), 0.0)
    return log


def loaded(piece: FlushPiece) -> list[Buffer]:
    """Stand-ins for its batches: their offsets."""
    return [b"%d" % piece.data.base_offsets[i] for i in range(piece.first, piece.end)]


flushes_of = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=12)


@given(
    flushes=flushes_of,
    start=st.integers(0, 70),
    max_bytes=st.integers(0, 200),
    piece_bytes=st.integers(1, 120),
    failing=st.integers(1, 9),
)
def test_reads_one_after_another_give_each_batch_once(
    flushes: list[list[int]], start: int, max_bytes: int, piece_bytes: int, failing: int
) -> None:
    """
    Whatever a read asks for, and where its later pieces cannot be loaded: batches are in order and
    without a hole, within the limit, or one.
    """
    log = log_of(flushes)
    lengths = [length for one in flushes for length in one]
    offset = start % len(lengths)
    expected = list(range(offset, len(lengths)))
    seen: list[int] = []
    while offset < len(lengths):
        tail = log.find(offset)
        assert tail is not None
        index = tail.data.index_of(offset, tail.first, tail.count)
        plan = plan_pieces(log, tail, index, max_bytes, piece_bytes)
        found = [loaded(piece) for piece in plan][:failing]

        batches, finished = take(plan, found, index, max_bytes)

        got = [int(bytes(batch)) for batch in batches.buffers]
        assert got
        assert len(got) == 1 or sum(lengths[i] for i in got) <= max_bytes
        assert batches.end == got[-1] + 1 <= batches.unit_end
        assert all(piece.unit_end <= batches.end for piece in finished)
        seen += got
        offset = batches.end
    assert expected == seen


@given(flushes=flushes_of, piece_bytes=st.integers(1, 120))
def test_every_batch_is_in_one_piece_whatever_a_request_asks_for(
    flushes: list[list[int]], piece_bytes: int
) -> None:
    """
    Parallel consumers at different offsets share the pieces: their keys are the same.
    """
    for tail in log_of(flushes).slices:
        pieces = [piece_at(tail, i, piece_bytes) for i in range(tail.count)]

        assert all(p.first <= i < p.end for i, p in enumerate(pieces))
        distinct = sorted({p[1:3] for p in pieces})
        assert [0, *(end for _, end in distinct)] == [*(first for first, _ in distinct), tail.count]
        assert all(p.key[2] - p.key[1] == p.size_bytes for p in pieces)
        assert pieces[0].key[:2] == (f"flush/{tail.base}", SHIFT)


def test_a_plan_ends_where_batches_are_local_again() -> None:
    """
    The next fetch reads them from memory, without a GET.
    """
    log = log_of([[10, 10], [10, 10], [10, 10]])
    data = log.slices[2].data
    assert isinstance(data, FlushBatches)
    data.views = [b"", b""]

    plan = plan_pieces(log, log.slices[0], 0, 1_000, 1_000)

    assert ["flush/0", "flush/2"] == [piece.key[0] for piece in plan]


def test_a_plan_has_a_limit_of_pieces() -> None:
    """
    A read of many small flushes does not send all GETs at once.
    """
    log = log_of([[10]] * 30)

    assert 8 == len(plan_pieces(log, log.slices[0], 0, 1_000, 1_000))


def test_damaged_bytes_are_an_error_that_names_the_offset() -> None:
    """
    Neither a flipped bit nor another batch is given to a consumer.
    """
    batches = [make_batch(i, [(1, None, b"v")]) for i in range(3)]
    log = log_of([[len(batch) for batch in batches]])
    piece = piece_at(log.slices[0], 0, 10_000)

    assert batches == [bytes(b) for b in split_piece(b"".join(batches), piece)]
    flipped = bytearray(b"".join(batches))
    flipped[-1] ^= 1
    with pytest.raises(CorruptError, match="offset 2 "):
        split_piece(flipped, piece)
    with pytest.raises(CorruptError, match="offset 1 "):
        split_piece(b"".join((batches[0], batches[2], batches[1])), piece)
    with pytest.raises(CorruptError, match="offset 2 "):
        split_piece(b"".join(batches)[:-5], piece)
