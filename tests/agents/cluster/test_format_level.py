"""Without it a cluster writes a format that one of its live agents cannot read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from driftlog_agents.cluster.format_level import FIRST, AgentBehind, raise_level, write_level
from driftlog_metadata.schema.codec import decode_cluster, encode_cluster
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY, release_key
from driftlog_metadata.schema.model import Agent, AgentRelease, Cluster
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError
from driftlog_metadata.stores.store import MetadataStore, Operation, Put
from driftlog_metadata.transactions.session_transactions import lease_id_of, open_session
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.compaction.sealed_partition import ClusterLevelError, read_cluster
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.foundation.types import Buffer
from tests.support.lossy import Lossy
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

AT_1 = Cluster("a-cluster", 1)
ONE, TWO = "1" * 32, "2" * 32
NEW = AgentRelease("0.2.0", 2)


class World:
    """A store of a cluster at level 1, and the process that raises it."""

    def __init__(self) -> None:
        self.behind = MemoryMetadataStore(lambda: 0)
        self.store = WitnessedStore(self.behind, StoreWitness(lambda: 0.0, encode_cluster(AT_1)))

    async def begin(self) -> "World":
        """With the cluster's key."""
        await self.behind.txn((), [Put(CLUSTER_KEY, encode_cluster(AT_1))])
        return self

    async def start(self, session_id: str, node_id: int, *, says: AgentRelease | None) -> bool:
        """A session of an agent that read level 1; *says* None: of the first release."""
        agent = Agent(
            node_id=node_id,
            session_id=session_id,
            listeners=(),
            http_address="",
            rack=None,
            started_at_ms=0,
        )
        await self.behind.grant_lease(lease_id_of(session_id), 10_000)
        txn = open_session(agent, 0, encode_cluster(AT_1), says)
        then = txn.then
        if says is None:
            then = tuple(op for op in then if cast("Put", op).key != release_key(session_id))
        return (await self.behind.txn(txn.compares, then)).succeeded

    async def level(self) -> int:
        """As it is stored."""
        kv = await self.behind.get(CLUSTER_KEY)
        assert kv is not None
        return decode_cluster(kv.value).format_version


async def test_a_level_rises_when_all_live_agents_know_it() -> None:
    """
    The last agent of the old release holds it up, by its number and release; its end does not.
    """
    world = await World().begin()
    await world.start(ONE, 1, says=NEW)
    await world.start(TWO, 2, says=None)

    refused = await raise_level(world.store, 2)
    before = await world.level()
    await world.behind.revoke_lease(lease_id_of(TWO))
    looked = await raise_level(world.store, 2, validate_only=True)
    only_looked = await world.level()
    raised = await raise_level(world.store, 2)

    assert (AgentBehind(2, FIRST), 1) == (refused, before)
    assert (None, 1, None, 2) == (looked, only_looked, raised, await world.level())
    assert encode_cluster(replace(AT_1, format_version=2)) == world.store.witness.cluster
    assert await raise_level(world.store, 2) is None


async def test_an_agent_that_read_the_old_level_opens_no_session_after_the_raise() -> None:
    """
    The first release compares the cluster's key when it opens a session, after a pause as well.
    """
    world = await World().begin()
    await world.start(ONE, 1, says=NEW)

    await raise_level(world.store, 2)

    assert not await world.start(TWO, 2, says=None)


class LossyRaise(Lossy):
    """Loses writes of the cluster's key."""

    def matters(self, then: Sequence[Operation]) -> bool:
        return any(isinstance(op, Put) and op.key == CLUSTER_KEY for op in then)


async def raised_with(world: World, lossy: LossyRaise) -> AgentBehind | None:
    """The outcome of a raise to level 2 through *lossy*."""
    witness = StoreWitness(lambda: 0.0, encode_cluster(AT_1))
    return await raise_level(WitnessedStore(cast("MetadataStore", lossy), witness), 2)


async def test_an_old_agent_that_comes_during_the_raise_holds_it_up() -> None:
    """
    It is not among the agents that were read, and its session is open before the key is written.
    """
    world = await World().begin()
    await world.start(ONE, 1, says=NEW)
    lossy = LossyRaise(cast("MetadataStore", world.behind))
    lossy.meddle = lambda: world.start(TWO, 2, says=None)

    refused = await raised_with(world, lossy)

    assert (AgentBehind(2, FIRST), 1) == (refused, await world.level())


async def test_a_new_agent_that_comes_during_the_raise_delays_it() -> None:
    """
    The agents are read again.
    """
    world = await World().begin()
    lossy = LossyRaise(cast("MetadataStore", world.behind))
    lossy.meddle = lambda: world.start(TWO, 2, says=NEW)

    assert await raised_with(world, lossy) is None
    assert (2, 2) == (lossy.asked, await world.level())


@pytest.mark.parametrize("fate", ["before", "after", "refused"])
async def test_a_raise_without_an_answer_is_repeated(fate: str) -> None:
    """
    Whether it happened or not.
    """
    world = await World().begin()

    assert await raised_with(world, LossyRaise(cast("MetadataStore", world.behind), [fate])) is None
    assert 2 == await world.level()


async def test_a_raised_level_stands_in_the_buckets_next_cluster_file() -> None:
    """
    Once, with the grace and all else of the file before; else jobs refuse the cluster for ever.
    """
    objects = MemoryObjectStore(lambda: 0)
    first = bucket_files.encode_cluster(AT_1, Grace(70_000), ["older"])
    await objects.put(layout.CLUSTER_KEY, [first])
    with pytest.raises(ClusterLevelError):
        await read_cluster(objects)

    for _ in range(2):
        await write_level(objects, AT_1.cluster_id, 2)

    number, body = await newest_cluster_file(objects)
    assert (1, ("older",)) == (number, bucket_files.decode_restored_from(body))
    assert (replace(AT_1, format_version=2), Grace(70_000)) == await read_cluster(objects)
    assert first == await objects.get(layout.CLUSTER_KEY)


class Meddled(MemoryObjectStore):
    """Another change of the cluster file comes before each of the first creates, or the answer of
    one is lost."""

    faults = 2

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        self.faults -= 1
        if self.faults == 1:
            await super().create(key, [bucket_files.encode_cluster(AT_1, Grace(80_000))])
        await super().create(key, body)
        if self.faults == 0:
            raise OutcomeUnknownError("no answer")


async def test_a_level_is_written_over_a_change_of_grace_that_was_faster() -> None:
    """
    The new grace stays; a lost answer is no second file; another cluster's file is not followed.
    """
    objects = Meddled(lambda: 0)
    await objects.put(layout.CLUSTER_KEY, [bucket_files.encode_cluster(AT_1)])

    await write_level(objects, AT_1.cluster_id, 2)

    assert 2 == (await newest_cluster_file(objects))[0]
    assert (replace(AT_1, format_version=2), Grace(80_000)) == await read_cluster(objects)
    with pytest.raises(FencedError):
        await write_level(objects, "another", 2)
