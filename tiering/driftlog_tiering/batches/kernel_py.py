"""The kernel in Python: the oracle of `_kernel.pyx`, and its slow stand-in without a compiler.

A record section, after decompression, is `record_count` records:

    length varint, attributes int8 (unused), timestamp_delta varlong (ms), offset_delta varint,
    key_length varint (-1: null), key, value_length varint (-1: null), value,
    header_count varint, headers: key_length varint, key UTF-8, value_length varint (-1), value

Varints are zigzag, of at most 5 bytes (10 for varlong), and must fit 32 (64) bits.
Source: org.apache.kafka.common.record.DefaultRecord#readFrom, utils.ByteUtils.

Pure.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c as _crc32c

from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    MAX_TIMESTAMP_MS,
    NO_TIMESTAMP,
    CorruptBatchError,
    CorruptRecordsError,
    check_batch,
    patch_offset_and_epoch,
)
from driftlog_tiering.foundation.types import Buffer

Checked = tuple[int, int, int, int, int, int, int]
"""record_count, attributes, producer_id, producer_epoch, base_sequence, base_timestamp,
max_timestamp."""

Sizes = tuple[int, int, int, int, int, int, int, int, int]
"""Bytes of keys, bytes of values, number of headers, bytes of header keys, bytes of header
values, null keys, null values, records without headers, null header values."""

Batch = tuple[Buffer, int, int, int, int, int]
"""Records, record_count, base_offset, base_timestamp (ms), max_timestamp (ms), timestamp type."""

_INT32_MAX = 2**31 - 1


class Record(NamedTuple):
    """One record of a batch; the timestamp is a delta to the batch's base, in ms."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def check(buffer: Buffer, pos: int, length: int, from_client: bool = True) -> Checked | int:
    """`batch.check_batch` of ``buffer[pos:pos + length]``; a number is the `batch.Reason`."""
    if pos < 0 or length < 0 or pos + length > len(buffer):
        return 1
    try:
        header = check_batch(memoryview(buffer)[pos : pos + length], from_client=from_client)
    except CorruptBatchError as error:
        return int(error.reason)
    return (
        header.record_count,
        header.attributes,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_timestamp,
        header.max_timestamp,
    )


