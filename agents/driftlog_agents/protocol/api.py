"""One Kafka API: its versions, its two messages, and bytes to and from them.

A frame is ``int32 size, header, body``; decoders take what follows the size, encoders give
all of it.

    request header v1: int16 key, int16 version, int32 correlation id, nullable string client id
    request header v2: v1, then tagged fields          from the first flexible version on
    response header v0: int32 correlation id
    response header v1: v0, then tagged fields         from the first flexible version on

The response header of ApiVersions is always v0, so that a client that does not know the agent's
versions yet can read it (ApiMessageType#responseHeaderVersion, KIP-511).  A client id is never
compact (RequestHeader.json).
Pure.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from driftlog_agents.protocol.compiler import Cuts, Decode, Encode, compile_decoder, compile_encoder
from driftlog_agents.protocol.errors import (
    CorruptFrameError,
    OverLimitError,
    answer_too_large,
)
from driftlog_agents.protocol.types import parse_versions, skip_tagged_fields
from driftlog_tiering.foundation.types import Buffer

Q = TypeVar("Q")
R = TypeVar("R")
F = TypeVar("F", Decode, Encode)


MAX_REQUEST_ELEMENTS: Final = 1 << 17
"""Elements of all arrays of a request together, at most, unless a limit is lower.  The largest
request of an honest client names 100,000 partitions of some topics, or 65,000 topics with one each;
100 MB of two-byte elements would be gigabytes of objects.  Python frees so many in one step, at 200
ns each."""

NO_LIMIT: Final = 1 << 62
"""Bytes of a message that may be as large as it is."""

MAX_TAGGED_FIELDS: Final = 10_000
"""Unknown tagged fields of a message, at most, unless a limit is lower."""

MAX_RESPONSE_ELEMENTS: Final = 1 << 24
"""The same for a response, which comes from an agent, and has the replicas of each partition."""


class ApiKey(IntEnum):
    """The API of a request, int16.  Source: org.apache.kafka.common.protocol.ApiKeys 4.3.1."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def kafka_name(self) -> str:
        """The name in Kafka's documentation and metrics: ``DescribeTopicPartitions``."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(slots=True)
class RequestHeader:
    """A request's header.  *body_offset*: where its body starts in the frame, in bytes."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


