"""Retention expires what Apache Kafka's would: too little, and logs grow; too much is lost data.

The oracle is UnifiedLog#deleteOldSegments on a plain list of segments, the unsealed tail as the
active one.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.retention.policy import (
    ExpiredSegments,
    Expiry,
    ExpiryReason,
    Known,
    Needs,
    RetentionSettings,
    TopicRetention,
    check,
    sealed_bytes,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    empty_manifest,
    list_ref,
)

TP = TopicPartition(UUID(int=1), 0)
NOW = 1_000


def segment(
    base: int, end: int, size: int, largest: int, smallest: int | None = None
) -> SegmentRef:
    """A segment of *size* bytes as received; *largest*: its largest timestamp."""
    return SegmentRef(
        key=f"segment-{base}",
        base=base,
        end=end,
        size_bytes=1,
        records=end - base,
        raw_bytes=size,
        min_timestamp_ms=largest if smallest is None else smallest,
        max_timestamp_ms=largest,
    )


@dataclass
class Store:
    """A partition, and what the bucket has of it."""

    log: PartitionLog
    manifest: Manifest
    lists: dict[str, SegmentList] = field(default_factory=dict)
    put_ms: dict[str, int] = field(default_factory=dict)
    batches: list["KafkaSegment"] = field(default_factory=list)
    """Those that are not sealed."""
    asked: list[str] = field(default_factory=list)
    """Keys that the last check asked for."""

    @classmethod
    def of(cls, *segments: SegmentRef, end: int | None = None) -> "Store":
        """A partition whose *segments* stand in the manifest, and that has no tail."""
        log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
        end = segments[-1].end if end is None and segments else end or 0
        log.sealed_end = log.high_watermark = log.log_end = end
        return cls(log, replace(empty_manifest("t", TP), end=end, segments=segments))

    def spill(self, count: int, level: int = 1) -> None:
        """Move the first *count* segments, or lists of the level below, into a list."""
        manifest = self.manifest
        if level == 1:
            content = SegmentList(1, segments=manifest.segments[:count])
            rest = manifest.lists, manifest.segments[count:]
        else:
            content = SegmentList(level, lists=manifest.lists[:count])
            rest = manifest.lists[count:], manifest.segments
        ref = list_ref(f"list-{level}-{len(self.lists)}", content)
        self.lists[ref.key] = content
        lists = (*rest[0], ref) if level == 1 else (ref, *rest[0])
        self.manifest = replace(manifest, lists=lists, segments=rest[1])

    def add_tail(
        self, *batches: tuple[int, int, int], sealed: int = 0, flushed_ms: int = NOW
    ) -> None:
        """Commit a flush of *batches*: records, size and largest timestamp of each; before them it
        has a batch of *sealed* records, which are sealed."""
        base = self.log.high_watermark - sealed
        parts = [(sealed, 100, NOW + 100)] * (sealed > 0) + list(batches)
        ends = list(accumulate((records for records, _, _ in parts), initial=base))
        sizes = [size for _, size, _ in parts]
        self.batches += [
            KafkaSegment(start, end, size, largest)
            for start, end, (_, size, largest) in zip(ends, ends[1:], parts, strict=False)
            if end > self.log.sealed_end
        ]
        data = FlushBatches(
            session_id="s",
            base_offsets=array("q", ends[:-1]),
            lengths=array("i", sizes),
            positions=array("i", accumulate(sizes[:-1], initial=0)),
            max_timestamps_ms=array("q", [largest for _, _, largest in parts]),
        )
        count = len(parts)
        stored_at = StoredAt("flush", 0)
        times = flushed_ms, flushed_ms
        tail = TailSlice(base, ends[-1], data, 0, count, sum(sizes), stored_at, *times)
        self.log.restore(tail, 0)

    def check(self, retention: TopicRetention, now_ms: int = NOW) -> Expiry:
        """Check, with what it asks for."""
        known = Known()
        self.asked = []
        while True:
            found = check(self.log, self.manifest, retention, now_ms, known)
            if isinstance(found, Expiry):
                return found
            self.asked.append(found.ref.key)
            if isinstance(found.ref, SegmentListRef):
                known.lists[found.ref.key] = self.lists[found.ref.key]
            else:
                known.put_ms[found.ref.key] = self.put_ms[found.ref.key]

    def flat(self) -> list[SegmentRef]:
        """All segments."""

        def under(ref: SegmentListRef) -> list[SegmentRef]:
            content = self.lists[ref.key]
            return [*content.segments, *(s for below in content.lists for s in under(below))]

        return [*(s for ref in self.manifest.lists for s in under(ref)), *self.manifest.segments]


def by_time(ms: int) -> TopicRetention:
    return TopicRetention(ms=ms)


def by_size(size: int) -> TopicRetention:
    return TopicRetention(size_bytes=size)


# ── Beside Kafka ──


@dataclass
class KafkaSegment:
    """LogSegment: `size`, `baseOffset` and `largestTimestamp`."""

    base: int
    end: int
    size: int
    largest: int


def delete_old_segments(
    segments: list[KafkaSegment], retention: TopicRetention, now_ms: int, high_watermark: int
) -> int | None:
    """The log start that UnifiedLog#deleteOldSegments leaves; None: it deletes nothing.

    The last segment is the active one.
    """

    start: int | None = None

    def delete(condition: Callable[[KafkaSegment], bool]) -> None:
        nonlocal start
        while segments:
            first = segments[0]
            upper = segments[1].base if len(segments) > 1 else first.end
            is_last_and_empty = len(segments) == 1 and first.size == 0
            if not (high_watermark >= upper and condition(first)) or is_last_and_empty:
                return
            segments.pop(0)
            start = segments[0].base if segments else first.end

    size = sum(one.size for one in segments)
    if retention.size_bytes is not None and size >= retention.size_bytes:
        diff = size - retention.size_bytes

        def breaches_size(one: KafkaSegment) -> bool:
            nonlocal diff
            if diff - one.size >= 0:
                diff -= one.size
                return True
            return False

        delete(breaches_size)
    if retention.ms is not None:
        limit_ms = retention.ms
        delete(lambda one: now_ms - one.largest > limit_ms)
    return start


@st.composite
def stores(draw: st.DrawFn) -> Store:
    """Partitions of any shape: gaps, lists of lists, segments without timestamps, a tail."""
    times = st.integers(NOW - 40, NOW + 10)
    segments = []
    put_ms = {}
    offset = 0
    for _ in range(draw(st.integers(0, 12))):
        base = offset + draw(st.sampled_from((0, 0, 0, 3)))
        offset = base + draw(st.integers(1, 5))
        largest = draw(st.one_of(times, st.just(NO_TIMESTAMP)))
        smallest = min(largest, draw(st.one_of(times, st.just(NO_TIMESTAMP))))
        segments.append(segment(base, offset, draw(st.integers(1, 9)), largest, smallest))
        put_ms[segments[-1].key] = draw(times)
    store = Store.of(*segments, end=offset + draw(st.sampled_from((0, 0, 2))))
    store.put_ms = put_ms
    while draw(st.booleans()) and store.manifest.segments:
        store.spill(draw(st.integers(1, len(store.manifest.segments))))
    while draw(st.booleans()) and store.manifest.lists:
        count = draw(st.integers(1, len(store.manifest.lists)))
        level = 1 + max(ref.level for ref in store.manifest.lists[:count])
        if {ref.level for ref in store.manifest.lists[:count]} == {level - 1}:
            store.spill(count, level)
    batch = st.tuples(st.integers(1, 4), st.integers(1, 9), times)
    for number in range(draw(st.integers(0, 3))):
        sealed = 0 if number else draw(st.integers(0, store.log.sealed_end))
        store.add_tail(*draw(st.lists(batch, min_size=1, max_size=3)), sealed=sealed)
    store.log.log_start = draw(st.integers(0, store.log.high_watermark))
    store.log.log_end += draw(st.sampled_from((0, 5)))
    return store


RETENTIONS = st.builds(
    TopicRetention,
    ms=st.one_of(st.none(), st.integers(0, 50)),
    size_bytes=st.one_of(st.none(), st.integers(0, 60)),
)


def as_kafka(store: Store) -> list[KafkaSegment]:
    """What Kafka would have: segments that end above log start, and the active one."""
    log = store.log
    found = [
        KafkaSegment(
            ref.base,
            ref.end,
            ref.raw_bytes,
            store.put_ms[ref.key] if ref.max_timestamp_ms == NO_TIMESTAMP else ref.max_timestamp_ms,
        )
        for ref in store.flat()
        if ref.end > log.log_start
    ]
    base = max(log.sealed_end, log.log_start)
    left = [batch for batch in store.batches if batch.end > base]
    size, largest = sum(b.size for b in left), max((b.largest for b in left), default=-1)
    return [*found, KafkaSegment(base, log.high_watermark, size, largest)]


@given(stores(), RETENTIONS)
def test_what_expires_is_what_kafka_would_delete(store: Store, retention: TopicRetention) -> None:
    """
    By size first, then by time, whole segments from the front; never above the high watermark,
    and the log start that is left is Kafka's.
    """
    log = store.log
    expected = delete_old_segments(as_kafka(store), retention, NOW, log.high_watermark)

    expiry = store.check(retention)

    assert (log.log_start if expected is None else expected) == expiry.log_start
    assert (expected is None) == (not expiry.expired)


@given(stores(), RETENTIONS)
def test_nothing_expires_by_time_before_it_is_due(store: Store, retention: TopicRetention) -> None:
    """
    A partition that does not change need not be looked at before.
    """
    retention = replace(retention, size_bytes=None)
    expiry = store.check(retention)
    store.log.log_start = expiry.log_start

    last_ms = NOW + 10_000 if expiry.due_ms is None else expiry.due_ms - 1
    later = store.check(retention, max(last_ms, NOW))

    assert expiry.log_start == later.log_start
    assert retention.ms is not None or expiry.due_ms is None


@given(stores(), RETENTIONS)
def test_each_object_is_asked_for_once(store: Store, retention: TopicRetention) -> None:
    """
    And of the segments only those without timestamps.
    """
    store.check(retention)

    assert len(store.asked) == len(set(store.asked))
    untimed = {ref.key for ref in store.flat() if ref.max_timestamp_ms == NO_TIMESTAMP}
    assert set(store.asked) <= store.lists.keys() | untimed


@given(stores())
def test_the_size_is_that_of_what_ends_above_log_start(store: Store) -> None:
    """
    In lists and lists of lists, too.
    """
    refs: list[SegmentListRef | SegmentRef] = [*store.manifest.lists, *store.manifest.segments]

    size = sealed_bytes(refs, store.log.log_start, store.lists)

    assert sum(r.raw_bytes for r in store.flat() if r.end > store.log.log_start) == size


# ── Single rules ──


def test_what_is_below_log_start_does_not_count_again_as_it_goes() -> None:
    """
    Of a list that log start is in only the rest is counted, and only the rest goes.
    """
    sizes = (1, 1, 10, 2, 18)
    store = Store.of(*(segment(i, i + 1, size, NOW) for i, size in enumerate(sizes)))
    store.spill(3)
    store.log.log_start = 2

    assert 4 == store.check(by_size(18)).log_start


def test_a_segment_expires_when_its_largest_record_is_older_than_retention_ms() -> None:
    """
    Not when it is as old: Kafka's condition is "more than".
    """
    store = Store.of(segment(0, 5, 1, NOW - 11), segment(5, 9, 1, NOW - 10))

    expiry = store.check(by_time(10))

    assert (5, NOW + 1) == (expiry.log_start, expiry.due_ms)
    assert {ExpiryReason.TIME} == set(expiry.expired)


def test_a_record_from_the_future_holds_everything_behind_it() -> None:
    """
    As in Kafka: the prefix ends there.
    """
    store = Store.of(segment(0, 5, 1, NOW + 500), segment(5, 9, 1, 1))

    assert 0 == store.check(by_time(10)).log_start


def test_by_size_at_least_retention_bytes_stay() -> None:
    """
    The first segment goes while the others have as much without it.
    """
    store = Store.of(*(segment(i, i + 1, 10, NOW) for i in range(5)))

    starts = [store.check(by_size(size)).log_start for size in (51, 50, 41, 40, 39, 10, 9, 1, 0)]

    assert [0, 0, 0, 1, 1, 4, 4, 4, 5] == starts


def test_the_unsealed_tail_counts_and_goes_whole() -> None:
    """
    It is what Kafka's active segment is: its bytes count, it goes last, and only if all of it has
    expired.
    """
    store = Store.of(segment(0, 5, 10, NOW - 50))
    store.add_tail((2, 10, NOW - 40))
    store.add_tail((1, 5, NOW - 30), (1, 5, NOW - 35))

    assert [5, 5, 0] == [store.check(by_size(n)).log_start for n in (1, 20, 21)]
    assert [9, 5, 0] == [store.check(by_time(ms)).log_start for ms in (29, 30, 50)]
    assert 4 == store.check(by_time(29)).expired[ExpiryReason.TIME].records - 5


def test_what_is_not_committed_stays() -> None:
    """
    Log start never passes the high watermark.
    """
    store = Store.of(segment(0, 5, 10, 1))
    store.add_tail((2, 10, 1))
    store.log.log_end = 20

    assert 7 == store.check(TopicRetention(ms=0, size_bytes=0)).log_start


def test_a_manifest_that_is_ahead_of_the_key_counts_up_to_the_sealed_end() -> None:
    """
    Its newest segment is not this log's before it is adopted.
    """
    store = Store.of(segment(0, 5, 10, 1), segment(5, 9, 10, 1))
    store.log.sealed_end = 5

    assert 5 == store.check(by_time(10)).log_start


def test_what_is_sealed_and_not_adopted_counts_once() -> None:
    """
    Its batches are still in the tail.  (Counted twice, they let others expire too early: seed 147.)
    """
    store = Store.of(segment(0, 5, 10, 1), end=5)
    store.add_tail((4, 10, 1))
    store.manifest = replace(
        store.manifest, end=9, segments=(*store.manifest.segments, segment(5, 9, 10, 1))
    )

    assert [0, 0, 5] == [store.check(by_size(size)).log_start for size in (20, 11, 10)]


def test_a_segment_without_timestamps_has_the_time_of_its_put() -> None:
    """
    Kafka takes the time of the file.
    """
    store = Store.of(segment(0, 5, 10, NO_TIMESTAMP), segment(5, 9, 10, NOW))
    store.put_ms = {"segment-0": NOW - 10}

    assert [0, 5] == [store.check(by_time(ms)).log_start for ms in (10, 9)]


def test_a_tail_without_timestamps_has_the_time_of_its_flush() -> None:
    """
    A flush whose time is not known stays.
    """
    store, unknown = Store.of(), Store.of()
    store.add_tail((2, 10, NO_TIMESTAMP), flushed_ms=NOW - 10)
    unknown.add_tail((2, 10, NO_TIMESTAMP), flushed_ms=0)

    assert [0, 2] == [store.check(by_time(ms)).log_start for ms in (10, 9)]
    assert 0 == unknown.check(by_time(0)).log_start


def test_a_list_is_not_read_while_all_of_it_stays_or_goes() -> None:
    """
    A log of millions of segments costs no more than one of a few.
    """
    store = Store.of(*(segment(i, i + 1, 10, NOW - 100 + i) for i in range(9)))
    for count in (4, 3):
        store.spill(count)

    young, old, part = (store.check(by_time(ms)) for ms in (100, 90, 98))

    assert [(0, NOW + 1), (9, None), (2, NOW + 1)] == [
        (expiry.log_start, expiry.due_ms) for expiry in (young, old, part)
    ]
    assert ["list-1-0"] == store.asked
    store.check(by_time(100))
    assert [] == store.asked


@pytest.mark.parametrize(("interval_ms", "first_ms"), [(300_000, 30_000), (1_000, 1_000)])
def test_the_first_check_waits_a_moment_and_a_phase(interval_ms: int, first_ms: int) -> None:
    """
    Partitions are not checked all at once.
    """
    settings = RetentionSettings(check_interval_ms=interval_ms)

    assert first_ms == settings.first_check_ms(0)
    assert first_ms + interval_ms / 2 == settings.first_check_ms(0.5)


def test_needs_names_a_list_that_log_start_is_in() -> None:
    """
    Its bytes below log start do not count.
    """
    store = Store.of(*(segment(i, i + 1, 10, NOW) for i in range(4)))
    store.spill(3)
    store.log.log_start = 1

    found = check(store.log, store.manifest, by_size(30), NOW, Known())

    assert isinstance(found, Needs)
    assert "list-1-0" == found.ref.key
    assert 1 == store.check(by_size(30)).log_start
    assert 2 == store.check(by_size(20)).log_start


def test_the_totals_of_a_check_count_offsets_that_were_never_sealed() -> None:
    """
    Those between log start, or the sealed end, and the new log start.
    """
    expired = {
        ExpiryReason.TIME: ExpiredSegments(1, 10, 100),
        ExpiryReason.SIZE: ExpiredSegments(2, 20, 200),
    }

    found = [
        Expiry(30, None, expired).totals(0, 30),
        Expiry(30, None, {}).totals(0, 25),
        Expiry(30, None, {}).totals(28, 25),
    ]

    assert [
        {"by_time": 1, "by_size": 2, "records": 30, "bytes": 300},
        {"unsealed_offsets": 5},
        {"unsealed_offsets": 2},
    ] == found
