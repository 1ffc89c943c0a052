"""Knows what was acknowledged, at which offset, and what consumers were shown; judges the log.

    producers ──sent, acknowledged, failed──▶ ┌────────┐
    consumers ──shown───────────────────────▶ │ Oracle │ ◀── the log, read whole at the end
    the cluster ──led, emptied──────────────▶ └────────┘ ──▶ Verdict

What is promised to whom:

1. `acks=all`, idempotent or not: each acknowledged record is at the offset that was told.
2. idempotent: no record is in the log twice, and each partition has a producer's records in the
   order in which it sent them.
3. `acks=all`, one request in flight: records are told ascending offsets, but where the leader
   changes: librdkafka asks the new one while its request to the old one is open.  So it is counted
   and no breach.
4. `acks=1`: each acknowledged record is in the log, at whichever offset, once what agents have set
   aside was replayed.  One may be gone if the disk was emptied, later than it was sent, of an agent
   that led its partition between its being sent and its being acknowledged.
5. What a consumer was shown at an offset is what everyone is shown there, then and at the end.
   A consumer's offsets ascend by one.
6. The log has no gap, and nothing in it that nobody sent.

A record that failed may be in the log or not.  One that is not idempotent, and was sent again by
its client, may be there twice.

Times are seconds since the start of the run.
Pure.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tests.chaos.records import Origin, TopicPartition, origin_of

_LOOK_S: Final = 1.0
"""How old what the cluster says about leaders may be."""


class Promise(StrEnum):
    """What a producer asked for."""

    IDEMPOTENT = "idempotent"
    ALL_IN_ORDER = "acks=all, one in flight"
    ALL = "acks=all"
    ONE = "acks=1"


class Fault(StrEnum):
    """A broken promise; the values are the table's words."""

    LOST = "lost"
    LOST_ONE = "acks=1 lost, and no disk was emptied"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    CHANGED = "read differently later"
    NOT_ASCENDING = "offsets that did not ascend"
    GAP = "gaps in offsets"
    ALIEN = "records that nobody sent"
    UNANSWERED = "not answered after the faults"


@dataclass(frozen=True, slots=True)
class Violation:
    """One of them, in words."""

    fault: Fault
    at: TopicPartition
    what: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.at}: {self.what}"


@dataclass(frozen=True, slots=True)
class Ack:
    """What a producer was told."""

    sent_s: float
    told_s: float
    offset: int
    """-1 if its client did not say."""


