"""Which records are consolidated and into what, against a plain account of every batch."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.consolidation.flush_record_index import FlushRecordEntry, FlushRecordIndex
from driftlog_agents.log.consolidation.policy import (
    ConsolidationSettings,
    choose,
    encode,
    fits_transaction,
    how_many_fit,
    lay_out,
    level_after,
)
from driftlog_metadata.schema.keys import flush_key, parse_flush_key
from driftlog_metadata.schema.model import FlushRecord, TopicPartition
from driftlog_tiering.formats.flush_object import (
    CorruptFlushObjectError,
    FlushBatch,
    Footer,
    RestoreFacts,
    decode_footer,
    encode_footer,
)

A, B = UUID(int=1), UUID(int=2)
PLACES = [TopicPartition(A, 0), TopicPartition(A, 1), TopicPartition(B, 0)]
SETTINGS = ConsolidationSettings(
    age_ms=60_000,
    records=5,
    large_bytes=600,
    large_records=4,
    level_one_records=3,
    object_bytes=1_000,
    sparse_records=2,
)


def footer_of(batches: Sequence[tuple[TopicPartition, int, int, int]], seq: int = 1) -> Footer:
    """(partition, base offset, records, bytes) of each batch, in order; the rest says which."""
    topic_ids = tuple(dict.fromkeys(tp.topic_id for tp, *_ in batches))
    lengths = [size for *_, size in batches]
    columns = (
        array("i", [topic_ids.index(tp.topic_id) for tp, *_ in batches]),
        array("i", [tp.partition for tp, *_ in batches]),
        array("i", [base % 5 for _, base, *_ in batches]),
        array("q", [base for _, base, *_ in batches]),
        array("i", [records - 1 for _, _, records, _ in batches]),
        array("h", [base % 7 for _, base, *_ in batches]),
        array("q", [100 + base for _, base, *_ in batches]),
        array("h", [base % 3 for _, base, *_ in batches]),
        array("i", [base * 2 for _, base, *_ in batches]),
        array("q", [base * 3 for _, base, *_ in batches]),
        array("i", list(accumulate(lengths[:-1], initial=0)) if batches else []),
        array("i", lengths),
        array("q", [50 + base for _, base, *_ in batches]),
    )
    return decode_footer(
        encode_footer(
            session_id="s",
            seq=seq,
            committed_seq=seq - 1,
            topic_ids=topic_ids,
            columns=columns,
        )
    )


def batches_of(footer: Footer) -> list[tuple[TopicPartition, FlushBatch]]:
    """With their partitions."""
    batches = [footer.batch(i) for i in range(len(footer))]
    return [(TopicPartition(footer.topic_ids[b.topic_index], b.partition), b) for b in batches]


Stored = tuple[int, ...]


def stored(batch: FlushBatch) -> Stored:
    """All that a rewrite leaves as it was."""
    return (*batch[2:10], batch.length, batch.flushed_at_ms)


@dataclass
class Session:
    """Flushes, seals and rewrites of one session, and what it must come to."""

    settings: ConsolidationSettings = SETTINGS
    dead: bool = False
    now_ms: float = 0.0
    index: FlushRecordIndex = field(default_factory=FlushRecordIndex)
    footers: dict[str, Footer] = field(default_factory=dict)
    log: dict[TopicPartition, list[tuple[int, int, Stored]]] = field(default_factory=dict)
    """(base, end, columns) of each batch that was flushed."""
    log_end: dict[TopicPartition, int] = field(default_factory=dict)
    sealed: dict[TopicPartition, int] = field(default_factory=dict)
    rewritten: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    seq: int = 0
    rewrites: int = 0

    def flush(self, what: Sequence[tuple[TopicPartition, Sequence[int]]]) -> None:
        """Batches of these sizes."""
        self.seq += 1
        batches: list[tuple[TopicPartition, int, int, int]] = []
        for tp, sizes in what:
            for size in sizes:
                base = self.log_end.get(tp, 0)
                records = 1 + size % 3
                batches.append((tp, base, records, size))
                self.log_end[tp] = base + records
        footer = footer_of(batches, self.seq)
        for tp, batch in batches_of(footer):
            end = batch.base_offset + batch.last_offset_delta + 1
            self.log.setdefault(tp, []).append((batch.base_offset, end, stored(batch)))
        self.know(flush_key("s", self.seq), footer)

    def know(self, key: str, footer: Footer) -> None:
        """A record is there."""
        slices = list(footer.slices())
        size = sum(footer.columns[11])
        unneeded = self.index.add(
            key,
            FlushRecord(object_key=key, size_bytes=size + 1, footer_start=size),
            [(TopicPartition(s.topic_id, s.partition), s.end) for s in slices],
            sizes=[sum(footer.columns[11][s.first : s.first + s.count]) for s in slices],
            level=parse_flush_key(key).level,
            known_ms=self.now_ms,
        )
        if unneeded is None:
            self.footers[key] = footer

    def seal(self, tp: TopicPartition, batches: int) -> None:
        """So many more batches of *tp*."""
        ends = [end for _, end, _ in self.log.get(tp, ()) if end > self.sealed.get(tp, 0)]
        if not ends:
            return
        self.sealed[tp] = ends[: batches + 1][-1]
        for known in self.index.sealed(tp, self.sealed[tp]):
            del self.footers[known.key]

    def needed(self) -> dict[TopicPartition, list[tuple[int, Stored]]]:
        """What must be somewhere: everything that is not sealed."""
        return {
            tp: [(base, columns) for base, end, columns in batches if end > self.sealed.get(tp, 0)]
            for tp, batches in self.log.items()
        }

    def there(self) -> dict[TopicPartition, list[tuple[int, Stored]]]:
        """What is, of that."""
        found: dict[TopicPartition, list[tuple[int, Stored]]] = {tp: [] for tp in self.log}
        for footer in self.footers.values():
            for tp, batch in batches_of(footer):
                if batch.base_offset + batch.last_offset_delta >= self.sealed.get(tp, 0):
                    found[tp].append((batch.base_offset, stored(batch)))
        return {tp: sorted(batches) for tp, batches in found.items()}

    def sorted(self) -> list[FlushRecordEntry]:
        """In key order."""
        return sorted(self.index, key=lambda known: known.key)

    def consolidate(self) -> None:
        """Until nothing is due."""
        while chosen := choose(self.sorted(), self.settings, self.now_ms, dead=self.dead):
            self.rewrites += 1
            self._rewrite(chosen)

    def _rewrite(self, chosen: list[FlushRecordEntry]) -> None:
        settings = self.settings
        sparse = all(self._is_sparse(known) for known in chosen)
        footers = [self.footers[known.key] for known in chosen]
        objects = lay_out(footers, lambda tp: self.sealed.get(tp, 0), settings.object_bytes)
        assert fits_transaction(len(chosen), len(objects))
        level = level_after(chosen, settings)
        assert level > max(known.level for known in chosen)
        seq = max(parse_flush_key(known.key).seq for known in chosen)
        for known in chosen:
            self.index.drop(known)
            del self.footers[known.key]
        made: list[Footer] = []
        taken = [parse_flush_key(key) for key in self.footers]
        first = 1 + max((k.index for k in taken if (k.seq, k.level) == (seq, level)), default=-1)
        for n, new in enumerate(objects):
            encoded, footer = encode(new, footers, "s", seq)
            assert [*batches_of(decode_footer(encoded))] == [*batches_of(footer)]
            assert (seq, seq) == (footer.seq, footer.committed_seq)
            assert new.size_bytes == sum(footer.columns[11])
            assert new.size_bytes <= settings.object_bytes or len(new.runs) == 1
            made.append(footer)
            self.know(flush_key("s", seq, level, first + n), footer)
        self._one_piece(footers, made)
        self._partition_borders(made)
        for footer in made:
            for tp, batch in batches_of(footer):
                place = (tp, batch.base_offset)
                self.rewritten[place] = self.rewritten.get(place, 0) + (not sparse)
                assert self.rewritten[place] <= 2, f"{place} was rewritten three times"

    def _is_sparse(self, known: FlushRecordEntry) -> bool:
        """By its batches, not by what the index says."""
        left = sum(
            batch.length
            for tp, batch in batches_of(self.footers[known.key])
            if batch.base_offset + batch.last_offset_delta >= self.sealed.get(tp, 0)
        )
        # The index counts slices, as they are sealed: a slice of which a part is counts whole.
        return known.level >= 2 and left * 4 < known.record.footer_start

    def _one_piece(self, old: list[Footer], new: list[Footer]) -> None:
        """What the tail has in memory of a slice moves as one."""
        places = {
            (tp, batch.base_offset): (number, batch.position)
            for number, footer in enumerate(new)
            for tp, batch in batches_of(footer)
        }
        for footer in old:
            for s in footer.slices():
                tp = TopicPartition(s.topic_id, s.partition)
                mine = [footer.batch(i) for i in range(s.first, s.first + s.count)]
                moved = [places[tp, b.base_offset] for b in mine if (tp, b.base_offset) in places]
                left = mine[len(mine) - len(moved) :]
                shifts = {
                    (number, at - b.position) for (number, at), b in zip(moved, left, strict=True)
                }
                assert len(shifts) <= 1, f"{s} is in pieces"

    def _partition_borders(self, made: list[Footer]) -> None:
        """A partition is in two objects only if it does not fit one."""
        homes: dict[TopicPartition, dict[int, int]] = {}
        for number, footer in enumerate(made):
            for tp, batch in batches_of(footer):
                sizes = homes.setdefault(tp, {})
                sizes[number] = sizes.get(number, 0) + batch.length
        for tp, sizes in homes.items():
            assert len(sizes) == 1 or sum(sizes.values()) > self.settings.object_bytes, tp

    def bounded(self) -> None:
        """Few records of each kind wait."""
        settings = self.settings
        records = self.sorted()
        small = [k for k in records if not k.level and k.record.footer_start < settings.large_bytes]
        large = [
            k for k in records if not k.level and k.record.footer_start >= settings.large_bytes
        ]
        assert len(small) < settings.records
        assert len(large) <= settings.large_records
        assert sum(k.level == 1 for k in records) < settings.level_one_records
        sparse = [
            k for k in records if k.level >= 2 and k.unsealed_bytes * 4 < k.record.footer_start
        ]
        assert len(sparse) < settings.sparse_records


FLUSHES = st.lists(
    st.tuples(st.sampled_from(PLACES), st.lists(st.integers(1, 130), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
    unique_by=lambda place: place[0],
).map(lambda places: sorted(places, key=lambda place: place[0]))
STEPS = st.one_of(
    FLUSHES,
    FLUSHES,
    st.tuples(st.sampled_from(PLACES), st.integers(0, 12)),
    st.sampled_from(PLACES),
    st.floats(0, 70_000),
)


@given(st.lists(STEPS, min_size=20, max_size=80), st.booleans())
def test_every_batch_is_somewhere_until_it_is_sealed_and_is_rewritten_twice_at_most(
    steps: list[
        list[tuple[TopicPartition, list[int]]] | tuple[TopicPartition, int] | TopicPartition | float
    ],
    large: bool,
) -> None:
    """
    Flushes of any shape, seals, partitions that others led in between, and time: after each
    rewrite exactly what is needed is there, as it was flushed; and few records wait.
    """
    session = Session(SETTINGS if large else replace(SETTINGS, large_bytes=10_000))
    for step in steps:
        match step:
            case list():
                session.flush(step)
            case TopicPartition():
                session.log_end[step] = session.log_end.get(step, 0) + 3  # others led it
            case (tp, batches):
                session.seal(tp, batches)
            case float():
                session.now_ms += step
        session.consolidate()
        assert session.needed() == session.there()
        session.bounded()
    session.dead = True
    for _ in range(2):
        session.now_ms += 61_000
        session.consolidate()

    assert session.needed() == session.there()
    low = [k for k in session.index if k.level < 2 and k.record.footer_start < 600]
    assert len(low) <= 1


def test_a_flush_waits_for_others_or_a_minute() -> None:
    """
    One alone is left as it is: an object of it would be no other one.
    """
    session = Session()
    session.flush([(PLACES[0], [10])])
    session.now_ms = 1_000_000
    assert [] == choose(session.sorted(), SETTINGS, session.now_ms, dead=False)

    session.flush([(PLACES[0], [10])])
    assert 2 == len(choose(session.sorted(), SETTINGS, session.now_ms, dead=False))
    assert [] == choose(session.sorted(), SETTINGS, 59_999, dead=False)
    for _ in range(3):
        session.flush([(PLACES[0], [10])])
    assert 5 == len(choose(session.sorted(), SETTINGS, 59_999, dead=False))


def test_what_is_left_of_an_end_waits_for_the_takeover_only() -> None:
    """
    Whoever ends next leaves it to somebody who reads all of it again.
    """
    session = Session()
    for _ in range(2):
        session.flush([(PLACES[0], [10])])

    assert [] == choose(session.sorted(), SETTINGS, 9_999, dead=True)
    assert 2 == len(choose(session.sorted(), SETTINGS, 10_000, dead=True))
    assert [] == choose(session.sorted(), SETTINGS, 10_000, dead=False)


def test_large_flushes_are_few_for_what_they_hold_and_wait() -> None:
    """
    However old they are; when too many wait, the oldest become level 2 at once.  A dead session's
    become so when they are old: it leaves few, however often an agent ends.
    """
    session = Session()
    for _ in range(4):
        session.flush([(PLACES[0], [900])])
    session.now_ms = 1_000_000
    assert [] == choose(session.sorted(), SETTINGS, session.now_ms, dead=False)
    assert session.sorted()[:3] == choose(session.sorted(), SETTINGS, session.now_ms, dead=True)

    session.flush([(PLACES[0], [900])])
    chosen = choose(session.sorted(), SETTINGS, session.now_ms, dead=False)

    assert session.sorted()[:3] == chosen
    assert 2 == level_after(chosen, SETTINGS)


def test_objects_are_cut_between_partitions_and_hold_them_in_order() -> None:
    """
    Sorted by topic id, partition and offset, whichever flush it was; a partition that does not
    fit what is left of an object begins another one.
    """
    one = footer_of([(PLACES[0], 0, 1, 400), (PLACES[2], 0, 2, 100)])
    two = footer_of([(PLACES[0], 1, 1, 400), (PLACES[1], 0, 1, 300), (PLACES[2], 2, 1, 50)])

    objects = lay_out([one, two], lambda _: 0, 1_000)

    assert [[(0, 0), (1, 1)], [(1, 0), (0, 0), (1, 2)]] == [
        [(run.source, run.base) for run in new.runs] for new in objects
    ]
    assert [800, 450] == [new.size_bytes for new in objects]
    turned = [
        [(1 - run.source, run.base) for run in new.runs]
        for new in lay_out([two, one], lambda _: 0, 1_000)
    ]
    assert turned == [[(run.source, run.base) for run in new.runs] for new in objects]


def test_what_is_sealed_is_left_out_from_the_batch_on_that_is_not() -> None:
    """
    A slice that is sealed in part leaves its rest; one that is sealed leaves nothing.
    """
    footer = footer_of(
        [(PLACES[0], 0, 5, 10), (PLACES[0], 5, 5, 20), (PLACES[0], 10, 5, 30), (PLACES[1], 0, 1, 9)]
    )
    sealed = {PLACES[0]: 5, PLACES[1]: 1}

    ((run,),) = [new.runs for new in lay_out([footer], lambda tp: sealed[tp], 1_000)]

    assert (5, 1, 2, 50) == (run.base, run.first, run.count, run.size_bytes)
    assert [] == lay_out([footer], lambda _: 15, 1_000)


def test_a_gap_of_offsets_is_kept_as_one() -> None:
    """
    Another session led in between: its batches are elsewhere.
    """
    footers = [footer_of([(PLACES[0], 0, 5, 10)]), footer_of([(PLACES[0], 9, 1, 10)])]
    (new,) = lay_out(footers, lambda _: 0, 1_000)

    encoded, _ = encode(new, footers, "s", 7)

    assert [(0, 5), (9, 10)] == [(s.base, s.end) for s in decode_footer(encoded).slices()]


def test_a_rewrite_keeps_what_restore_needs() -> None:
    """
    Of a footer that says it, beside one of an older release, whose batches stay unknown.
    """
    old = footer_of([(PLACES[0], 0, 5, 10), (PLACES[1], 0, 1, 10)])
    facts = RestoreFacts(("x",), array("q", [4]), array("q", [2]))
    newer = replace(footer_of([(PLACES[0], 5, 1, 10)]), facts=facts)
    (new,) = lay_out([old, newer], lambda _: 0, 1_000)

    encoded, _ = encode(new, [old, newer], "s", 7, (1, 3))
    found = decode_footer(encoded).facts

    assert found is not None
    names = dict(zip(decode_footer(encoded).topic_ids, found.topic_names, strict=True))
    assert {PLACES[0].topic_id: "x"} | names == names
    assert ([-1, 4, -1], [-1, 2, -1]) == (list(found.epoch_starts), list(found.log_starts))
    assert (1, 3) == (found.level, found.index)


def test_two_flushes_with_the_same_offsets_are_damage() -> None:
    """
    Nothing is made of them: which of them is the log, nobody could say afterwards.
    """
    footers = [footer_of([(PLACES[0], 0, 5, 10)]), footer_of([(PLACES[0], 4, 1, 10)])]

    with pytest.raises(CorruptFlushObjectError, match="two flushes have offset 4"):
        lay_out(footers, lambda _: 0, 1_000)


def test_a_rewrite_has_so_many_batches_in_memory() -> None:
    """
    And two footers at least, or it would never come to anything.
    """
    settings = replace(SETTINGS, batches=5)
    footers = [footer_of([(PLACES[0], n, 1, 1) for n in range(size)]) for size in (2, 3, 1)]

    assert 2 == how_many_fit(footers, settings)
    assert 3 == how_many_fit(footers, replace(SETTINGS, batches=6))
    assert 2 == how_many_fit(footers, replace(SETTINGS, batches=1))
