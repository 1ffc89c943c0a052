"""Each request counts once, by its kind, also one that fails; bytes count as they were sent or got.

If it failed: `driftlog cost` and the metrics would say another bill than the store's.
"""

import pytest

from driftlog_tiering.stores.counted_store import CountedObjectStore, RequestKind
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError
from tests.support.memory_object_store import MemoryObjectStore


async def test_requests_and_bytes_are_counted() -> None:
    """
    Three pages are three requests, an empty listing is one, 1,001 deletes are two.
    """
    store = CountedObjectStore(MemoryObjectStore(lambda: 0))
    for name in ("a", "b", "c"):
        await store.put(name, [b"12", b"345"])
    with pytest.raises(AlreadyExistsError):
        await store.create("a", [b"1"])
    assert b"23" == bytes(await store.get("a", 1, 3))
    with pytest.raises(NotFoundError):
        await store.get("missing")
    await store.stat("a")
    assert 3 == len([page async for page in store.list("", page_size=1)])
    assert 1 == len([page async for page in store.list("none")])
    await store.delete([f"k{n}" for n in range(1_001)])

    found = store.requests

    expected = {
        RequestKind.PUT: 4,
        RequestKind.GET: 2,
        RequestKind.HEAD: 1,
        RequestKind.LIST: 4,
        RequestKind.DELETE: 2,
    }
    assert expected == dict(found.sent)
    assert (16, 2) == (found.put_bytes, found.got_bytes)


async def test_a_listing_that_is_left_early_costs_the_pages_that_were_read() -> None:
    """
    A caller that needs the first key asks for one page.
    """
    store = CountedObjectStore(MemoryObjectStore(lambda: 0))
    for name in ("a", "b"):
        await store.put(name, [b""])

    async for _ in store.list("", page_size=1):
        break

    assert 1 == store.requests.sent[RequestKind.LIST]
