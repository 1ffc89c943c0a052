"""A running flusher asks the bucket when it should, no oftener, and believes its answers.

The pipeline's own decisions are in `test_flush`; here they meet timers, tasks and stores.
"""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import FLUSHES_PREFIX
from driftlog_metadata.schema.model import Cluster
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import MetadataStore, Put, TxnResult
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from tests.agents.log.flush_records import NEVER
from tests.agents.log.lives import (
    NOBODY,
    ONE,
    SETTINGS,
    Life,
    Request,
    World,
    now_ms,
    on_virtual_time,
)
from tests.simulation.loop import VirtualLoop
from tests.support.clusters import AUTHOR


async def named(world: World) -> list[str]:
    """The objects that flush records name, in the order of their commits."""
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    return [decode_flush_record(kv.value).object_key for kv in kvs]


async def first_put(life: Life) -> float:
    """How many ms until the bucket is asked for something."""
    began, count = now_ms(), len(life.world.bucket.puts)
    while len(life.world.bucket.puts) == count:  # noqa: ASYNC110
        await asyncio.sleep(0.0005)
    return now_ms() - began


# ── When ──


@on_virtual_time
async def test_an_idle_agent_makes_no_request_at_all() -> None:
    """
    Neither before its first batch nor when everything is committed; an hour of it costs nothing.
    """
    world = World()
    life = await world.start()
    claimed = world.bucket.requests  # the look at what the bucket has of the topic
    await asyncio.sleep(1_000)
    assert (1, 1) == (claimed, world.bucket.requests)
    assert await life.produce(b"x").answer() == "committed"
    before = world.bucket.requests

    await asyncio.sleep(1_800)

    assert (1, before) == (len(world.bucket.puts), world.bucket.requests)


@on_virtual_time
async def test_who_waits_is_not_kept_waiting_by_those_who_do_not() -> None:
    """
    acks=1 and acks=0 armed the timer for 250 ms; one request with acks=all makes it 5.
    """
    world = World()
    life = await world.start()
    life.produce(b"one", acks=ONE)
    life.produce(b"zero", acks=NOBODY)
    assert await first_put(life) == pytest.approx(250, abs=2)
    await life.committed()
    life.produce(b"one", acks=ONE)
    await asyncio.sleep(0.1)
    life.produce(b"all")

    assert await first_put(life) == pytest.approx(5, abs=2)


@on_virtual_time
async def test_a_connection_that_goes_on_sending_puts_the_early_cut_off() -> None:
    """
    Quiet is meant of every connection with acks=all data in the buffer, and of no other.
    """
    world = World()
    life = await world.start()
    first, talkative, other = (
        ConnectionActivity(now_ms()),
        ConnectionActivity(now_ms()),
        ConnectionActivity(now_ms()),
    )
    life.produce(b"a", source=first)
    life.produce(b"b", source=talkative)
    life.produce(b"c", source=other, acks=ONE)
    cut = asyncio.ensure_future(first_put(life))
    for _ in range(10):
        await asyncio.sleep(0.004)
        talkative.heard_ms = other.heard_ms = now_ms()
    assert not cut.done()
    for _ in range(5):
        await asyncio.sleep(0.004)
        other.heard_ms = now_ms()

    assert await cut == pytest.approx(45, abs=2)


@on_virtual_time
async def test_a_producer_in_lockstep_costs_20_puts_a_second_at_most() -> None:
    """
    However quick the store is: a burst of five, then the token bucket.  Size needs no token.
    """
    world = World()
    settings = replace(SETTINGS, flush=replace(SETTINGS.flush, flush_bytes=2_000))
    life = await world.start(settings)
    source, began = ConnectionActivity(), now_ms()
    while now_ms() - began < 10_000:
        source.heard_ms = now_ms()
        assert await life.produce(b"x", source=source).answer() == "committed"
    assert 190 <= len(world.bucket.puts) <= 206
    before = len(world.bucket.puts)
    for _ in range(100):
        assert await life.produce(b"x" * 2_000).answer() == "committed"

    assert len(world.bucket.puts) == before + 100
    assert now_ms() - began < 11_000


