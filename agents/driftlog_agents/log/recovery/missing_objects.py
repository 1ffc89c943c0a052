"""Checks whether missing objects are gone, before an operator sees them as lost.

    read ──▶ found
      └─ not found, or damaged ──▶ again, ever less often, for `LOST_MS` ──▶ gone

For `accepted_loss`.  An object that has just been found gone is read only once more, without
another half minute: at `accept` after `examine`, and for the next partition.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from driftlog_agents.log.objects.availability import LOST_MS, Availability, DamagedObjectError
from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all, in_time
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import CorruptFlushObjectError, NewerFlushObjectError
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.formats.manifests import iter_segments
from driftlog_tiering.stores.object_store import NotFoundError, ObjectInfo, ObjectStore

_WAITS_MS: Final = (500.0, 8_000.0)
"""First and longest time between two reads of a missing object; doubled each time."""

_T = TypeVar("_T")


class MissingObjects:
    """See the module; for one session."""

    def __init__(self, objects: ObjectStore, now_ms: Callable[[], float]) -> None:
        self._objects = objects
        self._now_ms = now_ms
        first_ms, longest_ms = _WAITS_MS
        self._missing = Availability[str](lambda: 1.0, first_ms=first_ms, longest_ms=longest_ms)
        self._limit = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, key: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the result of *ask*, which reads the object *key*.

        Raises:
            DamagedObjectError: for `LOST_MS` it was missing, or a damaged flush object.
            UnavailableError: the bucket does not answer; and any other error of *ask*.
        """
        is_lost = False
        try:
            while True:
                try:
                    async with self._limit:
                        return await ask()
                except NewerFlushObjectError:
                    raise
                except (NotFoundError, CorruptFlushObjectError) as error:
                    now_ms = self._now_ms()
                    self._missing.failed(key, now_ms)
                    is_lost = self._missing.lasted_ms(key, now_ms) >= LOST_MS
                    if is_lost:
                        raise DamagedObjectError(key, "missing or damaged") from error
                    await asyncio.sleep((self._missing.due_ms(key) - now_ms) / 1000)
        finally:
            if not is_lost:  # A look that was cut off proves nothing: the next one begins anew.
                self._missing.found(key)

    async def segments(self, manifest: Manifest) -> tuple[list[SegmentRef], list[str]]:
        """Segments of *manifest* above log start that are gone, ascending; and a sentence for each
        whose object has another size than the manifest says.

        Raises:
            UnavailableError: the bucket does not answer.
            CorruptManifestError: a list of older segments is damaged or missing.
        """
        gone: list[SegmentRef] = []
        damaged: list[str] = []

        async def look(ref: SegmentRef) -> None:
            try:
                await self.read(ref.key, lambda: in_time(lambda: self._objects.get(ref.key, 0, 1)))
            except DamagedObjectError:
                gone.append(ref)

        # A listing proves no absence.
        await do_all([look(ref) for ref in await self._not_listed(manifest, damaged)])
        return sorted(gone, key=lambda ref: ref.base), damaged

    async def _not_listed(self, manifest: Manifest, damaged: list[str]) -> list[SegmentRef]:
        """Segments that the listing lacks; those of another size are added to *damaged*.

        Both ascend by key and are read as streams.
        """
        listed = self._listed(layout.partition_prefix(manifest.topic, manifest.tp))
        missing: list[SegmentRef] = []
        info = await anext(listed, None)
        async for ref in _in_time(iter_segments(self._objects, manifest)):
            while info is not None and info.key < ref.key:
                info = await anext(listed, None)
            if info is None or info.key != ref.key:
                missing.append(ref)
            elif info.size_bytes != ref.size_bytes:
                damaged.append(
                    f"{ref.key} has {info.size_bytes} bytes, and {ref.size_bytes} in the manifest"
                )
        return missing

    async def _listed(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for page in _in_time(self._objects.list(prefix)):
            for info in page.objects:
                yield info


async def _in_time(found: AsyncIterator[_T]) -> AsyncIterator[_T]:
    """Yields the items of *found*, each with its own deadline."""
    while (one := await in_time(lambda: anext(found, None))) is not None:
        yield one
