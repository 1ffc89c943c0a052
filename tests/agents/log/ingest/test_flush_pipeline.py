"""The flush pipeline: when it cuts, uploads, hedges, repeats, commits and stops."""

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftlog_agents.foundation.rate_limit import TokenBucket
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.flush_effects import (
    Abandon,
    Commit,
    Cut,
    Effect,
    Expired,
    Flush,
    FlushStage,
    Publish,
    SessionFenced,
    Upload,
)
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline, FlushSettings
from driftlog_agents.log.partition.batch import Batch, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.grace import Grace

TOPIC = UUID(int=1)


def make_log(partition: int = 0) -> PartitionLog:
    """A partition at offset 0."""
    return PartitionLog(topic="t", topic_id=TOPIC, partition=partition, leader_epoch=0)


def make_batch(length: int = 100, offset: int = 0, memory: bytearray | None = None) -> Batch:
    """One record, in a frame of its own or in *memory*; nobody looks at its bytes here."""
    view = memoryview(bytearray(length) if memory is None else memory)[:length]
    return Batch(view, length, offset, 0, (1, 0, -1, -1, -1, 0, 0))


class Pipe:
    """A pipeline and its clock; remembers what it asked for."""

    def __init__(self, **changed: float) -> None:
        self.settings = FlushSettings(**changed)  # type: ignore[arg-type]  # all are numbers
        self.machine = FlushPipeline(self.settings, Random(1))
        self.log = make_log()
        self.now_ms = 10_000.0

    def append(self, length: int = 100, source: ConnectionActivity | None = None) -> bool:
        """One batch, now."""
        return self.machine.append(self.log, make_batch(length), source, self.now_ms)

    def at(self, ms: float) -> list[Effect]:
        """Tick *ms* after the beginning."""
        self.now_ms = 10_000.0 + ms
        return self.machine.tick(self.now_ms)

    def deadline(self) -> float | None:
        """When to tick next, in ms after the beginning."""
        at = self.machine.deadline_ms(self.now_ms)
        return None if at is None else at - 10_000.0

    def cut(self, length: int = 100) -> list[Effect]:
        """Append and cut at once."""
        self.append(length)
        self.machine.drain()
        effects = self.machine.tick(self.now_ms)
        self.machine.resume()
        return effects

    def flush(self) -> Flush:
        """Append, cut, and upload."""
        cut, upload = self.cut()
        assert isinstance(cut, Cut)
        assert [Upload(cut.flush, 0)] == [upload]
        return cut.flush

    def flush_of(self, *sources: ConnectionActivity) -> Flush:
        """One batch of each, cut and uploading."""
        for source in sources:
            self.append(source=source)
        return self.flush()

    def stored(self, flush: Flush, attempt: int = 0) -> list[Effect]:
        """Its object is whole."""
        return self.machine.upload_succeeded(flush, attempt, self.now_ms)

    def failed(self, flush: Flush, attempt: int = 0, *, throttled: bool = False) -> list[Effect]:
        """Its upload was refused."""
        return self.machine.upload_failed(flush, attempt, self.now_ms, throttled=throttled)

    def committed(self, flush: Flush) -> list[Effect]:
        """Its record is there."""
        return self.machine.commit_succeeded(flush, self.now_ms)


def reasons(effects: list[Effect]) -> list[str]:
    """Why each flush was cut."""
    return [effect.flush.reason for effect in effects if isinstance(effect, Cut)]


def uploads(effects: list[Effect]) -> list[tuple[int, int]]:
    """(sequence number, attempt) of each upload."""
    return [(e.flush.seq, e.attempt) for e in effects if isinstance(e, Upload)]


# ── Cutting ──


def test_batches_that_are_small_parts_of_their_frames_are_cut_by_the_memory_of_these() -> None:
    """
    A frame counts once, however many of its batches are admitted one after the other; a batch of
    84 bytes kept 256 KiB, and nothing counted it.
    """
    pipe = Pipe(flush_bytes=1_000)
    frames = [bytearray(900) for _ in range(5)]
    full = [
        pipe.machine.append(pipe.log, make_batch(10, n, frame), None, pipe.now_ms)
        for n, frame in enumerate(each for frame in frames for each in (frame, frame))
    ]
    (cut, *_) = pipe.at(0)

    assert [False] * 8 + [True, False] == full
    assert isinstance(cut, Cut)
    assert (100, 4_500, "size") == (cut.flush.size_bytes, cut.flush.held_bytes, cut.flush.reason)
    assert 0 == pipe.machine.open_held_bytes


def test_an_idle_pipeline_asks_for_nothing() -> None:
    """
    No request, no timer: an idle agent costs nothing.
    """
    pipe = Pipe()

    assert ([], None) == (pipe.at(1_000_000), pipe.deadline())


