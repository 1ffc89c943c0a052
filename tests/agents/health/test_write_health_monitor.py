"""Partitions of an agent that cannot commit go to others, and come back with its health."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.health.write_health_monitor import WriteHealthMonitor
from driftlog_agents.health.write_probe import WriteProbe
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_metadata.schema.codec import decode_head
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import AGENTS_PREFIX, head_key, session_key
from driftlog_metadata.schema.model import Role
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.store import Get, Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import (
    SETTINGS,
    Bucket,
    Keys,
    Life,
    World,
    _offload,
    now_ms,
    on_virtual_time,
)
from tests.simulation.agent import SETTINGS as SIMULATED
from tests.support.clusters import AUTHOR


class Cut:
    """One agent's way to the bucket, which is down when it is told so."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.down = False
        self.forgets = False
        """It takes objects and does not give them back."""
        self.reads = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if self.down:
            raise UnavailableError("access denied")
        await self.bucket.put(key, body)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.down or not self.reads:
            raise UnavailableError("access denied")
        if self.forgets:
            raise NotFoundError(key)
        return await self.bucket.get(key, start, end)


class SlowToOpen:
    """A metadata store that needs seconds until a session is open, and less for each request."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        await self._store.grant_lease(lease_id, ttl_ms)
        await asyncio.sleep(0.8)

    async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> Any:
        looks = any(isinstance(op, Get) and op.key.startswith(AGENTS_PREFIX) for op in then)
        await asyncio.sleep(0.8 if looks else 0)
        return await self._store.txn(compares, then, otherwise)


class Agents:
    """Two that share partitions, of which the first one's bucket can be cut off."""

    def __init__(self) -> None:
        self.worlds = [World(t=20)]
        self.worlds.append(self.worlds[0].other_disk())
        self.cuts = [Cut(world.bucket) for world in self.worlds]
        self.cut = self.cuts[0]
        for world, cut in zip(self.worlds, self.cuts, strict=True):
            world.bucket = cast(Bucket, cut)
        self.lives: list[Life] = []
        self.watch: WriteHealthMonitor

    async def start(self, count: int = 2, settings: EngineSettings = SETTINGS) -> "Agents":
        for world in self.worlds[:count]:
            self.lives.append(await world.start(settings, ready=False))
            await self.lives[-1].engine.ready.wait()
        serving = [life for life in self.lives if Role.SERVE in life.engine.agent.roles]
        while not all(life.engine.logs() for life in serving):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        strange = ("heads/%zz", "heads/backup")
        await self.worlds[0].metadata.txn((), [Put(f"/driftlog/v1/{n}", b"x") for n in strange])
        await asyncio.sleep(5)  # what is moved between them is moved
        self.watch = self.watch_of(0)
        return self

    def watch_of(self, number: int) -> WriteHealthMonitor:
        """As each agent has one."""
        life, rng = self.lives[number], Random(3)
        return WriteHealthMonitor(
            node_id=life.world.node_id,
            metadata=life.world.metadata,
            probe=WriteProbe(
                node_id=life.world.node_id,
                objects=life.world.bucket,
                disk=life.disk,
                rng=rng,
                offload=_offload,
            ),
            view=life.cluster.view,
            rng=rng,
            now_ms=now_ms,
        )

    def produce(self, number: int) -> None:
        life = self.lives[number]
        (log, *_) = life.engine.logs()
        life.produce(b"x", partition=log.partition)

    async def watched(self, seconds: float, *, others_produce: bool) -> bool:
        """Whether the first one stepped down within *seconds*; the other's head moves meanwhile."""
        task = asyncio.create_task(self.watch.watch(self.lives[0].engine))
        self.produce(0)
        until_ms = now_ms() + seconds * 1000
        while now_ms() < until_ms and not task.done():
            if others_produce:
                self.produce(1)
            await asyncio.sleep(1)
        if task.done():
            with pytest.raises(FencedError, match="while other agents could"):
                task.result()
            with pytest.raises(FencedError):
                await self.lives[0].task
            return True
        task.cancel()
        return False

    async def session_lives(self) -> bool:
        session = self.lives[0].session_id
        return await self.worlds[1].metadata.get(session_key(session)) is not None


