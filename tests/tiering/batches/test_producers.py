"""Producer state is that of a plain model of Kafka's, and survives its snapshots."""

import struct
from collections import deque
from dataclasses import dataclass, field

import crc32c
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from driftlog_tiering.batches.producers import (
    EXPIRATION_MS,
    PRODUCER_BYTES,
    SILENT_MS,
    SILENT_WINDOW,
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


def written_at(*times_ms: float, batches: int = 1) -> ProducerStates:
    """Producer n wrote so many batches at the n-th time; sequences begin at 1."""
    states = ProducerStates()
    for producer_id, at_ms in enumerate(times_ms):
        for n in range(batches):
            base = producer_id * batches + n
            states.append(producer_id, 0, n + 1, 1, base, at_ms)
    return states


def test_no_producer_is_forgotten_because_there_are_many() -> None:
    """
    A retry behind 20,000 others is a duplicate (Kafka forgets by age alone, too).
    """
    states = ProducerStates()
    for producer_id in range(20_000):
        states.append(producer_id, 0, 0, 1, producer_id, float(producer_id))
    states.age(20_000, EXPIRATION_MS)

    assert ProducerBatch(0, 0, 0, 0) == states.check(0, 0, 0, 1)


def test_a_producer_that_is_silent_for_long_is_forgotten_and_no_other() -> None:
    """
    From the moment on at which it has been silent for so long; it may then start anywhere.
    """
    states = written_at(0.0, 10.0, 20.0)

    states.age(EXPIRATION_MS - 1, EXPIRATION_MS)
    assert 3 == len(states)
    states.age(EXPIRATION_MS + 10, EXPIRATION_MS)
    assert [False, False, True] == [producer_id in states for producer_id in range(3)]
    assert states.check(0, 0, 77, 1) is None
    assert OUT_OF_ORDER == states.check(2, 0, 77, 1)


def test_a_producer_that_appends_again_is_not_forgotten() -> None:
    """
    Its newest batch counts, whether it was silent for some time or not.
    """
    states = written_at(0.0, 0.0)
    states.append(0, 0, 2, 1, 5, SILENT_MS - 1)
    states.age(SILENT_MS, EXPIRATION_MS)
    states.append(1, 0, 2, 1, 6, SILENT_MS)
    states.age(EXPIRATION_MS, EXPIRATION_MS)

    assert [True, True] == [producer_id in states for producer_id in range(2)]


def test_a_silent_producer_keeps_five_batches_and_one_that_writes_all() -> None:
    """
    As Kafka's do; behind ten minutes no client sends the others again.
    """
    states = written_at(0.0, 1.0, batches=WINDOW)
    states.age(SILENT_MS, EXPIRATION_MS)
    oldest = WINDOW - SILENT_WINDOW
    kept = ProducerBatch(oldest + 1, oldest + 1, oldest, oldest)

    assert [SILENT_WINDOW, WINDOW] == [len(batches) for _, _, batches in states.items()]
    assert OUT_OF_ORDER == states.check(0, 0, oldest, 1)
    assert kept == states.check(0, 0, oldest + 1, 1)
    states.append(0, 0, WINDOW + 1, 1, 1_000, SILENT_MS + 5)
    assert kept == states.check(0, 0, oldest + 1, 1)


def test_forgetting_goes_on_where_it_was_left() -> None:
    """
    So many at a time: an event loop goes on in between.
    """
    states = written_at(*[0.0] * 25)

    turns = 1
    while states.age(EXPIRATION_MS, EXPIRATION_MS, most=10):
        turns += 1

    assert (0, 0, 3) == (len(states), states.size_bytes, turns)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2 * int(SILENT_MS))),
        max_size=80,
    )
)
def test_what_it_takes_is_counted(steps: list[tuple[int, int, int]]) -> None:
    """
    Producers and batches, through appends, epochs, silence and forgetting.
    """
    states, now_ms, expiration_ms = ProducerStates(), 0.0, 3 * SILENT_MS
    for base, (producer_id, epoch, wait_ms) in enumerate(steps):
        states.append(producer_id, epoch, base + 1, 1, base, now_ms)
        now_ms += wait_ms
        states.age(now_ms, expiration_ms)
        batches = sum(len(batches) for _, _, batches in states.items())
        assert PRODUCER_BYTES * len(states) + 16 * batches == states.size_bytes


# ── Clocks ──


HOUR_MS = 3_600_000.0


def hourly(states: ProducerStates, from_ms: float, to_ms: float, session_id: str = "a") -> None:
    """Flushes of others, up to and at *to_ms*."""
    while from_ms < to_ms:
        states.flushed(session_id, from_ms)
        from_ms += HOUR_MS
    states.flushed(session_id, to_ms)