def test_a_buffer_is_cut_when_its_first_byte_is_old_enough() -> None:
    """
    At 250 ms from the first byte, however young the last is, and not before.
    """
    pipe = Pipe()
    pipe.append()
    assert pipe.deadline() == 250
    assert [] == pipe.at(249)
    pipe.append()

    effects = pipe.at(250)

    assert (["age"], [(1, 0)]) == (reasons(effects), uploads(effects))
    assert 200 == next(iter(pipe.machine.flushes)).size_bytes


def test_a_buffer_is_cut_at_its_size_at_once_and_for_no_token() -> None:
    """
    `append` says when to tick, and a hundred such cuts leave the bucket full.
    """
    pipe = Pipe(flush_bytes=1000, max_uploads=200, burst=1)
    for _ in range(100):
        assert not pipe.append(999)
        assert pipe.append(1)
        assert pipe.deadline() == 0
        assert ["size"] == reasons(pipe.machine.tick(pipe.now_ms))

    pipe.append()
    assert ["age"] == reasons(pipe.at(250))


@pytest.mark.parametrize(("waits", "full"), [(False, 6), (True, 9)])
def test_a_buffer_is_cut_where_it_would_take_the_loop_too_long(waits: bool, full: int) -> None:
    """
    However small its batches are: three for the partition, one for each batch, and three more for
    each producer that is answered when it is committed.
    """
    pipe = Pipe(flush_steps=full, max_uploads=200, burst=1)
    source = ConnectionActivity(10_000.0) if waits else None
    batches = 2 if waits else 3
    for _ in range(64):
        taken = [pipe.append(1, source=source) for _ in range(batches)]
        assert [False] * (batches - 1) + [True] == taken
        assert pipe.deadline() == 0
        assert ["size"] == reasons(pipe.machine.tick(pipe.now_ms))
    # Each event looks at all flushes: while many wait for the store, they are fewer and larger.
    assert not any(pipe.append(1, source=source) for _ in range(100))


def test_a_buffer_is_cut_early_when_all_who_wait_are_quiet() -> None:
    """
    5 ms after the last that any of them sent: who speaks on postpones it.
    """
    pipe = Pipe()
    first, second = ConnectionActivity(10_000.0), ConnectionActivity(10_003.0)
    pipe.append(source=first)
    pipe.append(source=second)
    assert pipe.deadline() == 8
    first.heard_ms = 10_006.0
    assert [] == pipe.at(8)
    assert pipe.deadline() == 11

    assert ["early"] == reasons(pipe.at(11))


def test_nothing_is_cut_early_for_those_who_do_not_wait() -> None:
    """
    acks=0 and acks=1 are not answered sooner by it, and each PUT costs money.
    """
    pipe = Pipe()
    pipe.append(source=None)

    assert [] == pipe.at(100)
    assert pipe.deadline() == 250


def test_nothing_is_cut_early_while_an_upload_is_in_flight() -> None:
    """
    What comes meanwhile makes one larger object; it goes when the upload has ended.
    """
    pipe = Pipe()
    flush = pipe.flush()
    pipe.append(source=ConnectionActivity(10_000.0))
    assert [] == pipe.at(100)
    assert pipe.deadline() == 250

    effects = pipe.stored(flush)

    assert ["early"] == reasons(effects)


def test_sources_of_a_cut_do_not_hold_up_the_next() -> None:
    """
    Who waits for a flush that is gone is not waited for.
    """
    pipe = Pipe()
    talkative = ConnectionActivity(10_000.0)
    pipe.append(source=talkative)
    flush = next(e.flush for e in pipe.at(5) if isinstance(e, Cut))
    pipe.stored(flush)
    pipe.append(source=ConnectionActivity(10_005.0))
    talkative.heard_ms = 99_999.0

    assert pipe.deadline() == 10


def shared(pipe: Pipe, **sources: int) -> list[ConnectionActivity]:
    """One flush answers so many requests of each."""
    found = [ConnectionActivity() for _ in sources]
    flush = pipe.flush_of(*found)
    pipe.stored(flush)
    pipe.committed(flush)
    for source, answers in zip(found, sources.values(), strict=True):
        source.answers += answers
    return found


def sends(pipe: Pipe, source: ConnectionActivity, ms: float) -> None:
    """A request arrives."""
    pipe.now_ms = source.heard_ms = 10_000.0 + ms
    source.requests += 1
    pipe.append(source=source)


def test_who_is_back_after_its_answer_is_not_waited_for() -> None:
    """
    It got one answer and sends one request: a producer in lockstep sends nothing more.
    """
    pipe = Pipe()
    (source,) = shared(pipe, one=1)
    sends(pipe, source, 3)

    assert pipe.deadline() == 3
    assert ["early"] == reasons(pipe.at(3))


