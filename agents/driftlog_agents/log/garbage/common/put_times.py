"""When objects count as PUT, by the listings of one agent.

A store may state that an object was PUT in the future: its clock was wrong then, or a copy kept the
time.  Grace would run for years, and with it that of all later versions of a partition.  So an
object whose PUT is more than a grace ahead counts as PUT when this agent first listed it.

Pure.
"""

from dataclasses import replace
from typing import Final

from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.stores.object_store import Listing, ObjectInfo

_MOST_KNOWN: Final = 100_000
"""Objects PUT in the future that are remembered: 20 MB.  Others stay until that time."""


class PutTimes:
    """See the module."""

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._first_listed_ms: dict[str, int] = {}

    def corrected(self, page: Listing) -> tuple[Listing, ObjectInfo | None]:
        """The page, with the times that count; and the first object of all that was PUT in the
        future, if the page has it."""
        latest_ms = page.store_now_ms + self._grace.ms
        ahead = [info for info in page.objects if info.modified_ms > latest_ms]
        if not ahead:
            return page, None
        first = None if self._first_listed_ms else ahead[0]
        objects = tuple(
            info if info.modified_ms <= latest_ms else self._corrected(info, page.store_now_ms)
            for info in page.objects
        )
        return replace(page, objects=objects), first

    def _corrected(self, info: ObjectInfo, now_ms: int) -> ObjectInfo:
        if info.key not in self._first_listed_ms and len(self._first_listed_ms) >= _MOST_KNOWN:
            return info
        # The clock of the store may have been wrong when the object was first listed, too.
        first_ms = min(self._first_listed_ms.get(info.key, now_ms), now_ms)
        self._first_listed_ms[info.key] = first_ms
        return replace(info, modified_ms=first_ms)
