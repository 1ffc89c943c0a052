"""Requests and responses of a classic group, independent of the protocol versions.

    JoinRequest       join the group, or its next generation           → JoinResponse
    SyncRequest       send the leader's assignment, get one's share    → SyncResponse
    HeartbeatRequest  keep the session                                 → HeartbeatResponse
    LeaveRequest      remove members                                   → LeaveResponse

Names are those of `driftlog_agents.protocol.messages`, shortened.  `error` is the error of the
request; the other fields beside it differ from error to error, as in Kafka.

Two kinds of checks need no group: `refuse_…` before the lookup of a group, and `unknown_group`
after a lookup without a result.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService, KafkaApis of Apache Kafka 4.3.
Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.sizes import ELEMENT_BYTES, text_bytes, texts_bytes
from driftlog_agents.protocol.errors import ErrorCode

NO_GENERATION: Final = -1
ID_REQUIRED_VERSION: Final = 4
"""From this version of JoinGroup, a new dynamic member joins twice, the second time with an id."""

MAX_PROTOCOLS: Final = 100
"""Most protocols of a member.  Clients have one for each of their assignors: one to four."""

UNKNOWN_MEMBER_ID: Final = ""
"""The member id in the request of a member that has none yet."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol of a member (for consumers: an assignor) and the member's metadata for it."""

    name: str
    metadata: bytes

    @property
    def size_bytes(self) -> int:
        """Its memory."""
        return 2 * ELEMENT_BYTES + text_bytes(self.name) + len(self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    version: int
    client_id: str
    client_host: str
    """As Kafka writes it: ``/127.0.0.1``."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """-1 in version 0: the session timeout counts."""
    member_id: str
    instance_id: str | None = None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In order of preference."""
    reason: str | None = None

    @property
    def said_bytes(self) -> int:
        """Memory that a group keeps of the request."""
        names = (self.member_id, self.instance_id, self.client_id, self.client_host)
        return texts_bytes(names) + sum(protocol.size_bytes for protocol in self.protocols)


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
    """None: versions below 7 send an empty string."""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = UNKNOWN_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    """All members of the group in the leader's response, else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    version: int
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """(member id, assignment) of each member from the leader; empty from others."""


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
    """A member id, or an instance id with an empty member id (from admin tools)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """Versions 0 to 2 have exactly one member."""

    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    member_id: str
    instance_id: str | None = None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """Versions 0 to 2 send one error: *error*, or else the error of the only member."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


Request = JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
Response = JoinResponse | SyncResponse | HeartbeatResponse | LeaveResponse


# ── Before the lookup of a group ──


def refuse_join(group_id: str, request: JoinRequest, settings: ClassicSettings) -> ErrorCode:
    """NONE, or the error of the answer, which has the request's member id."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    shortest, longest = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.protocols) > MAX_PROTOCOLS:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def refuse_sync(group_id: str, request: SyncRequest) -> ErrorCode:
    """NONE, or the error of the answer."""
    if request.version >= 5 and (request.protocol_type is None or request.protocol is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return refuse_group_id(group_id)


def refuse_group_id(group_id: str) -> ErrorCode:
    """NONE, or the error of the answer to Heartbeat or LeaveGroup."""
    return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID


# ── No such group ──


def creates_group(request: Request) -> bool:
    """Whether *request* creates a missing group: a join without a member id does."""
    return isinstance(request, JoinRequest) and request.member_id == UNKNOWN_MEMBER_ID


def unknown_group(request: Request) -> Response:
    """The answer for a missing group that *request* does not create."""
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
