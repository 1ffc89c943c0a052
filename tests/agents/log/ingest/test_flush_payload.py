"""An object whose record or footer says something else than its batches fails here.

Pure.
"""

from uuid import UUID

from driftlog_agents.log.ingest.flush_payload import Payload
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import CommitWaiter
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.formats.flush_object import decode_footer
from tests.agents.log.lives import make_batch

SESSION = "0" * 32


def batch(base: int, epoch: int = 3) -> Batch:
    """One of two records."""
    view = memoryview(make_batch([b"a", b"b"]))
    kernel.patch(view, 0, base, epoch)
    header = check_batch(view, from_client=False)
    fields = (header.record_count, header.attributes, -1, -1, -1, 1, header.max_timestamp)
    return Batch(view, len(view), base, epoch, fields)


def payload() -> Payload:
    """A flush of two partitions."""
    logs = [
        PartitionLog(topic="t", topic_id=UUID(int=1), partition=n, leader_epoch=3) for n in range(2)
    ]
    batches = {logs[1]: [batch(4)], logs[0]: [batch(0), batch(2)]}
    return Payload.of(batches, SESSION, 5, has_facts=False)


def test_each_attempt_has_a_name_of_its_own_and_the_same_batches() -> None:
    """The record of the attempt that was stored names its object and no other."""
    made = payload()
    records = [made.begin(attempt, 7, 6, nonce) for attempt, nonce in enumerate(("aa", "bb"))]

    assert 2 == len({record.object_key for record in records})
    assert records == [made.puts[n][0] for n in range(2)]
    for record, footer in made.puts.values():
        decoded = decode_footer(footer)
        assert record.size_bytes == made.data.size_bytes + len(footer)
        assert record.footer_start == made.data.size_bytes
        assert [(0, 0, 4), (1, 4, 6)] == [(s.partition, s.base, s.end) for s in decoded.slices()]


def test_a_batch_that_the_disk_lost_is_found() -> None:
    """Another whole batch stands there, or half of one."""
    made = payload()
    sound = [bytes(batch(n).view or b"") for n in (0, 2, 4)]
    damaged = bytearray(sound[1])
    damaged[-1] ^= 1

    assert None is made.lost_offset(sound)
    assert 2 == made.lost_offset([sound[0], damaged, sound[2]])
    assert 2 == made.lost_offset([sound[0], sound[0], sound[2]])
    assert 4 == made.lost_offset([*sound[:2], bytes(batch(4, epoch=2).view or b"")])


def test_a_payload_has_the_facts_for_a_restore_from_their_level_on() -> None:
    """An older agent of the cluster cannot read a footer with them."""
    made = [
        Payload.of({log: [batch(0)]}, SESSION, 5, has_facts=has_facts)
        for has_facts in (False, True)
        for log in [PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=3)]
    ]

    assert [None, ("t",)] == [one.facts and one.facts.topic_names for one in made]


def test_a_batch_is_in_memory_once() -> None:
    """Its view belongs to the flush, which gives it up when memory is full."""
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=3)
    one = batch(0)

    made = Payload.of({log: [one]}, SESSION, 5, has_facts=False)

    assert one.view is None
    assert made.data.views is not None


def test_all_logs_have_moved_before_a_waiter_is_told() -> None:
    """A consumer that reads two partitions sees the whole flush."""
    logs = [
        PartitionLog(topic="t", topic_id=UUID(int=1), partition=n, leader_epoch=3) for n in range(2)
    ]
    for log in logs:
        log.append(2, -1, -1, -1, 0)
        log.waiters.append((2, CommitWaiter()))
    made = Payload.of({log: [batch(0)] for log in logs}, SESSION, 5, has_facts=False)

    ready = made.commit("key", 0)

    assert logs == [log for _, log in ready]
    assert [2, 2] == [log.high_watermark for log in logs]
