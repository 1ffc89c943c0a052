"""Checks of names and partition counts of new topics, as in Kafka.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.formats import layout

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Kafka's limit for one request (ReplicationControlManager: records of one operation)."""


INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Topic#INTERNAL_TOPICS.  None of them exists in driftlog: groups are in the metadata store."""

METADATA_TOPIC: Final = "__cluster_metadata"
"""Topic#CLUSTER_METADATA_TOPIC_NAME: the quorum's log, which is no topic in Kafka either."""

RESERVED_TOPICS: Final = INTERNAL_TOPICS | {METADATA_TOPIC}
"""Names that no topic may have."""

CHANGED_AT_ONCE: Final = 1_000
"""Topics of one request that are changed, and wait for other agents, at the same time."""

MAX_TOPICS: Final = "driftlog.max.topics.per.request"
MAX_PARTITIONS: Final = "driftlog.max.partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A requested topic; −1: the agent's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


def check_topic_name(name: str) -> None:
    """Check a topic's name as Kafka does (Topic#validate), with its messages.

    Raises:
        RefusedError: INVALID_TOPIC_EXCEPTION.
    """
    if layout.is_topic_name(name):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > layout.MAX_TOPIC_CHARS:
        why = f"the length of '{name}' is longer than the max allowed length 249"
    else:
        why = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            f"'.', '_' and '-'"
        )
    raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def over_topics_limit(most: int, changed: int) -> RefusedError:
    """The error of a topic that a request would change beyond *most* of *changed*."""
    return RefusedError(
        ErrorCode.POLICY_VIOLATION,
        f"One request may change {most} topics at most ({MAX_TOPICS}), and this one would change "
        f"{changed}: send the request again for the others.",
    )


def check_partitions(count: int) -> None:
    """Check the number of partitions of one request.

    Raises:
        RefusedError: POLICY_VIOLATION, with Kafka's message.
    """
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )


def check_total(there: int, added: int, agents: int, most: int) -> None:
    """Check that a cluster of *agents* live agents may have *added* more partitions.

    Args:
        most: partitions per agent.

    Raises:
        RefusedError: POLICY_VIOLATION.
    """
    if there + added > most * max(agents, 1):
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"Partitions of the cluster: {there}; {added} more are over {MAX_PARTITIONS} ({most} "
            f"for each agent; live agents: {agents}): delete topics, or start more agents.",
        )
