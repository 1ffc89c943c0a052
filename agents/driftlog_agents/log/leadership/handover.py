"""Hands over partitions that are led here and placed elsewhere.

    some at a time, while the bucket answers:
        cut ──▶ what is in flight committed within a second? ──no──▶ not now; the others go on
                      └─yes─▶ batches wait ──▶ cut ──▶ committed within a second?
                             admit them, not now ◀──no──┘     └─yes─▶ stop, release together

1. A released partition has no batch in flight: the release is sent when every admitted batch is
   committed, and is repeated until it is answered.
2. A released partition admits no batch without a new claim.
3. Only a few partitions of each receiver have no leader at a time: the next ones are stopped when
   the receiver leads these, or has taken too long.
4. A partition moves only if a probe of the bucket has just succeeded, and stops only when its last
   flush is committed: a partition that stops during an outage would have no leader until the outage
   ends, for a release is final.  During the last flush its batches wait, for a bounded time, and
   its consumers are not affected; after any failure this agent continues to serve it.

The handover waits a moment after a new plan: agents that start together share one plan, and the
receiver reads the footers that it will need.

An agent without the role `serve` keeps nothing: what it leads, to commit what an earlier session
left on its disk, is released as soon as that is committed (`release_all`).

A hand-over and `give_up`, which an operator's command calls, may concern one partition at the same
time: `assignment` allows only one of them to pause it, and only one to retire it.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.claim_transactions import release
from driftlog_agents.log.leadership.handover_policy import (
    FlushDeadline,
    LeadershipSettings,
    is_flushed,
    is_movable,
    may_pause,
    next_to_move,
)
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import CommitWaiter
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError

_PROBED_MS: Final = 1_000.0
"""Maximum age of the probe of the bucket when partitions are stopped."""


_HELD_MS: Final = 20_000.0
"""How long `hold` waits until an attempt to claim the partition ends; an attempt retries a missing
object for five seconds."""

_LOOK_S: Final = 0.005
"""Time between two checks whether an attempt has ended.  Shorter: more work meanwhile; longer: an
operator waits longer."""


class ServedPartitions(Protocol):
    """The session that serves the partitions; see `log/log_session`."""

    def pause(self, log: PartitionLog) -> None:
        """Makes batches wait before their admission; reads continue."""
        ...

    def resume(self, log: PartitionLog) -> None:
        """Admits the waiting batches."""
        ...

    def retire(self, log: PartitionLog) -> None:
        """Stops produce and fetch for *log*; waiting batches are refused."""
        ...

    def gone(self, log: PartitionLog) -> None:
        """Forgets *log*: it was released."""
        ...


class Handover:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        session: Session,
        cluster: ClusterWatch,
        assignments: PartitionAssignments,
        flusher: Flusher,
        probes: BucketProbes,
        partitions: ServedPartitions,
        settings: LeadershipSettings,
        now_ms: Callable[[], float],
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._assignments = assignments
        self._flusher = flusher
        self._probes = probes
        self._partitions = partitions
        self._settings = settings
        self._now_ms = now_ms
        self._flush_deadline = FlushDeadline(settings.flushed_ms)
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Hands over partitions that are placed elsewhere, until cancelled.

        Raises:
            FencedError: the session is over.
        """
        while True:
            version = self._assignments.version
            if not self._next():
                await self._cluster.until(self._assignments.is_newer_than(version))
            elif (wait_ms := self._not_yet_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            elif not await self._bucket_answers():
                await asyncio.sleep(self._settings.settle_ms / 1000)
            else:
                await self._move(self._next())

    def _not_yet_ms(self) -> float:
        """How long the plan must still stand before a hand-over.  While this agent cannot commit,
        no partition is stopped: another agent might not commit either."""
        if self._flusher.outage.since_ms is not None:
            return self._settings.settle_ms
        return self._assignments.planned_ms + self._settings.settle_ms - self._now_ms()

    def _next(self) -> list[PartitionLog]:
        agents = self._cluster.view.agents
        return next_to_move(self._assignments.to_move(), agents, self._settings)

    async def _move(self, logs: Sequence[PartitionLog]) -> None:
        """Hands over *logs* after their last flush, together: each release costs its receiver an
        attempt, and the next attempt waits for it."""
        flushed = await self._flush(logs)
        if len(flushed) < len(logs) and not await self._bucket_answers():
            return
        may_move = set(self._next())
        movable = [log for log in flushed if log in may_move]
        moved = await self._stop(movable)
        if len(flushed) == len(logs) and len(moved) == len(movable):
            self._flush_deadline.met()
        await self._led_by_others(moved)

    async def _bucket_answers(self) -> bool:
        return await self._probes.succeeded_since(self._now_ms() - _PROBED_MS)

    async def _flush(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Flushes what is in flight of *logs*; returns those committed within the deadline."""
        waiters = {log: _wait_for_end(log, CommitWaiter()) for log in logs if not is_flushed(log)}
        if waiters:
            self._flusher.hurry()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush_deadline.ms / 1000):
                for waiter in waiters.values():
                    await waiter.event.wait()
        found = [log for log in logs if log not in waiters or waiters[log].event.is_set()]
        if len(found) < len(logs) and self._flush_deadline.missed():
            self._log.warning(
                "hand_over_delayed",
                partitions=len(logs) - len(found),
                advice="no action needed here: this agent serves these partitions until the bucket "
                "and the metadata store have taken their flushes",
            )
        return found

    async def _stop(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Releases *logs* together that flush within the deadline while their batches wait.  If one
        is late, the bucket may hang: it stays served, and so do those that had nothing to flush.
        Returns the released ones."""
        paused = [log for log in logs if may_pause(log) and self._assignments.pause(log)]
        for log in paused:
            self._partitions.pause(log)
        stopped: dict[PartitionLog, None] = {}
        try:
            flushed = set(await self._flush(paused))
            is_late = len(flushed) < len(paused)
            free = (
                log
                for log in logs
                if log in flushed or (not is_late and self._assignments.is_leading(log))
            )
            stopped = dict.fromkeys(log for log in free if is_flushed(log))
        finally:
            for log in paused:
                if log not in stopped and self._assignments.resume(log):
                    self._partitions.resume(log)
            self._cluster.wake()
        await self._retire(stopped)  # in the same turn: no batch was admitted since
        return list(stopped)

    async def _retire(self, logs: Iterable[PartitionLog]) -> None:
        """Stops and releases *logs*, which have no batch in flight, for good."""
        retired = [log for log in logs if self._assignments.retire(log)]
        for log in retired:
            self._partitions.retire(log)
        await self.release(retired)

    def retire_all(self, logs: Iterable[PartitionLog]) -> None:
        """Stops *logs*, which may have batches in flight: the session ends."""
        for log in logs:
            self._assignments.retire(log)
            self._partitions.retire(log)

    async def release(self, logs: Iterable[PartitionLog]) -> None:
        """Releases *logs*, which are retired and have no batch in flight.

        Raises:
            FencedError: the session is over.
        """
        logs = [log for log in logs if self._assignments.is_led(log)]
        await release(
            self._session, self._assignments.releases(logs, lost=bool(self._flusher.lost))
        )
        released = [log for log in logs if self._assignments.released(log)]
        for log in released:
            self._partitions.gone(log)
        if released:
            self._log.info("partitions_handed_over", partitions=len(released))
            self._cluster.wake()  # they may be placed here, and the view may show their releases

    async def _led_by_others(self, logs: Sequence[PartitionLog]) -> None:
        tps = [TopicPartition(log.topic_id, log.partition) for log in logs]
        view = self._cluster.view
        await self._cluster.until(
            lambda: all(
                tp.topic_id not in view.topics
                or (view.is_led(tp) and self._assignments.shows_release(view, tp))
                for tp in tps
            ),
            self._settings.taken_ms / 1000,
        )

    # ── Without the role `serve` ──

    async def release_all(self) -> None:
        """Releases every partition that is led here, as soon as it is flushed, until cancelled.
        Offline ones stay: their buffered batches are on this disk.

        Raises:
            FencedError: the session is over.
        """
        while True:
            version = self._assignments.version
            await self.give_up([log for log in self._assignments.led() if is_movable(log)])
            await self._cluster.until(self._assignments.is_newer_than(version))

    # ── For an operator's command ──

    async def hold(self, tp: TopicPartition) -> None:
        """Prevents claims of *tp* until `let`: an operator's command works on it under its own
        claim.

        Raises:
            UnavailableError: for 20 s *tp* was being claimed, or was held.
        """
        until_ms = self._now_ms() + _HELD_MS
        while not self._assignments.hold(tp):
            if self._now_ms() >= until_ms:
                raise UnavailableError("the partition is being claimed: try again")
            await asyncio.sleep(_LOOK_S)

    def let(self, tp: TopicPartition) -> None:
        """Allows claims of *tp* again, at once."""
        self._assignments.let(tp)
        self._cluster.wake()

    async def give_back(self, tp: TopicPartition) -> None:
        """Releases the claim of *tp*, which is held, if it is retained without being led.

        Raises:
            FencedError: the session is over.
        """
        retained = self._assignments.give_back(tp)
        if retained is not None:
            await release(self._session, [retained])

    async def give_up(self, logs: Sequence[PartitionLog]) -> None:
        """Flushes, stops and releases *logs*, for good: each as soon as it has no batch in flight.
        A partition that cannot be flushed is served until it can.

        Raises:
            FencedError: the session is over.
        """
        left = flushed = list(logs)
        while left:
            await self._retire(
                log for log in flushed if is_flushed(log) and self._assignments.is_leading(log)
            )
            await self._stop(flushed)
            left = [log for log in left if self._assignments.is_led(log)]
            await self._cluster.until(self._assignments.none_is_stopping(left))
            flushed = await self._flush(left)
        self._flush_deadline.met()


def _wait_for_end(log: PartitionLog, waiter: CommitWaiter) -> CommitWaiter:
    """Sets *waiter* when every batch that *log* has admitted by now is committed."""
    log.waiters.append((log.log_end, waiter))
    return waiter
