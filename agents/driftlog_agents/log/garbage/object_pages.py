"""Pages of a listing, one after the other with a pause: other requests go first.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from driftlog_tiering.stores.object_store import Listing, ObjectStore


@dataclass(frozen=True, slots=True)
class ObjectPages:
    """See the module.  ``deadline_ms``: of each page; ``pause_ms``: after each page."""

    objects: ObjectStore
    deadline_ms: float
    pause_ms: float

    async def of(self, prefix: str) -> AsyncIterator[Listing]:
        """The pages of *prefix*.

        Raises:
            UnavailableError, TimeoutError: the store.
        """
        pages = aiter(self.objects.list(prefix))
        while True:
            async with asyncio.timeout(self.deadline_ms / 1000):
                page = await anext(pages, None)
            if page is None:
                return
            yield page
            await asyncio.sleep(self.pause_ms / 1000)