def test_who_got_more_answers_is_waited_for_until_it_has_sent_as_many() -> None:
    """
    Three requests were answered: the third that comes back completes them.
    """
    pipe = Pipe()
    (source,) = shared(pipe, one=3)

    sends(pipe, source, 1)
    assert pipe.deadline() == 6
    sends(pipe, source, 2)
    assert pipe.deadline() == 7
    sends(pipe, source, 3)
    assert pipe.deadline() == 3


def test_who_cannot_have_read_its_answer_is_not_back() -> None:
    """
    A commit does not cut what a pipelining producer sent meanwhile: its answers are not written.
    """
    pipe, source = Pipe(), ConnectionActivity()
    flush = pipe.flush_of(source)
    pipe.stored(flush)
    sends(pipe, source, 60)
    pipe.now_ms = 10_061.0

    assert [] == reasons(pipe.committed(flush))
    assert pipe.deadline() == 65
    sends(pipe, source, 62)
    assert pipe.deadline() == 67


def test_all_who_were_answered_are_waited_for() -> None:
    """
    Two producers in lockstep share a flush, and share the next: the first back does not go alone.
    """
    pipe = Pipe()
    first, second = shared(pipe, first=1, second=1)

    sends(pipe, first, 1)
    assert pipe.deadline() == 6
    sends(pipe, second, 2)
    assert pipe.deadline() == 2


def test_who_pauses_or_is_new_is_waited_for() -> None:
    """
    Nobody knows what it sends at once: quiet decides, also beside somebody who is back.
    """
    pipe = Pipe()
    (source,) = shared(pipe, one=1)
    sends(pipe, source, 25.1)
    assert pipe.deadline() == pytest.approx(30.1)

    pipe = Pipe()
    (source,) = shared(pipe, one=1)
    sends(pipe, source, 20)
    sends(pipe, ConnectionActivity(), 21)
    assert pipe.deadline() == 26


def test_cuts_by_age_and_early_are_held_to_the_price() -> None:
    """
    A burst of 5, then 20 a second: over ten seconds of one producer in lockstep.
    """
    pipe = Pipe()
    cuts: Counter[str] = Counter()
    now = 0.0
    while now < 10_000:
        pipe.append(source=ConnectionActivity(pipe.now_ms))
        due = pipe.deadline()
        assert due is not None
        now = due
        for effect in pipe.at(now):
            if isinstance(effect, Cut):
                cuts[effect.flush.reason] += 1
                pipe.stored(effect.flush)
                pipe.committed(effect.flush)

    assert 200 <= cuts.total() <= 206
    assert {"early"} == set(cuts)


def test_a_cut_that_waits_for_a_token_says_when_it_comes() -> None:
    """
    Not now: a deadline that has passed would be ticked for ever.
    """
    pipe = Pipe(burst=1, flushes_per_second=10)
    pipe.append(source=ConnectionActivity(pipe.now_ms))
    flush = next(e.flush for e in pipe.at(5) if isinstance(e, Cut))
    pipe.stored(flush)
    pipe.append(source=ConnectionActivity(pipe.now_ms))

    assert [] == pipe.at(10)
    assert pipe.deadline() == pytest.approx(105)
    assert ["early"] == reasons(pipe.at(105.1))


def test_drain_cuts_at_once_until_it_is_undone() -> None:
    """
    A release does not wait for age, nor for a token.
    """
    pipe = Pipe(burst=1, max_uploads=1)
    pipe.machine.drain()
    for _ in range(3):
        pipe.append()
        assert pipe.deadline() == 0
        assert ["drain"] == reasons(pipe.at(0))
    pipe.machine.resume()
    pipe.append()

    assert [] == pipe.at(1)


def test_nothing_is_cut_by_age_while_uploads_are_at_their_limit() -> None:
    """
    It would only queue: as many flushes are on their way as may be, and one more makes no
    sooner answer.
    """
    pipe = Pipe(max_uploads=1)
    first = pipe.flush()
    pipe.append()
    assert [] == pipe.at(1_000)
    assert pipe.deadline() is None

    assert (["age"], [(2, 0)]) == (reasons(effects := pipe.stored(first)), uploads(effects))


@pytest.mark.parametrize("start_ms", [0.0, 1e5, 1e9, 1e10])
def test_a_token_is_there_when_it_was_said_to_be(start_ms: float) -> None:
    """
    On clocks of a fresh machine and of one that is up for months; three tries are rounding.
    """
    bucket = TokenBucket(3, 1)
    now = start_ms
    for _ in range(500):
        tries = 0
        while not bucket.take(now):
            later = bucket.ready_at_ms(now)
            assert later > now
            now, tries = later, tries + 1
        assert tries <= 3

    assert start_ms + 499_000 / 3 == pytest.approx(now, abs=1)


