"""If it failed: what agents without the role `seal` lead would never be compacted nor merged, or
always twice, or idle partitions would cost money."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

import pytest

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_metadata.schema.keys import PARTITIONS_PREFIX
from driftlog_metadata.schema.model import Role, TopicPartition
from driftlog_metadata.stores.store import Watch
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_newest
from tests.agents.log.lives import SETTINGS, Bucket, Life, World, now_ms, on_virtual_time
from tests.support.memory_store import MemoryMetadataStore

INTERVAL_S: Final = 5.0
FACTOR: Final = 3
REWRITING: Final = replace(
    SETTINGS,
    compaction=CompactionSettings(backoff_ms=INTERVAL_S * 1000),
    merging=MergeSettings(interval_ms=INTERVAL_S * 1000, factor=FACTOR),
)
SERVE, SEAL = frozenset({Role.SERVE}), frozenset({Role.SEAL})


class Watched(MemoryMetadataStore):
    """Knows which prefixes were watched."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.watched: list[str] = []

    def watch(self, prefix: str, start_revision: int) -> Watch:
        self.watched.append(prefix)
        return super().watch(prefix, start_revision)


class StuckBucket(Bucket):
    """Gives no segment while it is stuck."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = asyncio.Event()
        self.moves.set()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key.endswith(".parquet"):
            await self.moves.wait()
        return await super().get(key, start, end)


async def serving(*, compacted: bool = True, partitions: int = 1) -> Life:
    """An agent that only serves, whose batches are sealed when a test says so."""
    world = World(t=partitions)
    world.bucket = StuckBucket()
    world.roles = SERVE
    world.retention["t"] = TopicRetention()
    if compacted:
        world.compaction["t"] = CompactionPolicy(min_dirty_ratio=0)
        world.topics["t"] = replace(world.topics["t"], configs={"cleanup.policy": "compact"})
    return await world.start(REWRITING)


async def sealing(beside: Life, roles: frozenset[Role] = SEAL, number: int = 1) -> Life:
    """An agent on another machine that knows the same topics."""
    world = beside.world
    for _ in range(number):
        world = world.other_disk()
    world.roles = roles
    world.compaction, world.retention = beside.world.compaction, beside.world.retention
    life = Life(world, REWRITING, beside.behind)
    await life.engine.ready.wait()
    return life


async def put(life: Life, *values: bytes, partition: int = 0) -> None:
    """Commit and seal records without keys: compaction removes them."""
    assert "committed" == await life.produce(*values, partition=partition).answer()
    await life.seal(partition)


async def newest(life: Life, partition: int = 0) -> Manifest:
    """The manifest in the bucket."""
    tp = TopicPartition(life.log().topic_id, partition)
    found = await load_newest(life.world.bucket, "t", tp)
    assert found is not None
    return found


def compactions(*lives: Life) -> list[int]:
    """Runs of each so far."""
    return [life.engine.counters.compactions for life in lives]


@on_virtual_time
async def test_another_agent_compacts_what_a_leader_without_the_role_leads() -> None:
    """
    The leader does not; it seals on afterwards.  An idle partition makes no request.
    """
    leader = await serving()
    other = await sealing(leader)
    await put(leader, b"a", b"b")
    await asyncio.sleep(4 * INTERVAL_S)
    manifest = await newest(leader)
    assert (2, (), None) == (manifest.cleaned_end, manifest.segments, manifest.busy)
    assert [0, 1] == compactions(leader, other)
    assert 2 == other.engine.counters.compaction_removed_records

    requests = leader.world.bucket.requests
    await asyncio.sleep(20 * INTERVAL_S)
    assert requests == leader.world.bucket.requests
    await put(leader, b"c")
    await asyncio.sleep(4 * INTERVAL_S)
    assert 3 == (await newest(leader)).cleaned_end
    assert [0, 2] == compactions(leader, other)


@on_virtual_time
async def test_a_topic_that_inherits_its_policy_is_compacted_by_its_leader() -> None:
    """
    The leader accepted its records by what it inherits there: another agent may inherit another
    policy, and would remove records that no older value of a key are.
    """
    leader = await serving(compacted=False)
    leader.world.compaction["t"] = CompactionPolicy(min_dirty_ratio=0)
    other = await sealing(leader)
    await put(leader, b"a", b"b")
    await asyncio.sleep(4 * INTERVAL_S)
    assert [1, 0] == compactions(leader, other)


@on_virtual_time
async def test_what_a_leader_compacts_alone_it_merges_alone() -> None:
    """
    Merges of another agent would make its compaction void, again and again; the leader's collector
    is told what both replaced.
    """
    leader = await serving(compacted=False)
    leader.world.compaction["t"] = CompactionPolicy(min_dirty_ratio=2)
    other = await sealing(leader)
    for n in range(FACTOR):
        await put(leader, b"%d" % n)
    await asyncio.sleep(4 * INTERVAL_S)
    assert [1, 0] == [life.engine.counters.merges for life in (leader, other)]
    assert [0, 0] == compactions(leader, other)  # which would leave nothing to merge
    leader.world.compaction["t"] = CompactionPolicy(min_dirty_ratio=0)
    await put(leader, b"last")
    await asyncio.sleep(4 * INTERVAL_S)
    assert [1, 0] == compactions(leader, other)
    assert ["t"] == [topic for topic, _ in leader.engine.take_edited()]


@on_virtual_time
async def test_another_agent_merges_what_a_leader_without_the_role_leads() -> None:
    """
    As soon as there are enough; until then, and afterwards, no request is made.
    """
    leader = await serving(compacted=False)
    other = await sealing(leader)
    for n in range(FACTOR - 1):
        await put(leader, b"%d" % n)
    await asyncio.sleep(4 * INTERVAL_S)
    requests = leader.world.bucket.requests
    await asyncio.sleep(20 * INTERVAL_S)
    assert requests == leader.world.bucket.requests
    assert FACTOR - 1 == len((await newest(leader)).segments)

    await put(leader, b"more")
    await asyncio.sleep(4 * INTERVAL_S)
    (merged,) = (await newest(leader)).segments
    assert (0, FACTOR) == (merged.base, merged.end)
    assert [(0, 0), (1, FACTOR)] == [
        (life.engine.counters.merges, life.engine.counters.merged_segments)
        for life in (leader, other)
    ]
    assert (await newest(leader)).busy is None
    requests = leader.world.bucket.requests
    await asyncio.sleep(20 * INTERVAL_S)
    assert requests == leader.world.bucket.requests


@on_virtual_time
async def test_partitions_are_spread_and_each_is_worked_on_by_one_agent() -> None:
    """
    No edit is void; what is collected afterwards is known to the agent that edited.
    """
    leader = await serving(partitions=12)
    others = [await sealing(leader), await sealing(leader, number=2)]
    for partition in range(12):
        await put(leader, b"a", partition=partition)
    await asyncio.sleep(6 * INTERVAL_S)

    assert [1] * 12 == [(await newest(leader, n)).cleaned_end for n in range(12)]
    assert (0, 12) == (compactions(leader)[0], sum(compactions(*others)))
    assert 0 not in compactions(*others)
    assert [] == leader.engine.take_edited()
    edited = [{tp.partition for _, tp in other.engine.take_edited()} for other in others]
    assert compactions(*others) == [len(found) for found in edited]
    assert set(range(12)) == edited[0] | edited[1]


@on_virtual_time
async def test_an_agent_whose_view_of_the_topic_is_old_rewrites_nothing() -> None:
    """
    The topic's policy may have become `delete`, and records of after that may be sealed.
    """
    leader = await serving()
    other = await sealing(leader)
    topics = other.engine.cluster.view.topics
    topic_id = leader.log().topic_id
    new = topics[topic_id]
    topics[topic_id] = replace(new, mod_revision=new.mod_revision - 1)
    await put(leader, b"a", b"b")
    await asyncio.sleep(4 * INTERVAL_S)
    assert [0, 0] == compactions(leader, other)
    assert 1 == len((await newest(leader)).segments)

    topics[topic_id] = new
    await asyncio.sleep(20 * INTERVAL_S)
    assert [0, 1] == compactions(leader, other)


@pytest.mark.parametrize("within", [False, True])
@on_virtual_time
async def test_the_leader_does_it_when_no_agent_with_the_role_is_left(within: bool) -> None:
    """
    At once; or, if that one died within a rewrite, when its `Busy` has lapsed.
    """
    leader = await serving()
    bucket = cast(StuckBucket, leader.world.bucket)
    other = await sealing(leader)
    if within:
        bucket.moves.clear()
    await put(leader, b"a")
    await asyncio.sleep(4 * INTERVAL_S)
    other.kill()
    bucket.moves.set()
    assert within == ((await newest(leader)).busy is not None)
    await asyncio.sleep(60)
    await put(leader, b"b")
    await asyncio.sleep(4 * INTERVAL_S)
    begun = compactions(leader)[0]
    await asyncio.sleep(200)

    assert (within, True) == (begun == 0, compactions(leader)[0] > 0)
    assert 2 == (await newest(leader)).cleaned_end
    assert leader.engine.take_edited()


@on_virtual_time
async def test_agents_with_both_roles_watch_nothing_more() -> None:
    """
    Until one without the role comes, and again when it has gone.
    """
    world = World(t=1)
    world.metadata = store = Watched(lambda: int(now_ms()))
    first = await world.start(REWRITING)
    await asyncio.sleep(60)
    watched = [store.watched.count(PARTITIONS_PREFIX)]
    second = await sealing(first, SERVE)
    await asyncio.sleep(60)
    watched.append(store.watched.count(PARTITIONS_PREFIX))
    await second.stop()
    await asyncio.sleep(60)
    watched.append(store.watched.count(PARTITIONS_PREFIX))

    assert [0, 1, 1] == watched
    assert [] == first.engine.take_edited()
