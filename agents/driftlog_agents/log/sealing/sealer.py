"""Sealing: committed batches become one Parquet segment, and leave the tail.

    due ──▶ read batches ──▶ decode, write Parquet (worker thread) ──▶ PUT segment
        ──▶ PUT producer snapshot ──▶ manifest edit ──▶ read the manifest back
        ──▶ partition's key: sealed end, manifest version ──▶ drop the tail below it
        ──▶ forget flush records that are no longer needed

`policy` and `attempts` decide which partitions are due, `turns` which of them is next, and
`attempts` whether a manifest that is ahead of the key is adopted: then the key is written first;
otherwise the partition goes offline.  `sealed_range` is what a segment adds to manifest and key.
A failed attempt leaves objects that no manifest names, and the next attempt starts afresh.

Shell.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping
from typing import Final, NoReturn, Protocol

import structlog

from driftlog_agents.foundation.clocks import Clocks
from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.retry import NO_ANSWER, memory_errors
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.manifest_verdict import older_than_bucket
from driftlog_agents.log.objects.object_retry import ANSWERED, ReadDeadline
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.partition.tail import unsealed_sessions
from driftlog_agents.log.sealing.attempts import NOT_SERVED, SealStep
from driftlog_agents.log.sealing.local_copies import LocalCopies
from driftlog_agents.log.sealing.manifest_edits import ManifestEdits
from driftlog_agents.log.sealing.partition_keys import PartitionKeys
from driftlog_agents.log.sealing.policy import (
    DuePartitions,
    SealingLag,
    SealSettings,
    TopicSealPolicy,
    can_be_sealed,
    fullness,
)
from driftlog_agents.log.sealing.turns import SealTurns
from driftlog_agents.log.segments.range_segments import FILLING
from driftlog_agents.log.segments.sealed_range import end_of, sealed_state
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionSignals
from driftlog_metadata.schema.keys import leader_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import (
    FencedError,
    UnavailableError,
)
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentRef,
)
from driftlog_tiering.formats.manifests import VoidEditError

_AT_ONCE: Final = FILLING + 1
"""Partitions sealed at once: some fill a segment while another's is uploaded and committed."""


class SealedPartitions(Protocol):
    """The partitions that a session leads, as the sealer needs them; see `log/log_session`."""

    def logs(self) -> list[PartitionLog]:
        """The log of each."""

    def seal_policies(self) -> Mapping[str, TopicSealPolicy]:
        """The policies of topics that have their own, by name."""

    def compacted_topics(self) -> Container[str]:
        """The names of the topics that are compacted now."""

    def buffering(self, tp: TopicPartition) -> set[str]:
        """Sessions that stay in the key of *tp* although all their batches are sealed."""

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """Notes that *tp* is sealed below *end*, as its key shows."""


