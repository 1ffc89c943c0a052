"""The flusher performs the flush pipeline: it lays out objects, uploads, commits, publishes.

    produce ──▶ append ──▶ buffer file (once a turn)
                  │
                  ▼ timer, size, quiet
                 cut ──▶ PUT ──▶ commit ──▶ high watermark ──▶ answers

Every event enters through `_handle`, which first writes pending batches to the buffer file: at a
cut each batch has its place there.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final

import structlog

from driftlog_agents.foundation.clocks import Clocks
from driftlog_agents.foundation.histogram import OK, REFUSED, UNANSWERED
from driftlog_agents.foundation.loop_slices import call_all
from driftlog_agents.foundation.tasks import spawn
from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.ingest.fetch_news import FetchNews
from driftlog_agents.log.ingest.flush_body import read_body
from driftlog_agents.log.ingest.flush_effects import (
    Abandon,
    Commit,
    Cut,
    Effect,
    Expired,
    Flush,
    FlushTimes,
    Publish,
    SessionFenced,
    Upload,
)
from driftlog_agents.log.ingest.flush_memory import FlushMemory
from driftlog_agents.log.ingest.flush_payload import Payload
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline
from driftlog_agents.log.partition.batch import Batch, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, Waiter
from driftlog_agents.log.session.commit_outcome import CommitOutcome
from driftlog_agents.log.session.counters import FENCED
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionSignals
from driftlog_metadata.schema.model import FOOTER_FACTS_LEVEL, FlushRecord
from driftlog_metadata.stores.errors import (
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

_JOIN_BYTES: Final = 2048
"""Batches smaller than this on average are joined into one buffer for the PUT."""

_LOOK_PATIENCE_MS: Final = 5_000.0
"""How long a commit waits for a look at once.  Longer: an agent that cannot look counts later as
one that commits nothing; then it steps down, if others commit."""

_NO_COMMIT: Final = "the metadata store does not answer a commit"

_OUTCOMES: Final = {
    CommitOutcome.COMMITTED: OK,
    CommitOutcome.UNKNOWN: UNANSWERED,
    CommitOutcome.DEAD: FENCED,
}
"""As the metrics name them."""

Published = Callable[[int, FlushRecord, bytes, list[tuple[PartitionLog, Slice]]], None]


class Flusher:
    """Performs the effects of one session's pipeline.

    Args:
        memory: of the session's pipeline, whose effects this performs.
        published: called for each committed flush, after high watermarks moved: (seq, record,
            footer, slices).
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        buffer: BufferLog,
        memory: FlushMemory,
        rng: Random,
        clocks: Clocks,
        published: Published,
        signals: SessionSignals,
    ) -> None:
        self._session = session
        self._objects = objects
        self._buffer = buffer
        self.memory = memory
        self._pipeline = memory.pipeline
        self._settings = memory.pipeline.settings
        self._rng = rng
        self._now_ms = clocks.now_ms
        self._wall_ms = clocks.wall_ms
        self._published = published
        self._log = structlog.get_logger()
        self._counters = signals.counters
        self._backpressure = signals.backpressure
        self._tasks: asyncio.TaskGroup | None = None
        self._fetch_news = FetchNews(self._later)
        self._uploads: dict[tuple[Flush, int], asyncio.Task[None]] = {}
        """Flush and attempt → the upload in progress."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_when = 0.0
        self._idle = asyncio.Event()
        self._ended_by: Exception | None = None
        """What `run` raises: an error of code that runs in no task of it."""
        self._has_ended = asyncio.Event()
        self._early_armed = False
        """The timer was set when a producer waited for the open buffer."""
        self.outage = signals.health.flushes
        """Since when flushes are not committed, and why."""
        self.lost = False
        self.last_committed: FlushTimes | None = None
        """The steps of the flush whose producers are answered, or were last."""

    @property
    def pipeline(self) -> FlushPipeline:
        """The pipeline, for its figures."""
        return self._pipeline

    @property
    def pending_bytes(self) -> int:
        """Admitted bytes that are not committed."""
        return self.memory.pending_bytes

    @property
    def overloaded(self) -> bool:
        """Whether more is uncommitted than the limits allow."""
        return self.memory.is_overloaded

    # ── Entry ──

    def append(
        self,
        log: PartitionLog,
        batch: Batch,
        source: ConnectionActivity | None,
        waiter: Waiter | None,
        now_ms: float,
    ) -> None:
        """Buffer an admitted batch.

        *source*: the connection whose request waits for the commit (acks=all); *waiter*: an acks=1
        request that waits for the sync.
        """
        if self._buffer.add(log, batch, waiter):
            self._later(self._buffer.write_pending)
        self.memory.pending_bytes += batch.length
        self.memory.pending_batches += 1
        if self._pipeline.append(log, batch, source, now_ms):
            self.tick()
        elif self._timer is None or (
            source is not None and (not self._early_armed or self._pipeline.is_back(source))
        ):
            self._early_armed = source is not None
            self._schedule(now_ms)

    def tick(self) -> None:
        """Perform the effects that are due."""
        self._handle(lambda now_ms: self._pipeline.tick(now_ms))

    def hurry(self) -> None:
        """Cut the open buffer at once: a request waits for its commit."""
        self._pipeline.hurry()
        self.tick()

    async def drain(self) -> None:
        """Cut at once and wait until everything admitted is committed.

        Raises:
            FencedError: the session was lost first.
        """
        self._pipeline.drain()
        self.tick()
        try:
            if not self._pipeline.idle:
                self._idle.clear()
            await self._idle.wait()
        finally:
            self._pipeline.resume()
        if self.lost:
            raise FencedError("the session was lost before everything was committed")

    def fail(self, bug: Exception) -> None:
        """An invariant of the log is broken: nothing more is admitted, and `run` raises *bug*.

        For errors found on connections and on the event loop, which have no task to raise in.
        """
        self._log.critical(
            "log_bug",
            session=self._session.session_id,
            exc_info=bug,
            advice="the agent exits and waiting requests get an error; please report this",
        )
        self.end("a bug was found", bug)

    def end(self, why: str, error: Exception) -> None:
        """End the session: it serves nothing more, and `run` raises *error*."""
        self._session.end(why)
        self._ended_by = self._ended_by or error
        self._has_ended.set()

    async def run(self) -> None:
        """Perform effects until the session is lost.

        Raises:
            FencedError: the session was lost.
            Exception: the bug that was given to `fail`.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.tick()
            try:
                await self._has_ended.wait()
                assert self._ended_by is not None
                raise self._ended_by
            finally:
                self._tasks = None
                if self._timer is not None:
                    self._timer.cancel()

    # ── Events in, effects out ──

    def _handle(self, event: Callable[[float], list[Effect]]) -> None:
        self._buffer.write_pending()
        now_ms, pipeline, counters = self._now_ms(), self._pipeline, self._counters
        puts, hedges = pipeline.puts, pipeline.hedges
        for effect in event(now_ms):
            self._perform(effect)
        counters.flush_puts += pipeline.puts - puts
        counters.flush_hedges += pipeline.hedges - hedges
        if self._pipeline.idle:
            self._idle.set()
        self.memory.trim()
        self._schedule(now_ms)
        self._press()

    def _press(self) -> None:
        self._backpressure.set("buffer", held=self.memory.is_overloaded)

    def _schedule(self, now_ms: float) -> None:
        at_ms = self._pipeline.deadline_ms(now_ms)
        if at_ms is None or self.lost:
            return
        loop = asyncio.get_running_loop()
        # The loop's time may have advanced since now_ms was read; only the delay counts.
        when = loop.time() + max(0.0, at_ms - now_ms) / 1000
        if self._timer is not None:
            if self._timer_when <= when:
                return
            self._timer.cancel()
        self._timer_when = when  # uvloop's handle of a past time does not have it
        self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._on_loop(self.tick)

    def _on_loop(self, step: Callable[[], None]) -> None:
        """Run a callback of the event loop, which would log an error and continue."""
        try:
            step()
        except Exception as bug:  # noqa: BLE001  # `run` raises it
            self.fail(bug)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Cut(flush):
                self._lay_out(flush)
            case Upload(flush, attempt):
                if self._session.ownership.is_due():
                    self._spawn(self._session.ownership.refresh())
                task = self._spawn(self._upload(flush, attempt))
                if task is not None:
                    self._uploads[flush, attempt] = task
            case Abandon(flush, attempt):
                task = self._uploads.pop((flush, attempt), None)
                if task is not None:
                    task.cancel()
            case Commit(flush):
                self._spawn(self._commit(flush))
            case Publish(flush):
                self._publish(flush)
            case Expired(flush):
                self._expired(flush)
            case SessionFenced():
                self.lost = True
                self._idle.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """None: the session is over."""
        if self._tasks is None:
            work.close()
            return None
        try:
            return spawn(self._tasks, work)
        except FencedError:
            return None

    def _lay_out(self, flush: Flush) -> None:
        self._early_armed = False
        flush.cut_ms = self._now_ms()
        flush.payload = Payload.of(
            flush.batches,
            self._session.session_id,
            max(0, self._wall_ms()),
            has_facts=self._session.author.format_version >= FOOTER_FACTS_LEVEL,
        )
        flush.payload.data.held_bytes = flush.held_bytes
        if flush.reason == "early":
            self._counters.flushes_early += 1

    # ── Upload ──

    async def _upload(self, flush: Flush, attempt: int) -> None:
        throttled = False
        sent_ms = self._now_ms()
        try:
            async with asyncio.timeout(self._settings.upload_deadline_ms / 1000):
                await self._put(flush, attempt)
        except UnavailableError as error:
            throttled, outcome = True, REFUSED
            self._failed("flush_upload_refused", flush, error, sent_ms)
        except AlreadyExistsError as error:
            outcome = REFUSED
            self._failed("flush_upload_name_taken", flush, error, sent_ms)
        except (OutcomeUnknownError, TimeoutError) as error:
            outcome = UNANSWERED
            self._failed("flush_upload_unanswered", flush, error, sent_ms)
        else:
            flush.stored_ms = self._now_ms()
            self._counters.uploads.ended(OK, flush.stored_ms - sent_ms)
            self._uploads.pop((flush, attempt), None)
            self._handle(lambda now: self._pipeline.upload_succeeded(flush, attempt, now))
            return
        self._counters.uploads.ended(outcome, self._now_ms() - sent_ms)
        self._uploads.pop((flush, attempt), None)
        self._handle(
            lambda now: self._pipeline.upload_failed(flush, attempt, now, throttled=throttled)
        )

    def _failed(self, event: str, flush: Flush, error: Exception, sent_ms: float) -> None:
        text = str(error) or f"no answer in {self._settings.upload_deadline_ms / 1000:g} s"
        if self.outage.failed(text, sent_ms, self._now_ms()):
            self._log.warning(
                event,
                seq=flush.seq,
                bytes=flush.size_bytes,
                error=text,
                failures=self.outage.failures,
                pending_bytes=self.memory.pending_bytes,
                advice="the upload is repeated under a new name; producers wait",
            )

    def _taken(self) -> None:
        """A flush is committed."""
        now_ms = self._now_ms()
        lasted_ms = self.outage.lasted_ms(now_ms)
        if self.outage.ended(now_ms):
            self._log.info(
                "flushes_resumed", failures=self.outage.failures, seconds=round(lasted_ms / 1000, 1)
            )

    async def _put(self, flush: Flush, attempt: int) -> None:
        payload: Payload = flush.payload
        nonce = f"{self._rng.getrandbits(64):016x}"
        record = payload.begin(attempt, flush.seq, self._pipeline.committed_seq, nonce)
        body = read_body(payload, flush.seq)
        if flush.size_bytes < len(body) * _JOIN_BYTES:
            body = [b"".join(body)]  # costs less than passing on many small buffers
        body.append(payload.puts[attempt][1])
        await self._objects.put(record.object_key, body)

    # ── Commit ──

    async def _may_commit(self, flush: Flush) -> bool:
        """Wait until the bucket is known to be the cluster's; False: the flush commits later, or
        never."""
        ownership = self._session.ownership
        if ownership.holds():
            return True
        sent_ms = self._now_ms()
        try:
            await ownership.hold(_LOOK_PATIENCE_MS)
        except UnavailableError as error:
            self.outage.failed(str(error), sent_ms, self._now_ms())
        except FencedError as error:
            self._session.end(str(error))
            self._handle(lambda _: self._pipeline.fenced())
            return False
        if ownership.holds() and not self._pipeline.is_too_old(flush, self._now_ms()):
            return True
        self._handle(lambda now: self._pipeline.commit_delayed(flush, now))
        return False

    def _may_answer(self, sent_ms: float) -> bool:
        """Whether producers may be told of a commit that was sent at *sent_ms*.

        A restore waits for the commit's deadline.  An answer that is read later, after a
        suspension, is asked for again, which takes a look at the bucket.
        """
        late = self._now_ms() - sent_ms > self._settings.commit_deadline_ms
        return not late or self._session.ownership.holds()

    async def _commit(self, flush: Flush) -> None:
        record, _ = flush.payload.puts[flush.stored_attempt]
        if not await self._may_commit(flush):
            return
        sent_ms = flush.commit_sent_ms = self._now_ms()
        answered = True
        try:
            async with asyncio.timeout(self._settings.commit_deadline_ms / 1000):
                outcome = await self._session.commit(flush.seq, record)
        except TimeoutError:
            outcome, answered = CommitOutcome.UNKNOWN, False
        if outcome is CommitOutcome.COMMITTED and not self._may_answer(sent_ms):
            outcome, answered = CommitOutcome.UNKNOWN, False
        took_ms = self._now_ms() - sent_ms
        self._counters.commit_attempts.ended(_OUTCOMES[outcome], took_ms)
        match outcome:
            case CommitOutcome.COMMITTED:
                self._counters.commits.add(took_ms / 1000)
                self._taken()
                self._handle(lambda now: self._pipeline.commit_succeeded(flush, now))
            case CommitOutcome.UNKNOWN:
                news = self.outage.failed(_NO_COMMIT, sent_ms, self._now_ms())
                if news and not answered:  # otherwise `Session` has logged it
                    self._log.warning(
                        "commit_unanswered",
                        seq=flush.seq,
                        error=_NO_COMMIT,
                        failures=self.outage.failures,
                        pending_bytes=self.memory.pending_bytes,
                        advice="the commit is repeated; producers wait",
                    )
                self._handle(lambda now: self._pipeline.commit_failed(flush, now))
            case CommitOutcome.DEAD:
                self._handle(lambda _: self._pipeline.fenced())
                raise FencedError(f"the session ended; flush {flush.seq} was not committed")

    def _expired(self, flush: Flush) -> None:
        record, _ = flush.payload.puts[flush.stored_attempt]
        began_ms = flush.began_ms[flush.stored_attempt]
        why = f"no commit of flush {flush.seq} was answered, and its object is too old to be named"
        self._log.warning(
            "flush_expired",
            session=self._session.session_id,
            seq=flush.seq,
            object=record.object_key,
            hours=round((self._now_ms() - began_ms) / 3_600_000, 1),
            error=self.outage.error,
            advice="the session ends; the next session appends the batches on the disk, under "
            "a new name; producers with acks=all retry",
        )
        self.end(why, FencedError(why))

    def _publish(self, flush: Flush) -> None:
        payload: Payload = flush.payload
        record, footer = payload.puts[flush.stored_attempt]
        self._counters.committed_bytes += flush.size_bytes
        self._counters.committed_records += sum(
            batches[-1].end_offset - batches[0].base_offset for batches in flush.batches.values()
        )
        for batches in flush.batches.values():
            self._buffer.let_go(batches)
        self.memory.commits(payload.data, flush.size_bytes)
        now_ms = self._now_ms()
        # The pipeline's time is that of the event before the cut.
        put_began_ms = max(flush.cut_ms, flush.began_ms[flush.stored_attempt])
        self.last_committed = FlushTimes(
            flush.seq, flush.cut_ms, put_began_ms, flush.stored_ms, flush.commit_sent_ms, now_ms
        )
        ready = payload.commit(record.object_key, now_ms)
        self._published(flush.seq, record, footer, payload.slices)
        for waiter, log in ready:
            waiter.committed(log)
        again = [
            partial(waiter.committed, log)
            for log, _ in payload.slices
            for waiter in log.committed_duplicates()
        ]
        if again:  # no cut has counted their steps
            call_all(again)
        self._fetch_news.moved(log for log, _ in payload.slices)

    def _later(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._on_loop, step)
