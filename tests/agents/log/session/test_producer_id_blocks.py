"""A producer id that the log has is never given out again, even if the metadata store has forgotten
it.
"""

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.producer_id_ranges import BLOCK_SIZE
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import decode_producer_id_block, encode_producer_id_block
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import ProducerIdBlock
from driftlog_metadata.stores.store import KeyValue, Put, TxnResult
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.batches.producers import ProducerStates
from tests.agents.log.lives import Keys, Life, World, now_ms, on_virtual_time
from tests.support.memory_store import MemoryMetadataStore

SKIPPED = 2**32
INCREDIBLE = 2**50
INT64_MAX = 2**63 - 1


class FakeSession:
    """Reads and transactions on a store, counted."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(lambda: 0)
        self.reads = 0

    async def read(self, key: str) -> KeyValue | None:
        self.reads += 1
        await asyncio.sleep(0)
        return await self.store.get(key)

    async def transact(self, txn: Txn) -> TxnResult:
        await asyncio.sleep(0)
        return await self.store.txn(txn.compares, txn.then, txn.otherwise)


async def put_end(store: MemoryMetadataStore, end: int) -> None:
    """The store has given out all below *end*."""
    block = ProducerIdBlock(first_producer_id=0, size=end, node_id=1)
    await store.txn((), [Put(PRODUCER_IDS_KEY, encode_producer_id_block(block))])


def end_of(store: MemoryMetadataStore) -> int:
    """Where the next block begins."""
    kvs = store.snapshot(PRODUCER_IDS_KEY)
    if not kvs:
        return 0
    block = decode_producer_id_block(kvs[0].value)
    return block.first_producer_id + block.size


def floor_of(session: FakeSession) -> ProducerIdFloor:
    return ProducerIdFloor(cast(Session, session), 1)


def snapshot(*producer_ids: int) -> ProducerStates:
    states = ProducerStates()
    for offset, producer_id in enumerate(producer_ids):
        states.append(producer_id, 0, 0, 1, offset, 1.0)
    return states


def ids_of(life: Life) -> ProducerIds:
    """As an agent has them."""

    def led() -> Any:
        assert life.engine.ready.is_set()
        return life.engine

    agent = SimpleNamespace(session_id=life.engine.agent.session_id)
    return ProducerIds(cast(Broker, SimpleNamespace(agent=agent, node_id=1, led=led)))


# ── What is credible ──


@pytest.mark.parametrize("incredible", [INCREDIBLE, INT64_MAX])
@pytest.mark.parametrize("in_snapshot", [False, True])
@on_virtual_time
async def test_an_incredible_id_hides_no_credible_one(incredible: int, in_snapshot: bool) -> None:
    """
    A client makes it up; the ids that a lost store gave out stand beside it.
    """
    session = FakeSession()
    floor = floor_of(session)
    if in_snapshot:
        await floor.saw_states(snapshot(7, incredible, 5_000, 3))
    else:
        for producer_id in (7, incredible, 5_000, 3):
            floor.seen.saw(producer_id)
    await floor.settle()

    assert 5_000 + SKIPPED <= end_of(session.store) < 2**40


@on_virtual_time
async def test_incredible_ids_cost_no_read_for_each_partition() -> None:
    """
    What is known of the store's end says enough of them.
    """
    session = FakeSession()
    floor = floor_of(session)
    for n in range(100):
        await floor.saw_states(snapshot(n, INCREDIBLE + n))
        await floor.settle()
    raised = end_of(session.store)
    reads = session.reads
    floor.seen.saw(INT64_MAX)
    await floor.settle()

    assert 0 == session.reads - reads
    assert reads <= 3
    assert raised == end_of(session.store) < 2**40


@on_virtual_time
async def test_loads_at_once_share_one_read() -> None:
    """
    The store is behind all that they saw.
    """
    session = FakeSession()
    await put_end(session.store, 10**6)
    floor = floor_of(session)
    await floor.saw_states(snapshot(*range(0, 10**6, 10**4)))
    await asyncio.gather(*(floor.settle() for _ in range(32)))

    assert (1, 10**6) == (session.reads, end_of(session.store))


@on_virtual_time
async def test_what_a_raise_makes_credible_is_raised_above_too() -> None:
    """
    A lost store had been raised twice.
    """
    session = FakeSession()
    floor = floor_of(session)
    far = 2**40 + 2**39
    for producer_id in (far + 2**40, far, 2**40 - 1, INT64_MAX):
        floor.seen.saw(producer_id)
    await floor.settle()

    assert far + 2**40 + SKIPPED <= end_of(session.store) < 2**43
    assert 1 == floor.raised


async def test_the_ids_of_a_large_snapshot_are_noted_in_slices() -> None:
    """
    Other tasks run meanwhile: the lease is renewed, requests are answered.
    """
    clock = itertools.count(0.0, SLICE_S / 100)
    measure_by(asyncio.get_running_loop(), lambda: next(clock))
    floor = floor_of(FakeSession())
    noting = asyncio.create_task(floor.saw_states(snapshot(*range(5_000))))
    turns = 0
    while not noting.done():
        turns += 1
        await asyncio.sleep(0)

    assert turns >= 40
    assert not floor.settled


# ── What is held, and when a block is taken ──


@on_virtual_time
async def test_a_block_from_before_the_store_was_raised_is_not_used() -> None:
    """
    A partition that is opened late shows that the store went back.
    """
    world = World(t=1)
    life = await world.start()
    ids = ids_of(life)
    first = await ids.next()
    life.engine.producer_ids.seen.saw(first + 100)
    life.engine.producer_ids.seen.saw(first + 5 * BLOCK_SIZE)
    given = await ids.next()

    assert first + 5 * BLOCK_SIZE < given
    assert given + 1 == await ids.next()


@on_virtual_time
async def test_ids_that_others_were_given_take_no_block_away() -> None:
    """
    The store has given them out: it did not go back.
    """
    world = World(t=1)
    life = await world.start()
    ids = ids_of(life)
    first = await ids.next()
    await put_end(world.metadata, 10 * BLOCK_SIZE)
    life.engine.producer_ids.seen.saw(5 * BLOCK_SIZE)

    assert first + 1 == await ids.next()


@pytest.mark.parametrize("readable", [True, False])
@on_virtual_time
async def test_a_manifest_that_is_ahead_raises_the_store_before_any_id_is_given(
    readable: bool,
) -> None:
    """
    Whether the producer snapshot that it names can be read or not.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"before").answer()
    await life.stop()
    backup = MemoryMetadataStore(lambda: 0)
    for kv in world.metadata.snapshot():
        if not kv.lease_id:
            await backup.txn((), [Put(kv.key, kv.value)])
    life = await world.start()
    await life.produce(b"after", producer=5_000, epoch=0, sequence=0).answer()
    await life.seal()
    await life.stop()
    if not readable:
        world.bucket.damage("/producers/")
    world.metadata = backup

    life = await world.start(ready=False)
    await life.engine.ready.wait()
    ids = ids_of(life)
    given = await patiently(ids)

    assert SKIPPED <= given
    assert 5_000 < given


