"""Events that a group of KIP-848 has taken, and the answer to each that it refuses.

A request is an event with an answer in either case; a timer's or a topic's event has none.

Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DecideLong,
    DescribedConsumerGroup,
    Downgrade,
    ResolveRegexes,
)
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.protocol.errors import ErrorCode

ConsumerEffect = Answer | Persist | Downgrade | DecideLong | ResolveRegexes
_Request = ConsumerHeartbeat | JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
_Q = TypeVar("_Q", bound=_Request)


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """An event to decide: *event* maps the time in ms to its effects."""

    event: Callable[[int], list[ConsumerEffect]]
    request_id: int | None = None
    refusal: Callable[[ErrorCode, str | None], object] = lambda _error, _message: None
    request: object = None
    describes: bool = False
    """The event describes every member of the group."""

    @classmethod
    def of(
        cls,
        request_id: int,
        decide: Callable[[_Q, int], tuple[object, ResolveRegexes | None]],
        request: _Q,
    ) -> Self:
        """A member's request."""

        def event(now_ms: int) -> list[ConsumerEffect]:
            response, resolve = decide(request, now_ms)
            answer = Answer(request_id, response)
            return [answer] if resolve is None else [answer, resolve]

        return cls(event, request_id, partial(_refused, request), request)

    @classmethod
    def describe(cls, request_id: int, describe: Callable[[], DescribedConsumerGroup]) -> Self:
        """An administrator's ConsumerGroupDescribe."""

        def event(_: int) -> list[ConsumerEffect]:
            return [Answer(request_id, describe())]

        return cls(event, request_id, _refused_description, describes=True)

    def refused(self, error: ErrorCode, message: str | None = None) -> Iterable[Answer]:
        """The error answer, if the event is a request."""
        if self.request_id is not None:
            yield Answer(self.request_id, self.refusal(error, message))


def _refused(request: _Request, error: ErrorCode, message: str | None) -> object:
    match request:
        case ConsumerHeartbeat():
            return ConsumerHeartbeatResponse(error=error, message=message)
        case JoinRequest(member_id=member_id):
            return JoinResponse(error=error, member_id=member_id)
        case SyncRequest():
            return SyncResponse(error=error)
        case HeartbeatRequest():
            return HeartbeatResponse(error=error)
        case LeaveRequest():
            return LeaveResponse(error=error)


def _refused_description(error: ErrorCode, message: str | None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error=error, message=message)
