"""Expires the segments of the partitions that one session leads.

    every `log.retention.check.interval.ms`, at a partition's own phase
        ──▶ due? ──▶ manifest, lists, as the check asks for them ──▶ `policy.check`
        ──▶ the partition's key: log start (`sealing/record_deletion`)
        ──▶ the manifest follows (`sealing/sealer`); the collector deletes the objects

A partition that has not changed since its last check, and of which nothing is due by time, costs no
request.  Nothing expires by a manifest that was read more than a minute ago: segments may have been
replaced since.  Nothing expires by a retention that was changed during the check: it is compared
once more in the step that writes the key.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.loop_slices import each, sliced
from driftlog_agents.foundation.retry import NO_ANSWER, memory_errors
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.object_retry import ANSWERED
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.retention.checks import RetentionChecks
from driftlog_agents.log.retention.policy import (
    Expiry,
    Known,
    RetentionSettings,
    TopicRetention,
    check,
)
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef
from driftlog_tiering.formats.manifests import load_list
from driftlog_tiering.stores.object_store import ObjectStore

_MANIFEST_AGE_MS: Final = 60_000.0
"""Longer: a partition may lose by size what a compaction has made room for."""

_KEEPS_ALL: Final = TopicRetention()
"""The retention of a topic that is deleted."""

_REQUEST_DEADLINE_S: Final = 30.0
_AT_ONCE: Final = 4
"""Partitions checked at once.  More: a burst of requests after a start; fewer: slower behind a slow
store."""

_TICKS: Final = 100
_SHORTEST_TICK_S: Final = 0.05
_LONGEST_TICK_S: Final = 5.0
"""A tick finds the partitions whose check is due: a hundred ticks an interval."""


class SegmentExpiry:
    """See the module.

    Args:
        logs: the partitions that the session leads.
        wall_ms: Unix time in ms; record timestamps are compared with it, as in Kafka.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        manifests: ManifestCache,
        deletion: RecordDeletion,
        settings: RetentionSettings,
        counters: LogCounters,
        rng: Random,
        logs: Callable[[], Iterable[PartitionLog]],
        wall_ms: Callable[[], int],
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._deletion = deletion
        self._settings = settings
        self._counters = counters
        self._logs = logs
        self._wall_ms = wall_ms
        self._checks = RetentionChecks(settings, rng.random)
        self._outage = FailureTracker()
        self._log = structlog.get_logger()

    async def run(self, topics: Mapping[str, TopicRetention]) -> None:
        """Check the partitions until cancelled; *topics* has the retention of each topic now."""
        interval_s = self._settings.check_interval_ms / 1000
        tick_s = min(max(interval_s / _TICKS, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        while True:
            await asyncio.sleep(tick_s)
            logs = [log async for log in sliced(self._logs())]
            due = [
                log
                async for log in sliced(self._checks.due(logs, self._now_ms() / 1000))
                if not topics.get(log.topic, _KEEPS_ALL).keeps_all
            ]
            if due:
                await each(due, lambda log: self._attempt(log, topics), _AT_ONCE)

    def size_bytes(self, log: PartitionLog) -> int:
        """The size of *log*, as retention counts it."""
        return self._checks.size_bytes(log, self._manifests.known(log))

    def sealed_bytes(self, log: PartitionLog) -> int:
        """The part of it that is sealed."""
        return self._checks.sealed_bytes(log, self._manifests.known(log))

    async def _attempt(self, log: PartitionLog, topics: Mapping[str, TopicRetention]) -> None:
        """Check *log*, or note why that failed: the next check tries again."""
        sent_ms = self._now_ms()
        try:
            with memory_errors():
                await self._check(log, topics)
        except FencedError:
            pass  # it is led elsewhere, or the session is over: its keep-alive learns that
        except (*NO_ANSWER, *ANSWERED) as error:
            if log.state is State.CLOSED:
                return
            if isinstance(error, ANSWERED):
                # A list may be gone because a job has merged its segments.
                self._manifests.drop(log)
            if self._outage.failed(str(error) or repr(error), sent_ms, self._now_ms()):
                self._log.warning(
                    "retention_failed",
                    partition=_name(log),
                    error=self._outage.error,
                    failures=self._outage.failures,
                    advice="repeated at the next check; until it succeeds expired records stay",
                )
        else:
            self._outage.ended(self._now_ms())

    async def _check(self, log: PartitionLog, topics: Mapping[str, TopicRetention]) -> None:
        def holds() -> bool:
            return topics.get(log.topic, _KEEPS_ALL) == retention

        retention = topics.get(log.topic, _KEEPS_ALL)
        if retention.keeps_all or not self._checks.is_needed(log, retention, self._wall_ms()):
            return
        known = Known()
        expiry, manifest = await self._expiry(log, retention, known)
        if expiry.log_start > log.log_start and self._manifests.age_ms(log) > _MANIFEST_AGE_MS:
            self._manifests.drop(log)
            expiry, manifest = await self._expiry(log, retention, known)
        self._checks.checked(log, retention, expiry, manifest, known)
        before = log.log_start
        totals = expiry.totals(before, log.sealed_end)
        if expiry.log_start > before:
            start = await self._deletion.delete_to(log, expiry.log_start, holds)
            if start >= expiry.log_start:
                self._tell(log, before, expiry, totals)

    async def _expiry(
        self, log: PartitionLog, retention: TopicRetention, known: Known
    ) -> tuple[Expiry, Manifest | None]:
        """What has expired, by the newest manifest; *known* gets what was read for it."""
        while True:
            manifest = await self._manifests.get(log) if log.manifest_version else None
            found = check(log, manifest, retention, self._wall_ms(), known)
            if isinstance(found, Expiry):
                return found, manifest
            key = found.ref.key
            async with asyncio.timeout(_REQUEST_DEADLINE_S):
                if isinstance(found.ref, SegmentListRef):
                    known.lists[key] = await load_list(self._objects, found.ref)
                else:
                    known.put_ms[key] = (await self._objects.stat(key)).modified_ms

    def _tell(
        self, log: PartitionLog, before: int, expiry: Expiry, totals: Mapping[str, int]
    ) -> None:
        for reason, expired in expiry.expired.items():
            self._counters.expired_records[reason] += expired.records
            self._counters.expired_bytes[reason] += expired.size_bytes
        self._log.info(
            "segments_expired",
            partition=_name(log),
            log_start_before=before,
            log_start=expiry.log_start,
            **totals,
        )

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
