"""One client that rewrites a large group again and again fills etcd, which stops every producer."""

import asyncio
from collections import Counter

from driftlog_agents.groups.coordinator.write_batcher import (
    SCARCE_BYTES_PER_S,
    GroupWrite,
    GroupWrites,
)
from driftlog_metadata.schema.keys import group_key
from driftlog_metadata.stores.quota import Quota, Usage
from tests.agents.log.lives import World, now_ms, on_virtual_time

_LARGE = 900_000
_SMALL = 100


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
async def test_writes_of_groups_are_limited_while_the_store_has_little_room() -> None:
    """
    A small group, whose writes wait beside those of the large one, is written each second.
    """
    world = World()
    life = await world.start()
    quota, counted = Quota(), Counter[str]()
    writes = GroupWrites(life.engine.session, counted, quota)
    large, small = Group(writes, "large", _LARGE), Group(writes, "small", _SMALL)
    running = asyncio.get_running_loop().create_task(writes.run())
    for group in (large, small):
        writes.wake(group)
    await asyncio.sleep(2)
    unlimited = len(large.stored_ms) * _LARGE / 2

    quota.told([_used(0.61)])
    await asyncio.sleep(1)
    began_ms = now_ms()
    await asyncio.sleep(20)
    lately = [at for at in large.stored_ms if at >= began_ms]
    waits = [b - a for a, b in zip(small.stored_ms, small.stored_ms[1:], strict=False)]
    quota.told([_used(0.1)])
    await asyncio.sleep(1)
    again_ms = now_ms()
    await asyncio.sleep(1)
    running.cancel()

    assert unlimited > 50 * SCARCE_BYTES_PER_S
    assert len(lately) * _LARGE <= 20 * SCARCE_BYTES_PER_S + _LARGE
    assert max(waits) <= 1_000
    assert counted["driftlog_group_write_pauses"] > 0
    assert sum(at >= again_ms for at in large.stored_ms) * _LARGE > 10 * SCARCE_BYTES_PER_S