def test_a_snapshot_forgets_by_its_newest_flush_and_not_by_the_clock_of_an_agent() -> None:
    """
    Every agent computes the same, at any time; a time that is not known counts as new.
    """
    states = written_at(5.0, 6.0, 0.0)
    hourly(states, 5.0, EXPIRATION_MS + 5.0)
    states.settle(EXPIRATION_MS)
    assert [False, True, True] == [producer_id in states for producer_id in range(3)]
    hourly(states, EXPIRATION_MS + 5.0, 2 * EXPIRATION_MS + 5.0)
    states.settle(EXPIRATION_MS)
    assert 0 == len(states)

    unknown = written_at(5.0)
    unknown.flushed("a", 0.0)
    unknown.settle(EXPIRATION_MS)
    assert 1 == len(unknown)


def test_a_wall_clock_that_was_ahead_keeps_no_producer_for_ever() -> None:
    """
    A time behind the newest flush is taken for that.
    """
    states = written_at(900 * EXPIRATION_MS)
    states.flushed("ahead", 900 * EXPIRATION_MS)

    hourly(states, EXPIRATION_MS, EXPIRATION_MS)
    states.settle(EXPIRATION_MS)
    hourly(states, EXPIRATION_MS, 2 * EXPIRATION_MS - 1)
    states.settle(EXPIRATION_MS)
    assert 1 == len(states)
    hourly(states, 2 * EXPIRATION_MS - 1, 2 * EXPIRATION_MS)
    states.settle(EXPIRATION_MS)
    assert 0 == len(states)


