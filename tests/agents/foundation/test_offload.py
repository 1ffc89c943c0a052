"""Upkeep takes memory when its thread is free: else cold reads wait for work that has not begun."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import ref

import pytest

from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.foundation.offload import FairThreads, SerialOffload, on_threads


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


@pytest.mark.parametrize(
    "run",
    [
        on_threads(),
        partial(FairThreads("fair").run, NOBODY),
        partial(FairThreads("fair").ended, NOBODY),
    ],
)
async def test_an_error_of_a_thread_leaves_nothing_in_memory(
    run: Callable[[Callable[[], None]], Awaitable[None]],
) -> None:
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
            await run(fail)
        async with asyncio.timeout(5):
            while made[0]() is not None:  # noqa: ASYNC110  # the thread lets go a little later
                await asyncio.sleep(0)
    finally:
        gc.enable()


# ── A thread that takes turns of clients ──


class Busy:
    """A thread whose first call, of *client*, goes on until it is let go; the others note that they
    ran."""

    def __init__(self, client: Client) -> None:
        self.ran: list[object] = []
        self._client = client
        self._thread = FairThreads("fair")
        self._begun, self._go_on = threading.Event(), threading.Event()

    def _wait(self) -> None:
        self._begun.set()
        assert self._go_on.wait(10)

    async def __aenter__(self) -> asyncio.Future[None]:
        """Returns that call."""
        first = self._thread.run(self._client, self._wait)
        await asyncio.to_thread(self._begun.wait, 10)
        return first

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()
        async with asyncio.timeout(10):  # behind all others of its client
            await self._thread.run(self._client, int)

    def ask(self, client: Client, name: object) -> asyncio.Future[None]:
        """*client* waits for the thread."""
        return self._thread.run(client, self._note, name)

    def _note(self, name: object) -> None:
        self.ran.append(name)
        time.sleep(0.001)


async def test_a_client_waits_for_no_more_than_the_call_of_another_that_runs() -> None:
    """
    However many calls it has waiting, of however many connections; those of one client keep their
    order.
    """
    many, connections = Client("10.0.0.1"), [Client("10.0.0.1") for _ in range(25)]
    busy = Busy(many)
    async with busy:
        calls = [busy.ask(many, n) for n in range(25)]
        calls += [busy.ask(each, "other connection") for each in connections]
        calls.append(busy.ask(Client("10.0.0.2"), "little"))
    await asyncio.gather(*calls)

    assert 51 == len(busy.ran)
    assert "little" in busy.ran[:2]
    assert list(range(25)) == [name for name in busy.ran if isinstance(name, int)]


async def test_a_call_whose_caller_is_cancelled_holds_up_nobody() -> None:
    """
    One that waits is not made; of one that runs nobody waits for the end.
    """
    client = Client("10.0.0.1")
    busy = Busy(client)
    async with busy as running:
        given_up = [busy.ask(client, "given up") for _ in range(3)]
        goes_on = busy.ask(client, "goes on")
        for call in (running, *given_up):
            call.cancel()
        await asyncio.sleep(0)  # a call is told in the next iteration
        with pytest.raises(asyncio.CancelledError):
            await running
    await goes_on

    assert ["goes on"] == busy.ran


async def test_of_a_cancelled_caller_only_a_call_that_has_begun_is_waited_for() -> None:
    """
    The thread uses the arguments of that one.  Of one that waits it keeps nothing.
    """
    threads, client = FairThreads("fair", 2), Client("10.0.0.1")
    begun, go_on = threading.Semaphore(0), threading.Event()
    ran: list[int] = []

    class Argument:
        pass

    arguments: list[ref[Argument]] = []

    def work(number: int, _: Argument) -> None:
        ran.append(number)
        begun.release()
        assert go_on.wait(10)

    def ask(number: int) -> asyncio.Task[None]:
        argument = Argument()
        arguments.append(ref(argument))
        return asyncio.create_task(threads.ended(client, work, number, argument))

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    asked = [ask(number) for number in range(4)]
    await turns()
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=10)
    assert all(task.cancel() for task in asked)
    await turns()
    ended = [task.done() for task in asked]
    del asked[2:]
    kept = [argument() is not None for argument in arguments]
    go_on.set()
    await asyncio.wait(asked)
    async with asyncio.timeout(10):
        await threads.ended(client, int)  # behind all others

    assert [False, False, True, True] == ended
    assert [True, True, False, False] == kept
    assert [0, 1] == sorted(ran)


async def test_clients_take_turns_of_several_threads() -> None:
    """
    Two calls of a client run, and fifty wait: one of another client is next.
    """
    threads, order = FairThreads("fair", 2), list[str]()
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        begun.release()
        assert go_on.wait(10)
        time.sleep(0.001)

    many, little = Client("10.0.0.1"), Client("10.0.0.2")
    running = [threads.run(many, hold) for _ in range(2)]
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=10)
    calls = [threads.run(many, order.append, "many") for _ in range(50)]
    calls.append(threads.run(little, order.append, "little"))
    go_on.set()
    await asyncio.gather(*running, *calls)

    assert 51 == len(order)
    assert "little" in order[:3]
