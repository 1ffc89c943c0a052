"""Keep-alives from what would be a thread: it goes on while the agent's event loop is held up."""

import asyncio
from collections.abc import Callable
from typing import Final

from driftlog_agents.log.session.keep_alive import Renewing
from driftlog_metadata.stores.store import MetadataStore
from tests.simulation.loop import Freezer

_TICK_S: Final = 0.25


class SimKeepAlive:
    """A `driftlog_agents.log.session.keep_alive.KeepAlive`.

    Args:
        thread: what it runs in, and can be frozen with.
    """

    def __init__(self, store: MetadataStore, thread: Freezer) -> None:
        self._store = store
        self._thread = thread

    async def __call__(self, renewing: Renewing, tick: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        context = self._thread.context.copy()
        renewal = loop.create_task(renewing(self._store), context=context)
        try:
            while not renewal.done():
                tick()
                await asyncio.wait([renewal], timeout=_TICK_S)
            renewal.result()
        finally:
            if not renewal.cancel() and not renewal.cancelled():
                renewal.exception()  # what is raised already says enough
