"""Which flush records are consolidated, when, and into which objects.

    level 0  flushes ──a minute old, or 100──▶ level 1  sorted by partition
                       level 1 ──60 of them──▶ level 2  cut at partition borders
       level 2 and up, less than a quarter of each unsealed, 8 of them ──▶ a level more

1. What is sealed, or of a topic that is gone, is left out.
2. A batch is rewritten at most twice, but where most of what lay around it is sealed.
3. A slice of an old object stays in one piece: what the tail has in memory of it moves as one.
4. Old and new records of one rewrite fit one transaction.

So an agent with U bytes unsealed has about 4 × U / 64 MiB records at most of full objects, 8 nearly
empty ones, and less than 100 + 60 of the lower levels: some hundreds, whatever it has written.

Flushes of a MiB and more are large: 60 of them fill an object of level 2.  By levels each byte
would move twice, when the agent has most to do, and under full load nearly all of it is sealed
within a minute anyway.  So they wait until 400 of them do, and become level 2 at once.

An agent that cannot rewrite as fast as it flushes has its producers wait (`Held`): what it leaves
in the metadata store is bounded whatever it has of cores, disk and network.

A dead session gets no more flushes: what it has left below level 2 becomes as few as can be.

Pure.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

from driftlog_agents.log.consolidation.flush_record_index import FlushRecordEntry
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.transactions.flush_transactions import RECORDS_PER_TXN
from driftlog_tiering.formats.flush_object import (
    FLUSHED_AT,
    LENGTH,
    CorruptFlushObjectError,
    Footer,
    Slice,
    encode_footer,
)

MiB: Final = 1024 * 1024

LAST_LEVEL: Final = 2
"""What is rewritten again only where most around it is sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSettings:
    """When flush records are rewritten, and how large the objects become."""

    age_ms: float = 60_000
    """Longer: fewer and larger rewrites, more records, and slower takeovers."""

    dead_age_ms: float = 10_000
    """The same for small flushes of a session that is over, since it is known to be.  Shorter:
    rewrites beside the takeover; longer: the next takeover reads more."""

    records: int = 100
    """Of level 0 that become level 1 before they are that old.  More do not fit a transaction."""

    large_bytes: int = MiB
    """A flush of this size is large.  Less: less is rewritten, into smaller objects."""

    large_records: int = 400
    """Large flushes that may wait.  Fewer: more is rewritten under full load."""

    level_one_records: int = 60
    """Of level 1 that become level 2.  More: fewer partitions in each object, more records."""

    object_bytes: int = 64 * MiB
    """Larger: fewer records; more stays around what is not sealed."""

    sparse_share: float = 0.25
    """An object of level 2 with less than this unsealed may be rewritten."""

    sparse_records: int = 8
    """So many of them together.  Fewer: more rewrites that leave as many records."""

    batches: int = 150_000
    """Of one rewrite: each takes 100 bytes of memory meanwhile, and 300 where it is alone in its
    partition."""

    waiting_records: int = 1_500
    """Below level 2 in the metadata store before producers wait until there are fewer.  More: who
    has too few cores takes more before it slows down, and who takes over from it reads more."""

    ended_ms: float = 3_000
    """After a session ended, before what it left is looked at: takeovers read it first."""

    check_interval_ms: float = 1_000

    sealed_interval_ms: float = 30_000
    """Between two looks at what others have sealed, and whose sessions are over."""

    named_within_ms: float = 3_600_000
    """From the first PUT of a rewrite to its transaction; 6 h are what the collector allows."""


