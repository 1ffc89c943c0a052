"""Sealed segments: one Parquet object of one partition's records in ``[base, end)``.

    PAR1 | row group | row group | … | page index | footer | length, PAR1
          offsets ascend over all         what SegmentReader needs ^^^^^^

The columns are those of `columns.SCHEMA`; zstd level 1; dictionaries for key and topic only;
DELTA_BINARY_PACKED, statistics and page index for offset and timestamp.  Row groups hold 16 MiB
of batches, or 64 MiB as a table.  The footer's key ``driftlog.segment`` is JSON:

    format_version  1
    topic, topic_id, partition
    base, end       offsets; those that have no row are gaps
    leader_epochs   [[epoch, start_offset], …], ascending; of the batches that were sealed
    codec           of those batches: the one with the most bytes; "none", "gzip", …
    timestamp_type  "CreateTime", "LogAppendTime" or "mixed"
    raw_bytes       of those batches as they would be uncompressed
    row_group_crcs  CRC-32C of each row group's bytes: damaged bytes are never read as records
    row_group_bytes  memory of each row group's records as a table, which repeats what a dictionary
                    has once; segments of older releases lack it

The footer's own CRC-32C, from its first byte to the object's end, is in the reference
(`manifest.SegmentRef.footer_crc`).  A reader that is given it parses no other bytes: Arrow ends the
process at some changed bits of a footer.

A stored format: a change gets a new version.

Pure.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol, Self
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
)
from driftlog_tiering.batches.batch_limits import HEADER_BYTES_OF_WORK, BatchLimits
from driftlog_tiering.formats.manifest import LeaderEpoch, SegmentRef
from driftlog_tiering.formats.stored_json import array, integer, members, string
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.columns import (
    BUILT_SCHEMA,
    DEFAULT_LIMITS,
    RECORD_COLUMNS,
    SCHEMA,
    BatchEncoder,
    ColumnBuilder,
    EncodedBatch,
    gap_batches,
    with_one_topic,
)
from driftlog_tiering.segments.file_likes import CountingSink, RangedFile

FORMAT_VERSION: Final = 1
ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
_TABLE_TIMES: Final = 4
"""A row group ends at this many times the size of its batches, in memory.  Records of 16 bytes and
more reach the size of their batches first; smaller ones and headers take up to seven times that."""

_DECODE_BYTES: Final = 4 * 1024 * 1024
"""Batches become columns in pieces of this size: a writer keeps one piece raw, not a row group."""

TAIL_BYTES: Final = 64 * 1024
"""Bytes to fetch from an object's end for the footer, which has 10 to 20 KiB for 128 MiB."""

_ROW_BYTES: Final = 48
"""Memory of a decoded record beyond its bytes: offsets into columns, offset, timestamps."""

_READER_BYTES: Final = 32 * 1024
_FOOTER_TIMES: Final = 8
"""Memory of a reader, and of each byte of its footer when it is decoded: measured with 10 and 1,000
row groups of 730 bytes of footer each."""

_BYTES_MEMBER: Final = "row_group_bytes"

_METADATA_KEY: Final = b"driftlog.segment"
_MAGIC: Final = b"PAR1"
_TRAILER_BYTES: Final = 8
_OFFSET, _TIMESTAMP = SCHEMA.get_field_index("offset"), SCHEMA.get_field_index("timestamp")
_TIMESTAMP_TYPE_NAMES: Final = {0: "CreateTime", LOG_APPEND_TIME_FLAG: "LogAppendTime"}
_TIMESTAMP_FLAGS: Final = {
    "CreateTime": {0},
    "LogAppendTime": {LOG_APPEND_TIME_FLAG},
    "mixed": {0, LOG_APPEND_TIME_FLAG},
}


_DAMAGE: Final = (
    *(pa.ArrowException, OSError, KeyError, TypeError, ValueError),
    *(AttributeError, OverflowError, RecursionError),
)
"""What pyarrow and `json` raise where a footer is damaged."""


_LITTLE_MEMORY: Final = "there is too little memory to read a segment"
"""It is not damaged, and may be read again: as when its store does not answer."""