# ── Uploads ──


def test_uploads_run_side_by_side_and_commits_in_the_order_of_the_cuts() -> None:
    """
    The third is stored first and waits; when the first is, commits follow one at a time.
    """
    pipe = Pipe()
    one, two, three = pipe.flush(), pipe.flush(), pipe.flush()
    assert [1, 2, 3] == [one.seq, two.seq, three.seq]

    assert [] == pipe.stored(three)
    assert [] == pipe.stored(two)
    assert [Commit(one)] == pipe.stored(one)
    assert [Publish(one), Commit(two)] == pipe.committed(one)
    assert [Publish(two), Commit(three)] == pipe.committed(two)
    assert [Publish(three)] == pipe.committed(three)
    assert (3, True) == (pipe.machine.committed_seq, pipe.machine.idle)


def test_no_more_uploads_run_than_may() -> None:
    """
    The others queue, and each that ends lets the oldest of them go.
    """
    pipe = Pipe(max_uploads=2)
    first, second = pipe.flush(), pipe.flush()
    for _ in range(2):
        assert [] == uploads(pipe.cut())

    assert [(3, 0)] == uploads(pipe.stored(second))
    assert [(4, 0)] == uploads(pipe.stored(first))


def test_a_failed_upload_is_tried_again_under_a_new_attempt_after_a_while() -> None:
    """
    With jitter, and longer each time up to two seconds: never at once.
    """
    pipe = Pipe()
    flush = pipe.flush()
    waited: list[float] = []
    for attempt in range(10):
        assert [] == pipe.failed(flush, attempt)
        due = pipe.deadline()
        assert due is not None
        waited.append(due - (pipe.now_ms - 10_000))
        assert [(1, attempt + 1)] == uploads(pipe.at(due))

    for n, wait in enumerate(waited):
        longest = min(2_000.0, 50 * 2.0**n)
        assert longest / 2 <= wait <= longest
    assert [Commit(flush)] == pipe.stored(flush, 10)
    assert 10 == flush.stored_attempt


def test_a_late_answer_of_an_earlier_attempt_counts() -> None:
    """
    Its deadline passed, and then it was stored after all: its record names that attempt, and the
    one on the way is given up.
    """
    pipe = Pipe()
    flush = pipe.flush()
    pipe.failed(flush, 0)
    pipe.at(100)

    assert [Abandon(flush, 1), Commit(flush)] == pipe.stored(flush, 0)
    assert 0 == flush.stored_attempt
    assert [] == pipe.stored(flush, 1)
    assert [] == pipe.failed(flush, 1)
    assert 0 == flush.stored_attempt


def test_throttling_halves_the_uploads_and_success_brings_them_back_slowly() -> None:
    """
    503 slows the caller down instead of retrying harder; one upload is always allowed.
    """
    pipe = Pipe(max_uploads=8)
    flushes = [pipe.flush() for _ in range(8)]
    for flush in flushes[:6]:
        pipe.failed(flush, throttled=True)
    pipe.at(1_000)
    running = [f for f in flushes if f.stage is FlushStage.UPLOADING]
    assert [7, 8] == [f.seq for f in running]

    pipe.stored(running[0])
    assert 1 == len([f for f in flushes if f.stage is FlushStage.UPLOADING])
    counts: list[int] = []
    while running := [f for f in flushes if f.stage is FlushStage.UPLOADING]:
        counts.append(len(running))
        pipe.stored(running[0], len(running[0].began_ms) - 1)
    assert [1, 2, 2, 3, 3, 2, 1] == counts


def test_an_ordinary_failure_does_not_lower_the_limit() -> None:
    """
    A connection that was reset says nothing of the store's load.
    """
    pipe = Pipe(max_uploads=4)
    flushes = [pipe.flush() for _ in range(4)]
    for flush in flushes:
        pipe.failed(flush)

    assert 4 == len(uploads(pipe.at(1_000)))


# ── Hedges ──


def practised(puts: int = 40, latency_ms: float = 100, **changed: float) -> Pipe:
    """A pipeline that has seen *puts* uploads of *latency_ms* each."""
    pipe = Pipe(**changed)
    for _ in range(puts):
        flush = pipe.flush()
        pipe.now_ms += latency_ms
        pipe.stored(flush)
        pipe.committed(flush)
    return pipe


