"""Sealing: committed batches become one Parquet segment, and leave the tail.

    due ──▶ read batches ──▶ decode, write Parquet (worker thread) ──▶ PUT segment
        ──▶ PUT producer snapshot ──▶ manifest edit ──▶ read the manifest back
        ──▶ partition's key: sealed end, manifest version ──▶ drop the tail below it
        ──▶ forget flush records that are no longer needed

`attempts` decides which partitions are sealed, and whether a manifest that is ahead of the key is
adopted: then the key is written first; otherwise the partition goes offline.  `sealed_range` is
what a segment adds to manifest and key.  A failed attempt leaves objects that no manifest names,
and the next attempt starts afresh.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, NoReturn

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.leadership.partition_keys import PartitionKeys
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.manifest_verdict import older_than_bucket
from driftlog_agents.log.objects.object_retry import ANSWERED, ReadDeadline
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.partition.tail import unsealed_sessions
from driftlog_agents.log.sealing.attempts import NOT_SERVED, SealAttempts, SealStep
from driftlog_agents.log.sealing.policy import (
    SealingLag,
    SealSettings,
    TopicSealPolicy,
    can_be_sealed,
    fullness,
)
from driftlog_agents.log.sealing.sealed_range import (
    flush_times,
    leader_epochs,
    neighbours,
    producer_snapshot,
    sealed_state,
)
from driftlog_agents.log.sealing.segment_writer import (
    FILLING,
    SealedRangeWriter,
)
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import leader_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import (
    FencedError,
    UnavailableError,
)
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AddSegments,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    ReplaceSegments,
    SegmentRef,
    SetLogStart,
)
from driftlog_tiering.formats.manifests import VoidEditError, commit_edit
from driftlog_tiering.stores.object_store import ObjectStore

_EDIT_DEADLINE_MS: Final = 30_000

_AT_ONCE: Final = FILLING + 1
"""Partitions sealed at once: some fill a segment while another's is uploaded and committed."""


