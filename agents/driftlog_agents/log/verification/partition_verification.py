"""Verifies the sealed logs of the partitions that one session leads, one after the other, slowly.

    schedule ──due──▶ `PartitionVerifier` ──▶ right
                            │    └──▶ damaged: logged with object and advice, verified again soon
                            └─ before each read: wait while producers are held back

1. Verification only reads, and holds no lock: sealing, compaction and retention go on meanwhile.
2. It reads no faster than its settings say, and nothing while the agent is overloaded.
3. The manifest must be at least the version that the partition's key names: so a lost newest
   manifest is found.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog

from driftlog_agents.foundation.loop_slices import sliced, time_to_work
from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.verification.schedule import VerificationSchedule, VerificationSettings
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import ObjectStore
from driftlog_tiering.verification.findings import PartitionReport
from driftlog_tiering.verification.object_reads import ObjectReads, ReadLimits
from driftlog_tiering.verification.partition_verifier import PartitionVerifier

_TICKS: Final = 1_000
_SHORTEST_TICK_S: Final = 0.05
_LONGEST_TICK_S: Final = 60.0
"""A tick finds the partitions that are due."""

_READS_AT_ONCE: Final = 2
"""Each holds up to 4 MiB."""

_HELD_S: Final = 0.5
"""Between two looks whether producers are still held back."""

_MOST_LINES: Final = 10
"""Log lines of one verification of a partition; `driftlog verify` prints all."""


class PartitionVerification:
    """See the module.

    Args:
        logs: the partitions that the session leads.
        wall_ms: Unix time in ms.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        offload: Offload,
        settings: VerificationSettings,
        backpressure: Backpressure,
        counters: LogCounters,
        logs: Callable[[], Iterable[PartitionLog]],
        wall_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._backpressure = backpressure
        self._counters = counters
        self._logs = logs
        self._wall_ms = wall_ms
        self._schedule = VerificationSchedule(settings)
        self._followed: list[PartitionLog] = []
        """What the schedule has, by its last look."""
        self._followed_ms = 0
        self._led: dict[TopicPartition, PartitionLog] = {}
        limits = ReadLimits(at_once=_READS_AT_ONCE, bytes_per_s=settings.bytes_per_s)
        self._verifier = PartitionVerifier(ObjectReads(objects, limits, self._turn), offload)
        self._damaged: dict[TopicPartition, int] = {}
        """Partitions with damage."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Verify the partitions that are due until cancelled."""
        interval_s = self._settings.interval_ms / 1000
        tick_s = min(max(interval_s / _TICKS, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        while True:
            await asyncio.sleep(tick_s)
            await self._follow()
            while not await self._verify_due(asyncio.get_running_loop().time() + tick_s):
                await self._follow()

    async def _follow(self) -> None:
        """Tell the schedule which partitions are led, if others are: in slices, for there may be
        tens of thousands."""
        logs, now_ms = list(self._logs()), self._wall_ms()
        if logs == self._followed and now_ms >= self._followed_ms:
            self._followed_ms = now_ms
            return
        led: dict[TopicPartition, PartitionLog] = {}

        def partitions() -> Iterator[TopicPartition]:
            for log in logs:
                tp = TopicPartition(log.topic_id, log.partition)
                led[tp] = log
                yield tp

        async for _ in sliced(self._schedule.follow(partitions(), now_ms)):
            pass
        self._led, self._followed, self._followed_ms = led, logs, now_ms
        self._damaged = {tp: n for tp, n in self._damaged.items() if tp in led}

    async def _verify_due(self, until_s: float) -> bool:
        """Verify the partitions that are due, until none is; False: it took until *until_s*."""
        while asyncio.get_running_loop().time() < until_s:
            await time_to_work()
            due = self._schedule.due(self._wall_ms())
            if due is None:
                return True
            log = self._led[due]
            if log.state is State.CLOSED:
                self._schedule.forget(due)
            else:
                await self._attempt(due, log)
        return False

    @property
    def damaged(self) -> int:
        """Damaged ranges of the partitions led, each at its last verification here."""
        return sum(self._damaged.values())

    @property
    def overdue_ms(self) -> int:
        """For how long the partition that is due longest has been due."""
        return self._schedule.overdue_ms(self._wall_ms())

    async def _attempt(self, tp: TopicPartition, log: PartitionLog) -> None:
        """Verify one partition, or note why that failed: it is repeated."""
        try:
            report = await self._verifier.verify(log.topic, tp, log.manifest_version)
        except NO_ANSWER as error:
            self._schedule.verified(tp, self._wall_ms(), repeat=True)
            if log.state is not State.CLOSED:
                self._log.warning(
                    "verification_failed",
                    partition=f"{log.topic}-{log.partition}",
                    error=repr(error),
                    advice="the bucket did not answer; repeated within the hour",
                )
            return
        except Exception:  # noqa: BLE001  # a bug here does not end the session, which leads others
            self._schedule.verified(tp, self._wall_ms(), repeat=True)
            self._log.exception(
                "verification_bug",
                partition=f"{log.topic}-{log.partition}",
                advice="report it; repeated within the hour",
            )
            return
        self._schedule.verified(tp, self._wall_ms(), repeat=bool(report.damaged))
        if log.state is not State.CLOSED:
            self._found(tp, report)

    def _found(self, tp: TopicPartition, report: PartitionReport) -> None:
        if report.damaged:
            self._damaged[tp] = report.damaged
        else:
            self._damaged.pop(tp, None)
        self._counters.verified_partitions += 1
        self._counters.verified_bytes += report.size_bytes
        for one in report.damage[:_MOST_LINES]:
            self._log.error(
                "sealed_damage_found",
                partition=report.name,
                object=one.key,
                kind=one.kind.value,
                base=one.base,
                end=one.end,
                error=one.detail,
                advice=one.advice,
            )
        self._log.info(
            "partition_verified",
            partition=report.name,
            segments=report.segments,
            records=report.records,
            bytes=report.size_bytes,
            damaged=report.damaged,
        )

    async def _turn(self) -> None:
        """Wait while the agent is overloaded."""
        while self._backpressure.held:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(_HELD_S)
