"""Hedged reads: a second request is sent when the answer is late, for answers get lost.

    ask ──answer──▶ result
        ──late──▶ ask once more ──▶ the first answer; the other request is cancelled

For small reads that block others, such as those of taken-over partitions: there twice the bytes
cost less than waiting for a deadline.  A read is late when it takes longer than 95 % of the last
ones: if a store is slow for all, twice the requests would make it slower.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from driftlog_agents.foundation.rate_limit import HedgeBudget
from driftlog_agents.foundation.retry import GrowingTimeout
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError

T = TypeVar("T")

_SHARE: Final = 0.05
"""Share of all reads that are hedged as soon as they are late; the others are hedged only when they
seem lost."""

_LATE_S: Final = 1.0
"""No read is late before this."""

TIMEOUT_S: Final = 6.0
"""Deadline of a read with its second request.  Longer: a claim or a producer behind a lost answer
waits longer; shorter: over a slow link no read succeeds."""

_NO_ANSWER: Final = (UnavailableError, OutcomeUnknownError)


async def hedged(ask: Callable[[], Coroutine[Any, Any, T]], late_s: float) -> T:
    """Returns or raises what *ask* does, and calls it a second time after *late_s* seconds.

    Raises:
        UnavailableError, OutcomeUnknownError: no request was answered.
    """
    tasks = [asyncio.create_task(ask())]
    try:
        await asyncio.wait(tasks, timeout=late_s)
        if not tasks[0].done():
            tasks.append(asyncio.create_task(ask()))
        while True:
            waiting = [task for task in tasks if not task.done()]
            for task in tasks:
                if task.done() and not isinstance(task.exception(), _NO_ANSWER):
                    return task.result()
            if not waiting:
                return tasks[0].result()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HedgedReads:
    """Hedged reads of one kind, which share their latency statistics and their timeout.

    Args:
        late_s: no read is late before this.
        longest_timeout_s: each missed timeout doubles the next one, up to this.
    """

    def __init__(
        self,
        now_ms: Callable[[], float],
        *,
        late_s: float = _LATE_S,
        timeout_s: float = TIMEOUT_S,
        longest_timeout_s: float = 0.0,
    ) -> None:
        self._timeout = GrowingTimeout(timeout_s, max(timeout_s, longest_timeout_s))
        self._late_ms = late_s * 1000
        self._now_ms = now_ms
        self._hedging = HedgeBudget(_SHARE, self._late_ms, self._late_ms)

    async def read(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `hedged`.

        Raises:
            TimeoutError: no answer in time.
        """
        began_ms = self._now_ms()
        due_ms = self._hedging.due_ms(began_ms)
        asked = 0

        async def timed() -> T:
            nonlocal asked
            asked += 1
            self._hedging.put()
            if asked > 1:
                self._hedging.take()
            sent_ms = self._now_ms()
            found = await ask()
            self._hedging.succeeded(self._now_ms() - sent_ms)
            return found

        late_ms = self._late_ms if due_ms is None else due_ms - began_ms
        return await self._timeout.of(hedged(timed, late_ms / 1000))
