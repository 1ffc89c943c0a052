"""Claims are true although the metadata store loses answers, and nothing unclaimable is claimed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from driftlog_agents.cluster.placement import place
from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import (
    decode_leader,
    decode_topic,
    encode_leader,
    encode_partition_state,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    LEADERS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    leader_key,
    parse_leader_key,
    partition_key,
    topic_key,
)
from driftlog_metadata.schema.model import Agent, Leader, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import Delete, MetadataStore, Operation, Put, TxnResult
from tests.agents.log.lives import Life, World, now_ms, on_virtual_time, takeover_of
from tests.support.clusters import in_cluster, witnessed
from tests.support.lossy import Lossy


class LossyClaims(Lossy):
    """Claims get lost."""

    def matters(self, then: Sequence[Operation]) -> bool:
        return _claims(then)


def _claims(then: Sequence[Operation]) -> bool:
    return any(isinstance(op, Put) and op.key.startswith(LEADERS_PREFIX) for op in then)


async def leaders(world: World) -> dict[TopicPartition, tuple[Leader, int]]:
    """What the store says: leader, revision."""
    _, kvs = await world.metadata.get_prefix(LEADERS_PREFIX)
    return {parse_leader_key(kv.key): (decode_leader(kv.value), kv.mod_revision) for kv in kvs}


@pytest.mark.parametrize(
    "fates",
    [
        ["after"],
        ["after"] * 9,
        ["before", "after"],
        ["refused", "before", "refused", "after"],
        ["late"],
        ["late", "after"],
        ["late", "late", "late"],
        ["", "after", "late", "before"],
    ],
)
@on_virtual_time
async def test_a_claim_without_an_answer_is_mine_with_the_epoch_that_i_asked_for(
    fates: list[str],
) -> None:
    """
    Repeated and then read: once claimed, one epoch, and at the revision that later writes of the
    leader are guarded by; a copy that arrives late changes nothing.
    """
    world = World(t=100)
    stores: list[LossyClaims] = []

    def lossy(store: MetadataStore) -> MetadataStore:
        stores.append(LossyClaims(store, fates))
        return cast(MetadataStore, stores[-1])

    for epoch in range(2):
        life = await world.start(metadata=lossy)
        assert [] == stores[-1].fates
        assert stores[-1].asked > len(fates)
        await asyncio.sleep(5)  # what was late has come
        found = await leaders(world)
        logs = {TopicPartition(log.topic_id, log.partition): log for log in life.engine.logs()}

        assert 100 == len(logs)
        assert {
            tp: (Leader(life.session_id, epoch), log.leader_revision) for tp, log in logs.items()
        } == found
        assert await life.produce(b"%d" % epoch, partition=99).answer() == "committed"
        assert await life.seal(99) == epoch + 1
        await life.stop()
        assert {Leader(None, epoch)} == {leader for leader, _ in (await leaders(world)).values()}


@on_virtual_time
async def test_of_partitions_that_are_claimed_together_each_goes_on_where_it_ends() -> None:
    """
    Also where nobody ever led some of them: the others have records, and their offsets are not
    given again.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0", b"1", b"2").answer()
    await life.stop()
    topic = world.topics["t"]
    more = Topic(name="t", topic_id=topic.topic_id, partitions=3)
    await world.metadata.txn((), [Put(topic_key("t"), encode_topic(more))])
    wanted = [TopicPartition(topic.topic_id, n) for n in range(3)]

    taken = await (await takeover(world)).take(wanted, now_ms())

    assert set(wanted[1:]) == taken.fresh
    found = [(taken.logs[tp].log_end, taken.logs[tp].leader_epoch) for tp in wanted]
    assert [(3, 1), (0, 0), (0, 0)] == found


