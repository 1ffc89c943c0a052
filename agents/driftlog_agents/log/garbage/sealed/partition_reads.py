"""The collector's reads of one partition: its key, its manifest versions, and their lists.

    partition's key ──▶ LIST of manifest versions ──▶ manifests, lists (as far as they are needed)

The newest version in the listing is at least the one that the key names, which is read first: a
listing without it is not believed.

Shell.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.garbage.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.object_pages import ObjectPages
from driftlog_agents.log.garbage.sealed.manifest_names import Sizes, difference, named_within
from driftlog_agents.log.garbage.sealed.version_pairs import NamedPartition, Version
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_partition_state
from driftlog_metadata.schema.keys import partition_key
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentList
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.formats.manifest_edits import NeedsLists
from driftlog_tiering.formats.manifests import MissingManifestError, decode_version
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versions:
    """The manifest versions of a partition, ascending, and the store's clock at the listing."""

    ascending: tuple[Version, ...]
    store_now_ms: int


class PartitionReads:
    """See the module.  A failed read is repeated before the work on its partition is abandoned.

    Args:
        offload: decodes manifests and lists off the event loop: a large one takes 15 ms.
        deadline_ms: of each request.
    """

    def __init__(
        self,
        metadata: CollectorReads,
        objects: ObjectStore,
        strangers: UnknownKeys,
        offload: Offload,
        deadline_ms: float,
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._strangers = strangers
        self._offload = offload
        self._retry = Retry(
            wait_s=1.0, longest_wait_s=1.0, timeout_s=deadline_ms / 1000, attempts=3
        )
        self._list_retry = replace(self._retry, timeout_s=None)
        """Each page of a listing has the deadline: a long history has hundreds."""
        self._pages = ObjectPages(objects, deadline_ms, pause_ms=0)

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
        found = await self._list_retry.run(partial(self._list, partition))
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

    async def difference(
        self, older: Manifest, newer: Manifest, lists: dict[str, SegmentList | None]
    ) -> Sizes:
        """See `manifest_names`; *lists* are the lists read so far, and get more.

        Raises:
            MissingManifestError: a list of *newer* is not there.
            CorruptManifestError: a list is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store.
        """
        while True:
            step = difference(older, newer, lists)
            if not isinstance(step, NeedsLists):
                return step
            await self._read_lists(step, lists)

    async def named_within(
        self, manifest: Manifest, base: int, end: int, lists: dict[str, SegmentList | None]
    ) -> frozenset[str]:
        """As `difference`."""
        while True:
            step = named_within(manifest, base, end, lists)
            if not isinstance(step, NeedsLists):
                return step
            await self._read_lists(step, lists)

    async def _read_lists(self, needs: NeedsLists, lists: dict[str, SegmentList | None]) -> None:
        for ref in needs.refs:
            if ref.key in lists:
                raise MissingManifestError(ref.key, "missing")
            try:
                body = await self._ask(partial(self._objects.get, ref.key))
            except NotFoundError:
                lists[ref.key] = None
            else:
                lists[ref.key] = await self._offload(decode_segment_list, body, ref)

    async def _list(self, partition: NamedPartition) -> Versions:
        found: list[Version] = []
        now_ms = 0
        prefix = layout.manifest_prefix(partition.topic, partition.tp)
        async for page in self._pages.of(prefix):
            now_ms = now_ms or page.store_now_ms
            for info in page.objects:
                key = self._strangers.parsed(info.key, layout.parse_manifest_key)
                if key is not None:
                    found.append(Version(key.version, info.modified_ms, info.size_bytes))
        return Versions(tuple(reversed(found)), now_ms)

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await self._retry.run(ask)
