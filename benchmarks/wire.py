"""The few Kafka messages that the benchmark client and sink speak, written from the protocol guide.

Deliberately not the agent's codec: two implementations that agree confirm each other.  All
versions below are non-flexible except Produce 9, so that an answer's length is known before
it comes and a buffer of answers can be checked by strided slices, not one by one.

    Produce 7, 9   Fetch 11   ListOffsets 2   Metadata 4   CreateTopics 4   DeleteTopics 1
    ApiVersions 0  InitProducerId 1

Source: Apache Kafka's `clients/src/main/resources/common/message/*.json`, by reading.
Pure.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
INIT_PRODUCER_ID: Final = 22

CLIENT_ID: Final = b"driftlog-bench"
FRAME_SIZE: Final = struct.Struct(">i")
CORRELATION_AT: Final = 8
"""Position of the correlation id in a framed request; in a framed answer it is 4."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class KafkaError(Exception):
    """An answer carries an error code."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: error code {code}")
        self.code = code


class CorruptAnswerError(Exception):
    """An answer that does not follow the protocol."""


# ── Primitives ──


def string(text: bytes | None) -> bytes:
    return _I16.pack(-1) if text is None else _I16.pack(len(text)) + text


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: bytes | None) -> bytes:
    return b"\0" if text is None else uvarint(len(text) + 1) + text


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A framed request with the non-flexible header (v1)."""
    head = struct.pack(">hhi", api_key, version, correlation_id) + string(CLIENT_ID)
    return FRAME_SIZE.pack(len(head) + len(body)) + head + body