class CorruptSegmentError(CorruptError):
    """The object is no segment, or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group: the byte range ``[start, end)`` of the object, and its content.

    ``decoded_bytes``: its approximate size as a table.
    """

    index: int
    start: int
    end: int
    records: int
    first_offset: int
    last_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc: int
    decoded_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """The content of a finished segment; the names are `manifest.SegmentRef`'s.

    Timestamps and ``max_timestamp_offset`` (the first record that has the largest) are -1
    where there are no records.
    """

    base: int
    end: int
    records: int
    size_bytes: int
    raw_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    codec: str
    leader_epochs: tuple[LeaderEpoch, ...]
    row_groups: tuple[RowGroup, ...]
    footer_crc: int
    format_version: int = FORMAT_VERSION

    def reference(self, key: str, received_bytes: int) -> SegmentRef:
        """The reference of this segment, stored as *key*."""
        return SegmentRef(
            key=key,
            base=self.base,
            end=self.end,
            size_bytes=self.size_bytes,
            records=self.records,
            raw_bytes=self.raw_bytes,
            min_timestamp_ms=self.min_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            max_timestamp_offset=self.max_timestamp_offset,
            codec=self.codec,
            format_version=self.format_version,
            received_bytes=received_bytes,
            footer_crc=self.footer_crc,
        )


class RowSource(Protocol):
    """The batches that rows come from: `SegmentReader`, or `NewRows`."""

    @property
    def leader_epochs(self) -> tuple[LeaderEpoch, ...]:
        """Theirs, ascending."""
        ...

    @property
    def codec(self) -> Codec:
        """That of the most bytes."""
        ...

    @property
    def timestamp_flags(self) -> set[int]:
        """The types of their timestamps, as flags of a batch's attributes."""
        ...


class NewRows:
    """The `RowSource` of rows that were in no batch: of one leader epoch, with CreateTime."""

    def __init__(self, leader_epoch: LeaderEpoch) -> None:
        self.leader_epochs = (leader_epoch,)
        self.codec = Codec.NONE
        self.timestamp_flags = {0}


