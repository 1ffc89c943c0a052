"""The tail of a partition in flush objects: which batches it has, where they are, and their rows.

    sealed end in etcd                       high watermark
    │ slice of object A │ B │ … consolidated … │      join without a gap, or the tail is damaged
        └ span ┘└ span ┘                              batches side by side: one read
        └──── TailRange ────┘                         one task

Agents read the same when they take a partition over (`log/leadership/taken_partitions`).  Offsets
of committed batches follow each other; only below the sealed end there are ranges without records.
So a gap means that a flush record is missing, and is never taken for an empty range.

The first slices may begin below the sealed end: a flush may be sealed in part.

Pure.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    OffsetOutOfRangeError,
    SealedMeanwhileError,
)
from driftlog_spark_reader.tail.port import FlushSpan, TailRange
from driftlog_tiering.batches.batch import (
    BatchHeader,
    CorruptBatchError,
    CorruptRecordsError,
    Reason,
    parse_header,
)
from driftlog_tiering.formats.flush_object import LENGTH, Footer
from driftlog_tiering.foundation.types import Buffer, MiB
from driftlog_tiering.segments.columns import SCHEMA, ColumnBuilder

SPAN_BYTES: Final = 4 * MiB
"""Of one read.  Larger: fewer requests, and more memory of a task, which has several in flight."""

RANGE_BYTES: Final = 32 * MiB
"""Of one task, compressed.  Larger: fewer tasks, and less of the tail is read side by side."""

SHARED_BYTES: Final = 32 * MiB
"""Of objects that a task reads once for all its pieces, and keeps.  More: fewer requests where a
task has many partitions, and more memory."""

_SMALL_BYTES: Final = MiB
_WASTE: Final = 4
"""A larger read than `_SMALL_BYTES` has at most so many times the bytes that are needed of it."""

TABLE_BYTES: Final = 16 * MiB
"""Uncompressed batches that become rows together, as a row group of a segment."""

_MAX_TIMESTAMP: Final = 9
_POSITION: Final = 10


class ObjectBatches(NamedTuple):
    """The batches of one topic in a flush object: columns of equal length, and their slices."""

    key: str
    bases: "array[int]"
    deltas: "array[int]"
    max_timestamps_ms: "array[int]"
    positions: "array[int]"
    lengths: "array[int]"
    slices: tuple[tuple[int, int, int, int, int], ...]
    """Partition, base, end, first batch, end of batches."""


class TailSlice(NamedTuple):
    """Batches ``[first, stop)`` of *batches*, which cover the offsets ``[base, end)``."""

    batches: ObjectBatches
    base: int
    end: int
    first: int
    stop: int

    def span(self, first: int, stop: int) -> FlushSpan:
        """Where the batches ``[first, stop)`` are."""
        of = self.batches
        last = stop - 1
        position = of.positions[first]
        length = of.positions[last] + of.lengths[last] - position
        return FlushSpan(of.key, position, length, of.bases[first], self.end_of(last))

    def end_of(self, index: int) -> int:
        """One past the last offset of a batch."""
        return self.batches.bases[index] + self.batches.deltas[index] + 1


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The tail of a partition at one revision of the metadata store; ``slices`` join."""

    log_start: int
    sealed_end: int
    end: int
    slices: tuple[TailSlice, ...] = ()

    def has(self, start: int, end: int) -> bool:
        """Whether all batches of ``[start, end)`` above log start are in it, or it is empty."""
        start = max(start, self.log_start)
        first = self.slices[0].base if self.slices else self.end
        return start >= end or (first <= start and end <= self.end)


def topic_batches(key: str, footer: Footer, topic_id: UUID) -> ObjectBatches:
    """The batches of a topic in the object *key*, which may have none."""
    found = [s for s in footer.slices() if s.topic_id == topic_id]
    first = found[0].first if found else 0
    stop = found[-1].first + found[-1].count if found else 0
    columns = footer.columns
    return ObjectBatches(
        key,
        columns[3][first:stop],
        columns[4][first:stop],
        columns[_MAX_TIMESTAMP][first:stop],
        columns[_POSITION][first:stop],
        columns[LENGTH][first:stop],
        tuple(
            (s.partition, s.base, s.end, s.first - first, s.first + s.count - first) for s in found
        ),
    )