# ── Uploads that fail ──


@on_virtual_time
async def test_an_upload_is_given_up_at_its_deadline_and_tried_under_a_new_name() -> None:
    """
    After 15 s, with the same bytes; the record names the object that was stored.
    """
    world = World()
    life = await world.start()
    world.bucket.fates = [None, None]
    began = now_ms()
    request = life.produce(b"x")

    assert await request.answer() == "committed"
    assert now_ms() - began == pytest.approx(30_000, abs=300)
    first, second, third = world.bucket.puts
    assert len({first, second, third}) == 3
    assert [third] == await named(world)
    assert [(0, 0, b"x")] == await life.committed()


@on_virtual_time
async def test_an_upload_that_happened_without_an_answer_is_not_named_twice() -> None:
    """
    Both objects are in the bucket, and one is garbage; whoever starts next reads the other.
    """
    world = World()
    life = await world.start()
    world.bucket.fates = [OutcomeUnknownError("reset by peer")]
    assert await life.produce(b"x").answer() == "committed"
    lost, stored = world.bucket.puts
    assert [stored] == await named(world)
    assert await world.bucket.get(lost) == await world.bucket.get(stored)
    life.kill()

    life = await world.start()

    assert [(0, 0, b"x")] == await life.committed()


@on_virtual_time
async def test_a_store_that_refuses_is_asked_for_less_by_all_uploads_together() -> None:
    """
    Eight flushes wait: within the seconds of its refusals it is asked a few times, not eight
    times as often; when it takes them again, all are committed in their order.
    """
    world = World()
    settings = replace(SETTINGS, flush=replace(SETTINGS.flush, flush_bytes=500))
    life = await world.start(settings)
    world.bucket.fates = [UnavailableError("SlowDown") for _ in range(20)]
    began = now_ms()
    requests = [life.produce(b"%d" % n * 500) for n in range(8)]
    while world.bucket.fates:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    # The first eight are under way at once; then one at a time, with waits that double.
    assert now_ms() - began > 9_000

    assert ["committed"] * 8 == [await request.answer() for request in requests]
    assert [b"%d" % n * 500 for n in range(8)] == [value for _, _, value in await life.committed()]


@on_virtual_time
async def test_a_slow_upload_is_hedged_and_the_first_answer_wins() -> None:
    """
    At the 95th percentile of the others, under a name of its own; the loser is cancelled.
    """
    world = World()
    life = await world.start()
    for n in range(40):
        world.bucket.put_s = 0.05 if n < 4 else 0.03
        assert await life.produce(b"%d" % n).answer() == "committed"
    assert len(world.bucket.puts) == 40
    await asyncio.sleep(1)  # tokens
    world.bucket.fates = [None]
    began = now_ms()

    assert await life.produce(b"slow").answer() == "committed"

    assert now_ms() - began == pytest.approx(5 + 50 + 30, abs=5)
    slow, hedge = world.bucket.puts[40:]
    await asyncio.sleep(0)
    assert [slow] == world.bucket.given_up
    assert hedge == (await named(world))[-1]
    assert (1, 42) == (life.engine.flusher.pipeline.hedges, life.engine.flusher.pipeline.puts)
    with pytest.raises(Exception, match=slow):
        await world.bucket.get(slow)


@on_virtual_time
async def test_a_store_that_is_always_slow_sometimes_is_hedged_for_one_put_in_twenty() -> None:
    """
    Every fourth PUT hangs: the hedges that are allowed are used, the others wait.
    """
    world = World()
    settings = replace(
        SETTINGS,
        flush=replace(SETTINGS.flush, upload_deadline_ms=1_000),
        consolidation=ConsolidationSettings(age_ms=1e9, records=1_000),  # its PUTs are not counted
    )
    life = await world.start(settings)
    world.bucket.put_s = 0.05
    for n in range(400):
        if n % 4 == 3:
            world.bucket.fates = [None]
        assert await life.produce(b"%d" % n).answer() == "committed"

    pipeline = life.engine.flusher.pipeline
    assert len(world.bucket.puts) == pipeline.puts
    assert 10 <= pipeline.hedges <= pipeline.puts / 20


