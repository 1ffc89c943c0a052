"""Leftovers that another agent's leading has left without a place: appended there, once.

Two agents on one cluster, each with its disk, on virtual time.  The first is killed with promises
on its disk alone, the second leads what it led; then the first is back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.recovery.leader_client import (
    Answer,
    EpochEndQuery,
    LocalLeaderClient,
    NamedPartition,
    PartitionLeaderClient,
)
from driftlog_agents.log.recovery.uncommitted_batches import decode_note
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import Agent, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Delete, Put
from tests.agents.log.lives import ALL, ONE, SETTINGS, Life, World, on_virtual_time
from tests.simulation.sim_disk import SimDisk

PARTITIONS = 5
BATCHES = 3
A_FLUSH_EACH = replace(SETTINGS, flush=FlushSettings(flush_bytes=1))


class Neighbour:
    """A `Leader` that is another life of the test's, over a network that takes a moment."""

    def __init__(self, cluster: "Cluster", agent: Agent) -> None:
        self._cluster = cluster
        self._agent = agent

    @property
    def node_id(self) -> int:
        return self._agent.node_id

    async def ends(self, asked: Sequence[EpochEndQuery]) -> list[Answer]:
        return await self._ask(lambda leader: leader.ends(asked))

    async def append(self, batches: Sequence[tuple[NamedPartition, bytearray]]) -> list[Answer]:
        cluster = self._cluster
        cluster.appends += 1
        await cluster.step()
        fates = [cluster.refusals.get(place.tp.partition) for place, _ in batches]
        if any(fates):
            return [
                RefusedError(f) if f else await self._one(b)
                for b, f in zip(batches, fates, strict=True)
            ]
        answers = await self._ask(lambda leader: leader.append(batches))
        await cluster.step()
        if cluster.lost_answers:
            cluster.lost_answers -= 1
            raise OutcomeUnknownError("the connection was reset")
        return answers

    async def _one(self, batch: tuple[NamedPartition, bytearray]) -> Answer:
        (answer,) = await self._ask(lambda leader: leader.append([batch]))
        return answer

    async def _ask(
        self, request: Callable[[PartitionLeaderClient], Awaitable[list[Answer]]]
    ) -> list[Answer]:
        await asyncio.sleep(0.001)
        life = self._cluster.lives.get(self._agent.session_id)
        if life is None or life.process.dead:
            raise UnavailableError("connection refused")
        answers = await request(life.engine.own_leader())
        await asyncio.sleep(0.001)
        if life.process.dead:
            raise OutcomeUnknownError("connection reset")
        return answers

    async def close(self) -> None:
        pass


class Cluster:
    """Two machines; kills the first at a step of its leftovers' way."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.here = World(t=partitions)
        self.there = self.here.other_disk()
        self.here.connect = self.there.connect = lambda agent: Neighbour(self, agent)
        self.lives: dict[str, Life] = {}
        self.partitions = partitions
        self.victim: Life | None = None
        self.steps = 0
        self.kill_at = 0
        self.power = False
        self.appends = 0
        self.lost_answers = 0
        self.refusals: dict[int, ErrorCode] = {}
        """By partition."""

    async def start(self, world: World, **options: Any) -> Life:
        life = await world.start(**options, ready=False)
        self.lives[life.session_id] = life
        await self.until(life.engine.ready.is_set)
        return life

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def leads(self, life: Life) -> int:
        return sum(log.state.value != "closed" for log in life.engine.logs())

    async def step(self) -> None:
        """The victim is about to do something, or has done it."""
        if self.dies():
            await asyncio.Event().wait()

    def dies(self) -> bool:
        self.steps += 1
        if self.steps != self.kill_at or self.victim is None:
            return False
        if self.power:
            self.victim.power_off()
        else:
            self.victim.kill()
        return True

    async def lose_the_first(self, batches: int = BATCHES) -> Life:
        """It is killed with promises on its disk alone; the second leads, and writes here and
        there."""
        first = await self.start(self.here)
        await self.until(lambda: self.leads(first) == self.partitions)
        for partition in range(self.partitions):
            await first.produce(b"%d" % partition, partition=partition, acks=ONE).answer()
        await self.until(lambda: first.engine.flusher.pipeline.idle)
        self.here.bucket.away = True
        for partition in range(self.partitions):
            first.produce(b"not promised", partition=partition, acks=ALL)
        told = [
            first.produce(b"%d.%d" % (partition, n), b"and", partition=partition, acks=ONE)
            for n in range(batches)
            for partition in range(self.partitions)
        ]
        assert {"synced"} == {await request.answer() for request in told}
        first.kill()
        self.here.bucket.away = False
        second = await self.start(self.there, settings=A_FLUSH_EACH)
        await self.until(lambda: self.leads(second) == self.partitions)
        for partition in range(0, self.partitions, 2):
            assert await second.produce(b"other", partition=partition).answer() == "committed"
        return second

    async def values(self, partition: int) -> list[bytes]:
        """What the partition has, read where it is led."""
        tp = TopicPartition(self.here.topics["t"].topic_id, partition)
        leading: list[Life] = []

        def led() -> bool:
            leading[:] = [
                life
                for life in self.lives.values()
                if not life.process.dead and life.engine.own_leader().epoch(tp) >= 0
            ]
            return bool(leading)

        await self.until(led)
        (life,) = leading
        return [value for _, _, value in await life.committed(partition)]

    def expected(self, partition: int, batches: int = BATCHES) -> list[bytes]:
        """In the log's order."""
        other = [] if partition % 2 else [b"other"]
        mine = [value for n in range(batches) for value in (b"%d.%d" % (partition, n), b"and")]
        return [b"%d" % partition, *other, *mine]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its steps are what the victim's disk is asked for, and what leaders are."""
    made = Cluster()
    watch(made, monkeypatch)
    return made