def patch(buffer: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """`batch.patch_offset_and_epoch` of the batch at *pos*.

    Raises:
        IndexError: no header fits there.
    """
    if pos < 0 or pos + HEADER_BYTES > len(buffer):
        raise IndexError("no batch header at that position")
    patch_offset_and_epoch(memoryview(buffer)[pos:], base_offset, leader_epoch)


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """CRC-32C of *buffer*, continuing from *value*."""
    return _crc32c(buffer, value)


# ── Records to columns ──


class _Cursor:
    """Reads fields of ``data[position:end]``."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: Buffer, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def varint(self, bits: int = 32) -> int:
        """A zigzag number of at most *bits* bits."""
        value = shift = 0
        while True:
            if self.position >= self.end:
                raise CorruptRecordsError("a varint that is cut off")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if value >> bits:
                raise CorruptRecordsError("a varint that is too large")
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift >= bits:
                raise CorruptRecordsError("a varint that is too long")

    def skip(self, length: int) -> None:
        """Pass over the next *length* bytes."""
        if not 0 <= length <= self.end - self.position:
            raise CorruptRecordsError("a length that is negative or past the end")
        self.position += length

    def skip_nullable(self) -> None:
        """Pass over a length and its bytes, -1: null."""
        length = self.varint()
        if length != -1:
            self.skip(length)

    def take(self, length: int) -> bytes:
        """The next *length* bytes."""
        start = self.position
        self.skip(length)
        return bytes(self.data[start : self.position])

    def nullable(self) -> bytes | None:
        """A length and its bytes, -1: null."""
        length = self.varint()
        return None if length == -1 else self.take(length)

    def finish(self) -> None:
        """Check that no bytes are left."""
        if self.position != self.end:
            raise CorruptRecordsError("bytes after the last field")


def iterate_records(records: Buffer, count: int) -> Iterator[Record]:
    """Each record of a decompressed record section.

    Raises:
        CorruptRecordsError: at the first record that is malformed, or after *count*
            records if bytes are left.
    """
    for cursor in _cursors(records, count):
        timestamp_delta = cursor.varint(64)
        offset_delta = cursor.varint()
        key = cursor.nullable()
        value = cursor.nullable()
        headers = tuple(_header(cursor) for _ in range(_header_count(cursor)))
        cursor.finish()
        yield Record(timestamp_delta, offset_delta, key, value, headers)


def _cursors(records: Buffer, count: int) -> Iterator[_Cursor]:
    """A cursor for each record, at its timestamp delta."""
    if count < 0:
        raise CorruptRecordsError("a negative count")
    section = _Cursor(memoryview(records), 0, len(records))
    for _ in range(count):
        length = section.varint()
        start = section.position
        if length < 1:
            raise CorruptRecordsError("a length that is negative or past the end")
        section.skip(length)
        yield _Cursor(section.data, start + 1, section.position)
    section.finish()


def _header_count(cursor: _Cursor) -> int:
    count = cursor.varint()
    if count < 0:
        raise CorruptRecordsError("a length that is negative or past the end")
    return count


def _header(cursor: _Cursor) -> tuple[str, bytes | None]:
    try:
        key = cursor.take(cursor.varint()).decode()
    except UnicodeDecodeError:
        raise CorruptRecordsError("a header key that is not UTF-8") from None
    return key, cursor.nullable()


def _timestamp(base_timestamp: int, delta: int) -> int:
    timestamp = base_timestamp + delta
    if not -MAX_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS:
        raise CorruptRecordsError("a timestamp that does not fit int64 microseconds")
    return timestamp


def scan(
    records: Buffer,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    log_append_time: bool = False,
) -> Sizes:
    """Validate a decompressed record section and measure what its columns need.

    Offset deltas must ascend strictly from 0 or more to at most *last_offset_delta*, and
    timestamps (ms; ignored with *log_append_time*) must fit int64 microseconds.

    Raises:
        CorruptRecordsError: anything but exactly *count* well-formed records.
    """
    sizes = [0] * 9
    previous = -1
    for record in iterate_records(records, count):
        if not previous < record.offset_delta <= last_offset_delta:
            raise CorruptRecordsError("offset deltas that do not ascend to last_offset_delta")
        previous = record.offset_delta
        if not log_append_time:
            _timestamp(base_timestamp, record.timestamp_delta)
        sizes[0] += len(record.key or b"")
        sizes[1] += len(record.value or b"")
        sizes[2] += len(record.headers)
        sizes[3] += sum(len(key.encode()) for key, _ in record.headers)
        sizes[4] += sum(len(value or b"") for _, value in record.headers)
        sizes[5] += record.key is None
        sizes[6] += record.value is None
        sizes[7] += not record.headers
        sizes[8] += sum(value is None for _, value in record.headers)
    a, b, c, d, e, f, g, h, i = sizes
    return a, b, c, d, e, f, g, h, i


class _Binary:
    """Appends to a column's validity bits, int32 offsets and bytes."""

    def __init__(self, validity: memoryview | None, offsets: memoryview, data: memoryview) -> None:
        self.validity = validity
        self.offsets = offsets.cast("i")
        self.data = data
        self.rows = 0
        self.used = 0
        self.offsets[0] = 0

    def put(self, value: bytes | None) -> None:
        """Append one value; null clears its bit."""
        if value is None:
            assert self.validity is not None
            _clear_bit(self.validity, self.rows)
        else:
            if len(value) > len(self.data) - self.used:
                raise CorruptRecordsError("the records are not those that were scanned")
            self.data[self.used : self.used + len(value)] = value
            self.used += len(value)
        self.rows += 1
        self.offsets[self.rows] = self.used


def _clear_bit(bits: memoryview, i: int) -> None:
    bits[i >> 3] &= ~(1 << (i & 7)) & 0xFF


def decode(batches: Sequence[Batch], sizes: Sequence[int], buffers: Sequence[Buffer]) -> None:
    """Copy scanned batches into the buffers of Arrow columns.

    *sizes* is the sum of the batches' `scan`; *buffers* are sixteen writable ones, of at least
    the size that follows from it, all of native byte order:

        0 offset int64          1 timestamp int64 (us)    2 timestamp type int32
        3 key validity          4 key offsets int32       5 key bytes
        6 value validity        7 value offsets           8 value bytes
        9 headers validity     10 headers offsets
       11 header key offsets   12 header key bytes
       13 header value validity  14 header value offsets  15 header value bytes

    A record without headers has NULL headers.  Validity is bits, least significant first.

    Raises:
        CorruptRecordsError: the records are not those that were scanned.
        ValueError: a buffer is too small.
        OverflowError: a column over 2 GiB.
    """
    if max(sizes[:5]) > _INT32_MAX:
        raise OverflowError("a column over 2 GiB")
    rows = sum(batch[1] for batch in batches)
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    for at, least in enumerate(least_bytes(rows, sizes)):
        if len(views[at]) < least:
            raise ValueError(f"buffer {at} has {len(views[at])} of {least} bytes")
        views[at] = views[at][:least]
    for at in (3, 6, 9, 13):
        views[at][:] = b"\xff" * len(views[at])
    offset, timestamp, kind = views[0].cast("q"), views[1].cast("q"), views[2].cast("i")
    key, value = _Binary(*views[3:6]), _Binary(*views[6:9])
    headers_offsets = views[10].cast("i")
    headers_offsets[0] = 0
    header_key, header_value = _Binary(None, *views[11:13]), _Binary(*views[13:16])
    row = 0
    for records, count, base_offset, base_timestamp, max_ts, timestamp_type in batches:
        for record in iterate_records(records, count):
            offset[row] = base_offset + record.offset_delta
            ms = max_ts if timestamp_type else base_timestamp + record.timestamp_delta
            timestamp[row] = _timestamp(ms, 0) * 1000
            kind[row] = timestamp_type
            key.put(record.key)
            value.put(record.value)
            if not record.headers:
                _clear_bit(views[9], row)
            elif header_key.rows + len(record.headers) > sizes[2]:
                raise CorruptRecordsError("the records are not those that were scanned")
            for name, content in record.headers:
                header_key.put(name.encode())
                header_value.put(content)
            row += 1
            headers_offsets[row] = header_key.rows
    used = (key.used, value.used, header_key.rows, header_key.used, header_value.used)
    if used != tuple(sizes[:5]):
        raise CorruptRecordsError("the records are not those that were scanned")


def least_bytes(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    bits, headers = (rows + 7) // 8, sizes[2]
    return (
        *(8 * rows, 8 * rows, 4 * rows),
        *(bits, 4 * (rows + 1), sizes[0]),
        *(bits, 4 * (rows + 1), sizes[1]),
        *(bits, 4 * (rows + 1)),
        *(4 * (headers + 1), sizes[3]),
        *((headers + 7) // 8, 4 * (headers + 1), sizes[4]),
    )


# ── Timestamps within a batch ──


def find_timestamp(
    records: Buffer, count: int, base_timestamp: int, target: int, from_delta: int = 0
) -> tuple[int, int] | None:
    """(offset delta, timestamp) of the first record at or after *target* (ms); if there is none,
    of the first record that has the largest timestamp.  None: there is no record.

    Records below the offset delta *from_delta* do not count.  Keys, values and headers are passed
    over: no object is made of them, and what is in the headers is not checked.

    For a CreateTime batch: with LogAppendTime all records have the batch's max_timestamp.

    Raises:
        CorruptRecordsError: a malformed record before it.
    """
    best: tuple[int, int] | None = None
    for timestamp_delta, offset_delta in _times(records, count):
        timestamp = _timestamp(base_timestamp, timestamp_delta)
        if offset_delta >= from_delta and (best is None or timestamp > best[1]):
            best = offset_delta, timestamp
            if timestamp >= target:
                break
    return best


def max_timestamp(records: Buffer, count: int, base_timestamp: int) -> int:
    """The max_timestamp for a header in which a client left it unset; no record: -1.

    Raises:
        CorruptRecordsError: not exactly *count* records.
    """
    found = find_timestamp(records, count, base_timestamp, MAX_TIMESTAMP_MS + 1)
    return NO_TIMESTAMP if found is None else found[1]


def _times(records: Buffer, count: int) -> Iterator[tuple[int, int]]:
    """Timestamp delta and offset delta of each record."""
    for cursor in _cursors(records, count):
        timestamp_delta, offset_delta = cursor.varint(64), cursor.varint()
        cursor.skip_nullable()
        cursor.skip_nullable()
        if _header_count(cursor) == 0:
            cursor.finish()
        yield timestamp_delta, offset_delta


# ── Columns to records ──


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _nullable(value: bytes | None) -> bytes:
    return b"\x01" if value is None else _varint(len(value)) + value


def encode_record(record: Record) -> bytes:
    """One record, its length included."""
    body = bytearray(b"\0")
    body += _varint(record.timestamp_delta) + _varint(record.offset_delta)
    body += _nullable(record.key) + _nullable(record.value)
    body += _varint(len(record.headers))
    for key, value in record.headers:
        body += _nullable(key.encode()) + _nullable(value)
    return _varint(len(body)) + body


class _Strings:
    """Reads a column's values."""

    def __init__(self, rows: int, validity: Buffer | None, offsets: Buffer, data: Buffer) -> None:
        self.validity = None if validity is None else memoryview(validity).cast("B")
        self.offsets = _offsets(offsets, rows, len(memoryview(data).cast("B")))
        self.data = memoryview(data).cast("B")

    def __getitem__(self, i: int) -> bytes | None:
        if not _is_set(self.validity, i):
            return None
        return bytes(self.data[self.offsets[i] : self.offsets[i + 1]])


def _is_set(bits: memoryview | None, i: int) -> bool:
    return bits is None or bool(bits[i >> 3] >> (i & 7) & 1)


def _offsets(buffer: Buffer, rows: int, capacity: int) -> tuple[int, ...]:
    if len(memoryview(buffer).cast("B")) < 4 * (rows + 1):
        raise ValueError("an offset buffer that is too small")
    offsets: tuple[int, ...] = struct.unpack_from(f"={rows + 1}i", buffer)
    if offsets[0] < 0 or offsets[-1] > capacity or list(offsets) != sorted(offsets):
        raise ValueError("offsets that do not ascend")
    return offsets


class Rows:
    """Columns to be read as records; sixteen buffers as in `decode`, validity may be None.

    Raises:
        ValueError: buffers that are too small, offsets that do not ascend (strictly, those
            of records), a timestamp type that is neither 0 nor 1.
    """

    def __init__(self, count: int, buffers: Sequence[Buffer | None]) -> None:
        b = [b"" if buffer is None else buffer for buffer in buffers]
        self.count = count
        self._offset = struct.unpack_from(f"={count}q", b[0])
        self._timestamp = struct.unpack_from(f"={count}q", b[1])
        self._type = struct.unpack_from(f"={count}i", b[2])
        ascending = all(a < b for a, b in pairwise((-1, *self._offset)))
        if not ascending or not {0, 1}.issuperset(self._type):
            raise ValueError("offsets that do not ascend, or a timestamp type that is none")
        self._key = _Strings(count, buffers[3], b[4], b[5])
        self._value = _Strings(count, buffers[6], b[7], b[8])
        self._with_headers = None if buffers[9] is None else memoryview(buffers[9]).cast("B")
        self._headers_offsets = _offsets(b[10], count, _INT32_MAX)
        headers = self._headers_offsets[-1]
        self._header_key = _Strings(headers, None, b[11], b[12])
        self._header_value = _Strings(headers, buffers[13], b[14], b[15])

    def find_offset(self, offset: int) -> int:
        """The first row whose offset is *offset* or more; `count` if there is none."""
        return sum(1 for known in self._offset if known < offset)

    def offset(self, row: int) -> int:
        """The offset in that row.

        Raises:
            IndexError: no such row.
        """
        if not 0 <= row < self.count:
            raise IndexError("no such row")
        return int(self._offset[row])

    def cut(
        self, start: int, stop: int, base_offset: int, target_bytes: int
    ) -> tuple[int, int, int, int, int]:
        """Choose rows from *start* on, before *stop*, that make one batch with that base offset.

        Returns (stop, bytes of the record section, base timestamp, max timestamp, timestamp
        type): at least one row, as many as fit *target_bytes*, all of one timestamp type; with
        LogAppendTime of one timestamp.  Timestamps in ms, rounded down.

        Raises:
            IndexError: no such rows.
            OverflowError: the first row fits no batch.
        """
        if not 0 <= start < stop <= self.count:
            raise IndexError("no such rows")
        base_timestamp = greatest = self._timestamp[start] // 1000
        kind = self._type[start]
        total, i = 0, start
        while i < stop:
            timestamp = self._timestamp[i] // 1000
            if self._type[i] != kind or (kind and timestamp != base_timestamp):
                break
            if not 0 <= self._offset[i] - base_offset <= _INT32_MAX:
                break
            size = len(self._encode(i, base_offset, base_timestamp))
            if i > start and total + size > target_bytes:
                break
            total += size
            greatest = max(greatest, timestamp)
            i += 1
        if i == start or total > _INT32_MAX - HEADER_BYTES:
            raise OverflowError("a record that fits no batch")
        return i, total, base_timestamp, greatest, kind

    def encode(
        self, start: int, stop: int, base_offset: int, out: bytearray | memoryview, at: int
    ) -> int:
        """Write the rows' record section at *at*; returns where it ends.

        Raises:
            IndexError: no such rows, or no such position.
            ValueError: it does not fit.
        """
        if not 0 <= start < stop <= self.count:
            raise IndexError("no such rows")
        if not 0 <= at <= len(out):
            raise IndexError("no such position")
        base_timestamp = self._timestamp[start] // 1000
        for i in range(start, stop):
            record = self._encode(i, base_offset, base_timestamp)
            if at + len(record) > len(out):
                raise ValueError("the records do not fit")
            out[at : at + len(record)] = record
            at += len(record)
        return at

    def _encode(self, i: int, base_offset: int, base_timestamp: int) -> bytes:
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if _is_set(self._with_headers, i):
            headers = tuple(
                ((self._header_key[j] or b"").decode(), self._header_value[j])
                for j in range(self._headers_offsets[i], self._headers_offsets[i + 1])
            )
        return encode_record(
            Record(
                self._timestamp[i] // 1000 - base_timestamp,
                self._offset[i] - base_offset,
                self._key[i],
                self._value[i],
                headers,
            )
        )


class KeyRows:
    """What compaction looks at of each row: offset, key, and whether there is a value.

    Args:
        buffers: Arrow's, of offset; of key validity, offsets, data; of value validity.  Validity
            may be None: no null.

    Raises:
        ValueError: buffers that are too small, offsets that do not ascend strictly.
    """

    def __init__(self, count: int, buffers: Sequence[Buffer | None]) -> None:
        if count < 0 or len(buffers) != 5:
            raise ValueError("five buffers of rows, please")
        offset, validity, offsets, data, values = buffers
        self.count = count
        self.offsets: tuple[int, ...] = struct.unpack_from(f"={count}q", offset or b"")
        if not all(a < b for a, b in pairwise((-1, *self.offsets))):
            raise ValueError("offsets that do not ascend")
        self.keys = _Strings(count, validity, offsets or b"", data or b"")
        self._values = None if values is None else memoryview(values).cast("B")

    def has_value(self, row: int) -> bool:
        """Whether the value in that row is not null."""
        return _is_set(self._values, row)


class KeyMap:
    """The newest offset of each key; the compiled one holds a hash of 128 bits for each key.

    Args:
        memory_bytes: of all slots, 24 bytes each.
        load: the share of the slots that may be used (``log.cleaner.io.buffer.load.factor``).
        seed: 16 random bytes of the hash: without them a client cannot make two keys of one hash.
    """

    def __init__(self, memory_bytes: int, load: float, seed: bytes) -> None:
        slots = memory_bytes // 24
        if len(seed) != 16 or slots < 2 or not 0 < load < 1:
            raise ValueError("a seed of 16 bytes, memory of 2 slots, a load below 1")
        self.capacity = max(1, min(int(load * slots), slots - 1))
        self._offsets: dict[bytes, int] = {}

    @property
    def keys(self) -> int:
        """Distinct keys so far."""
        return len(self._offsets)

    def add(self, rows: KeyRows, first: int, stop: int) -> int:
        """Add the keys of the rows ``[first, stop)``, null keys apart.

        Returns the first row that was not added: *stop*, or the row whose key has no slot left.
        """
        if not 0 <= first <= stop <= rows.count:
            raise IndexError("no such rows")
        for i in range(first, stop):
            key = rows.keys[i]
            if key is None:
                continue
            if key not in self._offsets and len(self._offsets) == self.capacity:
                return i
            self._offsets[key] = max(self._offsets.get(key, -1), rows.offsets[i])
        return stop

    def survivors(
        self, rows: KeyRows, end_offset: int, tombstones_end: int
    ) -> tuple[bytearray, int, int]:
        """Which rows stay: (their bits in Arrow's order, how many, tombstones among them).

        A row at or above *end_offset* stays, and no tombstone is counted there.  Below it a row
        goes that has no key, or whose key has a newer offset, or that is a tombstone below
        *tombstones_end*.
        """
        mask, kept, tombstones = bytearray((rows.count + 7) // 8), 0, 0
        for i in range(rows.count):
            offset, key = rows.offsets[i], rows.keys[i]
            if offset < end_offset:
                deletes = not rows.has_value(i)
                if key is None or (deletes and offset < tombstones_end):
                    continue
                if self._offsets.get(key, -1) > offset:
                    continue
                tombstones += deletes
            mask[i >> 3] |= 1 << (i & 7)
            kept += 1
        return mask, kept, tombstones
