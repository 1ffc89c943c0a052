"""Partitions have one leader and lose no record while agents join, leave and die under load."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.placement import place
from driftlog_agents.log.ingest.admission_verdict import parks
from driftlog_agents.log.leadership.handover_policy import LeadershipSettings
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.protocol.errors import RefusedError
from driftlog_metadata.schema.codec import (
    decode_live_session,
    encode_leader,
    encode_partition_state,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    LEADERS_PREFIX,
    SESSIONS_PREFIX,
    leader_key,
    partition_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import (
    Leader,
    LiveSession,
    PartitionState,
    SessionStage,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import MetadataStore, Operation, Put, PutEvent, TxnResult
from tests.agents.log.lives import SETTINGS, Life, World, now_ms, on_virtual_time
from tests.agents.log.test_claims import LossyClaims, leaders, led_by_all
from tests.support.lossy import Lossy

PARTITIONS = 12
TTL_MS = SETTINGS.session.ttl_ms


def partitions(world: World) -> list[TopicPartition]:
    """Of all topics."""
    return [
        TopicPartition(topic.topic_id, n)
        for topic in world.topics.values()
        for n in range(topic.partitions)
    ]


class Load:
    """An idempotent producer with acks=all for each partition, which sends one record after the
    other to whoever leads it, again when it is not answered; and what each was told."""

    def __init__(self, world: World, *lives: Life) -> None:
        self.world = world
        self.lives = list(lives)
        self.told: dict[TopicPartition, list[int]] = {tp: [] for tp in partitions(world)}
        self.longest_ms = 0.0
        """Between two answers of a partition."""
        self.without_leader = 0
        """The most partitions that nobody would have taken a record for, at a time."""
        self.stopped = False

    def leading(self, tp: TopicPartition) -> list[tuple[Life, PartitionLog]]:
        """Who would take a record, of those that live."""
        return [
            (life, log)
            for life in self.lives
            if not life.process.dead
            and life.engine.session.alive
            and (log := life.engine.find(tp)) is not None
            and log.state in (State.ONLINE, State.LOADING)
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Until the block is left; then what was sent last is answered."""
        async with asyncio.TaskGroup() as tasks:
            for n, tp in enumerate(self.told):
                tasks.create_task(self._produce(tp, n))
            watching = tasks.create_task(self._look())
            yield
            self.stopped = True
            watching.cancel()

    async def _look(self) -> None:
        while True:
            found = [len(self.leading(tp)) for tp in self.told]
            assert max(found) <= 1, "two agents lead one partition"
            self.without_leader = max(self.without_leader, found.count(0))
            await asyncio.sleep(0.003)

    async def _produce(self, tp: TopicPartition, producer: int) -> None:
        (topic,) = [t for t in self.world.topics.values() if t.topic_id == tp.topic_id]
        told, answered = self.told[tp], now_ms()
        while not self.stopped:
            for life, log in self.leading(tp):
                try:
                    await life.engine.loaded(log)
                    if life.engine.find(tp) is not log:
                        continue
                    admitted, request = life.admit(
                        b"%d" % len(told),
                        topic=topic.name,
                        partition=tp.partition,
                        producer=producer,
                        epoch=0,
                        sequence=len(told),
                    )
                except (RefusedError, UnavailableError):
                    continue
                if admitted.answered or await request.answer(30) == "committed":
                    told.append(admitted.base_offset)
                    self.longest_ms = max(self.longest_ms, now_ms() - answered)
                    answered = now_ms()
            await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Each record is there once, at the offset that was told, and nothing else is."""
        for tp, told in self.told.items():
            ((life, log),) = self.leading(tp)
            assert len(told) > 5
            found = await life.committed(tp.partition, log.topic)
            assert [(n, b"%d" % n) for n in range(len(found))] == [(o, v) for o, _, v in found]
            assert told == list(range(len(told)))
            assert len(told) == len(found)
            epochs = [epoch for _, epoch, _ in found]
            assert epochs == sorted(epochs)


async def joined(life: Life, *, seed: int = 0, **options: Any) -> Life:
    """Another agent, on a disk of its own."""
    world = life.world.other_disk()
    world.rng = Random(seed or world.node_id)
    return await world.start(ready=False, **options)


# ── Joining ──


@on_virtual_time
async def test_an_agent_that_joins_gets_its_share_while_producers_go_on() -> None:
    """
    Within two seconds each partition is led where it is placed, by one at any time; nobody
    waits for longer than that, and each record is there once.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(2)
        began = now_ms()
        second = await joined(first)
        load.lives.append(second)
        owners = await led_by_all(world, first, second)
        took = now_ms() - began
        await asyncio.sleep(2)

    assert {first, second} == set(owners.values())
    assert took < 2_000
    assert load.longest_ms < 2_000
    await load.check()
    assert {0, 1} == {leader.leader_epoch for leader, _ in (await leaders(world)).values()}