@on_virtual_time
async def test_an_agent_that_cannot_commit_while_others_can_gives_its_partitions_up() -> None:
    """
    After half a minute, with a line that says why; the others lead all; it comes back when it can
    write to the bucket, and not before; what it wrote to find out is garbage.
    """
    agents = await Agents().start()
    other, wanted = agents.lives[1], sum(len(life.engine.logs()) for life in agents.lives)
    agents.worlds[1].bucket.puts.clear()  # a hand-over probes as well
    agents.cut.down = True
    agents.worlds[1].bucket.puts.clear()  # a hand-over probes the bucket, too
    began_ms = now_ms()
    with capture_logs() as lines:
        assert await agents.watched(60, others_produce=True)
        took_s = (now_ms() - began_ms) / 1000
        alive = await agents.session_lives()
        await asyncio.sleep(10)
        moved = len(other.engine.logs())
        coming = asyncio.create_task(agents.watch.until_fit(asyncio.Event()))
        await asyncio.sleep(120)
        assert not coming.done()
        assert agents.watch.unfit
        agents.cut.down = False
        await asyncio.wait_for(coming, 70)
    events = [line["event"] for line in lines if str(line["event"]).startswith("agent_")]
    probes = [key for key in agents.worlds[1].bucket.puts if "/probe-1/" in key]

    assert 30 <= took_s <= 35
    assert not alive
    assert wanted == moved
    assert not agents.watch.unfit
    assert ["agent_stepped_down", "agent_resumed"] == [events[0], events[-1]]
    assert {"agent_probe_failed"} == set(events[1:-1])
    assert (
        "access denied"
        in next(line for line in lines if line["event"] == "agent_stepped_down")["error"]
    )
    assert 1 == len(probes)
    assert "probe-1" == layout.parse_flush_key(probes[0]).session_id


@on_virtual_time
async def test_an_agent_that_cannot_read_what_it_has_claimed_gives_it_up() -> None:
    """
    It has nothing to commit, for nobody writes to it; and what it took over from one that died
    is read by nobody, while other agents could, as they say: that they commit would not show it.
    """
    agents = await Agents().start()
    first, second = agents.lives
    third = await agents.worlds[1].other_disk().start(ready=False)
    await third.engine.ready.wait()
    await asyncio.sleep(5)
    agents.cut.down = True
    for log in second.engine.logs():
        second.produce(b"x", partition=log.partition)
    await asyncio.sleep(1)
    second.kill()
    agents.lives[1] = third
    began_ms = now_ms()
    watching = asyncio.create_task(agents.watch.watch(first.engine))
    answering = asyncio.create_task(agents.watch_of(1).watch(third.engine))
    with capture_logs() as lines:
        while not watching.done() and now_ms() < began_ms + 100_000:
            agents.produce(1)
            await asyncio.sleep(1)
        with pytest.raises(FencedError, match="while other agents could"):
            await asyncio.wait_for(watching, 0)
    with pytest.raises(FencedError):
        await first.task
    await asyncio.sleep(10)
    answering.cancel()
    repeated = [line for line in lines if line["event"] == "footer_read_repeated"]
    (unfit,) = [line for line in lines if line["event"] == "agent_stepped_down"]

    assert 20 == len(third.engine.logs())
    assert 1 <= len(repeated) <= 6
    assert "access denied" in unfit["error"]


@pytest.mark.parametrize("one_object", [False, True])
@on_virtual_time
async def test_an_agent_that_cannot_seal_gives_up_what_it_leads(one_object: bool) -> None:
    """
    It commits, and reads nothing that it has written: its producers would wait once it may keep no
    more.  Not where the bucket withholds one object: nobody else could read that either.
    """
    settings = replace(SETTINGS, seal=SIMULATED.seal)
    agents = await Agents().start(settings=settings)
    first = agents.lives[0]
    (log, *_) = first.engine.logs()
    first.produce(b"x" * 500, partition=log.partition)
    await asyncio.sleep(1)
    sealed = await first.seal(log.partition)
    if one_object:
        agents.cut.bucket.withheld = Keys({f"/{log.partition:05}/manifest/"})
    else:
        agents.cut.reads = False
    answering = asyncio.create_task(agents.watch_of(1).watch(agents.lives[1].engine))
    stepped_down = await agents.watched(60, others_produce=True)
    answering.cancel()

    assert sealed
    assert stepped_down != one_object


