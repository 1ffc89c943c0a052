"""Knows every write of every key, and judges what readers from the beginning ended with.

    writers ──sent, acknowledged, failed──▶ ┌─────────────┐
    readers ──readings──────────────────▶   │ TableOracle │ ──▶ violations
                                            └─────────────┘

A reading goes from the beginning of a partition to its end E.

1. Its offsets ascend; E is at least the high watermark that was told before it began.
2. Each record is one that was sent, with its key and its value, at the offset that was told for
   it.  Each offset has the same record in all readings that have one there.
3. For each key it ends with the write of the largest offset below E that was acknowledged, or with
   a later one.
4. It may have nothing of a key whose newest acknowledged write is a tombstone that is older than
   ``delete.retention.ms``, or a write that is older than ``retention.ms`` where the topic also
   deletes.  A reading that took longer than these times may also end with an older write.
5. Log starts and high watermarks that one reader is told never go back.

A write whose client gave up may be in the log or not, anywhere.
Times are seconds since the start of the run.

Pure.
"""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.records import Origin, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """As a reader was shown it."""

    offset: int
    key: bytes
    value: bytes | None
    origin: Origin | None
    """By its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reader, one partition, from its beginning to its end."""

    reader: str
    at: TopicPartition
    began_s: float
    ended_s: float
    low: int
    """Log start and high watermark, told before it began."""
    high: int
    end: int
    """Where it was told that the partition ends."""
    records: tuple[Record, ...]


@dataclass(slots=True)
class Write:
    """One value of one key, or its tombstone (None)."""

    key: bytes
    value: bytes | None
    sent_s: float
    offset: int = -1
    """-1: not acknowledged."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic promises to keep what."""

    tombstones_s: float
    records_s: float = float("inf")


@dataclass(slots=True)
class Verdict:
    """What came of it."""

    violations: list[str] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    readings: int = 0
    records_read: int = 0
    tombstones_gone: int = 0
    """Keys of readings that had nothing, and whose newest write is an old tombstone."""


