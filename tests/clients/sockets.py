"""A socket that says what no client would, and reads what comes back.

Messages come from the benchmark's own codec, not the agent's: what the two agree on has been
understood twice.
Shell.
"""

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from benchmarks import wire

TIMEOUT_S: Final = 20.0

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
INVALID_REQUIRED_ACKS: Final = 21
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_VERSION: Final = 35
INVALID_TXN_STATE: Final = 48
KAFKA_STORAGE_ERROR: Final = 56
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
INVALID_RECORD: Final = 87


@dataclass(frozen=True, slots=True)
class Produced:
    """One partition of a Produce answer."""

    error_code: int
    base_offset: int
    log_append_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition of a Fetch answer."""

    error_code: int
    high_watermark: int
    records: bytes


class Raw:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def next_id(self) -> int:
        return next(self._ids)

    def receive(self) -> bytes:
        """The next frame with its size.

        Raises:
            ConnectionError: it is closed instead.
        """
        size = self._exactly(4)
        return size + self._exactly(struct.unpack(">i", size)[0])

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed by the agent")
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait for the end of the stream; False: something was said before it.

        Raises:
            TimeoutError: it is neither closed nor answered.
        """
        with contextlib.suppress(ConnectionError):
            return self.socket.recv(1) == b""
        return True

    # ── Requests ──

    def produce(
        self,
        topic: str,
        batches: Mapping[int, bytes | bytearray | None],
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 7,
    ) -> dict[int, Produced]:
        """Produce with one run of bytes for each partition."""
        self.send_produce(topic, batches, acks=acks, timeout_ms=timeout_ms, version=version)
        return produce_answer(self.receive())

    def send_produce(
        self,
        topic: str,
        batches: Mapping[int, bytes | bytearray | None],
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 7,
    ) -> None:
        body = wire.string(None) + struct.pack(">hii", acks, timeout_ms, 1)
        body += wire.string(topic.encode()) + struct.pack(">i", len(batches))
        for partition, records in batches.items():
            size = -1 if records is None else len(records)
            body += struct.pack(">ii", partition, size) + bytes(records or b"")
        self.send(wire.request(wire.PRODUCE, version, self.next_id(), body))

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 10 << 20,
        isolation_level: int = 0,
    ) -> dict[int, Fetched]:
        """Fetch 11."""
        self.send(
            wire.fetch_request(
                topic.encode(),
                offsets,
                self.next_id(),
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                partition_max_bytes=partition_max_bytes,
                isolation_level=isolation_level,
            )
        )
        data = self.receive()
        return {
            p.partition: Fetched(p.error_code, p.high_watermark, data[p.start : p.end])
            for p in wire.fetch_answer(memoryview(data))
        }

    def offsets(self, topic: str, partitions: Sequence[int], timestamp: int) -> dict[int, int]:
        """ListOffsets 2."""
        asked = wire.list_offsets_request(topic.encode(), partitions, timestamp, self.next_id())
        self.send(asked)
        return wire.list_offsets_answer(self.receive())

    def api_keys(self) -> dict[int, tuple[int, int]]:
        """ApiVersions 0: the connection works."""
        self.send(wire.request(wire.API_VERSIONS, 0, self.next_id(), b""))
        error_code, keys = api_versions_answer(self.receive())
        assert error_code == NONE
        return keys


@contextlib.contextmanager
def connected(port: int) -> Iterator[Raw]:
    """A connection for a block."""
    with Raw(port) as raw:
        yield raw


def produce_answer(data: bytes) -> dict[int, Produced]:
    """Produce 5 to 7 of one topic."""
    reader = wire.Reader(data, 8 + 4)
    reader.string()
    found: dict[int, Produced] = {}
    for _ in range(reader.i32()):
        partition, code, base, time_ms = reader.i32(), reader.i16(), reader.i64(), reader.i64()
        reader.i64()
        found[partition] = Produced(code, base, time_ms)
    return found


def api_versions_answer(data: bytes) -> tuple[int, dict[int, tuple[int, int]]]:
    """Error code and ranges in a framed ApiVersions 0 answer."""
    reader = wire.Reader(data, 8)
    code = reader.i16()
    keys = {}
    for _ in range(reader.i32()):
        key, low, high = reader.i16(), reader.i16(), reader.i16()
        keys[key] = (low, high)
    assert reader.at == len(data)
    return code, keys
