"""Producer state against a plain model of Kafka's `ProducerAppendInfo`, and its snapshots."""

import struct
from collections import deque
from dataclasses import dataclass, field

import crc32c
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from driftlog_tiering.producers import (
    MAX_PRODUCERS,
    WINDOW,
    CorruptSnapshotError,
    ProducerBatch,
    ProducerStates,
    Refusal,
    last_sequence,
)

LARGEST = 2**31 - 1
OUT_OF_ORDER = Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_EPOCH = Refusal.INVALID_PRODUCER_EPOCH


# ── The model ──


@dataclass
class Entry:
    """`ProducerStateEntry`: an epoch and its newest batches."""

    epoch: int
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Model:
    """Kafka's rules, in Kafka's order: epoch, duplicate, sequence."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    def check(
        self, producer_id: int, epoch: int, first: int, records: int
    ) -> ProducerBatch | Refusal | None:
        """`UnifiedLog#analyzeAndValidateProducerState`."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if epoch < entry.epoch:
            return OLD_EPOCH
        if epoch > entry.epoch:
            return None if first == 0 else OUT_OF_ORDER
        for batch in entry.batches:
            if batch[:2] == (first, increment(first, records - 1)):
                return batch
        return None if first == increment(entry.batches[-1].last_sequence, 1) else OUT_OF_ORDER

    def append(self, producer_id: int, epoch: int, first: int, records: int, base: int) -> None:
        """`ProducerStateEntry#addBatch`, `#maybeUpdateProducerEpoch`."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self.entries[producer_id] = Entry(epoch)
        last = increment(first, records - 1)
        entry.batches.append(ProducerBatch(first, last, base, base + records - 1))


def increment(sequence: int, by: int) -> int:
    """`DefaultRecordBatch.incrementSequence`, as Java has it."""
    if sequence > LARGEST - by:
        return by - (LARGEST - sequence) - 1
    return sequence + by


class Comparison(RuleBasedStateMachine):
    """Producers that continue, repeat, skip, wrap and change epochs; both sides judge alike."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.model = Model()
        self.log_end = 0

    def produce(self, producer_id: int, epoch: int, first: int, records: int) -> None:
        """Judge a batch, and append it if it is fit."""
        expected = self.model.check(producer_id, epoch, first, records)
        assert expected == self.states.check(producer_id, epoch, first, records)
        if expected is None:
            self.model.append(producer_id, epoch, first, records, self.log_end)
            self.states.append(producer_id, epoch, first, records, self.log_end)
            self.log_end += records

    @rule(
        producer_id=st.integers(0, 3),
        epoch=st.integers(0, 2),
        first=st.one_of(st.integers(0, 5), st.integers(LARGEST - 3, LARGEST)),
        records=st.integers(1, 4),
    )
    def anything(self, producer_id: int, epoch: int, first: int, records: int) -> None:
        """Most of it is refused."""
        self.produce(producer_id, epoch, first, records)

    @rule(producer_id=st.integers(0, 3), records=st.integers(1, 4), times=st.integers(1, 70))
    def continued(self, producer_id: int, records: int, times: int) -> None:
        """What an honest producer sends next, as often as fills the window."""
        for _ in range(times):
            entry = self.model.entries.get(producer_id)
            epoch = 0 if entry is None else entry.epoch
            first = 0 if entry is None else increment(entry.batches[-1].last_sequence, 1)
            self.produce(producer_id, epoch, first, records)

    @rule(producer_id=st.integers(0, 3), back=st.integers(0, 70), longer=st.integers(-1, 1))
    def repeated(self, producer_id: int, back: int, longer: int) -> None:
        """A batch of some time ago, as it was or cut differently."""
        entry = self.model.entries.get(producer_id)
        if entry is not None:
            batch = list(entry.batches)[-1 - back % len(entry.batches)]
            records = max(1, batch.last_offset - batch.base_offset + 1 + longer)
            self.produce(producer_id, entry.epoch, batch.base_sequence, records)

    @rule(producer_id=st.integers(0, 3), first=st.integers(0, 1), by=st.integers(-1, 1))
    def bumped(self, producer_id: int, first: int, by: int) -> None:
        """Another epoch of a known producer."""
        entry = self.model.entries.get(producer_id)
        if entry is not None:
            self.produce(producer_id, entry.epoch + by, first, 1)

    @rule()
    def restored(self) -> None:
        """A snapshot is the state."""
        offset, self.states = ProducerStates.decode(self.states.encode(self.log_end))
        assert self.log_end == offset

    @invariant()
    def remembers_the_same(self) -> None:
        """Every producer with its epoch and its newest batches."""
        expected = {
            id_: (entry.epoch, tuple(entry.batches)) for id_, entry in self.model.entries.items()
        }
        assert expected == {id_: (epoch, batches) for id_, epoch, batches in self.states.items()}


TestComparison = Comparison.TestCase


