"""`driftlog gc --dry-run`: it deletes nothing, and says what the collector deletes."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from driftlog_agents.log.garbage.common.garbage_objects import Garbage, GarbageReason
from driftlog_agents.log.garbage.dry_run import report
from driftlog_metadata.schema.codec import encode_flush_record, encode_topic
from driftlog_metadata.schema.keys import deleted_key, flush_key, import_key
from driftlog_metadata.schema.model import Cluster, FlushRecord, Topic, TopicPartition
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from tests.agents.log.garbage.sealed.partition_history import GRACE_H, History

SESSION = f"{7:032x}"
GONE = Topic(name="gone", topic_id=UUID(int=9, version=4), partitions=1)


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """Off no event loop."""
    return fn(*args)


async def test_all_kinds_of_garbage_are_told_and_nothing_is_deleted() -> None:
    """
    Flush objects, replaced and never named sealed objects, objects of deleted topics; young ones,
    named ones and foreign ones are not among them.
    """
    history = await History().begin()
    put, metadata = history.bucket.put, history.metadata
    await put(layout.CLUSTER_KEY, [encode_cluster(Cluster("a"))])
    old = await history.seal()
    await history.delete_records(10)
    failed = await history.put_segment(10, 20)
    flushes = [layout.flush_key(SESSION, seq, "a") for seq in range(2)]
    for key in flushes:
        await put(key, [b"xy"])
    record = FlushRecord(object_key=flushes[1], size_bytes=2, footer_start=0)
    of_gone = layout.segment_key("gone", TopicPartition(GONE.topic_id, 0), 0, 1, "a")
    await put(of_gone, [b"x"])
    await put(layout.deleted_key("gone", GONE.topic_id), [b"x"])
    unknown = of_gone.replace(str(GONE.topic_id), str(GONE.topic_id)[:-1] + "0")
    foreign = ["flush/notes.txt", "zzz"]
    for key in (*foreign, unknown):
        await put(key, [b"x"])
    puts = [Put(flush_key(SESSION, 1), encode_flush_record(record))]
    puts.append(Put(deleted_key(GONE.topic_id), encode_topic(GONE)))
    await metadata.txn((), puts)
    history.now_h += GRACE_H
    young = await history.put_segment(10, 30)
    before = await history.keys()

    found = await report(metadata, history.bucket, at_once)

    assert before == await history.keys()
    assert sorted([*foreign, unknown]) == sorted(found.unrecognised)
    assert {} == found.damaged
    reasons = {one.key: one.reason for one in found.garbage}
    replaced = layout.manifest_key("t", history.newest.tp, 1)
    assert {
        flushes[0]: GarbageReason.NO_RECORD,
        old[0].key: GarbageReason.REPLACED,
        replaced: GarbageReason.REPLACED,
        failed.key: GarbageReason.NEVER_NAMED,
        of_gone: GarbageReason.DELETED_TOPIC,
        layout.deleted_key("gone", GONE.topic_id): GarbageReason.DELETED_TOPIC,
    } == reasons
    assert young.key not in reasons
    assert Garbage(flushes[0], 2, GarbageReason.NO_RECORD) in found.garbage


async def test_what_an_open_import_has_written_is_neither_garbage_nor_unrecognised() -> None:
    """
    Whatever its age: its publication names it.
    """
    history = await History().begin()
    await history.bucket.put(layout.CLUSTER_KEY, [encode_cluster(Cluster("a"))])
    segment = layout.segment_key("gone", TopicPartition(GONE.topic_id, 0), 0, 1, "a")
    for key in (segment, layout.import_key("gone", GONE.topic_id)):
        await history.bucket.put(key, [b"x"])
    await history.metadata.txn((), [Put(import_key(GONE.topic_id), encode_topic(GONE))])
    history.now_h += 3 * GRACE_H

    found = await report(history.metadata, history.bucket, at_once)

    assert ([], []) == (found.garbage, found.unrecognised)
