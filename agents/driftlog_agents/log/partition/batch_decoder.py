"""Large batches take turns to be decoded, within one memory budget for all callers.

    seal, cold read, lookup by time, rewrite ── up to `LIGHT_BYTES` ──▶ decoded at once
                                            └── more ──▶ `large`: waits for its turn

One batch of a few kilobytes may decompress to 48 MiB, and its columns, pages and copies take four
times as much: sixteen at once would take gigabytes.  Callers are served in the order of arrival;
small batches do not wait.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from driftlog_agents.log.partition.decoding_turns import DecodingTurns
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
        self._turns = DecodingTurns[asyncio.Future[None]](self.limits.decompressed_bytes)

    def refuse(self, limit: str) -> None:
        """Count a batch over *limit*, of `BatchLimits`: it was refused, or sealed as it came."""
        self._refused(CONFIG_PREFIX + limit)

    @asynccontextmanager
    async def large(self, size_bytes: int | None = None) -> AsyncIterator[None]:
        """Take *size_bytes* of the budget while a batch is decoded; None: as many as one may
        have."""
        most = self.limits.decompressed_bytes
        size = most if size_bytes is None else min(size_bytes, most)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._turns.take(turn, size):
            try:
                await turn
            except asyncio.CancelledError:
                _begin(self._turns.abandon(turn, size))
                raise
        try:
            try:
                yield
            finally:
                await self._settle()
        finally:
            _begin(self._turns.give(size))


def _begin(turns: Iterable[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():  # otherwise its caller was cancelled, and abandons it
            turn.set_result(None)
