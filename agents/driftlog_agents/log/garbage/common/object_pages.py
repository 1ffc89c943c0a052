"""Pages of a listing, one after the other with a pause: other requests go first.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_tiering.stores.object_store import Listing, ObjectStore


@dataclass(frozen=True, slots=True)
class ObjectPages:
    """See the module.  ``retry``: of each page; ``pause_ms``: after each page."""

    objects: ObjectStore
    retry: Retry
    pause_ms: float
    put_times: PutTimes

    async def of(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Listing]:
        """The pages of *prefix* behind *start_after*.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt of a page failed.
        """
        pages = aiter(self.objects.list(prefix, start_after=start_after))

        async def next_page() -> Listing | None:
            return await anext(pages, None)

        async def list_again(_: Exception) -> None:
            nonlocal pages
            pages = aiter(self.objects.list(prefix, start_after=start_after))

        while (page := await self.retry.run(next_page, list_again)) is not None:
            page, future = self.put_times.corrected(page)
            if future is not None:
                structlog.get_logger().warning(
                    "put_time_in_future",
                    key=future.key,
                    ahead_s=(future.modified_ms - page.store_now_ms) // 1000,
                    advice="the grace of such objects runs from now; check the clock of the store",
                )
            yield page
            if page.objects:
                start_after = page.objects[-1].key
            await asyncio.sleep(self.pause_ms / 1000)
