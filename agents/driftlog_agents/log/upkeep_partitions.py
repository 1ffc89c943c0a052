"""The partitions of a session, by what of their upkeep it does itself.

Pure.
"""

from collections.abc import Callable, Container, Iterable, Iterator

from driftlog_agents.cluster.roles import has_own_policy, keeps_upkeep
from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import Role


class UpkeepPartitions:
    """See the module.  Partitions are checked while the caller iterates: it may take slices of the
    event loop (`foundation/loop_slices`).

    Args:
        led: the partitions that the session leads.  No upkeep of a partition begins before the view
            has its topic, and what that inherits, as they were when the partition was claimed:
            records may have been accepted under a policy that keeps what the one before deletes.
        roles: of its agent.
        compacted_topics: names of the topics that are compacted now.
    """

    def __init__(
        self,
        led: Callable[[], Iterable[PartitionLog]],
        view: ClusterView,
        roles: frozenset[Role],
        compacted_topics: Container[str],
    ) -> None:
        self._led = led
        self._view = view
        self._roles = roles
        self._compacted_topics = compacted_topics

    def led(self) -> Iterator[PartitionLog]:
        """The partitions that the session leads, and whose topics' policies the view has."""
        return (log for log in self._led() if self._has_policy(log))

    def _has_policy(self, log: PartitionLog) -> bool:
        """Whether the view is not older than the partition's claim."""
        keys, entry = log.policy_keys, self._view.topics.get(log.topic_id)
        if entry is None or entry.mod_revision < keys.topic:
            return False
        return self._view.has_configs(keys.configs, keys.read_revision)

    @property
    def are_rewritten_here(self) -> bool:
        """Whether the session compacts and merges what it leads, and collects what its edits
        replaced; False: an agent with the role `seal` does that."""
        return keeps_upkeep(self._view, self._roles)

    def merged(self) -> Iterator[PartitionLog]:
        """The partitions that the session merges."""
        return (log for log in self._led() if self.merges(log))

    def merges(self, log: PartitionLog) -> bool:
        """Whether the session merges *log*, which it leads: with others' merges, what it compacts
        would become void again and again."""
        if not self._has_policy(log):
            return False
        if self.are_rewritten_here:
            return True
        return not has_own_policy(self._view, log.topic_id) and log.topic in self._compacted_topics

    def compacted(self) -> Iterator[PartitionLog]:
        """The partitions that the session compacts, if their topics are: others' work is only what
        has a policy of its own."""
        if self.are_rewritten_here:
            return self.led()
        return (log for log in self.led() if not has_own_policy(self._view, log.topic_id))
