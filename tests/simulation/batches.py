"""Small record batches whose values say who wrote them."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    Codec,
    TimestampType,
    build_batch,
    parse_header,
)
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.batches.compression import decompress


class Row(NamedTuple):
    """One offset of the log, as far as the oracle looks."""

    value: bytes
    garbage: bool
    """A batch that cannot be decoded; it has one offset and no value."""
    timestamp_ms: int
    epoch: int
    """Of the leader that took it."""


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


TOMBSTONE: Final = "tombstone"
"""The header that says which record a tombstone is."""


def key_of(value: bytes) -> bytes:
    """The key of a record of a compacted topic, by its value, which ends with its number."""
    return value[-1:]


def is_tombstone(value: bytes) -> bool:
    """Whether the record of a compacted topic has no value: one in four."""
    return value[-2:-1] in (b"0", b"4", b"8")


def _bytes(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _record(delta: int, value: bytes, timestamp_delta: int, *, keyed: bool) -> bytes:
    body = (
        b"\0"
        + _varint(timestamp_delta)
        + _varint(delta)
        + (_bytes(key_of(value)) if keyed else _varint(-1))
    )
    if keyed and is_tombstone(value):
        body += _varint(-1) + _varint(1) + _bytes(TOMBSTONE.encode()) + _bytes(value)
    else:
        body += _bytes(value) + _varint(0)
    return _varint(len(body)) + body


def make_batch(
    values: list[bytes],
    *,
    timestamp_ms: int = 0,
    timestamps_ms: Sequence[int] = (),
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    garbage: bool = False,
    keyed: bool = False,
) -> bytearray:
    """A batch of *values*, at one time or each at its own.

    *keyed*: for a compacted topic.
    *garbage*: a valid CRC around records that cannot be decoded.
    """
    timestamps_ms = timestamps_ms or [timestamp_ms] * len(values)
    base_ms = timestamps_ms[0]
    records = b"".join(
        _record(i, value, timestamp_ms - base_ms, keyed=keyed)
        for i, (value, timestamp_ms) in enumerate(zip(values, timestamps_ms, strict=True))
    )
    if garbage:
        records = b"\xff" * len(records)
    return build_batch(
        records,
        base_offset=0,
        last_offset_delta=len(values) - 1,
        record_count=len(values),
        attributes=0,
        base_timestamp=base_ms,
        max_timestamp=max(timestamps_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def rows_of(batch: bytes | memoryview) -> list[tuple[int, Row]]:
    """(offset, row) of each record of a batch made by `make_batch`, or re-encoded from one."""
    header = parse_header(batch)
    body = memoryview(batch)[HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        body = memoryview(decompress(header.codec, body, BatchLimits().decompressed_bytes))
    view, epoch = bytes(body), header.partition_leader_epoch
    try:
        stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return [
            (
                header.base_offset + delta,
                Row(
                    value,
                    False,
                    header.max_timestamp if stamped else header.base_timestamp + late_ms,
                    epoch,
                ),
            )
            for delta, late_ms, value in _records(view, header.record_count)
        ]
    except IndexError:
        assert header.last_offset_delta == 0, "garbage is made one record at a time"
        return [(header.base_offset, Row(b"", True, header.max_timestamp, epoch))]


def _records(view: bytes, count: int) -> list[tuple[int, int, bytes]]:
    at, found = 0, []
    for _ in range(count):
        length, at = _read_varint(view, at)
        end = at + length
        at += 1
        timestamp_delta, at = _read_varint(view, at)
        delta, at = _read_varint(view, at)
        key_size, at = _read_varint(view, at)
        at += max(0, key_size)
        size, at = _read_varint(view, at)
        if size < 0:
            _, at = _read_varint(view, at)
            header_size, at = _read_varint(view, at)
            size, at = _read_varint(view, at + header_size)
        found.append((delta, timestamp_delta, view[at : at + size]))
        at = end
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
