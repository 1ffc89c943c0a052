"""A store that is slow or refuses would look like a good one in the metrics."""

import pytest

from driftlog_agents.health.store_times import StoreTimes
from driftlog_agents.health.timed_objects import TimedObjectStore
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.stores.counted_store import RequestKind
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError
from tests.support.memory_object_store import MemoryObjectStore


class Slow(MemoryObjectStore):
    """Each get takes 30 ms of a virtual clock, and fails with `error` if there is one."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.clock_ms = 0.0
        self.error: Exception | None = None

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.clock_ms += 30
        if self.error is not None:
            raise self.error
        return await super().get(key, start, end)


async def test_requests_count_by_kind_and_outcome() -> None:
    """
    A page of a listing is one; an error passes through unchanged.
    """
    store, times = Slow(), StoreTimes()
    timed = TimedObjectStore(store, lambda: store.clock_ms, times)
    for number in range(3):
        await timed.put(f"k/{number}", [b"body"])
    await timed.create("new", [b"1"])
    with pytest.raises(AlreadyExistsError):
        await timed.create("new", [b"2"])
    assert b"body" == await timed.get("k/1")
    with pytest.raises(NotFoundError):
        await timed.get("k/9")
    errors = (UnavailableError("503"), OutcomeUnknownError("reset"), RuntimeError("bug"))
    for store.error in errors:
        with pytest.raises(type(store.error)):
            await timed.get("k/1")
    pages = [page async for page in timed.list("k/", page_size=2)]
    await timed.delete(["k/1"])

    found = {
        (kind, outcome): count
        for kind, each in times.requests.items()
        for outcome, count in each.outcomes.items()
        if count
    }
    assert found == {
        (RequestKind.PUT, "ok"): 4,
        (RequestKind.PUT, "exists"): 1,
        (RequestKind.GET, "ok"): 1,
        (RequestKind.GET, "not_found"): 1,
        (RequestKind.GET, "refused"): 1,
        (RequestKind.GET, "unanswered"): 1,
        (RequestKind.GET, "failed"): 1,
        (RequestKind.LIST, "ok"): len(pages),
        (RequestKind.DELETE, "ok"): 1,
    }
    gets = dict(times.requests[RequestKind.GET].durations.buckets())
    assert (0, 5) == (gets["0.02"], gets["0.05"])
