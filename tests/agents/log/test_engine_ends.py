"""However a session ends, each waiting request is answered once, and none hangs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from driftlog_agents.cluster.cluster_file import Believed
from driftlog_agents.log.ingest import flush_payload
from driftlog_agents.log.ingest.admission_verdict import parks
from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import leaders_prefix, partitions_prefix
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.store import DeletePrefix, MetadataStore
from tests.agents.log.lives import (
    ALL,
    NOBODY,
    ONE,
    SETTINGS,
    Life,
    Request,
    World,
    now_ms,
    on_virtual_time,
)
from tests.simulation.sim_disk import SimBufferFile

NARROW = replace(SETTINGS, flush=replace(SETTINGS.flush, max_uploads=1))
"""What comes during an upload stays open."""


class Silent:
    """A metadata store that stops to answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.silent = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "watch":
            return method

        async def call(*args: Any, **how: Any) -> Any:
            if self.silent:
                await asyncio.Event().wait()
            return await method(*args, **how)

        return call


async def never(_: SimBufferFile) -> None:
    """A sync of a disk that hangs."""
    await asyncio.Event().wait()


# ── Ends ──


async def revoked(life: Life) -> None:
    """Somebody ended the lease; the next keep-alive says so."""
    await life.world.metadata.revoke_lease(life.engine.session.lease_id)


async def fenced(life: Life) -> None:
    """The same, found by a commit."""
    await revoked(life)
    life.world.bucket.away = False


async def silent(life: Life) -> None:
    """The metadata store does not answer: the lease is over by our own clock."""
    cast(Silent, life.behind).silent = True


async def stopped(life: Life) -> None:
    """SIGTERM while the bucket is away: the drain is given up."""
    life.engine.stop()


async def stopped_and_revoked(life: Life) -> None:
    """And the session is lost while it drains."""
    life.engine.stop()
    await asyncio.sleep(1)
    await revoked(life)


async def cancelled(life: Life) -> None:
    """A bug elsewhere takes the whole agent down."""
    life.task.cancel()


End = Callable[[Life], Awaitable[None]]


