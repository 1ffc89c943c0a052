"""Pages of a listing, one after the other with a pause: other requests go first.

A store may state that an object was PUT in the future: its clock was wrong then, or a copy kept the
time.  Grace would run for years, and with it that of all later versions of a partition.  So an
object whose PUT is more than a grace ahead counts as PUT when this agent first listed it.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

import structlog

from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore

_WAIT_S: Final = 1.0

_MOST_KNOWN: Final = 100_000
"""Objects PUT in the future that are remembered: 20 MB.  Others stay until that time."""


class PutTimes:
    """When objects were PUT, by the listings of one agent; see the module."""

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._first_listed_ms: dict[str, int] = {}
        self._log = structlog.get_logger()

    def corrected(self, page: Listing) -> Listing:
        """The page, with the times that count."""
        latest_ms = page.store_now_ms + self._grace.ms
        if all(info.modified_ms <= latest_ms for info in page.objects):
            return page
        objects = tuple(
            info if info.modified_ms <= latest_ms else self._corrected(info, page.store_now_ms)
            for info in page.objects
        )
        return replace(page, objects=objects)

    def _corrected(self, info: ObjectInfo, now_ms: int) -> ObjectInfo:
        if not self._first_listed_ms:
            self._log.warning(
                "put_time_in_future",
                key=info.key,
                ahead_s=(info.modified_ms - now_ms) // 1000,
                advice="the grace of such objects runs from now; check the clock of the store",
            )
        if info.key not in self._first_listed_ms and len(self._first_listed_ms) >= _MOST_KNOWN:
            return info
        # The clock of the store may have been wrong when the object was first listed, too.
        first_ms = min(self._first_listed_ms.get(info.key, now_ms), now_ms)
        self._first_listed_ms[info.key] = first_ms
        return replace(info, modified_ms=first_ms)


@dataclass(frozen=True, slots=True)
class ObjectPages:
    """See the module.  ``deadline_ms``: of each page; ``pause_ms``: after each page."""

    objects: ObjectStore
    deadline_ms: float
    pause_ms: float
    put_times: PutTimes

    async def of(
        self, prefix: str, *, start_after: str = "", attempts: int = 1
    ) -> AsyncIterator[Listing]:
        """The pages of *prefix* behind *start_after*, each asked for up to *attempts* times.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt of a page failed.
        """
        pages = aiter(self.objects.list(prefix, start_after=start_after))
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self.deadline_ms / 1000):
                    page = await anext(pages, None)
            except NO_ANSWER:
                failures += 1
                if failures >= attempts:
                    raise
                await asyncio.sleep(_WAIT_S)
                pages = aiter(self.objects.list(prefix, start_after=start_after))
                continue
            if page is None:
                return
            yield self.put_times.corrected(page)
            failures = 0
            if page.objects:
                start_after = page.objects[-1].key
            await asyncio.sleep(self.pause_ms / 1000)
