"""Where a session's keep-alives are sent from: the agent's event loop, or a thread beside it.

    the agent's loop   tick ─ tick ─ tick ─ (held up) ──────── tick
    the thread         ── renew ────── renew ────── renew ──────▶    while it has ticked lately

A loop that is held up for one to four seconds (a large answer to encode, a page fault storm, a disk
that hangs) sends no keep-alives, and would lose its session.  So a thread with its own event loop
and its own connection sends them.  A loop that stands still for a whole time to live serves no
client: then the thread stops as well, and other agents take over.

The embedded store needs no thread: the process holds its lock, so there is no other agent that a
lease could keep out.  Neither does the simulator: its time is virtual, and it has no threads.  For
both, keep-alives stay a task on the agent's loop (`Session.keep_alive`).

Shell.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from driftlog_metadata.stores.store import MetadataStore

_TICK_S: Final = 0.25
"""Between two ticks of the agent's loop.  Shorter: an idle agent wakes up more often."""

_CLOSE_S: Final = 2.0
"""How long `close` waits for the end of the thread."""

Renewing = Callable[[MetadataStore], Coroutine[Any, Any, None]]
"""Renews a lease through the store; raises when the lease is lost."""


class KeepAlive(Protocol):
    """Runs a session's `Renewing` on an event loop of its choice."""

    async def __call__(self, renewing: Renewing, tick: Callable[[], None]) -> None:
        """Run *renewing* until it raises, and raise that.

        Calls *tick* a few times a second on the caller's loop: it shows that the loop runs, and may
        raise as well.  Cancellation ends *renewing*.
        """
        ...


class KeepAliveThread:
    """A `KeepAlive` in a thread of its own: one per process, for one session after another.

    Not one per session: gRPC never forgets an event loop that it was used on.

    Args:
        open_store: called in the thread, once; the store is used and closed there.
    """

    def __init__(self, open_store: Callable[[], MetadataStore]) -> None:
        self._open_store = open_store
        self._store: MetadataStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ended = threading.Event()

    async def __call__(self, renewing: Renewing, tick: Callable[[], None]) -> None:
        """See `KeepAlive`."""
        renewal = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._renew(renewing), self._started())
        )
        try:
            while not renewal.done():
                tick()
                await asyncio.wait([renewal], timeout=_TICK_S)
            renewal.result()
        finally:
            if not renewal.cancel() and not renewal.cancelled():
                renewal.exception()  # marks it as retrieved: an error is raised already

    async def close(self) -> None:
        """End the thread.  A repeat is harmless."""
        if self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._ended.wait, _CLOSE_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._stop = asyncio.Event()
            # A daemon: a thread that hangs does not block the process's exit.
            threading.Thread(target=self._run, name="keep-alive", daemon=True).start()
        return self._loop

    # ── In the thread ──

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve())
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        assert self._stop is not None
        await self._stop.wait()
        if self._store is not None:
            await self._store.close()

    async def _renew(self, renewing: Renewing) -> None:
        if self._store is None:
            self._store = self._open_store()
        await renewing(self._store)