# ── Commits without an answer ──


class Commits:
    """A metadata store that answers some commits badly: each of *fates* once."""

    def __init__(self, store: MetadataStore, fates: list[str]) -> None:
        self._store = store
        self._fates = fates
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        commits = any(isinstance(op, Put) and op.key.startswith(FLUSHES_PREFIX) for op in then)
        self.asked += commits
        match self._fates.pop(0) if commits and self._fates else "":
            case "refused":
                raise UnavailableError("no leader")
            case "silent":
                await asyncio.Event().wait()
            case "happened":
                await self._store.txn(compares, then, otherwise)
                raise OutcomeUnknownError("request timed out")
            case "happened silently":
                await self._store.txn(compares, then, otherwise)
                await asyncio.Event().wait()
            case _:
                pass
        return await self._store.txn(compares, then, otherwise)


@pytest.mark.parametrize(
    "fates, seconds",
    [
        (["refused"], 0.1),
        (["happened"], 0.1),
        (["silent"], 2.1),
        (["happened silently"], 2.1),
        (["refused", "happened", "silent", "happened"], 3.0),
    ],
)
@on_virtual_time
async def test_a_commit_without_an_answer_is_repeated_until_it_is_known(
    fates: list[str], seconds: float
) -> None:
    """
    Whether it happened or not: one record, one answer, and the next flush follows it.
    """
    world = World()
    stores: list[Commits] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(Commits(store, list(fates)))
        return cast(MetadataStore, stores[0])

    life = await world.start(metadata=wrap)
    began = now_ms()
    first = life.produce(b"first")
    await asyncio.sleep(0.02)
    second = life.produce(b"second", partition=1)

    assert await first.answer() == "committed"
    assert now_ms() - began <= 1000 * seconds
    assert await second.answer() == "committed"
    assert world.bucket.puts == await named(world)
    assert len(fates) + 2 == stores[0].asked


# ── Whose the bucket is ──


async def guarded() -> World:
    """A cluster whose agents look at the newest cluster file."""
    world = World()
    await world.bucket.put(layout.CLUSTER_KEY, [encode_cluster(AUTHOR)])
    world.ownership = lambda: ClusterFile(world.bucket, AUTHOR.cluster_id, Grace(), now_ms)
    return world


@on_virtual_time
async def test_a_commit_waits_for_a_look_that_fails() -> None:
    """
    Its object is in the bucket, and its producer is answered when the bucket gives the file.
    """
    world = await guarded()
    life = await world.start()
    assert "committed" == await life.produce(b"a").answer()
    await asyncio.sleep(100)
    world.bucket.manifests.clear()  # reads of anything but flush objects are refused
    request = life.produce(b"b")
    await asyncio.sleep(200)
    assert 2 == len(world.bucket.puts)
    assert [] == request.told
    world.bucket.manifests.set()

    assert "committed" == await request.answer()
    assert 2 == len(world.bucket.puts)


@on_virtual_time
async def test_an_agent_that_cannot_look_is_known_to_commit_nothing() -> None:
    """
    By then it counts as one that cannot write: others take its partitions, if they can look.
    """
    world = await guarded()
    life = await world.start()
    assert "committed" == await life.produce(b"a").answer()
    await asyncio.sleep(100)
    world.bucket.manifests.clear()
    request = life.produce(b"b")
    began = now_ms()
    await asyncio.sleep(15)
    outage = life.engine.health.flushes
    assert outage.since_ms is not None
    assert began <= outage.since_ms <= began + 1_000
    assert "cluster file" in outage.error
    assert 2 == len(world.bucket.puts)
    world.bucket.manifests.set()

    assert "committed" == await request.answer()
    assert outage.since_ms is None
    assert 2 == len(world.bucket.puts)


