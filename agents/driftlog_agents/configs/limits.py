"""Limits of the memory and work that one client, or all clients together, can cause on an agent.

    limits.py ──▶ --config (start_configs), DescribeConfigs (configs/broker), docs/limits.md
        │
        └──▶ an enforcer reads its field, and counts refusals in `Refusals`

A field's config has the field's name with dots for underscores: Kafka's config if there is one,
else one that begins with ``driftlog.``.  `ELSEWHERE` names limits among other settings, such as the
times and sizes of groups in `group_settings`.

Pure.
"""

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigType,
    at_least,
    between,
    definitions_of,
    setting,
)
from driftlog_agents.log.segments.write_turns import AT_ONCE
from driftlog_agents.protocol.errors import SOCKET_REQUEST_BYTES
from driftlog_tiering.batches.batch import MAX_RECORDS
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.foundation.types import KiB, MiB

INT, LONG, STRING = ConfigType.INT, ConfigType.LONG, ConfigType.STRING


def connections_by_address(text: str) -> dict[str, int]:
    """Parse ``ADDRESS:CONNECTIONS,...``, Kafka's ``max.connections.per.ip.overrides``, into
    connections by compressed address.

    Raises:
        ValueError: *text* is invalid; the message says what to do.
    """
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        address, _, connections = entry.rpartition(":")
        try:
            key = ipaddress.ip_address(address.strip("[]")).compressed
        except ValueError as error:
            raise ValueError(
                f"{entry!r} is not ADDRESS:CONNECTIONS, for example 10.0.0.7:5000; names are not "
                f"looked up"
            ) from error
        if not connections.isdecimal():
            raise ValueError(f"{entry!r} is not ADDRESS:CONNECTIONS: {connections!r} is no number")
        found[key] = int(connections)
    return found


def overrides_fault(value: object) -> str | None:
    """The error in a text for `connections_by_address`; None: valid."""
    try:
        connections_by_address(str(value))
    except ValueError as error:
        return f"Invalid value for configuration {{name}}: {error}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """See the module; DescribeConfigs returns each field's documentation."""

    # ── Connections ──

    max_connections_per_ip: int = setting(
        1_000, "Most connections from one address; the agent closes more."
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        "ADDRESS:CONNECTIONS,... in place of max.connections.per.ip.",
        STRING,
        overrides_fault,
    )
    max_connection_creation_rate: int = setting(
        200, "Most connections that the agent accepts a second; more wait."
    )
    driftlog_http_max_connections: int = setting(64, "Most connections to the HTTP port.")
    driftlog_http_max_connection_creation_rate: int = setting(
        100, "Most connections that the HTTP port accepts a second; more wait."
    )

    # ── Requests and answers ──

    queued_max_requests: int = setting(
        500, "Most requests other than Produce that wait for their turn on their connections."
    )
    queued_max_request_bytes: int = setting(
        256 * MiB, "Most bytes of requests other than Produce, from the frame to the answer.", LONG
    )
    driftlog_connection_max_queued_requests: int = setting(
        8,
        "Most requests of one connection, other than Produce, that wait for their "
        "answer; the agent stops reading a connection that has more.",
    )
    driftlog_max_unanswered_requests: int = setting(
        20_000, "Most unanswered requests of all connections, Produce included."
    )
    driftlog_max_response_queue_bytes: int = setting(
        256 * MiB,
        "Most bytes of answers that clients have not read; Fetch and large Produce "
        "requests wait for room, and the agent closes the connection that holds most.",
        LONG,
    )
    driftlog_max_network_bytes: int = setting(
        384 * MiB,
        "Most bytes of requests, of Produce frames that are not admitted yet, and of answers "
        "together.",
        LONG,
    )
    driftlog_max_response_bytes: int = setting(
        64 * MiB,
        "Most bytes of an answer to a request other than Fetch; the agent refuses a larger one.",
    )
    driftlog_max_request_elements: int = setting(
        20_000,
        "Most elements of a request that creates or changes something or asks for groups "
        "or configs; a request that names existing topics and partitions may have 131072.",
    )
    driftlog_max_tagged_fields: int = setting(10_000, "Most tagged fields of a request.")
    driftlog_max_request_bytes: int = setting(
        16 * MiB,
        "Most bytes of a request other than Produce, if socket.request.max.bytes is larger.",
    )

    max_incremental_fetch_session_cache_slots: int = setting(
        1_000, "Most fetch sessions; beyond it clients send full fetches.", check=at_least(0)
    )
    driftlog_max_fetch_session_bytes: int = setting(
        64 * MiB,
        "Most bytes of all fetch sessions, 768 for each of their partitions.",
        LONG,
        at_least(0),
    )

    # ── Topics ──

    driftlog_max_topics_per_request: int = setting(
        1_000, "Most topics that one request may create or extend."
    )
    driftlog_max_partitions: int = setting(
        50_000,
        "Most partitions of a cluster, for each of its agents; the agents create no "
        "topic beyond it.",
    )
    driftlog_max_configs_bytes: int = setting(
        64 * MiB,
        "Most bytes of the cluster's topics, of the configs of topics, brokers and groups, and of "
        "deleted topics whose objects are not deleted yet: their keys and values in the metadata "
        "store. Every agent holds them.",
        LONG,
    )
    driftlog_max_topic_seals_per_minute: int = setting(
        20, "Most seals of one topic a minute that one agent accepts over HTTP."
    )
    driftlog_max_segment_writes: int = setting(
        AT_ONCE,
        "Most segments that the agent writes at a time for other agents, which send it batches "
        "over HTTP.",
    )

    # ── Batches ──

    driftlog_max_batch_records: int = setting(
        MAX_RECORDS, "Most records of a batch, as its header says.", INT, between(1, MAX_RECORDS)
    )
    driftlog_max_batch_headers: int = setting(
        1_000_000, "Most headers of a batch's records.", INT, between(1, 1_000_000)
    )
    driftlog_max_batch_decompressed_bytes: int = setting(
        48 * MiB,
        "Most bytes of a batch's records after decompression. The agent decodes batches "
        "of more than 8 MiB one after the other; each takes up to four times this.",
        INT,
        between(KiB, 256 * MiB),
    )
    driftlog_max_waiting_batch_bytes: int = setting(
        96 * MiB,
        "Most bytes of batches that wait for conversion or for their partition, and 1 "
        "KiB for each; the agent stops reading connections that bring more, until there "
        "is room.",
        LONG,
    )
    driftlog_max_message_bytes: int = setting(
        16 * MiB, "Largest message.max.bytes, and max.message.bytes of a topic."
    )

    # ── Groups ──

    driftlog_max_groups: int = setting(100_000, "Most groups that one agent coordinates.")
    driftlog_max_groups_bytes: int = setting(
        512 * MiB,
        "Most bytes that all groups of one agent hold: members, offsets, and the groups "
        "themselves.",
        LONG,
    )
    driftlog_max_group_bytes: int = setting(
        8 * MiB, "Most bytes that members of one group have sent: metadata and assignments."
    )
    driftlog_max_group_member_bytes: int = setting(
        MiB, "Most bytes of one member of a group: metadata, names of topics, and assignment."
    )
    driftlog_max_rebalance_timeout_ms: int = setting(
        1_800_000, "Longest rebalance timeout of a member of a group."
    )

    # ── The agent's own log ──

    driftlog_log_lines_per_second: int = setting(
        10,
        "Most log lines of one event and client address a second; the agent counts those left out.",
    )

    @property
    def connections_by_address(self) -> dict[str, int]:
        """Limits by address that replace `max_connections_per_ip`."""
        return connections_by_address(self.max_connections_per_ip_overrides)

    @property
    def batches(self) -> BatchLimits:
        """Limits of one batch."""
        return BatchLimits(
            records=self.driftlog_max_batch_records,
            headers=self.driftlog_max_batch_headers,
            decompressed_bytes=self.driftlog_max_batch_decompressed_bytes,
        )


