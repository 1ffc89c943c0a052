"""What is in the stores when everything is over, read without the agent's code paths.

Sealed segments through the manifest and pyarrow, the rest through flush records and
footers; every object that is named must be there.
"""

import io
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from driftlog_metadata.codec import decode_flush_record, decode_partition_state
from driftlog_metadata.keys import FLUSHES_PREFIX, partition_key
from driftlog_metadata.model import PartitionState, TopicPartition
from driftlog_tiering.batch import parse_header
from driftlog_tiering.flush_object import decode_footer
from driftlog_tiering.layout import SegmentKind
from driftlog_tiering.manifests import iter_segments, load_newest
from tests.simulation.batches import values_of

if TYPE_CHECKING:
    from tests.simulation.world import World

Log = list[tuple[bytes, bool]]
"""(value, whether it is garbage) by offset."""


async def read_final_log(world: "World", topic: str, tp: TopicPartition) -> Log:
    """The whole log of a partition, offsets 0 to its end."""
    state_kv = await world.metadata.get(partition_key(tp))
    state = decode_partition_state(state_kv.value) if state_kv else PartitionState()
    found: dict[int, tuple[bytes, bool]] = {}
    sealed_end = state.sealed_end
    manifest = await load_newest(world.bucket, topic, tp)
    world.expect(
        (manifest.version if manifest else 0) >= state.manifest_version,
        "the manifest that the partition's key names is not there",
    )
    if manifest is not None:
        sealed_end = max(sealed_end, manifest.end)  # ahead of the key: to be adopted
        async for segment in iter_segments(world.bucket, manifest):
            body = await world.bucket.get(segment.key)
            if segment.kind is SegmentKind.RAW:
                for offset in range(segment.base, segment.end):
                    _put(world, found, offset, (b"", True))
                continue
            table = pq.read_table(io.BytesIO(body))
            offsets = table.column("offset").to_pylist()
            world.expect(len(offsets) == segment.records, f"{segment.key}: records")
            for offset, value in zip(offsets, table.column("value").to_pylist(), strict=True):
                world.expect(segment.base <= offset < segment.end, f"{segment.key}: range")
                _put(world, found, offset, (value, False))
    epochs: list[tuple[int, int]] = []
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
                epochs.append((header.base_offset, header.partition_leader_epoch))
                if header.base_offset < sealed_end:
                    continue
                try:
                    values = [(offset, (value, False)) for offset, value in values_of(batch)]
                except IndexError:
                    values = [(header.base_offset, (b"", True))]
                for offset, value in values:
                    _put(world, found, offset, value)
    ordered = [epoch for _, epoch in sorted(epochs)]
    world.expect(ordered == sorted(ordered), f"leader epochs go back: {ordered}")
    world.expect(
        sorted(found) == list(range(len(found))), f"offsets are not dense: {sorted(found)}"
    )
    return [found[offset] for offset in range(len(found))]


def _put(
    world: "World", found: dict[int, tuple[bytes, bool]], offset: int, value: tuple[bytes, bool]
) -> None:
    world.expect(offset not in found, f"two records at offset {offset}")
    found[offset] = value
