"""Outages that last longer than the collector's grace, under a session that lives on.

The collector looks all the while.  Times are scaled: a grace of twenty minutes instead of twelve
hours, and half of it for an object to be named.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.garbage.unreferenced_objects import CollectorSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import FLUSHES_PREFIX
from driftlog_metadata.stores.errors import DeclinedError, FencedError, UnavailableError
from driftlog_metadata.stores.store import MetadataStore, Put, TxnResult
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import (
    ALL,
    ONE,
    SETTINGS,
    Bucket,
    Life,
    World,
    now_ms,
    on_virtual_time,
)

GRACE_MS = 1_200_000
OUTAGE_S = 1_300
SCALED = replace(
    SETTINGS, flush=replace(SETTINGS.flush, max_object_age_ms=GRACE_MS / 2, flush_bytes=50)
)


async def _at_once(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def new_collector(life: Life) -> Collector:
    """Of the agent, with the scaled grace."""
    return Collector(
        stores=ConfirmedStores(life.world.metadata, life.world.bucket),
        disk=life.disk,
        offload=_at_once,
        settings=CollectorSettings(grace=Grace(GRACE_MS), pause_ms=0),
    )


async def collect_for(seconds: float, collector: Collector) -> None:
    """One look a minute."""
    end_ms = now_ms() + seconds * 1000
    while now_ms() < end_ms:
        await asyncio.sleep(60)
        await collector.collect()


async def not_there(world: World) -> list[str]:
    """Objects that flush records name and that the bucket does not have."""
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    there = [info.key async for page in world.bucket.list("flush/") for info in page.objects]
    named = [decode_flush_record(kv.value).object_key for kv in kvs]
    return sorted(set(named) - set(there))


class RefusesTheFirst(Bucket):
    """Refuses flush 1 while it is full; what is stored behind it is stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if self.full and layout.parse_flush_key(key).seq == 1:
            raise UnavailableError("507 the bucket is full")
        await super().put(key, body)


@pytest.mark.parametrize("memory_bytes", [1, SETTINGS.memory.memory_bytes])
@on_virtual_time
async def test_a_flush_that_waited_for_longer_than_the_grace_is_there_when_it_is_committed(
    memory_bytes: int,
) -> None:
    """
    The bucket refuses one object for longer than the collector's grace; those behind it are stored
    and not committed.  Afterwards everything is answered, and every record names what is there,
    stored again from memory or from the buffer files.
    """
    world = World(t=2)
    world.bucket = bucket = RefusesTheFirst()
    life = await world.start(replace(SCALED, memory=MemorySettings(memory_bytes=memory_bytes)))
    bucket.full = True
    first = life.produce(b"first")
    await asyncio.sleep(0.1)
    second = life.produce(b"second", partition=1, producer=7, epoch=0, sequence=0)
    await asyncio.sleep(1)
    stored = [key for key in bucket.puts if layout.parse_flush_key(key).seq == 2]
    (_, behind) = life.engine.flusher.pipeline.flushes
    assert (memory_bytes == 1) == (behind.payload.data.views is None)
    await collect_for(OUTAGE_S, new_collector(life))
    bucket.full = False

    assert ["committed"] * 2 == [await first.answer(), await second.answer()]
    assert life.engine.session.alive
    assert [] == await not_there(world)
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    assert stored[0] != decode_flush_record(kvs[1].value).object_key
    assert [(0, 0, b"first")] == await life.committed()
    assert [(0, 0, b"second")] == await life.committed(1)


class Full:
    """A metadata store with no space left: it refuses every commit."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        if self.full and any(isinstance(op, Put) for op in then):
            raise DeclinedError("etcdserver: mvcc: database space exceeded")
        return await self._store.txn(compares, then, otherwise)


@on_virtual_time
async def test_a_commit_refused_for_longer_than_the_grace_ends_the_session() -> None:
    """
    Everybody is told, a warning says why, and the next session on the same disk appends what was
    acknowledged with acks=1, at its offset.
    """
    world = World(t=2)
    stores: list[Full] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(Full(store))
        return cast(MetadataStore, stores[-1])

    life = await world.start(SCALED, metadata=wrap)
    assert "committed" == await life.produce(b"0").answer()
    stores[0].full = True
    assert "synced" == await life.produce(b"one", acks=ONE, partition=1).answer()
    waits = life.produce(b"all", acks=ALL)
    collector = new_collector(life)
    with capture_logs() as lines:
        await collect_for(GRACE_MS / 2000 + 60, collector)
        assert "lost" == await waits.answer()
        with pytest.raises(FencedError, match="too old to be named"):
            await life.task
        await collect_for(GRACE_MS / 2000, collector)

    assert ["warning"] == [line["log_level"] for line in lines if line["event"] == "flush_expired"]
    assert not life.engine.session.alive
    stores[0].full = False
    life.kill()
    await asyncio.sleep(10)
    again = await world.start(SCALED)
    assert [(0, 1, b"one")] == [(o, 1, v) for o, _, v in await again.committed(1)]
    assert "committed" == await again.produce(b"after").answer()
    assert [] == await not_there(world)


@on_virtual_time
async def test_a_commit_that_takes_effect_after_hours_names_nothing_that_is_gone() -> None:
    """
    Its answer never came, and a copy of it acts when the collector's grace is over: the session has
    ended, so it is refused.
    """
    world = World(t=1)
    held: list[tuple[Any, ...]] = []

    class Holds(Full):
        async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            if any(isinstance(op, Put) and op.key.startswith(FLUSHES_PREFIX) for op in then):
                held.append((compares, then, otherwise))
                await asyncio.Event().wait()
            return await super().txn(compares, then, otherwise)

    life = await world.start(SCALED, metadata=lambda store: cast(MetadataStore, Holds(store)))
    life.produce(b"x")
    collector = new_collector(life)
    await collect_for(OUTAGE_S, collector)
    with pytest.raises(FencedError, match="too old to be named"):
        await life.task
    await collect_for(60, collector)

    assert held
    assert [False] * len(held) == [(await world.metadata.txn(*one)).succeeded for one in held]
    assert [] == await not_there(world)
