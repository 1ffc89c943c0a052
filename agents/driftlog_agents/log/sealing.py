"""Sealing: committed batches become one Parquet segment, and then are forgotten.

    due ──▶ read batches ──▶ decode, write Parquet (worker thread) ──▶ PUT segment
        ──▶ PUT producer snapshot ──▶ manifest edit ──▶ read the manifest back
        ──▶ partition's key: sealed end, manifest version ──▶ drop the tail below it
        ──▶ forget flush records that nobody needs

*Sealed* means below the sealed end in the partition's key, and nothing else does.  A
manifest that is ahead of the key is adopted: the key is written first.  Whatever fails
on the way leaves objects that no manifest names, and the next attempt starts afresh.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from random import Random
from typing import Final

import structlog

from driftlog_agents.log.bucket_probe import BucketProbes, Withholding
from driftlog_agents.log.manifests import Manifests
from driftlog_agents.log.outage import Outage
from driftlog_agents.log.partition import NO_PRODUCER_ID, PartitionLog, State
from driftlog_agents.log.partition_keys import PartitionKeys
from driftlog_agents.log.seal_policy import (
    Backpressure,
    SealSettings,
    TopicSealing,
    can_be_sealed,
    due,
    fullness,
    seal_end,
    segment_bytes,
)
from driftlog_agents.log.sealed_cache import SealedCache
from driftlog_agents.log.segment_writing import (
    FILLING,
    LookAgain,
    Offload,
    SegmentWriting,
    Spool,
    nowhere_else,
)
from driftlog_agents.log.session import Session
from driftlog_agents.log.tail import unsealed_sessions
from driftlog_metadata.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.keys import leader_key
from driftlog_metadata.model import PartitionState, TopicPartition
from driftlog_tiering import layout
from driftlog_tiering.batch import BatchHeader
from driftlog_tiering.manifest import (
    AddSegments,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    SetLogStart,
)
from driftlog_tiering.manifests import VoidEditError, commit_edit, load_at_least
from driftlog_tiering.object_store import NotFoundError, ObjectStore
from driftlog_tiering.producers import ProducerStates

__all__ = ["Offload", "Sealer", "Spool"]

_EDIT_DEADLINE_MS: Final = 30_000
_MANIFEST_AGE_MS: Final = 3_600_000
"""Read again after this: no edit may be based on what was read more than 6 h ago."""

_AT_ONCE: Final = FILLING + 1
"""Partitions sealed at once: some fill a segment while another's is put and made known."""

_BLOCKED_MS: Final = 60_000
"""Between two attempts to seal a partition in which something is missing or damaged."""

_WITHHELD_MS: Final = 60_000.0
"""Refused for so long what a partition needs is as good as missing, if the bucket answers."""