@on_virtual_time
async def test_what_nobody_ever_led_is_claimed_without_looking_for_records() -> None:
    """
    There are none: a topic of a thousand partitions costs no read of anybody's flush records, and
    one listing says that the bucket has nothing of it.
    """
    world = World(t=1_000)
    await seeded(world)
    read: list[str] = []

    class Reads(LossyClaims):
        async def get_prefix(self, prefix: str, *, keys_only: bool = False) -> Any:
            read.append(prefix)
            return await self._store.get_prefix(prefix, keys_only=keys_only)

    session = await opened(world, behind=lambda store: Reads(store, []))
    read.clear()
    wanted = [TopicPartition(world.topics["t"].topic_id, n) for n in range(1_000)]

    taken = await (await takeover(world, session)).take(wanted, now_ms())

    assert set(wanted) == taken.fresh == taken.logs.keys()
    assert [SESSIONS_PREFIX] == read
    assert 1 == world.bucket.requests


@on_virtual_time
async def test_a_partition_of_a_session_that_lives_is_not_taken() -> None:
    """
    It is refused, its keys stay as they are, and its neighbour, which nobody leads, is claimed.
    When the lease has ended it can be had.
    """
    world = World(t=2)
    first = await world.start()
    assert await first.produce(b"still here").answer() == "committed"
    await first.engine.handover.give_up([first.log(1)])
    before = await leaders(world)
    tp, free = (TopicPartition(world.topics["t"].topic_id, n) for n in range(2))
    session = await opened(world)

    refused = await (await takeover(world, session)).take([tp, free], now_ms())

    assert ({tp}, {free}) == (refused.refused, set(refused.logs))
    assert before[tp] == (await leaders(world))[tp]
    first.kill()
    await asyncio.sleep(10)
    taken = await (await takeover(world, session)).take([tp], now_ms())
    assert (1, 1) == (taken.logs[tp].log_end, taken.logs[tp].leader_epoch)


@on_virtual_time
async def test_a_session_that_begins_to_live_before_the_claim_is_not_robbed() -> None:
    """
    What was read before the claim is compared in it: a partition that somebody has claimed
    meanwhile is theirs, and one that was claimed by a session that is over by then is not.
    """
    world = World(t=2)
    await (await world.start()).stop()
    one, two = (TopicPartition(world.topics["t"].topic_id, n) for n in range(2))
    other, over = await opened(world), await opened(world, 8)

    class Overtaken(LossyClaims):
        async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            if _claims(then) and not self.asked:
                for tp, session in ((one, other), (two, over)):
                    claimed = encode_leader(Leader(session.session_id, 5))
                    await self._store.txn((), [Put(leader_key(tp), claimed)])
                await self._store.revoke_lease(over.lease_id)
            return await super().txn(compares, then, otherwise)

    session = await opened(world, 7, behind=lambda store: Overtaken(store, []))

    taken = await (await takeover(world, session)).take([one, two], now_ms())

    assert ({one}, {two}) == (taken.refused, set(taken.logs))
    found = await leaders(world)
    assert Leader(other.session_id, 5) == found[one][0]
    assert Leader(session.session_id, 6) == found[two][0]


@on_virtual_time
async def test_a_key_that_names_my_live_session_and_that_i_do_not_lead_is_released() -> None:
    """
    A claim that was given up, and happened after all: what is read next time is a key that is
    free, with the epoch that it had.
    """
    world = World(t=1)
    await seeded(world)
    session = await opened(world)
    tp = TopicPartition(world.topics["t"].topic_id, 0)
    stray = encode_leader(Leader(session.session_id, 3))
    state = encode_partition_state(PartitionState(sessions=(session.session_id,)))
    await world.metadata.txn((), [Put(leader_key(tp), stray), Put(partition_key(tp), state)])
    takes = await takeover(world, session)

    first = await takes.take([tp], now_ms())
    released = await leaders(world)
    second = await takes.take([tp], now_ms())

    assert ({tp}, {}) == (first.refused, first.logs)
    assert Leader(None, 3) == released[tp][0]
    assert 4 == second.logs[tp].leader_epoch


