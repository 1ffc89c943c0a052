"""Whether objects that should be there are gone, before an operator is told that they are.

    read ──▶ there
      └─ not found, or damaged ──▶ again, ever less often, for `LOST_MS` ──▶ gone

For `accepted_loss`.  An object that was missing a moment ago is read once more, and not for half a
minute again: between what is shown and what is accepted, and for the next partition.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from driftlog_agents.log.objects.availability import Availability, DamagedObjectError
from driftlog_agents.log.objects.flush_object_ends import READS_AT_ONCE, do_all, in_time
from driftlog_agents.log.objects.object_retry import LOST_MS
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import CorruptFlushObjectError, NewerFlushObjectError
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.formats.manifests import iter_segments
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_WAITS_MS: Final = (500.0, 8_000.0)
"""Between two looks, at first and at most: twice as long each time."""

_T = TypeVar("_T")


class MissingObjects:
    """See the module; of one session."""

    def __init__(self, objects: ObjectStore, now_ms: Callable[[], float]) -> None:
        self._objects = objects
        self._now_ms = now_ms
        first_ms, longest_ms = _WAITS_MS
        self._missing = Availability[str](lambda: 1.0, first_ms=first_ms, longest_ms=longest_ms)
        self._limit = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, key: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """What *ask* reads of *key*.

        Raises:
            DamagedObjectError: it is missing, or a flush object that is damaged, for `LOST_MS`.
            UnavailableError: the bucket does not answer; and what else *ask* raises.
        """
        while True:
            try:
                async with self._limit:
                    found = await ask()
            except NewerFlushObjectError:
                raise
            except (NotFoundError, CorruptFlushObjectError) as error:
                now_ms = self._now_ms()
                self._missing.failed(key, now_ms)
                if self._missing.lasted_ms(key, now_ms) >= LOST_MS:
                    raise DamagedObjectError(key, "missing or damaged") from error
                await asyncio.sleep((self._missing.due_ms(key) - now_ms) / 1000)
            else:
                self._missing.found(key)
                return found

    async def segments(self, manifest: Manifest) -> list[SegmentRef]:
        """Segments that *manifest* names above log start, and that are gone; ascending.

        Raises:
            UnavailableError: the bucket does not answer.
            CorruptManifestError: a list of older segments is damaged or missing.
        """
        gone: list[SegmentRef] = []

        async def look(ref: SegmentRef) -> None:
            try:
                await self.read(ref.key, lambda: in_time(lambda: self._objects.get(ref.key, 0, 1)))
            except DamagedObjectError:
                gone.append(ref)

        # A listing proves no absence.
        await do_all([look(ref) for ref in await self._not_listed(manifest)])
        return sorted(gone, key=lambda ref: ref.base)

    async def _not_listed(self, manifest: Manifest) -> list[SegmentRef]:
        """Both the segments and the listing ascend by key: neither is kept, however long it is."""
        listed = self._listed(layout.partition_prefix(manifest.topic, manifest.tp))
        missing: list[SegmentRef] = []
        key = await anext(listed, None)
        async for ref in _in_time(iter_segments(self._objects, manifest)):
            while key is not None and key < ref.key:
                key = await anext(listed, None)
            if key != ref.key:
                missing.append(ref)
        return missing

    async def _listed(self, prefix: str) -> AsyncIterator[str]:
        async for page in _in_time(self._objects.list(prefix)):
            for info in page.objects:
                yield info.key


async def _in_time(found: AsyncIterator[_T]) -> AsyncIterator[_T]:
    """What *found* gives, each with a deadline of its own."""
    while (one := await in_time(lambda: anext(found, None))) is not None:
        yield one
