"""What must be true of a partition's objects, and which damage it is if something is not.

    reference ◀── same range, size, counts ──▶ footer ◀── same offsets, times ──▶ rows
        │                                        └── CRC of each row group
        └── in order, sums over a list, no gap that nothing explains

1. Each fact is compared with the one above it: a reference with its key, a footer with its
   reference, rows with their footer.  So a whole object in the wrong place is damage, too.
2. An offset without a record is right below log start, in a topic that is or was compacted, and in
   a range whose loss was accepted (`formats/accepted_loss`).  Elsewhere it is a hole.
3. The CRC of a footer is in its reference.  Where it is not (format 1), a changed bit that changes
   none of the facts here is not seen.  The page index has none; nothing of driftlog reads it.

Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import NO_TIMESTAMP, iterate_batches
from driftlog_tiering.batches.producers import CorruptSnapshotError, ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    Manifest,
    ProducerSnapshotRef,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    list_ref,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import RowGroup, SegmentReader
from driftlog_tiering.verification.findings import Damage, DamageKind, OffsetGap

_FIRST_ROW_GROUP: Final = 4
"""Where the first row group begins: behind Parquet's magic."""


# ── Names and lists ──


def segment_name(topic: str, tp: TopicPartition, ref: SegmentRef) -> list[Damage]:
    """Whether the key of *ref* is that of its range."""
    try:
        key = layout.parse_segment_key(ref.key)
    except ValueError as error:
        return [_of(ref, DamageKind.NAME, str(error))]
    if (key.topic, key.tp, key.base, key.end, key.kind) != (
        topic,
        tp,
        ref.base,
        ref.end,
        ref.kind,
    ):
        return [_of(ref, DamageKind.NAME, f"named for {topic}-{tp.partition} and this range")]
    return []


def list_facts(
    topic: str, tp: TopicPartition, ref: SegmentListRef, content: SegmentList
) -> list[Damage]:
    """Whether the list is the one that *ref* sums up, under its own name."""
    try:
        key = layout.parse_segment_list_key(ref.key)
    except ValueError as error:
        return [_of(ref, DamageKind.NAME, str(error))]
    if (key.topic, key.tp, key.level) != (topic, tp, ref.level):
        return [_of(ref, DamageKind.NAME, f"named for {topic}-{tp.partition}, level {ref.level}")]
    sums = list_ref(ref.key, content)
    if (sums.base, sums.end) != (ref.base, ref.end):
        detail = f"its entries are of [{sums.base}, {sums.end})"
        return [_of(ref, DamageKind.MANIFEST, detail)]
    if sums != ref:
        detail = (
            f"{sums.segments} segments, {sums.records} records, {sums.size_bytes} bytes; its "
            f"reference says {ref.segments}, {ref.records}, {ref.size_bytes}"
        )
        return [_of(ref, DamageKind.COUNT, detail)]
    return []


def producers_facts(manifest: Manifest, ref: ProducerSnapshotRef, body: Buffer) -> list[Damage]:
    """Whether the snapshot is that of exactly the sealed end."""
    end = manifest.end
    try:
        key = layout.parse_producer_snapshot_key(ref.key)
    except ValueError as error:
        return [Damage(DamageKind.NAME, end, None, ref.key, str(error))]
    if (key.topic, key.tp, key.offset) != (manifest.topic, manifest.tp, ref.offset):
        detail = f"named for {manifest.topic}-{manifest.tp.partition} at {ref.offset}"
        return [Damage(DamageKind.NAME, end, None, ref.key, detail)]
    try:
        offset, _ = ProducerStates.decode(body)
    except CorruptSnapshotError as error:
        return [Damage(DamageKind.PRODUCERS, end, None, ref.key, str(error))]
    if offset != end:
        detail = f"it is of offset {offset}, and the sealed end is {end}"
        return [Damage(DamageKind.PRODUCERS, end, None, ref.key, detail)]
    return []


# ── Segments ──


