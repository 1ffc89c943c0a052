"""Record batches (magic 2) for load: built once, sent many times.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 |
    last offset delta 4 | base timestamp 8 | max timestamp 8 | producer id 8 | epoch 2 |
    base sequence 4 | count 4 | records

The CRC-32C covers everything from the attributes on: a broker that patches base offset and
leader epoch leaves it valid, and so does sending one batch a thousand times.
Source: `org.apache.kafka.common.record.DefaultRecordBatch`, by its documentation.
Pure.
"""

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import cramjam
import zstandard
from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_CRC_AT = 17
_CRC_FROM = 21
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_COUNT = struct.Struct(">i")
_COUNT_AT = 57
_LAST_DELTA_AT = 23
_LENGTH_AT = 8


class Codec(IntEnum):
    """The compression in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptBatchError(Exception):
    """The bytes are no record batch, or have a wrong CRC."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An encoded batch, how many records it holds and how many bytes their values have."""

    data: bytearray
    records: int
    value_bytes: int


def encode_batch(
    values: Sequence[bytes],
    *,
    codec: Codec = Codec.NONE,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 0,
) -> Batch:
    """One batch of *values*, all at one timestamp, without headers or producer id."""
    records = b"".join(
        _record(delta, None if keys is None else keys[delta], value)
        for delta, value in enumerate(values)
    )
    data = _assemble(_compress(records, codec), len(values), codec, timestamp_ms)
    return Batch(data, len(values), sum(map(len, values)))


def set_producer(data: bytearray, producer_id: int, epoch: int, base_sequence: int) -> None:
    """Make an encoded batch an idempotent producer's next one; updates the CRC."""
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, epoch, base_sequence)
    _set_crc(data)


def walk(data: memoryview, *, verify: bool) -> tuple[int, int, int]:
    """Batches, records and the next offset in the records of one fetched partition.

    Reads batch headers only; an incomplete batch at the end is not counted.
    -1 is the next offset if there is no whole batch.

    Raises:
        CorruptBatchError: not magic 2; or, with *verify*, a CRC that does not match.
    """
    batches, records, next_offset, at, end = 0, 0, -1, 0, len(data)
    while at + HEADER_BYTES <= end:
        base_offset, length, _, magic, crc, _, last_delta, *_, count = _HEADER.unpack_from(data, at)
        if magic != 2:
            raise CorruptBatchError(f"magic {magic} at {at}")
        after = at + 12 + length
        if after > end:
            break
        if verify and crc32c(data[at + _CRC_FROM : after]) != crc:
            raise CorruptBatchError(f"CRC of the batch at offset {base_offset}")
        batches, records, next_offset, at = (
            batches + 1,
            records + count,
            base_offset + last_delta + 1,
            after,
        )
    return batches, records, next_offset


class Growing:
    """The first n of a run of equal records as a batch, at the cost of one CRC.

    A record's bytes do not depend on the records after it, so the records of every
    smaller batch are a prefix of the largest one's.
    """

    def __init__(self, value: bytes, most: int, timestamp_ms: int) -> None:
        encoded = [_record(delta, None, value) for delta in range(most)]
        self._whole = _assemble(b"".join(encoded), most, Codec.NONE, timestamp_ms)
        self._ends = [HEADER_BYTES]
        for record in encoded:
            self._ends.append(self._ends[-1] + len(record))
        self.most = most

    def first(self, records: int) -> bytearray:
        """A batch of that many records."""
        data = self._whole[: self._ends[records]]
        _COUNT.pack_into(data, _LENGTH_AT, len(data) - 12)
        _COUNT.pack_into(data, _LAST_DELTA_AT, records - 1)
        _COUNT.pack_into(data, _COUNT_AT, records)
        _set_crc(data)
        return data


def random_values(rng: random.Random, count: int, size_bytes: int) -> list[bytes]:
    """Payload "random": bytes that no codec makes smaller."""
    return [rng.randbytes(size_bytes) for _ in range(count)]


def json_values(rng: random.Random, count: int, size_bytes: int) -> list[bytes]:
    """Payload "json": events of exactly *size_bytes*, which zstd makes 2.2 times smaller.

    Known names, skewed users, free numbers, and a text of random words that fills the rest.
    """
    return [_event(rng, number, size_bytes) for number in range(count)]


PAYLOADS = {"random": random_values, "json": json_values}
_WORDS = [
    "".join(random.Random(n).choices("etaoinshrdlucmfwypvbgkjqxz", k=3 + n % 7))
    for n in range(5000)
]


def _event(rng: random.Random, number: int, size_bytes: int) -> bytes:
    event = {
        "id": f"{rng.getrandbits(128):032x}",
        "sequence": number,
        "user": int(rng.paretovariate(1.2) * 100) % 1_000_000,
        "type": rng.choice(("view", "click", "cart", "purchase", "search")),
        "price": round(rng.lognormvariate(3, 1), 2),
        "position": [round(rng.uniform(-90, 90), 6), round(rng.uniform(-180, 180), 6)],
        "agent": rng.choice(("ios", "android", "firefox", "chrome")) + f"/{rng.randint(80, 140)}",
        "text": "",
    }
    room = size_bytes - len(json.dumps(event).encode())
    text = " ".join(rng.choices(_WORDS, k=max(room // 4, 0)))[: max(room, 0)]
    return json.dumps(event | {"text": text}).encode().ljust(size_bytes)[:size_bytes]


def _assemble(records: bytes, count: int, codec: Codec, timestamp_ms: int) -> bytearray:
    header = _HEADER.pack(
        0,
        HEADER_BYTES - 12 + len(records),
        -1,
        2,
        0,
        codec,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        count,
    )
    data = bytearray(header + records)
    _set_crc(data)
    return data


def _set_crc(data: bytearray) -> None:
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[_CRC_FROM:]))


def _compress(records: bytes, codec: Codec) -> bytes:
    match codec:
        case Codec.NONE:
            return records
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(records))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(records))
        case Codec.LZ4:
            return bytes(cramjam.lz4.compress(records))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3).compress(records)


def _varint(value: int) -> bytes:
    """Zigzag, then seven bits a byte, low ones first."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(delta: int, key: bytes | None, value: bytes) -> bytes:
    """``length attributes timestamp-delta offset-delta key-length key value-length value 0``."""
    sized_key = _varint(-1) if key is None else _varint(len(key)) + key
    body = b"\0\0" + _varint(delta) + sized_key + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body
