"""One led partition: which offsets exist, which are committed, and where their batches are.

    sealed_end, log_start ≤ high_watermark ≤ log_end

    │ sealed segments │ committed flushes (the tail) │ admitted, in flight │
    log_start      sealed_end                  high_watermark           log_end

Records may be deleted up to the high watermark: then log start is in the tail, and the offsets
below it are still sealed, so that the log has no gap.

1. Offsets are dense: an admitted batch starts at `log_end`.
2. `high_watermark` moves only over committed flushes, in order, and never back.
3. The tail's slices join without a gap from at or below `sealed_end` to `high_watermark`.
4. A duplicate is answered with its original's offset, once the original is committed.  One request
   waits for each original: that of its newest duplicate.

Pure.
"""

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from driftlog_tiering.batches.producers import ProducerBatch, ProducerStates, Refusal
from driftlog_tiering.formats.manifest import LeaderEpoch

NO_PRODUCER_ID: Final = -1
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class BatchSource(Protocol):
    """The batches of one flush, in its footer's order; see `partition.tail`."""

    def index_of(self, offset: int, first: int, count: int) -> int:
        """Index of the batch in ``[first, first + count)`` that holds *offset*."""
        ...

    def bytes_before(self, index: int, first: int) -> int:
        """Bytes of the batches ``[first, index)``."""
        ...


class StoredAt(NamedTuple):
    """Which object of the bucket holds the batches of a slice, and where in it.

    It never changes: a rewrite puts another slice into the log.  A read that holds this one
    continues with this object, which stays for its grace period.
    """

    object_key: str
    shift_bytes: int
    """From a batch's position in its flush to its position in the object."""


class TailSlice(NamedTuple):
    """What one committed flush holds of one partition: ``[base, end)``, in *count* batches.

    Made by `partition.tail.tail_slice`.
    """

    base: int
    end: int
    data: BatchSource
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no caller
    size_bytes: int
    stored_at: StoredAt
    flushed_at_ms: int = 0
    """When its first batch was flushed, by the wall clock of the agent that flushed it, ms; 0: not
    known."""
    flushed_until_ms: int = 0
    """When its last batch was flushed: a rewrite joins several flushes in one slice."""


_base: Final = itemgetter(0)
"""The base offset of a slice."""


class Waiter(Protocol):
    """A request that waits for a commit or a sync: `Produce` with acks ≠ 0, or a fetch."""

    def committed(self, log: "PartitionLog") -> None:
        """The high watermark reached the offset that a `Produce` waits for, or moved, for a
        fetch."""
        ...

    def synced(self, log: "PartitionLog") -> None:
        """The batch is in the buffer file and on the disk: acks=1 may be answered."""
        ...

    def unsynced(self, log: "PartitionLog") -> None:
        """The disk did not take the batch: acks=1 waits for the commit."""
        ...

    def lost(self, log: "PartitionLog") -> None:
        """It is not committed here: the session is over, or the partition is no longer led here.
        Or the batch was sent again, and the newer request waits in its place."""
        ...


class State(Enum):
    """The states of a partition, by what it admits."""

    LOADING = "loading"
    """Its offsets are known, its producers not yet: batches that cannot be judged wait, or are
    refused where `damage` says that the producers cannot be read."""
    ONLINE = "online"
    OFFLINE = "offline"
    """Its parts do not fit together; `offline_reason` says why.  An operator must act."""
    CLOSED = "closed"
    """No longer led by this session."""


class PolicyKeys(NamedTuple):
    """The keys that have a partition's policies, as they were after its claim: the records of the
    leader before may have been accepted under them, and an older view may have other policies."""

    read_revision: int = 0
    """Of the store, when they were read."""
    topic: int = 0
    """The revision of the topic's key; 0: it is not there."""
    configs: tuple[tuple[str, int], ...] = ()
    """The same of the keys of configs that it inherits."""


