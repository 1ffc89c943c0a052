"""The topics that this agent knows: by name and id, with their effective limits and
policies of sealing, retention and compaction.

Shell.
"""

from dataclasses import dataclass
from uuid import UUID

import structlog

from driftlog_agents.configs.topic import (
    TopicLimits,
    topic_compaction,
    topic_limits,
    topic_retention,
    topic_sealing,
)
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.validation import RESERVED_TOPICS, check_topic_name
from driftlog_metadata.schema.keys import INT64_MAX
from driftlog_metadata.schema.model import Topic
from driftlog_tiering.compaction.policy import CompactionPolicy


@dataclass(frozen=True, slots=True)
class _Policies:
    """What the configs of a topic come to."""

    limits: TopicLimits
    sealing: TopicSealPolicy
    retention: TopicRetention
    compaction: CompactionPolicy | None


class TopicCatalog:
    """See the module; the watch of the topics fills it.

    Args:
        agent_configs: the agent's settings that topics inherit, by broker config.
        check_interval_ms: between two checks of retention.
    """

    def __init__(self, agent_configs: dict[str, str], check_interval_ms: float) -> None:
        self.agent_configs = agent_configs
        """The newest of these; only `inherit` changes them."""
        self._check_interval_ms = check_interval_ms
        self._log = structlog.get_logger()
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.limits: dict[str, TopicLimits] = {}
        """Limits by topic name."""
        self.sealing: dict[str, TopicSealPolicy] = {}
        """Sealing policies by topic name."""
        self.compaction: dict[str, CompactionPolicy] = {}
        """Policies of compaction by topic name, of the topics that are compacted."""
        self.retention: dict[str, TopicRetention] = {}
        """Retention by topic name."""
        self.partitions = 0
        """The number of partitions of all topics."""
        self._alike: dict[str, set[str]] = {}

    def alike(self, name: str) -> set[str]:
        """Names of existing topics that *name* collides with, or equals."""
        return self._alike.get(unlike(name), set())

    def check_new_name(self, name: str) -> None:
        """Check that a topic *name* may be created.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, INVALID_REQUEST, TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in RESERVED_TOPICS:  # as ControllerApis#createTopics for __cluster_metadata
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        if name in self.by_name:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        alike = self.alike(name)
        if alike:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {min(alike)}",
            )

    def know(self, topic: Topic) -> None:
        """Add or update a topic."""
        before = self.by_name.get(topic.name)
        self.partitions += topic.partitions - (0 if before is None else before.partitions)
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._alike.setdefault(unlike(topic.name), set()).add(topic.name)
        self._use(topic.name, self._policies(topic))

    def inherit(self, agent_configs: dict[str, str]) -> None:
        """The agent has other settings: every topic takes what it inherits, in one step.

        Upkeep begins when the cluster's view has a partition's configs (`log/upkeep_partitions`):
        with some topics behind the view, records would expire by the retention before.  Topics with
        the same configs of their own share the computation.
        """
        self.agent_configs = agent_configs
        found: dict[tuple[tuple[str, str], ...], _Policies] = {}
        for topic in self.by_name.values():
            own = tuple(sorted(topic.configs.items()))
            if own not in found:
                found[own] = self._policies(topic)
            self._use(topic.name, found[own])

    def _policies(self, topic: Topic) -> "_Policies":
        agent = self.agent_configs
        try:
            retention = topic_retention(topic.configs, agent)
            compaction = topic_compaction(topic.configs, agent)
            longest_ms = self._longest_ms(retention, compaction)
            return _Policies(
                limits=topic_limits(topic.configs, agent),
                sealing=topic_sealing(topic.configs, agent, longest_ms),
                retention=retention,
                compaction=compaction,
            )
        except ValueError as error:
            # A newer version set these configs; the topic is served with the defaults, and keeps
            # all records.
            self._log.error("topic_configs_unreadable", topic=topic.name, error=str(error))
            return _Policies(
                limits=topic_limits({}, agent),
                sealing=topic_sealing({}, agent),
                retention=TopicRetention(),
                compaction=None,
            )

    def _use(self, name: str, policies: "_Policies") -> None:
        self.limits[name] = policies.limits
        self.sealing[name] = policies.sealing
        self.retention[name] = policies.retention
        if policies.compaction is None:
            self.compaction.pop(name, None)
        else:
            self.compaction[name] = policies.compaction

    def _longest_ms(
        self, retention: TopicRetention, compaction: CompactionPolicy | None
    ) -> float | None:
        """How long a batch may wait to be sealed; nothing expires between two checks, so sealing
        need not be more frequent."""
        limits: list[float] = []
        if retention.ms is not None:
            limits.append(max(retention.ms, self._check_interval_ms))
        if compaction is not None and compaction.max_lag_ms < INT64_MAX:
            limits.append(compaction.max_lag_ms)
        return min(limits, default=None)

    def forget(self, topic: Topic) -> None:
        """Remove a topic that is deleted or being deleted."""
        self.by_id.pop(topic.topic_id, None)
        now = self.by_name.get(topic.name)
        if now is None or now.topic_id != topic.topic_id:
            return
        del self.by_name[topic.name]
        self.partitions -= now.partitions
        self.limits.pop(topic.name, None)
        self.sealing.pop(topic.name, None)
        self.compaction.pop(topic.name, None)
        self.retention.pop(topic.name, None)
        alike = self._alike[unlike(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._alike[unlike(topic.name)]


def unlike(name: str) -> str:
    """The key that colliding names share (Topic#unifyCollisionChars): metrics confuse . and _."""
    return name.replace(".", "_")
