"""Claims the partitions that are placed on this session, as the cluster changes.

    view changes ──thread──▶ plan: partition ──▶ node, and what differs from the one before
        placed here, led by no live session ──▶ claim, read what was committed ──▶ lead
        needs an object that cannot be read, or lacks a key ──▶ again later (`assignment`)

All agents compute the same plan from the same agents and topics (`cluster.placement`).  If two
agents see different ones for a moment, a claim is refused, or a partition moves once too often.
This is harmless: claims and releases compare the keys that they were made from.

A takeover that waits for the bucket does not delay the next one: several run at once, each for its
own partitions.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from driftlog_agents.cluster.placement import Plan, place, plan_after
from driftlog_agents.cluster.view import TopicEntry, placement_order
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.tasks import spawn
from driftlog_agents.log.leadership.assignment import AttemptResult, PartitionAssignments
from driftlog_agents.log.leadership.session_status import SessionStatus
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import SessionStage, TopicPartition
from driftlog_tiering.foundation.types import Offload

_ALONE_S: Final = 1.0
"""A takeover that takes longer runs beside the next one.  Shorter: more takeovers, each of which
reads the flush records of its sessions."""

_TAKES: Final = 4
"""Maximum number of concurrent takeovers."""

_TOGETHER_S: Final = 0.005
"""Changes within this time are handled together: thousands of claims arrive one by one."""

_STARTS_S: Final = 1.5
"""How long an agent that starts with thousands of partitions waits for other starting agents."""

_PLACED_HERE: Final = 2_000
"""More partitions are placed off the event loop: they would block it for tens of ms."""


class ClaimedPartitions(Protocol):
    """The session that serves the partitions; see `log/log_session`."""

    async def recover(self, taken: Taken) -> None:
        """Appends what this disk has buffered of the claimed partitions, before they are served."""
        ...

    def open(self, taken: Taken) -> dict[TopicPartition, PartitionLog]:
        """Serves the claimed partitions; returns the logs of all but those of deleted topics."""
        ...


class PartitionClaims:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        cluster: ClusterWatch,
        takeover: Takeover,
        assignments: PartitionAssignments,
        status: SessionStatus,
        partitions: ClaimedPartitions,
        now_ms: Callable[[], float],
        offload: Offload,
        counters: LogCounters,
    ) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._takeover = takeover
        self._assignments = assignments
        self._status = status
        self._partitions = partitions
        self._now_ms = now_ms
        self._offload = offload
        self._counters = counters
        self._planned: tuple[tuple[int, ...], int] | None = None
        """The agents and the topics' version of the present plan."""
        self._log = structlog.get_logger()

    # ── Placement ──

    async def leave(self) -> bool:
        """Announces that this agent leaves, so that the others take its partitions; False: there
        are none.

        Raises:
            FencedError: the session is over.
        """
        if not self._status.others():
            return False
        self._status.leave()
        await self._make_plan()  # metadata responses then name the next leaders
        await self._status.set_stage(SessionStage.LEAVING)
        return True

    async def _make_plan(self) -> None:
        view = self._view
        while True:
            nodes = self._status.nodes()
            version = (nodes, view.topics_version)
            if version == self._planned:
                return
            before, topics = self._assignments.plan, list(view.topics.values())
            if sum(entry.topic.partitions for entry in topics) > _PLACED_HERE:
                plan = await self._offload(plan_of, before, topics, nodes)
                if self._assignments.plan is not before:
                    continue  # `leave` and `run` may plan at the same time
            else:
                plan = plan_of(before, topics, nodes)
            since_ms = self._assignments.planned_ms
            if self._planned is None or self._planned[0] != nodes:
                since_ms = self._now_ms()
            self._planned = version
            view.plan = plan.nodes
            self._assignments.placed(plan, since_ms)
            self._cluster.wake()
            await asyncio.sleep(0)  # of many partitions that took as long as what follows

    # ── Claims ──

    def serve_own(self, own: Taken) -> None:
        """Serves *own*, which was claimed from dead sessions of this disk."""
        tps = {*own.logs, *own.unreadable, *own.damaged}
        self._assignments.claims_own(tps, self._view)
        self._ended(tps, own)

    async def begin(self) -> None:
        """Announces SERVING, and claims the partitions that are placed here and that no live
        session leads.

        Raises:
            FencedError: the session is over.
        """
        await self._status.set_stage(SessionStage.SERVING)
        await self._make_plan()
        if self._assignments.not_led > _PLACED_HERE:
            # Agents that start now take their share at once instead of by a later hand-over.
            await self._cluster.until(lambda: not self._status.others_start(), _STARTS_S)
            await self._make_plan()
        if due := self._assignments.claims_due(self._view, self._now_ms()):
            await self._attempt(due)

    async def run(self) -> None:
        """Claims partitions as the cluster changes, until cancelled.

        Raises:
            FencedError: the session is over.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._warm_up())
            with self._cluster.changes() as changed:
                attempts: set[asyncio.Task[None]] = set()
                while True:
                    changed.clear()
                    await self._make_plan()
                    due = self._assignments.claims_due(self._view, self._now_ms())
                    if due:
                        await self._some_ended(attempts, spawn(tasks, self._attempt(due)))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._due_in_s()):
                            await changed.wait()
                    await asyncio.sleep(_TOGETHER_S)

    def _due_in_s(self) -> float | None:
        deadline_ms = self._assignments.deadline_ms
        return None if deadline_ms is None else max(0.0, deadline_ms - self._now_ms()) / 1000

    async def _some_ended(
        self, attempts: set[asyncio.Task[None]], newest: asyncio.Task[None]
    ) -> None:
        """Waits a second at most for *newest*; then until fewer than four attempts run."""
        attempts.add(newest)
        await asyncio.wait([newest], timeout=_ALONE_S)
        while len(attempts) >= _TAKES and not any(attempt.done() for attempt in attempts):
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        attempts.difference_update([attempt for attempt in attempts if attempt.done()])

    async def _attempt(self, due: Sequence[TopicPartition]) -> None:
        retained = self._assignments.retained_claims().intersection(due)
        taken = await self._takeover.take(due, self._now_ms(), retained)
        await self._partitions.recover(taken)
        self._ended(due, taken)
        self._counters.partitions_taken_over += len(taken.logs)
        if len(taken.logs) > len(taken.fresh):
            self._log.info("partitions_taken_over", partitions=len(taken.logs), of=len(due))

    def _ended(self, due: Collection[TopicPartition], taken: Taken) -> None:
        result = AttemptResult(
            logs=self._partitions.open(taken),
            unreadable=taken.unreadable,
            damaged=taken.damaged,
            retained=taken.retained,
        )
        report = self._assignments.attempt_ended(due, result, self._now_ms())
        for why, count in report.unreadable.items():
            self._log.error(
                "partitions_unreadable",
                partitions=count,
                error=why,
                advice="restore that object; until the bucket returns it, these partitions have no "
                "leader. The agent retries at least once a minute, without a restart. If the "
                "object is gone for good: driftlog partitions accept-loss",
            )
        if report.readable_again:
            self._log.info("partitions_readable_again", partitions=report.readable_again)
        self._cluster.wake()

    # ── Warm-up ──

    async def _warm_up(self) -> None:
        """Reads the footers of sessions whose partitions are placed here, before the takeover."""
        mine = self._takeover.session_id
        warm: set[str] = set()
        while True:
            is_replanned = self._assignments.is_replanned()
            leaders = self._view.leaders
            wanted = {
                session_id
                async for tp in sliced(list(leaders))
                if (entry := leaders.get(tp)) is not None
                and (session_id := entry.leader.session_id) is not None
                and session_id != mine
                and self._assignments.is_placed_here(tp)
            }
            await self._takeover.warm_up(sorted(wanted - warm))
            warm = wanted
            await self._cluster.until(is_replanned)


def plan_of(
    before: Mapping[TopicPartition, int], topics: Iterable[TopicEntry], nodes: Iterable[int]
) -> Plan:
    """The plan that puts *topics* on *nodes*, in place of *before*."""
    return plan_after(before, place(placement_order(topics), nodes))
