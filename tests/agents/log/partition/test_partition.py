"""A led partition gives the right offsets, commits in order, and tells each waiting request."""

from array import array
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_tiering.batches.producers import ProducerBatch, Refusal
from driftlog_tiering.formats.manifest import LeaderEpoch


class Caller:
    """A request that waits, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def committed(self, log: PartitionLog) -> None:
        self.told.append("committed")

    def synced(self, log: PartitionLog) -> None:
        self.told.append("synced")

    def unsynced(self, log: PartitionLog) -> None:
        pass

    def lost(self, log: PartitionLog) -> None:
        self.told.append("lost")


def make_log(start: int = 0, *, epoch: int = 5) -> PartitionLog:
    """A partition all of which is sealed, up to *start*."""
    return PartitionLog(
        topic="t",
        topic_id=UUID(int=1),
        partition=2,
        leader_epoch=epoch,
        log_start=0,
        sealed_end=start,
    )


def flushed(base: int, *counts: int, size_bytes: int = 100) -> TailSlice:
    """A flush that holds batches of so many records each, behind one batch of another partition."""
    bases = [base + sum(counts[:n]) for n in range(len(counts))]
    each = size_bytes // len(counts)
    data = FlushBatches(
        session_id="s",
        base_offsets=array("q", [999, *bases]),
        lengths=array("i", [each] * (len(counts) + 1)),
        positions=array("i", range(0, each * (len(counts) + 1), each)),
        max_timestamps_ms=array("q", [0] * (len(counts) + 1)),
    )
    end = base + sum(counts)
    return TailSlice(base, end, data, 1, len(counts), size_bytes, StoredAt("flush", 0))


def append(log: PartitionLog, records: int) -> int:
    """One batch without a producer."""
    return log.append(records, -1, -1, -1, 0.0)


# ── Admission ──


def test_offsets_are_dense_from_the_log_end_on() -> None:
    """
    Whatever is committed meanwhile, a batch starts where the last one ends.
    """
    log = make_log(10)

    assert [10, 13, 14] == [append(log, 3), append(log, 1), append(log, 5)]
    log.commit(flushed(10, 3), 0)
    assert (19, 19, 13, 10) == (append(log, 1), log.log_end - 1, log.high_watermark, log.sealed_end)


def test_a_batch_without_a_producer_is_always_fit_and_not_remembered() -> None:
    """
    Producer id −1 repeats nothing.
    """
    log = make_log()
    append(log, 3)

    assert log.judge(-1, -1, -1, 3) is None
    assert 0 == len(log.producers)


def test_an_admitted_batch_is_known_before_it_is_committed() -> None:
    """
    Its repeat is a duplicate at once, and its successor is fit: requests are pipelined.
    """
    log = make_log(100)
    log.append(3, 7, 0, 0, 0.0)

    assert ProducerBatch(0, 2, 100, 102) == log.judge(7, 0, 0, 3)
    assert log.judge(7, 0, 3, 1) is None
    assert Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER == log.judge(7, 0, 5, 1)
    assert Refusal.INVALID_PRODUCER_EPOCH == log.judge(7, -1, 3, 1)


# ── Commits ──


def test_the_high_watermark_moves_over_committed_flushes_in_order() -> None:
    """
    What is admitted is not visible; each flush makes its own batches so.
    """
    log = make_log()
    append(log, 10)

    moves = []
    for tail in (flushed(0, 4), flushed(4, 1, 1), flushed(6, 4)):
        log.commit(tail, 0)
        moves.append(log.high_watermark)

    assert [4, 6, 10] == moves
    assert (300, 4) == (log.unsealed_bytes, log.unsealed_batches)


@pytest.mark.parametrize("base, count", [(0, 4), (3, 1), (5, 1), (4, 7)])
def test_a_flush_out_of_order_is_a_bug_that_stops_the_agent(base: int, count: int) -> None:
    """
    Again, overlapping, with a gap, or of what nobody admitted: asserted before anything moves.
    """
    log = make_log()
    append(log, 10)
    log.commit(flushed(0, 4), 0)

    with pytest.raises(AssertionError):
        log.commit(flushed(base, count), 0)

    assert (4, 1) == (log.high_watermark, len(log.slices))


def test_takeover_restores_slices_beyond_what_is_admitted() -> None:
    """
    The log end is at least the high watermark; a slice may begin below the sealed end.
    """
    log = make_log(5)
    log.restore(flushed(3, 4), 1.0)
    log.restore(flushed(7, 2), 2.0)

    assert (9, 9, 4.0) == (log.high_watermark, log.log_end, log.unsealed_age_ms(5.0, 0.0))
    with pytest.raises(AssertionError):
        log.restore(flushed(10, 1), 3.0)


# ── Who waits ──


def test_a_producer_is_answered_when_its_last_record_is_committed() -> None:
    """
    Not for a part of its batch, in the order of admission, and once.
    """
    log = make_log()
    first, second, third = Caller(), Caller(), Caller()
    for caller in (first, second, third):
        log.waiters.append((append(log, 2) + 2, caller))

    assert [] == log.commit(flushed(0, 1), 0)
    assert [first, second] == log.commit(flushed(1, 3), 0)
    assert [third] == log.commit(flushed(4, 2), 0)
    assert not log.waiters


def test_a_duplicate_is_answered_with_its_original_and_not_before() -> None:
    """
    In any order; what waits for later records goes on waiting.
    """
    log = make_log()
    original, early, late = Caller(), Caller(), Caller()
    log.waiters.append((append(log, 2) + 2, original))
    append(log, 1)
    assert [None, None] == [log.wait_for_commit(3, late), log.wait_for_commit(2, early)]

    answered = []
    for base in range(3):
        producers = log.commit(flushed(base, 1), 0)
        answered.append((producers, log.committed_duplicates()))

    assert [([], []), ([original], [early]), ([], [late])] == answered
    assert not log.waiting_duplicates


def test_only_the_newest_duplicate_of_a_batch_waits() -> None:
    """
    The one before is handed back to be told: what waits is no more than what was appended.
    """
    log = make_log()
    append(log, 2)
    callers = [Caller() for _ in range(1_000)]

    displaced = [log.wait_for_commit(2, caller) for caller in callers]

    assert [None, *callers[:-1]] == displaced
    log.commit(flushed(0, 2), 0)
    assert callers[-1:] == log.committed_duplicates()


def test_everyone_who_waits_hears_that_the_partition_is_not_led_any_more() -> None:
    """
    Producers, duplicates and fetches, each once; nothing is left to be told later.
    """
    log = make_log()
    producer, duplicate, fetch = Caller(), Caller(), Caller()
    log.waiters.append((append(log, 1) + 1, producer))
    log.wait_for_commit(1, duplicate)
    log.waiting_fetches[fetch] = None

    assert [producer, duplicate, fetch] == log.close()
    assert (State.CLOSED, []) == (log.state, log.close())


# ── The tail ──


def tail_of_three() -> PartitionLog:
    """[10, 20), [20, 21), [21, 30) behind a sealed end of 10."""
    log = make_log(10)
    for base, counts in ((10, (4, 6)), (20, (1,)), (21, (2, 3, 4))):
        log.restore(flushed(base, *counts, size_bytes=100 * len(counts)), float(base))
    return log


def test_every_committed_offset_is_found_in_its_slice_and_batch() -> None:
    """
    And nothing below the tail nor above the high watermark.
    """
    log = tail_of_three()
    append(log, 5)
    batches = {10: range(10, 14), 14: range(14, 20), 20: range(20, 21)}
    batches |= {21: range(21, 23), 23: range(23, 26), 26: range(26, 30)}

    for base, offsets in batches.items():
        for offset in offsets:
            tail = log.find(offset)
            assert tail is not None
            assert tail.base <= offset < tail.end
            index = tail.data.index_of(offset, tail.first, tail.count)
            assert isinstance(tail.data, FlushBatches)
            assert base == tail.data.base_offsets[index]
    assert [None, None, None] == [log.find(offset) for offset in (9, 30, 34)]
    assert [0, 1, 2] == [log.index_of(tail) for tail in log.slices]


def test_an_empty_tail_holds_nothing() -> None:
    """
    Neither below nor at its end.
    """
    assert [None, None] == [make_log(10).find(offset) for offset in (9, 10)]


def test_bytes_from_an_offset_are_those_of_its_batch_and_of_all_behind() -> None:
    """
    None at the end; a lot for what is sealed, so that no fetch waits for more of it.
    """
    log = tail_of_three()

    expected = [1 << 31, 600, 500, 400, 300, 100, 0, 0]
    assert expected == [log.bytes_from(offset) for offset in (9, 10, 19, 20, 21, 29, 30, 40)]
    assert (1 << 31, 0) == (make_log(10).bytes_from(9), make_log(10).bytes_from(10))
    log.seal(20)
    assert [1 << 31, 400, 100] == [log.bytes_from(offset) for offset in (19, 20, 29)]
    log.seal(30)
    log.restore(flushed(30, 1, 1), 0.0)
    assert [100, 50, 0] == [log.bytes_from(offset) for offset in (30, 31, 32)]


def test_bytes_of_very_many_small_flushes_all_count() -> None:
    """
    A fetch that waits for more than they have together waits no longer for that.
    """
    log = make_log(10)
    for base in range(10, 1_010):
        log.restore(flushed(base, 1, size_bytes=7), 0.0)

    assert [7_000, 3_500, 7] == [log.bytes_from(offset) for offset in (10, 510, 1_009)]


def test_sealing_drops_the_slices_that_are_wholly_sealed() -> None:
    """
    One that is cut by the sealed end stays, whole, with its bytes, and as old as it was.
    """
    log = tail_of_three()
    first, second, third = log.slices

    assert [first] == log.seal(20)
    assert ([second, third], 400, 4) == (log.slices, log.unsealed_bytes, log.unsealed_batches)
    assert [second] == log.seal(25)
    assert (25, 59.0) == (log.sealed_end, log.unsealed_age_ms(80.0, 0.0))
    assert (None, third) == (log.find(24), log.find(25))
    assert (1 << 31, 200) == (log.bytes_from(24), log.bytes_from(25))
    assert 0 == log.index_of(third)
    assert [third] == log.seal(30)
    assert (0.0, 0, 0) == (log.unsealed_age_ms(90, 90), log.unsealed_bytes, log.unsealed_batches)


@pytest.mark.parametrize("end", [9, 31])
def test_the_sealed_end_stays_between_itself_and_the_high_watermark(end: int) -> None:
    """
    Never back, and never over what is not committed.
    """
    log = tail_of_three()
    append(log, 5)

    with pytest.raises(AssertionError):
        log.seal(end)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans()), max_size=40))
def test_the_tail_agrees_with_a_list_of_offsets(steps: list[tuple[int, int, bool]]) -> None:
    """
    Appends, commits of some of them and seals in any order: every offset is in the one place
    where a plain list has it.
    """
    log = make_log()
    for records, batches, sealing in steps:
        append(log, records)
        counts = [1] * min(batches, log.log_end - log.high_watermark)
        if counts:
            log.commit(flushed(log.high_watermark, *counts, size_bytes=len(counts)), 0)
        if sealing:
            log.seal((log.sealed_end + log.high_watermark) // 2)
        assert log.log_start <= log.sealed_end <= log.high_watermark <= log.log_end
        base = log.slices[0].base if log.slices else log.high_watermark
        assert base <= log.sealed_end or not log.slices
        assert log.high_watermark - base == log.unsealed_bytes == log.unsealed_batches
        for offset in range(log.log_end + 1):
            tail = log.find(offset)
            assert (tail is not None) == (log.sealed_end <= offset < log.high_watermark)
            assert tail is None or tail.base <= offset < tail.end


# ── Epochs ──


def with_epochs(*epochs: tuple[int, int], leader_epoch: int, end: int) -> PartitionLog:
    """A log of (epoch, start offset) …, committed up to *end*."""
    log = make_log(end, epoch=leader_epoch)
    for epoch, start in epochs:
        log.start_epoch(epoch, start)
    return log


@pytest.mark.parametrize(
    "requested, expected",
    [
        pytest.param(9, (9, 100), id="the latest: the end of the log"),
        pytest.param(10, (-1, -1), id="above the latest: undefined"),
        pytest.param(2, (2, 40), id="one that was: where the next begins"),
        pytest.param(5, (5, 70), id="the last but one"),
        pytest.param(3, (2, 40), id="between two: the lower one, where the higher begins"),
        pytest.param(8, (5, 70), id="between the last two"),
        pytest.param(1, (1, 10), id="below the first: itself, where the first begins"),
        pytest.param(0, (0, 10), id="zero"),
        pytest.param(-1, (-1, -1), id="undefined"),
    ],
)
def test_an_epoch_ends_where_kafka_says(requested: int, expected: tuple[int, int]) -> None:
    """
    `LeaderEpochFileCache#endOffsetFor`, on epochs 2, 5 and 9 that begin at 10, 40 and 70.
    """
    log = with_epochs((2, 10), (5, 40), (9, 70), leader_epoch=9, end=100)

    assert expected == log.end_offset_for_epoch(requested)


@pytest.mark.parametrize("log_start", range(0, 101, 5))
@pytest.mark.parametrize("requested", range(-1, 12))
def test_epochs_of_deleted_records_are_forgotten_as_kafka_forgets_them(
    log_start: int, requested: int
) -> None:
    """
    `LeaderEpochFileCache#truncateFromStart`: the epoch that holds log start begins there, and
    those before it were never.
    """
    epochs = [(2, 10), (5, 40), (9, 70)]
    log = with_epochs(*epochs, leader_epoch=9, end=100)
    log.log_start = log_start
    below = [epoch for epoch, start in epochs if start <= log_start]
    left = [(epoch, start) for epoch, start in epochs if start > log_start]
    forgetful = with_epochs(
        *[(epoch, log_start) for epoch in below[-1:]], *left, leader_epoch=9, end=100
    )

    assert forgetful.end_offset_for_epoch(requested) == log.end_offset_for_epoch(requested)


def test_an_epoch_does_not_end_above_the_high_watermark() -> None:
    """
    What is admitted and not committed may yet be lost: no consumer hears of it.
    """
    log = with_epochs((2, 10), (9, 70), leader_epoch=9, end=60)
    append(log, 40)

    assert ((9, 60), (2, 60)) == (log.end_offset_for_epoch(9), log.end_offset_for_epoch(2))


def test_an_empty_log_knows_its_own_epoch_only() -> None:
    """
    (epoch, 0) for it, undefined for all others.
    """
    log = make_log(0, epoch=3)
    log.start_epoch(3, 0)

    answers = [log.end_offset_for_epoch(epoch) for epoch in (2, 3, 4)]
    assert [(2, 0), (3, 0), (-1, -1)] == answers


def test_an_epoch_in_which_nothing_was_written_is_forgotten() -> None:
    """
    As `LeaderEpochFileCache#assign` does: two claims without a batch between them.
    """
    log = with_epochs((1, 0), (2, 10), (3, 10), (4, 10), leader_epoch=4, end=10)
    log.start_epoch(4, 15)

    assert [(1, 0), (4, 10)] == log.epochs
    assert (1, 10) == log.end_offset_for_epoch(3)


def test_leader_epochs_never_go_back() -> None:
    """
    An older epoch behind a newer one is a bug in takeover.
    """
    log = with_epochs((4, 10), leader_epoch=4, end=20)

    with pytest.raises(AssertionError):
        log.start_epoch(3, 15)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=12))
def test_epochs_agree_with_the_records(claims: list[tuple[int, int]]) -> None:
    """
    Claims of rising epochs, each with some records: every record has the epoch it was written
    in, and an epoch ends where the first record of a higher one stands.
    """
    log = make_log(0, epoch=0)
    written: list[int] = []
    epoch = -1
    for step, records in claims:
        epoch += step
        log.leader_epoch = epoch
        log.start_epoch(epoch, log.log_end)
        if records:
            base = append(log, records)
            log.commit(flushed(base, records), 0)
        written += [epoch] * records

    assert written == [log.epoch_at(offset) for offset in range(len(written))]
    for requested in range(epoch + 1):
        _, end = log.end_offset_for_epoch(requested)
        assert sum(1 for e in written if e <= requested) == end
    below = {e for e in written if e < epoch}
    for requested in below:
        assert requested == log.end_offset_for_epoch(requested)[0]


def test_the_epochs_of_the_sealed_part_come_below_those_of_the_tail() -> None:
    """
    An epoch that both have began in the sealed part.
    """
    log = make_log(epoch=9)
    log.epochs = [(4, 30), (6, 40)]

    log.put_epochs_below([LeaderEpoch(1, 0), LeaderEpoch(4, 20)])
    log.put_epochs_below([])

    assert [(1, 0), (4, 20), (6, 40)] == log.epochs
