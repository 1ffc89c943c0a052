"""Topics, configs and groups of any Kafka cluster.

    with Admin() as admin:
        admin.topics.create("flights", partitions=6)
        admin.configs.alter_topic("flights", {"retention.ms": "604800000"})
        for offset in admin.groups.offsets("board"):
            print(offset.topic, offset.partition, offset.lag)

Every call waits for its answer; in asyncio: ``await asyncio.to_thread(admin.topics.list)``.
Shell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from driftlog.admin.admin_configs import Configs
from driftlog.admin.admin_groups import Groups
from driftlog.admin.admin_link import AdminLink
from driftlog.admin.admin_topics import Topics
from driftlog.common.connection import bootstrap


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, as the broker that answers sees it."""

    cluster_id: str | None
    controller: int | None
    """The controller's node id; None: there is none at the moment."""
    brokers: tuple[Broker, ...]


class Admin:
    """Describes and changes the topics, configs and groups of a cluster.

    This program creates a topic and shows its offsets::

        from driftlog import Admin

        with Admin() as admin:
            admin.topics.create("flights", partitions=6, if_not_exists=True)
            print(admin.topics.offsets("flights"))

    Every call may raise `UnreachableError` (no broker answered; nothing was done),
    `OutcomeUnknownError` (the answer was lost), `RequestError` (the cluster declined) and
    `ClosedError`, besides what it lists.  One Admin serves any number of threads.

    Attributes:
        topics, configs, groups: the calls, by their subject.

    Args:
        bootstrap_servers: one or more of the cluster's addresses; None: the environment variable
            DRIFTLOG_BOOTSTRAP_SERVERS, or 127.0.0.1:9092.
        timeout_s: how long a call may take, in seconds.
        config: librdkafka's own configs; for TLS and SASL.

    Raises:
        ValueError: a config that does not exist, or that the client sets itself.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] | None = None,
        timeout_s: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._link = AdminLink(bootstrap(bootstrap_servers), timeout_s, config)
        self.topics = Topics(self._link)
        self.configs = Configs(self._link)
        self.groups = Groups(self._link)

    def cluster(self) -> Cluster:
        """The cluster's id, and its brokers.

        Raises:
            UnreachableError: no broker answered.
        """
        found = self._link.describe_cluster()
        brokers = (Broker(node.id, node.host, node.port, node.rack) for node in found.nodes)
        return Cluster(
            found.cluster_id,
            None if found.controller is None else found.controller.id,
            tuple(sorted(brokers, key=lambda broker: broker.node_id)),
        )

    def close(self) -> None:
        """Close the connections.  Harmless when repeated."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