@on_virtual_time
async def test_agents_that_join_together_move_each_partition_once() -> None:
    """
    One plan is waited for: what is placed on the third does not go through the second.
    """
    world = World(t=60)
    first = await world.start()
    second = await joined(first)
    await asyncio.sleep(0.2)
    third = await joined(second)
    owners = await led_by_all(world, first, second, third)
    await asyncio.sleep(5)

    expected = {tp: 0 if life is first else 1 for tp, life in owners.items()}
    assert expected == {tp: at.leader_epoch for tp, (at, _) in (await leaders(world)).items()}


@on_virtual_time
async def test_few_partitions_are_without_a_leader_at_a_time() -> None:
    """
    The next are stopped when the receiver leads these.
    """
    world = World(t=40)
    settings = replace(SETTINGS, leadership=LeadershipSettings(group=3))
    first = await world.start(settings)
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(1)
        load.without_leader = 0
        second = await joined(first)
        load.lives.append(second)
        await led_by_all(world, first, second)
        await asyncio.sleep(1)

    assert 1 <= load.without_leader <= 3
    await load.check()


@on_virtual_time
async def test_a_receiver_that_takes_nothing_gets_only_as_much_as_it_was_given_time_for() -> None:
    """
    It cannot reach the metadata store: what was released to it stays without a leader until its
    lease ends, and no more than a group a second is.
    """
    world = World(t=40)
    settings = replace(SETTINGS, leadership=LeadershipSettings(group=2, idle_group=2))
    first = await world.start(settings)
    deaf = False

    class Deaf(LossyClaims):
        async def txn(self, *args: Any) -> TxnResult:
            if deaf:
                raise OutcomeUnknownError("no way there")
            return await super().txn(*args)

        async def keep_alive(self, lease_id: int) -> None:
            if deaf:
                raise OutcomeUnknownError("no way there")
            await self._store.keep_alive(lease_id)

    second = await joined(first, metadata=lambda store: cast(MetadataStore, Deaf(store, [])))
    await second.engine.ready.wait()
    deaf = True
    await asyncio.sleep(4)
    lost = [tp for tp in partitions(world) if first.engine.find(tp) is None]
    await asyncio.sleep(10)

    assert 2 <= len(lost) <= 10
    assert all(first.engine.find(tp) is not None for tp in partitions(world))


# ── Leaving ──


@pytest.mark.parametrize("end", ["stop", "kill"])
@on_virtual_time
async def test_what_an_agent_led_is_led_by_the_others(end: str) -> None:
    """
    Told to stop it hands over, and nobody waits for a lease; killed, when its lease has ended.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    second = await joined(first)
    third = await joined(second)
    await led_by_all(world, first, second, third)
    load = Load(world, first, second, third)
    async with load.running():
        await asyncio.sleep(2)
        began = now_ms()
        load.longest_ms = 0
        if end == "stop":
            stopping = asyncio.ensure_future(second.stop())
        else:
            second.kill()
        await led_by_all(world, first, third)
        took = now_ms() - began
        await asyncio.sleep(2)
    if end == "stop":
        await stopping
        assert took < 1_500
        assert [] == second.world.directories
        # Those of the others stayed where they were, but for what the cap let go home.
        assert load.longest_ms < 1_500
    else:
        assert TTL_MS * 0.6 < took < TTL_MS + 1_500
    load.lives.remove(second)
    await load.check()


@on_virtual_time
async def test_what_is_claimed_in_the_moment_of_leaving_is_released_too() -> None:
    """
    The attempt ends behind the decision to leave: the agent ends in order, and the partition needs
    no lease to end.
    """
    world = World(t=1)
    life = await world.start()
    gate, there = asyncio.Event(), asyncio.Event()
    take = life.engine.takeover.take

    async def held(*args: Any) -> Any:
        taken = await take(*args)
        there.set()
        await gate.wait()
        return taken

    life.engine.takeover.take = held  # type: ignore[assignment,method-assign]
    topic = Topic(name="u", topic_id=UUID(int=50), partitions=1)
    await world.metadata.txn((), [Put(topic_key(topic.name), encode_topic(topic))])
    await there.wait()
    life.engine.stop()
    gate.set()
    await life.task

    assert {None} == {leader.session_id for leader, _ in (await leaders(world)).values()}
    assert 2 == len(await leaders(world))
    assert [] == world.directories


@on_virtual_time
async def test_a_partition_that_comes_back_has_what_was_written_before_and_meanwhile() -> None:
    """
    Of the same session that led it before: its own records are read like another's.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(1)
        for seed in (11, 12, 13):
            second = await joined(first, seed=seed)
            load.lives.append(second)
            await led_by_all(world, first, second)
            await asyncio.sleep(1)
            await second.stop()
            load.lives.remove(second)
            await led_by_all(world, first)
        await asyncio.sleep(1)

    await load.check()
    epochs = {at.leader_epoch for at, _ in (await leaders(world)).values()}
    assert {0, 6} == epochs


