"""The types of message definitions, and the few functions that a compiled codec calls.

A message is a slotted dataclass.  Its annotations say all that the codec needs:

    @dataclass(slots=True)
    class PartitionProduceResponse:
        index: Int32 = 0                                            all versions
        log_append_time_ms: Annotated[Int64, V("2+")] = -1          from version 2
        error_message: Annotated[String | None, V("8+")] = None     ... and may be null
        current_leader: Annotated[LeaderIdAndEpoch, V("10+", tag=0)] = LeaderIdAndEpoch()

| alias | Python | wire, all big-endian |
|---|---|---|
| Bool, Int8 … Int64, Uint16, Float64 | bool, int, float | fixed |
| Uuid | uuid.UUID, zero = no id | 16 bytes |
| String | str | int16 length + UTF-8; compact: unsigned varint of length + 1 |
| Bytes | bytes | int32 length + bytes; compact as above |
| RecordsView, RecordParts | memoryview; any buffers | as Bytes, never copied |
| list[X] | list | int32 count + elements; compact as above |
| a dataclass | that | its fields; then, in flexible versions, tagged fields |

Null is length -1, compact 0; a nullable struct is led by an int8 (-1 null, 1 present).
Source: org.apache.kafka.common.protocol.types.Type, KIP-482, clients' message/README.md.
Pure.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from driftlog_agents.protocol.errors import TAGGED_FIELDS, CorruptFrameError, OverLimitError
from driftlog_tiering.foundation.types import Buffer

NULL_UUID: Final = UUID(int=0)
"""Kafka's "no id": topics of requests that name them, brokers without directory ids."""

MAX_STRING_BYTES: Final = 0x7FFF
"""Longest string, compact ones included: Kafka's generated readers refuse more."""

LONG_STRING_BYTES: Final = MAX_STRING_BYTES // 3
"""A shorter string fits an answer whatever its bytes: each replaced byte becomes three."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of one size: its `struct` format character and its bytes."""

    name: str
    format: str
    size: int


MAX_TOPIC_BYTES: Final = 249
"""Longest name that a topic can have."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A type with a length in front; *prefix* is the format of a length that is not compact.  A
    string of more than *most_bytes* is refused."""

    name: str
    prefix: str
    most_bytes: int = MAX_STRING_BYTES


Bool = Annotated[bool, Fixed("bool", "?", 1)]
Int8 = Annotated[int, Fixed("int8", "b", 1)]
Int16 = Annotated[int, Fixed("int16", "h", 2)]
Int32 = Annotated[int, Fixed("int32", "i", 4)]
Int64 = Annotated[int, Fixed("int64", "q", 8)]
Uint16 = Annotated[int, Fixed("uint16", "H", 2)]
Uint32 = Annotated[int, Fixed("uint32", "I", 4)]
Float64 = Annotated[float, Fixed("float64", "d", 8)]
Uuid = Annotated[UUID, Fixed("uuid", "16s", 16)]
String = Annotated[str, Blob("string", "h")]
TopicName = Annotated[str, Blob("string", "h", MAX_TOPIC_BYTES)]
"""For requests that are refused whole if one name is longer than a topic's can be."""
Bytes = Annotated[bytes, Blob("bytes", "i")]
RecordsView = Annotated[memoryview, Blob("records", "i")]
RecordParts = Annotated[Buffer | Sequence[Buffer], Blob("records", "i")]
"""Records to send: one buffer, or several that follow each other on the wire."""

_ALWAYS: Final = (0, 0x7FFF)
_NEVER: Final = (1, 0)