def footer_facts(
    topic: str, tp: TopicPartition, ref: SegmentRef, reader: SegmentReader
) -> list[Damage]:
    """Whether the footer is that of *ref*, and its row groups are in order."""
    is_this = (reader.topic, reader.topic_id, reader.partition, reader.base, reader.end)
    if is_this != (topic, tp.topic_id, tp.partition, ref.base, ref.end):
        detail = (
            f"the object is a segment of {reader.topic}-{reader.partition} "
            f"[{reader.base}, {reader.end})"
        )
        return [_of(ref, DamageKind.CONTENT, detail)]
    groups = reader.row_groups
    counted = sum(group.records for group in groups)
    if not reader.records == ref.records == counted:
        detail = (
            f"{counted} rows in row groups, {reader.records} in the footer, and {ref.records} in "
            "the reference"
        )
        return [_of(ref, DamageKind.COUNT, detail)]
    problem = _order_problem(reader)
    if problem is not None:
        return [_of(ref, DamageKind.FOOTER, problem)]
    first_ms = min((g.min_timestamp_ms for g in groups), default=NO_TIMESTAMP)
    last_ms = max((g.max_timestamp_ms for g in groups), default=NO_TIMESTAMP)
    stated = (ref.raw_bytes, ref.codec, ref.min_timestamp_ms, ref.max_timestamp_ms)
    found = (reader.raw_bytes, reader.codec.name.lower(), first_ms, last_ms)
    if found != stated:
        detail = f"size, codec and times are {found}, and {stated} in the reference"
        return [_of(ref, DamageKind.FOOTER, detail)]
    return []


def _order_problem(reader: SegmentReader) -> str | None:
    """Which row group is not in its place; None: all are."""
    start, offset = _FIRST_ROW_GROUP, reader.base
    for group in reader.row_groups:
        if group.start != start or group.end <= group.start:
            return f"row group {group.index} is at [{group.start}, {group.end}), not at {start}"
        if not offset <= group.first_offset <= group.last_offset < reader.end:
            return (
                f"row group {group.index} has offsets {group.first_offset} to "
                f"{group.last_offset}, behind {offset}"
            )
        if not 0 < group.records <= group.last_offset - group.first_offset + 1:
            return f"row group {group.index} has {group.records} rows for fewer offsets"
        start, offset = group.end, group.last_offset + 1
    if start > reader.size_bytes:
        return "row groups end behind the object"
    return None


def damaged_group(ref: SegmentRef, reader: SegmentReader, group: RowGroup) -> Damage:
    """The bytes of *group* are not those that were written."""
    end = reader.end_of(group)
    detail = f"row group {group.index}, bytes [{group.start}, {group.end}), has another CRC"
    return Damage(DamageKind.CRC, group.first_offset, end, ref.key, detail)


def footer_gaps(ref: SegmentRef, reader: SegmentReader) -> list[OffsetGap]:
    """Where offsets of ``[base, end)`` have no row; within a row group only their number is
    known."""
    found: list[OffsetGap] = []
    offset = reader.base
    for group in reader.row_groups:
        found += gap(offset, group.first_offset, ref.key)
        offset = group.last_offset + 1
        missing = offset - group.first_offset - group.records
        if missing:
            found.append(OffsetGap(group.first_offset, offset, missing, ref.key))
    return [*found, *gap(offset, reader.end, ref.key)]


# ── Rows ──


def row_facts(
    ref: SegmentRef, reader: SegmentReader, group: RowGroup, table: pa.Table
) -> list[Damage]:
    """Whether the rows of *group* are those that its footer describes."""
    problem = _rows_problem(reader, group, table)
    if problem is None:
        return []
    detail = f"row group {group.index}: {problem}"
    return [Damage(DamageKind.ROWS, group.first_offset, reader.end_of(group), ref.key, detail)]