def watch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    save_note, remove_session, append = (
        SimDisk.save_note,
        SimDisk.remove_session,
        LocalLeaderClient.append,
    )

    def is_victim(disk: SimDisk) -> bool:
        return cluster.victim is not None and disk is cluster.victim.disk

    async def save(self: SimDisk, session_id: str, data: bytes) -> None:
        if is_victim(self):
            await cluster.step()
        await save_note(self, session_id, data)
        if is_victim(self):
            await cluster.step()

    async def remove(self: SimDisk, session_id: str) -> None:
        if is_victim(self):
            cluster.dies()
        await remove_session(self, session_id)
        if is_victim(self):
            cluster.dies()

    async def own(
        self: LocalLeaderClient, batches: Sequence[tuple[NamedPartition, bytearray]]
    ) -> list[Answer]:
        if cluster.victim is None or self.node_id != 1:
            return await append(self, batches)
        await cluster.step()
        answers = await append(self, batches)
        await cluster.step()
        return answers

    monkeypatch.setattr(SimDisk, "save_note", save)
    monkeypatch.setattr(SimDisk, "remove_session", remove)
    monkeypatch.setattr(LocalLeaderClient, "append", own)


def appended(logs: list[Any]) -> dict[str, int]:
    """Partition → records, by what was logged."""
    found: dict[str, int] = {}
    for entry in logs:
        if entry["event"] == "leftovers_appended_elsewhere":
            found[entry["partition"]] = found.get(entry["partition"], 0) + entry["records"]
    return found


@on_virtual_time
async def test_promises_are_appended_by_whoever_leads_now() -> None:
    """
    What is placed on the other agent and stays there, and what comes back meanwhile: each record
    once, in its order, behind what is there, and said; the directory goes.
    """
    cluster = Cluster()
    second = await cluster.lose_the_first()

    with capture_logs() as logs:
        first = await cluster.start(cluster.here)
        await cluster.until(lambda: [first.session_id] == cluster.here.directories)

    assert cluster.appends, "all was led here"
    assert {f"t-{n}": 2 * BATCHES for n in range(PARTITIONS)} == appended(logs)
    assert {entry.get("leader") for entry in logs if "to_offset" in entry} >= {2}
    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)
    assert [] == cluster.here.platter.kept
    assert cluster.leads(second) + cluster.leads(first) == PARTITIONS


@pytest.mark.parametrize(
    "kill_at, power, together",
    [(n, True, True) for n in range(1, 16)] + [(n, False, False) for n in range(1, 40)],
)
@on_virtual_time
async def test_a_kill_between_any_two_effects_costs_nothing_and_repeats_nothing(
    kill_at: int,
    power: bool,
    together: bool,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Before and after the note, each append and its answer, and the directory's end; with a batch
    to each partition in a request, or one alone.
    """
    if not together:
        monkeypatch.setattr("driftlog_agents.log.recovery.forwarder._ROUND_BYTES", 1)
    await cluster.lose_the_first()
    cluster.kill_at, cluster.power = kill_at, power
    life = await cluster.here.start(ready=False)
    cluster.lives[life.session_id] = cluster.victim = life
    await cluster.until(lambda: life.process.dead or [life.session_id] == cluster.here.directories)
    if not life.process.dead:
        assert kill_at > (12 if together else 36), "nothing happened"
    cluster.victim = None

    if life.process.dead:
        life = await cluster.start(cluster.here)
    await cluster.until(lambda: [life.session_id] == cluster.here.directories)

    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)
    assert [] == cluster.here.platter.kept


@pytest.mark.parametrize("kill_at", [20, 150, 289, 290, 291, 400])
@on_virtual_time
async def test_more_batches_than_a_dedup_window_are_there_once(
    kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A repeat from the beginning is answered although the leader has forgotten the first batches;
    what is answered wholesale is not sent batch by batch.
    """
    cluster = Cluster(1)
    watch(cluster, monkeypatch)
    await cluster.lose_the_first(batches=200)
    cluster.kill_at = kill_at
    life = await cluster.here.start(ready=False)
    cluster.lives[life.session_id] = cluster.victim = life
    await cluster.until(lambda: life.process.dead or [life.session_id] == cluster.here.directories)
    cluster.victim = None
    before = cluster.steps

    if life.process.dead:
        life = await cluster.start(cluster.here)
    await cluster.until(lambda: [life.session_id] == cluster.here.directories)

    assert cluster.expected(0, 200) == await cluster.values(0)
    if 280 < kill_at < 300:
        assert cluster.steps - before < 2 * (200 - 140 + 64) + 20


@on_virtual_time
async def test_a_leader_that_dies_in_the_middle_is_followed_by_the_next() -> None:
    """
    What it had committed stays, what it had not is appended by who leads then.
    """
    cluster = Cluster()
    second = await cluster.lose_the_first()
    first = await cluster.here.start(ready=False)
    cluster.lives[first.session_id] = first
    await cluster.until(lambda: cluster.appends >= 2)
    second.kill()
    await cluster.until(lambda: [first.session_id] == cluster.here.directories)

    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)