@pytest.mark.parametrize("session_id", ["b", "a"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("ahead_ms", [SILENT_MS, 25 * HOUR_MS, 900 * EXPIRATION_MS])
def test_a_clock_that_is_ahead_forgets_no_producer(
    ahead_ms: float, stored: bool, session_id: str
) -> None:
    """
    One that wrote a minute ago: another leader's clock is ahead for hours and many flushes, or this
    one's is set forward.  Under another leader it keeps all its batches, too.
    """
    wall_ms, minute_ms = 1_700_000_000_000.0, 60_000.0
    states = ProducerStates()
    states.flushed("a", wall_ms)
    for n in range(WINDOW):
        states.append(1, 0, n + 1, 1, n, wall_ms)
    states.settle(EXPIRATION_MS)
    if stored:
        _, states = ProducerStates.decode(states.encode(WINDOW))
    for n in range(1, 4):
        states.flushed(session_id, wall_ms + ahead_ms + n * minute_ms)
        states.settle(EXPIRATION_MS)
    ((_, _, batches),) = states.items()

    assert len(batches) in ((WINDOW,) if session_id == "b" else (WINDOW, SILENT_WINDOW))


def test_leaders_whose_clocks_differ_take_turns_and_forget_nobody() -> None:
    """
    Each turn back makes the silent no older; each turn forward counts five minutes at most.
    """
    wall_ms = 1_700_000_000_000.0
    states = written_at(wall_ms)
    states.flushed("0", wall_ms)
    for n in range(1, 1_000):
        states.flushed(str(n), wall_ms + n * 1_000 + n % 2 * 25 * HOUR_MS)
        states.settle(EXPIRATION_MS)

    assert 1 == len(states)


def test_behind_a_clock_that_is_ahead_producers_age_as_ever() -> None:
    """
    By that clock: what stays ahead is as good as any other.
    """
    states = written_at(1_000.0)
    states.flushed("a", 1_000.0)
    hourly(states, 25 * HOUR_MS, 48 * HOUR_MS, "b")
    states.settle(EXPIRATION_MS)
    assert 1 == len(states)
    states.flushed("b", 49 * HOUR_MS)
    states.settle(EXPIRATION_MS)
    assert 0 == len(states)


def test_a_leader_counts_on_from_the_times_of_a_snapshot() -> None:
    """
    By its own clock; and remembers each for ten minutes at least, whatever wall clocks say.
    """
    wall_ms, now_ms = 1_700_000_000_000.0, 50.0
    states = written_at(wall_ms - 7, wall_ms + 7, wall_ms - 900 * EXPIRATION_MS, 0.0)
    states.remember_from(now_ms, wall_ms, EXPIRATION_MS)

    def left(at_ms: float) -> list[bool]:
        states.age(now_ms + at_ms, EXPIRATION_MS)
        return [producer_id in states for producer_id in range(4)]

    assert [True, True, True, True] == left(SILENT_MS - 1)
    assert [True, True, False, True] == left(SILENT_MS)
    assert [False, True, False, True] == left(EXPIRATION_MS - 7)
    assert [False, False, False, False] == left(EXPIRATION_MS)


# ── One under the other ──


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200), st.data())
def test_a_snapshot_under_what_followed_it_is_the_whole(
    steps: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """
    Wherever the snapshot was taken, and wherever before that the rest begins.
    """
    appends = []
    epochs: dict[int, tuple[int, int]] = {}
    for base, (producer_id, bumped) in enumerate(steps):
        epoch, sequence = epochs.get(producer_id, (0, 0))
        epoch, sequence = (epoch + 1, 0) if bumped else (epoch, sequence)
        epochs[producer_id] = (epoch, sequence + 1)
        appends.append((producer_id, epoch, sequence, 1, base, 5.0))
    offset = data.draw(st.integers(0, len(appends)))
    begins = data.draw(st.integers(0, offset))
    whole, older, later = ProducerStates(), ProducerStates(), ProducerStates()
    for states, some in ((whole, appends), (older, appends[:offset]), (later, appends[begins:])):
        for append in some:
            states.append(*append)

    for _ in later.put_under(older, offset):
        pass

    assert {i: rest for i, *rest in whole.items()} == {i: rest for i, *rest in later.items()}
    assert sorted(whole.ids()) == sorted(later.ids())
    assert [*map(whole.last_sequence, whole.ids())] == [*map(later.last_sequence, whole.ids())]
    assert None is whole.last_sequence(-1)
    assert whole.size_bytes == later.size_bytes


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


def test_a_large_snapshot_is_read() -> None:
    """
    What may be remembered may be stored.
    """
    states = ProducerStates()
    for n in range(20_000 * 3):
        states.append(n % 20_000, 0, n // 20_000, 1, n)

    _, decoded = ProducerStates.decode(states.encode(20_000 * 3))

    assert list(states.items()) == list(decoded.items())
    assert states.size_bytes == decoded.size_bytes


def test_the_stored_form_does_not_change() -> None:
    """
    Byte for byte what `encode` documents.
    """
    states = wrote((LARGEST, 2))
    states.append(1, 3, 1, 3, 102, 7_000.0)
    states.flushed("älter", 7_500.0)
    body = struct.pack(">qH", 7_500, 6) + "älter".encode()
    body += struct.pack(">qhHq", 1, 3, 2, 7_000)
    body += struct.pack(">iiq", LARGEST, 1, 100)
    body += struct.pack(">iiq", 1, 2, 102)

    data = states.encode(105)

    packed = data[24:]
    checked = struct.pack(">Iq", len(body), 105) + packed
    assert struct.pack(">4sHHI", b"DLPS", 2, 0, crc32c.crc32c(checked)) + checked == data
    assert body == zstandard.ZstdDecompressor().decompress(packed)


def stored_as_1(body: bytes, offset: int) -> bytes:
    """A snapshot as the first commits wrote it."""
    checked = struct.pack(">Iq", len(body), offset) + zstandard.ZstdCompressor().compress(body)
    return struct.pack(">4sHHI", b"DLPS", 1, 0, crc32c.crc32c(checked)) + checked


def test_version_1_is_read_and_does_not_know_when_a_producer_wrote() -> None:
    """
    It counts from when it is read: as long as any other is remembered.
    """
    body = struct.pack(">qhH", 1, 3, 2)
    body += struct.pack(">iiqi", LARGEST, 0, 100, 1)
    body += struct.pack(">iiqi", 1, 3, 102, 2)

    offset, states = ProducerStates.decode(stored_as_1(body, 105))

    assert (105, list(wrote((LARGEST, 2), (1, 3)).items())) == (offset, list(states.items()))
    assert states.check(1, 3, 4, 1) is None
    states.remember_from(50.0, 1_700_000_000_000.0, EXPIRATION_MS)
    states.age(EXPIRATION_MS + 49, EXPIRATION_MS)
    assert 1 == len(states)


def test_a_batch_of_version_1_whose_sequences_do_not_fit_its_records_is_refused() -> None:
    """
    One of the two is wrong, and the bytes do not say which.
    """
    body = struct.pack(">qhH", 1, 3, 1) + struct.pack(">iiqi", 0, 5, 100, 1)

    with pytest.raises(CorruptSnapshotError, match="does not end a batch"):
        ProducerStates.decode(stored_as_1(body, 105))


def test_another_version_is_refused_by_name() -> None:
    """
    The message says what to do.
    """
    newer = bytearray(wrote((0, 5)).encode(105))
    newer[5] = 3

    with pytest.raises(CorruptSnapshotError, match=r"version 3; this release reads 1 to 2: upgr"):
        ProducerStates.decode(bytes(newer))


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
    head = struct.pack(">4sHHI", b"DLPS", 2, 0, crc32c.crc32c(checked))

    try:
        offset, decoded = ProducerStates.decode(head + checked)
    except CorruptSnapshotError:
        return

    assert list(decoded.items()) == list(ProducerStates.decode(decoded.encode(offset))[1].items())