class Sealer:
    """Seals the partitions of one session."""

    def __init__(
        self,
        *,
        session: Session,
        keys: PartitionKeys,
        edits: ManifestEdits,
        probes: BucketProbes,
        partitions: SealedPartitions,
        settings: SealSettings,
        clocks: Clocks,
        signals: SessionSignals,
    ) -> None:
        self._session = session
        self.keys = keys
        self.edits = edits
        self._attempts = edits.attempts
        self._manifests = edits.manifests
        self._probes = probes
        self._partitions = partitions
        self._settings = settings
        self._now_ms = clocks.now_ms
        self._wall_ms = clocks.wall_ms
        self._sealing = KeyedLock[PartitionLog]()
        """One seal at a time for a partition."""
        self.sealed_cache = SealedCache()
        self._local_copies = LocalCopies()
        self._counters = signals.counters
        self._backpressure = signals.backpressure
        self.lag = SealingLag()
        self._turns = SealTurns()
        self._failing: dict[PartitionLog, ReadDeadline] = {}
        """Partitions whose last attempt failed."""
        self.outage = signals.health.sealing
        """Since when no attempt to seal has succeeded."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Seal due partitions until cancelled, some at once: one segment is uploaded while another
        is compressed.

        Raises:
            FencedError: the session is over, or another session leads a partition.
        """
        interval_s = self._settings.check_interval_ms / 1000
        workers = set[asyncio.Task[None]]()
        await asyncio.sleep(interval_s)
        async with asyncio.TaskGroup() as tasks:
            while True:
                before = self._counters.segments_sealed
                await self._look()
                for _ in range(min(_AT_ONCE - len(workers), self._turns.waiting)):
                    workers.add(tasks.create_task(self._work()))
                ended = set[asyncio.Task[None]]()
                if workers:
                    ended, workers = await asyncio.wait(
                        workers, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED
                    )
                if (ended or not workers) and self._counters.segments_sealed == before:
                    await asyncio.sleep(interval_s)  # else batches that came may be due, too

    async def _work(self) -> None:
        """Attempt partitions while some wait."""
        while self._turns.waiting:
            log, ends = self._turns.take()
            began_ms = self._now_ms()
            try:
                for end in ends:
                    await self._attempt(
                        log, self.next_end(log, log.high_watermark) if end is None else end
                    )
            finally:
                self._turns.ended(log, self._now_ms() - began_ms)

    async def _look(self) -> None:
        """Find the partitions that wait for an attempt from now on."""
        self.sealed_cache.trim()
        self._attempts.forget_ended()
        self._turns.begin_look()
        now_ms = self._now_ms()
        due = DuePartitions(self._settings, now_ms, float(self._wall_ms()))
        repeated: list[tuple[PartitionLog, int]] = []
        logs: list[PartitionLog] = []
        async for log in sliced(self._partitions.logs()):
            manifest = self._manifests.known(log)
            if self._attempts.may_have_work(log, manifest):
                topic = self._partitions.seal_policies().get(log.topic)
                logs.append(log)
                due.look(log, topic, attempted=log in self._turns.attempted)
                ends = self._attempts.repeated_ends(log, topic, manifest, now_ms)
                repeated.extend((log, end) for end in ends)
        self._report_full(logs)
        waiting: dict[PartitionLog, list[int | None]] = {log: [None] for log in due.in_order()}
        for log, end in repeated:
            waiting.setdefault(log, []).append(end)
        attempted = waiting.keys() | self._turns.attempted
        self._failing = {
            log: failing
            for log, failing in self._failing.items()
            if log.state not in NOT_SERVED and (log.slices or log in attempted)
        }
        if (
            self.outage.since_ms is not None
            and not (attempted and self._failing)
            and not any(map(self._attempts.is_blocked, logs))
        ):
            # What failed was deleted, is led by another agent, or has nothing to seal now.
            self._resumed()
            self._failing.clear()  # the next failure is the first of another outage
        self._turns.end_look(waiting, near=self.lag.near)

    async def _attempt(self, log: PartitionLog, end: int) -> None:
        """Seal *log*, or note why it failed; a topic that was deleted meanwhile is no failure."""
        sent_ms = self._now_ms()
        try:
            with memory_errors():
                await self.seal(log, end)
        except (*NO_ANSWER, *ANSWERED) as error:
            why = str(error) or repr(error)
            answered = isinstance(error, ANSWERED)
            if log.state not in NOT_SERVED and not answered:
                self._failed(log, why, sent_ms)
            if await self._is_unavailable(log, answered=answered):
                self._cannot_read(log, why)  # does nothing for a deleted topic
        else:
            self._failing.pop(log, None)
            self._resumed()
            if end and self._attempts.succeeded(log):  # else only its log start was moved
                self._log.info("seal_unblocked", partition=_name(log))

    def _resumed(self) -> None:
        """Ends the outage, if there is one."""
        if self.outage.ended(self._now_ms()):
            self._log.info("sealing_resumed", failures=self.outage.failures)

    async def _is_unavailable(self, log: PartitionLog, *, answered: bool) -> bool:
        """Whether *log* counts as blocked: otherwise a partition whose attempts always fail would
        keep all producers waiting."""
        if self._attempts.is_blocked(log):
            return True
        failing = self._failing.setdefault(log, ReadDeadline(self._probes, self._now_ms))
        return await failing.has_passed(answered=answered)

    def _failed(self, log: PartitionLog, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "seal_failed",
                partition=_name(log),
                error=error,
                failures=self.outage.failures,
                advice="retrying; until it succeeds Spark does not see the unsealed records",
            )

    def _cannot_read(self, log: PartitionLog, error: str) -> None:
        self._failing.pop(log, None)
        if self._attempts.blocked(log, error, self._now_ms()):
            self._log.error(
                "seal_blocked",
                partition=_name(log),
                error=error,
                unsealed_bytes=log.unsealed_bytes,
                advice="restore the object; the agent retries at least once a minute. "
                "Until then this partition is not sealed",
            )

    async def hold_back(self) -> None:
        """Keep producers waiting while sealing is too far behind, and forget local copies in time,
        until cancelled.  An attempt may wait for the bucket; this waits for nothing."""
        interval_s = self._settings.check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s / 20 if self.lag.near else interval_s)
            led = self._partitions.logs()
            topics = self._partitions.compacted_topics()
            async for log, end in sliced(self._local_copies.look(led, topics, self._now_ms())):
                if end:
                    self.sealed_cache.forget(log, end)
            logs = [log async for log in sliced(led) if can_be_sealed(log)]
            was_behind = self.lag.behind
            self.lag.update(fullness(logs, self._settings))
            self._backpressure.set("sealing", held=self.lag.held)
            if self.lag.behind == was_behind:
                continue
            if was_behind:
                self._log.info("sealing_caught_up")
            else:
                self._log.warning(
                    "sealing_behind",
                    unsealed_bytes=sum(log.unsealed_bytes for log in logs),
                    advice="producers are slowed to the rate of sealing: give the agent more "
                    "cores, or the partitions to more agents",
                )

    def _report_full(self, logs: Iterable[PartitionLog]) -> None:
        for log in self._attempts.newly_full(logs):
            self._log.error(
                "partition_full",
                partition=_name(log),
                unsealed_bytes=log.unsealed_bytes,
                damage=log.damage,
                advice="the partition refuses records until the object is back and it seals",
            )

    def next_end(self, log: PartitionLog, wanted: int) -> int:
        """Where the next segment of *log* ends on the way to *wanted*."""
        return self._attempts.next_end(log, wanted, self._partitions.seal_policies().get(log.topic))

    async def seal(self, log: PartitionLog, end: int | None = None) -> int:
        """Seal *log* up to *end* (default: its high watermark), or as far as one attempt may decode
        (`sealed_range.end_of`); returns its sealed end.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store failed; try again.  Or the
                partition is not served here (any more).
            CorruptError, NotFoundError: the manifest or a flush object is damaged.
            FencedError: the partition is led elsewhere.
        """
        async with self._sealing.of(log):
            if log.state in NOT_SERVED:
                raise UnavailableError(f"{_name(log)} is not led here")
            # Well before the read is too old to base an edit on.
            if self._now_ms() - self._manifests.read_at_ms(log) > self._settings.grace.short_ms:
                self._manifests.drop(log)
            manifest = await self._manifests.get(log)
            wanted = log.high_watermark if end is None else min(end, log.high_watermark)
            while True:
                match self._attempts.next_step(log, manifest, wanted):
                    case SealStep.CHECK_LEADER:
                        if not await self.edits.has_ours(log, manifest):
                            await self._must_be_deposed(log, manifest)
                        await self._write_key(log, manifest)
                    case SealStep.WRITE_KEY:
                        await self._write_key(log, manifest)
                    case SealStep.ADD_SEGMENTS:
                        if not await self._add_segments(log, manifest, wanted):
                            return log.sealed_end
                        wanted = log.sealed_end  # the rest is another attempt's
                    case SealStep.MOVE_LOG_START:
                        await self._move_log_start(log, manifest)
                        return log.sealed_end
                    case SealStep.NOTHING:
                        return log.sealed_end
                manifest = await self._manifests.get(log)

    async def _must_be_deposed(self, log: PartitionLog, manifest: Manifest) -> NoReturn:
        """Another agent has sealed records that are not in our log: it leads the partition, or it
        led it in a metadata store that is newer than this one.

        Raises:
            FencedError: the partition is led elsewhere.
            UnavailableError: the partition is no longer led here, or it is offline from now on.
        """
        tp = TopicPartition(log.topic_id, log.partition)
        leader = await self._session.read(leader_key(tp))
        if log.state in NOT_SERVED or leader is None:
            raise UnavailableError(f"{_name(log)} is not led here any more")
        if leader.mod_revision != log.leader_revision:
            raise FencedError(f"{_name(log)} is led elsewhere")
        log.state = State.OFFLINE
        log.offline_reason = older_than_bucket(log, manifest)
        self._log.error(
            "partition_offline",
            partition=_name(log),
            reason=log.offline_reason,
            advice="the partition refuses reads and writes: it is not known which records were "
            "acknowledged first",
        )
        raise UnavailableError(log.offline_reason)

    # ── One segment ──

    async def _add_segments(self, log: PartitionLog, manifest: Manifest, end: int) -> bool:
        """Adds segments up to *end*, or to `sealed_range.end_of`; False: another edit was faster,
        and its manifest is known."""
        base = log.sealed_end
        started_ms = self._now_ms()
        read_at_ms = int(self._manifests.read_at_ms(log))
        segments: list[SegmentRef] = []
        try:
            with self._counters.seals.attempt(self._now_ms, VoidEditError):
                newest = await self.edits.extend(
                    log, manifest, end, segments, read_at_ms=read_at_ms
                )
        except VoidEditError as error:
            # Another session was faster, or an unanswered attempt succeeded: adopt that manifest.
            self._manifests.put(log, error.manifest, started_ms)
            self._log.info("seal_void", partition=_name(log), reason=str(error))
            return False
        self._manifests.put(log, newest, started_ms)
        end = end_of(segments, end)
        if newest.end != end:  # otherwise it has this session's edit
            await self._must_be_deposed(log, newest)
        await self._write_key(log, newest)
        size = sum(segment.size_bytes for segment in segments)
        self._counters.segments_sealed += len(segments)
        self._log.info(
            "segment_sealed",
            partition=_name(log),
            base=base,
            end=end,
            bytes=size,
            ms=round(self._now_ms() - started_ms),
        )
        return True

    # ── Deleted records ──

    async def _move_log_start(self, log: PartitionLog, manifest: Manifest) -> None:
        """Move the manifest's log start to that of the partition's key: Spark no longer sees the
        records below it, and the collector deletes their segments."""
        began_ms = self._now_ms()
        # The edit applies to the newest manifest, even if that is the next leader's.
        edited = await self.edits.move_log_start(
            log, manifest, wanted=lambda: log.state not in NOT_SERVED
        )
        self._manifests.put(log, edited, began_ms)
        self._log.info("log_start_moved", partition=_name(log), log_start=edited.log_start)

    # ── Partition key ──

    async def _write_key(self, log: PartitionLog, manifest: Manifest) -> None:
        """Write sealed end and manifest version to the partition's key: now it is sealed."""
        end = manifest.end
        tp = TopicPartition(log.topic_id, log.partition)
        needed = (
            unsealed_sessions(log, end)
            | self._partitions.buffering(tp)
            | {self._session.session_id}
        )
        await self.keys.write(log, lambda state: sealed_state(state, manifest, needed))
        self._attempts.key_written(log)
        self.sealed_cache.add(log, log.seal(end))
        self._partitions.sealed(tp, end)


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
