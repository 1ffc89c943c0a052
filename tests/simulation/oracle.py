"""What clients were told, and whether the log that is there at the end keeps to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from driftlog_metadata.model import TopicPartition
from tests.simulation.batches import Row

Expect = Callable[[bool, str], None]


class Lookup(NamedTuple):
    """An answer to ListOffsets; *target_ms* None: it asked for the largest timestamp."""

    target_ms: int | None
    found: tuple[int, int, int] | None
    """Offset, timestamp, leader epoch."""
    ends: tuple[int, int]
    """High watermarks before the question and after the answer: it is true of one between."""


@dataclass(slots=True, eq=False)
class Oracle:
    """See the module."""

    expect: Expect
    acked: dict[tuple[TopicPartition, int], tuple[bytes, bool]] = field(default_factory=dict)
    """(value, whether it is garbage) by the offset that the producer was told."""
    ones: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """What of it was acks=1."""
    weak: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """What of that was only on a disk that is gone: it may be there, or not."""
    shown: dict[tuple[TopicPartition, int], Row] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    lookups: dict[TopicPartition, list[Lookup]] = field(default_factory=dict)
    read_back: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to where the last consumer has read everything."""
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)

    # ── While it runs ──

    def acknowledge(
        self, tp: TopicPartition, offset: int, value: bytes, *, garbage: bool, one: bool
    ) -> None:
        """A producer was told that *value* is at *offset*; *one*: with acks=1."""
        if (tp, offset) in self.weak:
            self.weak.discard((tp, offset))
            self.acked.pop((tp, offset), None)
            self.ones.discard((tp, offset))
        if one and (tp, offset) not in self.acked:
            self.ones.add((tp, offset))
        if not one:
            self.ones.discard((tp, offset))
        before = self.acked.setdefault((tp, offset), (value, garbage))
        self.expect(
            before == (value, garbage), f"offset {offset} was told for {before} and for {value!r}"
        )
        self._agree(tp, offset)

    def show(self, tp: TopicPartition, offset: int, row: Row) -> None:
        """A consumer was given *row* at *offset*."""
        before = self.shown.setdefault((tp, offset), row)
        self.expect(before == row, f"offset {offset} was {before}, and now {row}")
        self._agree(tp, offset)

    def _agree(self, tp: TopicPartition, offset: int) -> None:
        told, shown = self.acked.get((tp, offset)), self.shown.get((tp, offset))
        if told is not None and shown is not None and (tp, offset) not in self.weak:
            self.expect(told == shown[:2], f"offset {offset}: {told} told, {shown} shown")

    def lose_disk(self) -> None:
        """What was acks=1 and is not known to be committed may be gone."""
        self.weak |= {at for at in self.ones if at[1] >= self.high_watermarks.get(at[0], 0)}

    def saw_high_watermark(self, tp: TopicPartition, high_watermark: int) -> None:
        """A consumer was told a high watermark."""
        before = self.high_watermarks.get(tp, 0)
        self.expect(high_watermark >= before, f"high watermark {before} became {high_watermark}")
        self.high_watermarks[tp] = high_watermark

    def leads(self, tp: TopicPartition, epoch: int) -> None:
        """A session claimed the partition: with a larger leader epoch than all before it."""
        before = self.leader_epochs.get(tp, -1)
        self.expect(epoch > before, f"leader epoch {before}, then {epoch}")
        self.leader_epochs[tp] = epoch

    def looked_up(self, tp: TopicPartition, lookup: Lookup) -> None:
        """A consumer was told where a time is."""
        self.lookups.setdefault(tp, []).append(lookup)

    # ── At the end ──

    def check(self, tp: TopicPartition, log: list[Row]) -> None:
        """Everything that was told about *tp*, against the *log* as it is."""
        end = len(log)
        for (at, offset), told in self.acked.items():
            if at == tp and (at, offset) not in self.weak:
                self.expect(offset < end, f"acknowledged {told} at {offset} is lost")
                self.expect(log[offset][:2] == told, f"{offset}: {told} told, {log[offset]} there")
        for (at, offset), row in self.shown.items():
            if at == tp:
                self.expect(offset < end, f"{row} was shown at {offset} and is lost")
                self.expect(log[offset] == row, f"{offset}: {row} shown, {log[offset]} there")
        seen = self.high_watermarks.get(tp, 0)
        self.expect(seen <= end, f"high watermark {seen} was told, the log ends at {end}")
        read = self.read_back.get(tp)
        if read is not None:
            unread = [offset for offset in range(read) if (tp, offset) not in self.shown]
            self.expect(not unread, f"consumers never got {unread}")
        epochs = [row.epoch for row in log]
        self.expect(epochs == sorted(epochs), f"leader epochs go back: {epochs}")
        for lookup in self.lookups.get(tp, ()):
            low, high = lookup.ends
            possible = {_answer(log[:upper], lookup.target_ms) for upper in range(low, high + 1)}
            self.expect(lookup.found in possible, f"{lookup}: not one of {possible}")


def _answer(log: list[Row], target_ms: int | None) -> tuple[int, int, int] | None:
    """What ListOffsets is to say of a log; the largest timestamp's first record for None."""
    if target_ms is None:
        target_ms = max((row.timestamp_ms for row in log), default=0)
    for offset, row in enumerate(log):
        if row.timestamp_ms >= target_ms:
            return offset, row.timestamp_ms, row.epoch
    return None


def random_target(rng: Random, now_ms: float) -> int | None:
    """What a consumer looks up: mostly a time of the last half minute, or the largest."""
    return None if rng.random() < 0.3 else int(now_ms - rng.uniform(-2_000, 30_000))
