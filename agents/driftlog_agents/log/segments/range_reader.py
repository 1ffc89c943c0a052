"""Reads the committed batches of a range, in offset order, while the worker is busy.

    memory ── else buffer file ── else flush object ── gone: the object that replaced it

Shell.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Final

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import object_range
from driftlog_agents.log.segments.range_pieces import (
    CHUNK_BYTES,
    RangePiece,
    batches_in,
    is_batch,
    pieces_of,
)
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_AHEAD_BYTES: Final = 8 * 1024 * 1024
_PIECES_AHEAD: Final = 16
"""Bounds of what is read ahead while the worker is busy: the worker never waits for a disk, and
hardly for a far store."""

_REQUEST_DEADLINE_S: Final = 30.0

LookAgain = Callable[[PartitionLog], Awaitable[None]]


async def nowhere_else(_: PartitionLog) -> None:
    """For a log whose flush objects are not consolidated."""


class RangeReader:
    """Reads ranges of one session's partitions.

    Args:
        look_again: called when a flush object is gone: learns which object has its batches now.
    """

    def __init__(self, objects: ObjectStore, look_again: LookAgain = nowhere_else) -> None:
        self._objects = objects
        self._look_again = look_again
        self._log = structlog.get_logger()

    async def chunks(self, log: PartitionLog, base: int, end: int) -> AsyncGenerator[list[Buffer]]:
        """Batches of ``[base, end)`` in offset order: at most 2 CHUNK_BYTES, or a larger batch."""
        chunk: list[Buffer] = []
        size = 0
        async with aclosing(self._loaded(log, pieces_of(log, base, end))) as loaded:
            async for batches in loaded:
                more = sum(map(len, batches))
                if chunk and size + more > 2 * CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
                chunk += batches
                size += more
                if size >= CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk

    async def _loaded(
        self, log: PartitionLog, pieces: Iterator[RangePiece]
    ) -> AsyncGenerator[list[Buffer]]:
        """The batches of *pieces*, in their order; the next pieces are loaded meanwhile."""
        ahead: deque[tuple[asyncio.Task[list[Buffer]], int]] = deque()
        ahead_bytes = 0
        try:
            while True:
                while len(ahead) < _PIECES_AHEAD and (not ahead or ahead_bytes < _AHEAD_BYTES):
                    if (piece := next(pieces, None)) is None:
                        break
                    ahead.append((asyncio.create_task(self._load(log, piece)), piece.size_bytes))
                    ahead_bytes += piece.size_bytes
                if not ahead:
                    return
                batches = await ahead[0][0]
                ahead_bytes -= ahead.popleft()[1]
                yield batches
        finally:
            for task, _ in ahead:
                task.cancel()
            await asyncio.gather(*(task for task, _ in ahead), return_exceptions=True)

    async def _load(self, log: PartitionLog, piece: RangePiece) -> list[Buffer]:
        """The batches of *piece* from memory and the buffer files, the rest from the flush
        object."""
        data = piece.data
        batches: list[Buffer] = []
        async for index in sliced(range(piece.first, piece.stop)):
            batch = None
            try:
                batch = data.read_local(index)
            except UnavailableError as error:
                self._log.warning("buffer_file_unreadable", error=str(error))
            base_offset = data.base_offsets[index]
            if batch is not None and data.views is None and not is_batch(batch, base_offset):
                self._log.error(
                    "buffer_file_lost_batches",
                    object=piece.stored_at.object_key,
                    base_offset=base_offset,
                    advice="sealed from the flush object; replace the disk",
                )
                batch = None
            if batch is None:
                return batches + await self._fetch(log, piece._replace(first=index))
            batches.append(batch)
        return batches

    async def _fetch(self, log: PartitionLog, piece: RangePiece) -> list[Buffer]:
        """The batches of *piece* from its object; where that is gone, from the object that replaced
        it."""
        try:
            return await self._get(piece)
        except NotFoundError:
            await self._look_again(log)
            tail = log.find(piece.data.base_offsets[piece.first])
            if tail is None or tail.stored_at == piece.stored_at:
                raise
            assert tail.data is piece.data, "a slice moves with its flush"
        return await self._get(piece._replace(stored_at=tail.stored_at))

    async def _get(self, piece: RangePiece) -> list[Buffer]:
        key, start, end = object_range(piece.data, piece.first, piece.stop, piece.stored_at)
        async with asyncio.timeout(_REQUEST_DEADLINE_S):
            body = await self._objects.get(key, start, end)
        return batches_in(body, piece, key)