@on_virtual_time
async def test_sealing_goes_on_while_partitions_move() -> None:
    """
    A segment of what is being handed over is nobody's session lost, and is taken or made again.
    """
    seal = SealSettings(segment_bytes=1_000, check_interval_ms=5)
    settings = replace(SETTINGS, seal=seal)
    world = World(t=PARTITIONS)
    first = await world.start(settings)
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(3)
        for seed in (11, 12, 13, 14):
            second = await joined(first, seed=seed, settings=settings)
            load.lives.append(second)
            await led_by_all(world, first, second)
            await asyncio.sleep(1)
            await second.stop()
            load.lives.remove(second)
            await led_by_all(world, first)
        await asyncio.sleep(1)

    for tp, told in load.told.items():
        log = first.log(tp.partition)
        assert list(range(len(told))) == told
        assert len(told) == log.high_watermark
        assert 0 < log.sealed_end
    assert not first.task.done()


# ── One hand-over ──


@on_virtual_time
async def test_what_was_admitted_is_committed_before_it_is_released_and_nothing_more_is() -> None:
    """
    While a flush is on its way: batches wait, a fetch goes on, the leader key stays, and the
    producer is answered before it changes; then the fetch and what waited are told.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    plan = _plan_of_two(world)
    moving, stays = plan.index(2), plan.index(1)
    world.bucket.away = True
    asked = first.produce(b"on its way", partition=moving)
    fetch = _Fetch()
    log = first.log(moving)
    log.waiting_fetches[fetch] = None
    giving = asyncio.create_task(first.engine.handover.give_up([log]))
    await asyncio.sleep(0.1)
    late = asyncio.create_task(first.engine.admits(log))
    second = await joined(first)
    await second.engine.ready.wait()
    await asyncio.sleep(0.5)
    tp = TopicPartition(world.topics["t"].topic_id, moving)

    assert [] == fetch.told
    assert parks(log, -1, -1, -1, 1)
    assert not late.done()
    assert [] == asked.told
    assert Leader(first.session_id, 0) == (await leaders(world))[tp][0]
    assert second.engine.find(tp) is None
    other = first.produce(b"neighbour", partition=stays)
    world.bucket.away = False
    while (await leaders(world))[tp][0].session_id == first.session_id:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert ["committed"] == asked.told
    await giving
    assert "lost" == fetch.told[-1]
    with pytest.raises(UnavailableError):
        await late
    assert first.engine.find(tp) is None
    await led_by_all(world, first, second)
    assert await other.answer() == "committed"
    assert await second.produce(b"next", partition=moving).answer() == "committed"
    found = await second.committed(moving)
    assert [(0, 0, b"on its way"), (1, 1, b"next")] == found


class _Fetch:
    """One that waits for records."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def committed(self, log: PartitionLog) -> None:
        self.told.append("committed")

    def unsynced(self, log: PartitionLog) -> None:
        raise AssertionError

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError

    def lost(self, log: PartitionLog) -> None:
        self.told.append("lost")


def _plan_of_two(world: World) -> list[int]:
    """Node id by partition, once a second agent is there."""
    order = [(topic.topic_id, topic.partitions) for topic in world.topics.values()]
    return list(place(order, [1, 2]).values())


