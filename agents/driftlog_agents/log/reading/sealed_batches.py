"""Makes batches of what the sealed log holds, and finds the segment of an offset.

    manifest, list ──`entry_at`──▶ list │ segment: row group ──`encode`───▶ batches
                                        │ object of batches ───`take_raw`─▶
                                        │ gap ─────────────────`covering`─▶

Re-encoded batches start at the requested offset and cover offsets without a record (a gap in a
segment, between segments, or after the last one), so that a reader reaches the end.

Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from driftlog_agents.log.reading.read_plan import Batches
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import HEADER_BYTES, BatchHeader, Codec, iterate_batches
from driftlog_tiering.formats.columns import EncodedBatch
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef, SegmentRef
from driftlog_tiering.formats.segment import RowGroupBatches
from driftlog_tiering.stores.object_store import Buffer

SMALLEST_BATCH_BYTES: Final = 16 * 1024
"""A fetch with a smaller limit still gets a batch worth its overhead, as it would from Kafka."""

_LEVELS: Final = {Codec.GZIP: 1, Codec.ZSTD: 1}
"""Fast levels: a consumer waits for the result, and it is used once."""


class RawBatch(NamedTuple):
    """One batch of an object of batches that could not be decoded."""

    header: BatchHeader
    batch: memoryview


@dataclass(frozen=True, slots=True)
class Gap:
    """No segment holds the offset, nor any offset from it to *end*."""

    end: int


def entry_at(
    content: Manifest | SegmentList, offset: int, end: int
) -> SegmentRef | SegmentListRef | Gap:
    """What holds *offset*, by *content*, which ends at *end*."""
    assert offset < end
    entries: tuple[SegmentRef | SegmentListRef, ...] = (*content.lists, *content.segments)
    i = bisect_right(entries, offset, key=lambda entry: entry.end)
    if i == len(entries):
        return Gap(end)
    return Gap(entries[i].base) if offset < entries[i].base else entries[i]


def codec_for(wanted: Codec | None, segment: Codec, *, zstd: bool) -> Codec:
    """The codec of re-encoded batches: *wanted*, or that of the *segment*'s batches; a client that
    cannot read zstd gets them uncompressed."""
    codec = segment if wanted is None else wanted
    return Codec.NONE if codec is Codec.ZSTD and not zstd else codec


def encode(
    group: RowGroupBatches, offset: int, codec: Codec, max_bytes: int, batch_bytes: int
) -> tuple[list[Buffer], int]:
    """Batches from *offset* on, at most *max_bytes* or one, and where they end.

    Each batch is as large as the remaining room allows, so that hardly anything is encoded in vain.
    """
    out: list[Buffer] = []
    room = max_bytes
    while offset < group.end and (not out or room >= SMALLEST_BATCH_BYTES):
        target = min(batch_bytes, max(room - HEADER_BYTES, SMALLEST_BATCH_BYTES))
        made = group.batches(offset, codec=codec, level=_LEVELS.get(codec), batch_bytes=target)
        batch = next(iter(made))
        if out and len(batch.data) > room:
            break
        out.append(batch.data)
        room -= len(batch.data)
        offset = batch.end_offset
    return out, offset


def covering(gap: Iterable[EncodedBatch], end: int) -> Batches:
    """The empty batches of a gap that ends at *end*."""
    found = list(gap)
    return Batches([batch.data for batch in found], found[-1].end_offset, end)


def split_raw(body: Buffer, ref: SegmentRef) -> list[RawBatch]:
    """The batches of an object, back to back, each with a CRC.

    Raises:
        CorruptError: they are not those of *ref*.
    """
    found: list[RawBatch] = []
    for header, batch in iterate_batches(body):
        if isinstance(kernel.check(batch, 0, len(batch), False), int):
            raise CorruptError(f"a batch at offset {header.base_offset} is damaged")
        if found and header.base_offset < found[-1].header.end_offset:
            raise CorruptError(f"a batch at offset {header.base_offset} is not in its order")
        found.append(RawBatch(header, batch))
    ends = (found[0].header.base_offset, found[-1].header.end_offset) if found else None
    if ends != (ref.base, ref.end):
        raise CorruptError(f"batches of other offsets: {ends}")
    return found


def take_raw(raw: list[RawBatch], offset: int, max_bytes: int, unit_end: int) -> Batches:
    """Those from *offset* on that fit *max_bytes*; one at least."""
    first = bisect_right(raw, offset, key=lambda one: one.header.end_offset)
    end, room = first + 1, max_bytes - len(raw[first].batch)
    while end < len(raw) and len(raw[end].batch) <= room:
        room -= len(raw[end].batch)
        end += 1
    return Batches([one.batch for one in raw[first:end]], raw[end - 1].header.end_offset, unit_end)
