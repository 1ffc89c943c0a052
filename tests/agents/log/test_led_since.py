"""A partition's key lists its leaders since the sealed end, over many starts.

On every metadata store: the agents are real, on the directory store.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_partition_state, decode_topic, encode_topic
from driftlog_metadata.schema.keys import PARTITIONS_PREFIX, partition_key, topic_key
from driftlog_metadata.schema.model import Agent, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Compare, MetadataStore, Operation, Put, TxnResult
from driftlog_metadata.transactions import session_transactions as transactions
from tests.agents.handlers.asking import create, new
from tests.agents.log.lives import takeover_of
from tests.clients.batches import good
from tests.support.clusters import in_cluster
from tests.support.engine import PATIENT, RunningAgent
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

LONGEST = 1 + 3
"""Whoever leads now, and as many finished ones as are not worth a write."""


class Counted:
    """A store that counts transactions, and loses the answers to some when told to."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.losing = False
        self.lost = 0
        self.state_writes = 0
        """Transactions that write nothing but partitions' keys."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        result = await self._store.txn(compares, then, otherwise)
        if all(isinstance(op, Put) and op.key.startswith(PARTITIONS_PREFIX) for op in then):
            self.state_writes += 1
            if self.losing and result.succeeded:
                self.lost += 1
                raise OutcomeUnknownError("a test lost the answer")
        return result


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Counted]:
    """Outlives the agents on it."""
    if request.param == "memory":
        yield Counted(cast(MetadataStore, MemoryMetadataStore(lambda: 0)))
    else:
        sqlite = await SqliteMetadataStore.open(tmp_path / "shared.db", lambda: 0)
        yield Counted(sqlite)
        await sqlite.close()


def agent_on(store: Counted, path: Path, seed: int) -> RunningAgent:
    """One start of the agent; each has session ids of its own.  Real time is not waited for: a
    start looks for a missing object that long."""
    return RunningAgent(
        path,
        engine=replace(PATIENT, read_deadline_ms=300.0),
        metadata=lambda _: cast(MetadataStore, store),
        seed=seed,
    )


async def states(store: Counted) -> dict[int, PartitionState]:
    """What the partitions' keys say, by number."""
    _, kvs = await store.get_prefix(PARTITIONS_PREFIX)
    return {int(kv.key.rpartition("/")[2]): decode_partition_state(kv.value) for kv in kvs}


async def test_an_idle_partition_does_not_remember_who_led_it(
    store: Counted, tmp_path: Path
) -> None:
    """
    However often its agent stops or loses its session, its key stays small.
    """
    longest = 0
    for start in range(12):
        async with agent_on(store, tmp_path / "agent", start) as agent:
            if start == 0:
                await create(agent, new("t", 2))
            await agent.append("t", 1, good())
            await agent.seal("t", 1)
            longest = max(
                longest, *(len(state.sessions) for state in (await states(store)).values())
            )
            await agent.lose_session()
            found = await states(store)
            longest = max(longest, *(len(state.sessions) for state in found.values()))

    assert LONGEST == longest
    assert [0, 12] == [found[0].sealed_end, found[1].sealed_end]


async def test_a_session_with_unsealed_batches_stays_in_their_list_and_no_other(
    store: Counted, tmp_path: Path
) -> None:
    """
    So that the loss of its flush object is noticed there, and costs no other partition its leader.
    """
    async with agent_on(store, tmp_path / "agent", 0) as agent:
        await create(agent, new("t", 2))
        first = agent.engine.agent.session_id
        await agent.append("t", 0, good())
    for start in range(1, 9):
        async with agent_on(store, tmp_path / "agent", start):
            pass
    found = await states(store)
    (flush,) = (tmp_path / "agent" / "bucket" / "flush").glob("*/*.flush")
    flush.unlink()
    async with agent_on(store, tmp_path / "agent", 9) as agent:
        hurt, other = agent.engine.log("t", 0), agent.engine.log("t", 1)
        led = other is not None and other.state is State.ONLINE

    assert found[0].sessions[0] == first
    assert first not in found[1].sessions
    assert all(len(state.sessions) <= LONGEST + 1 for state in found.values())
    assert hurt is None
    assert led


async def test_a_partition_that_is_given_back_does_not_remember_who_tried(
    store: Counted, tmp_path: Path
) -> None:
    """
    However often, while its object is gone; who flushed that object stays in the list.
    """
    async with agent_on(store, tmp_path / "agent", 0) as agent:
        await create(agent, new("t", 1))
        first = agent.engine.agent.session_id
        await agent.append("t", 0, good())
    (flush,) = (tmp_path / "agent" / "bucket" / "flush").glob("*/*.flush")
    flush.unlink()
    longest = 0
    for start in range(1, 8):
        async with agent_on(store, tmp_path / "agent", start) as agent:
            assert agent.engine.log("t", 0) is None
        found = (await states(store))[0].sessions
        longest = max(longest, len(found))

    assert first == found[0]
    assert longest <= LONGEST + 1


