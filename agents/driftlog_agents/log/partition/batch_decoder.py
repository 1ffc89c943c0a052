"""Large batches take turns to be decoded, within one memory budget for all callers.

    seal, cold read, lookup by time, rewrite ── up to `LIGHT_BYTES` ──▶ decoded at once
                                            └── more ──▶ `large`: waits for its turn

One batch of a few kilobytes may decompress to 48 MiB, and its columns, pages and copies take four
times as much: sixteen at once would take gigabytes.  Callers are served in the order of arrival;
small batches do not wait.

Shell.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from driftlog_tiering.batches.batch_limits import BatchLimits

CONFIG_PREFIX: Final = "driftlog.max.batch."


def _ignored(_: str) -> None:
    """Counts nothing."""


async def _nothing() -> None:
    """The default *settle*: does nothing."""


class BatchDecoder:
    """The limits of batches in one process, and the memory budget of large ones.

    Args:
        refused: called with the config whose limit a batch exceeds.
        settle: returns the memory that the allocator kept after a large batch, before the next one.
    """

    def __init__(
        self,
        limits: BatchLimits | None = None,
        refused: Callable[[str], None] = _ignored,
        settle: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.limits = limits or BatchLimits()
        self._refused = refused
        self._settle = settle
        self._held_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def refuse(self, limit: str) -> None:
        """Count a batch over *limit*, of `BatchLimits`: it was refused, or sealed as it came."""
        self._refused(CONFIG_PREFIX + limit)

    @asynccontextmanager
    async def large(self, size_bytes: int | None = None) -> AsyncIterator[None]:
        """Take *size_bytes* of the budget while a batch is decoded; None: as many as one may
        have."""
        most = self.limits.decompressed_bytes
        size = most if size_bytes is None else min(size_bytes, most)
        await self._take(size)
        try:
            try:
                yield
            finally:
                await self._settle()
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._held_bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(size)
            elif (turn, size) in self._waiting:
                self._waiting.remove((turn, size))
                self._serve()
            raise

    def _give(self, size: int) -> None:
        self._held_bytes -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            if not turn.done():
                self._held_bytes += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._held_bytes + size <= self.limits.decompressed_bytes
