"""The tail from the bucket: batches that left memory and disk, from their flush objects.

A partition's batches of one flush stand side by side in its object.  They are fetched in pieces of
`read_ahead_bytes`, cut at places that do not depend on the request: a consumer that reads through
the slice needs one GET per piece, and parallel consumers share it.

Shell.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.objects.ranged_reads import RangedReads, ReadSettings
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import (
    FlushBatches,
    last_that_fits,
    object_range,
    span_bytes,
)
from driftlog_agents.log.reading.segments import Batches
from driftlog_agents.log.reading.shared_cache import SharedCache
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.stores.object_store import Buffer

_PIECES_AT_ONCE: Final = 8
"""Fetched side by side for one read: otherwise each slice of many small flushes would take one
round trip."""


class _Piece(NamedTuple):
    """The batches ``[first, end)`` of a flush; *unit_end*: where their offsets end.

    Looked up once for a read: it stays valid through every await, also when the slice is moved by a
    rewrite, or sealed, meanwhile.
    """

    data: FlushBatches
    first: int
    end: int
    unit_end: int
    stored_at: StoredAt


class FlushReads:
    """Reads of flush objects, for all partitions."""

    def __init__(
        self,
        *,
        reads: RangedReads,
        offload: Offload,
        settings: ReadSettings,
        now_ms: Callable[[], float],
    ) -> None:
        self._reads = reads
        self._offload = offload
        self._piece_bytes = settings.read_ahead_bytes
        self._pieces: SharedCache[tuple[str, int, int], list[Buffer]] = SharedCache(
            budget_bytes=settings.flush_cache_bytes,
            hold_ms=settings.hold_ms,
            patience_ms=settings.patience_ms,
            now_ms=now_ms,
        )

    async def read(
        self, log: PartitionLog, tail: TailSlice, offset: int, max_bytes: int
    ) -> Batches:
        """Batches from the one that holds *offset* on, up to where they are local again.

        Raises:
            ObjectUnavailableError: a flush object is missing (by now).
            DamagedObjectError: it holds other bytes.
            UnavailableError: the store failed, each time.
        """
        data = tail.data
        assert isinstance(data, FlushBatches)
        index = data.index_of(offset, tail.first, tail.count)
        plan = self._plan(log, tail, index, max_bytes)
        found = await self._load_all(plan)
        out: list[Buffer] = []
        room = max_bytes
        for piece, batches in zip(plan, found, strict=False):
            data, end = piece.data, piece.end
            first = max(index, piece.first) if piece is plan[0] else piece.first
            fits = last_that_fits(data, first, end, room)
            if fits == first:
                if out:
                    break
                fits = first + 1
            out += batches[first - piece.first : fits - piece.first]
            room -= span_bytes(data, first, fits)
            next_offset = data.base_offsets[fits] if fits < end else piece.unit_end
            if fits < end:
                break
            self._pieces.finish(_key(piece))
        return Batches(out, next_offset, piece.unit_end)

    async def batch(self, tail: TailSlice, index: int) -> Buffer:
        """One batch, from memory, a buffer file or else the bucket.  Raises: as `read`."""
        data = tail.data
        assert isinstance(data, FlushBatches)
        try:
            here = data.read_local(index)
        except UnavailableError:
            here = None
        if here is not None:
            return here
        piece = self._piece(tail, index)
        return (await self._get(piece))[index - piece.first]

    async def prefetch(self, tail: TailSlice, offset: int) -> None:
        """Load the piece that holds *offset*, if that evicts nothing in use.  Raises: as `read`."""
        data = tail.data
        assert isinstance(data, FlushBatches)
        if data.is_local:
            return
        piece = self._piece(tail, data.index_of(offset, tail.first, tail.count))
        if self._pieces.has_room(span_bytes(data, piece.first, piece.end)):
            await self._get(piece)

    # ── Pieces ──

    def _piece(self, tail: TailSlice, index: int) -> _Piece:
        data = tail.data
        assert isinstance(data, FlushBatches)
        positions, stop = data.positions, tail.first + tail.count
        start = positions[tail.first]
        cut = start + (positions[index] - start) // self._piece_bytes * self._piece_bytes
        first = bisect_left(positions, cut, tail.first, stop)
        end = bisect_left(positions, cut + self._piece_bytes, first, stop)
        unit_end = data.base_offsets[end] if end < stop else tail.end
        return _Piece(data, first, end, unit_end, tail.stored_at)

    def _plan(self, log: PartitionLog, tail: TailSlice, index: int, max_bytes: int) -> list[_Piece]:
        plan: list[_Piece] = []
        room = max_bytes
        at = log.index_of(tail)
        while True:
            piece = self._piece(tail, index)
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

    async def _load_all(self, plan: list[_Piece]) -> list[list[Buffer]]:
        """The pieces before the first that fails; a failure of the very first is raised."""
        if len(plan) == 1:
            return [await self._get(plan[0])]
        outcomes: list[list[Buffer] | Exception] = [[]] * len(plan)

        async def load(i: int) -> None:
            try:
                outcomes[i] = await self._get(plan[i])
            except (UnavailableError, DamagedObjectError) as error:
                outcomes[i] = error

        async with asyncio.TaskGroup() as tasks:
            for i in range(len(plan)):
                tasks.create_task(load(i))
        found: list[list[Buffer]] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                if not found:
                    raise outcome
                break
            found.append(outcome)
        return found

    async def _get(self, piece: _Piece) -> list[Buffer]:
        return await self._pieces.get(
            _key(piece),
            span_bytes(piece.data, piece.first, piece.end),
            lambda: self._load(piece),
        )

    async def _load(self, piece: _Piece) -> list[Buffer]:
        data, first, end = piece.data, piece.first, piece.end
        object_key, start, stop = _key(piece)
        body = await self._reads.get(object_key, start, stop)
        batches: list[Buffer] | int = await self._offload(
            _split, body, data.base_offsets[first:end], data.lengths[first:end]
        )
        if isinstance(batches, int):
            raise DamagedObjectError(
                object_key, f"no whole batch of offset {batches} where its footer has it"
            )
        return batches


def _key(piece: _Piece) -> tuple[str, int, int]:
    """The object key of *piece*, and its start and end there."""
    return object_range(piece.data, piece.first, piece.end, piece.stored_at)


def _split(body: Buffer, base_offsets: Any, lengths: Any) -> list[Buffer] | int:
    """The batches in *body*; or the offset of the first that is damaged."""
    view = memoryview(body)
    batches: list[Buffer] = []
    at = 0
    for base_offset, length in zip(base_offsets, lengths, strict=True):
        batch = view[at : at + length]
        sound = not isinstance(kernel.check(batch, 0, length, False), int)
        if not sound or int.from_bytes(batch[:8], "big") != base_offset:
            return int(base_offset)
        batches.append(batch)
        at += length
    return batches
