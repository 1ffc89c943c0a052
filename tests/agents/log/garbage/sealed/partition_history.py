"""A partition whose manifest is edited by hand, in a bucket and a metadata store in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

from driftlog_agents.foundation.offload import inline
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition
from driftlog_agents.log.garbage.deletions import Deletions, believe
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.superseded_versions import SupersededVersions
from driftlog_agents.log.garbage.sealed.unnamed_objects import UnnamedObjects
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import encode_partition_state, encode_topic
from driftlog_metadata.schema.grace import HOUR_MS, Grace
from driftlog_metadata.schema.keys import partition_key, topic_key
from driftlog_metadata.schema.model import PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    Manifest,
    ProducerSnapshotRef,
    SegmentRef,
    SetLogStart,
    empty_manifest,
)
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from driftlog_tiering.stores.object_store import Listing, NotFoundError
from tests.support.clusters import AUTHOR
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

TOPIC = Topic(name="t", topic_id=UUID(int=7, version=4), partitions=1)
LIVE = {TOPIC.topic_id: TOPIC}
TP = TopicPartition(TOPIC.topic_id, 0)
PARTITION = NamedPartition("t", TP)
GRACE_H = 12.0

Keys = list[str]


class Bucket(MemoryObjectStore):
    """A bucket that may fail a delete, and that remembers requests."""

    deletes_fail = False
    deletes_left = 1_000_000
    """After so many every delete fails."""
    gets: Keys
    lists: Keys
    deleted: Keys
    hidden: set[str]
    """Keys that no read finds, as a node of the store that lags."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets.append(key)
        if key in self.hidden:
            raise NotFoundError(key)
        return await super().get(key, start, end)

    def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        self.lists.append(prefix)
        return super().list(prefix, start_after=start_after, page_size=page_size)

    async def delete(self, keys: Sequence[str]) -> None:
        if self.deletes_fail or len(self.deleted) >= self.deletes_left:
            raise UnavailableError("503")
        self.deleted += keys
        await super().delete(keys)


class History:
    """See the module.  Time is in hours; it passes when `now_h` is set."""

    def __init__(self) -> None:
        self.now_h = 1_000.0
        self.bucket = Bucket(self.now_ms)
        self.bucket.gets, self.bucket.deleted = [], []
        self.bucket.lists, self.bucket.hidden = [], set()
        self.metadata = MemoryMetadataStore(self.now_ms)
        self.deletions = Deletions(self.bucket, believe, request_retry(10_000))
        self.pages = ObjectPages(self.bucket, request_retry(1_000), 0, PutTimes(Grace()))
        self.offloaded: list[tuple[str, Any]] = []
        """Names of what ran off the event loop, and whose method it was."""
        self.reads = PartitionReads(
            CollectorReads(self.metadata, request_retry(1_000)),
            self.pages,
            UnknownKeys(),
            self._offload,
        )
        self.handed_over: list[NamedPartition] = []
        self.damaged: list[CorruptError] = []
        self.newest: Manifest = empty_manifest("t", TP)
        self._nonces = iter(f"n{n}" for n in range(100_000))

    def now_ms(self) -> int:
        return int(self.now_h * HOUR_MS)

    @property
    def walks(self) -> SupersededVersions:
        return SupersededVersions(self.reads, self.deletions, Grace(), pause_ms=0)

    def listings(self) -> UnnamedObjects:
        return UnnamedObjects(
            self.reads,
            self.deletions,
            Grace(),
            superseded=lambda partition, overdue: (
                self.handed_over.append(partition) if overdue else None
            ),
            damaged=lambda _, error: self.damaged.append(error),
        )

    async def list_with(self, unnamed: UnnamedObjects) -> bool:
        """One listing, of one page; False: not all of it was judged."""
        (page,) = [page async for page in self.pages.of("topics/")]
        left = await unnamed.look(LIVE, page)
        unnamed.unjudged.looked(LIVE.keys(), left, page.store_now_ms)
        return not left

    async def _offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.offloaded.append((fn.__name__, getattr(fn, "__self__", None)))
        return await inline(fn, *args)

    async def begin(self) -> "History":
        """The topic and the partition are there."""
        state = encode_partition_state(PartitionState())
        puts = [Put(partition_key(TP), state), Put(topic_key("t"), encode_topic(TOPIC))]
        await self.metadata.txn((), puts)
        return self

    async def put_segment(self, base: int, end: int) -> SegmentRef:
        key = layout.segment_key("t", TP, base, end, next(self._nonces))
        await self.bucket.put(key, [b"s" * 10])
        return SegmentRef(key=key, base=base, end=end, size_bytes=10, records=1, raw_bytes=10)

    async def seal(self, count: int = 10, segments: int = 1) -> list[SegmentRef]:
        """Add segments and a producer snapshot; returns the segments."""
        refs: list[SegmentRef] = []
        at = self.newest.end
        for _ in range(segments):
            refs.append(await self.put_segment(at, at + count))
            at += count
        snapshot = layout.producer_snapshot_key("t", TP, at, next(self._nonces))
        await self.bucket.put(snapshot, [b"p"])
        await self.edit(
            AddSegments(
                base=refs[0].base,
                end=at,
                segments=tuple(refs),
                leader_epochs=(),
                producers=ProducerSnapshotRef(at, snapshot),
            )
        )
        return refs

    async def delete_records(self, log_start: int) -> None:
        await self.edit(SetLogStart(log_start))

    async def edit(self, edit: Edit) -> None:
        self.newest = await commit_edit(
            self.bucket,
            self.newest,
            edit,
            next(self._nonces),
            author=AUTHOR,
            read_at_ms=self.now_ms(),
            deadline_ms=self.now_ms() + 1_000,
            now_ms=self.now_ms,
        )
        state = PartitionState(sealed_end=self.newest.end, manifest_version=self.newest.version)
        await self.metadata.txn((), [Put(partition_key(TP), encode_partition_state(state))])

    async def keys(self) -> list[str]:
        return [info.key async for page in self.bucket.list("") for info in page.objects]

    async def versions(self) -> list[int]:
        """The manifest versions that are there, ascending."""
        prefix = layout.manifest_prefix("t", TP)
        keys = [key for key in await self.keys() if key.startswith(prefix)]
        return sorted(layout.parse_manifest_key(key).version for key in keys)

    async def reload(self) -> None:
        """The newest manifest, as it is in the bucket."""
        newest = await load_newest(self.bucket, "t", TP)
        assert newest == self.newest
