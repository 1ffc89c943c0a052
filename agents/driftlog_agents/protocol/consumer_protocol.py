"""What members of classic consumer groups send each other, inside JoinGroup and SyncGroup.

    int16 version, body                 never flexible: no compact lengths, no tagged fields

| version | change of a subscription |
|---|---|
| 1 | owned partitions: cooperative rebalancing (KIP-429) |
| 2 | the generation of the owned partitions (KIP-792) |
| 3 | rack (KIP-881) |

Assignments are the same in all versions.  A version above 3 is read as 3: newer fields follow the
known ones.  Only groups of protocol type ``consumer`` have these bytes.  A broker reads them only
where it needs the subscriptions (OffsetDelete, KIP-848's change of protocols, lag).
Source: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json,
org.apache.kafka.clients.consumer.internals.ConsumerProtocol.
Pure.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from driftlog_agents.protocol.api import NO_LIMIT
from driftlog_agents.protocol.compiler import Decode, Encode, compile_decoder, compile_encoder
from driftlog_agents.protocol.errors import CorruptFrameError, OverLimitError
from driftlog_agents.protocol.types import Bytes, Int32, String, V
from driftlog_tiering.foundation.types import Buffer

PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose metadata and assignments have this format."""

LATEST_VERSION: Final = 3

MAX_ELEMENTS: Final = 110_000
"""Topics and partitions of a member, at most: all that a cluster may have are twice 50,000."""


@dataclass(slots=True, kw_only=True)
class TopicPartition:
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    topics: list[String] = field(default_factory=list)
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], V("1+")] = field(default_factory=list)
    generation_id: Annotated[Int32, V("2+")] = -1
    rack_id: Annotated[String | None, V("3+")] = None


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition] = field(default_factory=list)
    user_data: Bytes | None = None


def decode_version(data: Buffer) -> int:
    """The version in *data*; it may be above `LATEST_VERSION`.

    Raises:
        CorruptFrameError: *data* is too short, or its version is negative.
    """
    try:
        (version,) = _VERSION.unpack_from(data)
    except struct.error as error:
        raise CorruptFrameError("consumer protocol: no version") from error
    if version < 0:
        raise CorruptFrameError(f"consumer protocol: version {version}")
    return int(version)


def decode_subscription(
    data: Buffer, max_elements: int = MAX_ELEMENTS
) -> ConsumerProtocolSubscription:
    """Read a member's metadata.  Bytes after it are ignored.

    Raises:
        CorruptFrameError: *data* is not a subscription.
        OverLimitError: it has more than *max_elements* topics and partitions.
    """
    subscription: ConsumerProtocolSubscription = _decode(
        ConsumerProtocolSubscription, data, max_elements
    )
    return subscription


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Read a member's assignment.  Bytes after it are ignored.

    Raises:
        CorruptFrameError: *data* is not an assignment.
    """
    assignment: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data, MAX_ELEMENTS)
    return assignment


def encode_subscription(version: int, subscription: ConsumerProtocolSubscription) -> bytes:
    """Write metadata; fields that *version* does not have are left out."""
    return _encode(subscription, version)


def encode_assignment(version: int, assignment: ConsumerProtocolAssignment) -> bytes:
    """Write an assignment."""
    return _encode(assignment, version)


_VERSION: Final = struct.Struct(">h")
_DECODERS: Final[Mapping[type[Any], Sequence[Decode]]] = {
    cls: [compile_decoder(cls, version, False) for version in range(LATEST_VERSION + 1)]
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment)
}
_ENCODERS: Final[Mapping[type[Any], Sequence[Encode]]] = {
    cls: [compile_encoder(cls, version, False) for version in range(LATEST_VERSION + 1)]
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment)
}


def _decode(cls: type[Any], data: Buffer, max_elements: int) -> Any:
    version = min(decode_version(data), LATEST_VERSION)
    view = data if type(data) is memoryview else memoryview(data)
    try:
        return _DECODERS[cls][version](view, _VERSION.size, len(view), max_elements, 0)
    except OverLimitError:
        raise
    except (IndexError, struct.error, CorruptFrameError) as error:
        what = str(error) if isinstance(error, CorruptFrameError) else "is cut off"
        raise CorruptFrameError(f"{cls.__name__} v{version}: {what}") from error


def _encode(message: Any, version: int) -> bytes:
    assert 0 <= version <= LATEST_VERSION
    out = bytearray(_VERSION.pack(version))
    _ENCODERS[type(message)][version](message, out, [], NO_LIMIT)
    return bytes(out)
