"""One client that rewrites a large group, or configs, again and again fills etcd, which stops every
producer."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.groups.coordinator.write_batcher import GroupWrite, GroupWrites
from driftlog_agents.topics.budget import Growth, TopicBudget
from driftlog_metadata.schema.keys import group_key
from driftlog_metadata.stores.quota import BYTES_PER_S, Quota, QuotaRoom, Usage
from tests.agents.log.lives import World, now_ms, on_virtual_time

_LARGE = 900_000
_SMALL = 100
_CHANGE = 100_000
"""Bytes of a change of configs, as of a group with the longest name."""


class Group:
    """A group that always has a value to write."""

    def __init__(self, writes: GroupWrites, name: str, size_bytes: int) -> None:
        self._writes = writes
        self._key = group_key(name)
        self._size_bytes = size_bytes
        self._revision = 0
        self.stored_ms: list[float] = []
        """When each write was stored."""

    async def gather(self) -> GroupWrite | None:
        value = b"%d" % len(self.stored_ms)
        return GroupWrite(
            revisions={self._key: self._revision},
            puts={self._key: value.ljust(self._size_bytes)},
        )

    def stored(self, revision: int) -> None:
        self._revision = revision
        self.stored_ms.append(now_ms())
        # A client sends the next request after the answer.
        asyncio.get_running_loop().call_later(0.005, self._writes.wake, self)

    def refused(self) -> None:
        raise AssertionError("no other agent writes it")

    def too_large(self) -> None:
        raise AssertionError("it fits")


def _used(share: float) -> Usage:
    return Usage(
        member="m", size_bytes=int(share * 1_000_000), quota_bytes=1_000_000, full=False, revision=1
    )


@on_virtual_time
async def test_writes_of_groups_are_limited_and_more_while_the_store_has_little_room() -> None:
    """
    A small group, whose writes wait beside those of the large one, is written each second.
    """
    world = World()
    life = await world.start()
    quota = Quota()
    writes = GroupWrites(life.engine.session, Counter(), quota)
    large, small = Group(writes, "large", _LARGE), Group(writes, "small", _SMALL)
    running = asyncio.get_running_loop().create_task(writes.run())
    for group in (large, small):
        writes.wake(group)
    per_second: dict[QuotaRoom, float] = {}
    for share in (0.1, 0.61):
        quota.told([_used(share)])
        await asyncio.sleep(3)  # What was written at once is paid for.
        began_ms = now_ms()
        await asyncio.sleep(20)
        written = sum(at >= began_ms for at in large.stored_ms) * _LARGE
        per_second[quota.room] = written / 20
    waits = [b - a for a, b in zip(small.stored_ms, small.stored_ms[1:], strict=False)]
    running.cancel()

    assert set(per_second) == {QuotaRoom.ENOUGH, QuotaRoom.SCARCE}
    for room, found in per_second.items():
        assert 0.8 * BYTES_PER_S[room] < found <= BYTES_PER_S[room] + _LARGE / 20
    assert max(waits) <= 1_500
    assert quota.pauses > 0


@pytest.mark.parametrize("share", [0.1, 0.61])
@on_virtual_time
async def test_changes_of_configs_and_groups_are_within_one_limit(share: float) -> None:
    """
    Clients change configs all the time, each as soon as it may.  A group is written beside them:
    it waits for one change at a time, not for all clients.
    """
    world = World()
    life = await world.start()
    loop, quota = asyncio.get_running_loop(), Quota()
    quota.told([_used(share)])
    writes = GroupWrites(life.engine.session, Counter(), quota)
    group = Group(writes, "group", _CHANGE)
    host = cast(Any, SimpleNamespace(refusals=Refusals()))
    budget = TopicBudget(host, cast(Any, None))
    changed_ms: list[float] = []

    async def client() -> None:
        while True:
            await budget.admit(quota, Growth(written_bytes=_CHANGE))
            changed_ms.append(now_ms())

    tasks = [loop.create_task(client()) for _ in range(20)]
    tasks.append(loop.create_task(writes.run()))
    writes.wake(group)
    await asyncio.sleep(3)
    began_ms = now_ms()
    await asyncio.sleep(20)
    changes = sum(at >= began_ms for at in changed_ms) * _CHANGE / 20
    of_group = sum(at >= began_ms for at in group.stored_ms) * _CHANGE / 20
    for task in tasks:
        task.cancel()

    limit = BYTES_PER_S[quota.room]
    assert 0.9 * limit < changes + of_group <= limit + _CHANGE / 10
    assert of_group > 0.2 * limit


@on_virtual_time
async def test_what_many_groups_commit_at_once_does_not_wait() -> None:
    """
    Ten writes of a hundred groups are sent without a pause.
    """
    world = World()
    life = await world.start()
    quota = Quota()
    writes = GroupWrites(life.engine.session, Counter(), quota)
    groups = [Group(writes, f"group-{n}", 10_000) for n in range(100)]
    running = asyncio.get_running_loop().create_task(writes.run())
    for group in groups:
        writes.wake(group)
    while not all(len(group.stored_ms) >= 10 for group in groups):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    running.cancel()

    assert 0 == quota.pauses