@on_virtual_time
async def test_what_others_could_in_one_outage_counts_for_no_other() -> None:
    """
    The bucket withholds one object for long, which is nobody's fault; meanwhile the agent's way to
    it is cut for less than it is given.  That others committed then says nothing of the object.
    """
    agents = await Agents().start(settings=replace(SETTINGS, seal=SIMULATED.seal))
    (log, *_) = agents.lives[0].engine.logs()
    agents.cut.bucket.withheld = Keys({f"/{log.partition:05}/manifest/"})
    loop = asyncio.get_running_loop()
    loop.call_later(35, setattr, agents.cut, "down", True)
    loop.call_later(36, agents.produce, 0)
    loop.call_later(54, setattr, agents.cut, "down", False)

    assert not await agents.watched(70, others_produce=True)

    assert agents.lives[0].engine.sealer.outage.since_ms is not None


@on_virtual_time
async def test_a_bucket_that_nobody_can_read_is_no_reason_to_step_down() -> None:
    """
    It takes what it does not give back (a key of its KMS that is gone): all commit, and who takes
    partitions over waits for their footers.  That others commit does not show that they could.
    """
    agents = await Agents().start()
    third = await agents.worlds[1].other_disk().start(ready=False)
    await third.engine.ready.wait()
    await asyncio.sleep(5)
    agents.lives.append(third)
    watches = [
        asyncio.create_task(agents.watch_of(number).watch(agents.lives[number].engine))
        for number in (0, 1)
    ]
    for log in third.engine.logs():
        third.produce(b"x", partition=log.partition)
    await asyncio.sleep(1)
    for cut in agents.cuts:
        cut.reads = False
    third.kill()
    for _ in range(100):
        agents.produce(0)
        agents.produce(1)
        await asyncio.sleep(1)

    assert all(life.engine.footers.outage.since_ms for life in agents.lives[:2])
    assert not any(task.done() for task in (*watches, *(life.task for life in agents.lives[:2])))
    for task in watches:
        task.cancel()


@on_virtual_time
async def test_others_that_nobody_writes_to_say_that_they_could_when_they_are_asked() -> None:
    """
    They find out with a probe, and only while somebody asks: an idle agent makes no request.
    """
    agents = await Agents().start()
    agents.worlds[0].bucket.puts.clear()  # a hand-over probes as well
    other = asyncio.create_task(agents.watch_of(1).watch(agents.lives[1].engine))
    agents.worlds[0].bucket.puts.clear()  # a hand-over probes the bucket, too
    await asyncio.sleep(60)
    idle = [key for key in agents.worlds[0].bucket.puts if "/probe-" in key]
    agents.cut.down = True
    began_ms = now_ms()

    assert await agents.watched(60, others_produce=False)

    assert 30 <= (now_ms() - began_ms) / 1000 <= 36
    await asyncio.sleep(60)
    probes = [key for key in agents.worlds[0].bucket.puts if "/probe-" in key]
    assert [] == idle
    assert {"probe-2"} == {layout.parse_flush_key(key).session_id for key in probes}
    assert 3 <= len(probes) <= 6
    assert not other.done()
    other.cancel()


@on_virtual_time
async def test_it_goes_on_while_others_are_asked_and_could_not_either() -> None:
    """
    The bucket is down for all of them; and who could again is no longer asked.
    """
    agents = await Agents().start()
    other = asyncio.create_task(agents.watch_of(1).watch(agents.lives[1].engine))
    for cut in agents.cuts:
        cut.down = True

    assert not await agents.watched(300, others_produce=False)

    assert await agents.session_lives()
    sessions = agents.lives[1].cluster.view.sessions
    assert sessions[agents.lives[0].session_id].said.asks
    watching = asyncio.create_task(agents.watch.watch(agents.lives[0].engine))
    for cut in agents.cuts:
        cut.down = False
    await asyncio.sleep(30)
    assert not sessions[agents.lives[0].session_id].said.asks
    assert not watching.done()
    watching.cancel()
    other.cancel()