class Reader:
    """A cursor over an answer's body."""

    def __init__(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        self._data, self.at = data, at

    def skip(self, size: int) -> None:
        self.at += size

    def i8(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def i16(self) -> int:
        self.at += 2
        return int(_I16.unpack_from(self._data, self.at - 2)[0])

    def i32(self) -> int:
        self.at += 4
        return int(_I32.unpack_from(self._data, self.at - 4)[0])

    def i64(self) -> int:
        self.at += 8
        return int(_I64.unpack_from(self._data, self.at - 8)[0])

    def string(self) -> bytes | None:
        size = self.i16()
        if size < 0:
            return None
        self.at += size
        return bytes(self._data[self.at - size : self.at])


# ── Produce ──


@dataclass(frozen=True, slots=True)
class ProduceEnvelope:
    """The bytes around the records of one partition: ``head + records + tail`` is the frame."""

    head: bytearray
    tail: bytes
    answer_bytes: int
    """The length of a framed answer without an error message."""
    error_at: int
    """Position of the error code in a framed answer; the base offset is 2 bytes after it."""


def produce_envelope(
    version: int, topic: bytes, partition: int, acks: int, records_bytes: int
) -> ProduceEnvelope:
    """A Produce request for one partition, without its records.

    7: ``transactional_id acks timeout [topic [partition records]]``
    9: the same, compact and tagged; KIP-482.
    """
    fixed = struct.pack(">hi", acks, 30_000)
    if version == 7:
        head = string(None) + fixed + _I32.pack(1) + string(topic) + _I32.pack(1)
        head += _I32.pack(partition) + _I32.pack(records_bytes)
        tags, tail = b"", b""
        error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        answer_bytes = error_at + 2 + 8 + 8 + 8 + 4
    elif version == 9:
        head = compact_string(None) + fixed + b"\x02" + compact_string(topic) + b"\x02"
        head += _I32.pack(partition) + uvarint(records_bytes + 1)
        tags, tail = b"\0", b"\0\0\0"
        error_at = 4 + 4 + 1 + 1 + len(compact_string(topic)) + 1 + 4
        answer_bytes = error_at + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1
    else:
        raise ValueError(f"Produce {version} is not spoken here")
    header = struct.pack(">hhi", PRODUCE, version, 0) + string(CLIENT_ID) + tags
    size = len(header) + len(head) + records_bytes + len(tail)
    return ProduceEnvelope(
        bytearray(FRAME_SIZE.pack(size) + header + head), tail, answer_bytes, error_at
    )


# ── Fetch ──


def fetch_request(
    topic: bytes,
    offsets: Mapping[int, int],
    correlation_id: int,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """Fetch 11: the *offsets* of each partition of one topic, and the id and epoch of the
    *session*, by itself none."""
    body = struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, isolation_level)
    body += struct.pack(">ii", *session)
    body += _I32.pack(1) + string(topic) + _I32.pack(len(offsets)) if offsets else _I32.pack(0)
    for partition, offset in offsets.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, partition_max_bytes)
    return request(FETCH, 11, correlation_id, body + _I32.pack(0) + string(b""))


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch answer; its records are ``data[start:end]``."""

    partition: int
    error_code: int
    high_watermark: int
    start: int
    end: int


def fetch_session(data: memoryview) -> int:
    """The session id of a framed Fetch 11 answer."""
    reader = Reader(data, 4 + 4 + 4)
    if code := reader.i16():
        raise KafkaError("Fetch", code)
    return reader.i32()


def fetch_answer(data: memoryview) -> list[FetchedPartition]:
    """The partitions of a framed Fetch 11 answer of one topic, in its order."""
    reader = Reader(data, 4 + 4 + 4)
    if code := reader.i16():
        raise KafkaError("Fetch", code)
    reader.i32()
    found = []
    for _ in range(reader.i32()):
        reader.string()
        for _ in range(reader.i32()):
            partition, code, high_watermark = reader.i32(), reader.i16(), reader.i64()
            reader.skip(16)
            reader.skip(16 * max(reader.i32(), 0))
            reader.i32()
            size = max(reader.i32(), 0)
            found.append(
                FetchedPartition(partition, code, high_watermark, reader.at, reader.at + size)
            )
            reader.skip(size)
    if reader.at != len(data):
        raise CorruptAnswerError(f"Fetch answer of {len(data)} bytes ends at {reader.at}")
    return found


# ── Topics and offsets ──


def create_topic_request(
    topic: bytes, partitions: int, configs: Mapping[str, str], correlation_id: int
) -> bytes:
    """CreateTopics 4 of one topic with one replica."""
    body = _I32.pack(1) + string(topic) + struct.pack(">ihii", partitions, 1, 0, len(configs))
    for name, value in configs.items():
        body += string(name.encode()) + string(value.encode())
    return request(CREATE_TOPICS, 4, correlation_id, body + struct.pack(">i?", 30_000, False))


def delete_topic_request(topic: bytes, correlation_id: int) -> bytes:
    """DeleteTopics 1 of one topic."""
    body = _I32.pack(1) + string(topic) + _I32.pack(30_000)
    return request(DELETE_TOPICS, 1, correlation_id, body)


def create_topic_error(data: bytes) -> int:
    """The error code in a framed CreateTopics 4 answer of one topic."""
    reader = Reader(data, 8 + 4 + 4)
    reader.string()
    return reader.i16()


def metadata_request(topics: Sequence[bytes] | None, correlation_id: int) -> bytes:
    """Metadata 4 of *topics* (None: all), which creates none of them."""
    body = _I32.pack(-1) if topics is None else _I32.pack(len(topics))
    body += b"".join(map(string, topics or ()))
    return request(METADATA, 4, correlation_id, body + b"\0")


def led_partitions(data: bytes) -> dict[bytes, list[int]]:
    """The partitions that have a leader, by topic, in a framed Metadata 4 answer."""
    reader = Reader(data, 8 + 4)
    for _ in range(reader.i32()):
        reader.i32(), reader.string(), reader.i32(), reader.string()
    reader.string()
    reader.i32()
    led: dict[bytes, list[int]] = {}
    for _ in range(reader.i32()):
        reader.i16()
        name = reader.string() or b""
        reader.i8()
        led[name] = []
        for _ in range(reader.i32()):
            code, partition, leader = reader.i16(), reader.i32(), reader.i32()
            reader.skip(4 * reader.i32())
            reader.skip(4 * reader.i32())
            if code == 0 and leader >= 0:
                led[name].append(partition)
    return led


def leaders(data: bytes) -> dict[bytes, dict[int, tuple[str, int]]]:
    """Host and port of each partition's leader, by topic, in a Metadata 4 answer."""
    reader = Reader(data, 8 + 4)
    agents: dict[int, tuple[str, int]] = {}
    for _ in range(reader.i32()):
        node, host, port = reader.i32(), reader.string() or b"", reader.i32()
        reader.string()
        agents[node] = host.decode(), port
    reader.string()
    reader.i32()
    led: dict[bytes, dict[int, tuple[str, int]]] = {}
    for _ in range(reader.i32()):
        reader.i16()
        mine = led.setdefault(reader.string() or b"", {})
        reader.i8()
        for _ in range(reader.i32()):
            code, partition, leader = reader.i16(), reader.i32(), reader.i32()
            reader.skip(4 * reader.i32())
            reader.skip(4 * reader.i32())
            if code == 0 and leader in agents:
                mine[partition] = agents[leader]
    return led


def list_offsets_request(
    topic: bytes, partitions: Sequence[int], timestamp: int, correlation_id: int
) -> bytes:
    """ListOffsets 2: -1 asks for the high watermark, -2 for the log start."""
    body = struct.pack(">ibi", -1, 0, 1) + string(topic) + _I32.pack(len(partitions))
    body += b"".join(struct.pack(">iq", partition, timestamp) for partition in partitions)
    return request(LIST_OFFSETS, 2, correlation_id, body)


def list_offsets_answer(data: bytes) -> dict[int, int]:
    """The offset of each partition in a framed ListOffsets 2 answer of one topic."""
    reader = Reader(data, 8 + 4 + 4)
    reader.string()
    offsets = {}
    for _ in range(reader.i32()):
        partition, code = reader.i32(), reader.i16()
        if code:
            raise KafkaError("ListOffsets", code)
        reader.i64()
        offsets[partition] = reader.i64()
    return offsets


def init_producer_id_request(correlation_id: int) -> bytes:
    """InitProducerId 1 of an idempotent producer."""
    return request(INIT_PRODUCER_ID, 1, correlation_id, string(None) + _I32.pack(60_000))


def init_producer_id_answer(data: bytes) -> tuple[int, int]:
    """Producer id and epoch in a framed InitProducerId 1 answer."""
    reader = Reader(data, 8 + 4)
    if code := reader.i16():
        raise KafkaError("InitProducerId", code)
    return reader.i64(), reader.i16()