@dataclass(slots=True)
class Verdict:
    """What came of it."""

    violations: list[Violation] = field(default_factory=list)
    acknowledged: Counter[Promise] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Delivery errors, as their users saw them."""
    shown: int = 0
    records: int = 0
    """In the log, at the end."""
    repeated: int = 0
    """Copies of records that are not idempotent, sent again by their clients."""
    reordered: int = 0
    """Records of one request in flight that are behind later ones: see the module."""
    moved: int = 0
    """`acks=1` records that are at another offset than was told."""
    excused: list[str] = field(default_factory=list)
    """`acks=1` records that went with a disk."""
    excused_age_s: float = 0.0
    """How long before its disk went the oldest of them was acknowledged."""
    longest_gap_s: float = 0.0
    gap_from_s: float = 0.0
    """Without an acknowledgement from anywhere."""
    longest_partition_gap_s: float = 0.0
    partition_gap_from_s: float = 0.0
    partition_of_gap: TopicPartition | None = None

    def count(self, fault: Fault) -> int:
        return sum(violation.fault is fault for violation in self.violations)


class _Gaps:
    """The longest time between two moments."""

    def __init__(self, start_s: float) -> None:
        self._last_s = start_s
        self.longest_s = 0.0
        self.from_s = start_s

    def moment(self, now_s: float) -> None:
        if now_s - self._last_s > self.longest_s:
            self.longest_s, self.from_s = now_s - self._last_s, self._last_s
        self._last_s = max(self._last_s, now_s)


class Oracle:
    """See the module.  Any thread may tell it things."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = tuple(partitions)
        self._lock = threading.Lock()
        self._promises: dict[str, Promise] = {}
        self._sent: dict[tuple[TopicPartition, str], dict[int, float]] = defaultdict(dict)
        self._acks: dict[tuple[TopicPartition, str], dict[int, Ack]] = defaultdict(dict)
        self._counts: dict[tuple[TopicPartition, str], int] = defaultdict(int)
        self._failed: Counter[str] = Counter()
        self._shown: dict[TopicPartition, dict[int, Origin | None]] = defaultdict(dict)
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._reads = 0
        self._violations: list[Violation] = []
        self._led: dict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)
        self._emptied: list[tuple[float, int]] = []
        self._gap: _Gaps | None = None
        self._gaps: dict[TopicPartition, _Gaps] = {}

    # ── Producers ──

    def producer(self, name: str, promise: Promise) -> None:
        self._promises[name] = promise

    def sent(self, at: TopicPartition, producer: str, now_s: float) -> Origin:
        """A record is about to be sent; its number is the next one."""
        with self._lock:
            n = self._counts[at, producer]
            self._counts[at, producer] = n + 1
            self._sent[at, producer][n] = now_s
        return Origin(producer, n)

    def acknowledged(self, at: TopicPartition, origin: Origin, offset: int, now_s: float) -> None:
        with self._lock:
            sent_s = self._sent[at, origin.producer].pop(origin.n)
            self._acks[at, origin.producer][origin.n] = Ack(sent_s, now_s, offset)
            if self._gap is not None:
                self._gap.moment(now_s)
                self._gaps[at].moment(now_s)

    def failed(self, at: TopicPartition, origin: Origin, error: str) -> None:
        """Its producer was told that it may not be there."""
        with self._lock:
            del self._sent[at, origin.producer][origin.n]
            self._failed[error] += 1

    def watch_gaps(self, now_s: float) -> None:
        """Times without acknowledgements count from now on."""
        with self._lock:
            self._gap = _Gaps(now_s)
            self._gaps = {at: _Gaps(now_s) for at in self.partitions}

    def end_gaps(self, now_s: float) -> None:
        """They count until now."""
        with self._lock:
            for gap in (self._gap, *self._gaps.values()):
                assert gap is not None
                gap.moment(now_s)

    @property
    def acknowledgements(self) -> dict[TopicPartition, int]:
        """How many there were, of each partition."""
        with self._lock:
            counts = dict.fromkeys(self.partitions, 0)
            for (at, _), acks in self._acks.items():
                counts[at] += len(acks)
            return counts

    @property
    def open_records(self) -> int:
        """How many were sent, and nobody knows what became of them."""
        with self._lock:
            return sum(map(len, self._sent.values()))

    # ── Consumers ──

    def starts(self, consumer: str, at: TopicPartition, offset: int) -> None:
        """*consumer* reads *at* from *offset* on."""
        with self._lock:
            self._positions[consumer, at] = offset

    def shown(self, consumer: str, at: TopicPartition, offset: int, value: bytes | None) -> None:
        """*consumer* was given this."""
        origin = origin_of(value)
        with self._lock:
            self._reads += 1
            expected = self._positions[consumer, at]
            if offset != expected:
                self._broken(Fault.NOT_ASCENDING, at, f"{consumer}: {offset}, not {expected}")
            self._positions[consumer, at] = offset + 1
            before = self._shown[at].setdefault(offset, origin)
            if before != origin:
                self._broken(
                    Fault.CHANGED, at, f"offset {offset}, {consumer}: was {before}, is {origin}"
                )

    def shown_ends(self) -> dict[TopicPartition, int]:
        """One past the last offset that any consumer was shown."""
        with self._lock:
            return {at: max(self._shown[at], default=-1) + 1 for at in self.partitions}

    def refused(self, consumer: str, at: TopicPartition, error: str) -> None:
        """*consumer* was told that there is no such offset, although it only went forward."""
        with self._lock:
            self._broken(Fault.NOT_ASCENDING, at, f"{consumer}: {error}")

    # ── The cluster ──

    def led(self, at: TopicPartition, node_id: int, now_s: float) -> None:
        """*node_id* leads *at*, and goes on until another one does."""
        with self._lock:
            if not self._led[at] or self._led[at][-1][1] != node_id:
                self._led[at].append((now_s, node_id))

    def emptied(self, node_id: int, now_s: float) -> None:
        """The disk of *node_id* is gone."""
        with self._lock:
            self._emptied.append((now_s, node_id))

    # ── At the end ──

    def judge(self, logs: dict[TopicPartition, list[tuple[int, bytes | None]]]) -> Verdict:
        """The verdict, by *logs*: each partition's offsets and values, read by a fresh consumer.

        Nobody may tell the oracle anything any more.
        """
        for (at, producer), open_ in self._sent.items():
            for n, sent_s in open_.items():
                self._broken(Fault.UNANSWERED, at, f"{producer} #{n}, sent at {sent_s:.3f} s")
        verdict = Verdict(violations=self._violations, failed=self._failed, shown=self._reads)
        for at in self.partitions:
            self._judge_log(at, logs[at], verdict)
        for (_, producer), acks in self._acks.items():
            verdict.acknowledged[self._promises[producer]] += len(acks)
        if self._gap is not None:
            verdict.longest_gap_s, verdict.gap_from_s = self._gap.longest_s, self._gap.from_s
            longest = max(self._gaps, key=lambda at: self._gaps[at].longest_s)
            verdict.partition_of_gap = longest
            verdict.longest_partition_gap_s = self._gaps[longest].longest_s
            verdict.partition_gap_from_s = self._gaps[longest].from_s
        return verdict

    def _judge_log(
        self, at: TopicPartition, log: list[tuple[int, bytes | None]], verdict: Verdict
    ) -> None:
        verdict.records += len(log)
        there: dict[int, Origin | None] = {}
        places: dict[Origin, list[int]] = defaultdict(list)
        for offset, value in log:
            origin = origin_of(value)
            there[offset] = origin
            if origin is None or origin.n >= self._counts.get((at, origin.producer), 0):
                self._broken(Fault.ALIEN, at, f"offset {offset}: {value!r:.120}")
            else:
                places[origin].append(offset)
        self._judge_offsets(at, [offset for offset, _ in log])
        for offset, origin in self._shown[at].items():
            now = there.get(offset)
            if offset not in there or now != origin:
                said = f"offset {offset}: a consumer saw {origin}, the log has {now}"
                self._broken(Fault.CHANGED, at, said)
        for producer, promise in self._promises.items():
            mine = {o.n: offsets for o, offsets in places.items() if o.producer == producer}
            self._judge_copies(at, producer, mine, verdict)
            self._judge_acks(at, producer, there, mine, verdict)
            if promise is Promise.IDEMPOTENT:
                self._judge_order(at, producer, sorted((o[0], n) for n, o in mine.items()))
            elif promise is Promise.ALL_IN_ORDER:
                told = sorted((a.offset, n) for n, a in self._acks[at, producer].items())
                verdict.reordered += sum(m <= n for (_, n), (_, m) in pairwise(told))

    def _judge_offsets(self, at: TopicPartition, offsets: list[int]) -> None:
        for before, offset in pairwise([-1, *offsets]):
            if offset != before + 1:
                self._broken(Fault.GAP, at, f"{offset} follows {before}")

    def _judge_copies(
        self, at: TopicPartition, producer: str, mine: dict[int, list[int]], verdict: Verdict
    ) -> None:
        for n, offsets in mine.items():
            if len(offsets) > 1 and self._promises[producer] is Promise.IDEMPOTENT:
                self._broken(Fault.DUPLICATED, at, f"{producer} #{n} at {offsets}")
            elif len(offsets) > 1:
                verdict.repeated += len(offsets) - 1

    def _judge_acks(
        self,
        at: TopicPartition,
        producer: str,
        there: dict[int, Origin | None],
        mine: dict[int, list[int]],
        verdict: Verdict,
    ) -> None:
        for n, ack in sorted(self._acks[at, producer].items()):
            offsets = mine.get(n, [])
            if ack.offset in offsets or (ack.offset < 0 and offsets):
                continue
            said = f"{producer} #{n}, told offset {ack.offset} at {ack.told_s:.3f} s"
            said += f", sent at {ack.sent_s:.3f} s; there is {there.get(ack.offset)}"
            if self._promises[producer] is not Promise.ONE:
                where = f"; it is at {offsets}" if offsets else ""
                self._broken(Fault.LOST, at, said + where)
            elif offsets:
                verdict.moved += 1
            elif excuse := self._excuse(at, ack):
                emptied_s, node_id = excuse
                went = f"the disk of node {node_id} was emptied at {emptied_s:.3f} s"
                verdict.excused.append(f"{at}: {said}; {went}")
                verdict.excused_age_s = max(verdict.excused_age_s, emptied_s - ack.told_s)
            else:
                self._broken(Fault.LOST_ONE, at, said)

    def _judge_order(
        self, at: TopicPartition, producer: str, placed: list[tuple[int, int]]
    ) -> None:
        for (offset, n), (after, m) in pairwise(placed):
            if m <= n:
                said = f"{producer} #{n} at {offset} is before #{m} at {after}"
                self._broken(Fault.OUT_OF_ORDER, at, said)

    def _excuse(self, at: TopicPartition, ack: Ack) -> tuple[float, int] | None:
        """When whose emptied disk took it."""
        leaders = set(self._leaders(at, ack.sent_s - _LOOK_S, ack.told_s + _LOOK_S))
        for emptied_s, node_id in self._emptied:
            if node_id in leaders and emptied_s >= ack.sent_s:
                return emptied_s, node_id
        return None

    def _leaders(self, at: TopicPartition, first_s: float, last_s: float) -> Iterator[int]:
        """Who led at some time between the two."""
        changes = [*self._led[at], (float("inf"), -1)]
        for (since_s, node_id), (until_s, _) in pairwise(changes):
            if since_s <= last_s and until_s >= first_s:
                yield node_id

    def _broken(self, fault: Fault, at: TopicPartition, what: str) -> None:
        self._violations.append(Violation(fault, at, what))