@pytest.mark.parametrize("seconds", [165, 400])
def test_an_object_that_gets_too_old_while_its_commit_waits_is_put_again(seconds: int) -> None:
    """
    The collector may have deleted it; the session goes on, for no commit was sent.
    """

    @on_virtual_time
    async def run() -> None:
        world = await guarded()
        flush = replace(SETTINGS.flush, max_object_age_ms=150_000)
        life = await world.start(replace(SETTINGS, flush=flush))
        assert "committed" == await life.produce(b"a").answer()
        await asyncio.sleep(100)
        world.bucket.manifests.clear()
        request = life.produce(b"b")
        await asyncio.sleep(seconds)
        world.bucket.manifests.set()

        assert "committed" == await request.answer()
        assert len(world.bucket.puts) > 2
        assert world.bucket.puts[-1] == (await named(world))[-1]

    run()


@on_virtual_time
async def test_an_agent_of_a_restored_cluster_acknowledges_nothing() -> None:
    """
    Its metadata store would take the commit; the session ends, and the request fails.
    """
    world = await guarded()
    life = await world.start()
    assert "committed" == await life.produce(b"a").answer()
    await world.bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("restored"))])
    await asyncio.sleep(61)
    request = life.produce(b"b")

    assert "lost" == await request.answer()
    with pytest.raises(FencedError):
        await asyncio.wait_for(life.task, 60)
    assert 1 == len(await named(world))


@on_virtual_time
async def test_a_commit_whose_answer_is_read_after_a_suspension_is_not_acknowledged() -> None:
    """
    It was sent in time, and a restore has gone on meanwhile.
    """
    world = await guarded()
    suspended: list[float] = []

    def suspending(store: MetadataStore) -> MetadataStore:
        txn = store.txn

        async def slow(compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            result = await txn(compares, then, otherwise)
            keys = [op.key for op in then if isinstance(op, Put)]
            if suspended and any(key.startswith(FLUSHES_PREFIX) for key in keys):
                loop = cast(VirtualLoop, asyncio.get_running_loop())
                loop.now_s += suspended.pop()
            return result

        store.txn = slow  # type: ignore[method-assign]
        return store

    life = await world.start(metadata=suspending)
    assert "committed" == await life.produce(b"a").answer()
    await world.bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("restored"))])
    suspended.append(3_000.0)
    request = life.produce(b"b")

    assert "lost" == await request.answer(10_000)


@on_virtual_time
async def test_a_busy_agent_looks_twice_a_minute() -> None:
    """
    Not once a flush; an idle one does not look.
    """
    world = await guarded()
    life = await world.start(NEVER)
    assert "committed" == await life.produce(b"a").answer()
    before, puts = world.bucket.requests, len(world.bucket.puts)
    for _ in range(240):
        assert "committed" == await life.produce(b"x").answer()
        await asyncio.sleep(0.25)

    looks = world.bucket.requests - before - (len(world.bucket.puts) - puts)
    assert 2 <= looks <= 4


@on_virtual_time
async def test_producers_are_answered_before_any_of_many_fetches_is_told() -> None:
    """
    And each log has moved: an answer waits for no consumer, and no consumer sees half a flush.
    """
    world = World(t=2)
    life = await world.start()
    produced: list[Request] = []
    seen: list[list[Any]] = []
    later: list[int] = []

    class Fetch(Request):
        def committed(self, log: PartitionLog) -> None:
            life.log(0).waiting_fetches.pop(self, None)
            if not seen:
                asyncio.get_running_loop().call_soon(lambda: later.append(len(seen)))
            moved = [life.log(n).high_watermark for n in range(2)]
            seen.append([*moved, *(request.told for request in produced)])

    for _ in range(2_500):
        life.log(0).waiting_fetches[Fetch()] = None
    produced += [life.produce(b"x", partition=partition) for partition in range(2)]
    await asyncio.sleep(1)

    assert [1_000] == later
    assert [[1, 1, ["committed"], ["committed"]]] * 2_500 == seen
