"""The retry loop: a request without an answer is sent again, at growing intervals.

    ask ──▶ an answer
     ▲ ╳ one of `errors` ──▶ the caller's `failed` (logs, or raises to give up) ──▶ wait ─┐
     └────────────────────────────────────────────────────────────────────────────────────┘

Only idempotent requests may use it.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError

T = TypeVar("T")

NO_ANSWER: Final = (UnavailableError, OutcomeUnknownError, TimeoutError)
"""A store or the disk refused, or its answer is missing."""


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise a lack of memory as `UnavailableError`: it fails an attempt, not the agent."""
    try:
        yield
    except MemoryError as error:
        raise UnavailableError(
            f"the agent has too little memory for this object: {error!r}"
        ) from error


class Waits:
    """Waits between attempts: each is twice the one before, up to *longest_s*."""

    __slots__ = ("_first_s", "_longest_s", "_next_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    async def wait(self) -> None:
        """Wait; the next wait is longer."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        await asyncio.sleep(wait_s)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first again."""
        self._next_s = self._first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How one kind of request is retried."""

    wait_s: float
    """Before the second attempt.  Longer: less load on a store in trouble, a later answer."""

    longest_wait_s: float
    """Each wait is twice the one before, up to this."""

    timeout_s: float | None = None
    """Limit of one attempt; None: *ask* has its own."""

    attempts: int | None = None
    """After so many attempts the last error is raised; None: only `failed` gives up."""

    errors: tuple[type[Exception], ...] = NO_ANSWER
    """Errors that another attempt may resolve."""

    async def run(
        self,
        ask: Callable[[], Awaitable[T]],
        failed: Callable[[Exception], Awaitable[None]] | None = None,
    ) -> T:
        """What *ask* returns.

        Args:
            failed: called with each failure; raises to end the attempts.

        Raises: what *failed* raises, or the error of the last attempt.
        """
        waits = Waits(self.wait_s, self.longest_wait_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with asyncio.timeout(self.timeout_s):
                    return await ask()
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                failure: Exception = OutcomeUnknownError("the request was cancelled")
                failure.__cause__ = error
            except self.errors as error:
                failure = error
            if attempt == self.attempts or _is_cancelled():
                raise failure
            if failed is not None:
                await failed(failure)
            await waits.wait()


class GrowingTimeout:
    """A timeout for requests to one store: a missed one doubles the next, an answer resets it.

    So a lost answer costs little, and a store that is slow for all requests gets more time.
    """

    __slots__ = ("_first_s", "_longest_s", "_next_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    async def of(self, request: Awaitable[T]) -> T:
        """The answer to *request*.

        Raises:
            TimeoutError: there is no answer in time; and what the request raises.
        """
        try:
            async with asyncio.timeout(self._next_s):
                answer = await request
        except TimeoutError:
            self._next_s = min(2 * self._next_s, self._longest_s)
            raise
        self._next_s = self._first_s
        return answer


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