class TableOracle:
    """See the module.  Any thread may tell it things."""

    def __init__(self, retention: Mapping[TopicPartition, Retention]) -> None:
        self.partitions = tuple(retention)
        self._retention = dict(retention)
        self._lock = threading.Lock()
        self._writes: dict[tuple[TopicPartition, str], list[Write]] = defaultdict(list)
        self._open: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._acknowledged: Counter[TopicPartition] = Counter()
        self._readings: list[Reading] = []

    # ── Writers ──

    def sent(
        self, at: TopicPartition, writer: str, key: bytes, value: bytes | None, now_s: float
    ) -> Origin:
        """A write is about to be sent."""
        with self._lock:
            writes = self._writes[at, writer]
            writes.append(Write(key, value, now_s))
            self._open[writer] += 1
            return Origin(writer, len(writes) - 1)

    def acknowledged(self, at: TopicPartition, origin: Origin, offset: int) -> None:
        with self._lock:
            self._writes[at, origin.producer][origin.n].offset = offset
            self._open[origin.producer] -= 1
            self._acknowledged[at] += 1

    def failed(self, origin: Origin, error: str) -> None:
        """Its client gave up: it may be there or not."""
        with self._lock:
            self._open[origin.producer] -= 1
            self._failed[error] += 1

    @property
    def acknowledgements(self) -> dict[TopicPartition, int]:
        with self._lock:
            return {at: self._acknowledged[at] for at in self.partitions}

    @property
    def open_writes(self) -> int:
        with self._lock:
            return self._open.total()

    # ── Readers ──

    def read(self, reading: Reading) -> None:
        with self._lock:
            self._readings.append(reading)

    # ── At the end ──

    def judge(self) -> Verdict:
        """The verdict.  Nothing is told to the oracle any more."""
        verdict = Verdict(failed=self._failed, readings=len(self._readings))
        verdict.acknowledged = self._acknowledged.total()
        verdict.unknown = sum(
            write.offset < 0 for writes in self._writes.values() for write in writes
        )
        verdict.records_read = sum(len(reading.records) for reading in self._readings)
        for at in self.partitions:
            readings = [reading for reading in self._readings if reading.at == at]
            verdict.violations += self._wrong_records(at, readings)
            verdict.violations += _wrong_ends(readings)
            writes = self._by_key(at)
            for reading in readings:
                self._judge(reading, writes, verdict)
        return verdict

    def _by_key(self, at: TopicPartition) -> dict[bytes, list[Write]]:
        """The writes of each key: acknowledged ones ascending, after those that are not."""
        found: dict[bytes, list[Write]] = defaultdict(list)
        for (where, _), writes in self._writes.items():
            if where == at:
                for write in writes:
                    found[write.key].append(write)
        for writes in found.values():
            writes.sort(key=lambda write: write.offset)
        return found

    def _wrong_records(self, at: TopicPartition, readings: Iterable[Reading]) -> list[str]:
        """Records that are not what was sent there."""
        wrong: list[str] = []
        shown: dict[int, Origin] = {}
        for reading in readings:
            for record in reading.records:
                origin, where = record.origin, f"{at}, offset {record.offset}, {reading.reader}"
                writes = self._writes.get((at, origin.producer), []) if origin else []
                if origin is None or origin.n >= len(writes):
                    wrong.append(f"{where}: nothing sent this: {record}")
                    continue
                write = writes[origin.n]
                if (record.key, record.value) != (write.key, write.value):
                    wrong.append(f"{where}: not as it was sent: {origin}")
                if write.offset not in (-1, record.offset):
                    wrong.append(f"{where}: {origin} was told offset {write.offset}")
                if shown.setdefault(record.offset, origin) != origin:
                    wrong.append(f"{where}: is {origin}, was {shown[record.offset]}")
        return wrong

    def _judge(
        self, reading: Reading, writes: Mapping[bytes, list[Write]], verdict: Verdict
    ) -> None:
        """What *reading* ended with, key by key."""
        retention = self._retention[reading.at]
        ended = {record.key: record for record in reading.records}
        took_s = reading.ended_s - reading.began_s
        for key, of_key in writes.items():
            newest = bisect_left(of_key, reading.end, key=lambda write: write.offset) - 1
            if newest < 0 or of_key[newest].offset < 0:
                continue
            wanted, found = of_key[newest], ended.get(key)
            if found is not None and found.offset >= wanted.offset:
                continue
            age_s = reading.ended_s - wanted.sent_s
            kept_s = retention.records_s
            if wanted.value is None:
                kept_s = min(kept_s, retention.tombstones_s)
            # A client gave up on a tombstone, which is in the log behind the newest value.
            given_up = any(
                write.value is None
                and write.offset < 0
                and reading.ended_s - write.sent_s >= retention.tombstones_s
                for write in of_key
            )
            if found is None and (age_s >= kept_s or given_up):
                verdict.tombstones_gone += wanted.value is None
                continue
            if found is not None and took_s >= kept_s and age_s >= kept_s:
                continue
            verdict.violations.append(
                f"{reading.at}, {reading.reader}, read from {reading.began_s:.3f} to "
                f"{reading.ended_s:.3f} s up to {reading.end}: {key!r} is {found}; offset "
                f"{wanted.offset} was acknowledged, "
                f"{'a tombstone' if wanted.value is None else 'a value'} sent at "
                f"{wanted.sent_s:.3f} s"
            )


def _wrong_ends(readings: Iterable[Reading]) -> list[str]:
    """Offsets that do not ascend, ends that are not reached, bounds that go back."""
    wrong: list[str] = []
    told: dict[str, tuple[int, int]] = {}
    for reading in sorted(readings, key=lambda each: each.began_s):
        where = f"{reading.at}, {reading.reader}, at {reading.began_s:.3f} s"
        offsets = [record.offset for record in reading.records]
        wrong += [f"{where}: {b} follows {a}" for a, b in pairwise(offsets) if b <= a]
        if reading.end < reading.high:
            wrong.append(f"{where}: ends at {reading.end}, the high watermark was {reading.high}")
        low, end = told.get(reading.reader, (0, 0))
        if reading.low < low or reading.high < end:
            bounds = f"[{reading.low}, {reading.high})"
            wrong.append(f"{where}: the log is {bounds}, and was [{low}, {end})")
        told[reading.reader] = reading.low, max(reading.high, reading.end)
    return wrong
