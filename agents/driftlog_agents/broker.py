"""What every request handler sees: who we are, and the log as it is led now.

    dispatcher ──▶ handler(broker, request, context) ──▶ response
                        │
                        └──▶ broker.engine ──▶ logs, sessions …   None between two sessions

Shell.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.cluster.watching import ClusterWatch
from driftlog_agents.groups.placing import Coordinators
from driftlog_agents.groups.settings import GroupSettings
from driftlog_agents.limits import Limits, Refusals
from driftlog_agents.log.engine import Engine
from driftlog_agents.log.producer_memory import STATE_BYTES
from driftlog_agents.log.reader import LogReader
from driftlog_agents.protocol.errors import (
    RESPONSE_BYTES,
    ErrorCode,
    OverLimitError,
    RefusedError,
)
from driftlog_metadata.model import Agent
from driftlog_metadata.store import MetadataStore
from driftlog_tiering.object_store import ObjectStore
from driftlog_tiering.producers import EXPIRATION_MS

if TYPE_CHECKING:
    from driftlog_agents.groups.coordinator import GroupCoordinator
    from driftlog_agents.producer_ids import ProducerIds
    from driftlog_agents.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What an agent does for its clients; names are Kafka's broker configs where it has one."""

    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    message_max_bytes: int = 1_048_588
    socket_request_max_bytes: int = 104_857_600
    connections_max_idle_ms: int = 600_000
    max_connections: int = 10_000
    fetch_max_bytes: int = 57_671_680
    producer_id_expiration_ms: int = int(EXPIRATION_MS)
    driftlog_producer_state_max_bytes: int = STATE_BYTES
    """See `ProducerSettings`."""
    limits: Limits = field(default_factory=Limits)
    given: frozenset[str] = frozenset()
    """Names of the configs that were set at the start, with `--config`, their defaults too."""
    log_level: str = "info"
    """Of the log on standard error: `--log-level`."""
    seal_ms: float | None = None
    """Seal whatever is this old, small partitions too (`driftlog dev`: a minute); None: by topic
    configs."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    location: str = ""
    """Where the objects are, for people: a directory or s3://bucket/prefix."""


class AnswerBytes:
    """What an answer will be, counted while it is made, so that it is not made in vain."""

    __slots__ = ("_left_bytes", "_most_bytes")

    def __init__(self, most_bytes: int = 1 << 62) -> None:
        self._most_bytes = self._left_bytes = most_bytes

    def add(self, size_bytes: int) -> None:
        """Count so much more.

        Raises:
            OverLimitError: it is more than an answer may have.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise OverLimitError(
                RESPONSE_BYTES, f"an answer of more than {self._most_bytes} bytes: ask for less"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Of one request, beside its body."""

    api_version: int
    client_id: str | None
    client_host: str
    listener: str
    answer: AnswerBytes = field(default_factory=AnswerBytes)
    """Who makes an answer from much more than was asked for counts it here while it is made."""
    on_close: set[Callable[[], None]] = field(default_factory=set)
    """Called when the connection is gone: a handler that waits for long says here what ends it."""


@dataclass(slots=True, kw_only=True)
class Broker:
    """See the module."""

    cluster_id: str
    agent: Agent
    settings: BrokerSettings
    metadata: MetadataStore
    objects: ObjectStore
    reader: LogReader
    wall_ms: Callable[[], int]
    """Milliseconds since 1970, for timestamps that people see."""
    engine: Engine | None = None
    groups: "GroupCoordinator | None" = None
    """The groups that this agent coordinates; None between two sessions."""
    coordinators: Coordinators = field(init=False)
    """Which agent coordinates which group, by the view of the cluster."""
    refusals: Refusals = field(default_factory=Refusals)
    cluster: ClusterWatch = field(init=False)
    topics: "Topics" = field(init=False)
    producer_ids: "ProducerIds" = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = ClusterWatch(self.metadata)
        self.coordinators = Coordinators(self.cluster.view)

    @property
    def view(self) -> ClusterView:
        """The cluster, as its watches have told."""
        return self.cluster.view

    @property
    def node_id(self) -> int:
        """Kafka's broker id of this agent."""
        return self.agent.node_id

    def led(self) -> Engine:
        """The engine, while it is ready to serve.

        Raises:
            RefusedError: between two sessions; retriable.
        """
        engine = self.engine
        if engine is None or not engine.ready.is_set():
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the agent is starting a session; try again"
            )
        return engine
