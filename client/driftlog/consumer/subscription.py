"""The subscription of a consumer: topics, partitions, start and end.

Pure.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from driftlog.common.records import TopicPartition
from driftlog.errors import UnknownTopicError


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The arguments of `Consumer` that select records.

    Raises:
        ValueError: they contradict one another.
    """

    topics: Sequence[str]
    """Names, and patterns that begin with ``^``."""
    group: str | None
    partitions: Sequence[int] | None
    from_beginning: bool
    end_of_topic: bool
    auto_commit: bool

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("name at least one topic")
        if self.group == "":
            raise ValueError("a group needs a name; leave it out to read without one")
        if self.group is not None and self.partitions is not None:
            raise ValueError(
                "a group assigns partitions to its members: give a group or partitions, not both"
            )

    @property
    def commits(self) -> bool:
        """Whether the consumer commits by itself."""
        return self.auto_commit and self.group is not None

    @property
    def grows(self) -> bool:
        """Whether the consumer itself looks for new partitions; in a group the coordinator does."""
        return self.group is None and self.partitions is None and not self.end_of_topic

    @property
    def only_topic(self) -> str | None:
        """The topic, if one is named and no other can match."""
        only = self.topics[0]
        return None if len(self.topics) > 1 or only.startswith("^") else only

    def partitions_of(
        self, known: Mapping[str, Collection[int]], servers: str
    ) -> list[TopicPartition]:
        """The partitions to read, of the topics that the cluster at *servers* has.

        Raises:
            UnknownTopicError: a named topic, or a named partition, does not exist.
        """
        patterns = [topic for topic in self.topics if topic.startswith("^")]
        names = [topic for topic in self.topics if topic not in patterns]
        names += sorted(
            name for name in known if any(re.match(pattern, name) for pattern in patterns)
        )
        for name in names:
            if not known.get(name):
                raise UnknownTopicError(
                    f"topic {name!r} does not exist at {servers}. Create it first: "
                    f"Admin().topics.create({name!r}), or `driftlog topics create {name}`.",
                    code=3,
                )
        found = [TopicPartition(name, p) for name in names for p in sorted(known[name])]
        if self.partitions is None:
            return found
        wanted = [TopicPartition(name, p) for name in names for p in self.partitions]
        missing = sorted(set(wanted) - set(found))
        if missing:
            topic, partition = missing[0]
            raise UnknownTopicError(
                f"topic {topic!r} has no partition {partition}: it has {len(known[topic])}, "
                "counted from 0."
            )
        return wanted
