"""What the handlers of groups share: the coordinator, topics with partitions that the view has not
seen yet, and how Kafka writes a client's address.

Shell.
"""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from driftlog_agents.configs.limits import MAX_REBALANCE_TIMEOUT
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.bucket_files import topic_of
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Topic

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


async def newest_topic(
    broker: Broker, topic: Topic, partitions: Iterable[int], newest: dict[UUID, Topic]
) -> Topic:
    """The topic, read from the metadata store if the view has not all of *partitions*.

    Another agent may have told the client of more, and this one has not seen them.

    Args:
        newest: topics that were read for the same request.
    """
    if max(partitions, default=0) < topic.partitions:
        return topic
    if topic.topic_id not in newest:
        kv = await broker.led().session.read(topic_key(topic.name))
        stored = None if kv is None else topic_of(kv)
        same = stored is not None and stored.topic_id == topic.topic_id
        newest[topic.topic_id] = stored if stored is not None and same else topic
    return newest[topic.topic_id]


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
    return "/" + context.client_host.rpartition(":")[0].strip("[]")