@on_virtual_time
async def test_what_the_last_session_asked_makes_no_key_of_one_that_is_not_open_yet() -> None:
    """
    Its store is slow when it begins; had its key been made without its head, nothing of it could
    be committed.
    """
    agents = await Agents().start()
    for cut in agents.cuts:
        cut.down = True
    assert not await agents.watched(12, others_produce=False)
    agents.lives[0].kill()
    agents.worlds[0].metadata = cast(Any, SlowToOpen(agents.worlds[0].metadata))
    life = agents.lives[0] = await agents.worlds[0].start(ready=False)
    watching = asyncio.create_task(agents.watch.watch(life.engine))
    await asyncio.sleep(1.3)
    early = await agents.session_lives()
    for cut in agents.cuts:
        cut.down = False
    await life.engine.ready.wait()
    while not life.engine.logs():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    agents.produce(0)
    await asyncio.sleep(10)
    head = await agents.worlds[1].metadata.get(head_key(life.session_id))

    assert not early
    assert head is not None
    assert 1 <= decode_head(head.value)
    assert not watching.done()
    assert not life.task.done()
    watching.cancel()


@on_virtual_time
async def test_it_goes_on_while_others_do_not_answer_or_there_are_none() -> None:
    """
    A session that does not serve is no better than one that waits for its store.
    """
    idle, alone = await Agents().start(), await Agents().start(1)
    idle.cut.down = alone.cut.down = True

    assert not await idle.watched(600, others_produce=False)
    assert not await alone.watched(600, others_produce=False)
    assert await idle.session_lives()
    assert not idle.watch.unfit


@on_virtual_time
async def test_a_session_that_is_lost_on_a_broken_disk_is_not_begun_again_at_once() -> None:
    """
    It would take its partitions back, and lose them, for ever; but if there is nobody else.
    """
    agents, alone = await Agents().start(), await Agents().start(1)
    for broken in (agents, alone):
        await broken.watch.lost()
        assert not broken.watch.unfit  # the disk is well
        broken.worlds[0].platter.full = True
        await broken.watch.lost()
    unfit = (agents.watch.unfit, alone.watch.unfit)
    coming = asyncio.create_task(agents.watch.until_fit(asyncio.Event()))
    await asyncio.sleep(60)
    assert not coming.done()
    agents.worlds[0].platter.full, agents.cut.forgets = False, True
    await asyncio.sleep(120)
    assert not coming.done()  # nor can it read what it writes to the bucket
    agents.cut.forgets = False
    await asyncio.wait_for(coming, 70)

    assert (True, False) == unfit
    assert not agents.watch.unfit
    assert "probe" not in agents.worlds[0].directories


@on_virtual_time
async def test_the_only_agent_that_serves_goes_on_beside_one_that_only_seals() -> None:
    """
    Nobody else could take its partitions.
    """
    agents = Agents()
    agents.worlds[1].roles = frozenset({Role.SEAL})
    await agents.start()
    agents.worlds[0].platter.full = True
    await agents.watch.lost()

    assert not agents.watch.unfit


@on_virtual_time
async def test_a_stop_does_not_wait_for_an_agent_that_is_unfit() -> None:
    """
    SIGTERM in the middle of waiting for the next probe.
    """
    agents = await Agents().start()
    agents.worlds[0].platter.full = True
    await agents.watch.lost()
    stopping = asyncio.Event()
    coming = asyncio.create_task(agents.watch.until_fit(stopping))
    await asyncio.sleep(30)
    stopping.set()
    await asyncio.sleep(0.001)

    assert coming.done()
    assert agents.watch.unfit


@pytest.mark.parametrize("alone", [True, False])
def test_an_agent_that_cannot_look_steps_down_if_others_can(alone: bool) -> None:
    """
    The others are idle and say that they can, unless they cannot read the next cluster file either.
    """

    @on_virtual_time
    async def run() -> None:
        agents = Agents()
        await agents.worlds[0].bucket.put(layout.CLUSTER_KEY, [encode_cluster(AUTHOR)])
        for world in agents.worlds:
            world.ownership = partial(ClusterFile, world.bucket, AUTHOR.cluster_id, Grace(), now_ms)
        await agents.start()
        answering = asyncio.create_task(agents.watch_of(1).watch(agents.lives[1].engine))
        await asyncio.sleep(100)  # their looks are old
        if alone:
            agents.cut.reads = False
        else:
            await agents.cut.bucket.put(layout.cluster_key(1), [b"damaged"])

        assert alone == await agents.watched(60 if alone else 300, others_produce=False)
        answering.cancel()

    run()
