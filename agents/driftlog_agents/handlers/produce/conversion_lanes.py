"""Rewrites batches on threads; a heavy batch does not delay light ones.

    batch ──▶ light lane ──▶ up to 4 MiB of records: rewritten
                        └──▶ more ──▶ heavy lane, when no other large batch is decoded ──▶ rewritten

A batch of some KB may take seconds, which shows only while it is decompressed: the light lane stops
at 4 MiB.  In each lane the client that has had least of the thread is next
(`foundation/fair_queue`), however many batches the others have waiting.  Smaller batches of one
client run first, and waiting batches move up.  The lanes have one batch of a partition at a time
(`log.busy`), so its order stays.

Shell.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from heapq import heappop, heappush
from typing import Any, Final

from driftlog_agents.foundation.fair_queue import Client, FairQueue
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_tiering.batches.batch_limits import OverBatchLimitError
from driftlog_tiering.foundation.types import Offload

_LIGHT_BYTES: Final = 4 * 1024 * 1024
"""Decompressed records of the light lane, at most: they take a fifth of a second."""

_BYTES_PER_MS: Final = 200
"""A waiting batch of 1 MiB runs after smaller ones of its client that arrive in the next 5 s."""

_CREDIT_MS: Final = 0
"""A client that was silent is next after the batch that runs: it needs no credit."""


class _Lane:
    """One thread, and the batches that wait for it; *alone*: what a batch waits for in its turn."""

    def __init__(
        self,
        offload: Offload,
        now_ms: Callable[[], float],
        alone: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self._alone = alone
        self._offload = offload
        self._now_ms = now_ms
        self._busy = False
        self._clients = FairQueue[Client](_CREDIT_MS)
        self._waiting = defaultdict[Client, list[tuple[float, int, asyncio.Future[None]]]](list)
        """A heap for each client: the batch that is due first is next."""
        self._count = 0

    async def run(self, client: Client, size_bytes: int, fn: Callable[..., Any], *args: Any) -> Any:
        """Run ``fn(*args)`` on the thread, in the turn of *client* and of a batch of this size."""
        if self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._count += 1
            due_ms = self._now_ms() + size_bytes / _BYTES_PER_MS
            heappush(self._waiting[client], (due_ms, self._count, turn))
            self._clients.add(client, client)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._busy = True
        try:
            async with self._alone():
                begun_ms = self._now_ms()
                try:
                    return await self._offload(fn, *args)
                finally:
                    if self._clients:
                        self._clients.spend(client, self._now_ms() - begun_ms)
        finally:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._clients:
            client, _ = self._clients.take()
            _, _, turn = heappop(self._waiting[client])
            if self._waiting[client]:
                self._clients.add(client, client)
            else:
                del self._waiting[client]
            if not turn.done():
                self._busy = True
                turn.set_result(None)
                return


class ConversionLanes:
    """The light and the heavy lane; see the module.

    Args:
        light: runs calls on a thread that large batches never occupy.
        heavy: runs calls on another thread.
    """

    def __init__(
        self, *, light: Offload, heavy: Offload, decoding: BatchDecoder, now_ms: Callable[[], float]
    ) -> None:
        self._light = _Lane(light, now_ms)
        self._heavy = _Lane(heavy, now_ms, decoding.large)
        self._decoding = decoding

    async def run(
        self,
        client: Client,
        rewrite: Callable[..., Any],
        limits: Any,
        records: memoryview,
        checked: Any,
    ) -> Any:
        """Call ``rewrite(limits, records, checked, most_bytes)`` in a lane, in *client*'s turn.

        Raises:
            OverBatchLimitError: the batch is over a limit of decoding.
        """
        most, size = self._decoding.limits.decompressed_bytes, len(records)
        light, call = min(_LIGHT_BYTES, most), (rewrite, limits, records, checked)
        try:
            if size <= light:
                try:
                    return await self._light.run(client, size, *call, light)
                except OverBatchLimitError:
                    if light == most:
                        raise
            return await self._heavy.run(client, size, *call, most)
        except OverBatchLimitError as error:
            self._decoding.refuse(error.limit)
            raise