def test_a_slow_upload_gets_a_second_attempt_at_the_95th_percentile() -> None:
    """
    Whichever ends first wins, and the other is given up.
    """
    pipe = practised()
    flush = pipe.flush()
    began = pipe.now_ms
    assert pipe.machine.deadline_ms(began) == began + 100
    assert [] == pipe.machine.tick(began + 99)

    assert [Upload(flush, 1)] == pipe.machine.tick(began + 100)
    assert pipe.machine.deadline_ms(began + 100) is None
    assert [Abandon(flush, 0), Commit(flush)] == pipe.stored(flush, 1)


def test_a_hedged_upload_that_fails_waits_for_its_hedge() -> None:
    """
    Only when both have failed it is tried again, and may be hedged again.
    """
    pipe = practised()
    flush = pipe.flush()
    pipe.machine.tick(pipe.now_ms + 100)

    assert [] == pipe.failed(flush, 0)
    assert FlushStage.UPLOADING is flush.stage
    assert [] == pipe.failed(flush, 1)
    assert (FlushStage.QUEUED, False) == (flush.stage, flush.hedged)


def test_a_quick_store_is_not_asked_twice() -> None:
    """
    Below 20 ms a hedge gains nothing.
    """
    pipe = practised(latency_ms=1)
    pipe.flush()

    assert pipe.machine.deadline_ms(pipe.now_ms) == pipe.now_ms + 20


def test_nothing_is_hedged_before_latencies_are_known() -> None:
    """
    Twenty uploads say what is slow.
    """
    pipe = practised(puts=19)
    pipe.flush()

    assert pipe.machine.deadline_ms(pipe.now_ms) is None


def test_at_most_one_put_in_twenty_is_a_hedge() -> None:
    """
    Also when every upload is slow, for a thousand of them.
    """
    pipe = practised()
    for n in range(1000):
        flush = pipe.flush()
        pipe.now_ms += 101 + n  # slower than all before it
        pipe.machine.tick(pipe.now_ms)
        pipe.stored(flush, len(flush.began_ms) - 1)
        pipe.committed(flush)

    machine = pipe.machine
    assert machine.hedges > 40
    assert machine.hedges <= machine.puts / 20


def test_a_put_whose_answer_seems_lost_is_hedged_however_many_were() -> None:
    """
    At four times the 95th percentile and two seconds at least: all later commits wait for it.
    """
    pipe = practised(puts=40)
    for latency in (0, 1_999):
        flush = pipe.flush()
        began = pipe.now_ms
        for _ in range(40):  # as many as there were PUTs: no credit is left
            pipe.machine.hedging.take()

        assert began + 2_000 == pipe.machine.deadline_ms(began + latency)
        assert [] == pipe.machine.tick(began + latency)
        assert [Upload(flush, 1)] == pipe.machine.tick(began + 2_000)
        pipe.stored(flush, 1)
        pipe.committed(flush)

    for _ in range(40):  # a store that is slow for all is not asked twice for each
        pipe.machine.hedging.succeeded(700)
    flush = pipe.flush()
    pipe.machine.hedging.take()
    assert pipe.now_ms + 2_800 == pipe.machine.deadline_ms(pipe.now_ms)


# ── Commits ──


def test_an_unknown_commit_is_repeated_until_it_is_known() -> None:
    """
    The same transaction after a growing wait; nothing behind it is committed meanwhile.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(one)
    pipe.stored(two)
    for _ in range(3):
        assert [] == pipe.machine.commit_failed(one, pipe.now_ms)
        due = pipe.deadline()
        assert due is not None
        assert [Commit(one)] == pipe.at(due)
        assert pipe.deadline() is None

    assert [Publish(one), Commit(two)] == pipe.committed(one)


def test_the_answer_of_a_repeated_commit_counts_once() -> None:
    """
    The first answer comes late, the second after it: published once, and the next is not hurried.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(one)
    pipe.stored(two)
    pipe.machine.commit_failed(one, pipe.now_ms)

    assert [Publish(one), Commit(two)] == pipe.committed(one)
    assert pipe.deadline() is None
    assert [] == pipe.committed(one)
    assert [] == pipe.machine.commit_failed(one, pipe.now_ms)
    assert pipe.deadline() is None


def test_a_fenced_pipeline_fails_everything_and_is_silent() -> None:
    """
    What is open, queued, uploading, stored or committing is lost, in order; nothing after it.
    """
    pipe = Pipe(max_uploads=2)
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(one)
    pipe.cut()
    pipe.cut()
    pipe.append()

    (lost,) = pipe.machine.fenced()

    assert isinstance(lost, SessionFenced)
    assert [1, 2, 3, 4, 5] == [flush.seq for flush in lost.flushes]
    pipe.machine.drain()
    answers = [pipe.committed(one), pipe.stored(two), pipe.failed(two), pipe.machine.fenced()]
    answers += [pipe.at(1_000_000), pipe.machine.commit_failed(one, pipe.now_ms)]
    assert ([[]] * 6, None) == (answers, pipe.deadline())


