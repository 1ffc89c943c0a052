"""A restore finds no offsets of groups, or older ones than the bucket has."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.groups.group_snapshots import GroupSnapshots
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.deletions import ConfirmedStores, Deletions
from driftlog_metadata.schema.keys import CONFIGS_PREFIX, GROUPS_PREFIX
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, decode_group_snapshot
from tests.agents.log.lives import on_virtual_time
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """On the event loop."""
    return fn(*args)


class World:
    """The stores of a cluster, and its agents."""

    def __init__(self) -> None:
        self.bucket = MemoryObjectStore(lambda: 0)
        self.metadata = MemoryMetadataStore(lambda: 0)
        self.fenced = False

    async def confirm(self) -> None:
        """As the agent does it."""
        if self.fenced:
            raise FencedError("another cluster's")

    def agent(self, metadata: Any = None, cluster_id: str = "c") -> GroupSnapshots:
        """A process."""
        return GroupSnapshots(
            stores=ConfirmedStores(metadata or self.metadata, self.bucket, self.confirm),
            cluster_id=cluster_id,
            offload=at_once,
            deleter=Deletions(self.bucket, self.confirm, request_retry(1_000)),
        )

    async def commit(self, group: str, value: bytes) -> None:
        """A change of a group."""
        await self.metadata.txn((), [Put(f"{GROUPS_PREFIX}{group}", value)])

    async def keys(self) -> list[str]:
        """All objects."""
        return [info.key async for page in self.bucket.list("") for info in page.objects]

    async def newest(self) -> GroupSnapshot:
        """The first of the listing."""
        return decode_group_snapshot(await self.bucket.get((await self.keys())[0]))


async def test_a_snapshot_has_the_configs_of_brokers_and_groups() -> None:
    """
    And is put when one of them changes or goes, though no group does.
    """
    world = World()
    agent = world.agent()
    await world.metadata.txn((), [Put(f"{CONFIGS_PREFIX}brokers", b"1")])
    assert await agent.put() is not None
    assert {"brokers": b"1"} == (await world.newest()).configs
    assert await agent.put() is None
    await world.metadata.txn((), [Put(f"{CONFIGS_PREFIX}groups/g", b"2")])
    assert await agent.put() is not None
    assert {"brokers": b"1", "groups/g": b"2"} == (await world.newest()).configs
    await world.metadata.txn((), [Delete(f"{CONFIGS_PREFIX}brokers")])
    assert await agent.put() is not None
    assert {"groups/g": b"2"} == (await world.newest()).configs


class Racing:
    """A metadata store in which the next of *changes* happens before each read of the values of
    *prefix*."""

    def __init__(self, store: MemoryMetadataStore, prefix: str, *changes: Put | Delete) -> None:
        self._store = store
        self._prefix = prefix
        self._changes = list(changes)

    async def get_prefix(self, prefix: str, *, keys_only: bool = False) -> Any:
        """As the port says."""
        if prefix == self._prefix and not keys_only and self._changes:
            await self._store.txn((), [self._changes.pop(0)])
        return await self._store.get_prefix(prefix, keys_only=keys_only)


@pytest.mark.parametrize("prefix", [GROUPS_PREFIX, CONFIGS_PREFIX])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Put(f"{CONFIGS_PREFIX}brokers", b"2"), {"brokers": b"2"}),
        (Delete(f"{CONFIGS_PREFIX}brokers"), {}),
    ],
)
async def test_a_snapshot_has_the_configs_of_the_revision_in_its_name(
    prefix: str, change: Put | Delete, expected: dict[str, bytes]
) -> None:
    """
    Or newer ones.  Of older ones a restore would bring back old defaults, and retention by them: a
    second snapshot of the same revision, by this agent or the next, is never put.
    """
    world = World()
    await world.metadata.txn((), [Put(f"{CONFIGS_PREFIX}brokers", b"1")])
    await world.commit("a", b"1")
    agent = world.agent(Racing(world.metadata, prefix, change))

    assert await agent.put() is not None
    assert expected == (await world.newest()).configs
    assert await agent.put() is not None
    assert await agent.put() is None
    assert expected == (await world.newest()).configs
    assert layout.group_snapshot_key("c", world.metadata.revision) == (await world.keys())[0]


async def test_a_config_that_another_agents_snapshot_of_the_revision_lacks_is_put_next_time() -> (
    None
):
    """
    It changed after that one, and before this agent read the configs.
    """
    world = World()
    await world.commit("a", b"1")
    change = Put(f"{CONFIGS_PREFIX}brokers", b"2")
    agent = world.agent(Racing(world.metadata, CONFIGS_PREFIX, change))

    assert await world.agent().put() == await agent.put()
    assert {} == (await world.newest()).configs
    assert await agent.put() is not None
    assert {"brokers": b"2"} == (await world.newest()).configs


async def test_snapshots_are_put_while_configs_change_all_the_time() -> None:
    """
    A client that altered a config twice a second ended all snapshots of groups.
    """
    world = World()
    changes = [Put(f"{CONFIGS_PREFIX}groups/any", b"%d" % number) for number in range(20)]
    agent = world.agent(Racing(world.metadata, GROUPS_PREFIX, *changes))

    for number in range(20):
        await world.commit("a", b"%d" % number)
        assert await agent.put() is not None
        newest = await world.newest()
        assert ({"a": b"%d" % number}, {"groups/any": b"%d" % number}) == (
            newest.values,
            newest.configs,
        )


async def test_a_snapshot_has_all_groups_at_one_revision() -> None:
    """
    And is put when a group changes, comes or goes, and never else.
    """
    world = World()
    agent = world.agent()
    assert await agent.put() is None
    await world.commit("a", b"1")
    await world.commit("b/offsets/7/0", b"2")
    first = await agent.put()
    assert await agent.put() is None
    revision = world.metadata.revision

    assert layout.group_snapshot_key("c", revision) == first
    assert GroupSnapshot("c", revision, {"a": b"1", "b/offsets/7/0": b"2"}) == await world.newest()
    for change in (Put(f"{GROUPS_PREFIX}a", b"3"), Delete(f"{GROUPS_PREFIX}a")):
        await world.metadata.txn((), [change])
        assert await agent.put() is not None
        assert await agent.put() is None
    assert {"b/offsets/7/0": b"2"} == (await world.newest()).values
    await world.metadata.txn((), [Delete(f"{GROUPS_PREFIX}b/offsets/7/0")])
    assert await agent.put() is not None
    assert {} == (await world.newest()).values


async def test_groups_that_were_all_deleted_do_not_come_back() -> None:
    """
    Also where the agent that puts the next snapshot, or its cluster, has never put one.
    """
    world = World()
    await world.commit("a", b"1")
    await world.agent().put()
    await world.metadata.txn((), [Delete(f"{GROUPS_PREFIX}a")])

    agent = world.agent()
    assert await agent.put() is not None
    assert await agent.put() is None

    assert {} == (await world.newest()).values
    restored = world.agent(cluster_id="restored")
    key = await restored.put()
    assert key is not None
    assert await restored.put() is None
    assert {} == decode_group_snapshot(await world.bucket.get(key)).values


@on_virtual_time
async def test_a_group_that_another_agent_put_and_that_is_gone_does_not_come_back() -> None:
    """
    The groups are as they were when this agent put the last snapshot of its own.
    """
    world = World()
    await world.commit("a", b"1")
    is_wanted = True
    task = asyncio.create_task(world.agent().run(lambda: is_wanted, 1_000))
    await asyncio.sleep(1.5)
    assert {"a": b"1"} == (await world.newest()).values
    is_wanted = False
    await world.commit("b", b"2")
    await world.agent().put()
    await asyncio.sleep(1)
    await world.metadata.txn((), [Delete(f"{GROUPS_PREFIX}b")])
    is_wanted = True
    await asyncio.sleep(1)
    task.cancel()

    assert {"a": b"1"} == (await world.newest()).values


async def test_an_idle_cluster_without_groups_asks_the_bucket_once() -> None:
    """
    And puts nothing.
    """
    world = World()
    listings: list[str] = []
    original = world.bucket.list

    def counted(prefix: str, **options: Any) -> Any:
        listings.append(prefix)
        return original(prefix, **options)

    world.bucket.list = counted  # type: ignore[method-assign]
    agent = world.agent()

    assert [None] * 3 == [await agent.put() for _ in range(3)]

    assert 1 == len(listings)
    assert [] == await world.keys()


async def test_old_snapshots_go_and_the_newest_stay() -> None:
    """
    Of two agents, and of one that begins anew.
    """
    world = World()
    agents = [world.agent(), world.agent()]
    for number in range(40):
        await world.commit("a", b"%d" % number)
        await agents[number % 2].put()
        await agents[1 - number % 2].put()
        assert len(await world.keys()) <= 3 + 2 * 10
        assert {"a": b"%d" % number} == (await world.newest()).values
    await world.commit("a", b"last")
    await world.agent().put()

    assert 3 == len(await world.keys())
    assert {"a": b"last"} == (await world.newest()).values


async def test_nothing_is_put_into_another_clusters_bucket() -> None:
    """
    An agent of the old cluster beside a restored one.
    """
    world = World()
    world.fenced = True
    await world.commit("a", b"1")

    with pytest.raises(FencedError):
        await world.agent().put()

    assert [] == await world.keys()


async def test_a_failure_is_told_and_the_next_attempt_puts_it() -> None:
    """
    The task does not end.
    """
    world = World()
    await world.commit("a", b"1")
    create, fails = world.bucket.create, [True]

    async def failing(key: str, body: Any) -> None:
        if fails.pop() if fails else False:
            raise UnavailableError("slow down")
        await create(key, body)

    world.bucket.create = failing  # type: ignore[method-assign]
    with capture_logs() as lines:
        task = asyncio.create_task(world.agent().run(lambda: True, 1))
        async with asyncio.timeout(30):
            while not await world.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()

    assert ["group_snapshot_failed"] == [line["event"] for line in lines]


class Large:
    """A metadata store of which a read of all groups takes a minute."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._store = store
        self.whole_reads = 0

    async def get_prefix(self, prefix: str, *, keys_only: bool = False) -> Any:
        """As the port says."""
        if not keys_only and prefix == GROUPS_PREFIX:
            self.whole_reads += 1
            await asyncio.sleep(60)
        return await self._store.get_prefix(prefix, keys_only=keys_only)


@on_virtual_time
async def test_the_values_of_many_groups_are_read_only_after_a_change() -> None:
    """
    However long the read takes: each of its pages has a deadline.
    """
    world = World()
    large = Large(world.metadata)
    agent = world.agent(large)
    assert await agent.put() is None
    await world.commit("a", b"1")
    assert await agent.put() is not None
    assert await agent.put() is None
    assert 1 == large.whole_reads
    await world.commit("a", b"2")
    assert await agent.put() is not None
    assert 2 == large.whole_reads


async def test_an_agent_on_an_old_backup_neither_puts_nor_deletes() -> None:
    """
    Its revisions are below the newest snapshot's: that would be the next to go.
    """
    world = World()
    for number in range(4):
        await world.commit("a", b"%d" % number)
        await world.agent().put()
    keys = await world.keys()
    world.metadata = MemoryMetadataStore(lambda: 0)
    await world.commit("a", b"old")

    with pytest.raises(FencedError, match="driftlog restore"):
        await world.agent().put()

    assert keys == await world.keys()
    assert {"a": b"3"} == (await world.newest()).values
