"""Compacts partitions: the dirtiest first, one at a time.  They are those that one session leads,
or those of other agents (`rewrites`).

    every `log.cleaner.backoff.ms` ──▶ changed, or due by age? ──▶ how dirty? ──▶ the dirtiest
        ──▶ `tiering/compaction/cleaner` ──▶ an edit of the manifest ──▶ the cached manifest
        ──▶ local copies of what was compacted are forgotten ──▶ the next one

1. Only what the partition's key says is sealed is compacted: a segment above it may be of an edit
   that this session does not know yet.
2. Memory and buffer files hold sealed batches as they were.  A reader that finds an older value
   there would not find the tombstone, which is gone from the segments: with the edit, the local
   copies of what was compacted are forgotten.  (A leader whose partition another agent or a job
   compacts forgets them by time: `sealing/local_copies`.)
3. A run that fails is repeated (`repeated_rewrites`).
4. A partition that has not changed, and of which nothing is due by age, costs no request.
5. The policy of a run is asked for after its manifest was read: no record that the manifest has was
   acknowledged after a change of the topic's configs that the policy lacks.  After a takeover it
   waits until the view has the topic, and what that inherits, as they were at the claim
   (`upkeep_partitions`).  A topic that inherits its `cleanup.policy` is compacted by its leader
   only.  The policy is asked for again before each edit: one that has changed ends the run, as
   another's edit does.
6. One run at a time in the process: a map of keys may take `log.cleaner.dedupe.buffer.size`.

Source: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager.

Shell.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Generic

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.compaction.compaction_looks import (
    CompactionLooks,
    CompactionSettings,
)
from driftlog_agents.log.compaction.repeated_rewrites import RepeatedRewrites
from driftlog_agents.log.compaction.rewrites import L, PartitionRewrite, Rewrites
from driftlog_agents.log.compaction.sealed_log import name_of
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import COMPACTION_LEVEL
from driftlog_tiering.compaction.bucket_requests import dated
from driftlog_tiering.compaction.cleaner import Cleaned, Cleaner
from driftlog_tiering.compaction.policy import (
    CompactionPolicy,
    Dirtiness,
    clean_until,
    dirtiness,
)
from driftlog_tiering.formats.manifest import (
    Manifest,
    ReplaceSegments,
)
from driftlog_tiering.formats.manifests import VoidEditError, iter_segments


class LogCleaner(Generic[L]):
    """See the module.

    Args:
        compacts: called before an edit is sent, with the partition and the end of what it compacts.
        logs: the partitions.
    """

    def __init__(
        self,
        *,
        rewrites: Rewrites[L],
        compacts: Callable[[L, int], None],
        settings: CompactionSettings,
        counters: LogCounters,
        logs: Callable[[], Iterable[L]],
    ) -> None:
        self._rewrites = rewrites
        self._ports = rewrites.ports
        self._compacts = compacts
        self._settings = settings
        self._counters = counters
        self._logs = logs
        self._looks = CompactionLooks()
        self._attempts = RepeatedRewrites(
            rewrites,
            lambda: settings.backoff_ms,
            void="compaction_void",
            failed="compaction_failed",
            advice="repeated; until it succeeds the partition keeps older values of its keys",
        )
        self._deferred: set[str] = set()
        """Topics that wait for a higher format level of the cluster, as the log says."""
        self._log = structlog.get_logger()

    async def run(self, topics: Mapping[str, CompactionPolicy]) -> None:
        """Compact until cancelled; *topics* has the policy of each topic that is compacted now."""
        while self._settings.enabled:
            await self._attempts.pause()
            while await self._round(topics):
                pass

    async def _round(self, topics: Mapping[str, CompactionPolicy]) -> bool:
        """Compact the partitions that are due, the dirtiest first; False: none was compacted."""
        may = self._rewrites.may_compact
        logs = [log async for log in sliced(self._logs()) if log.topic in topics and may(log)]
        self._looks.keep(logs)
        self._attempts.keep(logs)
        due: list[tuple[float, L]] = []
        async for log in sliced(logs):
            if (policy := topics.get(log.topic)) is not None:
                ratio = await self._attempts.attempt(log, partial(self._look, log, policy))
                if ratio is not None:
                    due.append((ratio, log))
        compacted = False
        for _, log in sorted(due, key=lambda one: -one[0]):
            done = await self._attempts.attempt(log, partial(self._clean, log, topics))
            compacted |= done is not None
        return compacted

    async def _look(self, log: L, policy: CompactionPolicy) -> float | None:
        """The share of *log* that is dirty, if it is due."""
        if (level := self._rewrites.format_level) < COMPACTION_LEVEL:
            self._tell_deferred(log.topic, level)
            return None
        now_ms = self._ports.wall_ms()
        if not self._looks.is_wanted(log, policy, now_ms):
            return None
        manifest = await self._rewrites.current(log)
        found = await self._measure(log, manifest, policy, now_ms)
        return self._looks.ratio(log, found, policy, now_ms)

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
        self, log: L, manifest: Manifest, policy: CompactionPolicy, now_ms: int
    ) -> Dirtiness:
        """How dirty *log* is; lists of what is clean are not opened."""
        segments = iter_segments(self._ports.objects, manifest, clean_until(manifest))
        dirty = await dated(self._ports.objects, [ref async for ref in segments], policy)
        return dirtiness(manifest, dirty, log.sealed_end, policy, now_ms)

    async def _clean(self, log: L, topics: Mapping[str, CompactionPolicy]) -> Cleaned | None:
        def sends(edit: ReplaceSegments) -> None:
            # First: where the answer is lost, the edit may be made all the same.
            self._compacts(log, edit.replaced[-1].end)

        async def policy_now() -> CompactionPolicy | None:
            return topics.get(log.topic) if self._rewrites.may_compact(log) else None

        async with self._ports.compacting, self._rewrites.rewrite(log, sends) as rewrite:
            return await self._clean_in_turn(log, policy_now, rewrite)

    async def _clean_in_turn(
        self,
        log: L,
        policy_now: Callable[[], Awaitable[CompactionPolicy | None]],
        rewrite: PartitionRewrite,
    ) -> Cleaned | None:
        policy = await policy_now()
        if policy is None:
            return None
        started_ms = self._ports.now_ms()
        manifest = rewrite.manifest
        found = await self._measure(log, manifest, policy, self._ports.wall_ms())
        if not found.dirty_bytes:
            return None
        segments = [ref async for ref in iter_segments(self._ports.objects, manifest)]
        cleaner = Cleaner(
            rewrite.bucket,
            self._rewrites.environment,
            seed=self._ports.rng.randbytes(16),
            settings=self._settings.cleaner,
        )
        with self._counters.compaction_runs.attempt(self._ports.now_ms, VoidEditError):
            cleaned = await cleaner.clean(manifest, segments, found.dirty_end, policy, policy_now)
        self._attempts.succeeded(log)
        self._counters.compactions += 1
        self._counters.compaction_read_bytes += cleaned.bytes_read
        self._counters.compaction_written_bytes += cleaned.bytes_written
        self._counters.compaction_removed_records += cleaned.records_read - cleaned.records_kept
        self._log.info(
            "partition_compacted",
            partition=name_of(log),
            cleaned_end=cleaned.end,
            keys=cleaned.keys,
            records_before=cleaned.records_read,
            records=cleaned.records_kept,
            segments_before=cleaned.segments_read,
            segments=cleaned.segments_written,
            ms=round(self._ports.now_ms() - started_ms),
        )
        return cleaned
