"""Retries requests to stores while an agent starts, for a while, before the start is refused.

    ask ──▶ an answer
     ▲ ╳ declined (credentials, the name of a bucket): refused at once
     └─╳ reset, throttled, not there: logged, and retried ──`PATIENCE_S`──▶ refused

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.retry import Retry
from driftlog_metadata.stores.errors import DeclinedError, OutcomeUnknownError

T = TypeVar("T")

PATIENCE_S: Final = 10.0
"""Longer: a store that restarts is waited for; a mistyped endpoint is reported later."""

ANSWER_S: Final = 20.0
"""Limit of one answer: it is one small request."""

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=2.0, timeout_s=ANSWER_S)
_NO_ANSWER: Final = f"no answer in {ANSWER_S:g} s"


async def patiently(ask: Callable[[], Awaitable[T]], store: str) -> T:
    """What *ask* returns, which may be called several times; *store*: its name, for the log.

    Raises:
        UnavailableError, OutcomeUnknownError: the store fails or declines; what *ask* raises.
    """
    clock = asyncio.get_running_loop().time
    until_s = clock() + PATIENCE_S
    said = False

    async def failed(error: Exception) -> None:
        nonlocal said
        if isinstance(error, DeclinedError) or clock() >= until_s:
            raise error
        if not said:
            said = True
            structlog.get_logger().warning(
                "start_delayed",
                store=store,
                error=str(error) or _NO_ANSWER,
                advice=f"retrying for {PATIENCE_S:g} s; then the start is refused",
            )

    try:
        return await _RETRY.run(ask, failed)
    except TimeoutError as error:
        raise OutcomeUnknownError(_NO_ANSWER) from error
