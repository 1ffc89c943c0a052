"""If it failed: an object would be judged by the flush records of another session or topic."""

from uuid import UUID

from driftlog_agents.log.garbage.common.garbage_objects import (
    Garbage,
    GarbageReason,
    by_session,
    by_topic,
    of_deleted_topic,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectInfo

A, B = "0" * 32, "1" * 32
TOPIC = UUID(int=1, version=4)
MARK = layout.deleted_key("t", TOPIC)
FLUSHES = [layout.flush_key(A, 1, "0" * 16), layout.flush_key(B, 1, "0" * 16)]
HEAD = layout.final_head_key(A, 1)
SEGMENT = layout.producer_snapshot_key("t", TopicPartition(TOPIC, 0), 5, "0" * 16)


def infos(*keys: str) -> list[ObjectInfo]:
    """Objects of these keys, each a byte larger and a ms younger than the last one."""
    return [ObjectInfo(key, 10 + n, 100 + n) for n, key in enumerate(keys)]


def test_a_sessions_flushes_and_its_final_head_are_one_group() -> None:
    """
    A foreign key between them parts nothing, and is returned.
    """
    first, second, head, _, third = infos(FLUSHES[0], FLUSHES[0], HEAD, "flush/x", FLUSHES[1])
    groups, foreign = by_session(infos(FLUSHES[0], FLUSHES[0], HEAD, "flush/x", FLUSHES[1]))
    found = [(group.session_id, group.flushes, group.final_heads) for group in groups]

    assert [(A, [first, second], [head]), (B, [third], [])] == found
    assert ["flush/x"] == foreign


def test_neighbours_of_a_topic_are_one_group_and_of_no_topic_none() -> None:
    """
    Flush objects are theirs; the cluster's file and final heads are in no group.
    """
    keys = [layout.CLUSTER_KEY, FLUSHES[0], HEAD, FLUSHES[1], "x", MARK, SEGMENT]
    groups, foreign = by_topic(infos(*keys))
    found = [(topic_id, [info.key for info in some]) for topic_id, some in groups]

    assert [(None, FLUSHES), (TOPIC, [MARK, SEGMENT])] == found
    assert ["x"] == foreign


def test_objects_of_a_deleted_topic_are_garbage_at_their_age() -> None:
    """
    An agent that has not seen the deletion may have put the others just now.
    """
    objects = infos(SEGMENT, SEGMENT)
    garbage = of_deleted_topic(objects, 100)

    assert [Garbage(SEGMENT, 10, GarbageReason.DELETED_TOPIC)] == garbage
    assert "producer_snapshot" == garbage[0].kind