@dataclass(frozen=True, slots=True, init=False)
class V:
    """The versions in which a field exists and may be null, and the tag of a tagged field.

    Ranges are Kafka's and inclusive: ``"3+"``, ``"0-12"``, ``"6"``.  A field whose type is
    ``X | None`` may be null in all its versions unless *nullable* names some.
    A field with a *tag* is tagged in all its versions.
    """

    versions: tuple[int, int]
    nullable: tuple[int, int] | None
    tag: int | None

    def __init__(
        self, versions: str = "0+", *, nullable: str | None = None, tag: int | None = None
    ) -> None:
        object.__setattr__(self, "versions", parse_versions(versions))
        object.__setattr__(self, "nullable", None if nullable is None else parse_versions(nullable))
        object.__setattr__(self, "tag", tag)


def parse_versions(text: str) -> tuple[int, int]:
    """First and last version of Kafka's notation: ``"3+"``, ``"0-12"``, ``"6"``, ``"none"``.

    Raises:
        ValueError: *text* is not a range of versions.
    """
    if text == "none":
        return _NEVER
    match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    if match is None:
        raise ValueError(f"not a range of versions: {text!r}")
    first = int(match[1])
    if match[2]:
        return first, _ALWAYS[1]
    return first, int(match[3] or first)


# ── What compiled codecs call ──


def varint_tail(buffer: memoryview, at: int, first: int) -> tuple[int, int]:
    """Rest of an unsigned varint whose *first* byte, already read, has its high bit set.

    Returns the value and where it ends.

    Raises:
        CorruptFrameError: longer than the five bytes of 32 bits (ByteUtils#readUnsignedVarint).
        IndexError: *buffer* ends before it does.
    """
    byte = buffer[at]
    if byte < 0x80:  # Nearly all: lengths up to 16 KiB.
        return first & 0x7F | byte << 7, at + 1
    value = first & 0x7F | (byte & 0x7F) << 7
    for shift in (14, 21, 28):
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise CorruptFrameError("a varint longer than 5 bytes")


def encode_varint(value: int) -> bytes:
    """*value* as an unsigned varint: 7 bits a byte, the low ones first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


VARINTS: Final = tuple(encode_varint(value) for value in range(0x80))
"""The one-byte varints, which nearly all varints are."""


def long_string(data: memoryview) -> str:
    """Decode a string of more than `LONG_STRING_BYTES`.

    Raises:
        CorruptFrameError: it is not UTF-8, and too long for an answer with its bytes replaced.
    """
    text = str(data, "utf-8", "replace")
    if len(text.encode()) > MAX_STRING_BYTES:
        raise CorruptFrameError("a string that is not UTF-8, and too long to be said again")
    return text


def skip_tagged_fields(
    buffer: memoryview, at: int, end: int, count: int, allowed: int
) -> tuple[int, int]:
    """Skip tagged fields; *count* is the first byte of their number.

    Returns their end, and how many are still *allowed*.

    Raises:
        CorruptFrameError: a field ends after *end*.
        OverLimitError: there are more than *allowed*.
        IndexError: *buffer* ends before they do.
    """
    if count > 0x7F:
        count, at = varint_tail(buffer, at, count)
    if count > allowed:
        raise OverLimitError(TAGGED_FIELDS, f"{count} tagged fields, where {allowed} are allowed")
    for _ in range(count):
        tag = buffer[at]
        at += 1
        if tag > 0x7F:
            tag, at = varint_tail(buffer, at, tag)
        size = buffer[at]
        at += 1
        if size > 0x7F:
            size, at = varint_tail(buffer, at, size)
        at += size
        if at > end:
            raise CorruptFrameError(f"tagged field {tag} ends behind its frame")
    return at, allowed - count


@functools.lru_cache(maxsize=4096)
def uuid_of(value: bytes) -> UUID:
    """The UUID of 16 bytes, cached: a hit costs a tenth of a construction."""
    return UUID(bytes=value)


def records_size(records: Buffer | Sequence[Buffer]) -> int:
    """Bytes of records that are to be sent."""
    if isinstance(records, bytes | bytearray):
        return len(records)
    if isinstance(records, memoryview):
        return records.nbytes
    return sum(memoryview(part).nbytes for part in records)