def _rows_problem(reader: SegmentReader, group: RowGroup, table: pa.Table) -> str | None:
    offsets = table.column("offset").combine_chunks()
    times = table.column("timestamp").cast(pa.int64())
    if offsets.null_count or times.null_count:
        return "an offset or a timestamp is null"
    if not _ascend(offsets):
        return "offsets do not ascend"
    ends = (offsets[0].as_py(), offsets[-1].as_py())
    if ends != (group.first_offset, group.last_offset):
        return f"offsets {ends}, and ({group.first_offset}, {group.last_offset}) in the footer"
    found = pc.min_max(times)
    found_ms = (found["min"].as_py() // 1000, found["max"].as_py() // 1000)
    if found_ms != (group.min_timestamp_ms, group.max_timestamp_ms):
        return f"times {found_ms}, and ({group.min_timestamp_ms}, {group.max_timestamp_ms})"
    if pc.unique(table.column("topic")).to_pylist() != [reader.topic]:
        return "rows of another topic"
    if pc.unique(table.column("partition")).to_pylist() != [reader.partition]:
        return "rows of another partition"
    types = set(pc.unique(table.column("timestampType")).to_pylist())
    if not types <= reader.timestamp_flags:
        return f"timestamp types {sorted(map(str, types))}, and {reader.timestamp_type} is stated"
    return None


def latest_offset(table: pa.Table) -> int:
    """The offset of the first row with the largest timestamp."""
    times = table.column("timestamp").cast(pa.int64())
    row = pc.index(times, pc.max(times)).as_py()
    found: int = table.column("offset")[row].as_py()
    return found


def latest_facts(ref: SegmentRef, found: int) -> list[Damage]:
    """Whether *found* is the offset with the largest timestamp that *ref* states."""
    if found == ref.max_timestamp_offset:
        return []
    detail = (
        f"the first record with the largest time is {found}, and {ref.max_timestamp_offset} in the "
        "reference"
    )
    return [_of(ref, DamageKind.FOOTER, detail)]


def row_gaps(ref: SegmentRef, table: pa.Table, most: int) -> list[OffsetGap]:
    """Exactly where the rows leave offsets out; the first *most* of them."""
    offsets = table.column("offset").combine_chunks()
    before, after = offsets[:-1], offsets[1:]
    jumps = pc.greater(pc.subtract(after, before), 1)
    pairs = zip(before.filter(jumps)[:most], after.filter(jumps)[:most], strict=True)
    return [one for a, b in pairs for one in gap(a.as_py() + 1, b.as_py(), ref.key)]


def _ascend(offsets: pa.Array) -> bool:
    return pc.all(pc.less(offsets[:-1], offsets[1:])).as_py() is not False


# ── Batches as they came ──


def raw_facts(ref: SegmentRef, body: Buffer) -> tuple[list[Damage], list[OffsetGap]]:
    """Whether *body* has the batches of *ref*, each with its CRC; and the gaps between them."""
    gaps: list[OffsetGap] = []
    offset = ref.base
    batches = records = 0
    try:
        for header, batch in iterate_batches(body):
            if isinstance(kernel.check(batch, 0, len(batch), False), int):
                detail = f"the batch at offset {header.base_offset} is damaged"
                end = max(header.end_offset, header.base_offset + 1)
                return [Damage(DamageKind.CRC, header.base_offset, end, ref.key, detail)], []
            if header.base_offset < offset or header.end_offset > ref.end:
                detail = f"the batch at offset {header.base_offset} is not in its order"
                return [_of(ref, DamageKind.ROWS, detail)], []
            if not batches and header.base_offset != ref.base:
                detail = f"its first batch is at offset {header.base_offset}"
                return [_of(ref, DamageKind.CONTENT, detail)], []
            gaps += gap(offset, header.base_offset, ref.key)
            offset = header.end_offset
            batches += 1
            records += header.record_count
    except CorruptError as error:
        return [Damage(DamageKind.CRC, offset, ref.end, ref.key, str(error))], []
    if offset != ref.end:
        return [_of(ref, DamageKind.CONTENT, f"its batches end at offset {offset}")], []
    if records != ref.records:
        detail = f"{records} records in its batches, and {ref.records} in the reference"
        return [_of(ref, DamageKind.COUNT, detail)], []
    return [], gaps


# ── Gaps ──


def gap(base: int, end: int, key: str) -> list[OffsetGap]:
    """Nothing of ``[base, end)`` has a record; none if it is empty."""
    return [OffsetGap(base, end, end - base, key)] if base < end else []


def holes(
    gaps: Sequence[OffsetGap], lost: Sequence[tuple[int, int]], *, compacted: bool
) -> list[Damage]:
    """The gaps that neither compaction nor an accepted loss explains.

    *lost*: ranges ``[base, end)`` whose loss was accepted.
    """
    if compacted:
        return []
    accepted = _joined(lost)
    found: list[Damage] = []
    for one in gaps:
        rest = list(_without(one.base, one.end, accepted))
        offsets = sum(end - base for base, end in rest)
        unexplained = one.missing - (one.end - one.base - offsets)
        if unexplained <= 0:
            continue
        if one.missing < one.end - one.base:
            rest = [(one.base, one.end)]
        detail = f"{unexplained} offsets have no record"
        found += [Damage(DamageKind.HOLE, base, end, one.key, detail) for base, end in rest]
    return found


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for base, end in sorted(ranges):
        if found and base <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((base, end))
    return found


def _without(base: int, end: int, taken: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """``[base, end)`` without the ranges *taken*, which ascend."""
    for start, stop in taken:
        if start >= end:
            break
        if stop <= base:
            continue
        if base < start:
            yield base, start
        base = max(base, stop)
    if base < end:
        yield base, end


def _of(ref: SegmentRef | SegmentListRef, kind: DamageKind, detail: str) -> Damage:
    return Damage(kind, ref.base, ref.end, ref.key, detail)
