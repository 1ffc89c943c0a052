"""What clients were told, and whether the log that is there at the end keeps to it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.batches import Row, is_tombstone, key_of

Expect = Callable[[bool, str], None]
_NOTHING: Final[Mapping[int, Sequence[tuple[int, Row]]]] = MappingProxyType({})
GONE: Final = Row(b"", False, 0, -1)
"""Of an offset without a record: below log start, or compacted."""

At = tuple[TopicPartition, int]
"""An offset of a partition."""


class Told(NamedTuple):
    """A record that a producer was told is in the log."""

    value: bytes
    """As it was sent: no other record has it."""
    garbage: bool

    def is_in(self, row: Row) -> bool:
        """Whether *row* is it; what cannot be decoded has no value."""
        return (b"" if self.garbage else self.value, self.garbage) == row[:2]


class Place(NamedTuple):
    """Where a producer was told that a batch is."""

    tp: TopicPartition
    base_offset: int
    records: tuple[Told, ...]

    def entries(self) -> list[tuple[At, Told]]:
        """Each record, and its offset."""
        return [((self.tp, self.base_offset + i), told) for i, told in enumerate(self.records)]


class Lookup(NamedTuple):
    """An answer to ListOffsets; *target_ms* None: it asked for the largest timestamp."""

    target_ms: int | None
    found: tuple[int, int, int] | None
    """Offset, timestamp, leader epoch."""
    ends: tuple[int, int]
    """High watermarks before the question and after the answer: it is true of one between."""
    starts: tuple[int, int] = (0, 0)
    """The same of log starts."""


@dataclass(slots=True, eq=False)
class Oracle:
    """See the module."""

    expect: Expect
    acked: dict[At, Told] = field(default_factory=dict)
    """By the offset that the producer was told."""
    ones: dict[At, int] = field(default_factory=dict)
    """What of it was acks=1, and on which node's disk it is."""
    lost: set[tuple[At, Told]] = field(default_factory=set)
    """What of that was only on a disk that is gone, or of a node that does not lead any more, and
    was not seen since: it may be there, or not, and another record may have its place by now."""
    owed: dict[tuple[At, Told], int] = field(default_factory=dict)
    """What of `lost` is on the disk of a node that is there: in the log, or set aside there."""
    displaced: set[tuple[At, Told]] = field(default_factory=set)
    """All that ever was in `owed`."""
    gone: set[tuple[At, Told]] = field(default_factory=set)
    """What of that is not in the log, as the agent itself said, while its disk is away."""
    shown: dict[At, Row] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    lookups: dict[TopicPartition, list[Lookup]] = field(default_factory=dict)
    read_back: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """From where on, and up to where, the last consumer has read everything."""
    tables: dict[TopicPartition, dict[bytes, int]] = field(default_factory=dict)
    """What the last consumer of a compacted topic has read: see `table_of`."""
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Where logs start at least, as somebody was told."""

    # ── While it runs ──

    def acknowledge(self, place: Place, *, one: bool, node: int = 1) -> None:
        """A producer was told by *node* that a batch is at *place*; *one*: with acks=1."""
        for at, told in place.entries():
            before = self.acked.get(at)
            if before is not None and (at, before) in self.lost:
                del self.acked[at]
                self.ones.pop(at, None)
            self.lost.discard((at, told))
            if not one:
                self.ones.pop(at, None)
            elif at not in self.acked:
                self.ones[at] = node
            before = self.acked.setdefault(at, told)
            self.expect(before == told, f"{at} was told for {before} and for {told}")
            self._agree(at)

    def overtaken(self, place: Place, node: int) -> None:
        """As `acknowledge` with acks=1, of a node that has led no more when it was told."""
        for at, told in place.entries():
            if self.acked.get(at) != told:
                self._displace((at, told), node)

    def _displace(self, entry: tuple[At, Told], node: int) -> None:
        self.lost.add(entry)
        self.owed[entry] = node
        self.displaced.add(entry)

    def told_end(self, tp: TopicPartition) -> int:
        """Up to where, at least, the log must reach."""
        owed = (at[1] for at, t in self.acked.items() if at[0] == tp and (at, t) not in self.lost)
        return max((offset + 1 for offset in owed), default=0)

    def may_be_lost(self, place: Place) -> bool:
        """Whether the disk that had the batch is gone, and nobody has seen it since."""
        return any(entry in self.lost for entry in place.entries())

    def was_displaced(self, place: Place) -> bool:
        """Whether another node has led since, and the batch was to be appended elsewhere."""
        return any(entry in self.displaced for entry in place.entries())

    def is_gone(self, place: Place) -> None:
        """The agent's answer to something else says that the batch is not there."""
        self.gone.update(place.entries())

    def disk_is_back(self) -> None:
        """What was gone with it may be appended again, where nothing was committed since."""
        self.gone.clear()
        self.displaced |= self.lost

    def show(self, tp: TopicPartition, offset: int, row: Row) -> None:
        """A consumer was given *row* at *offset*."""
        before = self.shown.setdefault((tp, offset), row)
        self.expect(before == row, f"offset {offset} was {before}, and now {row}")
        told = self.acked.get((tp, offset))
        if told is not None and told.is_in(row):
            self.lost.discard(((tp, offset), told))  # it was committed before, or after all
            self.ones.pop((tp, offset), None)
        self._agree((tp, offset))

    def _agree(self, at: At) -> None:
        told, shown = self.acked.get(at), self.shown.get(at)
        if told is not None and shown is not None and (at, told) not in self.lost:
            self.expect(told.is_in(shown), f"offset {at[1]}: {told} told, {shown} shown")

    def lose_disk(self, committed: Mapping[TopicPartition, int], node: int = 1) -> None:
        """What was acks=1 there may be gone, but what is below the *committed* ends."""
        self.lost |= {
            (at, self.acked[at])
            for at, there in self.ones.items()
            if there == node and at[1] >= committed.get(at[0], 0)
        }
        self.owed = {entry: there for entry, there in self.owed.items() if there != node}

    def never_back(self, nodes: Set[int]) -> None:
        """These left for good, with their disks."""
        self.owed = {entry: node for entry, node in self.owed.items() if node not in nodes}

    def moved(self, tp: TopicPartition, node: int, end: int) -> None:
        """Another node leads a partition: what was acks=1 at *node* and not committed has no
        place in its log any more, and is to be set aside."""
        for at, there in self.ones.items():
            entry = (at, self.acked[at])
            if there == node and at[0] == tp and at[1] >= end and entry not in self.lost:
                self._displace(entry, node)

    def saw_high_watermark(self, tp: TopicPartition, high_watermark: int) -> None:
        """A consumer was told a high watermark."""
        before = self.high_watermarks.get(tp, 0)
        self.expect(high_watermark >= before, f"high watermark {before} became {high_watermark}")
        self.high_watermarks[tp] = high_watermark

    def told_start(self, tp: TopicPartition, start: int) -> None:
        """Somebody was told that what is below *start* is deleted."""
        self.starts[tp] = max(start, self.starts.get(tp, 0))

    def saw_start(self, tp: TopicPartition, start: int) -> None:
        """A consumer was told where the log starts."""
        told = self.starts.get(tp, 0)
        self.expect(start >= told, f"{tp} was told to start at {told}, and starts at {start}")

    def looked_up(self, tp: TopicPartition, lookup: Lookup) -> None:
        """A consumer was told where a time is."""
        self.lookups.setdefault(tp, []).append(lookup)

    # ── At the end ──

    def _values(self, tp: TopicPartition) -> Iterator[tuple[int, bytes]]:
        """What was acknowledged or shown of *tp*."""
        for (at, offset), told in self.acked.items():
            if at == tp and ((at, offset), told) not in self.lost:
                yield offset, told.value
        for (at, offset), row in self.shown.items():
            if at == tp:
                yield offset, row.value

    def check(
        self,
        tp: TopicPartition,
        log: list[Row],
        start: int = 0,
        kept: Mapping[int, Sequence[tuple[int, Row]]] = _NOTHING,
    ) -> None:
        """Everything that was told about *tp*, against the *log* as it is, from its *start* on.

        *kept*: what each node has set aside of it, by the offset that it had.
        """
        end = len(log)
        newest = newest_offsets(log)
        for offset, value in self._values(tp):
            if is_tombstone(value) and offset < end and log[offset] is GONE:
                newest[key_of(value)] = max(offset, newest.get(key_of(value), -1))

        def stands(offset: int, wanted: Callable[[Row], bool], value: bytes) -> bool:
            """Whether the record is there, or compacted: it is a tombstone, or there is or was a
            newer one of its key."""
            if log[offset] is GONE and start <= offset:
                return newest.get(key_of(value), -1) > offset or is_tombstone(value)
            return wanted(log[offset])

        self.saw_start(tp, start)
        for (at, offset), told in self.acked.items():
            if at == tp and offset >= start and ((at, offset), told) not in self.lost:
                self.expect(offset < end, f"acknowledged {told} at {offset} is lost")
                there = stands(offset, told.is_in, told.value)
                self.expect(there, f"{offset}: {told} told, {log[offset]} there")
        moved = {told for _, told in self.displaced}
        values = {row.value for row in log}
        for ((place, offset), told), node in self.owed.items():
            if place == tp and not told.garbage and not start:  # or it may be deleted
                aside = any(told.is_in(row) for _, row in kept.get(node, ()))
                aside = aside or GONE in log  # it may be compacted
                self.expect(
                    told.value in values or aside, f"{told}, told at {offset} by {node}, is nowhere"
                )
        for node, rows in kept.items():
            for offset, row in rows:
                there = start <= offset < end and log[offset] == row
                self.expect(not there, f"{row} is at {offset}, and set aside by {node}")
        for (at, offset), told in self.gone:
            if at == tp and start <= offset < end and not told.garbage and told not in moved:
                there = told.is_in(log[offset])
                self.expect(not there, f"{told} is at {offset}, where the agent said it is not")
        for (at, offset), row in self.shown.items():
            if at == tp and offset >= start:
                self.expect(offset < end, f"{row} was shown at {offset} and is lost")
                there = stands(offset, row.__eq__, row.value)
                self.expect(there, f"{offset}: {row} shown, {log[offset]} there")
        seen = self.high_watermarks.get(tp, 0)
        self.expect(seen <= end, f"high watermark {seen} was told, the log ends at {end}")
        read = self.read_back.get(tp)
        if read is not None:
            first = max(read[0], start)  # what expired meanwhile is owed to nobody
            unread = [
                at
                for at in range(first, read[1])
                if (tp, at) not in self.shown and log[at] is not GONE
            ]
            self.expect(not unread, f"consumers never got {unread}")
        if tp in self.tables and read is not None:
            later = {key_of(row.value) for row in log[read[1] :] if row is not GONE}
            wanted = table_of(enumerate(log[start:], start))
            got, wanted = (
                {key: at for key, at in table.items() if key not in later}
                for table in (self.tables[tp], wanted)
            )
            self.expect(got == wanted, f"a reader has {got}, and the log {wanted}")
        epochs = [row.epoch for row in log if row is not GONE]
        self.expect(epochs == sorted(epochs), f"leader epochs go back: {epochs}")
        for lookup in self.lookups.get(tp, ()) if GONE not in log[start:] else ():
            if lookup.starts != (start, start):
                continue  # what it was true of is gone by now
            low, high = lookup.ends
            ends = range(low, high + 1)
            possible = {_answer(log[:upper], lookup.target_ms, start) for upper in ends}
            self.expect(lookup.found in possible, f"{lookup}: not one of {possible}")


