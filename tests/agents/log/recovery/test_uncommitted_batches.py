"""Leftovers that go elsewhere: which of a directory's entries they are, their numbers, the note."""

import random
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from driftlog_agents.log.local.buffer_format import Entry
from driftlog_agents.log.recovery.uncommitted_batches import (
    Leftover,
    Note,
    SequencePlan,
    decode_note,
    renumbered,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import check_batch, patch_offset_and_epoch
from driftlog_tiering.batches.producers import WINDOW, ProducerBatch, ProducerStates, Refusal
from tests.agents.log.lives import make_batch, values_of

TP = TopicPartition(UUID(int=1), 0)

ends = st.none() | st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=4)
leftovers = st.builds(
    Leftover,
    ends=ends,
    refused=st.sets(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=3),
    stopped=st.text(max_size=5),
    done=st.booleans(),
)
notes = st.builds(
    Note,
    producer_id=st.integers(-1, 2**63 - 1),
    partitions=st.dictionaries(
        st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1)), leftovers, max_size=4
    ),
)


def entry(
    *values: bytes, offset: int = 0, epoch: int = 0, acks_one: bool = True, producer: int = -1
) -> Entry:
    """One of a buffer file."""
    batch = make_batch(
        values,
        producer=producer,
        epoch=3 if producer >= 0 else -1,
        sequence=9 if producer >= 0 else -1,
    )
    patch_offset_and_epoch(batch, offset, epoch)
    return Entry(TP.topic_id, TP.partition, acks_one, memoryview(batch))


def has(leftover: Leftover, of: Entry) -> bool:
    return leftover.has(of, check_batch(of.batch, from_client=False))


# ── The note ──


@given(notes)
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    """
    Whatever is in it.
    """
    assert note == decode_note(note.encode())


@given(notes, st.data())
def test_a_damaged_note_is_none(note: Note, data: st.DataObject) -> None:
    """
    Cut off, or with a byte that is another: nothing is appended by it.
    """
    whole = bytearray(note.encode())
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:]
    flipped[at] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(whole[:at]), bytes(flipped)):
        with pytest.raises(CorruptError):
            decode_note(broken)


def test_a_note_of_a_newer_release_is_not_read() -> None:
    """
    It may say what this one does not know.
    """
    newer = Note().encode().replace(b'"format_version":1', b'"format_version":2')

    with pytest.raises(CorruptError):
        decode_note(newer)


# ── Which ──


def test_what_is_at_or_beyond_the_end_of_its_epoch_is_not_in_the_log() -> None:
    """
    And was promised if it was acks=1; of epochs that nobody asked about all is in the log.
    """
    leftover = Leftover(ends={0: 5, 2: 9})

    assert [False, True, True, False, False, True] == [
        has(leftover, entry(b"x", offset=4)),
        has(leftover, entry(b"x", offset=5)),
        has(leftover, entry(b"x", offset=50)),
        has(leftover, entry(b"x", offset=5, acks_one=False)),
        has(leftover, entry(b"x", offset=50, epoch=1)),
        has(leftover, entry(b"x", offset=9, epoch=2)),
    ]


def test_what_was_refused_is_passed_over_and_what_is_stopped_is_over() -> None:
    """
    A person finds both in the note.
    """
    refused = Leftover(ends={0: 0}, refused={(0, 5)})
    stopped = Leftover(ends={0: 0}, stopped="its files have changed")

    assert [False, True] == [has(refused, entry(b"x", offset=n)) for n in (5, 6)]
    assert not has(stopped, entry(b"x", offset=6))
    assert refused.incomplete
    assert stopped.incomplete
    assert Note(1, {TP: refused}).incomplete
    assert not Note(1, {TP: Leftover(ends={})}).incomplete


def test_a_renumbered_batch_is_the_same_records_of_another_producer() -> None:
    """
    From offset 0 on, as a producer sends it; what it was numbered by before is gone.
    """
    old = entry(b"a", b"b", offset=70, epoch=4, producer=77)

    batch = renumbered(old, check_batch(old.batch, from_client=False), 5, (2, 10))

    header = check_batch(batch, from_client=True)
    assert (5, 2, 10) == (header.producer_id, header.producer_epoch, header.base_sequence)
    assert [(0, -1, b"a"), (1, -1, b"b")] == values_of(batch)
    assert [(70, 4, b"a"), (71, 4, b"b")] == values_of(old.batch)


# ── Once ──


class Leader:
    """What a leader does with batches of one producer."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0
        self.log: list[int] = []
        """Which batches it has, in order."""

    def append(self, which: int, number: tuple[int, int], records: int) -> bool:
        """False: it says that the producer epoch is an old one."""
        verdict = self.states.check(5, *number, records)
        if verdict is Refusal.INVALID_PRODUCER_EPOCH:
            return False
        assert not isinstance(verdict, Refusal), "out of order"
        if not isinstance(verdict, ProducerBatch):
            self.states.append(5, *number, records, self.end)
            self.end += records
            self.log.append(which)
        return True


def attempt(leader: Leader, sizes: Sequence[int], until: int) -> int:
    """Append batches of so many records, from the first on; the agent dies after *until* requests.

    Returns how many requests it sent.
    """
    numbering = SequencePlan()
    sent = 0
    for which, records in enumerate(sizes):
        while not numbering.is_known:
            if sent == until:
                return sent
            sent += 1
            if leader.append(which, numbering.number(), records):
                break
            numbering.known()
        numbering.next(records)
    return sent


@example([1] * 300, [290])
@example([2] * 193, [10, 64, 65, 200])
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=400),
    st.lists(st.integers(0, 500), max_size=4),
)
def test_each_batch_is_in_the_log_once_however_often_it_is_begun_again(
    sizes: list[int], crashes: list[int]
) -> None:
    """
    With a window of 64 batches, and a leader that never says how far it is.
    """
    leader = Leader()
    for until in crashes:
        attempt(leader, sizes, until)
    before = len(leader.log)

    sent = attempt(leader, sizes, 10**9)

    assert list(range(len(sizes))) == leader.log
    assert sent <= before // WINDOW + WINDOW + len(sizes) - before + 1


def test_sequences_wrap_and_numbers_end() -> None:
    """
    2^31 − 1 is followed by 0 (`DefaultRecordBatch.incrementSequence`), the last producer epoch by
    nothing.
    """
    numbering = SequencePlan()
    numbering.next(2**31 - 2)
    assert (0, 2**31 - 2) == numbering.number()
    numbering.next(3)
    assert (0, 1) == numbering.number()
    for _ in range(2, WINDOW):
        numbering.next(1)
    assert (1, 0) == numbering.number()
    rng = random.Random(1)
    for _ in range(WINDOW * 32_767 - 1):
        numbering.next(rng.randrange(1, 3))
    assert (32_767, False) == (numbering.number()[0], numbering.exhausted)
    numbering.next(1)
    assert numbering.exhausted
