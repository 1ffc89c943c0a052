"""The topics of the cluster, as consumer groups are given them: names, ids and partitions.

Immutable: the watch of topics makes a new one after a change and gives it to all groups.  What
the bucket replicates has no racks; so where partitions are led changes no assignment.
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
        version: another one whenever a topic has come, gone or grown.
        topics: (name, id, partitions) of each.
    """

    __slots__ = ("by_id", "by_name", "version")

    def __init__(self, version: int, topics: Iterable[tuple[str, UUID, int]]) -> None:
        self.version: Final = version
        by_name = {name: TopicInfo(name, id_, count) for name, id_, count in topics}
        self.by_name: Final[Mapping[str, TopicInfo]] = MappingProxyType(by_name)
        self.by_id: Final[Mapping[UUID, TopicInfo]] = MappingProxyType(
            {topic.topic_id: topic for topic in by_name.values()}
        )

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """Ids of those of *names* that there are."""
        return frozenset(self.by_name[name].topic_id for name in names if name in self.by_name)