class LossyReleases(Lossy):
    """Releases get lost."""

    def matters(self, then: Sequence[Operation]) -> bool:
        puts = [op for op in then if isinstance(op, Put)]
        return bool(puts) and all(
            op.key.startswith(LEADERS_PREFIX) and b"null" in op.value for op in puts
        )


FATES = [["after"], ["before", "after"], ["late"], ["late", "late", "after"], ["refused", "late"]]


@pytest.mark.parametrize("fates", FATES)
@on_virtual_time
async def test_a_release_without_an_answer_is_repeated_and_a_late_copy_does_nothing(
    fates: list[str],
) -> None:
    """
    The receiver has claimed and written by the time that it comes.
    """
    world = World(t=PARTITIONS)
    stores: list[LossyReleases] = []

    def losing(store: MetadataStore) -> MetadataStore:
        stores.append(LossyReleases(store, fates))
        return cast(MetadataStore, stores[-1])

    first = await world.start(metadata=losing)
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(1)
        second = await joined(first)
        load.lives.append(second)
        await led_by_all(world, first, second)
        await asyncio.sleep(5)

    assert [] == stores[0].fates
    await load.check()
    assert {0, 1} == {leader.leader_epoch for leader, _ in (await leaders(world)).values()}
    assert not first.task.done()


@on_virtual_time
async def test_a_partition_that_two_tasks_give_up_is_released_once() -> None:
    """
    The release of one is answered, and the partition claimed again, before the other's is: what is
    led then stays so, in the metadata store, too.
    """
    world = World(t=1)
    stores: list[LossyReleases] = []

    def losing(store: MetadataStore) -> MetadataStore:
        stores.append(LossyReleases(store, ["", "before", "before", "before"]))
        return cast(MetadataStore, stores[-1])

    life = await world.start(metadata=losing)
    log = life.log()
    give_up = life.engine.handover.give_up
    await asyncio.gather(give_up([log]), give_up([log]))
    await asyncio.sleep(5)

    again = life.log()
    ((leader, revision),) = (await leaders(world)).values()
    assert again is not log
    assert (Leader(life.session_id, 1), again.leader_revision) == (leader, revision)
    assert await life.produce(b"v").answer() == "committed"


@pytest.mark.parametrize("fates", FATES)
@on_virtual_time
async def test_a_claim_without_an_answer_is_found_to_be_mine_and_the_session_goes_on(
    fates: list[str],
) -> None:
    """
    Of what was released to it: with the epoch that it asked for, once.
    """
    world = World(t=PARTITIONS)
    stores: list[LossyClaims] = []

    def lossy(store: MetadataStore) -> MetadataStore:
        stores.append(LossyClaims(store, fates))
        return cast(MetadataStore, stores[-1])

    first = await world.start()
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(1)
        second = await joined(first, metadata=lossy)
        load.lives.append(second)
        await led_by_all(world, first, second)
        await asyncio.sleep(5)

    assert [] == stores[0].fates
    await load.check()
    assert {0, 1} == {leader.leader_epoch for leader, _ in (await leaders(world)).values()}
    assert not second.task.done()


@on_virtual_time
async def test_a_stray_key_that_names_my_live_session_is_released_and_claimed() -> None:
    """
    Nothing was written in it, and nobody else may take it: who it names puts it right.
    """
    world = World(t=1)
    life = await world.start()
    topic = Topic(name="stray", topic_id=UUID(int=50), partitions=1)
    tp = TopicPartition(topic.topic_id, 0)
    stray = encode_leader(Leader(life.session_id, 4))
    state = encode_partition_state(PartitionState(sessions=(life.session_id,)))
    await world.metadata.txn(
        (),
        [
            Put(leader_key(tp), stray),
            Put(partition_key(tp), state),
            Put(topic_key("stray"), encode_topic(topic)),
        ],
    )
    world.topics["stray"] = topic

    await led_by_all(world, life)

    assert Leader(life.session_id, 5) == (await leaders(world))[tp][0]
    assert await life.produce(b"here", topic="stray").answer() == "committed"


