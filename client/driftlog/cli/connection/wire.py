"""A few requests that confluent-kafka has no call for, sent directly, over plaintext.

    request   size int32 | api key int16 | version int16 | correlation id int32 | client id | body
    response  size int32 | correlation id int32 | body

All but UpdateFeatures are in versions without tagged fields.  Source: kafka.apache.org/protocol.
Shell.
"""

import argparse
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from confluent_kafka import KafkaError

from driftlog.cli.common.errors import CommandError
from driftlog.cli.connection.connection import join_address, properties
from driftlog.common.bootstrap_probe import split_address

TOPIC_CONFIGS: Final = 2
BROKER_CONFIGS: Final = 4
GROUP_CONFIGS: Final = 32
"""The value in ``ConfigResource.Type``."""

_FIND_COORDINATOR: Final = 10
_API_VERSIONS: Final = 18
_DESCRIBE_CONFIGS: Final = 32
_INCREMENTAL_ALTER_CONFIGS: Final = 44
_OFFSET_DELETE: Final = 47
_UPDATE_FEATURES: Final = 57
_UPGRADE: Final = 1
_NO_TAGS: Final = b"\0"
_MAX_RESPONSE_BYTES: Final = 64 << 20

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config in a DescribeConfigs response."""

    name: str
    value: str | None
    is_read_only: bool
    source: int
    is_sensitive: bool
    documentation: str | None


class Wire:
    """A connection to one broker.

    Raises:
        CommandError: there is no connection, or it is not plaintext.
    """

    def __init__(self, options: argparse.Namespace, address: str) -> None:
        protocol = str(properties(options).get("security.protocol", "plaintext"))
        if protocol.lower() != "plaintext":
            raise CommandError(
                "this command supports plaintext only, and security.protocol is "
                f"{protocol}: use Kafka's own tool"
            )
        self._address = address
        try:
            self._socket = socket.create_connection(split_address(address), options.timeout.left())
        except (OSError, ValueError) as error:
            raise CommandError(f"nothing listens at {address}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._socket.close()

    def _call(self, api_key: int, version: int, body: bytes) -> "_Reader":
        head = struct.pack(">hhi", api_key, version, 1) + _string("driftlog")
        try:
            self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            size = struct.unpack(">i", self._read(4))[0]
            if not 4 <= size <= _MAX_RESPONSE_BYTES:
                raise OSError(f"an answer of {size} bytes")
            answer = self._read(size)
        except OSError as error:
            raise CommandError(
                f"{self._address} does not answer as a Kafka broker does: {error}"
            ) from error
        return _Reader(answer[4:])

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            chunk = self._socket.recv(size - len(found))
            if not chunk:
                raise OSError("it hung up")
            found += chunk
        return bytes(found)

    # ── Requests ──

    def api_versions(self) -> list[tuple[int, int, int]]:
        """ApiVersions: key, least and largest version of each."""
        reader = self._call(_API_VERSIONS, 0, b"")
        _raise_if(reader.int16())
        return reader.array(lambda: (reader.int16(), reader.int16(), reader.int16()))

    def raise_feature(self, name: str, level: int, timeout_ms: int) -> None:
        """UpdateFeatures: raise the level of one feature.

        Raises:
            CommandError: refused; the broker's reason.
        """
        update = _compact(name) + struct.pack(">hb", level, _UPGRADE) + _NO_TAGS
        body = struct.pack(">ib", timeout_ms, 2) + update + b"\0" + _NO_TAGS
        reader = self._call(_UPDATE_FEATURES, 2, _NO_TAGS + body)  # the first are the header's
        reader.int8(), reader.int32()
        code = reader.int16()
        _raise_if(code, reader.compact())

    def find_coordinator(self, group: str) -> str:
        """FindCoordinator: the address of the group's coordinator."""
        reader = self._call(_FIND_COORDINATOR, 1, _string(group) + b"\0")
        reader.int32()
        code, message = reader.int16(), reader.string()
        _raise_if(code, message)
        reader.int32()
        host, port = reader.string() or "", reader.int32()
        return join_address(host, port)

    def delete_offsets(
        self, group: str, partitions: dict[str, list[int]]
    ) -> dict[tuple[str, int], str | None]:
        """OffsetDelete, at the coordinator; each partition's error message, None: done."""
        body = _string(group) + _array(
            [
                _string(topic) + _array([struct.pack(">i", partition) for partition in found])
                for topic, found in partitions.items()
            ]
        )
        reader = self._call(_OFFSET_DELETE, 0, body)
        _raise_if(reader.int16())
        reader.int32()
        answers = reader.array(
            lambda: (reader.string() or "", reader.array(lambda: (reader.int32(), reader.int16())))
        )
        return {
            (topic, partition): _error(code)
            for topic, found in answers
            for partition, code in found
        }

    def describe_configs(self, kind: int, name: str) -> list[ConfigEntry]:
        """DescribeConfigs of one resource, with the documentation of each config."""
        body = _array([struct.pack(">b", kind) + _string(name) + struct.pack(">i", -1)])
        reader = self._call(_DESCRIBE_CONFIGS, 3, body + b"\0\1")
        reader.int32()

        def config() -> ConfigEntry:
            name, value = reader.string() or "", reader.string()
            is_read_only, source = bool(reader.int8()), reader.int8()
            is_sensitive = bool(reader.int8())
            reader.array(lambda: (reader.string(), reader.string(), reader.int8()))
            reader.int8()
            return ConfigEntry(name, value, is_read_only, source, is_sensitive, reader.string())

        def result() -> list[ConfigEntry]:
            code, message = reader.int16(), reader.string()
            reader.int8(), reader.string()
            configs = reader.array(config)
            _raise_if(code, message)
            return configs

        return [found for configs in reader.array(result) for found in configs]

    def alter_configs(
        self,
        kind: int,
        name: str,
        changes: Sequence[tuple[str, int, str | None]],
        *,
        validate_only: bool,
    ) -> None:
        """IncrementalAlterConfigs of one resource: name, operation and value of each change."""
        configs = _array(
            [_string(n) + struct.pack(">b", operation) + _string(v) for n, operation, v in changes]
        )
        body = _array([struct.pack(">b", kind) + _string(name) + configs])
        reader = self._call(
            _INCREMENTAL_ALTER_CONFIGS, 0, body + struct.pack(">b", int(validate_only))
        )
        reader.int32()

        def result() -> tuple[int, str | None]:
            answer = (reader.int16(), reader.string())
            reader.int8(), reader.string()
            return answer

        for code, message in reader.array(result):
            _raise_if(code, message)


def _error(code: int, message: str | None = None) -> str | None:
    if code == 0:
        return None
    error = KafkaError(code)
    return f"{message or error.str()} ({error.name()})"


def _raise_if(code: int, message: str | None = None) -> None:
    text = _error(code, message)
    if text is not None:
        raise CommandError(text)


# ── Types ──


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    if len(data) > 32_767:
        raise CommandError("a string is longer than the Kafka protocol allows")
    return struct.pack(">h", len(data)) + data


def _compact(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127, "a length of one byte"
    return bytes([len(data) + 1]) + data


def _array(items: list[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


class _Reader:
    """The body of an answer, from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise CommandError("the answer is cut off: this may be no Kafka broker")
        self._at += size
        return found

    def int8(self) -> int:
        return self._take(1)[0]

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode(errors="replace")

    def compact(self) -> str | None:
        """A compact string: its length + 1 is an unsigned varint; 0: null."""
        size = shift = 0
        while True:
            byte = self.int8()
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        return None if not size else self._take(size - 1).decode(errors="replace")

    def array(self, item: Callable[[], _T]) -> list[_T]:
        return [item() for _ in range(max(0, self.int32()))]
