"""Small record batches whose values say who wrote them."""

from driftlog_tiering.batch import build_batch, parse_header


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _record(delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(delta) + _varint(-1) + _varint(len(value)) + value
    body += _varint(0)
    return _varint(len(body)) + body


def make_batch(
    values: list[bytes],
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    garbage: bool = False,
) -> bytearray:
    """A batch of *values*; *garbage*: a valid CRC around records that cannot be decoded."""
    records = b"".join(_record(i, value) for i, value in enumerate(values))
    if garbage:
        records = b"\xff" * len(records)
    return build_batch(
        records,
        base_offset=0,
        last_offset_delta=len(values) - 1,
        record_count=len(values),
        attributes=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def values_of(batch: bytes | memoryview) -> list[tuple[int, bytes]]:
    """(offset, value) of each record of an uncompressed batch made by `make_batch`."""
    header = parse_header(batch)
    view = bytes(batch)
    at, found = 61, []
    for _ in range(header.record_count):
        length, at = _read_varint(view, at)
        end = at + length
        at += 1
        _, at = _read_varint(view, at)
        delta, at = _read_varint(view, at)
        _, at = _read_varint(view, at)
        size, at = _read_varint(view, at)
        found.append((header.base_offset + delta, view[at : at + size]))
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
