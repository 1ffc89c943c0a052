"""The flush pipeline of one session: from admitted batches to committed flush objects.

    append        cut            upload           commit
    ──────▶ open ─────▶ queued ─────────▶ stored ────────▶ committed ──▶ Publish
                        ▲ ▲  │ hedge: a second attempt  │   ▲    │
                        │ └──┘ failed: again, another   │   └────┘ refused, or the answer lost:
                        │      name                     │          the same transaction again
                        └───────────────────────────────┘   ╳ fenced: SessionFenced, no later effect
                          its PUT began 6 h ago, and no     ╳ its PUT began 6 h ago: Expired,
                          commit of it was sent               then SessionFenced

Uploads run side by side and end in any order; commits go one at a time and in
the order of the cuts.  tests/simulation holds it to this:

1. A flush is committed only after one of its attempts is stored, and its record
   names that attempt.
2. Sequence numbers are dense, and committed in order.
3. After `SessionFenced` there are no more effects.
4. An object's name is never used twice: each attempt has its own nonce.
5. No commit is sent for an object whose PUT began `max_object_age_ms` ago or earlier: the collector
   deletes unnamed objects that are twice as old (`collector`).  A flush that waited so long for its
   turn is uploaded again under a new name.  A flush whose commit was sent keeps its name, because
   that commit may still take effect.  A refused commit counts as sent, because "database space
   exceeded" does not say what has happened.  The session ends then, which fences the commit; the
   next session appends what the disk holds.

`ingest/flusher` performs the effects, and `foundation/rate_limit` says how fast.
Pure.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from driftlog_agents.foundation.rate_limit import Backoff, HedgeBudget, Throttle, TokenBucket
from driftlog_agents.log.ingest.flush_effects import (
    Abandon,
    Commit,
    Cut,
    Effect,
    Expired,
    Flush,
    FlushStage,
    Publish,
    SessionFenced,
    Upload,
)
from driftlog_agents.log.partition.batch import Batch, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_tiering.foundation.types import MiB

_MANY_FLUSHES: Final = 64
"""From so many uncommitted flushes on, steps cut none: each event scans all flushes."""

_STEPS_LATER: Final = 3
"""Moving a high watermark, or answering a producer, takes as long as laying out three batches."""


_MOST_HELD: Final = 4
"""Cut, too, at so many times `flush_bytes` of memory: batches may be small parts of their frames.
More: such clients take more memory; less: clients of tiny batches cause more PUTs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When the buffer is cut, and how uploads and commits are repeated."""

    flush_bytes: int = 8 * MiB
    """Cut at this size.  Larger: fewer PUTs, later acks, more memory."""

    flush_steps: int = 20_000
    """Cut at this many steps, during which the event loop does nothing else: one for a batch,
    `_STEPS_LATER` more where its producer waits for the commit, and `_STEPS_LATER` for a partition.
    More: fewer PUTs of tiny batches, longer stalls."""

    flush_interval_ms: float = 250
    """Cut when the first byte is this old.  Longer: fewer PUTs at a low rate, later acks."""

    quiet_ms: float = 5
    """Cut early when all waiting producers have sent nothing for this long.  Shorter: more,
    smaller PUTs."""

    lockstep_ms: float = 25
    """A producer that sends again within this time after a commit counts as in lockstep: the cut
    waits for it no longer once it has sent a request for each answer.  Longer: slower clients count
    too, and more cuts come too soon for producers that only pause."""

    flushes_per_second: float = 20
    """Cap on flushes cut by age or early (each PUT/s is $13 a month); cuts by size and steps have
    no cap."""

    burst: float = 5
    """Such flushes in a row before the cap applies."""

    max_uploads: int = 8
    """PUTs of flushes in flight.  More: more throughput on a slow store, more memory."""

    upload_deadline_ms: float = 15_000
    """How long an upload may take before it is cancelled and repeated under another name."""

    commit_deadline_ms: float = 2_000
    """How long a commit may go unanswered before it is repeated."""

    retry_backoff_ms: float = 50
    retry_backoff_max_ms: float = 2_000
    """First and longest wait before a failed request is repeated; with jitter."""

    hedge_share: float = 0.05
    """At most this share of PUTs are hedges."""

    hedge_min_ms: float = 20
    """No hedge before this: a quick store gets each PUT once."""

    lost_ms: float = 2_000
    """After this an answer counts as lost, and its PUT is hedged whatever `hedge_share` says.
    Longer: while many answers are lost, each of them delays all commits longer; shorter: more PUTs
    than `hedge_share` allows."""

    max_object_age_ms: float = 6 * 3_600_000
    """From the beginning of a PUT until its object may no longer be committed: grace / 2.  Longer:
    an object may be deleted and then committed.  Shorter: an outage of the metadata store ends
    sessions sooner."""


class FlushPipeline:
    """See the module."""

    def __init__(self, settings: FlushSettings, rng: Random) -> None:
        self.settings = settings
        self._open: dict[PartitionLog, list[Batch]] = {}
        self._open_bytes = 0
        self._open_held_bytes = 0
        self._held: object = None
        """The memory that was counted last: batches of one frame, or of one read, share it."""
        self._open_steps = 0
        self._opened_at_ms = 0.0
        self._sources: set[ConnectionActivity] = set()
        self._answered: set[ConnectionActivity] = set()
        self._answered_ms = 0.0
        """The producers that waited for the last commit, and its time."""
        self._draining = False
        self._hurrying = False
        """The open buffer is cut at once; later batches are not."""
        self._lost = False
        self._next_seq = 1
        self._flushes: deque[Flush] = deque()
        """Cut and not committed, oldest first."""
        self._tokens = TokenBucket(settings.flushes_per_second, settings.burst)
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, rng)
        self._throttle = Throttle(settings.max_uploads, self._backoff)
        self.hedging = HedgeBudget(settings.hedge_share, settings.hedge_min_ms, settings.lost_ms)
        self._commit_retry_at_ms: float | None = None
        self._commit_failures = 0
        self.committed_seq = 0
        self.hedges = 0
        self.puts = 0

    # ── State ──

    @property
    def open_held_bytes(self) -> int:
        """Memory of admitted batches that are not cut yet."""
        return self._open_held_bytes

    @property
    def pending_bytes(self) -> int:
        """Admitted bytes that are not committed yet."""
        return self._open_bytes + sum(flush.size_bytes for flush in self._flushes)

    @property
    def idle(self) -> bool:
        """Whether every admitted batch is committed."""
        return not self._open and not self._flushes

    @property
    def flushes(self) -> Iterable[Flush]:
        """Cut and not committed, oldest first."""
        return self._flushes

    def uncommitted(self) -> dict[PartitionLog, list[Batch]]:
        """Every admitted batch that is not committed, per partition in offset order."""
        found: dict[PartitionLog, list[Batch]] = {}
        for flush in self._flushes:
            for log, batches in flush.batches.items():
                found.setdefault(log, []).extend(batches)
        for log, batches in self._open.items():
            found.setdefault(log, []).extend(batches)
        return found

    def uncommitted_bytes(self) -> Counter[PartitionLog]:
        """Admitted bytes that are not committed, per partition that has some."""
        found: Counter[PartitionLog] = Counter()
        for batches in (*(flush.batches for flush in self._flushes), self._open):
            for log, listed in batches.items():
                found[log] += sum(batch.length for batch in listed)
        return found

    # ── Events ──

    def append(
        self, log: PartitionLog, batch: Batch, source: ConnectionActivity | None, now_ms: float
    ) -> bool:
        """Buffer a batch.  *source*: the producer that waits for its commit.  True:
        call `tick` now."""
        assert not self._lost
        batches = self._open.get(log)
        if batches is None:
            if not self._open:
                self._opened_at_ms = now_ms
            self._open[log] = [batch]
            self._open_steps += _STEPS_LATER
        else:
            batches.append(batch)
        self._open_bytes += batch.length
        self._open_steps += 1
        if source is not None:
            self._sources.add(source)
            self._open_steps += _STEPS_LATER
        settings = self.settings
        memory = batch.view.obj  # type: ignore[union-attr]  # it has its view until it is cut
        if memory is not self._held:
            self._held = memory
            self._open_held_bytes += len(memory)  # type: ignore[arg-type]
            if self._open_held_bytes >= _MOST_HELD * settings.flush_bytes:
                return True
        if self._open_bytes >= settings.flush_bytes:
            return True
        return self._open_steps >= settings.flush_steps and self._is_full()

    def is_back(self, source: ConnectionActivity) -> bool:
        """Whether *source* waited for the last commit and has sent a request for each answer
        since."""
        return (
            source in self._answered
            and 0 < source.answers - source.answers_then <= source.requests - source.requests_then
            and source.heard_ms <= self._answered_ms + self.settings.lockstep_ms
        )

    def hurry(self) -> None:
        """Cut the open buffer at the next `tick` (hand-over of some partitions)."""
        self._hurrying = bool(self._open)

    def drain(self) -> None:
        """From now on cut the open buffer at each `tick` (shutdown, release)."""
        self._draining = True

    def resume(self) -> None:
        """Undo `drain`."""
        self._draining = False

    def deadline_ms(self, now_ms: float) -> float | None:
        """When to `tick` next; None: not before an append or an answer."""
        if self._lost:
            return None
        times: list[float] = []
        if self._open:
            due = self._cut_due_ms(now_ms)
            if due is not None:
                times.append(due)
        if self._commit_retry_at_ms is not None:
            times.append(self._commit_retry_at_ms)
        room = self._uploading() < self._throttle.limit
        for flush in self._flushes:
            if flush.stage is FlushStage.QUEUED and room:
                times.append(max(flush.retry_at_ms, self._throttle.resume_at_ms))
            elif flush.stage is FlushStage.UPLOADING and not flush.hedged:
                at = self._hedge_at_ms(flush)
                if at is not None:
                    times.append(at)
        return min(times, default=None)

    def tick(self, now_ms: float) -> list[Effect]:
        """Return the effects that are due at *now_ms*.  Harmless at any time."""
        if self._lost:
            return []
        effects: list[Effect] = []
        if self._open:
            reason = self._cut_reason(now_ms)
            if reason is not None:
                effects.append(self._cut(reason))
        self._requeue_old(now_ms)
        self._start_uploads(now_ms, effects)
        self._start_commit(now_ms, effects)
        return effects

    def upload_succeeded(self, flush: Flush, attempt: int, now_ms: float) -> list[Effect]:
        """The attempt's object is whole in the bucket."""
        started = flush.attempts.pop(attempt, None)
        if self._lost or flush.stage is not FlushStage.UPLOADING:
            return []
        if started is not None:
            self.hedging.succeeded(now_ms - started)
        self._throttle.succeeded()
        flush.stage = FlushStage.STORED
        flush.stored_attempt = attempt
        effects: list[Effect] = [Abandon(flush, other) for other in flush.attempts]
        flush.attempts.clear()
        return [*effects, *self.tick(now_ms)]

    def upload_failed(
        self, flush: Flush, attempt: int, now_ms: float, *, throttled: bool
    ) -> list[Effect]:
        """The PUT was refused or not answered.  *throttled*: the store asks for fewer requests."""
        flush.attempts.pop(attempt, None)
        if self._lost or flush.stage is not FlushStage.UPLOADING:
            return []
        if throttled:
            self._throttle.refused(now_ms)
        if flush.attempts:
            return self.tick(now_ms)  # another attempt is in flight
        flush.stage = FlushStage.QUEUED
        flush.hedged = False
        flush.retry_at_ms = now_ms + self._backoff.wait_ms(flush.failures)
        flush.failures += 1
        return self.tick(now_ms)

    def commit_succeeded(self, flush: Flush, now_ms: float) -> list[Effect]:
        """The flush record is in the metadata store."""
        if self._lost or flush.stage is not FlushStage.COMMITTING:
            return []
        assert self._flushes[0] is flush
        assert flush.seq == self.committed_seq + 1
        self._flushes.popleft()
        self._answered, self._answered_ms = flush.sources, now_ms
        for source in flush.sources:
            source.requests_then, source.answers_then = source.requests, source.answers
        flush.stage = FlushStage.COMMITTED
        self.committed_seq = flush.seq
        self._commit_failures = 0
        self._commit_retry_at_ms = None
        return [Publish(flush), *self.tick(now_ms)]

    def commit_failed(self, flush: Flush, now_ms: float) -> list[Effect]:
        """The commit was refused, or its answer lost: the same transaction is sent again."""
        if self._lost or flush.stage is not FlushStage.COMMITTING:
            return []
        self._commit_retry_at_ms = now_ms + self._backoff.wait_ms(self._commit_failures)
        self._commit_failures += 1
        return self.tick(now_ms)

    def commit_delayed(self, flush: Flush, now_ms: float) -> list[Effect]:
        """The commit was not sent: it is given out again, or its object is too old by now."""
        if self._lost or flush.stage is not FlushStage.COMMITTING:
            return []
        if self._commit_failures:
            self._commit_retry_at_ms = now_ms  # an earlier attempt may still take effect
        else:
            flush.stage = FlushStage.STORED
        return self.tick(now_ms)

    def fenced(self) -> list[Effect]:
        """The session is over."""
        if self._lost:
            return []
        self._lost = True
        if self._open:
            self._cut("lost")
        return [SessionFenced(tuple(self._flushes))]

    # ── Cutting ──

    def _is_full(self) -> bool:
        settings = self.settings
        if self._open_bytes >= settings.flush_bytes:
            return True
        if self._open_held_bytes >= _MOST_HELD * settings.flush_bytes:
            return True
        return self._open_steps >= settings.flush_steps and len(self._flushes) < _MANY_FLUSHES

    def _cut_due_ms(self, now_ms: float) -> float | None:
        """When to cut the open buffer; None: there are too many uploads for a cut by age."""
        if self._draining or self._hurrying or self._is_full():
            return now_ms
        if self._uploading() + self._queued() >= self._throttle.limit:
            return None  # waiting costs nothing now, and makes one larger object
        due = self._opened_at_ms + self.settings.flush_interval_ms
        if self._sources and not self._uploading() and not self._queued():
            due = min(due, self._complete_ms())
        return max(due, self._tokens.ready_at_ms(now_ms)) if due <= now_ms else due

    def _complete_ms(self) -> float:
        """When all producers that wait for the open buffer count as having sent all they will.

        Where another producer was answered just now and may send again, the cut waits for it.
        """
        quiet_ms = self.settings.quiet_ms
        if self._answered <= self._sources:
            return max(s.heard_ms + (0 if self.is_back(s) else quiet_ms) for s in self._sources)
        return max(source.heard_ms for source in self._sources) + quiet_ms

    def _cut_reason(self, now_ms: float) -> str | None:
        if self._draining or self._hurrying:
            return "drain"
        if self._is_full():
            return "size"
        due = self._cut_due_ms(now_ms)
        if due is None or due > now_ms or not self._tokens.take(now_ms):
            return None
        aged = now_ms >= self._opened_at_ms + self.settings.flush_interval_ms
        return "age" if aged else "early"

    def _cut(self, reason: str) -> Cut:
        flush = Flush(
            self._next_seq,
            self._open,
            self._open_bytes,
            self._open_held_bytes,
            reason,
            self._sources,
        )
        self._flushes.append(flush)
        self._next_seq += 1
        self._hurrying = False
        self._open = {}
        self._open_bytes = 0
        self._open_held_bytes = 0
        self._held = None
        self._open_steps = 0
        self._sources = set()
        return Cut(flush)

    # ── Uploads ──

    def _uploading(self) -> int:
        return sum(1 for flush in self._flushes if flush.stage is FlushStage.UPLOADING)

    def _queued(self) -> int:
        return sum(1 for flush in self._flushes if flush.stage is FlushStage.QUEUED)

    def _start_uploads(self, now_ms: float, effects: list[Effect]) -> None:
        room = self._throttle.limit - self._uploading()
        for flush in self._flushes:
            due_ms = max(flush.retry_at_ms, self._throttle.resume_at_ms)
            if flush.stage is FlushStage.QUEUED and room > 0 and due_ms <= now_ms:
                flush.stage = FlushStage.UPLOADING
                effects.append(self._attempt(flush, now_ms))
                room -= 1
            elif flush.stage is FlushStage.UPLOADING and not flush.hedged:
                at = self._hedge_at_ms(flush)
                if at is not None and at <= now_ms:
                    flush.hedged = True
                    self.hedging.take()
                    self.hedges += 1
                    effects.append(self._attempt(flush, now_ms))

    def _attempt(self, flush: Flush, now_ms: float) -> Upload:
        attempt = len(flush.began_ms)
        flush.began_ms.append(now_ms)
        flush.attempts[attempt] = now_ms
        self.puts += 1
        self.hedging.put()
        return Upload(flush, attempt)

    def _hedge_at_ms(self, flush: Flush) -> float | None:
        return self.hedging.due_ms(min(flush.attempts.values())) if flush.attempts else None

    # ── Commits ──

    def is_too_old(self, flush: Flush, now_ms: float) -> bool:
        """Whether the object of a stored *flush* may not be committed any more."""
        began_ms = flush.began_ms[flush.stored_attempt]
        return now_ms - began_ms >= self.settings.max_object_age_ms

    def _requeue_old(self, now_ms: float) -> None:
        """Upload stored flushes again whose object is too old, and of which no commit was sent.

        Not while the oldest flush is not stored: the new objects would only get old, too.  All at
        once, so that uploads run side by side.
        """
        if not self._flushes or self._flushes[0].stage in (FlushStage.QUEUED, FlushStage.UPLOADING):
            return
        for flush in self._flushes:
            if flush.stage is FlushStage.STORED and self.is_too_old(flush, now_ms):
                flush.stage = FlushStage.QUEUED
                flush.stored_attempt = -1
                flush.hedged = False
                flush.retry_at_ms = now_ms

    def _start_commit(self, now_ms: float, effects: list[Effect]) -> None:
        if not self._flushes:
            return
        head = self._flushes[0]
        if head.stage is FlushStage.STORED:
            head.stage = FlushStage.COMMITTING
            effects.append(Commit(head))
        elif (
            head.stage is FlushStage.COMMITTING
            and self._commit_retry_at_ms is not None
            and self._commit_retry_at_ms <= now_ms
        ):
            if self.is_too_old(head, now_ms):
                effects += [Expired(head), *self.fenced()]
                return
            self._commit_retry_at_ms = None
            effects.append(Commit(head))
