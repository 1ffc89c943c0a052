"""Waits until everything admitted is committed, as long as that is likely.

Shell.
"""

import asyncio
from collections.abc import Callable

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.log.ingest.flusher import Flusher


async def drained(
    flusher: Flusher, patience_ms: float, failing_ms: float, now_ms: Callable[[], float]
) -> bool:
    """Whether every flush was committed within *patience_ms*, and flushes did not fail, rather than
    being slow, for *failing_ms*."""
    async with asyncio.TaskGroup() as tasks:
        drain = tasks.create_task(flusher.drain())
        hopeless = tasks.create_task(_failed_for(flusher.outage, failing_ms, now_ms))
        await asyncio.wait(
            [drain, hopeless],
            timeout=patience_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
        done = drain.done()
        drain.cancel()
        hopeless.cancel()
    return done


async def _failed_for(
    outage: FailureTracker, failing_ms: float, now_ms: Callable[[], float]
) -> None:
    """Returns when *outage* has lasted for *failing_ms*."""
    left_ms = failing_ms
    while left_ms > 0:
        await asyncio.sleep(left_ms / 1000)
        left_ms = failing_ms - outage.lasted_ms(now_ms())
