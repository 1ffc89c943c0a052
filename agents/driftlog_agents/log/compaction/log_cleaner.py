"""Compacts the partitions that one session leads: the dirtiest first, one at a time.

    every `log.cleaner.backoff.ms` ──▶ changed, or due by age? ──▶ how dirty? ──▶ the dirtiest
        ──▶ `tiering/compaction/cleaner` ──▶ an edit of the manifest ──▶ the cached manifest
        ──▶ local copies of what was compacted are forgotten ──▶ the next one

1. Only what the partition's key says is sealed is compacted: a segment above it may be of an edit
   that this session does not know yet.
2. Memory and buffer files hold sealed batches as they were.  A reader that finds an older value
   there would not find the tombstone, which is gone from the segments: with the edit, the local
   copies of what was compacted are forgotten.
3. A run that fails is repeated; no manifest names what it stored.
4. A partition that has not changed, and of which nothing is due by age, costs no request.

Source: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.object_retry import ANSWERED
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.sealing.segment_writer import disk_errors
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import COMPACTION_LEVEL, TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_tiering.compaction.cleaner import Cleaned, Cleaner, CleanerSettings
from driftlog_tiering.compaction.policy import (
    CompactionPolicy,
    Dirtiness,
    due_ms,
    is_due,
    measure,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.file_likes import Spool
from driftlog_tiering.formats.manifest import (
    Manifest,
    ReplaceSegments,
    SegmentListRef,
    SegmentRef,
)
from driftlog_tiering.formats.manifests import VoidEditError, commit_edit, iter_segments
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import Buffer, ObjectStore

T = TypeVar("T")

_SERVED: Final = (State.ONLINE, State.LOADING)

_SHORTEST_BACKOFF_MS: Final = 100.0
_LONGEST_WAIT_MS: Final = 3_600_000.0
"""A damaged or missing segment is read again after a time that doubles up to this."""

_REQUEST_DEADLINE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
"""A PUT has its deadline and this rate."""

_READS: Final = ReadSettings(requests_at_once=2, request_deadline_ms=_REQUEST_DEADLINE_S * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """How an agent compacts."""

    enabled: bool = True
    """``log.cleaner.enable``."""

    backoff_ms: float = 15_000
    """``log.cleaner.backoff.ms``.  Longer: compaction begins later; shorter: more looks at
    partitions that are written."""

    cleaner: CleanerSettings = field(default_factory=CleanerSettings)

    grace: Grace = field(default_factory=Grace)
    """The cluster's."""

    def within(self, grace: Grace) -> "CompactionSettings":
        """These settings, with the bounds of what names objects for the cluster's *grace*."""
        piece_ms = min(self.cleaner.piece_ms, grace.short_ms)
        return replace(self, grace=grace, cleaner=replace(self.cleaner, piece_ms=piece_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPorts:
    """What compaction uses of the process."""

    objects: ObjectStore
    offload: Offload
    """Runs work that must not delay requests."""
    spool: Callable[[], AbstractContextManager[Spool]]
    rng: Random
    now_ms: Callable[[], float]
    """A monotonic clock that counts suspended time."""
    wall_ms: Callable[[], int]
    """Unix time in ms; record timestamps are compared with it, as in Kafka."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """The last look at a partition that was not due."""

    policy: CompactionPolicy
    sealed_end: int
    due_ms: int | None

    def holds(self, log: PartitionLog, policy: CompactionPolicy, now_ms: int) -> bool:
        """Whether the partition cannot have become due since."""
        is_same = (self.policy, self.sealed_end) == (policy, log.sealed_end)
        return is_same and (self.due_ms is None or now_ms < self.due_ms)


class LogCleaner:
    """See the module.

    Args:
        logs: the partitions that the session leads.
    """

    def __init__(
        self,
        *,
        session: Session,
        manifests: ManifestCache,
        sealed_cache: SealedCache,
        settings: CompactionSettings,
        counters: LogCounters,
        ports: CompactionPorts,
        logs: Callable[[], Iterable[PartitionLog]],
    ) -> None:
        self._session = session
        self._manifests = manifests
        self._sealed_cache = sealed_cache
        self._settings = settings
        self._counters = counters
        self._ports = ports
        self._logs = logs
        self._reads = RangedReads(ports.objects, _READS, ports.now_ms, ports.offload)
        self._looked: dict[PartitionLog, _Looked] = {}
        self._failures: dict[PartitionLog, tuple[float, float]] = {}
        """Of a partition whose last run failed: until when it waits, and how long."""
        self._deferred: set[str] = set()
        """Topics that wait for a higher format level of the cluster, as the log says."""
        self._backoff_ms = max(settings.backoff_ms, _SHORTEST_BACKOFF_MS)
        self._outage = FailureTracker()
        self._log = structlog.get_logger()

    async def run(self, topics: Mapping[str, CompactionPolicy]) -> None:
        """Compact until cancelled; *topics* has the policy of each topic that is compacted now."""
        while self._settings.enabled:
            await asyncio.sleep(self._backoff_ms / 1000)
            while await self._round(topics):
                pass

    async def _round(self, topics: Mapping[str, CompactionPolicy]) -> bool:
        """Compact the partitions that are due, the dirtiest first; False: none was compacted."""
        logs = [log for log in self._logs() if log.topic in topics]
        self._looked = {log: self._looked[log] for log in logs if log in self._looked}
        self._failures = {log: self._failures[log] for log in logs if log in self._failures}
        due: list[tuple[float, PartitionLog]] = []
        async for log in sliced(logs):
            ratio = await self._attempt(log, topics, self._look)
            if ratio is not None:
                due.append((ratio, log))
        compacted = False
        for _, log in sorted(due, key=lambda one: -one[0]):
            compacted |= await self._attempt(log, topics, self._clean) is not None
        return compacted

    async def _attempt(
        self,
        log: PartitionLog,
        topics: Mapping[str, CompactionPolicy],
        work: Callable[[PartitionLog, CompactionPolicy], Awaitable[T | None]],
    ) -> T | None:
        """What *work* returns; None: the partition waits, or *work* failed and is repeated."""
        policy, now_ms = topics.get(log.topic), self._ports.now_ms()
        until_ms, wait_ms = self._failures.get(log, (0.0, self._backoff_ms / 2))
        if policy is None or log.state not in _SERVED or until_ms > now_ms:
            return None
        longest_ms = self._backoff_ms
        try:
            with disk_errors():
                done = await work(log, policy)
        except VoidEditError as error:
            # Another compacts or merges the partition: its segments are looked at again.
            self._manifests.put(log, error.manifest)
            self._log.info("compaction_void", partition=_name(log), reason=str(error))
        except FencedError:
            pass  # it is led elsewhere, or the session is over: its keep-alive learns that
        except (*NO_ANSWER, *ANSWERED) as error:
            self._failed(log, str(error) or repr(error), now_ms)
            if isinstance(error, ANSWERED):
                longest_ms = _LONGEST_WAIT_MS  # each run reads and stores much before the damage
        else:
            self._outage.ended(self._ports.now_ms())
            if isinstance(done, Cleaned):
                self._failures.pop(log, None)
            return done
        wait_ms = min(2 * wait_ms, max(longest_ms, self._backoff_ms))
        self._failures[log] = self._ports.now_ms() + wait_ms, wait_ms
        return None

    def _failed(self, log: PartitionLog, error: str, sent_ms: float) -> None:
        if log.state not in _SERVED:
            return
        self._manifests.drop(log)  # an object may be gone because it was replaced
        if self._outage.failed(error, sent_ms, self._ports.now_ms()):
            self._log.warning(
                "compaction_failed",
                partition=_name(log),
                error=error,
                failures=self._outage.failures,
                advice="repeated; until it succeeds the partition keeps older values of its keys",
            )

    async def _look(self, log: PartitionLog, policy: CompactionPolicy) -> float | None:
        """The share of *log* that is dirty, if it is due."""
        if (level := self._session.author.format_version) < COMPACTION_LEVEL:
            self._tell_deferred(log.topic, level)
            return None
        looked, now_ms = self._looked.get(log), self._ports.wall_ms()
        if not log.manifest_version or (looked and looked.holds(log, policy, now_ms)):
            return None
        manifest = await self._manifests.get(log)
        found = await self._measure(log, manifest, policy, now_ms)
        if is_due(found, policy, now_ms):
            return found.ratio
        self._looked[log] = _Looked(policy, log.sealed_end, due_ms(found, policy))
        return None

    def _tell_deferred(self, topic: str, level: int) -> None:
        """Log that *topic* is not compacted at this format level: once in this session."""
        if topic not in self._deferred:
            self._deferred.add(topic)
            self._log.warning(
                "compaction_deferred",
                topic=topic,
                format_level=level,
                needs_level=COMPACTION_LEVEL,
                advice="no key loses its older values before the level is raised: driftlog cluster "
                "upgrade --finalize",
            )

    async def _measure(
        self, log: PartitionLog, manifest: Manifest, policy: CompactionPolicy, now_ms: int
    ) -> Dirtiness:
        """How dirty *log* is; lists of what is clean are not opened."""
        cleaned_end = max(manifest.cleaned_end, manifest.log_start)
        refs: tuple[SegmentListRef | SegmentRef, ...] = (*manifest.lists, *manifest.segments)
        total = sum(ref.received_bytes for ref in refs if ref.end > manifest.log_start)
        store = self._ports.objects
        dirty = [ref async for ref in iter_segments(store, manifest, cleaned_end)]
        clean = max(0, total - sum(ref.received_bytes for ref in dirty))
        return measure(dirty, clean, log.sealed_end, policy, now_ms)

    async def _clean(self, log: PartitionLog, policy: CompactionPolicy) -> Cleaned | None:
        # Well before the read is too old to base an edit on.
        if self._ports.now_ms() - self._manifests.read_at_ms(log) > self._settings.grace.short_ms:
            self._manifests.drop(log)
        started_ms = self._ports.now_ms()
        manifest = await self._manifests.get(log)
        found = await self._measure(log, manifest, policy, self._ports.wall_ms())
        if not found.dirty_bytes:
            return None
        segments = [ref async for ref in iter_segments(self._ports.objects, manifest)]
        cleaner = Cleaner(
            _PartitionBucket(self, log),
            offload=self._ports.offload,
            spool=self._ports.spool,
            nonce=self._nonce,
            now_ms=self._ports.now_ms,
            seed=self._ports.rng.randbytes(16),
            settings=self._settings.cleaner,
        )
        cleaned = await cleaner.clean(manifest, segments, found.dirty_end, policy)
        self._counters.compactions += 1
        self._counters.compaction_read_bytes += cleaned.bytes_read
        self._counters.compaction_written_bytes += cleaned.bytes_written
        self._counters.compaction_removed_records += cleaned.records_read - cleaned.records_kept
        self._log.info(
            "partition_compacted",
            partition=_name(log),
            cleaned_end=cleaned.end,
            keys=cleaned.keys,
            records_before=cleaned.records_read,
            records=cleaned.records_kept,
            segments_before=cleaned.segments_read,
            segments=cleaned.segments_written,
            ms=round(self._ports.now_ms() - started_ms),
        )
        return cleaned

    def _nonce(self) -> str:
        return f"{self._ports.rng.getrandbits(64):016x}"

    # ── The bucket, for one run ──

    async def get(self, log: PartitionLog, key: str, start: int, end: int) -> Buffer:
        """As `Bucket.get`."""
        _check_served(log)
        return await self._reads.get(key, start, end)

    async def put(self, log: PartitionLog, key: str, body: Sequence[Buffer]) -> None:
        """As `Bucket.put`, with a deadline by its size that a slow uplink can meet."""
        _check_served(log)
        async with asyncio.timeout(_REQUEST_DEADLINE_S + body_bytes(body) / _SLOWEST_BYTES_PER_S):
            await self._ports.objects.put(key, body)

    async def store_now_ms(self, log: PartitionLog) -> int:
        """As `Bucket.store_now_ms`: a listing of one key has it."""
        prefix = layout.manifest_prefix(log.topic, TopicPartition(log.topic_id, log.partition))
        async with asyncio.timeout(_REQUEST_DEADLINE_S):
            async for page in self._ports.objects.list(prefix, page_size=1):
                return page.store_now_ms
        raise UnavailableError(f"{prefix}: a listing without a page")

    async def commit(
        self, log: PartitionLog, edit: ReplaceSegments, began_ms: float, deadline_ms: float
    ) -> None:
        """As `Bucket.commit`: what is local, the edit, and the cached manifest."""
        # First: where the answer is lost, the edit may be made all the same.
        self._sealed_cache.forget(log, edit.replaced[-1].end)
        sent_ms = self._ports.now_ms()
        if sent_ms - self._manifests.read_at_ms(log) > self._settings.grace.short_ms:
            self._manifests.drop(log)
        edited = await commit_edit(
            self._ports.objects,
            await self._manifests.get(log),
            edit,
            self._nonce(),
            author=self._session.author,
            # The objects that it adds are not older than the manifest may be.
            read_at_ms=int(min(began_ms, self._manifests.read_at_ms(log))),
            deadline_ms=int(deadline_ms),
            now_ms=lambda: int(self._ports.now_ms()),
            wanted=lambda: log.state in _SERVED,
            grace=self._settings.grace,
        )
        self._manifests.put(log, edited, sent_ms)


class _PartitionBucket:
    """A `Bucket` of one partition."""

    def __init__(self, log_cleaner: LogCleaner, log: PartitionLog) -> None:
        self.get = partial(log_cleaner.get, log)
        self.put = partial(log_cleaner.put, log)
        self.store_now_ms = partial(log_cleaner.store_now_ms, log)
        self.commit = partial(log_cleaner.commit, log)


def _check_served(log: PartitionLog) -> None:
    """Raises UnavailableError: a run would go on for a partition that is closed or moved."""
    if log.state not in _SERVED:
        raise UnavailableError(f"{_name(log)} is not led here any more")


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
