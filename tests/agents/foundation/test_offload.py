"""Upkeep takes memory when its thread is free: else cold reads wait for work that has not begun."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import ref

import pytest

from driftlog_agents.foundation.offload import SerialOffload, on_threads


class Thread:
    """Runs calls when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.events: list[str] = []

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        await self.go.wait()
        return fn(*args)

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        self.events.append("entered")
        yield
        self.events.append("left")


async def test_what_the_work_needs_is_entered_when_the_thread_is_free() -> None:
    """
    And left before the next work: calls run one at a time, in the order of arrival.
    """
    thread = Thread()
    serial = SerialOffload(thread.offload)
    first = asyncio.create_task(serial(thread.events.append, "first"))
    second = asyncio.create_task(serial.within(thread.needed(), thread.events.append, "second"))
    third = asyncio.create_task(serial(thread.events.append, "third"))
    await asyncio.sleep(0)

    assert [] == thread.events
    thread.go.set()
    await asyncio.gather(first, second, third)
    assert ["first", "entered", "second", "left", "third"] == thread.events


async def test_work_that_fails_or_is_cancelled_leaves_the_thread_to_the_next() -> None:
    """
    With what it needed, also where it waited for the thread.
    """
    thread = Thread()
    serial = SerialOffload(thread.offload)
    running = asyncio.create_task(serial.within(thread.needed(), int, "x"))
    waiting = asyncio.create_task(serial(thread.events.append, "never"))
    await asyncio.sleep(0)
    waiting.cancel()
    thread.go.set()

    with pytest.raises(ValueError, match="invalid literal"):
        await running
    async with asyncio.timeout(5):
        assert 7 == await serial(int, "7")
    assert "never" not in thread.events


async def test_an_error_of_a_thread_leaves_nothing_in_memory() -> None:
    """
    What the failing call had made stayed until the garbage collector's oldest generation: patterns
    that are refused cost 28 MB each.
    """

    class Large:
        pass

    made: list[ref[Large]] = []

    def fail() -> None:
        large = Large()
        made.append(ref(large))
        raise ValueError

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await on_threads()(fail)
        await asyncio.sleep(0)

        assert [None] == [each() for each in made]
    finally:
        gc.enable()
