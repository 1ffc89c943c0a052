"""Kafka's RecordBatch, magic 2: its header, what makes it valid, and the patches it may get.

    offset  bytes  field                    unit, meaning
    0       8      base_offset              offset of the first record; *outside the CRC*
    8       4      batch_length             bytes that follow this field
    12      4      partition_leader_epoch   *outside the CRC*
    16      1      magic                    2
    17      4      crc                      CRC-32C of everything from `attributes` to the end
    21      2      attributes               bits 0-2 codec, 3 LogAppendTime, 4 transactional,
                                            5 control, 6 delete horizon is in base_timestamp
    23      4      last_offset_delta        offset of the last record, or of the gap after it
    27      8      base_timestamp           ms since the epoch, -1: none
    35      8      max_timestamp            ms; with LogAppendTime, the time of every record
    43      8      producer_id              -1: none
    51      2      producer_epoch
    53      4      base_sequence
    57      4      record_count
    61      -      records                  compressed as one stream, see `compression`

All integers are big-endian.  `check_batch` raises `CorruptBatchError` with a `Reason`.
Sources: org.apache.kafka.common.record.DefaultRecordBatch, storage.internals.log.LogValidator
and UnifiedLog#analyzeAndValidateRecords.

Pure.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.foundation.types import Buffer

HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""base_offset and batch_length: what precedes the bytes that batch_length counts."""

MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
MAX_RECORDS: Final = 2_000_000
"""Records of one batch: the default limit of sealing, and the largest that a config allows."""
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
"""Timestamps must fit int64 microseconds, because that is what a segment holds."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20

_HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_EPOCH_AT: Final = 12

_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")


class Codec(IntEnum):
    """Attribute bits 0-2.  Source: org.apache.kafka.common.record.CompressionType."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Attribute bit 3, and the segment's column ``timestampType``."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Reason(IntEnum):
    """Why a batch was refused.  The numbers are what the kernel's `check` returns."""

    LENGTH = 1
    """Shorter than a header, or batch_length is not the number of bytes."""
    MAGIC = 2
    CRC = 3
    COUNT = 4
    """record_count does not agree with last_offset_delta, or there is no record."""
    CODEC = 5
    """Codec 5, 6 or 7."""
    NEGATIVE = 6
    """A negative offset, delta or count; or epoch or sequence of a batch with a producer id."""
    TIMESTAMP = 7
    """Base or max timestamp does not fit int64 microseconds."""
    CONTROL = 8
    """A client sent a control batch."""
    BASE_OFFSET = 9
    """A client sent a base offset that is not 0."""
    OFFSET_OVERFLOW = 10
    """base_offset + last_offset_delta is past int64."""


class CorruptBatchError(CorruptError):
    """A batch's header, length or CRC is wrong: the partition's produce is refused."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.name}: {detail}" if detail else reason.name)
        self.reason = reason


class CorruptRecordsError(CorruptError):
    """The records in a batch whose CRC is right cannot be decoded."""


class BatchHeader(NamedTuple):
    """The 61 bytes, by Kafka's names.  Timestamps in ms."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def end_offset(self) -> int:
        """One past the last offset that the batch covers."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec_id(self) -> int:
        """Bits 0-2, which may be no `Codec` before the batch is checked."""
        return self.attributes & CODEC_MASK

    @property
    def codec(self) -> Codec:
        """The codec of a batch that was checked."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock the timestamps are from."""
        return TimestampType((self.attributes & LOG_APPEND_TIME_FLAG) >> 3)

    @property
    def is_control(self) -> bool:
        """Holds a transaction marker, not records of users."""
        return bool(self.attributes & CONTROL_FLAG)


def parse_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """Unpack the 61 bytes at *offset*; only their presence is checked.

    Raises:
        CorruptBatchError: LENGTH.
    """
    if offset < 0 or len(buffer) - offset < HEADER_BYTES:
        raise CorruptBatchError(Reason.LENGTH, f"{len(buffer) - offset} bytes are no header")
    return BatchHeader._make(_HEADER.unpack_from(buffer, offset))


def check_batch(view: Buffer, *, from_client: bool = True) -> BatchHeader:
    """Validate exactly one batch, CRC included; its records are not decoded.

    *from_client* also demands what holds for a producer's batch only: base offset 0,
    no control batch, record_count = last_offset_delta + 1 > 0.  Batches that were read
    back may have gaps or be empty (Kafka's LogCleaner and driftlog write such).

    Raises:
        CorruptBatchError: with the first reason that applies, in the order
            LENGTH, MAGIC, CRC, CODEC, NEGATIVE, COUNT, OFFSET_OVERFLOW, TIMESTAMP,
            CONTROL, BASE_OFFSET.
    """
    header = parse_header(view)
    if header.size_bytes != len(view):
        raise CorruptBatchError(Reason.LENGTH, f"{header.size_bytes} of {len(view)} bytes")
    if header.magic != MAGIC:
        raise CorruptBatchError(Reason.MAGIC, str(header.magic))
    actual = crc32c(memoryview(view)[_ATTRIBUTES_AT:])
    if actual != header.crc:
        raise CorruptBatchError(Reason.CRC, f"{actual:#010x}, not {header.crc:#010x}")
    reason = _reason_to_refuse(header, from_client)
    if reason is not None:
        raise CorruptBatchError(reason, str(header))
    return header