class SegmentWriter:
    """Writes one segment from batches in offset order; memory stays at about one row group.

    A context manager: on exit a segment that is not finished is abandoned.

    Args:
        sink: an open, empty binary file, or pyarrow's (``pa.OSFile``); it stays open.
        base: start of the range; the first batch may start later.
        row_group_bytes: size of its batches, uncompressed.  More: cold reads make fewer and
            larger GETs.
        limits: those of one batch.
    """

    def __init__(
        self,
        sink: IO[bytes] | pa.NativeFile,
        *,
        topic: str,
        topic_id: UUID,
        partition: int,
        base: int,
        row_group_bytes: int = ROW_GROUP_BYTES,
        limits: BatchLimits = DEFAULT_LIMITS,
    ) -> None:
        self._sink = CountingSink(sink)
        self._crcs: list[int] = []
        self._table_bytes: list[int] = []
        self._topic, self._topic_id, self._partition = topic, topic_id, partition
        self._base = self._next_offset = base
        self._row_group_bytes = row_group_bytes
        self._columns = ColumnBuilder(topic, partition, limits)
        self._collected: list[pq.FileMetaData] = []
        self._decoded: list[pa.Table] = []
        self._records = self._raw_bytes = self._group_start = self._decoded_bytes = 0
        self._greatest: tuple[int, int] | None = None
        self._leader_epochs: list[LeaderEpoch] = []
        self._codec_bytes = [0] * len(Codec)
        self._timestamp_flags: set[int] = set()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            BUILT_SCHEMA,
            version="2.6",
            compression="zstd",
            compression_level=1,
            use_dictionary=["key", "topic"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            write_statistics=["offset", "timestamp"],
            write_page_index=True,
            # The Arrow schema says that topic is a dictionary; readers expect the plain one.
            store_schema=False,
            sorting_columns=[pq.SortingColumn(_OFFSET)],
            metadata_collector=self._collected,
        )

    @property
    def next_offset(self) -> int:
        """Where the range ends so far: a segment finished now may end here."""
        return self._next_offset

    @property
    def raw_bytes(self) -> int:
        """Size of the batches so far, uncompressed."""
        return self._raw_bytes + self._columns.raw_bytes

    @property
    def work_bytes(self) -> int:
        """What the batches so far took to decode: their size, uncompressed, and their headers'
        share."""
        return self.raw_bytes + HEADER_BYTES_OF_WORK * self._columns.headers

    def append(self, batch: Buffer, most_bytes: int | None = None) -> BatchHeader:
        """Add one batch; its buffer must not change until this or a later call flushes it.

        *most_bytes*: as in `ColumnBuilder.add`.

        The caller leaves out control batches, and batches of aborted transactions.
        After an error nothing was added: the segment can be finished before the batch,
        which is then kept verbatim.

        Raises:
            CorruptBatchError: header or CRC.
            CorruptRecordsError: the CRC is valid, and the records cannot be decoded.
            OverBatchLimitError: the CRC is valid, and the batch is over a limit.
        """
        header = self._columns.add(batch, self._next_offset, most_bytes)
        self._next_offset = header.base_offset + header.last_offset_delta + 1
        epoch, attributes = header.partition_leader_epoch, header.attributes
        if not self._leader_epochs or self._leader_epochs[-1].epoch < epoch:
            start = header.base_offset if self._leader_epochs else self._base
            self._leader_epochs.append(LeaderEpoch(epoch, start))
        self._codec_bytes[attributes & CODEC_MASK] += header.batch_length
        if header.record_count:
            self._timestamp_flags.add(attributes & LOG_APPEND_TIME_FLAG)
        if self._columns.raw_bytes >= _DECODE_BYTES:
            self._decode()
        self._flush_if_full()
        return header

    def append_rows(self, rows: pa.Table, source: RowSource, raw_bytes: int) -> None:
        """Add records of another segment of the partition, or new ones, the next ones in offset
        order: rows of `columns.RECORD_COLUMNS`.

        *raw_bytes*: size of their batches, uncompressed.
        """
        assert not self._columns.records, "batches and rows do not mix"
        for epoch in source.leader_epochs:
            if not self._leader_epochs or self._leader_epochs[-1].epoch < epoch.epoch:
                self._leader_epochs.append(epoch)
        self._codec_bytes[source.codec] += raw_bytes
        self._raw_bytes += raw_bytes
        if not rows.num_rows:
            return
        self._timestamp_flags |= source.timestamp_flags
        first, last = (rows.column("offset")[i].as_py() for i in (0, -1))
        assert first >= self._next_offset, "rows come in offset order"
        self._next_offset = last + 1
        self._hold(with_one_topic(rows, self._topic))
        self._flush_if_full()

    def _decode(self) -> None:
        self._raw_bytes += self._columns.raw_bytes
        self._hold(self._columns.take())

    def _hold(self, table: pa.Table) -> None:
        self._decoded.append(table)
        self._decoded_bytes += table.nbytes

    def _flush_if_full(self) -> None:
        most = self._row_group_bytes
        if self.raw_bytes - self._group_start >= most or self._decoded_bytes >= _TABLE_TIMES * most:
            self.flush()

    def flush(self) -> None:
        """End the row group: the batches appended so far leave memory."""
        if self._columns.records:
            self._decode()
        if not self._decoded:
            return
        table = pa.concat_tables(self._decoded)
        self._decoded.clear()
        self._decoded_bytes = 0
        self._group_start = self.raw_bytes
        self._records += table.num_rows
        timestamps = table.column("timestamp").cast(pa.int64())
        greatest = pc.max(timestamps).as_py()
        if self._greatest is None or greatest > self._greatest[0]:
            row = pc.index(timestamps, greatest).as_py()
            self._greatest = greatest, table.column("offset")[row].as_py()
        self._sink.crc = 0
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._crcs.append(self._sink.crc)
        self._table_bytes.append(table.select(RECORD_COLUMNS).nbytes)

    def finish(self, end: int) -> SegmentInfo:
        """Write the last row group and the footer; the segment's range is ``[base, end)``."""
        assert end >= self._next_offset
        self.flush()
        raw_bytes = self.raw_bytes
        codec = Codec(self._codec_bytes.index(max(self._codec_bytes)))
        types = {_TIMESTAMP_TYPE_NAMES[flag] for flag in self._timestamp_flags}
        facts = {
            "format_version": FORMAT_VERSION,
            "topic": self._topic,
            "topic_id": str(self._topic_id),
            "partition": self._partition,
            "base": self._base,
            "end": end,
            "leader_epochs": [[e.epoch, e.start_offset] for e in self._leader_epochs],
            "codec": codec.name.lower(),
            "timestamp_type": "mixed" if len(types) > 1 else next(iter(types), "CreateTime"),
            "raw_bytes": raw_bytes,
            "row_group_crcs": self._crcs,
            _BYTES_MEMBER: self._table_bytes,
        }
        self._writer.add_key_value_metadata({_METADATA_KEY.decode(): json.dumps(facts)})
        self._sink.end = bytearray()
        self._writer.close()
        end_bytes, size_bytes = memoryview(self._sink.end), self._sink.tell()
        footer = end_bytes[footer_start(end_bytes, size_bytes) - size_bytes :]
        (metadata,) = self._collected
        row_groups = _row_groups(metadata, self._crcs, self._table_bytes, size_bytes)
        greatest, offset = self._greatest or (NO_TIMESTAMP * 1000, -1)
        return SegmentInfo(
            base=self._base,
            end=end,
            records=self._records,
            size_bytes=size_bytes,
            raw_bytes=raw_bytes,
            min_timestamp_ms=min((g.min_timestamp_ms for g in row_groups), default=NO_TIMESTAMP),
            max_timestamp_ms=greatest // 1000,
            max_timestamp_offset=offset,
            codec=codec.name.lower(),
            leader_epochs=tuple(self._leader_epochs),
            row_groups=row_groups,
            footer_crc=kernel.crc32c(footer),
        )

    def abandon(self) -> None:
        """Discard the segment unless it is finished; nothing more is written to the sink."""
        self._sink.discards = True
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Also after an error, pyarrow must not write a footer when its writer is collected."""
        self.abandon()


def footer_start(tail: Buffer, size_bytes: int) -> int:
    """Where the footer of the object of *size_bytes* starts, from its last 8 bytes or more.

    If that is before the tail's first byte, fetch from there.

    Raises:
        CorruptSegmentError: no Parquet object ends like that.
    """
    trailer = bytes(memoryview(tail)[-_TRAILER_BYTES:])
    if len(trailer) != _TRAILER_BYTES or trailer[4:] != _MAGIC:
        raise CorruptSegmentError("no Parquet footer at the end")
    start = size_bytes - _TRAILER_BYTES - int.from_bytes(trailer[:4], "little")
    if start < len(_MAGIC):
        raise CorruptSegmentError("a Parquet footer that is larger than its object")
    return start


class SegmentReader:
    """Reads a segment from its footer and byte ranges that the caller fetches.

    Args:
        tail: the object's last bytes, from `footer_start` or before.
        footer_crc: that of the segment's reference; None: the reference has none.

    Raises:
        CorruptSegmentError: damaged, of another writer, or of a newer format.
        UnavailableError: there is too little memory.
    """

    def __init__(self, tail: Buffer, size_bytes: int, footer_crc: int | None) -> None:
        footer = memoryview(tail)[footer_start(tail, size_bytes) - size_bytes :]
        if len(footer) != size_bytes - footer_start(tail, size_bytes):
            raise CorruptSegmentError("the tail does not hold the footer")
        if footer_crc is not None and kernel.crc32c(footer) != footer_crc:
            raise CorruptSegmentError("the footer is damaged, or another segment's: its CRC")
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
            if not self._metadata.schema.to_arrow_schema().equals(SCHEMA):
                raise CorruptSegmentError("other columns")
            if footer_crc is None:
                _check_chunks(self._metadata, size_bytes)
            own = (self._metadata.metadata or {})[_METADATA_KEY]
            facts = members(json.loads(own), "the segment's metadata")
            version = integer(facts, "format_version", 1)
            if version > FORMAT_VERSION:
                raise CorruptSegmentError(f"format version {version}")
            self.topic = string(facts, "topic")
            self.topic_id = UUID(string(facts, "topic_id"))
            self.partition = integer(facts, "partition")
            self.base = integer(facts, "base")
            self.end = integer(facts, "end")
            self.codec = Codec[string(facts, "codec").upper()]
            self.timestamp_type = string(facts, "timestamp_type")
            self.timestamp_flags = _TIMESTAMP_FLAGS[self.timestamp_type]
            self.raw_bytes = integer(facts, "raw_bytes")
            self.leader_epochs = tuple(map(_leader_epoch, array(facts, "leader_epochs")))
            crcs = array(facts, "row_group_crcs")
            table_bytes = [min(ROW_GROUP_BYTES, self.raw_bytes)] * len(crcs)
            if facts.get(_BYTES_MEMBER) is not None:
                table_bytes = array(facts, _BYTES_MEMBER)
            self.row_groups = _row_groups(self._metadata, crcs, table_bytes, size_bytes)
        except MemoryError as error:  # pyarrow's is an ArrowException, too
            raise UnavailableError(_LITTLE_MEMORY) from error
        except _DAMAGE as error:
            raise CorruptSegmentError(repr(error)) from error
        self.size_bytes = size_bytes
        self.memory_bytes = _READER_BYTES + _FOOTER_TIMES * len(footer)
        """Approximate memory of this reader."""
        self.records: int = self._metadata.num_rows

    # ── By offset ──

    def row_group_at(self, offset: int) -> RowGroup | None:
        """The first row group with a record at or after *offset*; None: only a gap follows."""
        return next((g for g in self.row_groups if g.last_offset >= offset), None)

    def read_table(
        self, row_group: RowGroup, data: Buffer, columns: Sequence[str] = SCHEMA.names
    ) -> pa.Table:
        """The row group as a table of *columns* of `columns.SCHEMA`, from its bytes
        ``[start, end)``.

        Raises:
            CorruptSegmentError: *data* is not those bytes.
            UnavailableError: there is too little memory.
        """
        if len(data) != row_group.end - row_group.start or kernel.crc32c(data) != row_group.crc:
            raise CorruptSegmentError(f"row group {row_group.index} is damaged")
        return self._read(row_group, data, row_group.start, list(columns))

    def encoder(self, row_group: RowGroup, data: Buffer) -> "RowGroupBatches":
        """The row group's records, ready to become batches; keep it while it is being read.

        Raises:
            CorruptSegmentError: *data* is not the row group.
            UnavailableError: there is too little memory.
        """
        try:
            encoder = BatchEncoder(
                self.read_table(row_group, data, RECORD_COLUMNS), self.leader_epochs
            )
        except MemoryError as error:  # pyarrow's is an ArrowException, too
            raise UnavailableError(_LITTLE_MEMORY) from error
        except (ValueError, pa.ArrowException) as error:
            raise CorruptSegmentError(repr(error)) from error
        return RowGroupBatches(encoder, self.end_of(row_group))

    def end_of(self, row_group: RowGroup) -> int:
        """Where the next row group's records start, or the segment ends."""
        follows = self.row_groups[row_group.index + 1 :]
        return follows[0].first_offset if follows else self.end

    def gap(self, offset: int) -> Iterator[EncodedBatch]:
        """Empty batches from *offset* to the end, where `row_group_at` says None."""
        assert self.row_group_at(offset) is None
        return gap_batches(offset, self.end, self.leader_epochs)

    # ── By time ──

    def row_groups_since(self, timestamp_ms: int) -> Iterator[RowGroup]:
        """Row groups with a record at or after that time, in offset order."""
        return (g for g in self.row_groups if g.max_timestamp_ms >= timestamp_ms)

    def times_range(self, row_group: RowGroup) -> tuple[int, int]:
        """The byte range of its offsets and timestamps: all that `find_timestamp` needs."""
        chunks = [
            self._metadata.row_group(row_group.index).column(i) for i in (_OFFSET, _TIMESTAMP)
        ]
        ranges = [_chunk_range(chunk) for chunk in chunks]
        return min(start for start, _ in ranges), max(end for _, end in ranges)

    def find_timestamp(
        self, row_group: RowGroup, data: Buffer, timestamp_ms: int, from_offset: int = 0
    ) -> tuple[int, int] | None:
        """(offset, ms) of its first record at or after that time, and at or after *from_offset*.

        *data* are the bytes of `times_range`.

        Raises:
            CorruptSegmentError: they are not.
        """
        start, _ = self.times_range(row_group)
        table = self._read(row_group, data, start, ["offset", "timestamp"])
        times = table.column("timestamp").cast(pa.int64())
        found = pc.and_(
            pc.greater_equal(times, timestamp_ms * 1000),
            pc.greater_equal(table.column("offset"), from_offset),
        )
        row = pc.index(found, True).as_py()
        if row < 0:
            return None
        offset, found_ms = table.column("offset")[row].as_py(), times[row].as_py() // 1000
        # These bytes have no CRC of their own.
        if not row_group.first_offset <= offset <= row_group.last_offset:
            raise CorruptSegmentError("an offset that the footer does not know")
        if found_ms > row_group.max_timestamp_ms:
            raise CorruptSegmentError("a timestamp that the footer does not know")
        return offset, found_ms

    def find_latest(
        self, row_group: RowGroup, data: Buffer, from_offset: int = 0
    ) -> tuple[int, int] | None:
        """(offset, ms) of its first record with the largest time, at or after *from_offset*.

        *data*, and raises: as `find_timestamp`.
        """
        start, _ = self.times_range(row_group)
        table = self._read(row_group, data, start, ["offset", "timestamp"])
        after = pc.greater_equal(table.column("offset"), from_offset)
        largest = pc.max(table.column("timestamp").cast(pa.int64()).filter(after)).as_py()
        if largest is None:
            return None
        return self.find_timestamp(row_group, data, largest // 1000, from_offset)

    def _read(self, row_group: RowGroup, data: Buffer, start: int, columns: list[str]) -> pa.Table:
        try:
            source = pa.PythonFile(RangedFile(data, start, self.size_bytes), mode="r")
            file = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False)
            table = file.read_row_group(row_group.index, columns=columns, use_threads=False)
        except MemoryError as error:  # pyarrow's is an ArrowException, too
            raise UnavailableError(_LITTLE_MEMORY) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptSegmentError(repr(error)) from error
        if table.num_rows != row_group.records:
            raise CorruptSegmentError(f"{table.num_rows} of {row_group.records} records")
        return table


