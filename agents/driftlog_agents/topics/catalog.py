"""The topics that this agent knows: by name and id, with their effective limits and
policies of sealing, retention and compaction.

When the agent has other settings, nothing is computed for all topics: the policies of a topic are
computed when they are next asked for, by the newest settings.

Shell.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Policies:
    """What the configs of a topic come to."""

    limits: TopicLimits
    sealing: TopicSealPolicy
    retention: TopicRetention
    compaction: CompactionPolicy | None


class _ByTopic(Mapping[str, T]):
    """One of the policies of each topic, by the topic's name.

    Args:
        names: of all topics.
        policies: those of a topic; KeyError: it is unknown.
        which: that policy of them; None: the topic has no entry.
    """

    def __init__(
        self,
        names: Mapping[str, Topic],
        policies: Callable[[str], _Policies],
        which: Callable[[_Policies], T | None],
    ) -> None:
        self._names = names
        self._policies = policies
        self._which = which

    def __getitem__(self, name: str) -> T:
        found = self._which(self._policies(name))
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
        self._computed: dict[str, _Policies] = {}
        """Policies by topic name, of the topics that were asked for since `inherit`."""
        self.limits: Mapping[str, TopicLimits] = self._by_topic(lambda of: of.limits)
        """Limits by topic name.  In this and the next three, a topic's first look-up after
        `inherit` takes tens of microseconds: do not look up all topics in one step of the loop."""
        self.sealing: Mapping[str, TopicSealPolicy] = self._by_topic(lambda of: of.sealing)
        """Sealing policies by topic name."""
        self.compaction: Mapping[str, CompactionPolicy] = self._by_topic(lambda of: of.compaction)
        """Policies of compaction by topic name, of the topics that are compacted."""
        self.retention: Mapping[str, TopicRetention] = self._by_topic(lambda of: of.retention)
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
        # At once, so that the log tells of unreadable configs when they arrive.
        self._computed[topic.name] = self._compute(topic)

    def inherit(self, agent_configs: dict[str, str]) -> None:
        """The agent has other settings: every topic has what it inherits from now on.

        Upkeep begins when the cluster's view has a partition's configs (`log/upkeep_partitions`):
        with some topics behind the view, records would expire by the retention before.
        """
        self.agent_configs = agent_configs
        self._computed.clear()

    def _by_topic(self, which: Callable[[_Policies], T | None]) -> _ByTopic[T]:
        return _ByTopic(self.by_name, self._policies, which)

    def _policies(self, name: str) -> _Policies:
        found = self._computed.get(name)
        if found is None:
            found = self._computed[name] = self._compute(self.by_name[name])
        return found

    def _compute(self, topic: Topic) -> _Policies:
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
        self._computed.pop(topic.name, None)
        alike = self._alike[unlike(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._alike[unlike(topic.name)]


def unlike(name: str) -> str:
    """The key that colliding names share (Topic#unifyCollisionChars): metrics confuse . and _."""
    return name.replace(".", "_")
