"""A verification reads no faster than it may, and a store that fails for a moment is no damage.

If it failed: an agent's weekly pass would take the disk or the network from clients, or end with
the first lost answer.
"""

import asyncio

import pytest

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.counted_store import CountedObjectStore, RequestKind
from driftlog_tiering.stores.object_store import NotFoundError
from driftlog_tiering.verification.object_reads import RANGE_BYTES, ObjectReads, ReadLimits
from tests.support.memory_object_store import MemoryObjectStore


class _Failing(MemoryObjectStore):
    """Fails *failures* times before it answers."""

    failures = 0
    requests = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.requests += 1
        if self.requests <= self.failures:
            raise UnavailableError("throttled")
        return await super().get(key, start, end)


async def test_reads_are_paced() -> None:
    """
    1,000 bytes at 10,000 bytes a second: the eleventh read of 100 bytes begins after 0.1 s.
    """
    store = MemoryObjectStore(lambda: 0)
    await store.put("a", [bytes(100)])
    reads = ObjectReads(store, ReadLimits(bytes_per_s=10_000))
    began_s = asyncio.get_running_loop().time()

    await asyncio.gather(*(reads.get("a", 0, 100) for _ in range(11)))

    assert asyncio.get_running_loop().time() - began_s >= 0.1 - 0.001


async def test_a_read_is_repeated_until_its_last_attempt() -> None:
    """
    What the store answers is not repeated: a missing object is missing.
    """
    store = _Failing(lambda: 0)
    await store.put("a", [b"abc"])
    store.failures = 1
    reads = ObjectReads(store, ReadLimits(attempts=2))
    assert b"bc" == bytes(await reads.get("a", 1, 3))
    with pytest.raises(NotFoundError):
        await reads.get("b", 0, 1)
    assert 3 == store.requests
    store.failures = 100
    with pytest.raises(UnavailableError):
        await reads.get("a", 0, 1)
    assert 5 == store.requests


async def test_a_large_range_is_read_in_chunks() -> None:
    """
    And is whole; it ends where the object does.
    """
    body = bytes(range(256)) * (RANGE_BYTES // 128)
    store = CountedObjectStore(MemoryObjectStore(lambda: 0))
    await store.put("a", [body])
    reads = ObjectReads(store)

    assert body[3:] == bytes(await reads.get_range("a", 3, len(body) + 1))
    assert 2 == store.requests.sent[RequestKind.GET]