@on_virtual_time
async def test_answers_that_are_lost_are_asked_for_again() -> None:
    """
    The leader has the batch: the repeat is a duplicate.
    """
    cluster = Cluster()
    cluster.lost_answers = 4
    await cluster.lose_the_first()

    first = await cluster.start(cluster.here)
    await cluster.until(lambda: [first.session_id] == cluster.here.directories)

    assert 0 == cluster.lost_answers
    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)


@on_virtual_time
async def test_what_no_leader_takes_is_kept_for_a_person_and_holds_nothing_up() -> None:
    """
    The directory goes to DIR/kept with a note that names the batches; the rest is appended.
    """
    cluster = Cluster()
    await cluster.lose_the_first()
    cluster.refusals = dict.fromkeys(range(0, PARTITIONS, 2), ErrorCode.MESSAGE_TOO_LARGE)

    with capture_logs() as logs:
        first = await cluster.start(cluster.here)
        await cluster.until(lambda: [first.session_id] == cluster.here.directories)

    refused = [entry for entry in logs if entry["event"] == "leftovers_not_appended"]
    concerned = {int(entry["partition"][2:]) for entry in refused}
    assert concerned
    assert concerned <= set(cluster.refusals)
    assert BATCHES * len(concerned) == len(refused)
    assert 1 == len(cluster.here.platter.kept)
    (data,) = [d for s, d in cluster.here.platter.notes.items() if s != first.session_id]
    note = decode_note(data)
    told = {tp.partition: len(of.refused) for tp, of in note.partitions.items() if of.refused}
    assert dict.fromkeys(concerned, BATCHES) == told
    for partition in set(range(PARTITIONS)) - concerned:
        assert cluster.expected(partition) == await cluster.values(partition)


@on_virtual_time
async def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    """
    Its leader is gone, and so is who would ask for the records.
    """
    cluster = Cluster()
    second = await cluster.lose_the_first()
    cluster.refusals = dict.fromkeys(range(PARTITIONS), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    with capture_logs() as logs:
        first = await cluster.start(cluster.here)
        await asyncio.sleep(60)
        assert 2 == len(cluster.here.directories)
        assert any(entry["event"] == "leftovers_wait" for entry in logs)
        await cluster.here.delete("t")
        await cluster.until(lambda: [first.session_id] == cluster.here.directories)

    assert any(entry["event"] == "leftovers_dropped" for entry in logs)
    assert not second.process.dead


@on_virtual_time
async def test_a_leader_that_is_away_does_not_delay_the_start() -> None:
    """
    The agent serves what it leads, and says that something waits, in time and not all the time.
    """
    cluster = Cluster()
    second = await cluster.lose_the_first()
    cluster.lives.pop(second.session_id)

    with capture_logs() as logs:
        first = await cluster.start(cluster.here)
        await asyncio.sleep(200)
    waits = [entry for entry in logs if entry["event"] == "leftovers_wait"]

    assert 2 == len(cluster.here.directories)
    assert 3 <= len(waits) <= 5
    assert first.engine.ready.is_set()
    cluster.lives[second.session_id] = second
    await cluster.until(lambda: [first.session_id] == cluster.here.directories)
    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)


@on_virtual_time
async def test_ids_that_cannot_be_read_let_leftovers_wait_and_end_no_session() -> None:
    """
    The cluster's producer ids are unreadable until somebody puts them back.
    """
    cluster = Cluster()
    await cluster.lose_the_first()
    await cluster.here.metadata.txn((), [Put(PRODUCER_IDS_KEY, b"\xa5")])

    with capture_logs() as logs:
        first = await cluster.start(cluster.here)
        await asyncio.sleep(60)
    waits = [entry for entry in logs if entry["event"] == "leftovers_wait"]

    assert not first.task.done()
    assert 2 == len(cluster.here.directories)
    assert PRODUCER_IDS_KEY in waits[0]["reasons"][0]
    await cluster.here.metadata.txn((), [Delete(PRODUCER_IDS_KEY)])
    await cluster.until(lambda: [first.session_id] == cluster.here.directories)
    for partition in range(PARTITIONS):
        assert cluster.expected(partition) == await cluster.values(partition)
