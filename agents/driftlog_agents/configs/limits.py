"""Limits of the memory and work that one client, or all clients together, can cause on an agent.

    limits.py ──▶ --config (startup_configs), DescribeConfigs (configs/broker), docs/limits.md
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
    between,
    definitions_of,
    setting,
)
from driftlog_agents.protocol.errors import SOCKET_REQUEST_BYTES
from driftlog_tiering.batches.batch import MAX_RECORDS
from driftlog_tiering.batches.batch_limits import BatchLimits

KiB: Final = 1024
MiB: Final = 1024 * KiB

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
        1_000, "Connections from one address; more are closed as they come."
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        "ADDRESS:CONNECTIONS,... in place of max.connections.per.ip.",
        STRING,
        overrides_fault,
    )
    max_connection_creation_rate: int = setting(
        200, "Connections accepted a second; those over it wait to be accepted."
    )
    driftlog_http_max_connections: int = setting(64, "Connections to the HTTP port.")
    driftlog_http_max_connection_creation_rate: int = setting(
        100, "Connections that the HTTP port accepts a second; those over it wait to be accepted."
    )

    # ── Requests and answers ──

    queued_max_requests: int = setting(
        500, "Requests other than Produce that wait for their turn on their connections."
    )
    queued_max_request_bytes: int = setting(
        256 * MiB, "Bytes of requests other than Produce, from the frame to the answer.", LONG
    )
    driftlog_connection_max_queued_requests: int = setting(
        8,
        "Requests of one connection, other than Produce, that wait to be answered; it is not read "
        "while there are more.",
    )
    driftlog_max_unanswered_requests: int = setting(
        20_000, "Requests of all connections, also Produce, that are not answered."
    )
    driftlog_max_response_queue_bytes: int = setting(
        512 * MiB,
        "Bytes of answers that clients have not taken; Fetches and large Produces wait for room, "
        "and the connection that holds most is closed.",
        LONG,
    )
    driftlog_max_response_bytes: int = setting(
        64 * MiB, "Bytes of one answer that is not to a Fetch; a larger one is refused."
    )
    driftlog_max_request_elements: int = setting(
        20_000,
        "Elements of a request that makes or changes something or asks for groups or configs; one "
        "that names topics and partitions that are there may have 262144.",
    )
    driftlog_max_tagged_fields: int = setting(10_000, "Tagged fields of a request.")
    driftlog_max_request_bytes: int = setting(
        16 * MiB,
        "Bytes of a request other than Produce, where socket.request.max.bytes is more.",
    )

    # ── Topics ──

    driftlog_max_topics_per_request: int = setting(1_000, "Topics that one request may make.")
    driftlog_max_partitions: int = setting(
        50_000, "Partitions of a cluster, for each agent in it; topics beyond it are not made."
    )

    driftlog_max_topic_seals_per_minute: int = setting(
        20, "Seals of one topic that are asked for over HTTP, on one agent."
    )

    # ── Batches ──

    driftlog_max_batch_records: int = setting(
        MAX_RECORDS, "Records of a batch, as its header says.", INT, between(1, MAX_RECORDS)
    )
    driftlog_max_batch_headers: int = setting(
        1_000_000, "Headers of a batch's records.", INT, between(1, 1_000_000)
    )
    driftlog_max_batch_decompressed_bytes: int = setting(
        48 * MiB,
        "Bytes of a batch's records when they are decompressed. Batches of more than 8 MiB are "
        "decoded one after the other, and take up to four times this.",
        INT,
        between(KiB, 256 * MiB),
    )
    driftlog_max_waiting_batch_bytes: int = setting(
        96 * MiB,
        "Bytes of batches that wait to be rewritten, or for their partition, and 1 KiB for each; "
        "connections that bring more are not read until there is room.",
        LONG,
    )
    driftlog_max_message_bytes: int = setting(
        16 * MiB, "Most that message.max.bytes, and max.message.bytes of a topic, may be."
    )

    # ── Groups ──

    driftlog_max_groups: int = setting(100_000, "Groups that one agent coordinates.")
    driftlog_max_groups_bytes: int = setting(
        512 * MiB, "Bytes that all groups of one agent hold: members, offsets, themselves.", LONG
    )
    driftlog_max_group_bytes: int = setting(
        8 * MiB, "Bytes that members of one group have sent: metadata and assignments."
    )
    driftlog_max_group_member_bytes: int = setting(
        MiB, "Bytes of one member of a group: metadata and assignment."
    )
    driftlog_max_rebalance_timeout_ms: int = setting(
        1_800_000, "Longest rebalance timeout of a member of a group."
    )

    # ── The agent's own log ──

    driftlog_log_lines_per_second: int = setting(
        10, "Lines of one event and client address a second; what is left out is counted."
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
LOG_LINES: Final = "driftlog.log.lines.per.second"
MAX_MESSAGE_BYTES: Final = "message.max.bytes"
MAX_REBALANCE_TIMEOUT: Final = "driftlog.max.rebalance.timeout.ms"
MAX_SESSION_TIMEOUT: Final = "group.max.session.timeout.ms"
MIN_SESSION_TIMEOUT: Final = "group.min.session.timeout.ms"
OFFSET_METADATA: Final = "offset.metadata.max.bytes"
PRODUCER_STATE: Final = "driftlog.producer.state.max.bytes"

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
