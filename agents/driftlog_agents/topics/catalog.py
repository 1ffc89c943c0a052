"""Topics as this agent knows them: by name and id, with what their configs come to.

Shell.
"""

from uuid import UUID

import structlog

from driftlog_agents.configs.topic import TopicLimits, topic_limits, topic_sealing
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.validation import RESERVED_TOPICS, check_topic_name
from driftlog_metadata.schema.model import Topic


class TopicCatalog:
    """See the module; the watch of the topics fills it.

    Args:
        agent_configs: the agent's settings that topics inherit.
        seal_ms: of the agent; None: what the topics say.
    """

    def __init__(self, agent_configs: dict[str, str], seal_ms: float | None) -> None:
        self._agent_configs = agent_configs
        self._seal_ms = seal_ms
        self._log = structlog.get_logger()
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.limits: dict[str, TopicLimits] = {}
        """By name."""
        self.sealing: dict[str, TopicSealPolicy] = {}
        """By name."""
        self.partitions = 0
        """Of all of them."""
        self._alike: dict[str, set[str]] = {}

    def alike(self, name: str) -> set[str]:
        """Names of topics that *name* collides with."""
        return self._alike.get(unlike(name), set())

    def check_new_name(self, name: str) -> None:
        """Whether a topic may be made that is called *name*.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, INVALID_REQUEST, TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in RESERVED_TOPICS:  # as ControllerApis#createTopics of the one that never is there
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
        """It is there, or has changed."""
        before = self.by_name.get(topic.name)
        self.partitions += topic.partitions - (0 if before is None else before.partitions)
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._alike.setdefault(unlike(topic.name), set()).add(topic.name)
        try:
            self.limits[topic.name] = topic_limits(topic.configs, self._agent_configs)
            sealing = topic_sealing(topic.configs, self._seal_ms)
        except ValueError as error:
            # Set by a version that knew better; the topic is served with the defaults.
            self._log.error("topic_configs_unreadable", topic=topic.name, error=str(error))
            self.limits[topic.name] = topic_limits({}, self._agent_configs)
            sealing = topic_sealing({}, self._seal_ms)
        self.sealing[topic.name] = sealing

    def forget(self, topic: Topic) -> None:
        """It is gone, or going."""
        self.by_id.pop(topic.topic_id, None)
        now = self.by_name.get(topic.name)
        if now is None or now.topic_id != topic.topic_id:
            return
        del self.by_name[topic.name]
        self.partitions -= now.partitions
        self.limits.pop(topic.name, None)
        self.sealing.pop(topic.name, None)
        alike = self._alike[unlike(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._alike[unlike(topic.name)]


def unlike(name: str) -> str:
    """What collides has in common (Topic#unifyCollisionChars): metrics confuse . and _."""
    return name.replace(".", "_")
