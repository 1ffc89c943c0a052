"""Plans reads of the sealed log, and makes their batches.

    manifest ──▶ lists ──▶ segment ──▶ footer ──▶ row group ──`encode`──▶ batches
                   │                                 ▲                       │
                   │                                 └── the next, if it is loaded
                   ├─────▶ object of batches ───────────────`take_raw`──▶ batches
                   └─────▶ gap ─────────────────────────────`covering`──▶ empty batches

A read is a generator: it yields what it needs next (`Ask`), and is sent the answer; `segments`
fetches.  Re-encoded batches start at the requested offset and cover offsets without a record (a gap
in a segment, between segments, or after the last one), so that a reader reaches the end.

Pure.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from driftlog_agents.log.reading.read_plan import Batches
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import HEADER_BYTES, BatchHeader, Codec, iterate_batches
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef, SegmentRef
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.columns import EncodedBatch, gap_batches
from driftlog_tiering.segments.segment import RowGroup, RowGroupBatches, SegmentReader

_SMALLEST_BATCH_BYTES: Final = 16 * 1024
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


class Open(NamedTuple):
    """Asks for what *ref* names: a `SegmentList`, a `SegmentReader`, or the `RawBatch`es of an
    object of batches."""

    ref: SegmentRef | SegmentListRef


class GroupOf(NamedTuple):
    """A row group, and where it is."""

    ref: SegmentRef
    reader: SegmentReader
    group: RowGroup

    @property
    def key(self) -> tuple[str, int]:
        """The object's key, and the number of the row group in it."""
        return self.ref.key, self.group.index


class Encode(NamedTuple):
    """Asks for batches of the row group from *offset* on, as `encode` makes them."""

    of: GroupOf
    offset: int
    codec: Codec
    max_bytes: int


class IsLoaded(NamedTuple):
    """Asks whether the row group is in memory."""

    of: GroupOf


class Load(NamedTuple):
    """Asks to load the row group, if that evicts nothing in use; the answer: whether it is in
    memory."""

    of: GroupOf


class Finish(NamedTuple):
    """Tells that the read came to the row group's end."""

    of: GroupOf


Ask = Open | Encode | IsLoaded | Load | Finish


def read_sealed(
    manifest: Manifest, offset: int, max_bytes: int, codec: Codec | None, *, zstd: bool
) -> Generator[Ask, Any, Batches]:
    """A read from *offset* on: see `SegmentReads.read`."""
    place = yield from _find_segment(manifest, offset)
    if isinstance(place, Gap):
        return covering(gap_batches(offset, place.end, manifest.leader_epochs), place.end)
    if place.kind is SegmentKind.RAW:
        return take_raw((yield Open(place)), offset, max_bytes, place.end)
    reader: SegmentReader = yield Open(place)
    group = reader.row_group_at(offset)
    if group is None:
        return covering(reader.gap(offset), place.end)
    codec = codec_for(codec, reader.codec, zstd=zstd)
    out: list[Buffer] = []
    end = unit_end = offset
    room = max_bytes
    while group is not None:
        of, unit_end = GroupOf(place, reader, group), reader.end_of(group)
        more, more_end = yield Encode(of, end, codec, room)
        size = sum(map(len, more))
        if out and size > room:
            break
        out += more
        end, room = more_end, room - size
        if end < unit_end:
            break
        yield Finish(of)
        # Row groups that were read ahead are added; the next fetch waits for the others.
        group = reader.row_group_at(end) if room >= _SMALLEST_BATCH_BYTES else None
        if group is not None and not (yield IsLoaded(GroupOf(place, reader, group))):
            break
    return Batches(out, end, max(end, unit_end))


def prefetch_sealed(manifest: Manifest, offset: int) -> Generator[Ask, Any, int | None]:
    """A read-ahead of the row group that holds *offset*; returns its end, if it is in memory."""
    if not manifest.log_start <= offset < manifest.end:
        return None
    place = yield from _find_segment(manifest, offset)
    if isinstance(place, Gap) or place.kind is SegmentKind.RAW:
        return None
    reader: SegmentReader = yield Open(place)
    group = reader.row_group_at(offset)
    if group is None or not (yield Load(GroupOf(place, reader, group))):
        return None
    return reader.end_of(group)


def _find_segment(manifest: Manifest, offset: int) -> Generator[Ask, Any, SegmentRef | Gap]:
    """The segment that holds *offset*, which is below the manifest's end."""
    entry = entry_at(manifest, offset, manifest.end)
    while isinstance(entry, SegmentListRef):
        entry = entry_at((yield Open(entry)), offset, entry.end)
    return entry


# ── Answers ──


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
    group: RowGroupBatches,
    offset: int,
    codec: Codec,
    max_bytes: int,
    batch_bytes: int,
    most_bytes: int | None = None,
) -> tuple[list[Buffer], int] | None:
    """Batches from *offset* on, at most *max_bytes* or one, and where they end; they end before a
    record of more than *most_bytes*, and None: that is the first one.

    Each batch is as large as the remaining room allows, so that hardly anything is encoded in vain.
    """
    out: list[Buffer] = []
    room = max_bytes
    while offset < group.end and (not out or room >= _SMALLEST_BATCH_BYTES):
        target = min(batch_bytes, max(room - HEADER_BYTES, _SMALLEST_BATCH_BYTES))
        made = group.batches(
            offset,
            codec=codec,
            level=_LEVELS.get(codec),
            batch_bytes=target,
            most_bytes=most_bytes,
        )
        batch = next(iter(made), None)
        if batch is None:
            return (out, offset) if out else None
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
