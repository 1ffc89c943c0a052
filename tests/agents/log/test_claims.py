"""Claims of a running engine whose metadata store loses answers, and what may not be claimed."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest

from driftlog_agents.log.session import Session, SessionSettings
from driftlog_agents.log.takeover import Takeover
from driftlog_metadata.codec import decode_leader, encode_leader, encode_topic
from driftlog_metadata.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.keys import (
    LEADERS_PREFIX,
    leader_key,
    parse_leader_key,
    partition_key,
    topic_key,
)
from driftlog_metadata.model import Agent, Leader, Topic, TopicPartition
from driftlog_metadata.store import Compare, Delete, MetadataStore, Operation, Put, TxnResult
from tests.agents.log.lives import World, now_ms, on_virtual_time


class Lossy:
    """A store some of whose claims get lost: *fates* of the next, one after the other.

    before: on the way there.  after: it happened, and nobody heard of it.  late: it happens two
    seconds after its caller gave up.  refused: it did not happen, and that was said.
    """

    def __init__(self, store: MetadataStore, fates: Sequence[str]) -> None:
        self._store = store
        self.fates = list(fates)
        self.claims = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        claims = _claims(then)
        self.claims += claims
        fate = self.fates.pop(0) if claims and self.fates else ""
        match fate:
            case "before":
                raise OutcomeUnknownError("lost on the way")
            case "refused":
                raise UnavailableError("no quorum")
            case "after":
                await self._store.txn(compares, then, otherwise)
                await self._store.txn((), [Put("/driftlog/v1/cluster", b"{}")])  # a revision more
                raise OutcomeUnknownError("the answer was lost")
            case "late":
                loop = asyncio.get_running_loop()
                late = self._store.txn(compares, then, otherwise)
                loop.call_later(2, lambda: loop.create_task(cast(Any, late)))
                raise OutcomeUnknownError("travels")
            case _:
                pass
        return await self._store.txn(compares, then, otherwise)


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
    stores: list[Lossy] = []

    def lossy(store: MetadataStore) -> MetadataStore:
        stores.append(Lossy(store, fates))
        return cast(MetadataStore, stores[-1])

    for epoch in range(2):
        life = await world.start(metadata=lossy)
        assert [] == stores[-1].fates
        assert stores[-1].claims > len(fates)
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
async def test_a_partition_that_was_led_is_not_claimed_where_its_flush_records_are_not_read() -> (
    None
):
    """
    A topic that is told of while a session runs gives it the partitions that nobody ever led: the
    others may have records, and their offsets would be given again.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0", b"1", b"2").answer()
    await life.stop()
    topic = world.topics["t"]
    more = Topic(name="t", topic_id=topic.topic_id, partitions=3)
    await world.metadata.txn((), [Put(topic_key("t"), encode_topic(more))])
    session = await opened(world)
    takeover = Takeover(session=session, objects=world.bucket)

    logs = await takeover.topic(more)

    assert {TopicPartition(topic.topic_id, n) for n in (1, 2)} == set(logs)
    assert [0, 0] == [log.leader_epoch for log in logs.values()]
    released, _ = (await leaders(world))[TopicPartition(topic.topic_id, 0)]
    assert Leader(None, 0) == released