def _reason_to_refuse(header: BatchHeader, from_client: bool) -> Reason | None:
    if header.codec_id > Codec.ZSTD:
        return Reason.CODEC
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        return Reason.NEGATIVE
    if header.producer_id < NO_PRODUCER_ID:
        return Reason.NEGATIVE
    # Markers of transactions carry a producer id and no sequence.
    unsequenced = header.base_sequence < 0 and not header.is_control
    if header.producer_id >= 0 and (header.producer_epoch < 0 or unsequenced):
        return Reason.NEGATIVE
    count = header.last_offset_delta + 1
    if header.record_count > count or (from_client and header.record_count != count):
        return Reason.COUNT
    if header.base_offset > 2**63 - 1 - count:
        return Reason.OFFSET_OVERFLOW
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if not -MAX_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS:
            return Reason.TIMESTAMP
    if from_client and header.is_control:
        return Reason.CONTROL
    if from_client and header.base_offset:
        return Reason.BASE_OFFSET
    return None


def patch_offset_and_epoch(
    batch: bytearray | memoryview, base_offset: int, leader_epoch: int
) -> None:
    """Write base offset and leader epoch.  The CRC does not cover them, so it stays valid."""
    assert base_offset >= 0
    assert len(batch) >= HEADER_BYTES
    _I64.pack_into(batch, 0, base_offset)
    _I32.pack_into(batch, _EPOCH_AT, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Make *now_ms* the time of every record: bit 3, max_timestamp, a new CRC.

    The records' own deltas stay; readers ignore them.
    Source: DefaultRecordBatch#setMaxTimestamp.
    """
    (attributes,) = _U16.unpack_from(batch, _ATTRIBUTES_AT)
    _U16.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_FLAG)
    set_max_timestamp(batch, now_ms)


def set_max_timestamp(batch: bytearray | memoryview, max_timestamp: int) -> None:
    """Write max_timestamp (ms) and a new CRC, for batches of clients that left it unset."""
    assert -MAX_TIMESTAMP_MS <= max_timestamp <= MAX_TIMESTAMP_MS
    _I64.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    _U32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))


def clear_log_append_time(batch: bytearray | memoryview) -> None:
    """Make the records' own times theirs again: clear bit 3, and write a new CRC.

    Source: LogValidator, where a topic has CreateTime and a batch has the bit.
    """
    (attributes,) = _U16.unpack_from(batch, _ATTRIBUTES_AT)
    _U16.pack_into(batch, _ATTRIBUTES_AT, attributes & ~LOG_APPEND_TIME_FLAG)
    _U32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))


def iterate_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of a buffer of whole batches; only length and magic are checked.

    Raises:
        CorruptBatchError: LENGTH or MAGIC, after the batches that precede the damage.
    """
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = parse_header(view, position)
        if header.magic != MAGIC:
            raise CorruptBatchError(Reason.MAGIC, str(header.magic))
        end = position + header.size_bytes
        if header.size_bytes < HEADER_BYTES or end > len(view):
            raise CorruptBatchError(Reason.LENGTH, f"{header.size_bytes} bytes at {position}")
        yield header, view[position:end]
        position = end


def build_batch(
    records: Buffer,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch around a record section that is already compressed as *attributes* says."""
    batch = bytearray(HEADER_BYTES + len(records))
    batch[HEADER_BYTES:] = records
    fill_header(
        batch,
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        record_count=record_count,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return batch


def fill_header(
    batch: bytearray | memoryview,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> None:
    """Write the header, CRC included, over the first 61 bytes of *batch*."""
    assert 0 <= record_count <= last_offset_delta + 1 <= INT32_MAX + 1
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    _U32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """A batch without records, after which a reader continues at *end_offset*.

    Uncompressed, because no client decompresses an empty section.  Source: Java's CompletedFetch
    continues at the batch's nextOffset, librdkafka at its last offset + 1 (KAFKA-5443), and
    Kafka's DefaultRecordBatch#writeEmptyHeader writes such when its cleaner leaves no record.
    """
    assert base_offset < end_offset
    batch = build_batch(
        b"",
        base_offset=base_offset,
        last_offset_delta=end_offset - base_offset - 1,
        record_count=0,
        attributes=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        leader_epoch=leader_epoch,
    )
    return bytes(batch)
