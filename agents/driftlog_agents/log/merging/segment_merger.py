"""Merges small segments of partitions, one merge at a time.  They are those that one session leads,
or those of other agents (`compaction/rewrites`).

    a new manifest in the cache ──▶ `tiering/merging/policy` ──▶ turn, newest manifest, policy again
        ──▶ `tiering/merging/merger` ──▶ an edit of the manifest ──▶ the cached manifest

1. Only what the partition's key says is sealed is merged: a segment above it may be of an edit
   that this session does not know yet.
2. A look at a partition that is led here costs no request: it takes the manifest that sealing or
   reading has cached.  So a partition that is neither written nor read costs nothing.
3. The lists of older segments are opened, one after another, only in partitions that have sealed
   something in this session, and each once: segments that are merged before they go to a list
   leave nothing to do there.
4. A merge that fails is repeated (`compaction/repeated_rewrites`).
5. A partition that is compacted here waits; the others do not.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.compaction.repeated_rewrites import RepeatedRewrites
from driftlog_agents.log.compaction.rewrites import L, Rewrites
from driftlog_agents.log.compaction.sealed_log import name_of
from driftlog_agents.log.merging.merge_looks import MergedPartition, MergeLooks, MergeSettings
from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import COMPACTION_LEVEL
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifests import VoidEditError, load_list
from driftlog_tiering.merging.list_walk import open_lists
from driftlog_tiering.merging.merger import Merger
from driftlog_tiering.merging.policy import MergePolicy

_REQUEST_DEADLINE_S: Final = 30.0


class SegmentMerger(Generic[L]):
    """See the module.

    Args:
        logs: the partitions.
    """

    def __init__(
        self,
        *,
        rewrites: Rewrites[L],
        settings: MergeSettings,
        counters: LogCounters,
        logs: Callable[[], Iterable[L]],
    ) -> None:
        self._rewrites = rewrites
        self._ports = rewrites.ports
        self._settings = settings
        self._counters = counters
        self._logs = logs
        self._looks = MergeLooks()
        self._attempts = RepeatedRewrites(
            rewrites,
            lambda: settings.interval_ms,
            void="merge_void",
            failed="merge_failed",
            advice="repeated; until it succeeds the partition keeps its small segments",
        )
        self._log = structlog.get_logger()

    async def run(self, topics: TopicPolicies) -> None:
        """Merge until cancelled."""
        while self._settings.enabled:
            await self._attempts.pause()
            while await self._round(topics):
                pass

    async def _round(self, topics: TopicPolicies) -> bool:
        """One merge, at most, of each partition; False: there was none."""
        if self._rewrites.format_level < COMPACTION_LEVEL:
            return False
        logs = [log async for log in sliced(self._logs()) if log.topic in topics.retention]
        self._looks.keep(logs)
        self._attempts.keep(logs)
        merged = False
        async for log in sliced(logs):
            policy = topics.of(log.topic, self._settings.factor)
            if policy is not None and self._may_merge(log, topics):
                done = await self._attempts.attempt(log, partial(self._look_and_merge, log, policy))
                merged |= done is True
        return merged

    def _may_merge(self, log: L, topics: TopicPolicies) -> bool:
        """Whether *log* is not being compacted; a leader that compacts it alone merges it, too."""
        if log.topic in topics.compaction and not self._rewrites.may_compact(log):
            return False
        return not self._rewrites.is_taken(log)

    async def _look_and_merge(self, log: L, policy: MergePolicy) -> bool:
        return await self._look(log, policy) and await self._merge(log, policy)

    # ── What is merged ──

    async def _look(self, log: L, policy: MergePolicy) -> bool:
        """Whether something of *log* is to be merged, by the known manifest."""
        version = self._rewrites.version(log)
        if version is None:
            return False
        found = self._looks.of(log, policy)
        if not found.may_be_due(version, self._ports.wall_ms()):
            return False
        if await self._next(await self._rewrites.known(log), found):
            return True
        found.found_nothing(version)
        return False

    async def _next(self, manifest: Manifest, found: MergedPartition) -> tuple[SegmentRef, ...]:
        """The next segments of *manifest* to merge; empty: there are none."""
        found.due_ms = None
        chosen = found.choose(manifest, manifest.segments, self._ports.wall_ms())
        if chosen or not found.opens_lists:
            return chosen
        lists = open_lists(manifest.lists, self._load, partial(found.may_have_more, manifest))
        async for ref, content in lists:
            chosen = found.choose(manifest, content.segments, self._ports.wall_ms(), follows=True)
            if chosen:
                return chosen
            found.settled = ref.end
        return ()

    async def _load(self, ref: SegmentListRef) -> SegmentList:
        async with asyncio.timeout(_REQUEST_DEADLINE_S):
            return await load_list(self._ports.objects, ref)

    # ── One merge ──

    async def _merge(self, log: L, policy: MergePolicy) -> bool:
        async with self._rewrites.rewrite(log) as (manifest, bucket):
            started_ms = self._ports.now_ms()
            chosen = await self._next(manifest, self._looks.of(log, policy))
            if not chosen:
                return False
            merger = Merger(bucket, self._rewrites.environment)
            with self._counters.merge_runs.attempt(self._ports.now_ms, VoidEditError):
                merged = await merger.merge(manifest, chosen)
        self._attempts.succeeded(log)
        self._counters.merges += 1
        self._counters.merged_segments += merged.segments
        self._counters.merge_read_bytes += merged.bytes_read
        self._counters.merge_written_bytes += merged.added.size_bytes
        self._log.info(
            "segments_merged",
            partition=name_of(log),
            base=merged.added.base,
            end=merged.added.end,
            segments=merged.segments,
            bytes=merged.added.size_bytes,
            ms=round(self._ports.now_ms() - started_ms),
        )
        return True
