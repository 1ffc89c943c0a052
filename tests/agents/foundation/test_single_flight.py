"""One request for all: if it broke, a footer would be fetched once for each partition in it."""

import asyncio

import pytest

from driftlog_agents.foundation.single_flight import SingleFlight


class Source:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.requests = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.requests += 1
        number = self.requests
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_all_that_ask_meanwhile_share_one_request() -> None:
    """
    Another key has a request of its own, and so has what comes after the answer.
    """
    flights, source = SingleFlight[str, int](), Source()
    tasks = [asyncio.create_task(flights.do(key, source)) for key in "kkkl"]
    await asyncio.sleep(0)
    source.go.set()

    assert [1, 1, 1, 2] == await asyncio.gather(*tasks)
    assert 3 == await flights.do("k", source)


async def test_all_that_wait_are_told_of_the_error() -> None:
    """
    None of them asks once more: each decides by itself whether that helps.
    """
    flights, source = SingleFlight[str, int](), Source()
    source.error = KeyError("k")
    tasks = [asyncio.create_task(flights.do("k", source)) for _ in range(3)]
    await asyncio.sleep(0)
    source.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [KeyError] * 3 == [type(outcome) for outcome in outcomes]
    assert 1 == source.requests


async def test_a_cancelled_request_is_made_again_by_one_that_waits() -> None:
    """
    A client that goes away takes no answer from the others, nor does one that only waited.
    """
    flights, source = SingleFlight[str, int](), Source()
    tasks = [asyncio.create_task(flights.do("k", source)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[3].cancel()
    while source.requests < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.go.set()

    assert [2, 2] == await asyncio.gather(*tasks[1:3])
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert 2 == source.requests
