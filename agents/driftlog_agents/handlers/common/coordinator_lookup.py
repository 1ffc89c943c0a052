"""What the handlers of groups share: the coordinator, and how Kafka writes a client's address.

Shell.
"""

from typing import Final

from driftlog_agents.configs.limits import MAX_REBALANCE_TIMEOUT
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

GROUP_OPERATIONS = sum(1 << op for op in (3, 6, 8, 10, 11))
"""Bits of AclOperation#code.  Without an authorizer everything is allowed (AuthHelper)."""

DESCRIBED_AT_ONCE: Final = 32
"""Groups of one request that are looked up at once."""


def coordinating(broker: Broker) -> GroupCoordinator:
    """The group coordinator of the present session.

    Raises:
        RefusedError: COORDINATOR_NOT_AVAILABLE: between two sessions.
    """
    if broker.groups is None:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return broker.groups


_MESSAGE_CHARACTERS = 8_000
"""Characters of an error message, at most: four bytes each fit a string of the protocol."""


def as_message(text: str | None) -> str | None:
    """An error message, cut to what can be sent: it may quote 32 KB of the request."""
    return None if text is None else text[:_MESSAGE_CHARACTERS]


def rebalance_timeout_ms(broker: Broker, asked_ms: int) -> int:
    """A member's rebalance timeout, cut to the limit.  It is not refused: clients send their
    ``max.poll.interval.ms`` here, which may be 2^31 - 1."""
    longest_ms = broker.settings.limits.driftlog_max_rebalance_timeout_ms
    if asked_ms > longest_ms:
        broker.refusals.count(MAX_REBALANCE_TIMEOUT)
    return min(asked_ms, longest_ms)


def client_host(context: RequestContext) -> str:
    """The client's address as Kafka writes it (InetAddress#toString): ``/127.0.0.1``."""
    return "/" + context.client_host.rpartition(":")[0]
