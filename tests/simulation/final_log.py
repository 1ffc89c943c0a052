"""What is in the stores when everything is over, read without the agent's code paths.

Sealed segments through the manifest and pyarrow, the rest through flush records and
footers; every object that is named must be there.
"""

import io
import json
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from driftlog_metadata.schema.codec import decode_flush_record, decode_partition_state, decode_topic
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, TOPICS_PREFIX, partition_key
from driftlog_metadata.schema.model import PartitionState, Topic, TopicPartition
from driftlog_tiering.batches.batch import iterate_batches, parse_header
from driftlog_tiering.formats.flush_object import decode_footer
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import LeaderEpoch, Manifest
from driftlog_tiering.formats.manifests import iter_segments, load_newest
from tests.simulation import compaction
from tests.simulation.batches import Row, rows_of
from tests.simulation.oracle import GONE

if TYPE_CHECKING:
    from tests.simulation.world import World

Log = list[Row]
"""By offset."""


async def read_topics(world: "World") -> dict[UUID, Topic]:
    """The topics that are there."""
    _, kvs = await world.metadata.get_prefix(TOPICS_PREFIX)
    topics = [decode_topic(kv.value) for kv in kvs]
    return {topic.topic_id: topic for topic in topics}


async def read_log_start(world: "World", topic: str, tp: TopicPartition) -> int:
    """Where the log starts: the larger of what store and manifest say."""
    manifest = await load_newest(world.bucket, topic, tp)
    return max((await _state(world, tp)).log_start, manifest.log_start if manifest else 0)


async def _state(world: "World", tp: TopicPartition) -> PartitionState:
    kv = await world.metadata.get(partition_key(tp))
    return decode_partition_state(kv.value) if kv else PartitionState()


async def read_final_log(world: "World", topic: str, tp: TopicPartition) -> Log:
    """The whole log of a partition, offsets 0 to its end; of what is deleted, if it is there."""
    state = await _state(world, tp)
    found: dict[int, Row] = {}
    sealed_end = state.sealed_end
    manifest = await load_newest(world.bucket, topic, tp)
    world.expect(
        (manifest.version if manifest else 0) >= state.manifest_version,
        "the manifest that the partition's key names is not there",
    )
    if manifest is not None:
        sealed_end = max(sealed_end, manifest.end)  # ahead of the key: to be adopted
        found = await read_sealed(world, manifest)
    _, records = await world.metadata.get_prefix(FLUSHES_PREFIX)
    for kv in records:
        record = decode_flush_record(kv.value)
        body = await world.bucket.get(record.object_key)
        world.expect(len(body) == record.size_bytes, f"{record.object_key}: size")
        footer = decode_footer(body[record.footer_start :])
        for s in footer.slices():
            if (s.topic_id, s.partition) != (tp.topic_id, tp.partition):
                continue
            for index in range(s.first, s.first + s.count):
                entry = footer.batch(index)
                batch = body[entry.position : entry.position + entry.length]
                header = parse_header(batch)
                world.expect(header.base_offset == entry.base_offset, "footer and batch differ")
                if header.base_offset < sealed_end:
                    continue
                for offset, row in rows_of(batch):
                    _put(world, found, offset, row)
    end = max(found, default=sealed_end - 1) + 1
    start = max(state.log_start, manifest.log_start if manifest else 0)
    cleaned_end = manifest.cleaned_end if manifest is not None else 0
    world.expect(topic in world.compacted or not cleaned_end, f"{tp} is compacted")
    dense = max(start, cleaned_end)  # below it, there may be gaps
    missing = [offset for offset in range(dense, end) if offset not in found]
    world.expect(
        not missing and sealed_end <= end, f"offsets are not dense from {dense} on: {missing}"
    )
    log = [found.get(offset, GONE) for offset in range(end)]
    compaction.check(log, start, cleaned_end, world.expect)
    return log


async def read_sealed(world: "World", manifest: Manifest) -> dict[int, Row]:
    """The records of all segments that *manifest* names, by offset."""
    found: dict[int, Row] = {}
    async for segment in iter_segments(world.bucket, manifest):
        body = await world.bucket.get(segment.key)
        if segment.kind is SegmentKind.RAW:
            for _, undecoded in iterate_batches(body):
                for offset, row in rows_of(undecoded):
                    _put(world, found, offset, row)
            continue
        file = pq.ParquetFile(io.BytesIO(body))
        facts = json.loads(file.metadata.metadata[b"driftlog.segment"])
        table = file.read()
        epochs = [LeaderEpoch(*entry) for entry in facts["leader_epochs"]]
        offsets = table.column("offset").to_pylist()
        world.expect(len(offsets) == segment.records, f"{segment.key}: records")
        for offset, value, timestamp in zip(
            offsets,
            _values(table),
            table.column("timestamp").cast("int64").to_pylist(),
            strict=True,
        ):
            world.expect(segment.base <= offset < segment.end, f"{segment.key}: range")
            epoch = _epoch_at(epochs, offset)
            world.expect(
                offset < manifest.log_start or epoch == _epoch_at(manifest.leader_epochs, offset),
                f"{segment.key} and the manifest disagree on the leader epoch of {offset}",
            )
            _put(world, found, offset, Row(value, False, timestamp // 1000, epoch))
    return found


async def read_ends(world: "World", *, without: Set[UUID]) -> dict[TopicPartition, int]:
    """What is committed of each partition, but of the topics *without*."""
    return {
        tp: len(await read_final_log(world, topic.name, tp))
        for topic in (await read_topics(world)).values()
        if topic.topic_id not in without
        for tp in (TopicPartition(topic.topic_id, p) for p in range(topic.partitions))
    }


def _values(table: pa.Table) -> list[bytes]:
    """Of a tombstone: which record it is."""
    headers = table.column("headers").to_pylist()
    values = table.column("value").to_pylist()
    return [
        found[0]["value"] if value is None else value
        for value, found in zip(values, headers, strict=True)
    ]


def _put(world: "World", found: dict[int, Row], offset: int, row: Row) -> None:
    world.expect(offset not in found, f"two records at offset {offset}")
    found[offset] = row


def _epoch_at(epochs: Sequence[LeaderEpoch], offset: int) -> int:
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=-1)
