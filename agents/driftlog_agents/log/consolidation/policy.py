"""Decides which flush records are consolidated, when, and into which objects.

    level 0  flushes ──a minute old, or 100──▶ level 1  sorted by partition
                       level 1 ──60 of them──▶ level 2  cut at partition borders
       level 2 and up, less than a quarter of each unsealed, 8 of them ──▶ next level

1. Batches that are sealed, or of a deleted topic, are left out.
2. A batch is rewritten at most twice, unless most batches around it are sealed.
3. A slice of an old object stays in one piece: the tail moves it as one.
4. Old and new records of one rewrite fit into one transaction.

So an agent with U unsealed bytes has at most about 4 × U / 64 MiB records of full objects, 8 of
nearly empty ones, and fewer than 100 + 60 of the lower levels: some hundreds, however much it has
written.

Flushes of a MiB and more are large: 60 of them fill an object of level 2.  Through level 1 each
byte would move twice, when the agent is busiest, and under full load nearly all batches are sealed
within a minute anyway.  So large flushes wait until there are 400, and become level 2 directly.

An agent that cannot rewrite as fast as it flushes holds its producers back (`ConsolidationLag`):
its records in the metadata store are bounded, whatever its cores, disk and network.

A dead session gets no more flushes: its records below level 2 become as few as possible.

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
"""Objects of this level are rewritten again only when most of their batches are sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSettings:
    """When flush records are rewritten, and how large the objects become."""

    age_ms: float = 60_000
    """Age of the oldest small flush at which level 0 is rewritten.  Longer: fewer and larger
    rewrites, more records, and slower takeovers."""

    dead_age_ms: float = 10_000
    """The same for a dead session, from when this agent has read its records.  Shorter: rewrites
    run beside the takeover; longer: the next takeover reads more."""

    records: int = 100
    """Records of level 0 that become level 1 even if younger.  A transaction takes no more."""

    large_bytes: int = MiB
    """A flush of this size is large.  Smaller: fewer bytes are rewritten, into smaller objects."""

    large_records: int = 400
    """Large flushes that may wait.  Fewer: more bytes are rewritten under full load."""

    level_one_records: int = 60
    """Records of level 1 that become level 2.  More: fewer partitions per object, more records."""

    object_bytes: int = 64 * MiB
    """Largest new object.  Larger: fewer records; more sealed bytes stay beside unsealed ones."""

    sparse_share: float = 0.25
    """An object of level 2 or higher with a smaller unsealed share may be rewritten."""

    sparse_records: int = 8
    """Such objects per rewrite.  Fewer: more rewrites that leave as many records."""

    batches: int = 150_000
    """Batches of one rewrite: each takes 100 bytes of memory meanwhile, and 300 if it is alone in
    its partition."""

    waiting_records: int = 1_500
    """Records below level 2 in the metadata store at which producers wait until there are fewer.
    More: an agent with too few cores accepts more before it slows down, and a takeover from it
    reads more."""

    ended_ms: float = 3_000
    """Time between the end of a session and the read of its records: takeovers read them first."""

    check_interval_ms: float = 1_000

    sealed_interval_ms: float = 30_000
    """Time between two reads of other agents' sealed ends and of the sessions that are over."""

    named_within_ms: float = 3_600_000
    """Longest time from the first PUT of a rewrite to its transaction; half of the cluster's grace
    is the bound."""


class ConsolidationLag:
    """Whether producers wait for consolidation.

    They wait at a bound, and continue when a rewrite has reduced the number: so they produce at the
    rate of the rewrites.
    """

    __slots__ = ("_bound", "behind", "held")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.held = False
        """Producers wait."""
        self.behind = False
        """Producers have waited, and more than half of the bound still waits."""

    def update(self, waiting: int) -> None:
        """Updates both flags: *waiting* records below level 2 wait."""
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
    """The level of the records that replace *replaced*."""
    if all(_is_large(known, settings) for known in replaced):
        return max(LAST_LEVEL, *(known.level + 1 for known in replaced))
    return max(known.level for known in replaced) + 1


# ── Layout of the new objects ──


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
    """The content of one object of a rewrite, in order."""

    runs: tuple[Run, ...]
    size_bytes: int
    """Bytes of its batches."""


def lay_out(
    footers: Sequence[Footer],
    sealed_end: Callable[[TopicPartition], int],
    object_bytes: int,
) -> list[NewObject]:
    """The objects that replace those of *footers*: their needed batches by topic, partition and
    offset.

    *sealed_end*: returns the offset below which no batch of a partition is needed.

    Raises:
        CorruptFlushObjectError: two footers have the same offsets of a partition.
    """
    # One sort of all runs would block every thread of the process meanwhile.
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
        if s.base < sealed:  # the batch with that offset stays
            first = bisect_right(bases, sealed, first, stop) - 1
        size = positions[stop - 1] + lengths[stop - 1] - positions[first]
        yield Run(source, s, first, stop - first, bases[first], size)


def how_many_fit(footers: Sequence[Footer], settings: ConsolidationSettings) -> int:
    """How many of *footers*, from the first on, fit into the memory of a rewrite; at least two."""
    totals = accumulate(len(footer) for footer in footers)
    return max(2, sum(total <= settings.batches for total in totals))


def fits_transaction(old: int, new: int) -> bool:
    """Whether one transaction can replace *old* records by *new* ones."""
    return old + new <= RECORDS_PER_TXN


def encode(
    new: NewObject, footers: Sequence[Footer], session_id: str, seq: int
) -> tuple[bytes, Footer]:
    """The footer of *new*, encoded and decoded: every batch has its entry of the old footer."""
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
