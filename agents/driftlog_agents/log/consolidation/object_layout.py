"""Lays out the objects of a rewrite: what of the old objects stands where in the new ones.

    footers ──sealed batches left out──▶ runs, by topic, partition and offset ──▶ new objects
    new object ──▶ its footer
               ──▶ pieces to read of each old object ──▶ parts, and their positions in the new one

1. Batches that are sealed, or of a deleted topic, are left out.
2. A slice of an old object stays in one piece: the tail moves it as one.
3. Old and new records of one rewrite fit into one transaction.
4. A part is written only if each of its batches is the one that its footer lists.

Old objects hold their batches in the order in which they are needed, so one GET reads neighbours
together.

Pure.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.transactions.flush_transactions import RECORDS_PER_TXN
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats.flush_object import (
    FLUSHED_AT,
    LENGTH,
    NOT_KNOWN,
    CorruptFlushObjectError,
    Footer,
    RestoreFacts,
    Slice,
    encode_footer,
)
from driftlog_tiering.foundation.types import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSettings:
    """How old objects are read."""

    piece_bytes: int = 8 * 1024 * 1024
    """Largest piece of one GET, unless one batch is larger."""

    gap_bytes: int = 64 * 1024
    """Gaps up to this size are read and dropped: a separate request takes longer."""


class BatchRun(NamedTuple):
    """The batches ``[first, first + count)`` of the footer *source*: one partition's, without a
    gap, and in one piece in the new object too."""

    source: int
    slice: Slice
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no caller
    base: int
    size_bytes: int


_base: Final = attrgetter("base")


class NewObject(NamedTuple):
    """The content of one object of a rewrite, in order."""

    runs: tuple[BatchRun, ...]
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
    partitions: dict[tuple[bytes, int], list[BatchRun]] = {}
    for source, footer in enumerate(footers):
        for run in _runs(source, footer, sealed_end):
            partitions.setdefault((run.slice.topic_id.bytes, run.slice.partition), []).append(run)
    objects: list[NewObject] = []
    current: list[BatchRun] = []
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
) -> Iterator[BatchRun]:
    bases, positions, lengths = footer.columns[3], footer.columns[10], footer.columns[11]
    for s in footer.slices():
        sealed = sealed_end(TopicPartition(s.topic_id, s.partition))
        if s.end <= sealed:
            continue
        first, stop = s.first, s.first + s.count
        if s.base < sealed:  # the batch with that offset stays
            first = bisect_right(bases, sealed, first, stop) - 1
        size = positions[stop - 1] + lengths[stop - 1] - positions[first]
        yield BatchRun(source, s, first, stop - first, bases[first], size)


def lay_out_most(
    footers: Sequence[Footer], sealed_end: Callable[[TopicPartition], int], object_bytes: int
) -> tuple[int, list[NewObject]]:
    """The layout for as many of *footers*, from the first on, as fit into one transaction with
    their new objects; and how many these are."""
    count = len(footers)
    while True:
        objects = lay_out(footers[:count], sealed_end, object_bytes)
        if count + len(objects) <= RECORDS_PER_TXN:
            return count, objects
        assert count > 1
        count = count * 2 // 3


def how_many_fit(footers: Sequence[Footer], settings: ConsolidationSettings) -> int:
    """How many of *footers*, from the first on, fit into the memory of a rewrite; at least two."""
    totals = accumulate(len(footer) for footer in footers)
    return max(2, sum(total <= settings.batches for total in totals))


def encode(
    new: NewObject,
    footers: Sequence[Footer],
    session_id: str,
    seq: int,
    place: tuple[int, int] | None = None,
) -> tuple[bytes, Footer]:
    """The footer of *new*, encoded and decoded: every batch has its entry of the old footer.

    *place*: level and index of its record; None: below the format level at which footers have them.
    """
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
    facts = None if place is None else _facts(new, footers, topic_ids, *place)
    footer = Footer(session_id, seq, seq, topic_ids, columns, facts)
    encoded = encode_footer(
        session_id=session_id,
        seq=seq,
        committed_seq=seq,
        topic_ids=topic_ids,
        columns=columns,
        facts=facts,
    )
    return encoded, footer


def _facts(
    new: NewObject, footers: Sequence[Footer], topic_ids: Sequence[UUID], level: int, index: int
) -> RestoreFacts:
    names = dict.fromkeys(topic_ids, "")
    epoch_starts: array[int] = array("q")
    log_starts: array[int] = array("q")
    for run in new.runs:
        footer = footers[run.source]
        old = footer.facts
        if old is None:
            unknown = [NOT_KNOWN] * run.count
            epoch_starts.extend(unknown)
            log_starts.extend(unknown)
            continue
        first, stop = run.first, run.first + run.count
        epoch_starts.extend(old.epoch_starts[first:stop])
        log_starts.extend(old.log_starts[first:stop])
        topic_id = run.slice.topic_id
        names[topic_id] = names[topic_id] or old.topic_names[footer.topic_ids.index(topic_id)]
    return RestoreFacts(tuple(names.values()), epoch_starts, log_starts, level, index)


# ── Copies of old objects ──


class Part(NamedTuple):
    """The batches ``[first, stop)`` of an old object, and their position in the new one."""

    first: int
    stop: int
    position: int


@dataclass(slots=True)
class ObjectPart:
    """The bytes ``[start, end)`` of an old object."""

    source: int
    start: int
    end: int
    parts: list[Part] = field(default_factory=list)


def pieces_of(
    new: NewObject, footers: Sequence[Footer], settings: PieceSettings
) -> list[ObjectPart]:
    """The ranges to read, of each old object in its order; neighbours together."""
    by_source: dict[int, list[ObjectPart]] = {}
    position = 0
    for run in new.runs:
        positions, lengths = footers[run.source].columns[10:12]
        mine = by_source.setdefault(run.source, [])
        first, stop = run.first, run.first + run.count
        while first < stop:
            limit = positions[first] + settings.piece_bytes
            last = _last_below(positions, lengths, first, stop, limit)
            start, end = positions[first], positions[last - 1] + lengths[last - 1]
            if not (
                mine
                and 0 <= start - mine[-1].end <= settings.gap_bytes
                and end - mine[-1].start <= settings.piece_bytes
            ):
                mine.append(ObjectPart(run.source, start, end))
            mine[-1].end = end
            mine[-1].parts.append(Part(first, last, position))
            position += end - start
            first = last
    return [piece for pieces in by_source.values() for piece in pieces]


def _last_below(
    positions: "array[int]", lengths: "array[int]", first: int, stop: int, limit: int
) -> int:
    """The end of the batches from *first* on that end at *limit* or before; at least one batch."""
    last = bisect_right(positions, limit, first, stop)
    if positions[last - 1] + lengths[last - 1] > limit:
        last -= 1
    return max(last, first + 1)


def copies(body: Buffer, footer: Footer, piece: ObjectPart) -> list[tuple[int, memoryview]] | None:
    """Each part of *piece* with its position in the new object; *body*: the bytes that the old one
    returned.  None: a batch differs from its entry in the footer."""
    view = memoryview(body)
    if len(view) != piece.end - piece.start:
        return None
    made: list[tuple[int, memoryview]] = []
    bases, positions, lengths = footer.columns[3], footer.columns[10], footer.columns[11]
    for part in piece.parts:
        for i in range(part.first, part.stop):
            at = positions[i] - piece.start
            batch = view[at : at + lengths[i]]
            if isinstance(kernel.check(batch, 0, lengths[i], False), int):
                return None
            if int.from_bytes(batch[:8], "big") != bases[i]:
                return None
        start = positions[part.first] - piece.start
        end = positions[part.stop - 1] + lengths[part.stop - 1] - piece.start
        made.append((part.position, view[start:end]))
    return made