class RowGroupBatches:
    """One row group in memory, as batches."""

    def __init__(self, encoder: BatchEncoder, end: int) -> None:
        self._encoder = encoder
        self.end = end
        """Where the next row group's records start, or the segment ends."""

    def batches(
        self,
        start_offset: int,
        *,
        codec: Codec,
        level: int | None = None,
        batch_bytes: int = 1024 * 1024,
        most_bytes: int | None = None,
    ) -> Iterator[EncodedBatch]:
        """Batches that cover ``[start_offset, end)``, each made when it is asked for.

        The first starts at *start_offset*, also where there is no record.
        *batch_bytes*: of a record section, uncompressed; a larger record is alone in its batch.
        *most_bytes*: they end before a larger record section; None: none is too large.
        """
        return self._encoder.batches(
            start_offset,
            self.end,
            codec=codec,
            level=level,
            batch_bytes=batch_bytes,
            most_bytes=most_bytes,
        )


def _chunk_range(chunk: Any) -> tuple[int, int]:
    start: int = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def _check_chunks(metadata: Any, size_bytes: int) -> None:
    """Raise OSError for a column chunk that `_row_groups` could not look at without the process's
    end.

    ``column()`` lets an exception of Arrow through that ends the process; ``read_row_groups`` makes
    the same objects first, and raises it.  It ends at the first byte that it wants to read.
    """
    nothing = RangedFile(b"", 0, size_bytes)
    try:
        file = pq.ParquetFile(pa.PythonFile(nothing, mode="r"), metadata=metadata, pre_buffer=True)
        file.read_row_groups(range(metadata.num_row_groups), use_threads=False)
    except (pa.ArrowException, OSError):
        if not nothing.missed:
            raise