class Api(Generic[Q, R]):
    """One API: request *Q*, response *R*.

    Args:
        versions: those that Kafka 4.3 defines and this codec reads and writes, as ``"3-13"``.
        served: those that an agent answers, as ``"3-11"``; *versions* unless given, ``"none"`` if
            there is no handler.
        advertised: those that ApiVersions publishes; *served* unless given.
        flexible: the first flexible version (KIP-482), as ``"9+"``, or ``"none"``.
    """

    def __init__(
        self,
        key: ApiKey,
        request: type[Q],
        response: type[R],
        *,
        versions: str,
        flexible: str,
        served: str | None = None,
        advertised: str | None = None,
    ) -> None:
        self.key: Final = key
        self.name: Final = key.kafka_name
        self.request: Final = request
        self.response: Final = response
        self.versions: Final = _half_open(versions)
        """Versions that can be encoded and decoded, half-open."""
        self.served: Final = _half_open(served or versions)
        """Versions that an agent answers, half-open; all of them are in `versions`."""
        self.advertised: Final = _half_open(advertised or served or versions)
        """Versions that ApiVersions publishes, half-open."""
        self._flexible = parse_versions(flexible)
        self._request_decoders: Final[dict[int, Decode]] = {}
        self._request_encoders: Final[dict[int, Encode]] = {}
        self._response_decoders: Final[dict[int, Decode]] = {}
        self._response_encoders: Final[dict[int, Encode]] = {}
        assert set(self.served) <= set(self.versions), f"{self.name} serves what it cannot read"

    def is_flexible(self, version: int) -> bool:
        """Whether *version* has compact lengths and tagged fields."""
        return self._flexible[0] <= version <= self._flexible[1]

    # ── What an agent does ──

    def decode_request(
        self,
        version: int,
        frame: Buffer,
        body_offset: int = 0,
        max_elements: int = MAX_REQUEST_ELEMENTS,
        max_tagged_fields: int = MAX_TAGGED_FIELDS,
    ) -> Q:
        """Read a request's body, which starts at *body_offset* and ends with *frame*.

        Records are views of *frame*; all else is copied.  Bytes after the body are ignored, and
        bytes of strings that are not UTF-8 are replaced, both as in Kafka.

        Raises:
            CorruptFrameError: the bytes are not such a request, or *version* is unknown.
            OverLimitError: it has more than *max_elements*, or *max_tagged_fields* of a message.
        """
        decode = self._request_decoders.get(version) or self._compiled(
            self._request_decoders, compile_decoder, self.request, version
        )
        view = frame if type(frame) is memoryview else memoryview(frame)
        try:
            return decode(  # type: ignore[no-any-return]
                view, body_offset, len(view), max_elements, max_tagged_fields
            )
        except OverLimitError:
            raise
        except _UNREADABLE as error:
            raise _corrupt(self.request, version, error) from error

    def encode_response(
        self, version: int, correlation_id: int, response: R, most_bytes: int = NO_LIMIT
    ) -> bytes:
        """The whole frame.  Fields that *version* does not have are left out.

        Raises:
            OverLimitError: it has more than *most_bytes*; not much more of it is made.
            AssertionError: *response* cannot be encoded in *version* (a null that is not allowed, a
                number out of range): a bug of the agent.
        """
        out = bytearray(self._response_header(version, correlation_id))
        cuts = self._encode_response(version, response, out, most_bytes)
        if len(out) > most_bytes:
            raise answer_too_large(most_bytes)
        return _joined(out, cuts)

    def encode_response_parts(self, version: int, correlation_id: int, response: R) -> list[Buffer]:
        """As `encode_response`, in buffers to be written one after the other.

        Records are not copied: their buffers are in the list as they were given.
        """
        out = bytearray(self._response_header(version, correlation_id))
        return _parts(out, self._encode_response(version, response, out, NO_LIMIT))

    # ── What a client does ──

    def encode_request(
        self, version: int, correlation_id: int, client_id: str | None, request: Q
    ) -> bytes:
        """The whole frame.  Raises as `encode_response`."""
        out = bytearray(_REQUEST_HEADER.pack(0, self.key, version, correlation_id))
        text = b"" if client_id is None else client_id.encode()
        out += struct.pack(">h", -1 if client_id is None else len(text)) + text
        if self.is_flexible(version):
            out += b"\0"
        encode = self._request_encoders.get(version) or self._compiled(
            self._request_encoders, compile_encoder, self.request, version
        )
        return _joined(out, _encoded(encode, self.request, version, request, out, NO_LIMIT))

    def decode_response(self, version: int, frame: Buffer) -> tuple[int, R]:
        """Read the bytes after the size: the correlation id, and the response.

        Raises:
            CorruptFrameError: the bytes are not such a response.
        """
        view = memoryview(frame)
        if len(view) < 4:
            raise CorruptFrameError("a response without a correlation id")
        (correlation_id,) = _INT32.unpack_from(view)
        offset = 4
        if self.has_response_tags(version):
            offset = _after_tags(view, offset)
        decode = self._response_decoders.get(version) or self._compiled(
            self._response_decoders, compile_decoder, self.response, version
        )
        try:
            return correlation_id, decode(
                view, offset, len(view), MAX_RESPONSE_ELEMENTS, MAX_TAGGED_FIELDS
            )
        except _UNREADABLE as error:
            raise _corrupt(self.response, version, error) from error

    def has_response_tags(self, version: int) -> bool:
        """Whether the response header is v1."""
        return self.is_flexible(version) and self.key is not ApiKey.API_VERSIONS

    # ── Both ──

    def _response_header(self, version: int, correlation_id: int) -> bytes:
        if self.has_response_tags(version):
            return _RESPONSE_HEADER_V1.pack(0, correlation_id)
        return _RESPONSE_HEADER_V0.pack(0, correlation_id)

    def _encode_response(self, version: int, response: R, out: bytearray, most_bytes: int) -> Cuts:
        encode = self._response_encoders.get(version) or self._compiled(
            self._response_encoders, compile_encoder, self.response, version
        )
        return _encoded(encode, self.response, version, response, out, most_bytes)

    def _compiled(
        self,
        known: dict[int, F],
        compiler: Callable[[type[Any], int, bool], F],
        cls: type[Any],
        version: int,
    ) -> F:
        """Compile at first use: it takes a few milliseconds, and most versions are never used."""
        if version not in self.versions:
            raise CorruptFrameError(f"{self.name} has no version {version}")
        return known.setdefault(version, compiler(cls, version, self.is_flexible(version)))


