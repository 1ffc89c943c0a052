"""Stores at the start of an agent: asked again for a while, before the start is refused.

    ask ──▶ an answer
     ▲ ╳ declined (credentials, the name of a bucket): refused at once
     └─╳ reset, throttled, not there: said, and asked again ──`PATIENCE_S`──▶ refused

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from driftlog_metadata.stores.errors import DeclinedError, OutcomeUnknownError, UnavailableError

T = TypeVar("T")

PATIENCE_S: Final = 10.0
"""Longer: a store that restarts is waited for; a mistyped endpoint is told later."""

ANSWER_S: Final = 20.0
"""How long one answer may take: it is one small request."""

_PAUSE_S: Final = (0.2, 2.0)
"""First and longest wait before a request is repeated."""


async def patiently(ask: Callable[[], Awaitable[T]], store: str) -> T:
    """What *ask* returns, which may be called several times; *store*: whom it asks.

    Raises:
        UnavailableError, OutcomeUnknownError: the store, still, or declines; what *ask* raises.
    """
    clock = asyncio.get_running_loop().time
    pause_s, longest_s = _PAUSE_S
    until_s = clock() + PATIENCE_S
    failures = 0
    while True:
        failed: UnavailableError | OutcomeUnknownError
        try:
            async with asyncio.timeout(ANSWER_S):
                return await ask()
        except DeclinedError:
            raise
        except (UnavailableError, OutcomeUnknownError) as error:
            failed = error
        except TimeoutError:
            failed = OutcomeUnknownError(f"no answer in {ANSWER_S:g} s")
        if clock() >= until_s or _is_given_up():
            raise failed
        failures += 1
        if failures == 1:
            structlog.get_logger().warning(
                "start_waits",
                store=store,
                error=str(failed),
                advice=f"tried again for {PATIENCE_S:g} s; then the start is refused",
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _is_given_up() -> bool:
    """Whether this task was cancelled, and what it asked failed in its own way instead."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
