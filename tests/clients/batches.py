"""Record batches with something wrong in them, and their parts.

Pure.
"""

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from benchmarks.batches import HEADER_BYTES, Codec, encode_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record

_CRC_AT: Final = 17
_CRC_FROM: Final = 21
ATTRIBUTES: Final = (21, ">h")
LAST_OFFSET_DELTA: Final = (23, ">i")
BASE_TIMESTAMP: Final = (27, ">q")
MAX_TIMESTAMP: Final = (35, ">q")
PRODUCER_ID: Final = (43, ">q")
PRODUCER_EPOCH: Final = (51, ">h")
BASE_SEQUENCE: Final = (53, ">i")
COUNT: Final = (57, ">i")
BASE_OFFSET: Final = (0, ">q")
LENGTH: Final = (8, ">i")
MAGIC: Final = (16, ">b")

Field = tuple[int, str]


def good(*values: bytes, codec: Codec = Codec.NONE, timestamp_ms: int = 1) -> bytearray:
    """A batch that must be taken."""
    return encode_batch(values or (b"good",), codec=codec, timestamp_ms=timestamp_ms).data


def with_field(data: bytearray, field: Field, value: int, *, crc: bool = True) -> bytearray:
    """A copy with that header field; *crc*: made valid again."""
    at, form = field
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    if crc:
        set_crc(changed)
    return changed


def with_records(data: bytearray, change: Callable[[bytes], bytes]) -> bytearray:
    """A copy with other bytes behind the header, and a length and CRC that fit them."""
    changed = data[:HEADER_BYTES] + change(bytes(data[HEADER_BYTES:]))
    struct.pack_into(">i", changed, LENGTH[0], len(changed) - 12)
    set_crc(changed)
    return changed


def with_strange_header(value: bytes) -> bytearray:
    """A batch of one record, one of whose headers has a key that is not UTF-8."""
    headers = (("before", b"1"), ("name", b"2"), ("after", b"3"))
    record = encode_record(Record(0, 0, b"k", value, headers)).replace(b"name", b"\xffame")
    return with_records(good(), lambda _: record)


def set_crc(data: bytearray) -> None:
    """Make the CRC fit."""
    struct.pack_into(">I", data, _CRC_AT, crc32c(bytes(data[_CRC_FROM:])))


def at_offset(data: bytearray, offset: int, leader_epoch: int) -> bytes:
    """The batch as a consumer gets it: base offset and leader epoch are the broker's."""
    return struct.pack(">q", offset) + data[8:12] + struct.pack(">i", leader_epoch) + data[16:]


def leader_epoch(data: bytes) -> int:
    """Of the first batch in *data*."""
    epoch: int = struct.unpack_from(">i", data, 12)[0]
    return epoch