def cut_partitions(
    topic: str, states: Mapping[int, PartitionState], objects: Iterable[ObjectBatches]
) -> dict[int, PartitionCut]:
    """The cut of each partition of *states*; *objects*: all that flush records name.

    Raises:
        DamagedTopicError: slices of a partition do not join.
    """
    found: dict[int, list[TailSlice]] = {partition: [] for partition in states}
    for batches in objects:
        for partition, base, end, first, stop in batches.slices:
            if partition in found and end > states[partition].sealed_end:
                found[partition].append(TailSlice(batches, base, end, first, stop))
    return {
        partition: _joined(f"{topic}-{partition}", states[partition], slices)
        for partition, slices in found.items()
    }


def _joined(name: str, state: PartitionState, slices: list[TailSlice]) -> PartitionCut:
    slices.sort(key=lambda tail: tail.base)
    end = state.sealed_end
    for tail in slices:
        if tail.base > end or (tail.base < end and end != state.sealed_end):
            raise DamagedTopicError(
                f"{name}: committed data does not join: [{tail.base}, {tail.end}) of "
                f"{tail.batches.key} follows offset {end}; a flush record is missing. Leave the "
                "partition out, or read sealed records without includeTail; `driftlog partitions` "
                "says what agents do about it"
            )
        end = tail.end
    return PartitionCut(state.log_start, state.sealed_end, end, tuple(slices))


def plan_ranges(
    cut: PartitionCut,
    name: str,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    span_bytes: int = SPAN_BYTES,
    range_bytes: int = RANGE_BYTES,
) -> list[TailRange]:
    """See `Tail.plan`; *name*: of the topic.

    Raises:
        OffsetOutOfRangeError, SealedMeanwhileError: see `Tail.plan`.
    """
    start = max(start, cut.log_start)
    if start >= end:
        return []
    where = f"{name}-{tp.partition}"
    if end > cut.end:
        raise OffsetOutOfRangeError(
            f"{where}: the end {end} is above the high watermark, {cut.end}"
        )
    if not cut.has(start, end):
        raise SealedMeanwhileError(
            f"{where}: offsets {start} to {min(end, cut.sealed_end) - 1} were sealed after the "
            "manifest was read; read it again"
        )
    ranges: list[TailRange] = []
    spans: list[FlushSpan] = []
    size = 0
    for span in _spans(cut, start, end, span_bytes):
        if spans and size + span.length > range_bytes:
            ranges.append(_range(name, tp, start, spans))
            start, spans, size = span.base, [], 0
        spans.append(span)
        size += span.length
    ranges.append(TailRange(name, tp.topic_id, tp.partition, start, end, tuple(spans)))
    return ranges


def _range(name: str, tp: TopicPartition, start: int, spans: list[FlushSpan]) -> TailRange:
    return TailRange(name, tp.topic_id, tp.partition, start, spans[-1].end, tuple(spans))


def _spans(cut: PartitionCut, start: int, end: int, span_bytes: int) -> Iterator[FlushSpan]:
    """Spans of whole batches that have offsets in ``[start, end)``, by offset."""
    for tail in cut.slices:
        if tail.end <= start:
            continue
        if tail.base >= end:
            return
        of = tail.batches
        first: int | None = None
        for index in range(tail.first, tail.stop):
            if tail.end_of(index) <= start:
                continue
            if of.bases[index] >= end:
                break
            if first is None:
                first = index
            elif of.positions[index] + of.lengths[index] - of.positions[first] > span_bytes:
                yield tail.span(first, index)
                first = index
        else:
            index = tail.stop
        if first is not None:
            yield tail.span(first, index)


def shared_reads(
    pieces: Iterable[TailRange], budget_bytes: int = SHARED_BYTES
) -> dict[str, FlushSpan]:
    """What is read once for several pieces: by object, one span around all that they have there.

    A flush has a slice of each partition that its agent leads, some kilobytes each: one request for
    each would cost more than the bytes between them.
    """
    needed: dict[str, list[FlushSpan]] = {}
    for piece in pieces:
        for span in piece.spans:
            needed.setdefault(span.key, []).append(span)
    found: dict[str, FlushSpan] = {}
    around = [_around(spans) for spans in needed.values() if len(spans) > 1]
    for span in sorted(around, key=lambda span: span.length):
        used = sum(each.length for each in needed[span.key])
        if span.length > max(_SMALL_BYTES, _WASTE * used):
            continue
        budget_bytes -= span.length
        if budget_bytes < 0:
            break
        found[span.key] = span
    return found


