"""Large batches take turns to be decoded, within one memory budget for all callers.

    seal, cold read, lookup by time, rewrite ── up to `LIGHT_BYTES` ──▶ decoded at once
                                            └── more ──▶ `large`: waits for its turn

One batch of a few kilobytes may decompress to 48 MiB, and its columns, pages and copies take four
times as much: sixteen at once would take gigabytes.  Callers are served in the order of arrival;
small batches do not wait.  Of reads one at most waits for its turn, that of the client that has had
least of them (`read_large`); it holds the budget only while a thread of its own works.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from driftlog_agents.foundation.loop_slices import served_client
from driftlog_agents.foundation.offload import FairOffload, inline
from driftlog_agents.log.partition.decoding_turns import DecodingTurns
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.foundation.types import Offload

CONFIG_PREFIX: Final = "driftlog.max.batch."


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def _ignored(_: str) -> None:
    """Counts nothing."""


async def _nothing() -> None:
    """The default *settle*: does nothing."""


class BatchDecoder:
    """The limits of batches in one process, and the memory budget of large ones.

    Args:
        refused: called with the config whose limit a batch exceeds.
        settle: returns the memory that the allocator kept after a large batch, before the next one.
        offload: runs what reads do with large batches, and waits for no other work.
    """

    def __init__(
        self,
        limits: BatchLimits | None = None,
        refused: Callable[[str], None] = _ignored,
        settle: Callable[[], Awaitable[None]] = _nothing,
        offload: Offload = inline,
    ) -> None:
        self.limits = limits or BatchLimits()
        self._refused = refused
        self._settle = settle
        self._turns = DecodingTurns[asyncio.Future[None]](self.limits.decompressed_bytes)
        self._reads = FairOffload(offload, _now_ms, self.large)

    def refuse(self, limit: str) -> None:
        """Count a batch over *limit*, of `BatchLimits`: it was refused, or sealed as it came."""
        self._refused(CONFIG_PREFIX + limit)

    async def read_large(self, fn: Callable[..., Any], *args: Any) -> Any:
        """An `Offload` of a read that decodes a large batch, in the turn of this task's client."""
        return await self._reads.run(served_client(), 0, fn, *args)

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