DEFINITIONS: Final[Mapping[str, ConfigDef]] = MappingProxyType(definitions_of(Limits))
"""Configs of `Limits`, by name."""


CONNECTIONS_MAX_IDLE: Final = "connections.max.idle.ms"
FETCH_MAX_BYTES: Final = "fetch.max.bytes"
FETCH_SESSIONS: Final = "driftlog.max.fetch.session.bytes"
FETCH_SLOTS: Final = "max.incremental.fetch.session.cache.slots"
LOG_LINES: Final = "driftlog.log.lines.per.second"
MAX_MESSAGE_BYTES: Final = "message.max.bytes"
MAX_REBALANCE_TIMEOUT: Final = "driftlog.max.rebalance.timeout.ms"
MAX_SESSION_TIMEOUT: Final = "group.max.session.timeout.ms"
MIN_SESSION_TIMEOUT: Final = "group.min.session.timeout.ms"
OFFSET_METADATA: Final = "offset.metadata.max.bytes"
PRODUCER_STATE: Final = "driftlog.producer.state.max.bytes"
SEGMENT_WRITES: Final = "driftlog.max.segment.writes"

ELSEWHERE: Final = (
    CONNECTIONS_MAX_IDLE,
    FETCH_MAX_BYTES,
    "group.consumer.max.size",
    MAX_SESSION_TIMEOUT,
    "group.max.size",
    MIN_SESSION_TIMEOUT,
    "max.connections",
    MAX_MESSAGE_BYTES,
    OFFSET_METADATA,
    PRODUCER_STATE,
    SOCKET_REQUEST_BYTES,
)
"""Configs that are limits and belong to other settings."""

LIMITS: Final = (*DEFINITIONS, *ELSEWHERE)
"""Every config that is a limit: each has a row in docs/limits.md and a counter from the start."""


class Refusals:
    """How often each limit caused a refusal, a closed connection or a wait.

    The key is the config's name: ``driftlog_refused_total{limit=...}``.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(LIMITS, 0))

    def count(self, limit: str) -> None:
        """Count one refusal by *limit*, a config's name in `LIMITS`."""
        assert limit in self.counts, f"{limit} is not among the limits"
        self.counts[limit] += 1