class PartitionLog:
    """The state of one partition at its leader."""

    __slots__ = (
        "_bases",
        "_ends_bytes",
        "_flushed_ms",
        "_known_ms",
        "busy",
        "compacted",
        "compacted_end",
        "damage",
        "epochs",
        "full",
        "high_watermark",
        "leader_epoch",
        "leader_revision",
        "log_end",
        "log_start",
        "manifest_version",
        "not_in_file_end",
        "offline_reason",
        "parked",
        "partition",
        "partition_revision",
        "paused",
        "policy_keys",
        "producers",
        "recovered_end",
        "refused_ms",
        "sealed_end",
        "sealed_slices",
        "sessions",
        "settled_ms",
        "slices",
        "state",
        "topic",
        "topic_bytes",
        "topic_id",
        "unsealed_batches",
        "unsealed_bytes",
        "waiters",
        "waiting_duplicates",
        "waiting_fetches",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_id: UUID,
        partition: int,
        leader_epoch: int,
        log_start: int = 0,
        sealed_end: int = 0,
    ) -> None:
        assert 0 <= log_start
        self.topic = topic
        self.topic_id = topic_id
        self.topic_bytes = topic_id.bytes
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log_start = log_start
        self.sealed_end = sealed_end
        self.high_watermark = sealed_end
        self.log_end = sealed_end
        self.recovered_end = sealed_end
        """Where the log ended at the takeover: up to it a manifest may be another leader's."""
        self.not_in_file_end = 0
        """End of the last batch that the buffer file does not hold; 0: none."""
        self.producers = ProducerStates()
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, start offset), ascending in both."""
        self.state = State.ONLINE
        self.offline_reason = ""
        self.damage = ""
        """Why the partition is not sealed: an object is missing or damaged.  Its tail still
        grows."""
        self.full = False
        """Damaged, with as much unsealed data as allowed: it takes no more."""
        self.slices: list[TailSlice] = []
        self.sealed_slices: list[TailSlice] = []
        """Below the tail: sealed, but still in memory or in buffer files; kept by `SealedCache`."""
        self.policy_keys = PolicyKeys()
        self.compacted = False
        """Its topic is compacted: a job may do so behind this leader's back."""
        self.compacted_end = 0
        """Below it no local copy of a sealed slice is read: see `SealedCache.forget`."""
        self._bases: list[int] = []
        self._ends_bytes = array("q")
        """For each slice: bytes of all slices that were ever added, up to and with it."""
        self._known_ms = array("d")
        self._flushed_ms = array("d")
        """For each slice: since when it is known here, by a clock that never goes back; and when it
        was flushed, by wall clocks, but no later than the slices after it."""
        self.waiters: deque[tuple[int, Waiter]] = deque()
        """(end offset, waiter) in the order of admission, and so ascending."""
        self.waiting_duplicates: dict[int, Waiter] = {}
        """End offset → the request of the newest duplicate (`wait_for_commit`)."""
        self.waiting_fetches: dict[Waiter, None] = {}
        self.parked: deque[Callable[[], None]] = deque()
        """Callbacks of requests that wait until the producers are loaded, or a pause is over; later
        batches wait behind them (`waiters.unpark`)."""
        self.paused = False
        """Batches park before their admission, while a hand-over waits for batches in flight."""
        self.busy: deque[Any] = deque()
        """Batches that are checked or converted off the event loop, and later ones behind them."""
        self.sessions: tuple[str, ...] = ()
        self.settled_ms = 0.0
        """Until then producers may still send batches again that the former leader did not take."""
        self.refused_ms = 0.0
        """Until then unknown producers may send batches again that were refused here."""
        self.leader_revision = 0
        self.partition_revision = 0
        self.manifest_version = 0
        self.unsealed_bytes = 0
        self.unsealed_batches = 0

    def __repr__(self) -> str:
        return (
            f"<{self.topic}-{self.partition} epoch {self.leader_epoch} "
            f"[{self.log_start}, {self.sealed_end}, {self.high_watermark}, {self.log_end})>"
        )

    # ── Admission ──

    def judge(
        self, producer_id: int, producer_epoch: int, base_sequence: int, records: int
    ) -> ProducerBatch | Refusal | None:
        """None: the batch may be appended, always so without a producer id; else its original, if
        it is a duplicate, or why it is refused."""
        if producer_id == NO_PRODUCER_ID:
            return None
        return self.producers.check(producer_id, producer_epoch, base_sequence, records)

    def append(
        self,
        records: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        now_ms: float,
    ) -> int:
        """Append a batch that `judge` allows; returns its base offset."""
        assert records > 0
        base = self.log_end
        if producer_id != NO_PRODUCER_ID:
            self.producers.append(producer_id, producer_epoch, base_sequence, records, base, now_ms)
        self.log_end = base + records
        return base

    def wait_for_commit(self, end: int, waiter: Waiter) -> Waiter | None:
        """*waiter* waits for the commit of the admitted batch that ends at *end*, which may be the
        batch of an earlier request.

        Returns the request that waited for it this way before, for the caller to tell `lost`: the
        client that sends a batch again has given that request up.  So no more requests wait than
        batches, which are counted (`FlushMemory`), whatever a client sends again.
        """
        earlier = self.waiting_duplicates.get(end)
        self.waiting_duplicates[end] = waiter
        return earlier

    def put_epochs_below(self, sealed: Iterable[LeaderEpoch]) -> None:
        """Puts the epochs of the *sealed* part, as the manifest has them, below those of the
        tail."""
        known = [(entry.epoch, entry.start_offset) for entry in sealed]
        newest = known[-1][0] if known else -1
        self.epochs = known + [entry for entry in self.epochs if entry[0] > newest]

    def start_epoch(self, epoch: int, start: int) -> None:
        """Note that batches of *epoch* begin at *start* (`LeaderEpochFileCache#assign`)."""
        if self.epochs and self.epochs[-1][0] >= epoch:
            assert self.epochs[-1][0] == epoch, "leader epochs never go back"
            return
        while self.epochs and self.epochs[-1][1] >= start:
            self.epochs.pop()  # no record was written in that epoch
        self.epochs.append((epoch, start))

    # ── Commit ──

    def commit(self, tail: TailSlice, now_ms: float) -> list[Waiter]:
        """A flush with this slice is committed: returns the waiters that this answers, without
        those of `committed_duplicates`."""
        assert tail.base == self.high_watermark, f"{tail.base} does not continue {self!r}"
        assert tail.end <= self.log_end
        self.restore(tail, now_ms)
        return self._satisfied()

    def restore(self, tail: TailSlice, now_ms: float) -> None:
        """Add a committed slice to the tail, whether its batches were admitted here or not
        (takeover)."""
        assert tail.base <= self.high_watermark < tail.end or tail.base == self.high_watermark
        self.slices.append(tail)
        self._bases.append(tail.base)
        before = self._ends_bytes[-1] if self._ends_bytes else 0
        self._ends_bytes.append(before + tail.size_bytes)
        self._known_ms.append(now_ms)
        self._note_flush(tail.flushed_at_ms or math.inf)
        self.high_watermark = tail.end
        if self.log_end < tail.end:
            self.log_end = tail.end
        self.unsealed_bytes += tail.size_bytes
        self.unsealed_batches += tail.count

    def _note_flush(self, at_ms: float) -> None:
        """The slice that was just added was flushed at *at_ms*, so earlier slices were flushed no
        later: a wall clock that was ahead for a time makes no slice young for long."""
        times = self._flushed_ms
        times.append(at_ms)
        at = len(times) - 2
        while at >= 0 and times[at] > at_ms:
            times[at] = at_ms
            at -= 1

    def _satisfied(self) -> list[Waiter]:
        ready: list[Waiter] = []
        waiters, high_watermark = self.waiters, self.high_watermark
        while waiters and waiters[0][0] <= high_watermark:
            ready.append(waiters.popleft()[1])
        return ready

    def committed_duplicates(self) -> list[Waiter]:
        """Take the requests of duplicates whose originals are committed, for the caller to
        answer."""
        waiting, high_watermark = self.waiting_duplicates, self.high_watermark
        return [waiting.pop(end) for end in list(waiting) if end <= high_watermark]

    def retire(self) -> list[Waiter]:
        """Stop admission and reads; admitted batches are still committed, and their producers are
        answered then.  Returns the waiting fetches, for the caller to wake."""
        self.state, self.paused = State.CLOSED, False
        waiting = list(self.waiting_fetches)
        self.waiting_fetches.clear()
        return waiting

    def close(self) -> list[Waiter]:
        """Stop leading; returns all waiters, for the caller to answer."""
        self.state, self.paused = State.CLOSED, False
        waiting = [w for _, w in self.waiters]
        waiting += [*self.waiting_duplicates.values(), *self.waiting_fetches]
        self.waiters.clear()
        self.waiting_duplicates.clear()
        self.waiting_fetches.clear()
        return waiting

    # ── Tail ──

    def unsealed_age_ms(self, now_ms: float, wall_ms: float) -> float:
        """How long ago the oldest slice of the tail was flushed; 0: there is none.

        By wall clocks the age counts from the flush, under every leader.  By *now_ms*, which never
        goes back, it counts from when this leader learned of the slice: a wall clock that stands or
        was set back makes no slice younger than that.  A clock that was set forward makes it older.
        """
        if not self.slices:
            return 0.0
        return max(0.0, now_ms - self._known_ms[0], wall_ms - self._flushed_ms[0])

    def seal(self, end: int) -> list[TailSlice]:
        """Everything below *end* is sealed: drop and return the slices that end at or below it.

        The other slices keep their age.
        """
        assert self.sealed_end <= end <= self.high_watermark
        self.sealed_end = end
        gone = 0
        while gone < len(self.slices) and self.slices[gone].end <= end:
            gone += 1
        dropped = self.slices[:gone]
        del self.slices[:gone], self._bases[:gone], self._ends_bytes[:gone]
        del self._known_ms[:gone], self._flushed_ms[:gone]
        for tail in dropped:
            self.unsealed_batches -= tail.count
            self.unsealed_bytes -= tail.size_bytes
        return dropped

    def trim(self, tail: TailSlice) -> None:
        """Drop a sealed part of the oldest slice: *tail* is the rest."""
        first = self.slices[0]
        assert first.base < tail.base <= self.sealed_end
        assert tail.end == first.end
        self.slices[0] = tail
        self._bases[0] = tail.base
        self.unsealed_batches -= first.count - tail.count
        self.unsealed_bytes -= first.size_bytes - tail.size_bytes

    def move(self, index: int, stored_at: StoredAt) -> None:
        """Replace the slice at *index* by one with *stored_at*: another object holds its batches
        now."""
        self.slices[index] = self.slices[index]._replace(stored_at=stored_at)

    def find(self, offset: int) -> TailSlice | None:
        """The tail's slice that holds *offset*; None if it is sealed or not committed.

        The first slice may begin below the sealed end; its sealed batches are not read: compaction
        may have removed them from the segments, and then a deletion that came after them.
        """
        if not self.sealed_end <= offset < self.high_watermark:
            return None
        tail = self.slices[bisect_right(self._bases, offset) - 1]
        assert tail.base <= offset < tail.end, f"a gap in the tail of {self!r} at {offset}"
        return tail

    def find_here(self, offset: int) -> TailSlice | None:
        """As `find`, and among sealed slices that may still be local."""
        tail = self.find(offset)
        if tail is None and self.sealed_slices:
            index = bisect_right(self.sealed_slices, offset, key=_base) - 1
            if index >= 0 and offset < self.sealed_slices[index].end:
                return self.sealed_slices[index]
        return tail

    def bytes_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds *offset* on, up to the high watermark.

        Sealed offsets count as 2^31 bytes: no fetch waits for more of them.
        """
        if offset >= self.high_watermark:
            return 0
        if offset < self.sealed_end:
            return 1 << 31
        at = bisect_right(self._bases, offset) - 1
        tail = self.slices[at]
        index = tail.data.index_of(offset, tail.first, tail.count)
        behind = self._ends_bytes[-1] - self._ends_bytes[at]
        return behind + tail.size_bytes - tail.data.bytes_before(index, tail.first)

    def index_of(self, tail: TailSlice) -> int:
        """The index of *tail* in `slices`."""
        return bisect_right(self._bases, tail.base) - 1

    # ── Epochs ──

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at *offset* (historical, for ListOffsets)."""
        i = bisect_right(self.epochs, offset, key=lambda entry: entry[1])
        return self.epochs[i - 1][0] if i else UNDEFINED_EPOCH

    def end_offset_for_epoch(self, requested: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch: `LeaderEpochFileCache#endOffsetFor`."""
        if requested == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if requested == self.leader_epoch:
            return requested, self.high_watermark
        if requested > self.leader_epoch or not self.epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        i = bisect_right(self.epochs, requested, key=lambda entry: entry[0])
        # Kafka drops the epochs below log start; here `recovery` needs them to tell what the log
        # has.
        first = max(bisect_right(self.epochs, self.log_start, key=lambda entry: entry[1]) - 1, 0)
        end = self.high_watermark
        if i <= first:
            end = max(self.epochs[first][1], self.log_start)
        elif i < len(self.epochs):
            end = self.epochs[i][1]
        return (self.epochs[i - 1][0] if i > first else requested), min(end, self.high_watermark)