@on_virtual_time
async def test_when_a_lease_ends_others_lead_what_it_led_and_what_was_written_is_there() -> None:
    """
    Of both partitions, whoever led them.
    """
    world = World(t=2)
    first = await world.start()
    for n in range(2):
        assert await first.produce(b"still here", partition=n).answer() == "committed"
    second = await world.other_disk().start(ready=False)
    await led_by_all(world, first, second)
    first.kill()
    began = now_ms()

    await second.ready()

    assert 3_000 < now_ms() - began < 9_000
    for n in range(2):
        assert await second.produce(b"next", partition=n).answer() == "committed"
        values = [value for _, _, value in await second.committed(n)]
        assert [b"still here", b"next"] == values


@on_virtual_time
async def test_a_topic_that_is_made_is_led_by_whom_it_is_placed_on_and_then_by_others() -> None:
    """
    And what was written to it is there.
    """
    world = World(t=1)
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await led_by_all(world, first, second)
    topic = Topic(name="new", topic_id=UUID(int=99), partitions=8)
    await world.metadata.txn((), [Put(topic_key("new"), encode_topic(topic))])
    world.topics["new"] = topic
    owners = await led_by_all(world, first, second)

    order = [(t.topic_id, t.partitions) for t in world.topics.values()]
    plan = place(order, [1, 2])
    assert plan == {tp: life.world.node_id for tp, life in owners.items()}
    tp = next(tp for tp, life in owners.items() if life is first and tp.topic_id == topic.topic_id)
    early = first.produce(b"early", topic="new", partition=tp.partition)
    assert await early.answer() == "committed"
    first.kill()
    await second.ready()
    late = second.produce(b"late", topic="new", partition=tp.partition)
    assert await late.answer() == "committed"
    found = await second.committed(tp.partition, topic="new")
    assert [b"early", b"late"] == [value for _, _, value in found]


@on_virtual_time
async def test_a_topic_that_was_deleted_while_another_led_is_not_claimed() -> None:
    """
    Its keys are gone, and claiming it would make them again.
    """
    world = World(t=1, gone=1)
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await led_by_all(world, first, second)
    tp = TopicPartition(world.topics.pop("gone").topic_id, 0)
    await world.metadata.txn(
        (), [Delete(topic_key("gone")), Delete(leader_key(tp)), Delete(partition_key(tp))]
    )
    first.kill()

    await second.ready()

    assert ["t"] == [log.topic for log in second.engine.logs()]
    assert tp not in await leaders(world)


@on_virtual_time
async def test_agents_serve_although_there_is_nothing_to_lead_yet() -> None:
    """
    A topic that is made later is led by one of three, then by one of two, then by the last.
    """
    world = World()
    world.topics = {}
    lives = [await world.start()]
    for _ in range(2):
        lives.append(await lives[-1].world.other_disk().start())
    assert all(life.engine.ready.is_set() for life in lives)
    topic = Topic(name="new", topic_id=UUID(int=99), partitions=1)
    await world.metadata.txn((), [Put(topic_key("new"), encode_topic(topic))])
    world.topics["new"] = topic
    values = []
    for end in ("kill", "stop", ""):
        ((_, leader),) = (await led_by_all(world, *lives)).items()
        values.append(b"%d" % len(lives))
        assert await leader.produce(values[-1], topic="new").answer() == "committed"
        lives.remove(leader)
        if end == "kill":
            leader.kill()
        elif end == "stop":
            await leader.stop()

    found = await leader.committed(topic="new")

    assert values == [value for _, _, value in found]


@on_virtual_time
async def test_a_session_that_is_over_claims_nothing() -> None:
    """
    Its lease ended between the opening and the claim.
    """
    world = World(t=2)
    await (await world.start()).stop()
    session = await opened(world)
    takes = await takeover(world, session)
    await world.metadata.revoke_lease(session.lease_id)

    with pytest.raises(BaseExceptionGroup) as ended:
        await takes.take((await leaders(world)).keys(), now_ms())
    assert ended.value.split(FencedError)[1] is None

    assert {Leader(None, 0)} == {leader for leader, _ in (await leaders(world)).values()}