# ── Rules, one by one ──


def wrote(*batches: tuple[int, int], epoch: int = 3) -> ProducerStates:
    """Producer 1 wrote (first sequence, records) …, from offset 100 on."""
    states, base = ProducerStates(), 100
    for first, records in batches:
        states.append(1, epoch, first, records, base)
        base += records
    return states


def test_an_unknown_producer_may_start_anywhere() -> None:
    """
    Its state may have been forgotten: any sequence and any epoch is taken (KIP-360).
    """
    assert wrote().check(1, 7, 12_345, 2) is None
    assert wrote((0, 1)).check(2, 0, 5, 1) is None


def test_a_duplicate_is_answered_with_its_original() -> None:
    """
    The offsets of the batch that was written, also when others followed it.
    """
    states = wrote((0, 5), (5, 2), (7, 1))

    assert ProducerBatch(5, 6, 105, 106) == states.check(1, 3, 5, 2)
    assert ProducerBatch(0, 4, 100, 104) == states.check(1, 3, 0, 5)


@pytest.mark.parametrize(
    "first, records", [(9, 1), (6, 1), (5, 1), (5, 3), (0, 7), (1, 4), (0, 1), (4, 4)]
)
def test_a_gap_or_another_cut_of_old_records_is_out_of_order(first: int, records: int) -> None:
    """
    Only exactly the same batch is a duplicate; what overlaps may hold records that are not there.
    """
    assert OUT_OF_ORDER == wrote((0, 5), (5, 2), (7, 1)).check(1, 3, first, records)


def test_sixty_four_batches_are_remembered_and_not_one_more() -> None:
    """
    design.md, step 1: Kafka's five are too few when an acknowledgement takes 250 ms.
    """
    states = wrote(*((n, 1) for n in range(65)))

    assert 64 == WINDOW
    assert ProducerBatch(1, 1, 101, 101) == states.check(1, 3, 1, 1)
    assert OUT_OF_ORDER == states.check(1, 3, 0, 1)


@pytest.mark.parametrize(
    "first, records, last", [(LARGEST, 1, LARGEST), (LARGEST, 2, 0), (LARGEST - 1, 5, 2), (0, 1, 0)]
)
def test_the_sequence_wraps_at_the_largest_int32(first: int, records: int, last: int) -> None:
    """
    2^31 − 1 is followed by 0 (`incrementSequence`), inside a batch and between two.
    """
    states = wrote((first, records))

    assert last == last_sequence(first, records)
    assert states.check(1, 3, (last + 1) % 2**31, 1) is None
    assert ProducerBatch(first, last, 100, 99 + records) == states.check(1, 3, first, records)


@given(st.integers(0, LARGEST), st.integers(1, LARGEST))
def test_last_sequences_are_those_of_java(first: int, records: int) -> None:
    """
    For every sequence and count that a batch can state.
    """
    assert increment(first, records - 1) == last_sequence(first, records)


def test_a_new_epoch_starts_at_sequence_0_and_ends_the_old_one() -> None:
    """
    45 for another start; then the old epoch is refused with 47, its duplicates too.
    """
    states = wrote((0, 5))

    assert OUT_OF_ORDER == states.check(1, 4, 5, 1)
    assert states.check(1, 4, 0, 5) is None
    states.append(1, 4, 0, 5, 105)
    assert OLD_EPOCH == states.check(1, 3, 0, 5)
    assert OLD_EPOCH == states.check(1, 3, 5, 1)
    assert ProducerBatch(0, 4, 105, 109) == states.check(1, 4, 0, 5)


def test_refusals_are_kafkas_error_codes() -> None:
    """
    OUT_OF_ORDER_SEQUENCE_NUMBER 45 and INVALID_PRODUCER_EPOCH 47, never PRODUCER_FENCED.
    """
    assert (45, 47) == (OUT_OF_ORDER.value, OLD_EPOCH.value)


# ── Forgetting ──


def test_the_producers_that_were_silent_longest_are_forgotten() -> None:
    """
    Above the limit the one whose last batch is oldest goes; it may then start anywhere.
    """
    states = ProducerStates()
    for producer_id in range(MAX_PRODUCERS):
        states.append(producer_id, 0, 0, 1, producer_id)
    states.append(0, 0, 1, 1, MAX_PRODUCERS)
    for n in range(2):
        states.append(MAX_PRODUCERS + n, 0, 0, 1, MAX_PRODUCERS + 1 + n)

    assert MAX_PRODUCERS == len(states)
    assert [True, False, False, True] == [producer_id in states for producer_id in range(4)]
    assert states.check(1, 0, 77, 1) is None
    assert OUT_OF_ORDER == states.check(0, 0, 77, 1)


