"""Reads of sealed objects through the cache on the agent's disk (`log/local/range_cache`).

    get ──▶ on the disk ──────────────────────────────────────────────▶ the bytes
     └────▶ in the bucket ──▶ small, whole, or wanted again: store ──▶ the bytes

1. What is read whole is a list of segments: each read of a segment that it names needs it.
2. A consumer that reads a partition once, from end to end, leaves the disk to producers: a large
   range is stored when it is fetched for the second time.
3. Flush objects are not stored, because they do not live long.
4. What is stored is not checked before: a reader that finds damage drops the object here, and reads
   the bucket, where it may have been repaired.

Shell.
"""

from collections import OrderedDict
from typing import Final, Protocol

from driftlog_agents.log.local.cached_ranges import WHOLE
from driftlog_agents.log.local.range_cache import RangeCache
from driftlog_tiering.formats.layout import FLUSH_PREFIX
from driftlog_tiering.foundation.types import Buffer

_SMALL_BYTES: Final = 128 * 1024
"""A range that is stored at once: footers, which each read of a segment needs first."""

_REMEMBERED: Final = 16_384
"""Ranges that were fetched once, of ~300 bytes each."""


class ColdObjects(Protocol):
    """What cold reads use of an `ObjectStore`."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """See `ObjectStore.get`."""
        ...


class CachedObjects:
    """See the module; `ColdObjects`."""

    def __init__(self, objects: ColdObjects, cache: RangeCache) -> None:
        self._objects = objects
        self.cache = cache
        self._fetched: OrderedDict[tuple[str, int, int], None] = OrderedDict()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """See `ObjectStore.get`."""
        if key.startswith(FLUSH_PREFIX):
            return await self._objects.get(key, start, end)
        stored = WHOLE if end is None else end
        found = await self.cache.get(key, start, stored)
        if found is not None:
            return found
        body = await self._objects.get(key, start, end)
        if end is None or (len(body) == end - start and self._is_wanted(key, start, end)):
            self.cache.put(key, start, stored, body)
        return body

    async def drop(self, key: str) -> bool:
        """Delete what is stored of a damaged object; whether there was something."""
        return await self.cache.drop(key)

    def _is_wanted(self, key: str, start: int, end: int) -> bool:
        if end - start <= _SMALL_BYTES:
            return True
        if self._fetched.pop((key, start, end), self) is None:
            return True
        self._fetched[key, start, end] = None
        if len(self._fetched) > _REMEMBERED:
            self._fetched.popitem(last=False)
        return False