def table_of(rows: Iterable[tuple[int, Row]]) -> dict[bytes, int]:
    """The offset of each key's value, for a reader of *rows* of a compacted topic."""
    table: dict[bytes, int] = {}
    for offset, row in rows:
        if row is GONE:
            continue
        if is_tombstone(row.value):
            table.pop(key_of(row.value), None)
        else:
            table[key_of(row.value)] = offset
    return table


def newest_offsets(log: Sequence[Row]) -> dict[bytes, int]:
    """The offset of each key's newest record."""
    return {key_of(row.value): offset for offset, row in enumerate(log) if row is not GONE}


def _answer(log: list[Row], target_ms: int | None, start: int = 0) -> tuple[int, int, int] | None:
    """What ListOffsets is to say of a log; the largest timestamp's first record for None."""
    if target_ms is None:
        target_ms = max((row.timestamp_ms for row in log[start:]), default=0)
    for offset, row in enumerate(log[start:], start):
        if row.timestamp_ms >= target_ms:
            return offset, row.timestamp_ms, row.epoch
    return None


def random_target(rng: Random, now_ms: float) -> int | None:
    """What a consumer looks up: mostly a time of the last half minute, or the largest."""
    return None if rng.random() < 0.3 else int(now_ms - rng.uniform(-2_000, 30_000))
