"""Reads of the tail from the bucket: batches in their flush objects, by pieces (`flush_pieces`).

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.partition.partition import PartitionLog, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.flush_pieces import (
    FlushPiece,
    piece_at,
    plan_pieces,
    split_piece,
    take,
)
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_plan import Batches
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.shared_cache import SharedCache
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Buffer

_MOST_AHEAD: Final = 4
"""Pieces that are loaded ahead of one consumer side by side.  More: a consumer alone is faster on a
distant store; fewer: other consumers' GETs wait less for theirs."""


class FlushReads:
    """Reads of flush objects, for all partitions."""

    def __init__(
        self, *, reads: RangedReads, settings: ReadSettings, now_ms: Callable[[], float]
    ) -> None:
        self._reads = reads
        self._piece_bytes = settings.read_ahead_bytes
        self._ahead_bytes = settings.prefetch_flush_bytes
        self._spare_bytes = settings.flush_cache_bytes // 2
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
        index = tail.data.index_of(offset, tail.first, tail.count)
        plan = plan_pieces(log, tail, index, max_bytes, self._piece_bytes)
        found, read = take(plan, await self._load_all(log, plan, self._get), index, max_bytes)
        for piece in read:
            self._pieces.finish(piece.key)
        return found

    async def batch(self, log: PartitionLog, tail: TailSlice, index: int) -> Buffer:
        """One batch of *log*, from memory, a buffer file or else the bucket.  Raises: as `read`."""
        data = tail.data
        assert isinstance(data, FlushBatches)
        try:
            here = data.read_local(index)
        except UnavailableError:
            here = None
        if here is not None:
            return here
        piece = piece_at(tail, index, self._piece_bytes)
        return (await self._get(log, piece))[index - piece.first]

    async def prefetch(self, log: PartitionLog, tail: TailSlice, offset: int) -> None:
        """Load the pieces from the one that holds *offset* on, side by side, up to where batches
        are local again, as far as that evicts nothing in use.  All but the first leave half of the
        memory to others: what is loaded ahead is in use until it is read.

        Raises: as `read`, for the first of them.
        """
        data = tail.data
        assert isinstance(data, FlushBatches)
        if data.is_local:
            return
        index = data.index_of(offset, tail.first, tail.count)
        wanted: list[FlushPiece] = []
        size = 0
        for piece in plan_pieces(log, tail, index, self._ahead_bytes, self._piece_bytes):
            if piece.key in self._pieces:
                continue
            size += piece.size_bytes
            spare = self._spare_bytes if wanted else 0
            if len(wanted) == _MOST_AHEAD or not self._pieces.has_room(size + spare):
                break
            wanted.append(piece)
        if wanted:
            await self._load_all(log, wanted, self._get_ahead)

    # ── Pieces ──

    async def _load_all(
        self,
        log: PartitionLog,
        plan: Sequence[FlushPiece],
        get: Callable[[PartitionLog, FlushPiece], Awaitable[list[Buffer]]],
    ) -> list[list[Buffer]]:
        """The pieces before the first that fails; a failure of the very first is raised."""
        if len(plan) == 1:
            return [await get(log, plan[0])]

        async def load(piece: FlushPiece) -> list[Buffer] | Exception:
            try:
                return await get(log, piece)
            except (UnavailableError, DamagedObjectError) as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            loads = [tasks.create_task(load(piece)) for piece in plan]
        found: list[list[Buffer]] = []
        for outcome in (task.result() for task in loads):
            if isinstance(outcome, Exception):
                if not found:
                    raise outcome
                break
            found.append(outcome)
        return found

    async def _get(self, log: PartitionLog, piece: FlushPiece) -> list[Buffer]:
        return await self._pieces.get(piece.key, piece.size_bytes, lambda: self._load(log, piece))

    async def _get_ahead(self, log: PartitionLog, piece: FlushPiece) -> list[Buffer]:
        """As `_get`; nothing where there is no room any more: a load that waits for room would hold
        up reads that were asked for."""
        return await self._get(log, piece) if self._pieces.has_room(piece.size_bytes) else []

    async def _load(self, log: PartitionLog, piece: FlushPiece) -> list[Buffer]:
        key, start, end = piece.key
        tp = TopicPartition(log.topic_id, log.partition)
        owner = layout.partition_prefix(log.topic, tp).removesuffix("/")
        body = await self._reads.get(key, start, end, owner=owner)
        return await self._reads.run(key, split_piece, body, piece)
