"""A partition that is served after its topic is deleted, or not found while it is led, fails here.

Pure.
"""

from uuid import UUID

from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.topic_logs import LedTopics
from driftlog_metadata.schema.model import Topic, TopicPartition

ID, OTHER = UUID(int=1), UUID(int=2)


def topic(topic_id: UUID = ID, partitions: int = 2, name: str = "t") -> Topic:
    """As the metadata store has it."""
    return Topic(name=name, topic_id=topic_id, partitions=partitions)


def log_of(partition: int, topic_id: UUID = ID) -> PartitionLog:
    """A claimed partition."""
    return PartitionLog(topic="t", topic_id=topic_id, partition=partition, leader_epoch=4)


def led(*partitions: int) -> tuple[LedTopics, list[PartitionLog]]:
    """A topic of which these partitions are led."""
    topics = LedTopics(DeletedTopics())
    topics.know(topic())
    logs = [log_of(n) for n in partitions]
    assert all(topics.open(TopicPartition(ID, log.partition), log) for log in logs)
    return topics, logs


def test_a_led_partition_is_found_by_name_and_by_id() -> None:
    """Others are not."""
    topics, (log,) = led(1)

    assert [log] == topics.logs()
    assert log is topics.log("t", 1) is topics.find(TopicPartition(ID, 1))
    assert [None] * 3 == [topics.log("t", 0), topics.log("t", 2), topics.log("u", 1)]
    assert [None] * 2 == [topics.find(TopicPartition(ID, n)) for n in (0, 2)]
    assert [(4, 0)] == log.epochs


def test_new_partitions_of_a_known_topic_can_be_led() -> None:
    """Those that are led stay."""
    topics, (log,) = led(0)
    topics.know(topic(partitions=5))

    assert topics.open(TopicPartition(ID, 4), log_of(4))
    assert [0, 4] == [one.partition for one in topics.logs()]
    assert log is topics.log("t", 0)


def test_a_deleted_topic_is_not_served_again() -> None:
    """A late claim, or a late read of the topic, comes behind its deletion."""
    topics, logs = led(0)
    removed = topics.remove(ID)
    topics.know(topic())

    assert removed is not None
    assert logs == [log for log in removed.logs if log is not None]
    assert ([], {}, {}) == (topics.logs(), topics.by_name, topics.by_id)
    assert not topics.open(TopicPartition(ID, 0), log_of(0))
    assert topics.remove(ID) is None


def test_the_name_of_a_deleted_topic_is_free() -> None:
    """The deletion of the old one leaves the new one."""
    topics, _ = led(0)
    topics.know(topic(OTHER))
    topics.remove(ID)

    assert OTHER == topics.by_name["t"].topic.topic_id


def test_a_partition_that_was_claimed_again_stays() -> None:
    """The release of its former log came late."""
    topics, (old,) = led(0)
    topics.open(TopicPartition(ID, 0), new := log_of(0))
    topics.released(old)
    kept = topics.logs()
    topics.released(new)

    assert ([new], []) == (kept, topics.logs())