class Sealer:
    """Seals the partitions of one session.

    Args:
        sealed: told of each partition's new sealed end.
        buffering: sessions that stay in the list of a partition although all is sealed.
        look_again: see `SegmentWriting`.
    """

    def __init__(
        self,
        *,
        session: Session,
        keys: PartitionKeys,
        objects: ObjectStore,
        probes: BucketProbes,
        logs: Callable[[], Iterable[PartitionLog]],
        manifests: Manifests,
        settings: SealSettings,
        topic_sealing: Callable[[], dict[str, TopicSealing]],
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        now_ms: Callable[[], float],
        sealed: Callable[[TopicPartition, int], None],
        buffering: Callable[[TopicPartition], set[str]],
        look_again: LookAgain = nowhere_else,
    ) -> None:
        self._session = session
        self._keys = keys
        self._objects = objects
        self._probes = probes
        self._logs = logs
        self._manifests = manifests
        self._settings = settings
        self._topic_sealing = topic_sealing
        self._writing = SegmentWriting(
            objects=objects, offload=offload, spool=spool, rng=rng, look_again=look_again
        )
        self._rng = rng
        self._now_ms = now_ms
        self._sealed = sealed
        self._buffering = buffering
        self._sealing: dict[PartitionLog, asyncio.Event] = {}
        """A partition is sealed by one at a time; set when that is over."""
        self._cache = SealedCache()
        self.on_pressure: Callable[[bool], None] = lambda _: None
        """Told whether producers must be kept waiting."""
        self.backpressure = Backpressure()
        self._blocked: dict[PartitionLog, float] = {}
        """Partitions in which something is damaged, and when they are tried again."""
        self._failing: dict[PartitionLog, Withholding] = {}
        """Partitions whose last attempt found a store that did not answer."""
        self.outage = Outage()
        """Since when no attempt to seal has come to its end."""
        self._log = structlog.get_logger()
        self.segments = 0

    @property
    def sealed_bytes(self) -> int:
        """Bytes sealed, uncompressed."""
        return self._writing.sealed_bytes

    @property
    def undecodable_batches(self) -> int:
        """Batches that were kept as they came."""
        return self._writing.undecodable_batches

    async def run(self) -> None:
        """Seal what is due until cancelled.

        Raises:
            FencedError: the session, or a partition, is somebody else's now.
        """
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            while await self._round():
                pass  # what came meanwhile may be due too

    async def _round(self) -> bool:
        """Attempt what is due, some at once: while one is put another is compressed.

        False: nothing was sealed.
        """
        self._cache.trim()
        self._bound_damaged()
        self._failing = {
            log: failing for log, failing in self._failing.items() if log.state is not State.CLOSED
        }
        now_ms = self._now_ms()
        work = due(self._logs(), self._settings, self._topic_sealing(), now_ms)
        for log, at_ms in list(self._blocked.items()):
            if log.state is State.CLOSED:
                del self._blocked[log]
            elif at_ms <= now_ms:
                work.append((log, self.next_end(log, log.high_watermark)))
        # Nothing is sealed of these: their manifests follow log start.
        work.extend((log, 0) for log in self._logs() if self._is_behind(log))
        before = self.segments
        waiting = iter(work)

        async def attempts() -> None:
            for log, end in waiting:
                await self._attempt(log, end)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(work))):
                tasks.create_task(attempts())
        return self.segments > before

    async def _attempt(self, log: PartitionLog, end: int) -> None:
        """Seal, or note why not; of a topic that was deleted meanwhile there is nothing to say."""
        sent_ms = self._now_ms()
        try:
            await self.seal(log, end)
        except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
            if log.state is not State.CLOSED:
                why = str(error) or repr(error)
                self._failed(log, why, sent_ms)
                if await self._is_withheld(log):
                    self._found_damage(log, f"the bucket withholds what it needs: {why}")
        except (CorruptError, NotFoundError) as error:
            if log.state is not State.CLOSED:
                self._found_damage(log, str(error) or repr(error))
        else:
            self._failing.pop(log, None)
            if self.outage.ended(self._now_ms()):
                self._log.info("sealing_goes_on", failures=self.outage.failures)
            if self._blocked.pop(log, None) is not None:
                log.damage = ""
                log.full = False
                self._log.info("seal_unblocked", partition=_name(log))

    async def _is_withheld(self, log: PartitionLog) -> bool:
        """Else a partition whose attempts fail for ever would keep all producers waiting."""
        if log in self._blocked:
            return True
        failing = self._failing.setdefault(log, Withholding(self._probes, self._now_ms))
        return await failing.found(_WITHHELD_MS) and log.state is not State.CLOSED

    def _failed(self, log: PartitionLog, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "seal_failed",
                partition=_name(log),
                error=error,
                failures=self.outage.failures,
                advice="tried again; until then Spark does not see what is not sealed",
            )

    def _found_damage(self, log: PartitionLog, error: str) -> None:
        self._failing.pop(log, None)
        self._blocked[log] = self._now_ms() + _BLOCKED_MS
        log.damage = error
        self._log.error(
            "seal_blocked",
            partition=_name(log),
            error=error,
            unsealed_bytes=log.unsealed_bytes,
            advice="put the object back (or let it be read): nothing more of this partition is "
            "sealed until then",
        )

    async def hold_back(self) -> None:
        """Keep producers waiting while sealing is too far behind, until cancelled."""
        interval_s = self._settings.check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s / 20 if self.backpressure.near else interval_s)
            logs = [log for log in self._logs() if can_be_sealed(log)]
            was_held, was_behind = self.backpressure.held, self.backpressure.behind
            self.backpressure.update(fullness(logs, self._settings))
            if self.backpressure.held != was_held:
                self.on_pressure(self.backpressure.held)
            if self.backpressure.behind == was_behind:
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

    def _bound_damaged(self) -> None:
        """What cannot be sealed may not grow for ever."""
        damaged = [log for log in self._logs() if log.damage]
        if not damaged:
            return
        full = fullness(damaged, self._settings) > 1
        for log in damaged:
            if full and not log.full:
                self._log.error(
                    "partition_full",
                    partition=_name(log),
                    unsealed_bytes=log.unsealed_bytes,
                    damage=log.damage,
                    advice="it takes no more records until the object is back and it is sealed",
                )
            log.full = full

    def next_end(self, log: PartitionLog, wanted: int) -> int:
        """Where the next segment of *log* ends on the way to *wanted*."""
        sealing = self._topic_sealing().get(log.topic)
        return min(wanted, seal_end(log, segment_bytes(self._settings, sealing)))

    async def seal(self, log: PartitionLog, end: int | None = None) -> int:
        """Seal *log* up to *end* (default: its high watermark); returns its sealed end.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptError, NotFoundError: the manifest or a flush object is damaged.
            FencedError: the partition is led elsewhere.
        """
        while (another := self._sealing.get(log)) is not None:
            await another.wait()
        over = self._sealing[log] = asyncio.Event()
        try:
            if log.state in (State.CLOSED, State.OFFLINE):
                raise UnavailableError(f"{_name(log)} is not led here")
            manifest = await self._adopt(log)
            end = log.high_watermark if end is None else min(end, log.high_watermark)
            if end > log.sealed_end:
                await self._seal(log, manifest, end)
            if self._is_behind(log):
                await self._move_log_start(log)
            return log.sealed_end
        finally:
            del self._sealing[log]
            over.set()

    async def _adopt(self, log: PartitionLog) -> Manifest:
        """The partition's manifest, with its key not behind it."""
        if self._now_ms() - self._manifests.read_at_ms(log) > _MANIFEST_AGE_MS:
            self._manifests.drop(log)
        manifest = await self._manifests.get(log)
        if manifest.end > log.sealed_end:
            # An earlier attempt got as far as the manifest: what it sealed is sealed.
            if manifest.end > log.high_watermark:
                await self._must_be_deposed(log)
            await self._write_key(log, manifest)
        return manifest

    async def _must_be_deposed(self, log: PartitionLog) -> None:
        """Somebody has sealed what is not in our log: they lead it, and it can only be that."""
        tp = TopicPartition(log.topic_id, log.partition)
        leader = await self._session.read(leader_key(tp))
        if log.state is State.CLOSED or leader is None:
            raise UnavailableError(f"{_name(log)} is not led here any more")
        if leader.mod_revision != log.leader_revision:
            raise FencedError(f"{_name(log)} is led elsewhere")
        raise AssertionError(f"{_name(log)}: its manifest is ahead of its log, which we lead")

    # ── One segment ──

    async def _seal(self, log: PartitionLog, manifest: Manifest, end: int) -> None:
        base = log.sealed_end
        assert manifest.end == base, f"{_name(log)}: manifest ends at {manifest.end}, not {base}"
        started_ms = self._now_ms()
        read_at_ms = int(self._manifests.read_at_ms(log))
        states = await self._manifests.producers(manifest)  # first: it may be damaged
        headers: list[BatchHeader] = []
        segments = await self._writing.write(log, base, end, headers)
        producers = await self._snapshot(log, states, headers, end)
        epochs = _epochs(headers)
        edit = AddSegments(
            base=base,
            end=end,
            segments=tuple(segments),
            leader_epochs=epochs,
            producers=producers,
        )
        try:
            edited = await commit_edit(
                self._objects,
                manifest,
                edit,
                self._nonce(),
                read_at_ms=read_at_ms,
                deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
                now_ms=lambda: int(self._now_ms()),
            )
        except VoidEditError as error:
            # Another session of ours was faster, or a lost attempt was taken: adopt what is there.
            self._manifests.put(log, error.manifest)
            self._log.info("seal_void", partition=_name(log), reason=str(error))
            return
        tp = TopicPartition(log.topic_id, log.partition)
        newest = await load_at_least(self._objects, log.topic, tp, edited.version)
        self._manifests.put(log, newest)
        await self._write_key(log, newest)
        size = sum(segment.size_bytes for segment in segments)
        self.segments += len(segments)
        self._log.info(
            "segment_sealed",
            partition=_name(log),
            base=base,
            end=end,
            bytes=size,
            ms=round(self._now_ms() - started_ms),
        )

    # ── Deleted records ──

    def _is_behind(self, log: PartitionLog) -> bool:
        """Whether the manifest still names what is below log start, as far as is known here."""
        if not log.log_start or not log.manifest_version or not can_be_sealed(log):
            return False
        manifest = self._manifests.known(log)
        return manifest is None or min(log.log_start, manifest.end) > manifest.log_start

    async def _move_log_start(self, log: PartitionLog) -> None:
        """Let the manifest forget what is below log start, which the partition's key has: Spark
        does not see it any more, and the collector takes the segments."""
        manifest = await self._manifests.get(log)
        edited = await commit_edit(
            self._objects,
            manifest,
            SetLogStart(min(log.log_start, manifest.end)),
            self._nonce(),
            read_at_ms=int(self._manifests.read_at_ms(log)),
            deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
            now_ms=lambda: int(self._now_ms()),
        )
        self._manifests.put(log, edited)
        self._log.info("log_start_moved", partition=_name(log), log_start=edited.log_start)

    # ── What goes along ──

    async def _snapshot(
        self, log: PartitionLog, states: ProducerStates, headers: list[BatchHeader], end: int
    ) -> ProducerSnapshotRef | None:
        """Producer state at exactly *end*: the previous snapshot's and the sealed batches'."""
        for header in headers:
            if header.producer_id != NO_PRODUCER_ID:
                states.append(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta + 1,
                    header.base_offset,
                )
        if not len(states):
            return None
        tp = TopicPartition(log.topic_id, log.partition)
        key = layout.producer_snapshot_key(log.topic, tp, end, self._nonce())
        await self._writing.put(key, [states.encode(end)])
        return ProducerSnapshotRef(offset=end, key=key)

    async def _write_key(self, log: PartitionLog, manifest: Manifest) -> None:
        """Write sealed end and manifest version to the partition's key: now it is sealed."""
        end = manifest.end
        mine = self._session.session_id
        tp = TopicPartition(log.topic_id, log.partition)
        needed = unsealed_sessions(log, end) | self._buffering(tp)

        def sealed(state: PartitionState) -> PartitionState:
            return PartitionState(
                sealed_end=end,
                manifest_version=manifest.version,
                log_start=max(state.log_start, manifest.log_start),
                sessions=tuple(s for s in state.sessions if s in needed or s == mine),
            )

        await self._keys.write(log, sealed)
        self._cache.add(log, log.seal(end, self._now_ms()))
        self._sealed(tp, end)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _epochs(headers: list[BatchHeader]) -> tuple[LeaderEpoch, ...]:
    epochs: list[LeaderEpoch] = []
    for header in headers:
        if not epochs or epochs[-1].epoch < header.partition_leader_epoch:
            epochs.append(LeaderEpoch(header.partition_leader_epoch, header.base_offset))
    return tuple(epochs)


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
