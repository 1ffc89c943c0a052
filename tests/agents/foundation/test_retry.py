"""The retry loop: if it broke, a store's short fault would end a session, or be asked for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from driftlog_agents.foundation.retry import GrowingTimeout, Retry, Waits
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from tests.agents.log.lives import now_ms, on_virtual_time

RETRY = Retry(wait_s=1.0, longest_wait_s=4.0, timeout_s=10.0)


class Store:
    """Fails in turn as it is told, then answers; None: no answer at all."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.asked_ms: list[float] = []

    async def __call__(self) -> str:
        self.asked_ms.append(now_ms())
        if not self.failures:
            return "answer"
        failure = self.failures.pop(0)
        if failure is None:
            await asyncio.Event().wait()
        assert failure is not None
        raise failure


def waits(asked_ms: list[float]) -> list[float]:
    return [round(b - a) for a, b in pairwise(asked_ms)]


@on_virtual_time
async def test_waits_double_up_to_the_longest() -> None:
    """
    A store in trouble is asked ever less often, and at least every `longest_wait_s`.
    """
    store = Store(*[UnavailableError("busy")] * 4)

    answer = await RETRY.run(store)

    assert "answer" == answer
    assert [1_000, 2_000, 4_000, 4_000] == waits(store.asked_ms)


@on_virtual_time
async def test_an_attempt_without_an_answer_ends_at_its_timeout() -> None:
    """
    Ten seconds for the lost answer, one before the next attempt.
    """
    store = Store(None)

    await RETRY.run(store)

    assert [11_000] == waits(store.asked_ms)


@on_virtual_time
@pytest.mark.parametrize("failure", [UnavailableError("x"), OutcomeUnknownError("x"), None])
async def test_the_last_attempts_error_is_raised(failure: Exception | None) -> None:
    """
    After `attempts` the caller has the error that the store gave last.
    """
    store = Store(failure, failure, failure)

    with pytest.raises(TimeoutError if failure is None else type(failure)):
        await Retry(wait_s=1, longest_wait_s=1, timeout_s=1, attempts=2).run(store)

    assert 2 == len(store.asked_ms)


@on_virtual_time
async def test_an_error_that_no_attempt_helps_is_raised_at_once() -> None:
    """
    Damaged bytes are the same the next time.
    """
    store = Store(CorruptError("bits"))

    with pytest.raises(CorruptError):
        await RETRY.run(store)

    assert 1 == len(store.asked_ms)


@on_virtual_time
async def test_the_caller_is_told_of_each_failure_and_may_give_up() -> None:
    """
    What `failed` raises ends the attempts.
    """
    told: list[str] = []

    async def failed(error: Exception) -> None:
        told.append(str(error))
        if len(told) == 2:
            raise KeyError(str(error))

    with pytest.raises(KeyError):
        await RETRY.run(Store(UnavailableError("a"), UnavailableError("b")), failed)

    assert ["a", "b"] == told


async def _cancelled(store: Callable[[], Awaitable[str]]) -> asyncio.Task[str]:
    task = asyncio.ensure_future(RETRY.run(store))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    return task


@on_virtual_time
async def test_a_cancelled_task_asks_no_more() -> None:
    """
    Whether it waits for an answer, or its request ends with an error instead of the cancelling.
    """
    silent = Store(None)

    async def unclean() -> str:
        try:
            return await silent()
        except asyncio.CancelledError:
            raise UnavailableError("closed") from None

    silent_task = await _cancelled(silent)
    silent.failures = [None]
    unclean_task = await _cancelled(unclean)

    assert silent_task.cancelled()
    assert isinstance(unclean_task.exception(), UnavailableError)
    assert 2 == len(silent.asked_ms)


@on_virtual_time
async def test_a_request_that_a_library_cancels_is_repeated() -> None:
    """
    The task itself was not cancelled.
    """
    store = Store()
    cancelled = [True]

    async def ask() -> str:
        if cancelled.pop() if cancelled else False:
            raise asyncio.CancelledError
        return await store()

    assert "answer" == await RETRY.run(ask)


@on_virtual_time
async def test_a_wait_after_a_success_is_the_first_again() -> None:
    """
    One fault a day does not make the next one last longer.
    """
    pauses, times = Waits(1.0, 8.0), []
    for reset in (False, True, False):
        began_ms = now_ms()
        await pauses.wait()
        times.append(round(now_ms() - began_ms))
        if reset:
            pauses.reset()

    assert [1_000, 2_000, 1_000] == times


@on_virtual_time
async def test_a_timeout_grows_while_answers_are_missed() -> None:
    """
    A store that is slow for all is waited for; after an answer a lost one costs little again.
    """
    timeout, times = GrowingTimeout(2.0, 6.0), []

    async def missed() -> None:
        began_ms = now_ms()
        with pytest.raises(TimeoutError):
            await timeout.of(asyncio.Event().wait())
        times.append(round(now_ms() - began_ms))

    for _ in range(3):
        await missed()
    await timeout.of(asyncio.sleep(5))
    await missed()

    assert [2_000, 4_000, 6_000, 2_000] == times
