"""A group that is gone is gone from memory at once, without the collector of cycles; an error in
one ends no other.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from weakref import ref

import pytest
from structlog.testing import capture_logs

from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import JOIN_EPOCH, LEAVE_EPOCH
from driftlog_agents.groups.consumer.regex import PatternMatches
from driftlog_agents.groups.coordinator import coordinator
from driftlog_agents.groups.coordinator.consumer_requests import describe, heartbeat
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.coordinator.pending_writes import PendingWrites
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.groups.coordinated import Coordinated, Member, beat
from tests.agents.log.lives import World, on_virtual_time

Ending = Callable[[Coordinated], Coroutine[Any, Any, None]]
Failing = Callable[[Coordinated, ServedGroup], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _delete(at: Coordinated) -> None:
    assert ErrorCode.NONE == await at.groups.delete("g")


async def simple(at: Coordinated) -> None:
    """Offsets, and no members."""
    await at.commit("g", {0: 7, 300: 8})
    assert {0: 7, 300: 8} == await at.fetch("g")
    await _delete(at)


async def classic(at: Coordinated) -> None:
    """A member that joins, heartbeats, commits and leaves."""
    member = await at.member("g")
    await member.heartbeat()
    await at.commit("g", {0: 7})
    await member.leave()
    await _delete(at)


async def modern(at: Coordinated) -> None:
    """The same of KIP-848, and somebody looks at it."""
    joined = await heartbeat(at.groups, "g", beat(JOIN_EPOCH))
    await heartbeat(at.groups, "g", beat(joined.member_epoch))
    await describe(at.groups, "g", lambda _: asyncio.sleep(0))
    await heartbeat(at.groups, "g", beat(LEAVE_EPOCH))
    await _delete(at)


async def large(at: Coordinated) -> None:
    """A member of KIP-848 that is assigned so much that a thread decides."""
    joined = await heartbeat(at.groups, "g", beat(JOIN_EPOCH, topic="large"))
    assert joined.assignment is not None
    assert [2_048] == [len(numbers) for numbers in joined.assignment.values()]
    assert "_decision_of" in at.life.world.offloaded
    await heartbeat(at.groups, "g", beat(LEAVE_EPOCH))
    await _delete(at)


async def patterns(at: Coordinated) -> None:
    """A pattern is matched for it, in a task."""
    await heartbeat(at.groups, "g", beat(JOIN_EPOCH, pattern="t.*"))
    await asyncio.sleep(1)
    await heartbeat(at.groups, "g", beat(LEAVE_EPOCH))
    await _delete(at)


async def refused(at: Coordinated) -> None:
    """Requests that wait are told that it is another agent's now."""
    await at.member("g")
    at.store.latency_s = lambda: 0.2
    first = asyncio.ensure_future(at.commit("g", {0: 1}))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(at.commit("g", {0: 2}))
    joining = asyncio.ensure_future(Member(at, "g", "n").join())
    await asyncio.sleep(0.05)
    at.moves("g", 2)
    [error] = await asyncio.gather(second, return_exceptions=True)
    answer = await joining
    await first  # It was on its way already.
    at.store.latency_s = None

    assert isinstance(error, RefusedError)
    assert [ErrorCode.NOT_COORDINATOR] * 2 == [error.code, answer.error]


def _fails(*_: Any) -> Any:
    raise ZeroDivisionError("a bug")


async def _ticks(at: Coordinated, group: ServedGroup) -> None:
    """Its timer is due."""
    vars(group.machine)["tick"] = _fails
    await asyncio.sleep(60)


async def _asks(at: Coordinated, group: ServedGroup) -> None:
    """A member asks it."""
    vars(group.machine)["join"] = _fails
    with pytest.raises(RefusedError, match="UNKNOWN_SERVER_ERROR"):
        await Member(at, "g", "n").join()


async def _is_stored(at: Coordinated, group: ServedGroup) -> None:
    """Its write has succeeded."""
    vars(group.machine)["persisted"] = _fails
    member = Member(at, "g", "n")
    await member.join()
    assert ErrorCode.NOT_COORDINATOR is (await member.sync()).error


async def _writes(at: Coordinated, group: ServedGroup) -> None:
    """Its write is made."""
    vars(group.offsets)["pages"] = _fails
    with pytest.raises(RefusedError, match="UNKNOWN_SERVER_ERROR"):
        await at.commit("g", {0: 7})


async def _is_dropped(at: Coordinated, group: ServedGroup) -> None:
    """Another agent coordinates it."""
    vars(group.machine)["drop"] = _fails
    at.groups.lost(group)


