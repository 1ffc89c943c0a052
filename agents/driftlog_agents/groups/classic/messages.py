"""What a classic group is asked and what it answers, without the versions of the wire.

    JoinRequest       become a member, or one of the next generation    → JoinResponse
    SyncRequest       the leader's assignment, or one's share of it     → SyncResponse
    HeartbeatRequest  "I live"                                          → HeartbeatResponse
    LeaveRequest      members that go                                   → LeaveResponse

Names are those of `driftlog_agents.protocol.messages`, shortened.  An error is always the group's
`error`; which fields Kafka fills in beside it differs from error to error, and so it does here.

What needs no group is decided here: `refuse_…` before a group is looked for, `unknown_group` when
there is none.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService, KafkaApis of Apache Kafka 4.3.
Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.protocol.errors import ErrorCode

NO_GENERATION: Final = -1
UNKNOWN_MEMBER_ID: Final = ""
"""What a member says that has no id yet."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One assignor, or whatever a protocol type calls so, and what the member says to it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    version: int
    client_id: str
    client_host: str
    """As Kafka writes it: ``/127.0.0.1``."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """-1, in version 0: the session timeout."""
    member_id: str
    instance_id: str | None = None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the order of preference."""
    reason: str | None = None

    @property
    def said_bytes(self) -> int:
        """What a group keeps of it."""
        names = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        said = sum(len(p.name) + len(p.metadata) for p in self.protocols)
        return said + sum(map(len, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    """None goes out as an empty string below version 7."""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = UNKNOWN_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    """Of the whole group, for the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    version: int
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """Of each member, from the leader; empty from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """By its id, or by its instance id and an empty id (an administrator does that)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """Versions 0 to 2: of one member."""

    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    member_id: str
    instance_id: str | None = None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """Versions 0 to 2 have one error: *error*, or else that of the one member."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


Request = JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
Response = JoinResponse | SyncResponse | HeartbeatResponse | LeaveResponse


# ── Before a group is looked for ──


def refuse_join(group_id: str, request: JoinRequest, settings: ClassicSettings) -> ErrorCode:
    """NONE, or what the answer says beside the member id that the request has."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    shortest, longest = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def refuse_sync(group_id: str, request: SyncRequest) -> ErrorCode:
    """NONE, or what the answer says."""
    if request.version >= 5 and (request.protocol_type is None or request.protocol is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return refuse_group_id(group_id)


def refuse_group_id(group_id: str) -> ErrorCode:
    """NONE, or what the answer to Heartbeat or LeaveGroup says."""
    return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID


# ── When there is no such group ──


def creates_group(request: Request) -> bool:
    """Whether a group that is not there comes to be: a member without an id joins it."""
    return isinstance(request, JoinRequest) and request.member_id == UNKNOWN_MEMBER_ID


def unknown_group(request: Request) -> Response:
    """The answer for a group that is not there, and that *request* does not create."""
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    match request:
        case JoinRequest():
            return JoinResponse(error=unknown, member_id=request.member_id)
        case SyncRequest():
            return SyncResponse(error=unknown)
        case HeartbeatRequest():
            return HeartbeatResponse(error=unknown)
        case LeaveRequest():
            return LeaveResponse(
                members=tuple(
                    LeftMember(
                        member_id=member.member_id, instance_id=member.instance_id, error=unknown
                    )
                    for member in request.members
                )
            )