_UNREADABLE: Final = (IndexError, struct.error, CorruptFrameError)
_INT32: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">ihhi")
_RESPONSE_HEADER_V0: Final = struct.Struct(">ii")
_RESPONSE_HEADER_V1: Final = struct.Struct(">iix")


def has_more_elements(message: Any, most: int) -> bool:
    """Whether the arrays of *message* have more than *most* elements together."""
    return _elements(message, most) > most


def _elements(message: Any, most: int) -> int:
    count = 0
    for name in message.__slots__:
        value = getattr(message, name)
        if type(value) is list:
            count += len(value)
            if value and hasattr(value[0], "__slots__"):
                for item in value:
                    if count > most:
                        return count
                    count += _elements(item, most - count)
    return count


_FREED_AT_ONCE: Final = 1_000
_FEW: Final = 10


def take_apart(messages: list[Any]) -> None:
    """Empty *messages*, which nobody needs any more, and their arrays, some elements at a time.

    A thread does it for large ones.  Python frees a message whole in one step, for which all
    threads wait: 200 ns an element.
    """
    first = messages[0] if messages else None
    for name in getattr(first, "__slots__", ()):
        if type(getattr(first, name)) is list:
            for message in messages:
                array = getattr(message, name)
                if array and len(array) > _FEW:
                    take_apart(array)
    while messages:
        del messages[-_FREED_AT_ONCE:]


def message_bytes(message: Any) -> int:
    """About as many bytes as *message* has when it is encoded, without encoding it."""
    return sum(_value_bytes(getattr(message, name)) for name in message.__slots__)


def _value_bytes(value: Any) -> int:
    if isinstance(value, str):
        return 4 + (len(value) if value.isascii() else len(value.encode()))
    if isinstance(value, Buffer):
        return 4 + len(value)
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return 4 + 4 * len(value)
        return 4 + sum(map(_value_bytes, value))
    return message_bytes(value) if hasattr(value, "__slots__") else 4


def _half_open(versions: str) -> range:
    first, last = parse_versions(versions)
    return range(first, last + 1)


def _corrupt(cls: type[Any], version: int, error: Exception) -> CorruptFrameError:
    what = str(error) if isinstance(error, CorruptFrameError) else "is cut off"
    return CorruptFrameError(f"{cls.__name__} v{version}: {what}")


def _encoded(
    encode: Encode, cls: type[Any], version: int, message: Any, out: bytearray, most_bytes: int
) -> Cuts:
    cuts: Cuts = []
    try:
        encode(message, out, cuts, most_bytes)
    except (struct.error, TypeError, ValueError, AttributeError) as error:
        raise AssertionError(f"{cls.__name__} v{version} cannot be encoded") from error
    return cuts


def _after_tags(view: memoryview, offset: int) -> int:
    try:
        return skip_tagged_fields(view, offset + 1, len(view), view[offset], MAX_TAGGED_FIELDS)[0]
    except IndexError as error:
        raise CorruptFrameError("a header that is cut off") from error


def _joined(out: bytearray, cuts: Cuts) -> bytes:
    if cuts:
        return b"".join(_parts(out, cuts))
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _parts(out: bytearray, cuts: Cuts) -> list[Buffer]:
    """*out* with records at their cuts, and the size of all parts in front."""
    view = memoryview(out)
    parts: list[Buffer] = []
    done = 0
    for cut, records in cuts:
        if done < cut:
            parts.append(view[done:cut])
        done = cut
        if isinstance(records, Sequence) and not isinstance(records, Buffer):
            parts.extend(records)
        else:
            parts.append(records)
    if done < len(view):
        parts.append(view[done:])
    _INT32.pack_into(out, 0, sum(memoryview(part).nbytes for part in parts) - 4)
    return parts