@on_virtual_time
async def test_what_takes_everything_over_knows_what_was_written() -> None:
    """
    The same partition through the takeover that reads its records: it goes on where it ends.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0", b"1", b"2").answer()
    await life.stop()
    session = await opened(world)

    taken = await Takeover(session=session, objects=world.bucket).everything([], now_ms())

    (log,) = taken.logs.values()
    assert (3, 1) == (log.log_end, log.leader_epoch)


@on_virtual_time
async def test_a_partition_of_a_session_that_lives_is_waited_for() -> None:
    """
    Nothing is taken from it, and nothing is forgotten: when its lease has ended, it is claimed.
    """
    world = World(t=2)
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(60)
    assert not second.engine.ready.is_set()
    assert await first.produce(b"still here").answer() == "committed"
    first.kill()
    began = now_ms()

    await second.ready()

    assert 3_000 < now_ms() - began < 9_000
    assert [1, 1] == [log.leader_epoch for log in second.engine.logs()]
    assert await second.produce(b"next").answer() == "committed"
    assert [b"still here", b"next"] == [value for _, _, value in await second.committed()]


@on_virtual_time
async def test_a_topic_that_was_made_while_another_led_is_taken_over_too() -> None:
    """
    And what was written to it: who waits for a session to end reads the topics again.
    """
    world = World(t=1)
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(5)
    topic = Topic(name="new", topic_id=UUID(int=99), partitions=1)
    made = await world.metadata.txn((), [Put(topic_key("new"), encode_topic(topic))])
    await first.engine.add_topic(topic, made.revision)
    assert await first.produce(b"early", topic="new").answer() == "committed"
    first.kill()

    await second.ready()

    assert ["new", "t"] == sorted(log.topic for log in second.engine.logs())
    assert await second.produce(b"late", topic="new").answer() == "committed"
    found = await second.committed(topic="new")
    assert [b"early", b"late"] == [value for _, _, value in found]


@on_virtual_time
async def test_a_topic_that_was_deleted_while_another_led_is_not_claimed() -> None:
    """
    Its keys are gone, and claiming it would make them again.
    """
    world = World(t=1, gone=1)
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(5)
    tp = TopicPartition(world.topics["gone"].topic_id, 0)
    await world.metadata.txn(
        (), [Delete(topic_key("gone")), Delete(leader_key(tp)), Delete(partition_key(tp))]
    )
    first.kill()

    await second.ready()

    assert ["t"] == [log.topic for log in second.engine.logs()]
    assert tp not in await leaders(world)


@on_virtual_time
async def test_who_comes_second_stands_by_although_there_is_nothing_to_lead_yet() -> None:
    """
    A topic that is made later is its leader's, and then the second's; a third waits for both.
    """
    world = World()
    world.topics = {}
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(5)
    elsewhere = world.other_disk()
    elsewhere.rng = Random(3)
    third = await elsewhere.start(ready=False)
    await asyncio.sleep(5)
    assert not second.engine.ready.is_set()
    topic = Topic(name="new", topic_id=UUID(int=99), partitions=1)
    made = await world.metadata.txn((), [Put(topic_key("new"), encode_topic(topic))])
    await first.engine.add_topic(topic, made.revision)
    assert await first.produce(b"early", topic="new").answer() == "committed"
    first.kill()

    await second.ready()
    assert await second.produce(b"late", topic="new").answer() == "committed"
    assert not third.engine.ready.is_set()
    await second.stop()
    await third.ready()
    found = await third.committed(topic="new")

    assert [b"early", b"late"] == [value for _, _, value in found]


@on_virtual_time
async def test_a_session_that_is_over_claims_nothing() -> None:
    """
    Its lease ended between the opening and the claim.
    """
    world = World(t=2)
    await (await world.start()).stop()
    session = await opened(world)
    await world.metadata.revoke_lease(session.lease_id)

    with pytest.raises(FencedError):
        await Takeover(session=session, objects=world.bucket).everything([], now_ms())

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

    class Overtaken(Lossy):
        async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            if _claims(then) and not self.claims:
                await self._store.txn((), [Put(leader_key(tp), encode_leader(Leader(None, 7)))])
            return await super().txn(compares, then, otherwise)

    def overtaken(store: MetadataStore) -> MetadataStore:
        return cast(MetadataStore, Overtaken(store, []))

    life = await world.start(metadata=overtaken)

    assert [8, 1, 1][:partitions] == [log.leader_epoch for log in life.engine.logs()]
    assert now_ms() - began < 100


async def opened(world: World) -> Session:
    """A session without an engine."""
    session = Session(
        store=world.metadata,
        agent=Agent(
            node_id=9,
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
