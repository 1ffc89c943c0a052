"""The agent, as request handlers see it: its settings, its stores and its present session.

    dispatcher ──▶ handler(broker, request, context) ──▶ response
                        │
                        └──▶ broker.engine ──▶ logs, sessions …   None between two sessions

Shell.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.definitions import Inherited
from driftlog_agents.configs.dynamic_configs import NO_CONFIGS, DynamicConfigs
from driftlog_agents.configs.limits import Refusals
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.coordinator.placement import Coordinators
from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.service import Topics
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.model import Agent, Cluster
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.stores.object_store import ObjectStore


@dataclass(slots=True, kw_only=True)
class Broker:
    """One agent; see the module."""

    agent: Agent
    settings: BrokerSettings
    """What holds now: those of its start, with the dynamic configs."""
    cluster: ClusterWatch
    metadata: WitnessedStore
    objects: ObjectStore
    reader: LogReader
    wall_ms: Callable[[], int]
    """Milliseconds since 1970, for timestamps that people see."""
    refusals: Refusals
    engine: Engine | None = field(init=False, default=None)
    groups: GroupCoordinator | None = field(init=False, default=None)
    """The groups that this agent coordinates; None between two sessions."""
    coordinators: Coordinators = field(init=False)
    """Which agent coordinates which group, by the view of the cluster."""
    at_start: BrokerSettings = field(init=False)
    """The settings without dynamic configs."""
    dynamic: DynamicConfigs = field(init=False, default=NO_CONFIGS)
    """The configs of this broker, and of all brokers, that hold."""
    topics: Topics = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    """Both ask this broker for its session: `process/composition/agent` makes and sets them."""

    def __post_init__(self) -> None:
        self.at_start = self.settings
        self.coordinators = Coordinators(self.view)

    def begin(self, engine: Engine, groups: GroupCoordinator) -> None:
        """A session begins: it answers requests from now on."""
        self.engine, self.groups = engine, groups

    def end(self) -> None:
        """The session has ended: requests are refused until the next one."""
        self.engine = self.groups = None

    @property
    def inherited(self) -> Inherited:
        """What topics inherit from this agent."""
        return Inherited(
            self.settings.topic_defaults, self.dynamic.layers, self.at_start.topic_defaults
        )

    @property
    def view(self) -> ClusterView:
        """The cluster, as its watches report it."""
        return self.cluster.view

    @property
    def format_level(self) -> int:
        """The cluster's format level, as it was read last."""
        return self._read_last.format_version

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return self._read_last.cluster_id

    @property
    def _read_last(self) -> Cluster:
        cluster = self.metadata.witness.cluster
        assert cluster is not None, "an agent that has not joined its cluster answers nothing"
        return decode_cluster(cluster)

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
