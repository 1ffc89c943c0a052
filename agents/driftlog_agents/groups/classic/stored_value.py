"""Stored format of a classic group: one JSON object in UTF-8, inside `storage_format`.

    {"v":1, "generation":n, "reserved":n, "protocol_type":s or null, "protocol":s or null,
     "leader":s or null, "state_since_ms":unix time, "members":[{
        "member_id":s, "instance_id":s or null, "client_id":s, "client_host":s,
        "rebalance_timeout_ms":n, "session_timeout_ms":n,
        "subscription":base64, "assignment":base64}, …]}

The value describes the last generation that had an assignment, or was empty: a group is restored
as Stable, or as Empty without members.  Of a member's protocols, it has only the chosen one.

Members get the number of a generation before its assignment is stored.  If the coordinator dies in
between, its successor must not reuse that number for other members with another leader.  So a
coordinator that claims the group stores the last generation that it may use (*reserved*), and
starts after the one that its predecessor reserved.  Generations may skip numbers; clients accept
that.  (Apache Kafka reuses such a generation.)  After `LAST_GENERATION`, generations restart at 1
(Apache Kafka's become negative, which clients read as no generation).

A value format is a stored format: add a version, never edit one in place.

Source of its content: GroupMetadataValue.json, GroupMetadataManager#replay.
Pure.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import Final

from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import Protocol
from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

UNTOLD: Final = 1_000
"""Generations that a coordinator may use without storing one: as many rebalances in a row can fail
to reach an assignment."""

_VERSION: Final = 1

LAST_GENERATION: Final = INT32_MAX - UNTOLD
"""The generations that are reserved after it fit an int32, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicValue:
    """The stored fields of a group; `decode_value` refuses values that violate the assertions."""

    generation: int = 0
    reserved: int = UNTOLD
    """Last generation that members may have seen."""
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int
    members: tuple[ClassicGroupMember, ...] = ()

    def __post_init__(self) -> None:
        assert 0 <= self.generation <= self.reserved <= INT32_MAX
        assert not self.members or self.protocol_type
        assert not self.members or self.protocol is not None
        assert not self.members or any(m.member_id == self.leader for m in self.members)


def encode_value(value: ClassicValue) -> bytes:
    """Encode *value*; every member supports its protocol."""
    protocol = value.protocol or ""
    fields = {
        "v": _VERSION,
        "generation": value.generation,
        "reserved": value.reserved,
        "protocol_type": value.protocol_type,
        "protocol": value.protocol,
        "leader": value.leader,
        "state_since_ms": value.state_since_ms,
        "members": [_member_fields(member, protocol) for member in value.members],
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _member_fields(member: ClassicGroupMember, protocol: str) -> dict[str, object]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "session_timeout_ms": member.session_timeout_ms,
        "subscription": b64encode(member.metadata(protocol)).decode(),
        "assignment": b64encode(member.assignment).decode(),
    }


def decode_value(data: bytes) -> ClassicValue:
    """Invert :func:`encode_value`.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a classic group.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _corrupt(data, str(error)) from error
    match fields:
        case {"v": int(version)} if version > _VERSION:
            raise UnsupportedFormatError(
                f"this classic group has format version {version}, and this driftlog reads up to "
                f"{_VERSION}: upgrade it: {data[:200]!r}"
            )
        case {
            "v": 1,
            "generation": int(generation),
            "reserved": int(reserved),
            "protocol_type": str() | None as protocol_type,
            "protocol": str() | None as protocol,
            "leader": str() | None as leader,
            "state_since_ms": int(state_since_ms),
            "members": list(items),
        } if 0 <= generation <= reserved <= INT32_MAX:
            members = tuple(_member(item, protocol, data) for item in items)
        case _:
            raise _corrupt(data, "fields are missing or of another type")
    _check_members(members, protocol_type, leader, data)
    return ClassicValue(
        generation=generation,
        reserved=reserved,
        protocol_type=protocol_type,
        protocol=protocol,
        leader=leader,
        state_since_ms=state_since_ms,
        members=members,
    )


def claimed_value(data: bytes) -> bytes:
    """The value that a claim stores, with newly reserved generations; `restore` reads it.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a classic group.
    """
    value = decode_value(data)
    return encode_value(replace(value, reserved=min(value.reserved + UNTOLD, INT32_MAX)))


def _member(item: object, protocol: str | None, data: bytes) -> ClassicGroupMember:
    match item:
        case {
            "member_id": str(member_id),
            "instance_id": str() | None as instance_id,
            "client_id": str(client_id),
            "client_host": str(client_host),
            "rebalance_timeout_ms": int(rebalance_timeout_ms),
            "session_timeout_ms": int(session_timeout_ms),
            "subscription": str(subscription),
            "assignment": str(assignment),
        } if protocol is not None:
            return ClassicGroupMember(
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host=client_host,
                rebalance_timeout_ms=rebalance_timeout_ms,
                session_timeout_ms=session_timeout_ms,
                protocols=(Protocol(protocol, _bytes(subscription, data)),),
                assignment=_bytes(assignment, data),
            )
        case _:
            raise _corrupt(data, f"no member: {item!r:.200}")


def _bytes(text: str, data: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise _corrupt(data, f"no base64: {text:.200}") from error


def _check_members(
    members: tuple[ClassicGroupMember, ...],
    protocol_type: str | None,
    leader: str | None,
    data: bytes,
) -> None:
    ids = {member.member_id for member in members}
    instances = [member.instance_id for member in members if member.instance_id is not None]
    if len(ids) < len(members) or len(set(instances)) < len(instances):
        raise _corrupt(data, "a member is there twice")
    if members and (leader not in ids or not protocol_type):
        raise _corrupt(data, "members without a leader or a protocol type")


def _corrupt(data: bytes, why: str) -> CorruptError:
    return CorruptError(f"not a classic group ({why}): {data[:200]!r}")
