"""What is set aside of a directory: if it failed, an acks=1 record would be in no file, or two."""

from typing import Final
from uuid import UUID

import pytest

from driftlog_agents.log.local.buffer_format import (
    encode_entry_header,
    encode_file_header,
    entries,
)
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.displaced_batches import DisplacedBatches
from driftlog_agents.log.recovery.leftover_batches import LED_ELSEWHERE, Directory
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import patch_offset_and_epoch
from tests.agents.log.lives import make_batch, values_of

TP, OTHER = TopicPartition(UUID(int=1), 0), TopicPartition(UUID(int=1), 1)
SESSION: Final = "0000000000000007" + 16 * "0"


def entry(
    value: bytes, offset: int, *, epoch: int = 1, tp: TopicPartition = TP, one: bool = True
) -> bytes:
    """A batch of one record in a buffer file."""
    batch = make_batch([value])
    patch_offset_and_epoch(batch, offset, epoch)
    head = encode_entry_header(7, tp.topic_id.bytes, tp.partition, len(batch), one)
    return head + bytes(batch)


def log_of(*, sealed_end: int = 0, log_start: int = 0) -> PartitionLog:
    """Leader epoch 1 has [0, 2), epoch 2 [2, 4)."""
    log = PartitionLog(
        topic="t",
        topic_id=TP.topic_id,
        partition=0,
        leader_epoch=-1,
        log_start=log_start,
        sealed_end=sealed_end,
    )
    log.epochs = [(1, 0), (2, 2)]
    log.log_end = log.high_watermark = 4
    return log


def test_a_file_gets_the_displaced_batches_and_the_note_counts_them() -> None:
    """
    Not those in the log, of acks=all, of a decided partition, or damaged.
    """
    data = encode_file_header(7, 3) + b"".join(
        (
            entry(b"in the log", 1),
            entry(b"first", 2),
            entry(b"acks=all", 3, one=False),
            entry(b"decided", 3, tp=OTHER),
            entry(b"damaged", 3)[:-1] + b"?",
            entry(b"last", 4),
        )
    )
    directory = Directory(Leftovers(SESSION, None, {TP: PartitionLeftovers("why")}))
    directory.files[3] = {TP}
    displaced = DisplacedBatches(directory, {TP: log_of()})

    parts = [part for one in displaced.promised(3, data) for part in displaced.decide(*one)]

    kept = b"".join((displaced.file_header(3), *parts))
    found = [record for each in entries(kept, 3) for record in values_of(each.batch)]
    of = displaced.kept.partitions[TP]
    assert [(2, 1, b"first"), (4, 1, b"last")] == found
    assert ("why", "t", {1: 2}, 2, 2) == (
        of.reason,
        of.topic,
        of.first_offsets,
        of.batches,
        of.records,
    )
    assert {} == displaced.deleted


def test_deleted_records_are_counted_and_in_no_file() -> None:
    """
    Nothing tells whether the log had them: the epochs below log start are forgotten.
    """
    directory = Directory(Leftovers(SESSION), files={1: {TP}})
    log = log_of(log_start=2)
    log.epochs = [(2, 2)]
    displaced = DisplacedBatches(directory, {TP: log})
    data = encode_file_header(7, 1) + entry(b"v", 1)

    parts = [part for one in displaced.promised(1, data) for part in displaced.decide(*one)]

    assert ([], {TP: 1}, ["t-0"]) == (parts, displaced.deleted, displaced.deleted_names)


def test_a_batch_that_no_note_names_was_displaced_by_another_leader() -> None:
    """
    The claim of its partition was given up before its file was read again.
    """
    directory = Directory(Leftovers(SESSION), files={1: {TP}})
    displaced = DisplacedBatches(directory, {TP: log_of()})
    data = encode_file_header(7, 1) + entry(b"v", 2)

    for one in displaced.promised(1, data):
        displaced.decide(*one)

    assert LED_ELSEWHERE == displaced.kept.partitions[TP].reason


@pytest.mark.parametrize(
    ("sealed_end", "offset", "epoch", "is_asked"),
    [(0, 1, 0, False), (2, 1, 1, False), (2, 1, 0, True), (2, 2, 0, False)],
)
def test_the_manifest_is_read_once_where_the_tail_does_not_tell(
    sealed_end: int, offset: int, epoch: int, is_asked: bool
) -> None:
    """
    Below the sealed end, of an epoch before the tail's first one.
    """
    directory = Directory(Leftovers(SESSION), files={1: {TP}})
    log = log_of(sealed_end=sealed_end)
    displaced = DisplacedBatches(directory, {TP: log})
    ((found, header),) = displaced.promised(
        1, encode_file_header(7, 1) + entry(b"v", offset, epoch=epoch)
    )

    asked = [displaced.needs_epochs(found, header) for _ in range(2)]

    assert [log if is_asked else None, None] == asked
