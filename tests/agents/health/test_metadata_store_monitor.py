"""An agent notices before each delete that the metadata store is not its own, and says so until a
restart.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.health.metadata_store_monitor import MetadataStoreMonitor
from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.deletions import ConfirmedStores, believe
from driftlog_agents.log.garbage.unreferenced_objects import HOUR_MS, CollectorSettings
from driftlog_metadata.schema.codec import encode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.schema.model import FORMAT_VERSION, Cluster
from driftlog_metadata.stores.errors import FencedError, StoreNotOursError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_metadata.witness.witness import REPLACED, WENT_BACK
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.simulation.faults import Process
from tests.simulation.loop import VirtualLoop
from tests.simulation.sim_disk import Platter, SimDisk
from tests.support.clusters import AUTHOR, in_cluster
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

FLUSH = f"flush/{7:032x}/{1:020d}-{9:016x}.flush"


class World:
    """A store, and a process that watches it."""

    def __init__(self, behind: MemoryMetadataStore, store: WitnessedStore) -> None:
        self.behind = behind
        self.store = store
        self.watch = MetadataStoreMonitor(store)


async def begun() -> World:
    behind = MemoryMetadataStore(lambda: int(now_ms()))
    return World(behind, await in_cluster(behind))


@pytest.mark.parametrize("there", [None, b"{}"])
@on_virtual_time
async def test_an_idle_agent_finds_out_and_says_so_every_minute(there: bytes | None) -> None:
    """
    Within seconds, as an error that names what was seen; nothing is asked of that store any more.
    """
    world = await begun()
    running = asyncio.create_task(world.watch.run())
    await asyncio.sleep(60)
    assert world.watch.evidence is None

    change = Delete(CLUSTER_KEY) if there is None else Put(CLUSTER_KEY, there)
    await world.behind.txn((), [change])
    with capture_logs() as lines:
        await asyncio.sleep(12)
        assert world.watch.evidence is not None
        await asyncio.sleep(120)

    assert [(REPLACED, "error")] * 3 == [(line["event"], line["log_level"]) for line in lines]
    with pytest.raises(StoreNotOursError):
        await world.store.get_prefix("/")
    running.cancel()


@on_virtual_time
async def test_a_raised_level_is_learned_and_a_lowered_one_is_evidence() -> None:
    """
    An idle agent writes the new formats within seconds, without a restart; a level never falls, so
    a store with a lower one is a backup.
    """
    world = await begun()
    first, second, third = (
        encode_cluster(
            Cluster(AUTHOR.cluster_id, level, None if level <= FORMAT_VERSION else "9.9")
        )
        for level in (FORMAT_VERSION, FORMAT_VERSION + 1, FORMAT_VERSION)
    )
    assert first == world.store.witness.cluster
    running = asyncio.create_task(world.watch.run())

    await world.behind.txn((), [Put(CLUSTER_KEY, second)])
    await asyncio.sleep(12)
    learned, evidence = world.store.witness.cluster, world.watch.evidence
    await world.behind.txn((), [Put(CLUSTER_KEY, third)])
    await asyncio.sleep(12)

    assert (second, None) == (learned, evidence)
    assert world.watch.evidence is not None
    assert WENT_BACK == world.watch.evidence.event
    running.cancel()


@on_virtual_time
async def test_a_store_that_is_behind_what_was_seen_went_back() -> None:
    """
    By the next answer, whatever was asked; an answer to what was sent before is no evidence.
    """
    world = await begun()
    backup = world.behind.copy()
    for _ in range(3):
        await world.store.txn((), [Put("/k", b"")])

    world.behind.become(backup)
    with pytest.raises(FencedError):
        await world.watch.confirm()

    assert world.watch.evidence is not None
    assert (WENT_BACK, 5, 2) == (
        world.watch.evidence.event,
        world.watch.evidence.revision_seen,
        world.watch.evidence.revision_found,
    )


@on_virtual_time
async def test_answers_that_overtake_each_other_are_no_evidence() -> None:
    """
    One that was sent first and comes last tells an older revision, and rightly so.
    """
    world = await begun()
    slow = asyncio.Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.behind, name)

        async def get_prefix(self, prefix: str, *, keys_only: bool = False) -> Any:
            answer = await world.behind.get_prefix(prefix, keys_only=keys_only)
            await slow.wait()
            return answer

    store = WitnessedStore(Slow(), world.store.witness)
    late = asyncio.create_task(store.get_prefix("/"))
    await asyncio.sleep(1)
    await store.txn((), [Put("/k", b"")])
    slow.set()

    assert 2 == (await late)[0]
    assert world.watch.evidence is None


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """As an offload, without a thread."""
    return fn(*args)


class _Later(MemoryObjectStore):
    """A bucket whose clock a test turns."""

    hours = 0.0

    def __init__(self) -> None:
        super().__init__(lambda: int(self.hours * HOUR_MS))

    async def keys(self) -> list[str]:
        return [info.key async for page in self.list("") for info in page.objects]


@pytest.mark.parametrize("confirmed", [True, False])
@on_virtual_time
async def test_nothing_is_deleted_on_the_word_of_another_store(confirmed: bool) -> None:
    """
    A collector that reads from a store without our cluster's key that nothing names its objects
    deletes none of them, however often it looks.  (Unconfirmed, it deletes them.)
    """
    world = await begun()
    bucket = _Later()
    await bucket.put(FLUSH, [b"x"])
    await world.behind.txn((), [Delete(CLUSTER_KEY)])
    disk = SimDisk(Platter(), Process("p", VirtualLoop()), Random(1))
    confirm = world.watch.confirm if confirmed else believe
    collector = Collector(
        stores=ConfirmedStores(world.store, bucket, confirm),
        disk=disk,
        offload=at_once,
        settings=CollectorSettings(pause_ms=0),
    )
    for _ in range(60):
        bucket.hours += 0.25
        try:
            await collector.collect()
        except (FencedError, StoreNotOursError):
            assert confirmed

    assert ([FLUSH] if confirmed else []) == await bucket.keys()