async def patiently(ids: ProducerIds, seconds: float = 30) -> int:
    """The next id, as a client gets it."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(RefusedError):
                return await ids.next()
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("seconds", [3, 1_000])
@on_virtual_time
async def test_what_cannot_be_read_at_first_delays_the_first_block(seconds: int) -> None:
    """
    Its producers may have ids that the store does not know; for ten seconds, and not for ever.
    """
    world = World(t=2)
    life = await world.start()
    await life.produce(b"0", producer=5_000, epoch=0, sequence=0).answer()
    await life.seal()
    await life.stop()
    await put_end(world.metadata, 1_000)
    world.bucket.withheld = Keys({"/producers/"})
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    ids = ids_of(life)
    start_s = asyncio.get_running_loop().time()
    asked = asyncio.create_task(patiently(ids, 100))
    await asyncio.sleep(seconds if seconds < 10 else 0)
    if seconds < 10:
        world.bucket.withheld = set()
    given = await asked
    took_s = asyncio.get_running_loop().time() - start_s

    assert took_s <= 11
    if seconds < 10:
        assert 5_000 < given
    else:
        assert took_s >= 9


# ── What the bucket knows of blocks ──


async def backup_of(world: World) -> MemoryMetadataStore:
    """What the metadata store says now, but for what is on leases."""
    copy = MemoryMetadataStore(lambda: int(now_ms()))
    for kv in world.metadata.snapshot():
        if not kv.lease_id:
            await copy.txn((), [Put(kv.key, kv.value)])
    return copy


@on_virtual_time
async def test_ids_that_no_log_shows_are_not_given_out_again_by_an_older_store() -> None:
    """
    Neither ids of a block nor ids of the next store's blocks, however often a backup is put back.
    """
    world = World(t=1)
    life = await world.start()
    given = [await patiently(ids_of(life))]
    await life.stop()
    backups = [await backup_of(world) for _ in range(3)]
    for backup in backups:
        life = await world.start()
        given += [await patiently(ids_of(life)) for _ in range(3)]
        await life.stop()
        world.metadata = backup

    assert sorted(set(given)) == sorted(given)


@on_virtual_time
async def test_a_block_whose_object_was_not_answered_for_is_nobodys() -> None:
    """
    Its ids may be another agent's by an older store; the client asks again.
    """
    world = World(t=1)
    life = await world.start()
    ids = ids_of(life)
    world.bucket.lost_creates = 1
    with pytest.raises(RefusedError) as refused:
        await ids.next()

    await asyncio.sleep(1)

    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS is refused.value.code
    assert BLOCK_SIZE == await ids.next()


@on_virtual_time
async def test_while_the_bucket_hangs_all_who_wait_for_an_id_are_refused_together() -> None:
    """
    Fifty clients wait as long as one, and one block is taken for all of them.  The log says once
    why: nothing else waits for the bucket, and `/readyz` says ok.
    """
    world = World(t=1)
    life = await world.start()
    ids = ids_of(life)
    create = world.bucket.create

    async def hang(key: str, body: Any) -> None:
        await asyncio.Event().wait()

    world.bucket.create = hang  # type: ignore[method-assign]
    asked_ms = now_ms()
    with capture_logs() as lines:
        answers = await asyncio.gather(*(ids.next() for _ in range(50)), return_exceptions=True)
    took_ms = now_ms() - asked_ms
    world.bucket.create = create  # type: ignore[method-assign]
    await asyncio.sleep(1)

    assert {RefusedError} == {type(answer) for answer in answers}
    assert took_ms < 6_000
    assert ["producer_ids_failed"] == [line["event"] for line in lines if "ids" in line["event"]]
    assert BLOCK_SIZE == await ids.next()


# ── A key that cannot be read ──


@on_virtual_time
async def test_a_key_that_cannot_be_read_is_a_retriable_error() -> None:
    """
    And no dropped connection.
    """
    world = World(t=1)
    life = await world.start()
    await world.metadata.txn((), [Put(PRODUCER_IDS_KEY, b"no block")])
    ids = ids_of(life)
    with pytest.raises(RefusedError) as refused:
        await ids.next()
    await world.metadata.txn(
        (),
        [
            Put(
                PRODUCER_IDS_KEY,
                encode_producer_id_block(ProducerIdBlock(first_producer_id=0, size=10, node_id=1)),
            )
        ],
    )

    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS is refused.value.code
    assert BLOCK_SIZE == await ids.next()
