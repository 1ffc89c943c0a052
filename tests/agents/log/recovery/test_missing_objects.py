"""What an operator is told is lost: if it broke, a store that is behind would have records given
up."""

import asyncio

import pytest

from driftlog_agents.log.objects.availability import LOST_MS, DamagedObjectError
from driftlog_agents.log.recovery.missing_objects import MissingObjects
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.support.memory_object_store import MemoryObjectStore


async def lost_after(missing: MissingObjects, store: MemoryObjectStore) -> float:
    """Milliseconds until the object counts as lost."""
    began_ms = now_ms()
    with pytest.raises(DamagedObjectError, match="key"):
        await missing.read("key", lambda: store.get("key"))
    return now_ms() - began_ms


@on_virtual_time
async def test_an_object_is_lost_when_it_was_missing_for_half_a_minute() -> None:
    """
    Asked for again soon, for the next partition or to accept the loss, it takes no half minute.
    """
    store = MemoryObjectStore(lambda: int(now_ms()))
    missing = MissingObjects(store, now_ms)

    first_ms = await lost_after(missing, store)
    await asyncio.sleep(60)
    again_ms = await lost_after(missing, store)
    await asyncio.sleep(3_000)
    later_ms = await lost_after(missing, store)

    assert LOST_MS <= first_ms < LOST_MS + 8_000
    assert 0 == again_ms
    assert LOST_MS <= later_ms < LOST_MS + 8_000


@on_virtual_time
async def test_an_object_that_is_there_after_all_is_not_lost() -> None:
    """
    Neither during the half minute, nor when it was told as lost.
    """
    store = MemoryObjectStore(lambda: int(now_ms()))
    missing = MissingObjects(store, now_ms)

    async def read() -> Buffer:
        return await missing.read("key", lambda: store.get("key"))

    waiting = asyncio.create_task(read())
    await asyncio.sleep(20)
    await store.put("key", [b"behind"])
    assert b"behind" == await waiting
    await store.delete(["key"])
    await lost_after(missing, store)
    await store.put("key", [b"put back"])

    assert b"put back" == await read()


@on_virtual_time
async def test_a_look_that_was_cut_off_proves_nothing() -> None:
    """
    Two untrue 404s, a minute apart, in two looks: the second one looks for half a minute itself.
    """
    store = MemoryObjectStore(lambda: int(now_ms()))
    missing = MissingObjects(store, now_ms)
    cut_off = asyncio.create_task(missing.read("key", lambda: store.get("key")))
    await asyncio.sleep(0.1)
    cut_off.cancel()
    await asyncio.sleep(60)

    assert LOST_MS <= await lost_after(missing, store) < LOST_MS + 8_000