def _around(spans: Sequence[FlushSpan]) -> FlushSpan:
    position = min(span.position for span in spans)
    end = max(span.position + span.length for span in spans)
    return FlushSpan(spans[0].key, position, end - position, -1, -1)


def since(cut: PartitionCut, timestamp_ms: int) -> Iterator[FlushSpan]:
    """Batches, each a span, that may have a record at or after that time, by offset."""
    for tail in cut.slices:
        for index in range(tail.first, tail.stop):
            if (
                tail.batches.max_timestamps_ms[index] >= timestamp_ms
                and tail.end_of(index) > cut.log_start
            ):
                yield tail.span(index, index + 1)


# ── Rows ──


class UndecodableBatch(NamedTuple):
    """A batch whose CRC is right and whose records cannot be decoded: it is no row."""

    base: int
    end: int
    max_timestamp_ms: int
    reason: str


class RangeDecoder:
    """The rows of a piece, from the bytes of its spans, in their order."""

    def __init__(self, piece: TailRange) -> None:
        self._piece = piece
        self._builder = ColumnBuilder(piece.topic, piece.partition)

    def add(self, span: FlushSpan, body: Buffer) -> Iterator[pa.RecordBatch | UndecodableBatch]:
        """Rows that are complete when the batches of *span* are added.

        Raises:
            DamagedTopicError: *body* is not what the footer says.
        """
        view = memoryview(body)
        if len(view) != span.length:
            raise _damaged(span, f"{len(view)} bytes where {span.length} were expected")
        at, offset = 0, span.base
        while at < len(view):
            try:
                header = parse_header(view, at)
                if header.base_offset != offset or header.size_bytes > len(view) - at:
                    raise CorruptBatchError(Reason.BASE_OFFSET, f"{header.base_offset}")
                batch = view[at : at + header.size_bytes]
                yield from self._add(header, batch)
            except CorruptBatchError as error:
                raise _damaged(span, f"no whole batch of offset {offset}: {error}") from error
            at += header.size_bytes
            offset = header.end_offset
        if offset != span.end:
            raise _damaged(span, f"its batches end at {offset}, not {span.end}")

    def _add(
        self, header: BatchHeader, batch: Buffer
    ) -> Iterator[pa.RecordBatch | UndecodableBatch]:
        piece = self._piece
        if header.end_offset <= piece.start or header.base_offset >= piece.end or header.is_control:
            return
        try:
            self._builder.add(batch)
        except CorruptRecordsError as error:
            yield UndecodableBatch(
                header.base_offset, header.end_offset, header.max_timestamp, str(error)
            )
        if self._builder.raw_bytes >= TABLE_BYTES:
            yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows added since the last one, if there are any."""
        if not self._builder.records:
            return
        table = self._builder.take()
        offsets = table.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if first < self._piece.start or last >= self._piece.end:
            table = table.filter(
                pc.and_(
                    pc.greater_equal(offsets, self._piece.start), pc.less(offsets, self._piece.end)
                )
            )
        yield from table.cast(SCHEMA).combine_chunks().to_batches()


def first_since(rows: pa.RecordBatch, timestamp_ms: int) -> tuple[int, int] | None:
    """(offset, ms) of the first of *rows* with that timestamp or a later one."""
    times = pc.cast(rows.column("timestamp"), pa.int64())
    at = pc.index(pc.greater_equal(times, timestamp_ms * 1000), True).as_py()
    if at < 0:
        return None
    return rows.column("offset")[at].as_py(), times[at].as_py() // 1000


def _damaged(span: FlushSpan, why: str) -> DamagedTopicError:
    return DamagedTopicError(
        f"{span.key}, bytes {span.position} to {span.position + span.length}: {why}; restore the "
        "object from a copy of the bucket, or leave the offsets "
        f"{span.base} to {span.end - 1} out"
    )
