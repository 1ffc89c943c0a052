"""If it failed: a start with many new topics would list each partition, or skip one in use."""

from uuid import UUID

from driftlog_agents.log.objects.manifest_listings import (
    shows_use,
    to_list,
    topic_prefixes,
    unlisted,
)
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout

A, B = UUID(int=1), UUID(int=2)
LOGS = {
    TopicPartition(topic_id, number): PartitionLog(
        topic=name, topic_id=topic_id, partition=number, leader_epoch=0
    )
    for topic_id, name in ((A, "a"), (B, "b"))
    for number in range(2)
}
A0, A1, B0, B1 = LOGS


def test_each_topic_of_new_partitions_is_listed_once() -> None:
    """
    Partitions that were led before have listings of their own.
    """
    assert {B: layout.topic_prefix("b", B)} == topic_prefixes(LOGS, {B0, B1})


def test_a_partition_that_was_led_and_one_of_a_used_topic_are_listed() -> None:
    """
    Not so one of a topic without objects, or that could not be listed.
    """
    assert {A0, A1} == to_list(LOGS, {A0, B0, B1}, {A: True, B: False}).keys()
    assert {A1} == to_list(LOGS, {A0, B0, B1}, {}).keys()
    assert {B0: "why"} == unlisted({A0, B0}, {B: "why"})


def test_only_a_topics_own_files_show_no_use() -> None:
    """
    Each topic has those from its creation on.
    """
    prefix = layout.topic_prefix("a", A)

    assert not shows_use(layout.topic_file_prefix("a", A) + "x", prefix)
    assert shows_use(layout.partition_prefix("a", A0) + "x", prefix)
