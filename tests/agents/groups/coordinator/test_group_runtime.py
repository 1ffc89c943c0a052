"""A group that is gone is gone from memory at once, without the collector of cycles."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from weakref import ref

import pytest

from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import JOIN_EPOCH, LEAVE_EPOCH, ConsumerHeartbeat
from driftlog_agents.groups.coordinator.consumer_requests import describe, heartbeat
from driftlog_agents.groups.coordinator.group_runtime import CLASSIC, ServedGroup
from driftlog_agents.groups.coordinator.pending_writes import PendingWrites
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.groups.coordinated import Coordinated, Member
from tests.agents.log.lives import World, on_virtual_time

Ending = Callable[[Coordinated], Coroutine[Any, Any, None]]


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
    joined = await heartbeat(at.groups, "g", _beat("m", JOIN_EPOCH))
    await heartbeat(at.groups, "g", _beat("m", joined.member_epoch))
    await describe(at.groups, "g")
    await heartbeat(at.groups, "g", _beat("m", LEAVE_EPOCH))
    await _delete(at)


async def patterns(at: Coordinated) -> None:
    """A pattern is matched for it, in a task."""
    await heartbeat(at.groups, "g", _beat("m", JOIN_EPOCH, pattern="t.*"))
    await asyncio.sleep(1)
    await heartbeat(at.groups, "g", _beat("m", LEAVE_EPOCH))
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


@pytest.mark.parametrize("ending", [simple, classic, modern, patterns, refused])
def test_a_group_that_is_gone_leaves_nothing_behind(ending: Ending) -> None:
    """
    However it came and went; members' sessions and time-outs do not keep it either.
    """

    @on_virtual_time
    async def play() -> None:
        at = await Coordinated.start(World(t=512))
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
    for ending in (simple, classic, modern, patterns, refused):
        at = await Coordinated.start(World(t=512))
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


def _beat(member_id: str, epoch: int, pattern: str | None = None) -> ConsumerHeartbeat:
    joins = epoch == JOIN_EPOCH
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=30_000,
        topic_names=("t",) if joins and pattern is None else None,
        topic_regex=pattern,
        owned={} if joins else None,
    )
