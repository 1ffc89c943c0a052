"""Plans reads of the tail from flush objects: which pieces, and what a read takes of them.

    slice of a flush   │ piece 0 │ piece 1 │ piece 2 │   cut at the same places for each request
    a read                  └── from its offset ──┘      at most `max_bytes`, or one batch

A partition's batches of one flush stand side by side in its object.  A consumer that reads through
the slice needs one GET per piece, and parallel consumers share it.

Pure.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import (
    FlushBatches,
    last_that_fits,
    object_range,
    span_bytes,
)
from driftlog_agents.log.reading.read_plan import Batches
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.foundation.types import Buffer

_PIECES_AT_ONCE: Final = 8
"""Fetched for one read, as many side by side as the partition's share of the requests: otherwise
each slice of many small flushes would take one round trip."""


class FlushPiece(NamedTuple):
    """The batches ``[first, end)`` of a flush; *unit_end*: where their offsets end.

    Looked up once for a read: it stays valid through every await, also when the slice is moved by a
    rewrite, or sealed, meanwhile.
    """

    data: FlushBatches
    first: int
    end: int
    unit_end: int
    stored_at: StoredAt

    @property
    def key(self) -> tuple[str, int, int]:
        """The object's key, and start and end of the piece there."""
        return object_range(self.data, self.first, self.end, self.stored_at)

    @property
    def size_bytes(self) -> int:
        """Of its batches."""
        return span_bytes(self.data, self.first, self.end)


def piece_at(tail: TailSlice, index: int, piece_bytes: int) -> FlushPiece:
    """The piece of *tail* that holds the batch at *index* of its flush."""
    data = tail.data
    assert isinstance(data, FlushBatches)
    positions, stop = data.positions, tail.first + tail.count
    start = positions[tail.first]
    cut = start + (positions[index] - start) // piece_bytes * piece_bytes
    first = bisect_left(positions, cut, tail.first, stop)
    end = bisect_left(positions, cut + piece_bytes, first, stop)
    unit_end = data.base_offsets[end] if end < stop else tail.end
    return FlushPiece(data, first, end, unit_end, tail.stored_at)


def plan_pieces(
    log: PartitionLog, tail: TailSlice, index: int, max_bytes: int, piece_bytes: int
) -> list[FlushPiece]:
    """The pieces of a read of *max_bytes* from the batch at *index* of *tail* on, up to where
    batches are local again."""
    plan: list[FlushPiece] = []
    room = max_bytes
    at = log.index_of(tail)
    while True:
        piece = piece_at(tail, index, piece_bytes)
        plan.append(piece)
        room -= span_bytes(piece.data, index, piece.end)
        if room <= 0 or len(plan) == _PIECES_AT_ONCE:
            return plan
        index = piece.end
        if index < tail.first + tail.count:
            continue
        at += 1
        if at == len(log.slices) or log.slices[at].base != tail.end:
            return plan
        tail = log.slices[at]
        index = tail.first
        assert isinstance(tail.data, FlushBatches)
        if tail.data.is_local:
            return plan


def take(
    plan: Sequence[FlushPiece], found: Sequence[list[Buffer]], index: int, max_bytes: int
) -> tuple[Batches, Sequence[FlushPiece]]:
    """What a read takes of the first pieces of *plan*, whose batches are *found*, and the pieces
    that it read to their ends: from the batch at *index* of the first on, *max_bytes* or one."""
    out: list[Buffer] = []
    room = max_bytes
    for i, (piece, batches) in enumerate(zip(plan, found, strict=False)):
        data, end = piece.data, piece.end
        first = index if i == 0 else piece.first
        fits = last_that_fits(data, first, end, room)
        if fits == first and not out:
            fits = first + 1
        out += batches[first - piece.first : fits - piece.first]
        if fits < end:
            return Batches(out, data.base_offsets[fits], piece.unit_end), plan[:i]
        room -= span_bytes(data, first, fits)
    return Batches(out, piece.unit_end, piece.unit_end), plan[: len(found)]


def split_piece(body: Buffer, piece: FlushPiece) -> list[Buffer]:
    """The batches of *piece* in *body*.

    Raises:
        CorruptError: other bytes.
    """
    view = memoryview(body)
    batches: list[Buffer] = []
    at = 0
    for i in range(piece.first, piece.end):
        base_offset, length = piece.data.base_offsets[i], piece.data.lengths[i]
        batch = view[at : at + length]
        sound = not isinstance(kernel.check(batch, 0, length, False), int)
        if not sound or int.from_bytes(batch[:8], "big") != base_offset:
            raise CorruptError(f"no whole batch of offset {base_offset} where its footer has it")
        batches.append(batch)
        at += length
    return batches