async def test_idle_partitions_are_shortened_many_in_a_transaction(
    store: Counted, tmp_path: Path
) -> None:
    """
    64 of them, at every fourth start.
    """
    writes = []
    for start in range(9):
        store.state_writes = 0
        async with agent_on(store, tmp_path / "agent", start) as agent:
            if start == 0:
                await create(agent, new("t", 200))
        writes.append(store.state_writes)

    assert [0, 0, 0, 0, 4, 0, 0, 0, 4] == writes


async def test_a_lost_answer_to_the_shortening_is_not_an_obstacle_to_sealing(
    store: Counted, tmp_path: Path
) -> None:
    """
    The key's new revision is found by reading; the next write of the key is taken.
    """
    for start in range(4):
        async with agent_on(store, tmp_path / "agent", start) as agent:
            if start == 0:
                await create(agent, new("t", 2))
    store.losing = True
    agent = agent_on(store, tmp_path / "agent", 4)

    async def answer() -> None:
        async with asyncio.timeout(30):
            while not store.lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        store.losing = False

    answering = asyncio.create_task(answer())
    async with agent:
        await answering
        after = await states(store)
        await agent.append("t", 0, good())
        sealed = await agent.seal("t", 0)

    assert 1 == store.lost
    assert [1, 1] == [len(state.sessions) for state in after.values()]
    assert 1 == sealed


async def test_sessions_that_live_stay_in_the_list(store: Counted) -> None:
    """
    Those that have released the partition and go on too: it is their end that says that no
    commit of theirs is to come.
    """
    tp = await _topic(store)
    living = [await _session(store, n) for n in range(1, 9)]
    for session in living[:-1]:
        log = await _lead(store, session)
        give_up = transactions.Release(tp, log.leader_epoch, log.leader_revision)
        assert (await session.transact(transactions.release([give_up]))).succeeded
    for session in living[:5]:
        await session.close()
    last = living[-1]
    led = await _lead(store, last)
    kv = await store.get(partition_key(tp))

    expected = tuple(session.session_id for session in living[5:])
    assert expected == led.sessions
    assert expected == decode_partition_state(kv.value).sessions
    assert kv.mod_revision == led.partition_revision


async def test_a_claim_that_comes_first_keeps_its_list(store: Counted) -> None:
    """
    What a leader wants to shorten is the list as its own claim left it; of several partitions
    all are written or none.
    """
    tp = await _topic(store)
    first, second = await _session(store, 1), await _session(store, 2)
    log = await _lead(store, first)
    stale = transactions.StateWrite(
        tp=tp,
        leader_revision=log.leader_revision,
        state_revision=log.partition_revision,
        state=PartitionState(),
    )
    give_up = transactions.Release(tp, log.leader_epoch, log.leader_revision)
    await first.transact(transactions.release([give_up]))
    await _lead(store, second)
    other = transactions.StateWrite(
        tp=TopicPartition(UUID(int=4), 0), leader_revision=0, state_revision=0, state=stale.state
    )

    assert not (await first.transact(transactions.write_states([stale]))).succeeded
    assert not (await first.transact(transactions.write_states([other, stale]))).succeeded
    found = await states(store)
    assert [(first.session_id, second.session_id)] == [state.sessions for state in found.values()]


async def _topic(store: Counted) -> TopicPartition:
    topic = Topic(name="t", topic_id=UUID(int=9, version=4), partitions=1)
    await store.txn((), (Put(topic_key("t"), encode_topic(topic)),))
    return TopicPartition(topic.topic_id, 0)


async def _lead(store: Counted, session: Session) -> PartitionLog:
    """The topic's partition, claimed."""
    kv = await store.get(topic_key("t"))
    entry = TopicEntry(decode_topic(kv.value), kv.create_revision, kv.mod_revision)
    tp = TopicPartition(entry.topic.topic_id, 0)
    takeover = takeover_of(
        session,
        MemoryObjectStore(lambda: 0),
        topics={entry.topic.topic_id: entry},
        now_ms=lambda: 0.0,
    )
    return (await takeover.take([tp], 0.0)).logs[tp]


async def _session(store: Counted, number: int) -> Session:
    session = Session(
        store=await in_cluster(cast(MetadataStore, store)),
        agent=Agent(
            node_id=number,
            session_id=f"{number:08x}{0:024x}",
            listeners=(),
            http_address="",
            rack=None,
            started_at_ms=0,
        ),
        settings=SessionSettings(),
        now_ms=lambda: 0.0,
    )
    await session.open()
    return session
