"""Record batches to the columns of a segment, and columns to record batches.

The schema is that of Spark's own Kafka source, in its order, with ``includeHeaders``:

    field id  column         type                             null
    1         key            binary                           the record's key is
    2         value          binary                           the record's value is
    3         topic          string                           never
    4         partition      int32                            never
    5         offset         int64                            never
    6         timestamp      timestamp, us, UTC               never; Kafka's ms * 1000
    7         timestampType  int32: 0 CreateTime, 1 LogAppendTime   never
    8         headers        list of struct<key string, value binary>   the record has none
    9, 10, 11 its element, key and value

Source: org.apache.spark.sql.kafka010.KafkaRecordToRowConverter#schemaWithHeaders.

Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    Codec,
    CorruptBatchError,
    CorruptRecordsError,
    Reason,
    TimestampType,
    empty_batch,
    fill_header,
    parse_header,
)
from driftlog_tiering.batches.batch_limits import (
    DECOMPRESSED_BYTES,
    HEADER_BYTES_OF_WORK,
    HEADERS,
    RECORDS,
    BatchLimits,
    OverBatchLimitError,
)
from driftlog_tiering.batches.compression import compress, decompress
from driftlog_tiering.batches.kernel_py import Batch, Sizes
from driftlog_tiering.formats.manifest import LeaderEpoch
from driftlog_tiering.foundation.types import Buffer

DEFAULT_LIMITS: Final = BatchLimits()


def _field(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})


def _schema(topic: pa.DataType) -> pa.Schema:
    header = pa.struct([_field("key", pa.string(), 10), _field("value", pa.binary(), 11)])
    return pa.schema(
        [
            _field("key", pa.binary(), 1),
            _field("value", pa.binary(), 2),
            _field("topic", topic, 3),
            _field("partition", pa.int32(), 4),
            _field("offset", pa.int64(), 5),
            _field("timestamp", pa.timestamp("us", tz="UTC"), 6),
            _field("timestampType", pa.int32(), 7),
            _field("headers", pa.list_(_field("element", header, 9)), 8),
        ]
    )


SCHEMA: Final = _schema(pa.string())
"""The columns of a segment for its readers."""

RECORD_COLUMNS: Final = tuple(name for name in SCHEMA.names if name != "topic")
"""The columns that differ between the records of a segment.  Read as plain strings, the topic takes
the memory of its name for each record."""

BUILT_SCHEMA: Final = _schema(pa.dictionary(pa.int32(), pa.string()))
"""The columns that `ColumnBuilder` builds: the topic is one string, not one per record."""


class ColumnBuilder:
    """Takes batches in offset order; returns them as one table.

    Args:
        limits: a batch over one of them is refused.
    """

    def __init__(self, topic: str, partition: int, limits: BatchLimits = DEFAULT_LIMITS) -> None:
        self._topic = topic
        self._partition = partition
        self._limits = limits
        self.headers = 0
        """Headers of all records added, `take` or not."""
        self._clear()

    def _clear(self) -> None:
        self._batches: list[Batch] = []
        self._sizes: list[Sizes] = []
        self.records = 0
        self.raw_bytes = 0
        """Size of the batches added, headers included, uncompressed."""

    def add(
        self, batch: Buffer, least_offset: int = 0, most_bytes: int | None = None
    ) -> BatchHeader:
        """Check, decompress and scan one batch; its buffer must not change before `take`.

        It must not start below *least_offset*, the end of the previous batch.  *most_bytes*: limit
        of its decompressed records and, at `HEADER_BYTES_OF_WORK` each, their headers, besides
        `BatchLimits`; None: no other limit.

        After an error nothing was added.

        Raises:
            CorruptBatchError: header or CRC.
            CorruptRecordsError: the CRC is valid, and the records cannot be decoded.
            OverBatchLimitError: the CRC is valid, and the batch is over a limit.
            OverflowError: a column would reach 2 GiB; `take` first.
        """
        view = memoryview(batch)
        answer = kernel.check(view, 0, len(view), False)
        if isinstance(answer, int):
            raise CorruptBatchError(Reason(answer))
        header = parse_header(view)
        assert header.base_offset >= least_offset, "batches come in offset order"
        assert not header.is_control, "markers are not stored in segments"
        records: Buffer = view[HEADER_BYTES:]
        count, attributes = header.record_count, header.attributes
        if count == 0 and len(records):
            raise CorruptRecordsError("bytes after the last field")
        if count and attributes & CODEC_MASK:
            limit = self._limits.decompressed_bytes
            limit = limit if most_bytes is None else min(limit, most_bytes)
            records = decompress(header.codec, records, limit)
        elif most_bytes is not None and len(records) > most_bytes:
            raise OverBatchLimitError(DECOMPRESSED_BYTES, f"{len(records)} bytes of records")
        # This bounds every column: none has more bytes or rows than its records have bytes.
        raw_bytes = self.raw_bytes + HEADER_BYTES + len(records)
        if raw_bytes > INT32_MAX:
            raise OverflowError("a column over 2 GiB")
        if count > (most := self._limits.records):
            raise OverBatchLimitError(RECORDS, f"{count} records, and a segment takes {most}")
        log_append_time = attributes & LOG_APPEND_TIME_FLAG != 0
        base_timestamp = header.base_timestamp
        sizes = kernel.scan(
            records, count, header.last_offset_delta, base_timestamp, log_append_time
        )
        if sizes[2] > (most := self._limits.headers):
            raise OverBatchLimitError(HEADERS, f"{sizes[2]} headers, and a segment takes {most}")
        if most_bytes is not None and len(records) + HEADER_BYTES_OF_WORK * sizes[2] > most_bytes:
            raise OverBatchLimitError(
                DECOMPRESSED_BYTES, f"{len(records)} bytes of records, and {sizes[2]} headers"
            )
        self.headers += sizes[2]
        self._sizes.append(sizes)
        self._batches.append(
            (
                records,
                count,
                header.base_offset,
                base_timestamp,
                header.max_timestamp,
                int(log_append_time),
            )
        )
        self.records += count
        self.raw_bytes = raw_bytes
        return header

    def take(self) -> pa.Table:
        """The records added since the last `take`, in `BUILT_SCHEMA`.

        Raises:
            CorruptRecordsError: a buffer has changed since it was added.
        """
        rows = self.records
        sizes = [sum(column) for column in zip(*self._sizes, strict=True)] or [0] * 9
        buffers = [pa.allocate_buffer(size) for size in _buffer_bytes(rows, sizes)]
        kernel.decode(self._batches, sizes, buffers)
        self._clear()
        key = _binary(pa.binary(), rows, buffers[3:6], sizes[5])
        value = _binary(pa.binary(), rows, buffers[6:9], sizes[6])
        header_key = pa.Array.from_buffers(pa.string(), sizes[2], [None, *buffers[11:13]], 0)
        header_value = _binary(pa.binary(), sizes[2], buffers[13:16], sizes[8])
        headers_type = BUILT_SCHEMA.field("headers").type
        element = pa.Array.from_buffers(
            headers_type.value_type, sizes[2], [None], 0, children=[header_key, header_value]
        )
        headers = pa.Array.from_buffers(
            headers_type,
            rows,
            [buffers[9] if sizes[7] else None, buffers[10]],
            sizes[7],
            children=[element],
        )
        columns = [
            key,
            value,
            _one_topic(self._topic, rows),
            pa.repeat(pa.scalar(self._partition, pa.int32()), rows),
            pa.Array.from_buffers(pa.int64(), rows, [None, buffers[0]], 0),
            pa.Array.from_buffers(
                BUILT_SCHEMA.field("timestamp").type, rows, [None, buffers[1]], 0
            ),
            pa.Array.from_buffers(pa.int32(), rows, [None, buffers[2]], 0),
            headers,
        ]
        return pa.Table.from_arrays(columns, schema=BUILT_SCHEMA)


def with_one_topic(rows: pa.Table, topic: str) -> pa.Table:
    """Rows of `RECORD_COLUMNS` in `BUILT_SCHEMA`: the topic is one string.

    Raises:
        ValueError: columns that a segment cannot have.
    """
    columns = [
        _one_topic(topic, rows.num_rows) if name == "topic" else _one_chunk(rows, name)
        for name in SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=BUILT_SCHEMA)


def _one_topic(topic: str, rows: int) -> pa.DictionaryArray:
    zeros = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))], 0)
    return pa.DictionaryArray.from_arrays(zeros, pa.array([topic]))


def key_rows(table: pa.Table) -> kernel.KeyRows:
    """Offset, key, and, where the table has values, whether there is one, for compaction.

    Raises:
        ValueError: columns that a segment cannot have.
    """
    offset, key = (_one_chunk(table, name) for name in ("offset", "key"))
    if offset.null_count:
        raise ValueError("a null offset")
    values = _one_chunk(table, "value").buffers()[0] if "value" in table.column_names else None
    return kernel.KeyRows(table.num_rows, [offset.buffers()[1], *key.buffers(), values])


def _buffer_bytes(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the buffers, in the order of `kernel_py.decode`."""
    bits, headers = (rows + 7) // 8, sizes[2]
    return (
        *(8 * rows, 8 * rows, 4 * rows),
        *(bits, 4 * (rows + 1), sizes[0]),
        *(bits, 4 * (rows + 1), sizes[1]),
        *(bits, 4 * (rows + 1)),
        *(4 * (headers + 1), sizes[3]),
        *((headers + 7) // 8, 4 * (headers + 1), sizes[4]),
    )


def _binary(type_: pa.DataType, rows: int, buffers: list[pa.Buffer], nulls: int) -> pa.Array:
    validity, offsets, data = buffers
    return pa.Array.from_buffers(type_, rows, [validity if nulls else None, offsets, data], nulls)


# ── Columns to batches ──


class EncodedBatch(NamedTuple):
    """A batch of offsets ``[base_offset, end_offset)``, gaps included."""

    base_offset: int
    end_offset: int
    record_count: int
    data: bytes | bytearray


class BatchEncoder:
    """Makes batches from rows of `SCHEMA`, sorted by offset.

    Args:
        leader_epochs: ascending; a batch never holds records of two epochs.

    Raises:
        ValueError: columns that a segment cannot have (nulls where none may be).
    """

    def __init__(self, table: pa.Table, leader_epochs: Sequence[LeaderEpoch]) -> None:
        columns = {name: _one_chunk(table, name) for name in RECORD_COLUMNS}
        for name in ("offset", "timestamp", "timestampType"):
            if columns[name].null_count:
                raise ValueError(f"a null {name}")
        element = columns["headers"].values
        if element.null_count or element.field(0).null_count:
            raise ValueError("a null header")
        key, value, headers = (columns[n].buffers() for n in ("key", "value", "headers"))
        buffers = [columns[n].buffers()[1] for n in ("offset", "timestamp", "timestampType")]
        # Buffers of headers: the list's two, the struct's validity, the key's three, the value's.
        buffers += [*key, *value, *headers[:2], *headers[4:6], *headers[6:9]]
        self.rows = kernel.Rows(table.num_rows, buffers)
        self._leader_epochs = leader_epochs

    def batches(
        self,
        start_offset: int,
        end_offset: int,
        *,
        codec: Codec,
        level: int | None = None,
        batch_bytes: int = 1024 * 1024,
        most_bytes: int | None = None,
    ) -> Iterator[EncodedBatch]:
        """Batches that cover ``[start_offset, end_offset)`` without a hole, each made on demand.

        Each ends at the next record's offset, so that a reader can always continue after it.
        *batch_bytes*: size of a record section, uncompressed; a larger record is alone in its
        batch.  *most_bytes*: they end before a section that is larger; None: none is too large.
        """
        rows = self.rows
        row, base = rows.find_offset(start_offset), start_offset
        last = rows.find_offset(end_offset)
        while row < last:
            first = rows.offset(row)
            if first - base > INT32_MAX:
                yield _gap(base, first, self._epoch(first)[0])
                base += INT32_MAX
                continue
            epoch, epoch_end = self._epoch(first)
            limit = last if epoch_end is None else min(last, rows.find_offset(epoch_end))
            stop, size, base_timestamp, max_timestamp, kind = rows.cut(
                row, limit, base, batch_bytes
            )
            if most_bytes is not None and size > most_bytes:
                return
            end = rows.offset(stop) if stop < last else end_offset
            end = min(end, base + INT32_MAX + 1)
            data = self._encode(row, stop, base, size, codec, level)
            fill_header(
                data,
                base_offset=base,
                last_offset_delta=end - base - 1,
                record_count=stop - row,
                attributes=codec | kind << 3,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                leader_epoch=epoch,
            )
            yield EncodedBatch(base, end, stop - row, data)
            row, base = stop, end
        while base < end_offset:
            gap = _gap(base, end_offset, self._epoch(base)[0])
            yield gap
            base = gap.end_offset

    def _encode(
        self, row: int, stop: int, base: int, size: int, codec: Codec, level: int | None
    ) -> bytearray:
        if codec is Codec.NONE:
            data = bytearray(HEADER_BYTES + size)
            self.rows.encode(row, stop, base, data, HEADER_BYTES)
            return data
        records = bytearray(size)
        self.rows.encode(row, stop, base, records, 0)
        compressed = compress(codec, records, level)
        data = bytearray(HEADER_BYTES + len(compressed))
        data[HEADER_BYTES:] = compressed
        return data

    def _epoch(self, offset: int) -> tuple[int, int | None]:
        """The epoch that wrote *offset*, and where it ended."""
        return epoch_at(self._leader_epochs, offset)


def epoch_at(leader_epochs: Sequence[LeaderEpoch], offset: int) -> tuple[int, int | None]:
    """(the epoch that wrote *offset*, the offset where the next one starts); -1: not known."""
    epoch, end = -1, None
    for entry in leader_epochs:
        if entry.start_offset > offset:
            end = entry.start_offset
            break
        epoch = entry.epoch
    return epoch, end


def _gap(base: int, end: int, epoch: int) -> EncodedBatch:
    end = min(end, base + INT32_MAX)
    return EncodedBatch(base, end, 0, empty_batch(base, end, epoch))


def gap_batches(
    start_offset: int, end_offset: int, leader_epochs: Sequence[LeaderEpoch]
) -> Iterator[EncodedBatch]:
    """Empty batches over a range without records: one, or several beyond 2^31 - 1 offsets."""
    while start_offset < end_offset:
        gap = _gap(start_offset, end_offset, epoch_at(leader_epochs, start_offset)[0])
        yield gap
        start_offset = gap.end_offset


def _one_chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise ValueError(f"column {name} is larger than 2 GiB")
    if array.type != SCHEMA.field(name).type and name != "topic":
        array = array.cast(SCHEMA.field(name).type)
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if array.offset:
        raise ValueError(f"column {name} is a slice")
    return array


# ── One batch ──


def find_timestamp(
    batch: Buffer,
    timestamp_ms: int,
    from_offset: int = 0,
    most_bytes: int = DEFAULT_LIMITS.decompressed_bytes,
) -> tuple[int, int] | None:
    """(offset, ms) of a checked batch's first record at or after that time; if there is none, of
    the first record with the largest time.  None: there is no record.

    Records below *from_offset* do not count.  Read from the records, because some clients leave
    the header's max_timestamp unset.  With LogAppendTime all records have one time, and the first
    offset is named.  *most_bytes*: limit of its decompressed records.

    Source: RecordBatch#offsetOfMaxTimestamp.

    Raises:
        CorruptRecordsError: its records cannot be decoded.
    """
    header = parse_header(batch)
    if header.record_count == 0 or header.end_offset <= from_offset:
        return None
    from_delta = max(from_offset - header.base_offset, 0)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.base_offset + from_delta, header.max_timestamp
    found = kernel.find_timestamp(
        _records(header, batch, most_bytes),
        header.record_count,
        header.base_timestamp,
        timestamp_ms,
        from_delta,
    )
    return None if found is None else (header.base_offset + found[0], found[1])


def _records(header: BatchHeader, batch: Buffer, most_bytes: int) -> Buffer:
    section = memoryview(batch)[HEADER_BYTES:]
    if header.codec is Codec.NONE:
        return section
    return decompress(header.codec, section, most_bytes)
