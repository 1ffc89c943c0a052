"""Pages of a listing: a page that fails is asked for again, else a large bucket is never listed."""

from collections.abc import AsyncIterator

import pytest

from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.object_store import Listing
from tests.support.memory_object_store import MemoryObjectStore


class Bucket(MemoryObjectStore):
    """A bucket of small pages, some of which fail."""

    def __init__(self, *fail: int) -> None:
        super().__init__(lambda: 0)
        self.asked = 0
        self._fail = fail

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        async for page in super().list(prefix, start_after=start_after, page_size=2):
            self.asked += 1
            if self.asked in self._fail:
                raise UnavailableError("503")
            yield page


async def keys(bucket: Bucket) -> list[str]:
    """All keys, page by page."""
    for name in "abcde":
        await bucket.put(f"t/{name}", [b"x"])
    pages = ObjectPages(bucket, request_retry(1_000, wait_ms=0), 0, PutTimes(Grace())).of("t/")
    return [info.key async for page in pages for info in page.objects]


async def test_a_page_that_fails_is_asked_for_again() -> None:
    """
    The listing goes on behind the last page: none is left out, and none comes twice.
    """
    bucket = Bucket(2, 3, 5)

    assert [f"t/{name}" for name in "abcde"] == await keys(bucket)
    assert 6 == bucket.asked


async def test_a_page_that_always_fails_ends_the_listing() -> None:
    """
    The pass is repeated later.
    """
    with pytest.raises(UnavailableError):
        await keys(Bucket(2, 3, 4))
