"""The topics of one session, and the logs of their partitions that are led here.

    known ──▶ partitions opened, released ──▶ deletion begins: unlisted; late logs are not listed

Pure.
"""

from uuid import UUID

from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import Topic, TopicPartition


class TopicLogs:
    """A topic and the logs of its partitions that are led here, by partition number."""

    __slots__ = ("logs", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.logs: list[PartitionLog | None] = [None] * topic.partitions


class LedTopics:
    """See the module.

    Args:
        deleted: topics whose deletion has begun or is finished.
    """

    def __init__(self, deleted: DeletedTopics) -> None:
        self._deleted = deleted
        self.by_name: dict[str, TopicLogs] = {}
        self.by_id: dict[UUID, TopicLogs] = {}

    def logs(self) -> list[PartitionLog]:
        """The logs of every partition that is led here."""
        return [log for topic in self.by_name.values() for log in topic.logs if log is not None]

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """The partition's log, if it is led here or being handed over."""
        entry = self.by_id.get(tp.topic_id)
        if entry is None or tp.partition >= len(entry.logs):
            return None
        return entry.logs[tp.partition]

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition's log, if it is led here."""
        found = self.by_name.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            return None
        return found.logs[partition]

    def know(self, topic: Topic) -> None:
        """Adds or updates *topic*, as the metadata store has it."""
        if topic.topic_id in self._deleted:
            return
        entry = self.by_id.get(topic.topic_id)
        if entry is None:
            entry = TopicLogs(topic)
            self.by_name[topic.name] = entry
            self.by_id[topic.topic_id] = entry
        entry.topic = topic
        entry.logs.extend([None] * (topic.partitions - len(entry.logs)))

    def open(self, tp: TopicPartition, log: PartitionLog) -> bool:
        """Lists *log*, which is led here from now on; False: the topic was deleted meanwhile."""
        entry = self.by_id.get(tp.topic_id)
        if entry is None:
            return False
        log.start_epoch(log.leader_epoch, log.log_end)
        entry.logs[tp.partition] = log
        return True

    def released(self, log: PartitionLog) -> None:
        """Others may lead the partition."""
        entry = self.by_id.get(log.topic_id)
        if entry is not None and entry.logs[log.partition] is log:
            entry.logs[log.partition] = None

    def remove(self, topic_id: UUID) -> TopicLogs | None:
        """Unlists a topic that is deleted, or is about to be; returns it if it was known."""
        self._deleted.add(topic_id)
        entry = self.by_id.pop(topic_id, None)
        if entry is not None and self.by_name.get(entry.topic.name) is entry:
            del self.by_name[entry.topic.name]
        return entry