class ConsolidationLag:
    """Whether producers wait for consolidation.

    They do at a bound, and go on when a rewrite has made it less: they come at its rate then.
    """

    __slots__ = ("_bound", "behind", "held")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.held = False
        """Producers wait."""
        self.behind = False
        """They did, and half of what had waited waits still."""

    def update(self, waiting: int) -> None:
        """Look again: so many records below level 2 wait."""
        self.held = waiting >= self._bound
        self.behind = self.held or (self.behind and waiting > self._bound // 2)


def choose(
    records: Sequence[FlushRecordEntry],
    settings: ConsolidationSettings,
    now_ms: float,
    *,
    dead: bool,
) -> list[FlushRecordEntry]:
    """The records of one session (in key order) to rewrite now; empty: none."""
    flushes = [known for known in records if known.level == 0 and not _is_large(known, settings)]
    age_ms = settings.dead_age_ms if dead else settings.age_ms
    ripe = bool(flushes) and now_ms - flushes[0].known_ms >= age_ms
    if len(flushes) > 1 and (ripe or len(flushes) >= settings.records):
        return flushes[: settings.records]
    once = [known for known in records if known.level == 1]
    if len(once) >= settings.level_one_records:
        return once[: settings.level_one_records]
    large = [known for known in records if known.level == 0 and _is_large(known, settings)]
    if len(large) > settings.large_records:
        return large[: settings.level_one_records]
    if dead:
        low = [known for known in records if known.level < LAST_LEVEL]
        if len(low) > 1 and all(now_ms - known.known_ms >= settings.age_ms for known in low):
            return low[: settings.level_one_records]
    sparse = [known for known in records if _is_sparse(known, settings)]
    if len(sparse) >= settings.sparse_records:
        return sparse[: settings.level_one_records]
    return []


def _is_sparse(known: FlushRecordEntry, settings: ConsolidationSettings) -> bool:
    return (
        known.level >= LAST_LEVEL
        and known.unsealed_bytes < settings.sparse_share * known.record.footer_start
    )


def _is_large(known: FlushRecordEntry, settings: ConsolidationSettings) -> bool:
    return known.record.footer_start >= settings.large_bytes


def level_after(replaced: Sequence[FlushRecordEntry], settings: ConsolidationSettings) -> int:
    """Of what replaces these."""
    if all(_is_large(known, settings) for known in replaced):
        return max(LAST_LEVEL, *(known.level + 1 for known in replaced))
    return max(known.level for known in replaced) + 1


# ── What goes where ──


class Run(NamedTuple):
    """The batches ``[first, first + count)`` of the footer *source*: one partition's, without a
    gap, and in one piece in the new object too."""

    source: int
    slice: Slice
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    base: int
    size_bytes: int


_base: Final = attrgetter("base")


class NewObject(NamedTuple):
    """What one object of a rewrite consists of, in its order."""

    runs: tuple[Run, ...]
    size_bytes: int
    """Of its batches."""


def lay_out(
    footers: Sequence[Footer],
    sealed_end: Callable[[TopicPartition], int],
    object_bytes: int,
) -> list[NewObject]:
    """The objects that replace those of *footers*: what is needed of them, by topic, partition
    and offset.

    *sealed_end*: up to where nothing of a partition is needed any more.

    Raises:
        CorruptFlushObjectError: two footers have the same offsets of a partition.
    """
    # Not one sort of all: that would hold up every thread of the process for its time.
    partitions: dict[tuple[bytes, int], list[Run]] = {}
    for source, footer in enumerate(footers):
        for run in _runs(source, footer, sealed_end):
            partitions.setdefault((run.slice.topic_id.bytes, run.slice.partition), []).append(run)
    objects: list[NewObject] = []
    current: list[Run] = []
    size = 0
    for place in sorted(partitions):
        mine = sorted(partitions.pop(place), key=_base)
        for before, run in pairwise(mine):
            if run.base < before.slice.end:
                raise CorruptFlushObjectError(
                    f"two flushes have offset {run.base} of {run.slice.topic_id}/{place[1]}"
                )
        mine_bytes = sum(run.size_bytes for run in mine)
        pieces = [mine] if mine_bytes <= object_bytes else [[run] for run in mine]
        for piece in pieces:
            piece_bytes = sum(run.size_bytes for run in piece)
            if current and size + piece_bytes > object_bytes:
                objects.append(NewObject(tuple(current), size))
                current, size = [], 0
            current += piece
            size += piece_bytes
    if current:
        objects.append(NewObject(tuple(current), size))
    return objects


def _runs(
    source: int, footer: Footer, sealed_end: Callable[[TopicPartition], int]
) -> Iterator[Run]:
    bases, positions, lengths = footer.columns[3], footer.columns[10], footer.columns[11]
    for s in footer.slices():
        sealed = sealed_end(TopicPartition(s.topic_id, s.partition))
        if s.end <= sealed:
            continue
        first, stop = s.first, s.first + s.count
        if s.base < sealed:  # the batch that holds it stays
            first = bisect_right(bases, sealed, first, stop) - 1
        size = positions[stop - 1] + lengths[stop - 1] - positions[first]
        yield Run(source, s, first, stop - first, bases[first], size)


def how_many_fit(footers: Sequence[Footer], settings: ConsolidationSettings) -> int:
    """How many of *footers*, from the first on, a rewrite may have in memory; two at least."""
    totals = accumulate(len(footer) for footer in footers)
    return max(2, sum(total <= settings.batches for total in totals))


def fits_transaction(old: int, new: int) -> bool:
    """Whether so many records can be replaced by so many at once."""
    return old + new <= RECORDS_PER_TXN


def encode(
    new: NewObject, footers: Sequence[Footer], session_id: str, seq: int
) -> tuple[bytes, Footer]:
    """The footer of *new*, encoded and not: every batch as the old footers have it."""
    topic_ids = tuple(dict.fromkeys(run.slice.topic_id for run in new.runs))
    numbers: dict[UUID, int] = {topic_id: number for number, topic_id in enumerate(topic_ids)}
    columns = tuple(array(column.typecode) for column in footers[0].columns)
    for run in new.runs:
        first, stop = run.first, run.first + run.count
        columns[0].extend([numbers[run.slice.topic_id]] * run.count)
        for column, old in zip(columns[1:10], footers[run.source].columns[1:10], strict=True):
            column.extend(old[first:stop])
        for number in (LENGTH, FLUSHED_AT):
            columns[number].extend(footers[run.source].columns[number][first:stop])
    columns[10].extend(accumulate(columns[11][:-1], initial=0))
    footer = Footer(session_id, seq, seq, topic_ids, columns)
    encoded = encode_footer(
        session_id=session_id,
        seq=seq,
        committed_seq=seq,
        topic_ids=topic_ids,
        columns=columns,
    )
    return encoded, footer
