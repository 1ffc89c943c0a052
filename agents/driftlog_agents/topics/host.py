"""The interface of an agent that the topic service uses.

Shell.
"""

from collections.abc import Callable
from typing import Protocol

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Refusals
from driftlog_agents.log.log_session import Engine
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.stores.object_store import ObjectStore


class TopicHost(Protocol):
    """An agent; `Broker` implements it."""

    settings: BrokerSettings
    objects: ObjectStore
    cluster: ClusterWatch
    refusals: Refusals
    engine: Engine | None
    """The engine of the serving session; None between two sessions."""

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store of the agent."""
        ...

    @property
    def wall_ms(self) -> Callable[[], int]:
        """The clock: returns milliseconds since 1970."""
        ...

    @property
    def view(self) -> ClusterView:
        """The cluster as this agent's watches see it."""
        ...

    @property
    def agent(self) -> Agent:
        """This agent, as others see it."""
        ...

    @property
    def node_id(self) -> int:
        """Kafka's broker id of this agent."""
        ...