# ── Objects that are too old to be committed ──

HOURS_MS = 3_600_000


def test_a_flush_may_be_committed_for_half_of_the_collectors_grace() -> None:
    """
    From the beginning of its PUT: what is unnamed and twice as old is deleted.
    """
    assert FlushSettings().max_object_age_ms == Grace().named_within_ms
    assert 4_000 == EngineSettings().within(Grace(8_000)).flush.max_object_age_ms


def test_a_flush_that_waited_too_long_for_its_turn_is_uploaded_again_under_a_new_name() -> None:
    """
    The flush before it was refused by the bucket for hours.  Its commit names the new attempt.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(two)
    pipe.failed(one)
    pipe.at(5 * HOURS_MS)
    pipe.failed(one, 1)
    pipe.at(7 * HOURS_MS)

    assert [Commit(one)] == [e for e in pipe.stored(one, 2) if isinstance(e, Commit)]
    assert FlushStage.UPLOADING is two.stage
    assert [Publish(one)] == pipe.committed(one)
    assert [Commit(two)] == pipe.stored(two, 1)
    assert 1 == two.stored_attempt


def test_what_is_too_old_is_uploaded_again_only_when_commits_go_on() -> None:
    """
    While the oldest flush waits for the bucket, an upload would only get old as well.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(two)
    pipe.failed(one)

    again = [upload for h in (7, 14, 21) for upload in uploads(pipe.at(h * HOURS_MS))]

    assert [(1, 1)] == again
    assert FlushStage.STORED is two.stage


def test_all_that_is_too_old_is_uploaded_again_side_by_side() -> None:
    """
    As many as may be: what waited for six hours is not stored again one by one.
    """
    pipe = Pipe(max_uploads=8)
    flushes = [pipe.flush() for _ in range(5)]
    for flush in flushes[1:]:
        pipe.stored(flush)
    pipe.at(6 * HOURS_MS)
    effects = pipe.stored(flushes[0])

    # The upload itself began six hours ago: a process that was suspended.
    assert [(seq, 1) for seq in range(1, 6)] == uploads(effects)
    assert [] == [effect for effect in effects if isinstance(effect, Commit)]


