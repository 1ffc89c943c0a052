"""Pages of a listing, one after the other with a pause: other requests go first.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import structlog

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_tiering.stores.object_store import Listing, ObjectStore

_ATTEMPTS: Final = 3
"""Of each page.  Fewer: a pass over thousands of pages ends at one that fails, and nothing behind
it is collected; more: a store in trouble is asked more often."""
_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ObjectPages:
    """See the module.  ``deadline_ms``: of each page; ``pause_ms``: after each page."""

    objects: ObjectStore
    deadline_ms: float
    pause_ms: float
    put_times: PutTimes

    async def of(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Listing]:
        """The pages of *prefix* behind *start_after*.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt of a page failed.
        """
        pages = aiter(self.objects.list(prefix, start_after=start_after))
        retry = Retry(
            wait_s=_WAIT_S,
            longest_wait_s=_WAIT_S,
            timeout_s=self.deadline_ms / 1000,
            attempts=_ATTEMPTS,
        )

        async def list_again(_: Exception) -> None:
            nonlocal pages
            pages = aiter(self.objects.list(prefix, start_after=start_after))

        while (page := await retry.run(lambda: anext(pages, None), list_again)) is not None:
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
