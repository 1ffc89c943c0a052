"""Leftovers that go elsewhere: what was answered to acks=1, and whose place in the log is taken.

    entry of an old directory ──▶ is it in the log?  ──▶ yes: nothing to do
                                       │ no
                                       ▼
      with a number of its own ──▶ the present leader ──▶ at a new offset, once

*In the log?*  A batch of leader epoch e is, exactly if its offset is below the end of e: the start
of the next epoch.  An epoch that is over gets no more batches, so its end never changes; it is
written down all the same before anything is appended, because a leader that has forgotten old
epochs answers with its log start.

*Once.*  What is appended carries a producer id that belongs to the directory, and the n-th batch
of a partition always has the same producer epoch and sequence: `WINDOW` batches to an epoch,
sequences from 0 in each.  A repeat is then a duplicate for whoever leads: batches of the newest
epoch are in its dedup window, all `WINDOW` of them, and an older epoch is refused
(INVALID_PRODUCER_EPOCH), which says that the newer one began, and so that every batch of the older
one had been answered.  Leaders remember the directory's producer id until it has appended nothing
for `producer.id.expiration.ms`, a day: a machine that is away for longer, in the middle of this,
appends its newest epoch again.  Which is the n-th follows from the directory's files and its note
alone.
Files of a dead session do not change, but that the power may take what was not synced; of one
partition that is all behind a certain batch, for acks=1 is refused behind one that could not be
synced (`buffer`), and so those before it keep their numbers.  (A disk that damages a promised batch
after a start has appended some shifts the numbers of those behind it: as many of them as it has
damaged may be taken for repeats.)

A batch that had a producer id of its own loses it.  Kafka's idempotent producers send acks=all and
nothing else (ProducerConfig refuses the rest), so nobody relies on it; and the present leader may
have taken later sequences of that producer, and would refuse these for ever.

The note, ``leftovers.json`` in the session's directory (`stored_json`'s envelope, version 1):

    producer_id   -1: nothing was appended yet
    partitions    of what can no longer be appended at its old offset, from the first start on
                  that found it so: no later start does, whoever leads by then
        topic_id, partition
        ends      null: nobody was asked yet; [[leader epoch, end offset], …]: of these epochs
                  what is at or beyond the end is not in the log
        refused   [[leader epoch, base offset], …]: batches that the leader will not take; they
                  have no number
        stopped   why nothing more of it can be appended, or ""
        done      all of it is appended or refused

Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from driftlog_agents.log.local.buffer_format import Entry
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import BatchHeader, fill_header
from driftlog_tiering.batches.producers import WINDOW
from driftlog_tiering.formats.stored_json import decode_json, encode_json, integer

NO_PRODUCER_ID: Final = -1
MAX_REFUSED: Final = 100
"""Batches of a partition that are passed over; then it stops: each costs a write of the note."""

_KIND: Final = "driftlog.leftovers"
_VERSION: Final = 1
_LAST_EPOCH: Final = 2**15 - 1
_SEQUENCES: Final = 2**31


@dataclass(slots=True)
class Leftover:
    """Of one partition, in one directory."""

    ends: dict[int, int] | None = None
    refused: set[tuple[int, int]] = field(default_factory=set)
    stopped: str = ""
    done: bool = False

    def may_have(self, header: BatchHeader) -> bool:
        """Whether the batch has no place at its old offset, as far as is known."""
        if self.ends is None:
            return True
        end = self.ends.get(header.partition_leader_epoch)
        return end is not None and header.base_offset >= end

    def has(self, entry: Entry, header: BatchHeader) -> bool:
        """Whether the entry is to be appended elsewhere."""
        assert self.ends is not None, "nobody was asked where its epochs ended"
        if self.stopped or not entry.acks_one or not self.may_have(header):
            return False
        return (header.partition_leader_epoch, header.base_offset) not in self.refused

    @property
    def incomplete(self) -> bool:
        """Whether something of it is in no log: a person must look at the directory."""
        return bool(self.refused or self.stopped)


@dataclass(slots=True)
class Note:
    """What stands in a directory about its leftovers."""

    producer_id: int = NO_PRODUCER_ID
    partitions: dict[TopicPartition, Leftover] = field(default_factory=dict)

    @property
    def incomplete(self) -> bool:
        """Whether something in the directory is in no log."""
        return any(leftover.incomplete for leftover in self.partitions.values())

    def encode(self) -> bytes:
        """For the session's directory."""
        partitions = [
            {
                "topic_id": str(tp.topic_id),
                "partition": tp.partition,
                "ends": None if of.ends is None else sorted(of.ends.items()),
                "refused": sorted(of.refused),
                "stopped": of.stopped,
                "done": of.done,
            }
            for tp, of in sorted(self.partitions.items())
        ]
        fields = {"producer_id": self.producer_id, "partitions": partitions}
        return encode_json(_KIND, _VERSION, fields)


def decode_note(data: bytes) -> Note:
    """Invert `Note.encode`.

    Raises:
        CorruptError: damaged, or of a newer release.
    """
    try:
        fields = decode_json(_KIND, _VERSION, data)
        note = Note(integer(fields, "producer_id", NO_PRODUCER_ID))
        for each in fields["partitions"]:
            tp = TopicPartition(UUID(each["topic_id"]), integer(each, "partition"))
            ends = each["ends"]
            note.partitions[tp] = Leftover(
                None if ends is None else dict(_pairs(ends)),
                set(_pairs(each["refused"])),
                str(each["stopped"]),
                bool(each["done"]),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"a note on leftovers: {error!r}") from error
    return note


def _pairs(stored: Any) -> Iterator[tuple[int, int]]:
    for first, second in stored:
        if type(first) is not int or type(second) is not int:
            raise ValueError(f"{first!r}, {second!r}: not two integers")
        yield first, second


class SequencePlan:
    """Producer epochs and sequences of one partition's leftovers, in their order.

        first  ──▶ (epoch 0, sequence 0) ──▶ … ──▶ the 65th: (1, 0) ──▶ …

    `number` those that are to be appended, in turn; `next` the following one only when the present
    one is answered, or `known` to be there.
    """

    __slots__ = ("_index", "_known", "_sequence")

    def __init__(self) -> None:
        self._index = 0
        self._sequence = 0
        self._known = 0

    @property
    def exhausted(self) -> bool:
        """There are no more numbers (2 million batches)."""
        return self._index // WINDOW > _LAST_EPOCH

    @property
    def is_known(self) -> bool:
        """Whether the present one is known to be in the log: it is not sent."""
        return self._index < self._known

    def number(self) -> tuple[int, int]:
        """(producer epoch, base sequence) of the present one."""
        assert not self.exhausted
        return self._index // WINDOW, self._sequence

    def next(self, records: int) -> None:
        """The present one, of so many records, is in the log."""
        self._index += 1
        self._sequence = (self._sequence + records) % _SEQUENCES if self._index % WINDOW else 0

    def known(self) -> None:
        """The leader has seen a later producer epoch: all of this one are in the log."""
        self._known = (self._index // WINDOW + 1) * WINDOW


def renumbered(
    entry: Entry, header: BatchHeader, producer_id: int, number: tuple[int, int]
) -> bytearray:
    """The entry's batch as a producer sends it: the same records, from offset 0 on."""
    batch = bytearray(entry.batch)
    producer_epoch, base_sequence = number
    fill_header(
        batch,
        base_offset=0,
        last_offset_delta=header.last_offset_delta,
        record_count=header.record_count,
        attributes=header.attributes,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return batch