def test_the_age_of_an_object_counts_from_the_beginning_of_the_attempt_that_stored_it() -> None:
    """
    A hedge that began later is younger; one ms under the limit may be committed.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.failed(two)
    pipe.at(1_000)
    pipe.stored(two, 1)
    pipe.failed(one)
    pipe.at(6 * HOURS_MS)
    pipe.now_ms += 999
    pipe.stored(one, 1)

    assert [Publish(one), Commit(two)] == pipe.committed(one)


def test_a_commit_without_an_answer_ends_the_session_when_its_object_is_too_old() -> None:
    """
    The commit may still take effect, with a name that the collector may have deleted: the flush is
    neither committed again nor stored again.  Nothing is asked for afterwards.
    """
    pipe = Pipe()
    one, two = pipe.flush(), pipe.flush()
    pipe.stored(one)
    pipe.machine.commit_failed(one, pipe.now_ms)
    assert [Commit(one)] == pipe.at(6 * HOURS_MS - 1)
    pipe.machine.commit_failed(one, pipe.now_ms)
    due = pipe.deadline()
    assert due is not None

    expired, lost = pipe.at(due)

    assert Expired(one) == expired
    assert SessionFenced((one, two)) == lost
    answers = [pipe.committed(one), pipe.stored(two), pipe.at(20 * HOURS_MS), pipe.machine.fenced()]
    assert ([[]] * 4, None) == (answers, pipe.deadline())


def test_a_commit_that_was_not_sent_is_given_out_again_or_put_again() -> None:
    """
    It waits for a look at the bucket; its object may get too old meanwhile.
    """
    pipe = Pipe()
    one = pipe.flush()
    pipe.stored(one)
    assert [Commit(one)] == pipe.machine.commit_delayed(one, pipe.now_ms)

    pipe.now_ms += 6 * HOURS_MS
    assert [Upload(one, 1)] == pipe.machine.commit_delayed(one, pipe.now_ms)
    assert [Commit(one)] == pipe.stored(one, 1)


def test_a_delayed_commit_that_was_sent_before_keeps_its_object() -> None:
    """
    The earlier attempt may still take effect: too old, it ends the session.
    """
    pipe = Pipe()
    one = pipe.flush()
    pipe.stored(one)
    pipe.machine.commit_failed(one, pipe.now_ms)
    due = pipe.deadline()
    assert due is not None
    assert [Commit(one)] == pipe.at(due)
    assert [Commit(one)] == pipe.machine.commit_delayed(one, pipe.now_ms)

    pipe.now_ms += 6 * HOURS_MS
    expired, lost = pipe.machine.commit_delayed(one, pipe.now_ms)
    assert Expired(one) == expired
    assert SessionFenced((one,)) == lost


def test_a_late_answer_commits_what_is_too_old_to_be_sent_again() -> None:
    """
    An answer says that the object is named: only to send the commit again is forbidden.
    """
    pipe = Pipe()
    one = pipe.flush()
    pipe.stored(one)
    pipe.at(7 * HOURS_MS)

    assert [Publish(one)] == pipe.committed(one)


# ── What is held ──


def test_what_is_not_committed_is_counted_and_found() -> None:
    """
    In offset order per partition, over cut and open: what a restart would have to append.
    """
    pipe = Pipe()
    logs = [make_log(0), make_log(1)]
    batches = [make_batch(100 + n, n) for n in range(6)]
    for n, batch in enumerate(batches):
        pipe.machine.append(logs[n % 2], batch, None, pipe.now_ms)
        if n == 3:
            pipe.machine.drain()
            pipe.at(0)
            pipe.machine.resume()

    assert (104 + 105, 615) == (pipe.machine.open_held_bytes, pipe.machine.pending_bytes)
    assert {logs[0]: batches[::2], logs[1]: batches[1::2]} == pipe.machine.uncommitted()
    assert not pipe.machine.idle


# ── Every schedule ──


class Schedules(RuleBasedStateMachine):
    """Appends, answers and time in any order, answers late and twice; the module's promises."""

    @initialize(
        start_ms=st.sampled_from([0.0, 12_345.678, 1e9]),
        seed=st.integers(0, 99),
        max_uploads=st.integers(1, 4),
    )
    def begin(self, start_ms: float, seed: int, max_uploads: int) -> None:
        """A pipeline of small numbers."""
        self.settings = FlushSettings(
            flush_bytes=1000,
            flush_steps=12,
            flushes_per_second=20,
            burst=2,
            max_uploads=max_uploads,
            hedge_share=0.25,
            lost_ms=1e9,  # none but what the share allows
            max_object_age_ms=10_000,
        )
        self.machine = FlushPipeline(self.settings, Random(seed))
        self.start_ms = self.now_ms = start_ms
        self.log = make_log()
        self.sources = [ConnectionActivity(start_ms), ConnectionActivity(start_ms)]
        self.appended: list[Batch] = []
        self.cut: list[Flush] = []
        self.published: list[Flush] = []
        self.in_flight: list[Upload] = []
        self.succeeded: set[tuple[int, int]] = set()
        self.names: set[tuple[int, int]] = set()
        self.committing: list[Flush] = []
        self.began_ms: dict[tuple[int, int], float] = {}
        self.lost = False
        self.ticked: tuple[float, bool] | None = None

    def perform(self, effects: list[Effect]) -> None:
        """Hold each effect to what was promised."""
        assert not (self.lost and effects), "it asks for something after SessionFenced"
        for effect in effects:
            match effect:
                case Cut(flush):
                    assert len(self.cut) + 1 == flush.seq, "a sequence number is left out"
                    self.cut.append(flush)
                case Upload(flush, attempt):
                    assert (flush.seq, attempt) not in self.names, "a name is used twice"
                    self.names.add((flush.seq, attempt))
                    self.began_ms[flush.seq, attempt] = self.now_ms
                    assert flush not in self.committing, "its commit has another name"
                    self.in_flight.append(effect)
                case Abandon(flush, attempt):
                    assert (flush.seq, attempt) in self.names
                    assert flush.stored_attempt != attempt
                case Commit(flush):
                    assert (flush.seq, flush.stored_attempt) in self.succeeded, "nothing is stored"
                    assert len(self.published) + 1 == flush.seq, "out of order"
                    age_ms = self.now_ms - self.began_ms[flush.seq, flush.stored_attempt]
                    assert age_ms < 10_000, "its object may be deleted"
                    self.committing.append(flush)
                case Publish(flush):
                    assert len(self.published) + 1 == flush.seq
                    self.published.append(flush)
                case Expired(flush):
                    assert flush in self.committing, "it could have been stored again"
                    assert isinstance(effects[-1], SessionFenced)
                case SessionFenced(flushes):
                    pending = self.cut[len(self.published) :]
                    assert pending == list(flushes[: len(pending)])
                    assert len(flushes) <= len(pending) + 1, "what was open is one more"
                    self.lost = True

    @rule(
        length=st.sampled_from([1, 100, 400, 1000, 5000]),
        who=st.integers(0, 2),
        answers=st.integers(0, 2),
    )
    def append(self, length: int, who: int, answers: int) -> None:
        """A batch; somebody waits, or nobody."""
        if self.lost:
            return
        source = self.sources[who] if who < 2 else None
        if source is not None:
            source.heard_ms = self.now_ms
            source.requests += 1
            source.answers += answers
        batch = make_batch(length, len(self.appended))
        self.appended.append(batch)
        if self.machine.append(self.log, batch, source, self.now_ms):
            self.tick()

    def tick(self) -> None:
        """Now."""
        effects = self.machine.tick(self.now_ms)
        self.perform(effects)
        due = self.machine.deadline_ms(self.now_ms)
        assert effects or due is None or due > self.now_ms, "it would be ticked for ever"

    @rule(ms=st.sampled_from([0.0, 0.1, 3.0, 60.0, 3_000.0, 9_000.0]))
    def time_passes(self, ms: float) -> None:
        """And nobody ticks before."""
        self.now_ms += ms
        self.tick()

    @rule(times=st.integers(1, 5))
    def deadlines_pass(self, times: int) -> None:
        """Ticked exactly when it asks for it."""
        for _ in range(times):
            due = self.machine.deadline_ms(self.now_ms)
            if due is not None:
                self.now_ms = max(self.now_ms, due)
                self.tick()

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 9), again=st.booleans())
    def upload_succeeds(self, which: int, again: bool) -> None:
        """Also of an attempt that was given up, and twice."""
        upload = self.in_flight[which % len(self.in_flight)]
        self.succeeded.add((upload.flush.seq, upload.attempt))
        if not again:
            self.in_flight.remove(upload)
        self.perform(
            self.machine.upload_succeeded(upload.flush, upload.attempt, self.now_ms),
        )

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 9), throttled=st.booleans(), late=st.booleans())
    def upload_fails(self, which: int, throttled: bool, late: bool) -> None:
        """Perhaps only for us: *late*, and it succeeds one day."""
        upload = self.in_flight[which % len(self.in_flight)]
        if not late:
            self.in_flight.remove(upload)
        self.perform(
            self.machine.upload_failed(
                upload.flush, upload.attempt, self.now_ms, throttled=throttled
            )
        )

    @precondition(lambda self: self.committing)
    @rule(which=st.integers(0, 9), succeeds=st.booleans())
    def commit_is_answered(self, which: int, succeeds: bool) -> None:
        """One of all that were sent, perhaps long ago."""
        flush = self.committing[which % len(self.committing)]
        answer = self.machine.commit_succeeded if succeeds else self.machine.commit_failed
        self.perform(answer(flush, self.now_ms))

    @rule(draining=st.booleans())
    def drain(self, draining: bool) -> None:
        """A release begins, or ends."""
        if draining:
            self.machine.drain()
        else:
            self.machine.resume()
        self.tick()

    @precondition(lambda self: len(self.cut) > 6)
    @rule()
    def fenced(self) -> None:
        """The session is over."""
        self.perform(self.machine.fenced())
        assert self.machine.deadline_ms(self.now_ms) is None

    @invariant()
    def limits_hold(self) -> None:
        """Uploads, hedges and what is paid for."""
        running = [f for f in self.machine.flushes if f.stage is FlushStage.UPLOADING]
        assert len(running) <= self.settings.max_uploads
        assert self.machine.hedges <= self.machine.puts * self.settings.hedge_share
        assert len(self.names) == self.machine.puts
        paid = sum(1 for f in self.cut if f.reason in ("age", "early"))
        assert paid <= 2 + (self.now_ms - self.start_ms) * 20 / 1000 + 0.001

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Every batch is published or held, once, in its order."""
        if self.lost:
            return
        held = self.machine.uncommitted().get(self.log, [])
        published = [b for f in self.published for b in f.batches[self.log]]
        assert self.appended == published + held
        assert sum(b.length for b in held) == self.machine.pending_bytes
        assert len(self.published) == self.machine.committed_seq

    def teardown(self) -> None:
        """When the world is kind again, everything is committed, without an end of ticks."""
        if not hasattr(self, "machine") or self.lost:
            return
        self.machine.drain()
        for _ in range(400):
            if self.machine.idle or self.lost:
                break
            self.tick()
            for upload in list(self.in_flight):
                self.in_flight.remove(upload)
                self.succeeded.add((upload.flush.seq, upload.attempt))
                self.perform(
                    self.machine.upload_succeeded(upload.flush, upload.attempt, self.now_ms)
                )
            for flush in list(self.committing):
                self.perform(self.machine.commit_succeeded(flush, self.now_ms))
            self.deadlines_pass(1)
        assert self.machine.idle or self.lost
        self.nothing_is_forgotten()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=60)