class Sealer:
    """Seals the partitions of one session.

    Args:
        sealed: called with each partition's new sealed end.
        buffering: sessions that stay in the key of a partition although all their batches are
            sealed.
    """

    def __init__(
        self,
        *,
        session: Session,
        keys: PartitionKeys,
        objects: ObjectStore,
        writer: SealedRangeWriter,
        probes: BucketProbes,
        logs: Callable[[], Iterable[PartitionLog]],
        manifests: ManifestCache,
        settings: SealSettings,
        topic_sealing: Callable[[], dict[str, TopicSealPolicy]],
        offload: Offload,
        rng: Random,
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        producer_expiration_ms: float,
        sealed: Callable[[TopicPartition, int], None],
        buffering: Callable[[TopicPartition], set[str]],
        counters: LogCounters,
        backpressure: Backpressure,
        outage: FailureTracker,
    ) -> None:
        self._session = session
        self._keys = keys
        self._objects = objects
        self._probes = probes
        self._logs = logs
        self._manifests = manifests
        self._settings = settings
        self._topic_sealing = topic_sealing
        self._writer = writer
        self._rng = rng
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._producer_expiration_ms = producer_expiration_ms
        self._offload = offload
        self._sealed = sealed
        self._buffering = buffering
        self._sealing = KeyedLock[PartitionLog]()
        """One seal at a time for a partition."""
        self._attempts = SealAttempts(settings, rng.random)
        self.sealed_cache = SealedCache()
        self._counters = counters
        self._backpressure = backpressure
        self.lag = SealingLag()
        self._failing: dict[PartitionLog, ReadDeadline] = {}
        """Partitions whose last attempt failed."""
        self.outage = outage
        """Since when no attempt to seal has succeeded."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Seal due partitions until cancelled.

        Raises:
            FencedError: the session is over, or another session leads a partition.
        """
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            while await self._round():
                pass  # batches that came meanwhile may be due too

    async def _round(self) -> bool:
        """Seal due partitions, some at once: one segment is uploaded while another is compressed.

        False: nothing was sealed.
        """
        self.sealed_cache.trim()
        logs = list(self._logs())
        self._report_full(logs)
        self._failing = {
            log: failing for log, failing in self._failing.items() if log.state not in NOT_SERVED
        }
        work = self._attempts.work(
            logs,
            self._topic_sealing(),
            self._manifests.known,
            self._now_ms(),
            float(self._wall_ms()),
        )
        before = self._counters.segments_sealed
        waiting = iter(work)

        async def attempts() -> None:
            for log, end in waiting:
                await self._attempt(log, end)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(work))):
                tasks.create_task(attempts())
        return self._counters.segments_sealed > before

    async def _attempt(self, log: PartitionLog, end: int) -> None:
        """Seal *log*, or note why it failed; a topic that was deleted meanwhile is no failure."""
        sent_ms = self._now_ms()
        try:
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
            if self.outage.ended(self._now_ms()):
                self._log.info("sealing_resumed", failures=self.outage.failures)
            if self._attempts.succeeded(log):
                self._log.info("seal_unblocked", partition=_name(log))

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
        """Keep producers waiting while sealing is too far behind, until cancelled."""
        interval_s = self._settings.check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s / 20 if self.lag.near else interval_s)
            logs = [log for log in self._logs() if can_be_sealed(log)]
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
        return self._attempts.next_end(log, wanted, self._topic_sealing().get(log.topic))

    async def seal(self, log: PartitionLog, end: int | None = None) -> int:
        """Seal *log* up to *end* (default: its high watermark); returns its sealed end.

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
                        await self._must_be_deposed(log, manifest)
                    case SealStep.WRITE_KEY:
                        await self._write_key(log, manifest)
                    case SealStep.ADD_SEGMENTS:
                        if not await self._add_segments(log, manifest, wanted):
                            return log.sealed_end
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
        """Adds segments up to *end*; False: another edit was faster, and its manifest is known."""
        base = log.sealed_end
        started_ms = self._now_ms()
        read_at_ms = int(self._manifests.read_at_ms(log))
        segments: list[SegmentRef] = []
        try:
            newest = await self.extend(log, manifest, end, segments, read_at_ms=read_at_ms)
        except VoidEditError as error:
            # Another session was faster, or an unanswered attempt succeeded: adopt that manifest.
            self._manifests.put(log, error.manifest, started_ms)
            self._log.info("seal_void", partition=_name(log), reason=str(error))
            return False
        self._manifests.put(log, newest, started_ms)
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

    async def extend(
        self,
        log: PartitionLog,
        manifest: Manifest,
        end: int,
        segments: list[SegmentRef],
        *,
        read_at_ms: int,
        lost: tuple[LeaderEpoch, ...] | None = None,
    ) -> Manifest:
        """Add ``[manifest.end, end)`` of *log* to *manifest*; returns the newest.  *segments* gets
        the new segments.  For a range whose records are lost, *lost* has its leader epochs, and
        there is no segment.

        Raises:
            VoidEditError: another edit was faster.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptError, NotFoundError: the manifest or a flush object is damaged.
        """
        base = manifest.end
        states = await self._manifests.producers(manifest)  # first: the snapshot may be damaged
        headers: list[BatchHeader] = []
        if lost is None:
            segments += await self._writer.write(log, base, end, headers)
        producers = await self._snapshot(log, states, headers, end)
        edit = AddSegments(
            base=base,
            end=end,
            segments=tuple(segments),
            leader_epochs=leader_epochs(headers) if lost is None else lost,
            producers=producers,
        )
        self._attempts.sent(log, edit)
        try:
            edited = await commit_edit(
                self._objects,
                manifest,
                edit,
                self._nonce(),
                author=self._session.author,
                read_at_ms=read_at_ms,
                deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
                now_ms=lambda: int(self._now_ms()),
                grace=self._settings.grace,
            )
        except (VoidEditError, UnavailableError):
            self._attempts.not_made(log, edit)
            raise
        return await self._manifests.read_back(log, edited.version)

    async def drop_segments(
        self, manifest: Manifest, segments: Sequence[SegmentRef], *, read_at_ms: int
    ) -> Manifest:
        """Make the ranges of *segments* empty; returns the manifest without them.

        Raises:
            VoidEditError: another edit was faster.
            UnavailableError, OutcomeUnknownError: a store; try again.
            CorruptError: a list of older segments is damaged.
        """
        for run in neighbours(segments):
            manifest = await commit_edit(
                self._objects,
                manifest,
                ReplaceSegments(replaced=run, added=()),
                self._nonce(),
                author=self._session.author,
                read_at_ms=read_at_ms,
                deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
                now_ms=lambda: int(self._now_ms()),
                grace=self._settings.grace,
            )
        return manifest

    # ── Deleted records ──

    async def _move_log_start(self, log: PartitionLog, manifest: Manifest) -> None:
        """Move the manifest's log start to that of the partition's key: Spark no longer sees the
        records below it, and the collector deletes their segments."""
        began_ms = self._now_ms()
        edited = await commit_edit(
            self._objects,
            manifest,
            SetLogStart(min(log.log_start, manifest.end)),
            self._nonce(),
            author=self._session.author,
            read_at_ms=int(self._manifests.read_at_ms(log)),
            deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
            now_ms=lambda: int(self._now_ms()),
            # The edit applies to the newest manifest, even if that is the next leader's.
            wanted=lambda: log.state not in NOT_SERVED,
            grace=self._settings.grace,
        )
        self._manifests.put(log, edited, began_ms)
        self._log.info("log_start_moved", partition=_name(log), log_start=edited.log_start)

    # ── Producer snapshot and partition key ──

    async def _snapshot(
        self, log: PartitionLog, states: ProducerStates, headers: list[BatchHeader], end: int
    ) -> ProducerSnapshotRef | None:
        """PUT the producer state at exactly *end*: the previous snapshot and the sealed batches."""
        encoded = await self._offload(
            producer_snapshot,
            states,
            headers,
            flush_times(log, end),
            end,
            self._producer_expiration_ms,
        )
        if encoded is None:
            return None
        tp = TopicPartition(log.topic_id, log.partition)
        key = layout.producer_snapshot_key(log.topic, tp, end, self._nonce())
        await self._writer.put(key, [encoded])
        return ProducerSnapshotRef(offset=end, key=key)

    async def _write_key(self, log: PartitionLog, manifest: Manifest) -> None:
        """Write sealed end and manifest version to the partition's key: now it is sealed."""
        end = manifest.end
        tp = TopicPartition(log.topic_id, log.partition)
        needed = unsealed_sessions(log, end) | self._buffering(tp) | {self._session.session_id}
        await self._keys.write(log, lambda state: sealed_state(state, manifest, needed))
        self._attempts.key_written(log)
        self.sealed_cache.add(log, log.seal(end))
        self._sealed(tp, end)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
