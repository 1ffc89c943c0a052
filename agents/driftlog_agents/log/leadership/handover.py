"""Hands over partitions that are led here and placed elsewhere.

    some at a time, while the bucket answers:
        cut ──▶ what is in flight committed within a second? ──no──▶ not now
                      └─yes─▶ batches wait ──▶ cut ──▶ committed within a second?
                             admit them, not now ◀──no──┘     └─yes─▶ stop, release

1. What is released has nothing on its way: a release is sent when all that was admitted is
   committed, and repeated until it is answered.
2. Nothing is admitted again without a new claim.
3. A few partitions of each receiver are without a leader at a time: the next are stopped when
   the receiver leads these, or has taken too long.
4. Nothing is moved unless a probe of the bucket has just succeeded, and no partition is stopped
   before its last flush is committed: one that is stopped in an outage would have no leader until
   its end, for a release is final.  Meanwhile its batches wait, for a bounded time, and its
   consumers notice nothing; whatever fails in between, it goes on where it is.

Before it hands anything over it waits for a moment: agents that start together make one plan,
and the receiver reads the footers of what it will need.

A hand-over and `give_up`, which an operator's command asks for, may be about one partition at
once: `assignment` lets one of them pause it, and one retire it.

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
from driftlog_agents.log.leadership.handover_policy import (
    FlushDeadline,
    LeadershipSettings,
    is_flushed,
    may_pause,
    next_to_move,
)
from driftlog_agents.log.leadership.takeover import release
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import Arrival
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError

_PROBED_MS: Final = 1_000.0
"""How old a probe of the bucket may be when partitions are stopped."""


_HELD_MS: Final = 20_000.0
"""How long `hold` waits for an attempt to claim the partition, which looks for a missing object for
five seconds."""

_LOOK_S: Final = 0.005
"""Between two looks at whether an attempt has ended.  Shorter: more work meanwhile; longer: an
operator waits longer."""


class ServedPartitions(Protocol):
    """What serves partitions; see `log/log_session`."""

    def pause(self, log: PartitionLog) -> None:
        """Let batches wait before their admission; what is read goes on."""
        ...

    def resume(self, log: PartitionLog) -> None:
        """Admit those that wait."""
        ...

    def retire(self, log: PartitionLog) -> None:
        """Admit nothing and show nothing any more; batches that wait are refused."""
        ...

    def gone(self, log: PartitionLog) -> None:
        """It was released."""
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
        """Hand over what is placed elsewhere, until cancelled.

        Raises:
            FencedError: the session is over.
        """
        while True:
            version = self._assignments.version
            if not self._next():
                await self._cluster.until(self._assignments.is_newer_than(version))
            elif (wait_ms := self._not_yet_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            elif not await self._probes.succeeded_since(self._now_ms() - _PROBED_MS):
                await asyncio.sleep(self._settings.settle_ms / 1000)
            else:
                await self._move(self._next())

    def _not_yet_ms(self) -> float:
        """How long the plan must stand before anything is handed over; while nothing can be
        committed nothing is stopped either: no other agent would do better for sure."""
        if self._flusher.outage.since_ms is not None:
            return self._settings.settle_ms
        return self._assignments.planned_ms + self._settings.settle_ms - self._now_ms()

    def _next(self) -> list[PartitionLog]:
        agents = self._cluster.view.agents
        return next_to_move(self._assignments.to_move(), agents, self._settings)

    async def _move(self, logs: Sequence[PartitionLog]) -> None:
        """Hand over *logs*: idle ones at once, the others while what they admit is committed."""
        idle = [log for log in logs if is_flushed(log)]
        busy = [log for log in logs if not is_flushed(log)]
        await self._retire(idle)
        flushed = await self._flush(busy)
        may_move = set(self._next())
        movable = [log for log in flushed if log in may_move]
        moved = await self._stop(movable)
        if len(flushed) == len(busy) and len(moved) == len(movable):
            self._flush_deadline.met()
        await self._led_by_others([*idle, *moved])

    async def _flush(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Of *logs*: those of which all that is in flight now is committed soon."""
        arrivals = {log: _wait_for_end(log, Arrival()) for log in logs if not is_flushed(log)}
        if arrivals:
            self._flusher.hurry()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush_deadline.ms / 1000):
                for arrival in arrivals.values():
                    await arrival.event.wait()
        found = [log for log in logs if log not in arrivals or arrivals[log].event.is_set()]
        if len(found) < len(logs) and self._flush_deadline.missed():
            self._log.warning(
                "hand_over_delayed",
                partitions=len(logs) - len(found),
                advice="nothing to do here: they are served where they are until the bucket "
                "and the metadata store take what is in flight",
            )
        return found

    async def _stop(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Release those of *logs* that are flushed, or soon are while their batches wait; the
        others go on.  Returns those that were released."""
        stopped = [log for log in logs if is_flushed(log) and self._assignments.is_leading(log)]
        await self._retire(stopped)
        paused = [log for log in logs if may_pause(log) and self._assignments.pause(log)]
        for log in paused:
            self._partitions.pause(log)
        late: list[PartitionLog] = []
        try:
            await self._flush(paused)
            late = [log for log in paused if is_flushed(log)]
        finally:
            for log in paused:
                if log not in late and self._assignments.resume(log):
                    self._partitions.resume(log)
            self._cluster.wake()
        await self._retire(late)  # in the same turn: nothing was admitted since
        return [*stopped, *late]

    async def _retire(self, logs: Iterable[PartitionLog]) -> None:
        """Stop and release *logs*, of which nothing is in flight, for good."""
        retired = [log for log in logs if self._assignments.retire(log)]
        for log in retired:
            self._partitions.retire(log)
        await self.release(retired)

    def retire_all(self, logs: Iterable[PartitionLog]) -> None:
        """Stop *logs*, of which something may be in flight: the session ends."""
        for log in logs:
            self._assignments.retire(log)
            self._partitions.retire(log)

    async def release(self, logs: Iterable[PartitionLog]) -> None:
        """Release *logs*, which are retired, and of which nothing is on its way.

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
            self._cluster.wake()  # they may be placed here, and their releases seen by now

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

    # ── For an operator's command ──

    async def hold(self, tp: TopicPartition) -> None:
        """Do not claim *tp* until `let`: something is done about it under a claim of its own.

        Raises:
            UnavailableError: it is being claimed all the time, or held already.
        """
        until_ms = self._now_ms() + _HELD_MS
        while not self._assignments.hold(tp):
            if self._now_ms() >= until_ms:
                raise UnavailableError("it is being claimed just now: try again")
            await asyncio.sleep(_LOOK_S)

    def let(self, tp: TopicPartition) -> None:
        """Claim *tp* as before, at once."""
        self._assignments.let(tp)
        self._cluster.wake()

    async def give_up(self, logs: Sequence[PartitionLog]) -> None:
        """Flush, stop and release *logs*, for good: each as soon as nothing of it is in flight.
        What cannot be flushed is served until it can.

        Raises:
            FencedError: the session is over.
        """
        left = flushed = list(logs)
        while left:
            await self._stop(flushed)
            left = [log for log in left if self._assignments.is_led(log)]
            await self._cluster.until(self._assignments.none_is_stopping(left))
            flushed = await self._flush(left)
        self._flush_deadline.met()


def _wait_for_end(log: PartitionLog, arrival: Arrival) -> Arrival:
    """Let *arrival* be told when all that was admitted to *log* up to now is committed."""
    log.waiting_duplicates.append((log.log_end, arrival))
    return arrival