@pytest.mark.parametrize("end", [revoked, fenced, silent, stopped, stopped_and_revoked, cancelled])
@on_virtual_time
async def test_everybody_who_waits_is_told_when_a_session_ends(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    acks=all in the open buffer and in an upload, a duplicate of each kind, acks=1 before its
    write, before and in its sync and behind a failed write, and a fetch.
    """
    world = World()
    life = await world.start(NARROW, metadata=lambda store: cast(MetadataStore, Silent(store)))
    world.bucket.away = True
    waiting: dict[str, Request] = {}
    world.platter.full = True
    waiting["acks=1, not written"] = life.produce(b"x", acks=ONE, partition=1)
    await asyncio.sleep(0)
    world.platter.full = False
    await asyncio.sleep(1)
    waiting["uploading"] = life.produce(b"a", producer=7, epoch=0, sequence=0)
    await asyncio.sleep(0.5)
    waiting["open"] = life.produce(b"b", producer=7, epoch=0, sequence=1)
    waiting["duplicate"] = life.produce(b"a", producer=7, epoch=0, sequence=0)
    monkeypatch.setattr(SimBufferFile, "sync", never)
    waiting["syncing"] = life.produce(b"c", acks=ONE)
    await asyncio.sleep(0.1)
    waiting["to be synced"] = life.produce(b"d", acks=ONE)
    duplicate = life.produce(b"b", producer=7, epoch=0, sequence=1, acks=ONE)
    waiting["acks=1 duplicate"] = duplicate
    waiting["fetch"] = Request()
    life.log().waiting_fetches[waiting["fetch"]] = None
    await asyncio.sleep(0)
    waiting["to be written"] = life.produce(b"e", acks=ONE)

    await end(life)
    with contextlib.suppress(FencedError, asyncio.CancelledError):
        async with asyncio.timeout(60):
            await life.task

    told = {who: request.told for who, request in waiting.items()}
    assert {who: ["lost"] for who in waiting} == told
    with pytest.raises(RefusedError) as refusal:
        life.produce(b"late")
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def bug(*_: Any, **__: Any) -> Any:
    """Planted."""
    raise AssertionError("a broken invariant")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(flush_payload, "lay_out"), (BufferLog, "_write"), (PartitionLog, "commit")],
    ids=["cut", "write", "commit"],
)
@on_virtual_time
async def test_a_bug_in_the_log_ends_the_session_wherever_it_is_found(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At the flush timer's cut, at the turn's write into the buffer file, at a commit: the engine
    raises it, which is not the end of a session but of the agent; who waits is told so.
    """
    world = World()
    life = await world.start()
    monkeypatch.setattr(owner, name, bug)
    request = life.produce(b"a", acks=ALL)

    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(10):
            await life.task

    assert ended.group_contains(AssertionError, match="a broken invariant")
    assert not ended.group_contains(FencedError)
    assert ["lost"] == request.told
    with pytest.raises(RefusedError):
        life.produce(b"late")


@on_virtual_time
async def test_requests_of_the_last_turn_are_told_too() -> None:
    """
    One comes in every turn of the loop until the first is refused.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    requests: list[Request] = []
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def come() -> None:
        try:
            requests.append(life.produce(b"x", acks=ONE))
        except RefusedError:
            over.set()
        else:
            loop.call_soon(come)

    loop.call_soon(come)
    life.task.cancel()
    await over.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await life.task

    assert len(requests) > 2
    assert [["lost"]] * len(requests) == [request.told for request in requests]


@on_virtual_time
async def test_who_waits_for_producers_to_be_loaded_is_told() -> None:
    """
    What was parked resumes, and is refused; who awaits the load gets the error.
    """
    world = World()
    life = await world.start()
    await life.produce(b"a", producer=7, epoch=0, sequence=0).answer()
    await life.seal()
    await life.stop()
    world.bucket.manifests.clear()
    life = await world.start()
    log = life.log()
    assert log.state is State.LOADING
    assert parks(log, 7, 0, 1, 1)
    told: list[str] = []

    def resume() -> None:
        try:
            life.produce(b"b", producer=7, epoch=0, sequence=1)
        except RefusedError as refusal:
            told.append(refusal.code.name)

    log.parked.append(resume)
    loaded = asyncio.ensure_future(life.engine.loaded(log))
    await asyncio.sleep(5)
    assert ([], False) == (told, loaded.done())

    await life.lose_session()

    with pytest.raises(UnavailableError):
        await asyncio.wait_for(loaded, 1)
    assert ["NOT_LEADER_OR_FOLLOWER"] == told


@on_virtual_time
async def test_a_batch_of_a_deleted_topic_keeps_nobody_waiting() -> None:
    """
    Its sync failed, so it waits for the commit; the session ends before that.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    request = life.produce(b"a", acks=ONE)
    await asyncio.sleep(0)
    life.engine.remove_topic(world.topics["t"].topic_id)
    assert [] == request.told  # on its way into the file
    life.disk.sync_fails = 1.0
    await asyncio.sleep(1)
    assert [] == request.told

    await life.lose_session()

    assert ["lost"] == request.told


@on_virtual_time
async def test_who_waits_for_a_deleted_topic_is_told_at_once() -> None:
    """
    Its commits go nowhere; another topic's requests wait on.
    """
    world = World(gone=1, stays=1)
    life = await world.start()
    world.bucket.away = True
    gone = life.produce(b"a", topic="gone")
    stays = life.produce(b"b", topic="stays")
    await asyncio.sleep(1)

    life.engine.remove_topic(world.topics["gone"].topic_id)

    assert (["lost"], []) == (gone.told, stays.told)
    world.bucket.away = False
    assert await stays.answer() == "committed"


@on_virtual_time
async def test_a_clean_stop_answers_before_it_leaves() -> None:
    """
    What was admitted is committed, and told so; the partitions are free and the directory gone.
    """
    world = World()
    life = await world.start()
    requests = [life.produce(b"%d" % n, acks=(-1, ONE)[n % 2]) for n in range(10)]
    life.produce(b"nobody waits", acks=NOBODY)

    await life.stop()

    assert [["committed"]] * 10 == [request.told for request in requests]
    assert ([], 1) == (world.directories, len(world.bucket.puts))


@on_virtual_time
async def test_a_stop_is_heard_while_the_session_begins() -> None:
    """
    While another session leads, and while the metadata store does not answer: seconds, not a
    supervisor's patience.
    """
    world = World()
    first = await world.start()
    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(30)
    began = now_ms()
    await second.stop()
    assert now_ms() - began < 2_000
    assert not second.engine.ready.is_set()
    await first.stop()

    class Away(Silent):
        def __init__(self, store: MetadataStore) -> None:
            super().__init__(store)
            self.silent = True

    third = await world.start(ready=False, metadata=lambda store: cast(MetadataStore, Away(store)))
    await asyncio.sleep(30)
    began = now_ms()
    await third.stop()
    assert now_ms() - began < 2_000


@on_virtual_time
async def test_leftovers_survive_a_stop_that_comes_before_they_are_appended() -> None:
    """
    The directories stay for the next start.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    await life.produce(b"promised", acks=ONE).answer()
    life.kill()
    life = await world.start(ready=False)
    await life.stop()
    assert len(world.directories) >= 1
    world.bucket.away = False

    life = await world.start()

    assert [b"promised"] == [value for _, _, value in await life.committed()]


@on_virtual_time
async def test_a_topic_that_another_agent_deletes_while_it_is_sealed_ends_no_session() -> None:
    """
    Its keys are gone before the watch of the topics says so: sealing fails, the rest goes on.
    """
    world = World(t=1, other=1)
    seal = SealSettings(segment_bytes=1_000, check_interval_ms=5)
    life = await world.start(replace(SETTINGS, seal=seal))
    assert await life.produce(b"v").answer() == "committed"
    topic_id = world.topics["t"].topic_id
    gone = (DeletePrefix(leaders_prefix(topic_id)), DeletePrefix(partitions_prefix(topic_id)))
    await world.metadata.txn((), gone)

    assert await life.produce(b"v" * 1_000).answer() == "committed"
    await asyncio.sleep(1)

    assert not life.task.done()
    assert 0 == life.log().sealed_end
    assert await life.produce(b"v", topic="other").answer() == "committed"


class Unanswered(Believed):
    """Each look at the cluster file is due, and none is answered."""

    def is_due(self) -> bool:
        return True

    async def refresh(self) -> None:
        await asyncio.Event().wait()


@on_virtual_time
async def test_a_look_at_the_cluster_file_holds_up_no_stop() -> None:
    """
    It began when a partition was claimed; the lease is revoked at once all the same.
    """
    world = World()
    world.ownership = Unanswered
    life = await world.start()
    began = now_ms()
    life.engine.stop()

    await asyncio.wait_for(life.task, 60)

    assert now_ms() - began < 5_000
