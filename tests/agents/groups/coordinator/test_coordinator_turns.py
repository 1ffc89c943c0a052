"""The long work of groups is done in turns of addresses, on threads that no read waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.groups.coordinator.consumer_requests import describe, heartbeat
from tests.agents.groups.coordinated import Coordinated, beat
from tests.agents.log.lives import World, on_virtual_time

T = TypeVar("T")
Work = Callable[[Coordinated, str], Awaitable[None]]

_HOSTILE, _HONEST = "10.0.0.1", "10.0.0.2"

_GROUPS = 40
"""Of the hostile address."""

_CALL_S = 1.0


class Threads(World):
    """Two threads, where every call takes a second; calls run in the order in which they came."""

    def __init__(self, **topics: int) -> None:
        super().__init__(**topics)
        self.slow = False
        self._free = asyncio.Semaphore(2)

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        async with self._free:
            await asyncio.sleep(_CALL_S if self.slow else 0)
            return await super().offload(fn, *args)


async def _start() -> tuple[Coordinated, Threads]:
    world = Threads(t=1, large=2_048)
    at = await Coordinated.start(world)
    world.slow = True
    return at, world


def _by(address: str, work: Awaitable[T]) -> asyncio.Task[T]:
    """*work* for a client of its own, of *address*."""

    async def ask() -> T:
        work_for(Client(address))
        return await work

    return asyncio.ensure_future(ask())


async def _seconds(task: asyncio.Task[Any]) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await task
    return loop.time() - began_s


async def _decision(at: Coordinated, group_id: str) -> None:
    """A member joins that is assigned so much that a thread decides."""
    joined = await heartbeat(at.groups, group_id, beat(topic="large"))
    assert joined.assignment is not None


async def _match(at: Coordinated, group_id: str) -> None:
    """A member joins with a pattern, and asks until it is assigned what that matches."""
    said = await heartbeat(at.groups, group_id, beat(pattern="t.*"))
    while not said.assignment:
        await asyncio.sleep(0.1)
        said = await heartbeat(at.groups, group_id, beat(said.member_epoch))


async def _check(at: Coordinated, _: str) -> None:
    """A pattern is compiled."""
    await at.groups.check_pattern("t.*")


@pytest.mark.parametrize("work", [_decision, _match, _check])
def test_an_address_waits_for_one_call_of_another(work: Work) -> None:
    """
    However many groups of the other wait for the same: an honest member waited for all of them.
    """

    @on_virtual_time
    async def run() -> None:
        at, _ = await _start()
        hostile = [_by(_HOSTILE, work(at, f"hostile-{n}")) for n in range(_GROUPS)]
        await asyncio.sleep(1.5 * _CALL_S)

        assert await _seconds(_by(_HONEST, work(at, "honest"))) <= 5 * _CALL_S
        assert sum(task.done() for task in hostile) < 10
        at.kill()

    run()


@on_virtual_time
async def test_who_asks_for_a_group_of_others_does_not_hold_it_up() -> None:
    """
    A decision that two addresses wait for is made in the turn of the one that comes first.
    """
    at, _ = await _start()
    for n in range(_GROUPS):
        _by(_HOSTILE, _decision(at, f"hostile-{n}"))
    await _by(_HONEST, _decision(at, "honest"))

    async def asks() -> None:
        while True:
            await describe(at.groups, "honest", lambda _: asyncio.sleep(0))

    _by(_HOSTILE, asks())
    await asyncio.sleep(1.5 * _CALL_S)

    assert await _seconds(_by(_HONEST, _another(at))) <= 8 * _CALL_S
    at.kill()


async def _another(at: Coordinated) -> None:
    await heartbeat(at.groups, "honest", beat(topic="large", member_id="another"))


@on_virtual_time
async def test_a_new_topic_is_everybodys() -> None:
    """
    What all groups wait for has a turn of its own, also where a hostile client asked for it first.
    """
    at, _ = await _start()
    for n in range(_GROUPS):
        _by(_HOSTILE, _decision(at, f"hostile-{n}"))
    await asyncio.sleep(1.5 * _CALL_S)
    shared = _by(_HOSTILE, at.groups.offload(int))

    assert await _seconds(shared) <= 3 * _CALL_S
    at.kill()


@on_virtual_time
async def test_reads_do_not_wait_for_groups() -> None:
    """
    A cold Fetch took half a minute, as groups decided on the threads that decode what is read.
    """
    at, world = await _start()
    reads = Threads()
    engine = at.life.engine
    engine.ports = replace(engine.ports, offload_read=reads.offload)
    other = Coordinated(at.life, at.groups.settings, at.store)
    await other.until(lambda: other.groups.complete)
    for n in range(_GROUPS):
        _by(_HOSTILE, _decision(other, f"hostile-{n}"))
    await asyncio.sleep(3 * _CALL_S)

    assert "_decision_of" in world.offloaded
    assert not reads.offloaded
    other.kill()
