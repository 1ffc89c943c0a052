"""A range that is sealed with a batch too few, too many or twice fails here.

Pure.
"""

from array import array
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.segments.range_pieces import RangePiece, batches_in, is_batch, pieces_of
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from tests.agents.log.lives import make_batch


def log_of(flushes: list[list[int]]) -> PartitionLog:
    """A partition with a slice for each flush; the sizes of the batches, one record each."""
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)
    base = 0
    for n, sizes in enumerate(flushes):
        data = FlushBatches(
            session_id="s",
            base_offsets=array("q", range(base, base + len(sizes))),
            lengths=array("i", sizes),
            positions=array("i", accumulate(sizes[:-1], initial=0)),
            max_timestamps_ms=array("q", [0] * len(sizes)),
        )
        end = base + len(sizes)
        stored_at = StoredAt(f"f{n}", 0)
        log.restore(TailSlice(base, end, data, 0, len(sizes), sum(sizes), stored_at), 0.0)
        base = end
    return log


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), min_size=1, max_size=5),
    st.data(),
)
def test_pieces_have_every_batch_of_the_range_once_and_in_order(
    flushes: list[list[int]], data: st.DataObject
) -> None:
    """And none is larger than a chunk, but one batch."""
    log = log_of(flushes)
    end = data.draw(st.integers(1, log.high_watermark))
    base = data.draw(st.integers(0, end - 1))
    pieces = list(pieces_of(log, base, end, chunk_bytes=100))

    offsets = [n for piece in pieces for n in piece.data.base_offsets[piece.first : piece.stop]]
    assert list(range(base, end)) == offsets
    assert all(piece.size_bytes <= 100 or piece.stop - piece.first == 1 for piece in pieces)


def batch(offset: int) -> bytes:
    """One with one record."""
    made = memoryview(make_batch([b"x"]))
    kernel.patch(made, 0, offset, 0)
    return bytes(made)


def test_a_body_that_lacks_a_batch_is_never_sealed_as_a_gap() -> None:
    """The object is cut off between two batches, or it is another."""
    log = log_of([[len(batch(0))] * 2])
    (piece,) = pieces_of(log, 0, 2)
    whole = batch(0) + batch(1)

    assert [batch(0), batch(1)] == [bytes(one) for one in batches_in(whole, piece, "k")]
    for body in (batch(0), batch(0) + batch(2), b""):
        with pytest.raises(CorruptError, match="lacks the 2 batches from offset 0"):
            batches_in(body, RangePiece(*piece), "k")


def test_a_buffer_file_with_other_bytes_is_not_believed() -> None:
    """A page that the disk lost has the bytes of another batch, or half of one."""
    sound, damaged = batch(5), bytearray(batch(5))
    damaged[-1] ^= 1

    assert [True, False, False] == [is_batch(sound, 5), is_batch(sound, 6), is_batch(damaged, 5)]
