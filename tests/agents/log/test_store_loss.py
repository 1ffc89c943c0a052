"""A live agent notices a metadata store that goes back, is empty, or is another cluster's."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from driftlog_agents.health.metadata_store_monitor import MetadataStoreMonitor
from driftlog_metadata.schema.keys import CLUSTER_KEY, head_key
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_metadata.witness.witness import REPLACED, WENT_BACK, Evidence, StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from tests.agents.log.lives import Life, World, now_ms, on_virtual_time
from tests.support.clusters import CLUSTER
from tests.support.memory_store import MemoryMetadataStore


def empty() -> MemoryMetadataStore:
    """As etcd is without its data."""
    return MemoryMetadataStore(lambda: int(now_ms()))


async def _went_on() -> tuple[World, Life, MemoryMetadataStore]:
    """An agent that has committed since the backup was made."""
    world = World(t=1)
    life = await world.start()
    assert await life.produce(b"before").answer() == "committed"
    backup = world.metadata.copy()
    for value in (b"after", b"and after"):
        assert await life.produce(value).answer() == "committed"
    return world, life, backup


async def _ended(life: Life) -> str:
    """How the session ended."""
    with pytest.raises(FencedError) as error:
        async with asyncio.timeout(20):
            await life.task
    return str(error.value)


async def restored(world: World, backup: MemoryMetadataStore) -> None:
    """From the backup."""
    world.metadata.become(backup)


async def restored_further_on(world: World, backup: MemoryMetadataStore) -> None:
    """From the backup, with ``--bump-revision``: no revision goes back."""
    world.metadata.become(backup, revision=world.metadata.revision + 1_000)


async def emptied(world: World, _: MemoryMetadataStore) -> None:
    """Without any key."""
    world.metadata.become(empty())


Loss = Callable[[World, MemoryMetadataStore], Awaitable[None]]


@pytest.mark.parametrize("loss", [restored, restored_further_on, emptied])
@on_virtual_time
async def test_a_store_that_lost_commits_acknowledges_nothing(loss: Loss) -> None:
    """
    The session ends with the first request that shows it, and the witness knows why.
    """
    world, life, backup = await _went_on()

    await loss(world, backup)
    request = life.produce(b"lost")
    told = asyncio.ensure_future(request.answer())
    await _ended(life)

    assert "lost" == await told
    evidence = life.metadata.witness.evidence
    if loss is not emptied:  # its lease is gone as well, and that may be found first
        assert evidence is not None
        assert WENT_BACK == evidence.event


@pytest.mark.parametrize("loss", [restored, restored_further_on, emptied])
@on_virtual_time
async def test_no_session_begins_on_a_store_that_lost_what_the_last_one_left(loss: Loss) -> None:
    """
    Also when nothing was asked of it meanwhile but the keep-alive that found no lease.
    """
    world, life, backup = await _went_on()
    witness = life.metadata.witness
    life.kill()
    witness.seen = 0  # as if the revisions alone did not tell

    await loss(world, backup)
    before = world.metadata.snapshot()
    again = Life(world, life.engine.settings, world.metadata, witness)
    await _ended(again)

    assert witness.evidence is not None
    assert [kv for kv in before if not kv.lease_id] == [
        kv for kv in world.metadata.snapshot() if not kv.lease_id
    ]


@pytest.mark.parametrize("there", [None, b'{"cluster_id":"other","format_version":1}'])
@on_virtual_time
async def test_no_session_begins_and_nothing_is_claimed_without_the_clusters_key(
    there: bytes | None,
) -> None:
    """
    It is missing, or another cluster's: the refused transaction tells.
    """
    world = World(t=2)
    await (await world.start()).stop()
    change = Delete(CLUSTER_KEY) if there is None else Put(CLUSTER_KEY, there)
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    await world.metadata.txn((), [change])

    with suppress(FencedError):
        await life.engine.handover.give_up(life.engine.logs())
    await _ended(life)
    evidence = life.metadata.witness.evidence

    assert evidence is not None
    assert REPLACED == evidence.event
    assert CLUSTER != there
    with pytest.raises(FencedError):
        await (await world.start(ready=False)).task


@on_virtual_time
async def test_a_restart_accepts_the_store_as_it_is() -> None:
    """
    What a process has seen is in its memory only.  What its buffer files still have is appended.
    """
    world, life, backup = await _went_on()
    await restored(world, backup)
    await _ended(life)

    again = await world.start()

    assert [b"before", b"after", b"and after"] == [v for _, _, v in await again.committed()]


async def _looked(life: Life) -> Evidence | None:
    """What an agent finds that looks, and does nothing else."""
    watch = MetadataStoreMonitor(life.metadata)
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(12)
    running.cancel()
    return watch.evidence


@pytest.mark.parametrize("ended", [False, True])
@on_virtual_time
async def test_an_agent_that_commits_nothing_more_finds_what_it_had_committed_gone(
    ended: bool,
) -> None:
    """
    A look reads the head of its own session, or of the last one; no revision tells.
    """
    world, life, backup = await _went_on()
    assert await _looked(life) is None

    if ended:
        life.kill()
    await restored_further_on(world, backup)
    evidence = await _looked(life)

    assert evidence is not None
    assert WENT_BACK == evidence.event
    with pytest.raises(FencedError):
        await MetadataStoreMonitor(life.metadata).confirm()


@on_virtual_time
async def test_heads_that_are_deleted_by_age_are_no_evidence() -> None:
    """
    Of a session that ended more than six days ago.
    """
    world, life, _ = await _went_on()
    await life.stop()
    await world.metadata.txn((), [Delete(head_key(life.session_id))])
    later = StoreWitness(lambda: now_ms() + 7 * 24 * 3_600_000, CLUSTER)
    later.session = life.metadata.witness.session
    watch = MetadataStoreMonitor(WitnessedStore(world.metadata, later))

    await watch.confirm()

    assert watch.evidence is None


@on_virtual_time
async def test_a_head_that_cannot_be_read_is_no_evidence_and_ends_nothing() -> None:
    """
    The looks go on, and notice the cluster's key all the same.
    """
    world, life, _ = await _went_on()
    await world.metadata.txn((), [Put(head_key(life.session_id), b"\xff")])
    assert await _looked(life) is None

    await world.metadata.txn((), [Delete(CLUSTER_KEY)])
    evidence = await _looked(life)

    assert evidence is not None
    assert REPLACED == evidence.event


@on_virtual_time
async def test_an_agent_that_only_looks_on_notices_a_large_bump() -> None:
    """
    It committed nothing after the snapshot, so its head is the same: the leap of revisions tells.
    """
    world = World(t=1)
    life = await world.start()
    backup = world.metadata.copy()
    await asyncio.sleep(20)
    world.metadata.become(backup, revision=world.metadata.revision + 1_000_000_000)
    assert life.metadata.witness.evidence is None

    evidence = await _looked(life)

    assert evidence is not None
    assert WENT_BACK == evidence.event
