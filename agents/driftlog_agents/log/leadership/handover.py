"""Which partitions a session leads: those that are placed on it.

    view changes ──▶ plan: partition ──▶ node
        placed here, led by nobody that lives ──▶ claim, read what was committed ──▶ lead
        led here, placed elsewhere ──▶ hand over, some at a time, while the bucket answers:
            cut ──▶ what is in flight committed within a second? ──no──▶ not now
                          └─yes─▶ batches wait ──▶ cut ──▶ committed within a second?
                                 admit them, not now ◀──no──┘     └─yes─▶ stop, release
        needs an object that cannot be read ──▶ release it, wait, claim it again (`availability`)
        lacks a key ──▶ not claimed: wait, look again

All agents compute the same plan from the same agents and topics (`cluster.placement`).  Where
they see different ones for a moment, a claim is refused, or a partition moves once too often:
nothing worse, for claims and releases compare what they were made from.

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
and who is to lead reads the footers of what it will need.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol
from uuid import UUID

import structlog

from driftlog_agents.cluster.placement import place
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.tasks import spawn
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.takeover import Taken, Takeover, release
from driftlog_agents.log.objects.availability import Availability
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.waiters import Arrival
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import LiveSession, Stage, TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.transactions import session_transactions as transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingSettings:
    """How partitions move."""

    settle_ms: float = 300
    """Before a new plan's first hand-over.  Longer: fewer moves where agents start together;
    shorter: an agent that joins leads sooner."""

    group: int = 64
    """Partitions of each receiver that are on their way at once.  More: a join is over sooner,
    and more partitions are without a leader meanwhile."""

    idle_group: int = 1_024
    """The same of partitions to which nobody writes and of which nobody waits to read."""

    taken_ms: float = 1_000
    """How long a receiver may take to lead what was released to it before more is."""

    retry_ms: float = 300
    """Between two attempts to claim what was refused."""

    flushed_ms: float = 1_000
    """How long the commit of what a partition has in flight may take for it to be moved; twice as
    long each time that it takes longer.  Longer: batches may wait for as long before they are
    admitted; shorter: on a slow bucket partitions move later."""

    warm_up_ms: float = 150
    """How long who leaves waits before it stops, for the others to read what they will need."""


_ALONE_S: Final = 1.0
"""A takeover that takes longer does not hold up the next one.  Shorter: more of them, each of which
reads what its sessions have flushed."""

_TAKES: Final = 4
"""Takeovers at once."""

_TOGETHER_S: Final = 0.005
"""Changes of so long are looked at together: thousands of claims come one by one."""

_PROBED_MS: Final = 1_000.0
"""How old a probe of the bucket may be when partitions are stopped."""

_SLOWEST_MS: Final = 10_000.0
"""Of `LeadingSettings.flushed_ms`, however often it was not enough."""
_KEY_MS: Final = 5_000.0
"""Between two looks at a partition that lacks a key, at most.  Longer: it is led later when the key
is back; shorter: more reads for what is gone for good."""

_HELD_MS: Final = 20_000.0
"""How long `hold` waits for an attempt to claim the partition, which looks for a missing object for
five seconds."""

_STARTS_S: Final = 1.5
"""How long a start with thousands of partitions waits for others that start as well."""

_PLACED_HERE: Final = 2_000
"""So many partitions are placed on the event loop; more take it tens of milliseconds."""


class Partitions(Protocol):
    """What the engine does about a partition; see `log/log_session`."""

    def logs(self) -> list[PartitionLog]:
        """Every partition that is led here, and those that are being handed over."""
        ...

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """The partition, if it is led here or being handed over."""
        ...

    def is_going(self, topic_id: UUID) -> bool:
        """Whether the topic is being deleted."""
        ...

    def opened(self, taken: Taken) -> None:
        """Serve what was claimed."""
        ...

    def pause(self, log: PartitionLog) -> None:
        """Let batches wait before their admission; what is read goes on."""
        ...

    def resume(self, log: PartitionLog) -> None:
        """Admit those that wait; if it is retired by now they are refused."""
        ...

    def retire(self, log: PartitionLog) -> None:
        """Admit nothing and show nothing any more."""
        ...

    def gone(self, log: PartitionLog) -> None:
        """It was released."""
        ...


class Handover:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        node_id: int,
        session: Session,
        cluster: ClusterWatch,
        takeover: Takeover,
        flusher: Flusher,
        probes: BucketProbes,
        partitions: Partitions,
        settings: LeadingSettings,
        now_ms: Callable[[], float],
        offload: Offload,
        counters: LogCounters,
    ) -> None:
        self._node_id = node_id
        self._session = session
        self._cluster = cluster
        self._view = cluster.view
        self._takeover = takeover
        self._flusher = flusher
        self._probes = probes
        self._partitions = partitions
        self._settings = settings
        self._now_ms = now_ms
        self._offload = offload
        self._log = structlog.get_logger()
        self._stage = Stage.STARTING
        self._said = LiveSession(node_id=node_id)
        self.asks = False
        """Said to the others, as `tell` has it: whether we cannot commit and ask who could."""
        self.proofs = 0
        """And how often we could, when we were asked."""
        self._said_revision = session.revision
        self._plan: dict[TopicPartition, int] = {}
        self._planned: tuple[tuple[int, ...], int] | None = None
        self._plan_ms = 0.0
        self._mine: list[TopicPartition] = []
        """Placed here."""
        self._not_led: dict[TopicPartition, None] = {}
        """Of these, those that are not led here."""
        self._replanned = asyncio.Event()
        self._misplaced = asyncio.Event()
        """There may be something to read before it comes, or to hand over."""
        self._taking: set[TopicPartition] = set()
        """Of these, what is on its way."""
        self._unreadable = Availability[TopicPartition](Random(session.session_id).random)
        """Of these, what needs an object that could not be read: claimed again, but not at once."""
        self._damaged = Availability[TopicPartition](
            Random(f"{session.session_id} keys").random, longest_ms=_KEY_MS
        )
        """Of these, what lacks a key, or has one that cannot be read: looked at again as well."""
        self._damaged_at: dict[TopicPartition, int] = {}
        """Revisions of their leader keys in the view, 0: none; another one is looked at at once."""
        self._acted: dict[TopicPartition, int] = {}
        """Revisions of our own claims and releases: what the view has of before is old."""
        self._flushed_ms = settings.flushed_ms
        self._counters = counters

    @property
    def unavailable(self) -> int:
        """Partitions that need an object that could not be read."""
        return len(self._unreadable)

    # ── What we say ──

    async def serve(self) -> None:
        """Let the others know that partitions can be placed here.

        Raises:
            FencedError: the session is over.
        """
        self._stage = Stage.SERVING
        await self._report()

    async def leave(self) -> bool:
        """Let the others know that everything here is theirs; False: there are none.

        Raises:
            FencedError: the session is over.
        """
        if not self._others():
            return False
        self._stage = Stage.LEAVING
        await self._make_plan()  # clients are told who leads next
        await self._report()
        return True

    async def tell(self) -> None:
        """Let the others know `asks` and `proofs`; those of a session that opens, with its stage.

        Raises:
            FencedError: the session is over.
        """
        if self._session.revision:
            await self._report()

    async def _report(self) -> None:
        """Say stage and topics as they are, until the key says so."""
        while True:
            wanted = LiveSession(
                node_id=self._node_id,
                stage=self._stage,
                topics_revision=self._view.topics_revision,
                asks=self.asks,
                proofs=self.proofs,
            )
            if wanted == self._said:
                return
            session = self._session
            assert session.revision  # it would be made here, without its head
            revision = self._said_revision or session.revision
            result = await session.transact(
                transactions.report(session.session_id, session.revision, revision, wanted)
            )
            if result.succeeded:
                self._said, self._said_revision = wanted, result.revision
                continue
            kvs = result.reads[0]
            if not kvs or kvs[0].create_revision != session.revision:
                raise FencedError("the session ended before it could say what it does")
            self._said_revision = kvs[0].mod_revision  # our own attempt, its answer lost

    async def keep_told(self) -> None:
        """Say which topics we have seen, whenever somebody may wait for it; until cancelled.

        Raises:
            FencedError: the session is over.
        """
        with self._cluster.changes() as changed:
            while True:
                changed.clear()
                if len(self._view.sessions) > 1 and self._stage is not Stage.STARTING:
                    await self._report()
                await changed.wait()

    # ── Rounds ──

    async def begin(self) -> None:
        """Lead what is placed here and led by nobody, this session counted among those that serve.

        Raises:
            FencedError: the session is over.
        """
        await self._make_plan()
        if len(self._not_led) > _PLACED_HERE:
            # Who starts with us takes a share: better now than by hand-over.
            await self._cluster.until(lambda: not self._others_start(), _STARTS_S)
            await self._make_plan()
        await self._claim()

    def _others_start(self) -> bool:
        return any(
            entry.said.stage is Stage.STARTING and entry.session_id != self._session.session_id
            for entry in self._view.sessions.values()
        )

    async def run(self) -> None:
        """Claim and hand over as the cluster changes, until cancelled.

        Raises:
            FencedError: the session is over.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.keep_told())
            tasks.create_task(self._warm_up())
            tasks.create_task(self._hand_over())
            await self._claims()

    async def _claims(self) -> None:
        with self._cluster.changes() as changed:
            async with asyncio.TaskGroup() as tasks:
                takes: set[asyncio.Task[bool]] = set()
                while True:
                    changed.clear()
                    await self._make_plan()
                    refused = await self._some_taken(takes, spawn(tasks, self._claim()))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(
                            self._settings.retry_ms / 1000 if refused else None
                        ):
                            await changed.wait()
                    await asyncio.sleep(_TOGETHER_S)

    async def _some_taken(self, takes: set[asyncio.Task[bool]], newest: asyncio.Task[bool]) -> bool:
        """Wait until *newest* is over, or takes long and may go on beside others; True: come again
        soon."""
        takes.add(newest)
        await asyncio.wait([newest], timeout=_ALONE_S)
        while len(takes) >= _TAKES and not any(take.done() for take in takes):
            await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
        refused = any(take.result() for take in takes if take.done())
        takes.difference_update([take for take in takes if take.done()])
        return refused or bool(takes)

    async def _make_plan(self) -> None:
        view = self._view
        while True:
            nodes = tuple(sorted(self._others() | self._myself()))
            version = (nodes, view.topics_version)
            if version == self._planned:
                return
            order = view.placement_order()
            if len(nodes) > 1 and sum(count for _, count in order) > _PLACED_HERE:
                plan = await self._offload(place, order, nodes)
            else:
                plan = place(order, nodes)
            if self._planned is None or self._planned[0] != nodes:
                self._plan_ms = self._now_ms()
            self._plan, self._planned = plan, version
            view.plan = plan
            self._mine = [tp for tp, node in plan.items() if node == self._node_id]
            self._not_led = {tp: None for tp in self._mine if self._partitions.find(tp) is None}
            self._unreadable.keep_only(self._not_led.__contains__)
            self._damaged.keep_only(self._not_led.__contains__)
            # Of topics that are gone there is nothing to be old.
            self._acted = {tp: at for tp, at in self._acted.items() if tp in plan}
            self._replanned.set()
            self._misplaced.set()

    def _others(self) -> set[int]:
        return set(self._view.placed()) - {self._node_id}

    def _myself(self) -> set[int]:
        """This session counts among those that serve before it has said so, and not when it
        leaves."""
        return set() if self._stage is Stage.LEAVING else {self._node_id}

    def _is_stale(self, tp: TopicPartition) -> bool:
        """Whether the view is older than what we did to the partition."""
        entry = self._view.leaders.get(tp)
        acted = self._acted.get(tp, 0)
        if entry is not None and entry.mod_revision >= acted:
            self._acted.pop(tp, None)
            return False
        return acted > 0

    async def _claim(self) -> bool:
        """Claim what is placed here and can be; True: something was refused."""
        view, mine = self._view, self._session.session_id
        wanted: list[TopicPartition] = []
        now_ms = self._now_ms()
        for tp in self._not_led:
            if tp in self._taking or self._unreadable.waits(tp, now_ms):
                continue
            if self._damaged.waits(tp, now_ms) and self._damaged_at[tp] == self._seen(tp):
                continue
            if self._partitions.is_going(tp.topic_id) or tp.topic_id not in view.topics:
                continue
            entry = view.leaders.get(tp)
            leader = None if entry is None else entry.leader.session_id
            free = leader is None or leader not in view.sessions or leader == mine
            if free and not self._is_stale(tp):
                wanted.append(tp)
        if not wanted:
            return self._comes_again
        seen = {tp: self._seen(tp) for tp in wanted}
        self._taking.update(wanted)
        try:
            taken = await self._takeover.take(wanted, now_ms)
        finally:
            self._taking.difference_update(wanted)
        self.could_not_read(taken)
        self._now_read(taken)
        damaged = [tp for tp in wanted if tp in self._takeover.damaged]
        self._damaged.failed_all(damaged, self._now_ms())
        self._damaged_at = {
            tp: at for tp, at in (self._damaged_at | seen).items() if tp in self._damaged
        }
        for tp, log in taken.logs.items():
            self._acted[tp] = log.leader_revision
            self._not_led.pop(tp, None)
        self._counters.partitions_taken_over += len(taken.logs)
        self._partitions.opened(taken)
        self._misplaced.set()
        if len(taken.logs) > len(taken.fresh):
            self._log.info(
                "partitions_taken_over",
                partitions=len(taken.logs),
                of=len(wanted),
            )
        return bool(taken.refused) or self._comes_again

    @property
    def _comes_again(self) -> bool:
        """Whether something is to be looked at after a while."""
        return len(self._unreadable) > 0 or len(self._damaged) > 0

    def _seen(self, tp: TopicPartition) -> int:
        """Revision of the leader key in the view; 0: none that can be read."""
        entry = self._view.leaders.get(tp)
        return 0 if entry is None else entry.mod_revision

    def could_not_read(self, taken: Taken) -> None:
        """What was given back is claimed again, each time after a longer wait."""
        told = self._unreadable.failed_all(taken.unreadable, self._now_ms())
        for why in sorted({taken.unreadable[tp] for tp in told}):
            self._log.error(
                "partitions_cannot_be_read",
                partitions=sum(said == why for said in taken.unreadable.values()),
                error=why,
                advice="these partitions have no leader until the bucket gives that object; no "
                "restart is needed: the agent looks for it again, at least once a minute.  If it "
                "is gone for good: driftlog partitions accept-loss",
            )

    def _now_read(self, taken: Taken) -> None:
        for tp in taken.logs:
            self._damaged.found(tp)
        again = sum(self._unreadable.found(tp) for tp in taken.logs)
        if again:
            self._log.info("partitions_readable_again", partitions=again)

    def is_placed_here(self, tp: TopicPartition) -> bool:
        """Whether this session is to lead *tp*."""
        return self._plan.get(tp) == self._node_id

    async def hold(self, tp: TopicPartition) -> None:
        """Do not claim *tp* until `let`: something is done about it under a claim of its own.

        Raises:
            UnavailableError: it is being claimed all the time, or held already.
        """
        until_ms = self._now_ms() + _HELD_MS
        while tp in self._taking:
            if self._now_ms() >= until_ms:
                raise UnavailableError("it is being claimed just now: try again")
            await asyncio.sleep(_TOGETHER_S)
        self._taking.add(tp)

    def let(self, tp: TopicPartition) -> None:
        """Claim *tp* as before, at once."""
        self._taking.discard(tp)
        self._unreadable.found(tp)
        self._damaged.found(tp)
        if self.is_placed_here(tp) and self._partitions.find(tp) is None:
            self._not_led[tp] = None
        self._cluster.wake()

    # ── Handing over ──

    async def _warm_up(self) -> None:
        """Read the footers of sessions whose partitions are placed here, before they come."""
        mine = self._session.session_id
        warm: set[str] = set()
        while True:
            self._replanned.clear()
            leaders = self._view.leaders
            wanted = {
                session_id
                for tp in self._mine
                if (entry := leaders.get(tp)) is not None
                and (session_id := entry.leader.session_id) is not None
                and session_id != mine
            }
            await self._takeover.warm_up(sorted(wanted - warm))
            warm = wanted
            await self._replanned.wait()

    async def _hand_over(self) -> None:
        while True:
            self._misplaced.clear()
            if not self._moving():
                await self._misplaced.wait()
            elif (wait_ms := self._not_yet_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            elif not await self._probes.succeeded_since(self._now_ms() - _PROBED_MS):
                await asyncio.sleep(self._settings.settle_ms / 1000)
            else:
                await self._move([log for group in self._moving().values() for log in group])

    def _not_yet_ms(self) -> float:
        """How long the plan must stand before anything is handed over; while nothing can be
        committed nothing is stopped either: nobody else would do better for sure."""
        if self._flusher.outage.since_ms is not None:
            return self._settings.settle_ms
        return self._plan_ms + self._settings.settle_ms - self._now_ms()

    def _moving(self) -> dict[int, list[PartitionLog]]:
        """Some of what is led here and placed on others, by receiver."""
        settings = self._settings
        groups: dict[int, list[PartitionLog]] = {}
        busy: dict[int, int] = {}
        for log in self._partitions.logs():
            node = self._receiver(log)
            if node is None:
                continue
            group = groups.setdefault(node, [])
            busy[node] = busy.get(node, 0) + _is_busy(log)
            if len(group) < settings.idle_group and (
                busy[node] <= settings.group or not _is_busy(log)
            ):
                group.append(log)
        return groups

    def _receiver(self, log: PartitionLog) -> int | None:
        """The node that *log* is to be moved to; None: it stays."""
        if log.state not in (State.ONLINE, State.LOADING):
            return None  # what is offline stays where its buffer files are
        node = self._plan.get(TopicPartition(log.topic_id, log.partition), self._node_id)
        return None if node == self._node_id or node not in self._view.agents else node

    async def _move(self, logs: Sequence[PartitionLog]) -> None:
        """Hand over *logs*: idle ones at once, the others while what they admit is committed."""
        idle = [log for log in logs if _is_flushed(log)]
        busy = [log for log in logs if not _is_flushed(log)]
        await self._retire(idle)
        flushed = await self._flush(busy)
        movable = [log for log in flushed if self._receiver(log) is not None]
        moved = await self._stop(movable)
        if len(flushed) == len(busy) and len(moved) == len(movable):
            self._flushed_ms = self._settings.flushed_ms
        await self._taken_by_others([*idle, *moved])

    async def give_up(self, logs: Sequence[PartitionLog]) -> None:
        """Flush, stop and release *logs*, for good: each as soon as nothing of it is in flight.
        What cannot be flushed is served until it can.

        Raises:
            FencedError: the session is over.
        """
        left = flushed = list(logs)
        while left:
            stopped = set(await self._stop(flushed))
            left = [log for log in left if log not in stopped and log.state is not State.CLOSED]
            flushed = await self._flush(left)
        self._flushed_ms = self._settings.flushed_ms

    async def _flush(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Of *logs*: those of which all that is in flight now is committed soon."""
        arrivals = {log: _wait_for_end(log, Arrival()) for log in logs if not _is_flushed(log)}
        if arrivals:
            self._flusher.hurry()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flushed_ms / 1000):
                for arrival in arrivals.values():
                    await arrival.event.wait()
        found = [log for log in logs if log not in arrivals or arrivals[log].event.is_set()]
        if len(found) < len(logs) and self._flushed_ms < _SLOWEST_MS:
            self._flushed_ms = min(2 * self._flushed_ms, _SLOWEST_MS)
            if self._flushed_ms == _SLOWEST_MS:
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
        stopped = {log: None for log in logs if _is_flushed(log)}
        await self._retire(stopped)
        flying = [log for log in logs if log not in stopped and _may_wait(log)]
        late: dict[PartitionLog, None] = {}
        for log in flying:
            self._partitions.pause(log)
        try:
            await self._flush(flying)
            late = {log: None for log in flying if _is_flushed(log)}
        finally:
            for log in flying:
                if log not in late:
                    self._partitions.resume(log)
        await self._retire(late)  # in the same turn: nothing was admitted since
        return [*stopped, *late]

    async def _retire(self, logs: Collection[PartitionLog]) -> None:
        """Stop and release *logs*, of which nothing is in flight, for good.

        Raises:
            FencedError: the session is over.
        """
        for log in logs:
            self._partitions.retire(log)
        await self.release(logs)

    async def release(self, logs: Iterable[PartitionLog]) -> None:
        """Release *logs*, of which nothing is on its way.

        Raises:
            FencedError: the session is over.
        """
        logs = [log for log in logs if not self._partitions.is_going(log.topic_id)]
        for log in logs:
            assert log.high_watermark == log.log_end or self._flusher.lost, (
                f"{log!r} is not flushed"
            )
        await release(
            self._session,
            [
                transactions.Release(
                    TopicPartition(log.topic_id, log.partition),
                    log.leader_epoch,
                    log.leader_revision,
                )
                for log in logs
            ],
        )
        for log in logs:
            tp = TopicPartition(log.topic_id, log.partition)
            self._acted[tp] = log.leader_revision + 1
            self._partitions.gone(log)
            if self._plan.get(tp) == self._node_id:
                self._not_led[tp] = None  # the plan has changed meanwhile
                self._cluster.wake()  # and the release may have been seen before it was answered
        self._counters.partitions_handed_over += len(logs)
        if logs:
            self._log.info("partitions_handed_over", partitions=len(logs))

    async def _taken_by_others(self, logs: Sequence[PartitionLog]) -> None:
        tps = [TopicPartition(log.topic_id, log.partition) for log in logs]
        await self._cluster.until(
            lambda: all(
                tp.topic_id not in self._view.topics
                or (self._view.is_led(tp) and not self._is_stale(tp))
                for tp in tps
            ),
            self._settings.taken_ms / 1000,
        )


def _wait_for_end(log: PartitionLog, arrival: Arrival) -> Arrival:
    """Let *arrival* be told when all that was admitted to *log* up to now is committed."""
    log.waiting_duplicates.append((log.log_end, arrival))
    return arrival


def _is_flushed(log: PartitionLog) -> bool:
    """Whether nothing of it is in flight."""
    return log.high_watermark == log.log_end


def _may_wait(log: PartitionLog) -> bool:
    """Whether batches may wait before their admission.  Where they wait for producers that are
    loaded as well, an outage of the bucket could keep them for as long as it lasts."""
    return log.state is State.ONLINE or (log.state is State.LOADING and bool(log.damage))


def _is_busy(log: PartitionLog) -> bool:
    """Whether somebody would notice that it has no leader: it was written to under this one, or a
    consumer waits."""
    return bool(log.waiting_fetches) or log.log_end > (log.epochs[-1][1] if log.epochs else 0)
