"""The collector's reads of one partition: its key, its manifest versions, and their lists.

    partition's key ──▶ LIST of manifest versions ──▶ manifests, lists (as far as they are needed)

The newest version in the listing is at least the one that the key names, which is read first: a
listing without it is not believed.

Shell.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition, Version, Versions
from driftlog_agents.log.garbage.sealed.manifest_names import (
    EVERYTHING,
    Sizes,
    Window,
    difference,
    named_within,
    windows,
)
from driftlog_agents.log.garbage.sealed.replaced_objects import ListsRead, MissingListError
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_partition_state
from driftlog_metadata.schema.keys import partition_key
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.formats.manifest_edits import NeedsLists
from driftlog_tiering.formats.manifests import MissingManifestError, decode_version
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.stores.object_store import Listing, NotFoundError, ObjectInfo

T = TypeVar("T")

_LISTS_KEPT: Final = 20
"""Lists in memory between two steps.  More: fewer GETs, and 0.3 MB of memory each."""

_NOT_FOUND: Final = Retry(wait_s=1.0, longest_wait_s=1.0, attempts=2, errors=(NotFoundError,))
"""Of a list: a node of the store may lag."""


class PartitionReads:
    """See the module.  A failed read is repeated before the work on its partition is abandoned.

    Args:
        offload: decodes and compares manifests off the event loop: a large one takes 15 ms.
    """

    def __init__(
        self,
        metadata: CollectorReads,
        pages: ObjectPages,
        unknown_keys: UnknownKeys,
        offload: Offload,
    ) -> None:
        self._metadata = metadata
        self._objects = pages.objects
        self._unknown_keys = unknown_keys
        self._offload = offload
        self._retry = pages.retry
        self._pages = replace(pages, pause_ms=0)

    async def versions(self, partition: NamedPartition) -> Versions | None:
        """The partition's versions; None: it does not exist, or no longer.

        Raises:
            MissingManifestError: the version that the key names is not listed, nor a later one.
            CorruptError: the partition's key is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store.
        """
        key = partition_key(partition.tp)
        (kv,) = await self._metadata.get(key)
        if kv is None:
            return None
        named = decode_at(kv.key, kv.value, decode_partition_state).manifest_version
        found = await self._list(partition)
        newest = found.ascending[-1].number if found.ascending else 0
        if newest < named:
            raise MissingManifestError(
                layout.manifest_key(partition.topic, partition.tp, named),
                f"not listed; the newest that is listed is version {newest}",
            )
        return found

    async def manifest(self, partition: NamedPartition, version: Version) -> Manifest | None:
        """The version; None: it is not there (any more).

        Raises:
            CorruptManifestError: it is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store.
        """
        topic, tp, number = partition.topic, partition.tp, version.number
        try:
            key = layout.manifest_key(topic, tp, number)
            body = await self._ask(partial(self._objects.get, key))
        except NotFoundError:
            return None
        found: Manifest = await self._offload(decode_version, body, topic, tp, number)
        return found

    async def check_newest(
        self, partition: NamedPartition, before: Versions, error: MissingListError
    ) -> None:
        """A list that is missing of the newest version is damage, if it is still the newest one.

        Raises:
            MissingManifestError: it is damage.
            CorruptError, UnavailableError, OutcomeUnknownError, TimeoutError: as `versions`.
        """
        newest = before.ascending[-1]
        if error.newer.version < newest.number:
            return
        there = await self.versions(partition)
        if there is not None and there.ascending[-1:] == (newest,):
            raise MissingManifestError(error.key, "missing") from error

    async def replaced(
        self, older: Manifest, later: Manifest, newest: Manifest, read: ListsRead
    ) -> AsyncIterator[Sizes]:
        """The objects that *older* names, and neither *later* nor *newest* does: in parts, which
        ascend by offset.

        Raises:
            MissingListError: a list of *later* or *newest* is not there.
            CorruptManifestError: a list is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store.
        """
        while True:
            needs = await self._offload(difference, older, later, read.lists)
            if not isinstance(needs, NeedsLists) or needs.refs[0].level == 1:
                break
            await self._read_lists(needs, later, read)
        for window in windows(needs) if isinstance(needs, NeedsLists) else [EVERYTHING]:
            gone = await self._difference(older, later, window, read)
            if gone and later is not newest:
                kept = await self._difference(older, newest, window, read)
                gone = {key: size for key, size in gone.items() if key in kept}
            yield gone
            await self._trim(read)

    async def _difference(
        self, older: Manifest, newer: Manifest, window: Window, read: ListsRead
    ) -> Sizes:
        while True:
            step: Sizes | NeedsLists = await self._offload(
                difference, older, newer, read.lists, window
            )
            if not isinstance(step, NeedsLists):
                return step
            await self._read_lists(step, newer, read)

    async def named_within(
        self, manifest: Manifest, segments: Window, of_lists: Window, read: ListsRead
    ) -> frozenset[str]:
        """See `manifest_names`; raises as `replaced`."""
        while True:
            step: frozenset[str] | NeedsLists = await self._offload(
                named_within, manifest, segments, of_lists, read.lists
            )
            if not isinstance(step, NeedsLists):
                await self._trim(read)
                return step
            await self._read_lists(step, manifest, read)

    async def parsed(self, page: Listing) -> list[tuple[layout.Key, ObjectInfo]]:
        """The objects of *page* with keys that driftlog writes."""
        return list(await self._offload(self._parse, page))

    def _parse(self, page: Listing) -> list[tuple[layout.Key, ObjectInfo]]:
        found: list[tuple[layout.Key, ObjectInfo]] = []
        for info in page.objects:
            key = self._unknown_keys.parsed(info.key, layout.parse_key)
            if key is not None:
                found.append((key, info))
        return found

    async def free(self, read: ListsRead) -> None:
        """Forget *read*, which is needed no more, off the event loop."""
        await self._offload(read.free)

    async def _trim(self, read: ListsRead) -> None:
        """Keep a bounded number."""
        if len(read.lists) > _LISTS_KEPT:
            await self.free(read)

    async def _read_lists(self, needs: NeedsLists, newer: Manifest, read: ListsRead) -> None:
        for ref in needs.refs:
            read.require(ref, newer)
            body = await self._list_object(ref.key)
            content = None if body is None else await self._offload(decode_segment_list, body, ref)
            read.add(ref, content)

    async def _list_object(self, key: str) -> Buffer | None:
        """None: two reads do not find it."""
        try:
            return await _NOT_FOUND.run(lambda: self._ask(partial(self._objects.get, key)))
        except NotFoundError:
            return None

    async def _list(self, partition: NamedPartition) -> Versions:
        found: list[Version] = []
        now_ms = 0
        prefix = layout.manifest_prefix(partition.topic, partition.tp)
        async for page in self._pages.of(prefix):
            now_ms = now_ms or page.store_now_ms
            for info in page.objects:
                key = self._unknown_keys.parsed(info.key, layout.parse_manifest_key)
                if key is not None:
                    found.append(Version(key.version, info.modified_ms, info.size_bytes))
        return Versions(tuple(reversed(found)), now_ms)

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await self._retry.run(ask)