@pytest.mark.parametrize("partitions", [1, 3])
@on_virtual_time
async def test_of_a_batch_of_claims_one_that_was_overtaken_does_not_take_the_others_along(
    partitions: int,
) -> None:
    """
    Another session led one of them for a moment while the answer was on its way: it is claimed
    on what is there now, with a larger epoch, and nobody waits for that.
    """
    world = World(t=partitions)
    await (await world.start()).stop()
    tp = TopicPartition(world.topics["t"].topic_id, 0)
    began = now_ms()

    class Overtaken(LossyClaims):
        async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            if _claims(then) and not self.asked:
                await self._store.txn((), [Put(leader_key(tp), encode_leader(Leader(None, 7)))])
            return await super().txn(compares, then, otherwise)

    def overtaken(store: MetadataStore) -> MetadataStore:
        return cast(MetadataStore, Overtaken(store, []))

    life = await world.start(metadata=overtaken)

    assert [8, 1, 1][:partitions] == [log.leader_epoch for log in life.engine.logs()]
    assert now_ms() - began < 100


@on_virtual_time
async def test_of_a_batch_of_claims_one_that_became_unreadable_does_not_end_the_session() -> None:
    """
    An agent of a later version wrote it while the claim was on its way: the others are claimed.
    """
    world = World(t=3)
    await (await world.start()).stop()
    tp = TopicPartition(world.topics["t"].topic_id, 1)

    class Newer(LossyClaims):
        async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            if _claims(then) and not self.asked:
                await self._store.txn((), [Put(leader_key(tp), b'{"v":99}')])
            return await super().txn(compares, then, otherwise)

    life = await world.start(
        ready=False, metadata=lambda store: cast(MetadataStore, Newer(store, []))
    )
    await asyncio.sleep(2)

    assert not life.task.done()
    assert [0, 2] == [log.partition for log in life.engine.logs()]


async def seeded(world: World) -> World:
    """With its topics, and without an agent."""
    await (await world.start(ready=False)).stop()
    return world


async def takeover(world: World, session: Session | None = None) -> Takeover:
    """Of a session that knows the topics as they are."""
    session = session or await opened(world)
    _, kvs = await world.metadata.get_prefix(TOPICS_PREFIX)
    topics = [TopicEntry(decode_topic(kv.value), kv.create_revision, kv.mod_revision) for kv in kvs]
    return takeover_of(
        session,
        world.bucket,
        topics={entry.topic.topic_id: entry for entry in topics},
        now_ms=now_ms,
    )


async def led_by_all(world: World, *lives: Life) -> dict[TopicPartition, Life]:
    """Who leads which partition, once each is led as the metadata store says, by one of these."""
    by_id = {life.session_id: life for life in lives}
    wanted = [
        TopicPartition(topic.topic_id, n)
        for topic in world.topics.values()
        for n in range(topic.partitions)
    ]
    nodes = sorted(life.world.node_id for life in lives)
    order = [(topic.topic_id, topic.partitions) for topic in world.topics.values()]
    plan = place(order, nodes)
    async with asyncio.timeout(30):
        while True:
            found = await leaders(world)
            owners = {
                tp: by_id[entry[0].session_id]
                for tp in wanted
                if (entry := found.get(tp)) is not None and entry[0].session_id in by_id
            }
            if len(owners) == len(wanted) and all(
                life.engine.find(tp) is not None and plan[tp] == life.world.node_id
                for tp, life in owners.items()
            ):
                return owners
            await asyncio.sleep(0.01)


async def opened(
    world: World, node_id: int = 9, *, behind: Callable[[Any], LossyClaims] | None = None
) -> Session:
    """A session without an engine; *behind*: the store that answers it."""
    store = await in_cluster(world.metadata)
    if behind is not None:
        store = witnessed(cast(MetadataStore, behind(world.metadata)))
    session = Session(
        store=store,
        agent=Agent(
            node_id=node_id,
            session_id=f"{world.rng.getrandbits(128):032x}",
            listeners=(),
            http_address="",
            rack=None,
            started_at_ms=0,
        ),
        settings=SessionSettings(ttl_ms=60_000),
        now_ms=now_ms,
    )
    await session.open()
    return session
