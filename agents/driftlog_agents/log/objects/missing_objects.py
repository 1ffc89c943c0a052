"""Whether objects that should be there are gone, before an operator is told that they are.

    read ──▶ there
      └─ not found, or damaged ──▶ again, ever less often, for half a minute ──▶ gone

For `loss`.  What was found to be gone is read once more, and not for half a minute, when it is
asked for soon again: between what is shown and what is accepted, and for the next partition.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from driftlog_agents.log.objects.flush_object_ends import READS_AT_ONCE, do_all, in_time
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import CorruptFlushObjectError, NewerFlushObjectError
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.formats.manifests import iter_segments
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_LOOKED_FOR_MS: Final = 30_000.0
"""How long a store must say that an object is not there, or give it damaged: six times as long as a
read of an agent does (`availability`).  Longer: an operator waits longer for what is lost; shorter:
a node of the store that is behind makes an operator give up what is there."""

_GONE_MS: Final = 600_000.0
"""For so long one more look is enough."""

_WAITS_S: Final = (0.5, 8.0)
"""Between two looks, at first and at most: twice as long each time."""

_T = TypeVar("_T")


class MissingObjects:
    """See the module; of one session."""

    def __init__(self, objects: ObjectStore, now_ms: Callable[[], float]) -> None:
        self._objects = objects
        self._now_ms = now_ms
        self._gone: dict[str, float] = {}
        """When objects were found to be gone, or damaged."""
        self._limit = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, key: str, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """What *ask* reads of *key*; None: it is gone, or a flush object that is damaged.

        Raises:
            UnavailableError: the bucket does not answer; and what else *ask* raises.
        """
        since_ms = self._now_ms()
        if since_ms - self._gone.get(key, -_GONE_MS) < _GONE_MS:
            since_ms -= _LOOKED_FOR_MS
        wait_s, longest_s = _WAITS_S
        while True:
            try:
                async with self._limit:
                    found = await ask()
            except NewerFlushObjectError:
                raise
            except (NotFoundError, CorruptFlushObjectError):
                pass
            else:
                self._gone.pop(key, None)
                return found
            left_s = (since_ms + _LOOKED_FOR_MS - self._now_ms()) / 1000
            if left_s <= 0:
                self._gone[key] = self._now_ms()
                return None
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, longest_s)

    async def segments(self, manifest: Manifest) -> list[SegmentRef]:
        """Segments that *manifest* names above log start, and that are gone; ascending.

        Raises:
            UnavailableError: the bucket does not answer.
            CorruptManifestError: a list of older segments is damaged or missing.
        """
        gone: list[SegmentRef] = []

        async def look(ref: SegmentRef) -> None:
            found = await self.read(
                ref.key, lambda: in_time(lambda: self._objects.get(ref.key, 0, 1))
            )
            if found is None:
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
