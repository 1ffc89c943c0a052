"""Writes one object of a consolidation: pieces of old objects at their new positions, and a footer.

    old objects ──GET, some at once──▶ checked, written in place (worker thread) ──────▶ spool
                                           ╳ differs from its footer: no object is written │
                                                                       record ◀── PUT ◀────┘

Old objects hold their batches in the order in which they are needed, so one GET reads neighbours
together.  Only the pieces in flight are in memory, and the part of the spool that is being sent.

No flush record names the object yet; `consolidation/rewrite_job` does that.

Shell.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import IO, Any, Final, NamedTuple

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.consolidation.policy import NewObject
from driftlog_agents.log.objects.availability import DamagedObjectError, ObjectUnavailableError
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.sealing.segment_writer import Spool, disk_errors
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import Buffer, NotFoundError, ObjectStore

_PIECE_BYTES: Final = 8 * 1024 * 1024
"""Largest piece of one GET, unless one batch is larger."""

_GAP_BYTES: Final = 64 * 1024
"""Gaps up to this size are read and dropped: a separate request takes longer."""

_READS_AT_ONCE: Final = 2
_TIMEOUT_S: Final = 30.0
_SMALL_BYTES: Final = 1024 * 1024
_LATE_S: Final = 2.0
"""The read of a small piece is hedged after this: a rewrite reads a hundred, and each lost answer
would cost the deadline."""

_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
_RETRY: Final = Retry(
    wait_s=1.0, longest_wait_s=1.0, attempts=3, errors=(NotFoundError, *NO_ANSWER)
)


class _Part(NamedTuple):
    """The batches ``[first, stop)`` of an old object, and their position in the new one."""

    first: int
    stop: int
    position: int


@dataclass(slots=True)
class _Piece:
    """The bytes ``[start, end)`` of an old object."""

    source: int
    start: int
    end: int
    parts: list[_Part] = field(default_factory=list)


class ObjectRewriter:
    """Writes the objects of one agent's consolidations, one at a time."""

    def __init__(
        self,
        *,
        objects: ObjectStore,
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        now_ms: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._hedged = HedgedReads(now_ms, late_s=_LATE_S, timeout_s=_TIMEOUT_S)

    async def write(
        self,
        new: NewObject,
        old: Sequence[tuple[FlushRecord, Footer]],
        footer: bytes,
        session_id: str,
        seq: int,
        place: tuple[int, int] | None = None,
    ) -> FlushRecord:
        """PUTs *new*, which consists of parts of *old*; returns the flush record for it, not stored
        yet.  *place*: see `policy.encode`.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store, or the disk; try again.
            ObjectUnavailableError, DamagedObjectError: one of *old*; try again without it.
        """
        with disk_errors(), self._spool() as spool:
            slots, writing = asyncio.Semaphore(_READS_AT_ONCE), asyncio.Lock()

            errors: list[Exception] = []
            answered = False

            async def copy(piece: _Piece) -> None:
                nonlocal answered
                async with slots:
                    if errors:
                        return
                    key = old[piece.source][0].object_key
                    try:
                        body = await self._read(piece, key)
                        answered = True
                    except NotFoundError as error:
                        answered = True
                        raise ObjectUnavailableError(key, "missing") from error
                    except NO_ANSWER as error:
                        why = str(error) or f"no answer in {_TIMEOUT_S:g} s"
                        raise ObjectUnavailableError(key, why) from error
                    async with writing:
                        sound = await self._offload(
                            _place, spool.file, body, old[piece.source][1], piece
                        )
                if not sound:
                    raise DamagedObjectError(key, "it does not hold the batches of its footer")

            async def attempt(piece: _Piece) -> None:
                # The task group must not raise it: in Python 3.11 the group then loses a
                # cancellation, and a cancelled caller that continues after the error would never
                # end.
                try:
                    await copy(piece)
                except Exception as error:  # noqa: BLE001
                    errors.append(error)

            footers = [footer for _, footer in old]
            async with asyncio.TaskGroup() as tasks:
                for piece in await self._offload(_pieces, new, footers):
                    tasks.create_task(attempt(piece))
            if errors:
                first = errors[0]
                if isinstance(first, ObjectUnavailableError) and not answered:
                    raise UnavailableError(str(first))  # the bucket answers no request at all
                raise first
            size_bytes = new.size_bytes
            await self._offload(_finish, spool.file, size_bytes, footer)
            body = spool.body()
            assert body_bytes(body) == size_bytes + len(footer), "somebody else wrote to the spool"
            key = await self._put(session_id, seq, place, body)
        return FlushRecord(
            object_key=key, size_bytes=size_bytes + len(footer), footer_start=size_bytes
        )

    async def _read(self, piece: _Piece, key: str) -> Buffer:
        def get() -> Coroutine[Any, Any, Buffer]:
            return self._objects.get(key, piece.start, piece.end)

        async def ask() -> Buffer:
            if piece.end - piece.start <= _SMALL_BYTES:
                return await self._hedged.read(get)
            async with asyncio.timeout(_TIMEOUT_S):
                return await get()

        return await _RETRY.run(ask)

    async def _put(
        self, session_id: str, seq: int, place: tuple[int, int] | None, body: Sequence[Buffer]
    ) -> str:
        """PUTs *body* under a new key at each attempt; returns the key."""
        deadline_s = _TIMEOUT_S + body_bytes(body) / _SLOWEST_BYTES_PER_S

        async def put() -> str:
            nonce = f"{self._rng.getrandbits(64):016x}"
            key = layout.flush_key(session_id, seq, nonce, *(place or ()))
            async with asyncio.timeout(deadline_s):
                await self._objects.put(key, body)
            return key

        return await _RETRY.run(put)


def _pieces(new: NewObject, footers: Sequence[Footer]) -> list[_Piece]:
    """The ranges to read, of each old object in its order; neighbours together."""
    by_source: dict[int, list[_Piece]] = {}
    position = 0
    for run in new.runs:
        positions, lengths = footers[run.source].columns[10:12]
        mine = by_source.setdefault(run.source, [])
        first, stop = run.first, run.first + run.count
        while first < stop:
            last = _last_of_piece(positions, lengths, first, stop)
            start, end = positions[first], positions[last - 1] + lengths[last - 1]
            if not (
                mine
                and 0 <= start - mine[-1].end <= _GAP_BYTES
                and end - mine[-1].start <= _PIECE_BYTES
            ):
                mine.append(_Piece(run.source, start, end))
            mine[-1].end = end
            mine[-1].parts.append(_Part(first, last, position))
            position += end - start
            first = last
    return [piece for pieces in by_source.values() for piece in pieces]


def _last_of_piece(positions: "array[int]", lengths: "array[int]", first: int, stop: int) -> int:
    """The end of the batches from *first* on that fit into one piece; at least one batch."""
    limit = positions[first] + _PIECE_BYTES
    last = bisect_right(positions, limit, first, stop)
    if positions[last - 1] + lengths[last - 1] > limit:
        last -= 1
    return max(last, first + 1)


def _place(file: IO[bytes], body: Buffer, footer: Footer, piece: _Piece) -> bool:
    """Writes each part at its position; False: a batch differs from its entry in the footer."""
    view = memoryview(body)
    if len(view) != piece.end - piece.start:
        return False
    bases, positions, lengths = footer.columns[3], footer.columns[10], footer.columns[11]
    for part in piece.parts:
        for i in range(part.first, part.stop):
            at = positions[i] - piece.start
            batch = view[at : at + lengths[i]]
            if isinstance(kernel.check(batch, 0, lengths[i], False), int):
                return False
            if int.from_bytes(batch[:8], "big") != bases[i]:
                return False
        start = positions[part.first] - piece.start
        end = positions[part.stop - 1] + lengths[part.stop - 1] - piece.start
        file.seek(part.position)
        file.write(view[start:end])
    return True


def _finish(file: IO[bytes], size_bytes: int, footer: bytes) -> None:
    file.seek(size_bytes)
    file.write(footer)
