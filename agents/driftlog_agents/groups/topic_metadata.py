"""The topics of the cluster for consumer groups: names, ids and partition counts.

Immutable: after a change, the coordinator makes a new `ClusterTopics` and gives it to all groups.
Partitions have no racks, because the bucket replicates them; so leadership changes no assignment.
Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from uuid import UUID


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic."""

    name: str
    topic_id: UUID
    partitions: int


class ClusterTopics:
    """See the module.

    Args:
        version: differs after a topic is created, deleted or gets partitions.
        topics: (name, id, partitions) of each.
    """

    __slots__ = ("by_id", "by_name", "partitions", "version")

    def __init__(self, version: int, topics: Iterable[tuple[str, UUID, int]]) -> None:
        self.version: Final = version
        by_name = {name: TopicInfo(name, id_, count) for name, id_, count in topics}
        self.by_name: Final[Mapping[str, TopicInfo]] = MappingProxyType(by_name)
        self.by_id: Final[Mapping[UUID, TopicInfo]] = MappingProxyType(
            {topic.topic_id: topic for topic in by_name.values()}
        )
        self.partitions: Final = sum(topic.partitions for topic in by_name.values())
        """Partitions of all topics."""

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """Ids of the existing topics among *names*."""
        return frozenset(self.by_name[name].topic_id for name in names if name in self.by_name)
