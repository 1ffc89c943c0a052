"""Writes one object of a consolidation: pieces of old objects at their new positions, and a footer.

    old objects ──GET, some at once──▶ checked, written in place (worker thread) ──────▶ spool
                                           ╳ differs from its footer: no object is written │
                                                                       record ◀── PUT ◀────┘

`object_layout` says what is read and where it is written.  Only the pieces in flight are in memory,
and the part of the spool that is being sent.

No flush record names the object yet; `consolidation/rewrite_job` does that.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import IO, Any, Final

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.consolidation.object_layout import (
    NewObject,
    ObjectPart,
    PieceSettings,
    copies,
    pieces_of,
)
from driftlog_agents.log.objects.availability import DamagedObjectError, ObjectUnavailableError
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.segments.range_segments import local_errors
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore
from driftlog_tiering.stores.transfer_time import transfer_s

_READS_AT_ONCE: Final = 2
_TIMEOUT_S: Final = 30.0
_SMALL_BYTES: Final = 1024 * 1024
_LATE_S: Final = 2.0
"""The read of a small piece is hedged after this: a rewrite reads a hundred, and each lost answer
would cost the deadline."""

_RETRY: Final = Retry(
    wait_s=1.0, longest_wait_s=1.0, attempts=3, errors=(NotFoundError, *NO_ANSWER)
)


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
        pieces: PieceSettings | None = None,
    ) -> None:
        self._pieces = pieces or PieceSettings()
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
        with local_errors(), self._spool() as spool:
            slots, writing = asyncio.Semaphore(_READS_AT_ONCE), asyncio.Lock()

            errors: list[Exception] = []
            answered = False

            async def copy(piece: ObjectPart) -> None:
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

            async def attempt(piece: ObjectPart) -> None:
                # The task group must not raise it: in Python 3.11 the group then loses a
                # cancellation, and a cancelled caller that continues after the error would never
                # end.
                try:
                    await copy(piece)
                except Exception as error:  # noqa: BLE001
                    errors.append(error)

            footers = [footer for _, footer in old]
            async with asyncio.TaskGroup() as tasks:
                for piece in await self._offload(pieces_of, new, footers, self._pieces):
                    tasks.create_task(attempt(piece))
            if errors:
                first = errors[0]
                if isinstance(first, ObjectUnavailableError) and not answered:
                    raise UnavailableError(str(first))  # the bucket answers no request at all
                raise first
            size_bytes = new.size_bytes
            await self._offload(_finish, spool.file, size_bytes, footer)
            body = spool.body()
            assert body_bytes(body) == size_bytes + len(footer), "the spool has other writers"
            key = await self._put(session_id, seq, place, body)
        return FlushRecord(
            object_key=key, size_bytes=size_bytes + len(footer), footer_start=size_bytes
        )

    async def _read(self, piece: ObjectPart, key: str) -> Buffer:
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
        deadline_s = _TIMEOUT_S + transfer_s(body_bytes(body))

        async def put() -> str:
            nonce = f"{self._rng.getrandbits(64):016x}"
            key = layout.flush_key(session_id, seq, nonce, *(place or ()))
            async with asyncio.timeout(deadline_s):
                await self._objects.put(key, body)
            return key

        return await _RETRY.run(put)


def _place(file: IO[bytes], body: Buffer, footer: Footer, piece: ObjectPart) -> bool:
    """Writes each part at its position; False: a batch differs from its entry in the footer."""
    parts = copies(body, footer, piece)
    for position, part in parts or ():
        file.seek(position)
        file.write(part)
    return parts is not None


def _finish(file: IO[bytes], size_bytes: int, footer: bytes) -> None:
    file.seek(size_bytes)
    file.write(footer)