@pytest.mark.parametrize("failing", [_ticks, _asks, _is_stored, _writes, _is_dropped])
def test_an_error_in_a_group_ends_nothing_but_that_group(failing: Failing) -> None:
    """
    It is dropped, with a line, and loaded again as it is stored; all other groups go on.
    """

    @on_virtual_time
    async def play() -> None:
        at = await Coordinated.start(World(t=2))
        await at.member("g")
        await at.commit("another", {0: 1})
        with capture_logs() as lines:
            await failing(at, at.groups.groups["g"])

        assert ["group_bug"] == [line["event"] for line in lines if line["log_level"] == "error"]
        assert not at.task.done()
        await at.commit("another", {0: 2})
        again = await at.groups.group("g")
        assert again is not None
        assert 1 == len(again.machine.members)

    play()


@on_virtual_time
async def test_a_group_that_cannot_be_restored_is_unreadable_and_ends_no_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Whatever its stored values make the code do: it is named, and can be removed.
    """
    world = World(t=2)
    one = await Coordinated.start(world)
    await one.member("g")
    one.kill()
    monkeypatch.setattr(ClassicGroup, "restore", _fails)

    again = await Coordinated.start(world)

    with pytest.raises(RefusedError, match=r"UNKNOWN_SERVER_ERROR.*groups/g"):
        await again.groups.group("g")
    assert not again.task.done()
    assert ErrorCode.NONE == await again.groups.delete("g")


@pytest.mark.parametrize("ending", [simple, classic, modern, large, patterns, refused])
def test_a_group_that_is_gone_leaves_nothing_behind(ending: Ending) -> None:
    """
    However it came and went; members' sessions and time-outs do not keep it either.
    """

    @on_virtual_time
    async def play() -> None:
        at = await Coordinated.start(World(t=512, large=2_048))
        await at.commit("another", {0: 1})
        before = _in_memory()
        task = asyncio.ensure_future(ending(at))
        await task
        del task
        await asyncio.sleep(0.1)

        assert ["another"] == list(at.groups.groups)
        assert 3 <= before.total()
        assert before == _in_memory()

    play()


def _in_memory() -> Counter[type]:
    """Parts of groups, without those that only a collector could find to be garbage."""
    parts = {ServedGroup, ClassicGroup, ConsumerGroup, PendingWrites}
    return Counter(type(one) for one in gc.get_objects() if type(one) in parts)


@on_virtual_time
async def test_what_groups_hold_is_given_back_when_they_are_gone() -> None:
    """
    Nothing is counted of groups that are not there: else the agent would refuse all in the end.
    """
    for ending in (simple, classic, modern, large, patterns, refused):
        at = await Coordinated.start(World(t=512, large=2_048))
        await ending(at)
        await asyncio.sleep(1)

        assert {} == at.groups.groups
        assert 0 == at.groups.budget.held_bytes
        at.kill()


@on_virtual_time
async def test_groups_of_no_use_are_not_kept() -> None:
    """
    Made for a request that came to nothing.
    """
    at = await Coordinated.start(World(t=1))
    group = await at.groups.made("g", CLASSIC)
    await group.store({})
    gone = ref(group)
    del group

    assert gone() is None
    assert 0 == at.groups.budget.held_bytes


@on_virtual_time
async def test_patterns_that_take_too_long_match_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    They kept a thread that reads for minutes, and others' joins waited for it.
    """
    at = await Coordinated.start(World(t=1))
    monkeypatch.setattr(coordinator, "MATCH_S", 0.0)
    with capture_logs() as lines:
        joined = await heartbeat(at.groups, "g", beat(JOIN_EPOCH, pattern="t.*"))
        await asyncio.sleep(1)
    later = await heartbeat(at.groups, "g", beat(joined.member_epoch))

    assert [1] == [x["patterns"] for x in lines if x["event"] == "group_patterns_match_too_much"]
    assert not later.assignment
    at.kill()


@on_virtual_time
async def test_matching_ends_with_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A stop waited for the thread until it had matched all patterns.
    """
    had: list[Callable[[], bool]] = []

    class Matches(PatternMatches):
        def __init__(self, *args: Any, goes_on: Callable[[], bool], **settings: Any) -> None:
            had.append(goes_on)
            super().__init__(*args, goes_on=goes_on, **settings)

    at = await Coordinated.start(World(t=1))
    monkeypatch.setattr(coordinator, "PatternMatches", Matches)
    await heartbeat(at.groups, "g", beat(JOIN_EPOCH, pattern="t.*"))
    await asyncio.sleep(1)
    before = [has_time() for has_time in had]
    at.kill()
    await asyncio.sleep(1)

    assert [True] == before
    assert [False] == [has_time() for has_time in had]