def test_whoever_replays_the_log_forgets_the_same_producers() -> None:
    """
    From a snapshot in the middle and the batches since, the bytes are those of who saw it all.
    """
    whole, snapshot = ProducerStates(), b""
    appends = [(n * 7919 % (MAX_PRODUCERS + 50), n) for n in range(2 * MAX_PRODUCERS)]
    for producer_id, n in appends:
        if n == MAX_PRODUCERS:
            snapshot = whole.encode(n)
        whole.append(producer_id, 0, n, 1, n)

    base, resumed = ProducerStates.decode(snapshot)
    for producer_id, n in appends[base:]:
        resumed.append(producer_id, 0, n, 1, n)

    assert whole.encode(2 * MAX_PRODUCERS) == resumed.encode(2 * MAX_PRODUCERS)


def test_a_copy_goes_its_own_way() -> None:
    """
    What is appended to one is not in the other.
    """
    states = wrote((0, 1))
    other = states.copy()
    other.append(1, 3, 1, 1, 101)
    other.append(2, 0, 0, 1, 102)

    assert [(1, 3, (ProducerBatch(0, 0, 100, 100),))] == list(states.items())
    assert 2 == len(other)


# ── Snapshots ──


@st.composite
def histories(draw: st.DrawFn) -> tuple[ProducerStates, int]:
    """States of up to 40 batches, and an offset behind them."""
    states, base = ProducerStates(), draw(st.integers(0, 2**60))
    for _ in range(draw(st.integers(0, 40))):
        records = draw(st.integers(1, 2**31 - 1))
        states.append(
            draw(st.sampled_from([0, 1, 2, 2**63 - 1])),
            draw(st.sampled_from([0, 1, 2**15 - 1])),
            draw(st.integers(0, LARGEST)),
            records,
            base,
        )
        base += records + draw(st.integers(0, 10))
    return states, base


@given(histories())
def test_a_snapshot_comes_back_as_it_was(made: tuple[ProducerStates, int]) -> None:
    """
    Offset, producers in the order in which they are forgotten, epochs and batches.
    """
    states, offset = made

    at, decoded = ProducerStates.decode(states.encode(offset))

    assert offset == at
    assert list(states.items()) == list(decoded.items())


def test_the_largest_snapshot_is_read() -> None:
    """
    Every producer with a full window: what may be remembered may be stored.
    """
    states = ProducerStates()
    for n in range(MAX_PRODUCERS * WINDOW):
        states.append(n % MAX_PRODUCERS, 0, n // MAX_PRODUCERS, 1, n)

    _, decoded = ProducerStates.decode(states.encode(MAX_PRODUCERS * WINDOW))

    assert list(states.items()) == list(decoded.items())


def test_the_stored_form_does_not_change() -> None:
    """
    Byte for byte what `encode` documents.
    """
    states = wrote((LARGEST, 2), (1, 3))
    body = struct.pack(">qhH", 1, 3, 2)
    body += struct.pack(">iiqi", LARGEST, 0, 100, 1)
    body += struct.pack(">iiqi", 1, 3, 102, 2)

    data = states.encode(105)

    packed = data[24:]
    checked = struct.pack(">Iq", len(body), 105) + packed
    assert struct.pack(">4sHHI", b"DLPS", 1, 0, crc32c.crc32c(checked)) + checked == data
    assert body == zstandard.ZstdDecompressor().decompress(packed)


def test_no_flipped_bit_is_believed() -> None:
    """
    In no byte, the offset included.
    """
    good = wrote((0, 5), (5, 2)).encode(107)
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            with pytest.raises(CorruptSnapshotError):
                ProducerStates.decode(bytes(bad))


def test_a_snapshot_that_is_cut_short_is_refused() -> None:
    """
    At every length, and with a byte too many.
    """
    good = wrote((0, 5), (5, 2)).encode(107)
    for end in range(len(good)):
        with pytest.raises(CorruptSnapshotError):
            ProducerStates.decode(good[:end])
    with pytest.raises(CorruptSnapshotError):
        ProducerStates.decode(good + b"\0")


@given(st.integers(0, 60), st.binary(max_size=16), st.integers(0, 16))
def test_a_body_that_contradicts_itself_is_refused_whatever_its_checksum(
    at: int, inserted: bytes, removed: int
) -> None:
    """
    Behind a right CRC the body is damaged anywhere: it raises, or is a state that can be stored.
    """
    states = wrote((0, 5), (5, 2))
    states.append(2, 0, 0, 1, 107)
    body = bytearray(zstandard.ZstdDecompressor().decompress(states.encode(108)[24:]))
    body[at : at + removed] = inserted
    packed = zstandard.ZstdCompressor().compress(bytes(body))
    checked = struct.pack(">Iq", len(body), 108) + packed
    head = struct.pack(">4sHHI", b"DLPS", 1, 0, crc32c.crc32c(checked))

    try:
        offset, decoded = ProducerStates.decode(head + checked)
    except CorruptSnapshotError:
        return

    assert list(decoded.items()) == list(ProducerStates.decode(decoded.encode(offset))[1].items())