@pytest.mark.parametrize("key", [leader_key, partition_key])
@on_virtual_time
async def test_a_partition_whose_key_cannot_be_read_waits_and_is_told_of_once(
    key: Callable[[TopicPartition], str],
) -> None:
    """
    The others are led meanwhile; when the key is what it was, it is led too.
    """
    world = World(t=3)
    hurt = TopicPartition(world.topics["t"].topic_id, 1)
    await (await world.start()).stop()
    kv = await world.metadata.get(key(hurt))
    assert kv is not None
    await world.metadata.txn((), [Put(key(hurt), b"?")])
    with capture_logs() as lines:
        life = await world.start(ready=False)
        await asyncio.sleep(20)
    led = [log.partition for log in life.engine.logs()]
    await world.metadata.txn((), [Put(key(hurt), kv.value)])
    await life.ready()

    assert [0, 2] == led
    assert 1 == sum(line["event"] == "partition_not_claimed" for line in lines)
    assert await life.produce(b"here", partition=1).answer() == "committed"


@on_virtual_time
async def test_while_nothing_can_be_committed_nothing_is_stopped() -> None:
    """
    Who would get it may not do better, and it could not be released. It moves when it can.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    world.bucket.away = True
    waiting = [first.produce(b"waits", partition=n) for n in range(PARTITIONS)]
    async with asyncio.timeout(60):
        while first.engine.flusher.outage.since_ms is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    second = await joined(first)
    await asyncio.sleep(20)
    states = {log.state for log in first.engine.logs()}
    world.bucket.away = False
    owners = await led_by_all(world, first, second)

    assert {State.ONLINE} == states
    assert {first, second} == set(owners.values())
    assert ["committed"] * PARTITIONS == [await request.answer() for request in waiting]


# ── What is said ──


async def said(world: World, life: Life) -> LiveSession | None:
    kv = await world.metadata.get(session_key(life.session_id))
    return None if kv is None else decode_live_session(kv.value)


@on_virtual_time
async def test_a_session_says_how_far_it_is_and_which_topics_it_has_seen() -> None:
    """
    Before it leads anything; when it serves; when it leaves, and while others read what they
    will need; each keeps the create revision, which is the fence.
    """
    world = World(t=PARTITIONS)
    first = await world.start()
    stages: list[SessionStage | None] = []
    second = await joined(first)

    async def look() -> None:
        async for events in world.metadata.watch(session_key(second.session_id), 1):
            for event in events:
                stage = None
                if isinstance(event, PutEvent):
                    stage = decode_live_session(event.kv.value).stage
                if stages[-1:] != [stage]:
                    stages.append(stage)

    looking = asyncio.ensure_future(look())
    await led_by_all(world, first, second)
    made = await world.metadata.txn(
        (),
        [Put(topic_key("u"), encode_topic(Topic(name="u", topic_id=UUID(int=50), partitions=1)))],
    )
    await asyncio.sleep(1)
    revisions = [await said(world, life) for life in (first, second)]
    kv = await world.metadata.get(session_key(second.session_id))
    await second.stop()
    await asyncio.sleep(0.1)
    looking.cancel()

    assert [SessionStage.STARTING, SessionStage.SERVING, SessionStage.LEAVING, None] == stages
    assert [made.revision] * 2 == [now.topics_revision for now in revisions if now is not None]
    assert kv is not None
    assert kv.create_revision == second.engine.session.revision
    assert first.cluster.view.seen_by_all(made.revision)


@pytest.mark.parametrize("fates", FATES)
@on_virtual_time
async def test_what_a_session_said_without_an_answer_is_said_again_until_the_key_says_so(
    fates: list[str],
) -> None:
    """
    And what it says next is said as well.
    """

    class Unheard(Lossy):
        """What a session says of itself gets lost."""

        def matters(self, then: Sequence[Operation]) -> bool:
            (put,) = then if len(then) == 1 else (None,)
            return isinstance(put, Put) and put.key.startswith(SESSIONS_PREFIX)

    world = World(t=PARTITIONS)
    first = await world.start()
    stores: list[Unheard] = []

    def unheard(store: MetadataStore) -> MetadataStore:
        stores.append(Unheard(store, fates))
        return cast(MetadataStore, stores[-1])

    second = await joined(first, metadata=unheard)
    await led_by_all(world, first, second)
    for n in range(3):
        topic = Topic(name=f"u{n}", topic_id=UUID(int=50 + n), partitions=1)
        made = await world.metadata.txn((), [Put(topic_key(topic.name), encode_topic(topic))])
        await asyncio.sleep(3)
        now = await said(world, second)
        assert now == LiveSession(
            node_id=2, stage=SessionStage.SERVING, topics_revision=made.revision
        )

    assert [] == stores[0].fates
    assert not second.task.done()


@on_virtual_time
async def test_who_is_alone_writes_nothing_because_topics_change() -> None:
    """
    Nobody waits for it: a thousand topics are not a thousand writes more.
    """
    world = World(t=2)
    life = await world.start()
    before = await said(world, life)
    for n in range(5):
        topic = Topic(name=f"u{n}", topic_id=UUID(int=50 + n), partitions=1)
        await world.metadata.txn((), [Put(topic_key(topic.name), encode_topic(topic))])
        await asyncio.sleep(0.5)

    assert before == await said(world, life)


async def three_with_records() -> tuple[
    World, tuple[Life, Life, Life], dict[TopicPartition, Life], Load
]:
    """Three agents, who leads which of eight partitions, and who has written to all of them."""
    world = World(t=4, u=4)
    first = await world.start()
    second = await joined(first)
    third = await joined(second)
    owners = await led_by_all(world, first, second, third)
    load = Load(world, first, second, third)
    async with load.running():
        await asyncio.sleep(2)
    return world, (first, second, third), owners, load


@on_virtual_time
async def test_an_object_that_the_bucket_does_not_give_costs_only_what_needs_it() -> None:
    """
    What its session led is given back and tried again; the agent goes on with the rest, however
    long it lasts, and when the object is given nothing is missing.
    """
    world, (first, second, third), owners, load = await three_with_records()
    lost = [tp for tp, life in owners.items() if life is first]
    assert lost
    world.bucket.withheld = {next(key for key in world.bucket.puts if first.session_id in key)}

    with capture_logs() as lines:
        first.kill()
        await asyncio.sleep(150)  # the lease, a minute between two lines, and one between two looks
        load.lives = [second, third]
        held = [tp for tp in lost if load.leading(tp)]
        assert all(load.leading(tp) for tp in owners if tp not in lost)
    events = [line["event"] for line in lines]
    told = [line for line in lines if line["event"] == "partitions_unreadable"]

    assert [] == held
    assert 2 <= len(told) <= 8
    assert all(line["partitions"] <= len(lost) for line in told)
    assert "no read quorum" in told[0]["error"]
    assert not {"session_lost", "agent_stepped_down"} & set(events)
    assert not any(life.task.done() for life in (second, third))

    world.bucket.withheld = set()
    await led_by_all(world, second, third)
    async with load.running():
        load.stopped = False
        await asyncio.sleep(2)
    await load.check()


@on_virtual_time
async def test_a_takeover_that_waits_for_an_object_does_not_hold_up_the_next() -> None:
    """
    One agent ends and an object of its session is not given; then another one ends.
    """
    world, (first, second, third), owners, load = await three_with_records()
    world.bucket.withheld = {next(key for key in world.bucket.puts if first.session_id in key)}
    lost = [tp for tp, life in owners.items() if life is second]
    for log in second.engine.logs():
        await second.seal(log.partition, log.topic)  # they were the first one's, and need nothing

    first.kill()
    await asyncio.sleep(SETTINGS.session.ttl_ms / 1000 + 1)
    second.kill()
    await asyncio.sleep(SETTINGS.session.ttl_ms / 1000 + 2)
    load.lives = [third]

    assert lost
    assert all(load.leading(tp) for tp in lost)
    assert not all(load.leading(tp) for tp in owners)


@on_virtual_time
async def test_a_start_on_its_own_disk_without_an_object_goes_on_when_it_is_given() -> None:
    """
    What needs it has no leader meanwhile, and is not offline until the next start of the agent.  No
    other session leads it, so its acks=1 records are appended.
    """
    world = World(t=2)
    first = await world.start()
    assert "committed" == await first.produce(b"0").answer()
    held = first.produce(b"1", acks=1)
    await held.answer()
    first.kill()
    world.bucket.withheld = {world.bucket.puts[0]}
    with capture_logs() as lines:
        second = await world.start(ready=False)
        await asyncio.sleep(100)
        states = [log.state for log in second.engine.logs()]
        world.bucket.withheld = set()
        await asyncio.sleep(120)
    events = [line["event"] for line in lines]

    assert State.OFFLINE not in states
    assert "partition_offline" not in events
    assert 2 == len([log for log in second.engine.logs() if log.state is State.ONLINE])
    assert [b"0", b"1"] == [value for _, _, value in await second.committed(0)]
    assert [] == world.set_aside(0)
