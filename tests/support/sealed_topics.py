"""Topics in a bucket as agents leave them: real segments, real manifests, topic files.

Shell.
"""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeVar
from uuid import UUID, uuid4

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, Topic, TopicPartition
from driftlog_tiering.batches.batch import Codec, build_batch
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import (
    DeletedTopic,
    TopicFile,
    encode_cluster,
    encode_deleted,
    encode_topic,
)
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    Manifest,
    SegmentRef,
    empty_manifest,
)
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import ROW_GROUP_BYTES, SegmentInfo, SegmentWriter
from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore
from tests.support.clusters import AUTHOR

T = TypeVar("T")


class Message(NamedTuple):
    """A record and its timestamp."""

    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class SealedTopic:
    """One topic at *location*, sealed range by range."""

    location: str
    name: str
    partitions: int = 1
    topic_id: UUID = field(default_factory=uuid4)
    nonces: "count[int]" = field(default_factory=count)
    cluster: Cluster = AUTHOR
    row_group_bytes: int = ROW_GROUP_BYTES
    configs: dict[str, str] = field(default_factory=dict)
    grace: Grace = field(default_factory=Grace)

    def create(self) -> "SealedTopic":
        """Write its first file, and the cluster's where there is none."""

        async def main(store: ObjectStore) -> None:
            with contextlib.suppress(AlreadyExistsError):
                await store.create(layout.CLUSTER_KEY, [encode_cluster(self.cluster, self.grace)])
            topic = Topic(
                name=self.name,
                topic_id=self.topic_id,
                partitions=self.partitions,
                configs=self.configs,
            )
            body = encode_topic(TopicFile(1, topic))
            await store.create(layout.topic_key(self.name, self.topic_id, 1), [body])

        self.with_store(main)
        return self

    def alter(self, configs: dict[str, str]) -> None:
        """Give it other configs, as a new version of its file."""
        self.configs = configs

        async def main(store: ObjectStore) -> None:
            topic = Topic(
                name=self.name,
                topic_id=self.topic_id,
                partitions=self.partitions,
                configs=configs,
            )
            for version in count(2):
                key = layout.topic_key(self.name, self.topic_id, version)
                with contextlib.suppress(AlreadyExistsError):
                    await store.create(key, [encode_topic(TopicFile(version, topic))])
                    return

        self.with_store(main)

    def delete(self) -> None:
        """Mark it as deleted."""

        async def main(store: ObjectStore) -> None:
            body = encode_deleted(DeletedTopic(self.name, self.topic_id, 0))
            await store.create(layout.deleted_key(self.name, self.topic_id), [body])

        self.with_store(main)

    def seal(
        self,
        partition: int,
        base: int,
        *segments: Sequence[Message | None],
        codec: Codec = Codec.NONE,
    ) -> tuple[SegmentRef, ...]:
        """Seal segments from *base* on, with one edit; None is an offset without a record."""
        return self.seal_batches(partition, base, _batches(base, segments, codec))

    def seal_batches(
        self, partition: int, base: int, segments: Sequence[tuple[int, Sequence[Buffer]]]
    ) -> tuple[SegmentRef, ...]:
        """Seal segments from *base* on: of each, the offset where it ends, and its batches."""
        refs, bodies = self._write(partition, base, segments)
        self._add(partition, refs, bodies)
        return tuple(refs)

    def put(
        self, partition: int, base: int, *segments: Sequence[Message | None]
    ) -> list[SegmentRef]:
        """Store segments as `seal` does, without the edit."""
        refs, bodies = self._write(partition, base, _batches(base, segments, Codec.NONE))
        self._put(refs, bodies)
        return refs

    def _write(
        self, partition: int, base: int, segments: Sequence[tuple[int, Sequence[Buffer]]]
    ) -> tuple[list[SegmentRef], list[bytes]]:
        refs: list[SegmentRef] = []
        bodies: list[bytes] = []
        for end, batches in segments:
            sink = io.BytesIO()
            writer = SegmentWriter(
                sink,
                topic=self.name,
                topic_id=self.topic_id,
                partition=partition,
                base=base,
                row_group_bytes=self.row_group_bytes,
            )
            for batch in batches:
                writer.append(batch)
            refs.append(self._ref(partition, writer.finish(end)))
            bodies.append(sink.getvalue())
            base = end
        return refs, bodies

    def seal_raw(self, partition: int, base: int, end: int) -> SegmentRef:
        """Keep a range verbatim, as what cannot be decoded is kept."""
        tp = self.tp(partition)
        nonce = f"r{next(self.nonces)}"
        ref = SegmentRef(
            key=layout.segment_key(self.name, tp, base, end, nonce, SegmentKind.RAW),
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=7,
            records=0,
            raw_bytes=7,
        )
        self._add(partition, [ref], [b"garbage"])
        return ref

    def edit(self, partition: int, edit: Edit) -> None:
        """Commit an edit of a partition's manifest."""

        async def main(store: ObjectStore) -> None:
            tp = self.tp(partition)
            newest = await load_newest(store, self.name, tp) or empty_manifest(self.name, tp)
            await commit_edit(
                store,
                newest,
                edit,
                f"e{next(self.nonces)}",
                author=self.cluster,
                read_at_ms=0,
                deadline_ms=60_000,
                now_ms=lambda: 0,
            )

        self.with_store(main)

    def manifest(self, partition: int) -> Manifest:
        """A partition's newest manifest, of which something is sealed."""
        found = self.with_store(lambda store: load_newest(store, self.name, self.tp(partition)))
        assert found is not None
        return found

    def tp(self, partition: int) -> TopicPartition:
        """Its id and a partition."""
        return TopicPartition(self.topic_id, partition)

    def with_store(self, main: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Run *main* on the store at the location."""

        async def run() -> T:
            store = open_object_store(self.location)
            try:
                return await main(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def _ref(self, partition: int, info: SegmentInfo) -> SegmentRef:
        nonce = f"s{next(self.nonces)}"
        return SegmentRef(
            key=layout.segment_key(self.name, self.tp(partition), info.base, info.end, nonce),
            base=info.base,
            end=info.end,
            size_bytes=info.size_bytes,
            records=info.records,
            raw_bytes=info.raw_bytes,
            min_timestamp_ms=info.min_timestamp_ms,
            max_timestamp_ms=info.max_timestamp_ms,
            max_timestamp_offset=info.max_timestamp_offset,
            codec=info.codec,
            footer_crc=info.footer_crc,
        )

    def _put(self, refs: Sequence[SegmentRef], bodies: Sequence[bytes]) -> None:
        async def main(store: ObjectStore) -> None:
            for ref, body in zip(refs, bodies, strict=True):
                await store.put(ref.key, [body])

        self.with_store(main)

    def _add(self, partition: int, refs: Sequence[SegmentRef], bodies: Sequence[bytes]) -> None:
        self._put(refs, bodies)
        self.edit(
            partition,
            AddSegments(
                base=refs[0].base,
                end=refs[-1].end,
                segments=tuple(refs),
                leader_epochs=(),
                producers=None,
            ),
        )


def _batches(
    base: int, segments: Sequence[Sequence[Message | None]], codec: Codec
) -> list[tuple[int, list[Buffer]]]:
    """Of each segment, the offset where it ends, and its batches."""
    found: list[tuple[int, list[Buffer]]] = []
    for messages in segments:
        made = [
            make_batch(base + i, messages[i : i + 50], codec) for i in range(0, len(messages), 50)
        ]
        base += len(messages)
        found.append((base, [batch for batch in made if batch is not None]))
    return found


def make_batch(
    base: int, messages: Sequence[Message | None], codec: Codec = Codec.NONE
) -> bytearray | None:
    """A batch as it stands in the log; None if no message is left in it."""
    present = [(i, message) for i, message in enumerate(messages) if message is not None]
    if not present:
        return None
    first = present[0][1].timestamp_ms
    section = b"".join(
        encode_record(
            Record(message.timestamp_ms - first, i, message.key, message.value, message.headers)
        )
        for i, message in present
    )
    return build_batch(
        compress(codec, section),
        base_offset=base,
        last_offset_delta=len(messages) - 1,
        record_count=len(present),
        attributes=codec,
        base_timestamp=first,
        max_timestamp=max(message.timestamp_ms for _, message in present),
        leader_epoch=0,
    )