def _bounds(chunk: Any) -> tuple[int, int]:
    """The least and the greatest value of a column of integers; raises ValueError: not known."""
    statistics = chunk.statistics if chunk.physical_type == "INT64" else None
    bounds = (statistics.min_raw, statistics.max_raw) if statistics is not None else ()
    match bounds:
        case (int(least), int(greatest)) if least <= greatest:
            return least, greatest
        case _:
            raise ValueError(f"statistics of {chunk.path_in_schema}: {bounds}")


def _leader_epoch(entry: object) -> LeaderEpoch:
    match entry:
        case [int(epoch), int(start_offset)]:
            return LeaderEpoch(epoch, start_offset)
        case _:
            raise ValueError(f"not a leader epoch: {entry!r}")


def _row_groups(
    metadata: Any, crcs: Sequence[int], table_bytes: Sequence[int], size_bytes: int
) -> tuple[RowGroup, ...]:
    groups = []
    indexes = range(metadata.num_row_groups)
    for index, crc, least_bytes in zip(indexes, crcs, table_bytes, strict=True):
        group = metadata.row_group(index)
        chunks = [group.column(i) for i in range(group.num_columns)]
        ranges = [_chunk_range(chunk) for chunk in chunks]
        plain_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        start, end = min(start for start, _ in ranges), max(end for _, end in ranges)
        if not 0 <= start < end <= size_bytes or plain_bytes < 0 or group.num_rows <= 0:
            raise ValueError(f"row group {index} is at [{start}, {end}) of {size_bytes}")
        first_offset, last_offset = _bounds(chunks[_OFFSET])
        min_timestamp, max_timestamp = _bounds(chunks[_TIMESTAMP])
        groups.append(
            RowGroup(
                index=index,
                start=start,
                end=end,
                records=group.num_rows,
                first_offset=first_offset,
                last_offset=last_offset,
                min_timestamp_ms=min_timestamp // 1000,
                max_timestamp_ms=max_timestamp // 1000,
                crc=crc,
                decoded_bytes=max(least_bytes, plain_bytes + _ROW_BYTES * group.num_rows),
            )
        )
    return tuple(groups)
