"""Which partitions a session leads: those that are placed on it.

    view changes ──▶ plan: partition ──▶ node
        placed here, led by nobody that lives ──▶ claim, read what was committed ──▶ lead
        led here, placed elsewhere            ──▶ hand over, some at a time:
            stop admission ──▶ cut ──▶ every flush that holds it resolved ──▶ release
        handed over, and released again     ──▶ take it back, and keep it for a while:
                                                the bucket does not give the other what it needs

All agents compute the same plan from the same agents and topics (`cluster.placement`).  Where
they see different ones for a moment, a claim is refused, or a partition moves once too often:
nothing worse, for claims and releases compare what they were made from.

1. What is released has nothing on its way: a release is sent when all that was admitted is
   committed, and repeated until it is answered.
2. Nothing is admitted again without a new claim.
3. A few partitions of each receiver are without a leader at a time: the next are stopped when
   the receiver leads these, or has taken too long.

Before it hands anything over it waits for a moment: agents that start together make one plan,
and who is to lead reads the footers of what it will need.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from driftlog_agents.cluster.placement import place
from driftlog_agents.cluster.watching import ClusterWatch
from driftlog_agents.log.arrival import Arrival
from driftlog_agents.log.flusher import Flusher
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.log.session import Session
from driftlog_agents.log.spawning import spawn
from driftlog_agents.log.takeover import Taken, Takeover, release
from driftlog_metadata import transactions
from driftlog_metadata.errors import FencedError
from driftlog_metadata.model import LiveSession, Stage, TopicPartition


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

    kept_ms: float = 600_000
    """How long what was taken back is not handed over again.  Shorter: it has no leader more often,
    for seconds; longer: it is led where it is not placed."""

    warm_up_ms: float = 150
    """How long who leaves waits before it stops, for the others to read what they will need."""


_PUT_OFF_MS: Final = 30_000.0
"""Before partitions are claimed again of which the bucket did not give an object."""

_GIVEN_MS: Final = 120_000.0
"""How long what was handed over may come back: several times what a receiver takes to find out."""

_LOOKS_S: Final = 1.0
"""Between two looks for what came back."""

_ALONE_S: Final = 1.0
"""A takeover that takes longer does not hold up the next one.  Shorter: more of them, each of which
reads what its sessions have flushed."""

_TAKES: Final = 4
"""Takeovers at once."""

_TOGETHER_S: Final = 0.005
"""Changes of so long are looked at together: thousands of claims come one by one."""

_STALLED_S: Final = 5.0
"""How long a hand-over waits for its last flush before it says so."""

_STARTS_S: Final = 1.5
"""How long a start with thousands of partitions waits for others that start as well."""

_PLACED_HERE: Final = 2_000
"""So many partitions are placed on the event loop; more take it tens of milliseconds."""


@dataclass(slots=True)
class _Given:
    """A partition that was handed over."""

    node: int | None
    """To whom."""
    epoch: int
    """In which it was led here."""
    until_ms: float
    """Afterwards it does not come back."""
    released_at: int = 0
    """The revision of the receiver's own release, once it was seen."""


class Partitions(Protocol):
    """What the engine does about a partition; see `engine`."""

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

    def retire(self, log: PartitionLog) -> None:
        """Admit nothing and show nothing any more."""
        ...

    def gone(self, log: PartitionLog) -> None:
        """It was released."""
        ...


class Leading:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        node_id: int,
        session: Session,
        cluster: ClusterWatch,
        takeover: Takeover,
        flusher: Flusher,
        partitions: Partitions,
        settings: LeadingSettings,
        now_ms: Callable[[], float],
        offload: Callable[..., Awaitable[Any]],
    ) -> None:
        self._node_id = node_id
        self._session = session
        self._cluster = cluster
        self._view = cluster.view
        self._takeover = takeover
        self._flusher = flusher
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
        self._put_off: dict[TopicPartition, float] = {}
        """Of these, what could not be read, and until when it is not claimed again."""
        self._given: dict[TopicPartition, _Given] = {}
        """What was handed over, as long as it may come back."""
        self._kept: dict[TopicPartition, float] = {}
        """Placed elsewhere, and until when it is led here all the same."""
        self._acted: dict[TopicPartition, int] = {}
        """Revisions of our own claims and releases: what the view has of before is old."""
        self.handed_over = 0
        self.taken_over = 0

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
            tasks.create_task(self._take_back())
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
            self._kept = {tp: until for tp, until in self._kept.items() if tp in plan}
            self._mine = [tp for tp, node in plan.items() if self._is_mine(tp, node)]
            self._not_led = {tp: None for tp in self._mine if self._partitions.find(tp) is None}
            # Of topics that are gone there is nothing to be old.
            self._acted = {tp: at for tp, at in self._acted.items() if tp in plan}
            self._replanned.set()
            self._misplaced.set()

    def _is_mine(self, tp: TopicPartition, node: int | None) -> bool:
        """Whether it is led here, where it is placed on *node*; of who leaves, nothing is."""
        return node == self._node_id or (tp in self._kept and self._stage is not Stage.LEAVING)

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
        self._put_off = {tp: at for tp, at in self._put_off.items() if now_ms < at}
        for tp in self._not_led:
            if tp in self._put_off or tp in self._taking:
                continue
            if self._partitions.is_going(tp.topic_id) or tp.topic_id not in view.topics:
                continue
            entry = view.leaders.get(tp)
            leader = None if entry is None else entry.leader.session_id
            free = leader is None or leader not in view.sessions or leader == mine
            if free and not self._is_stale(tp):
                wanted.append(tp)
        if not wanted:
            return bool(self._put_off)
        self._taking.update(wanted)
        try:
            taken = await self._takeover.take(wanted, now_ms)
        finally:
            self._taking.difference_update(wanted)
        for why in sorted(set(taken.unreadable.values())):
            self._log.error(
                "partitions_cannot_be_read",
                partitions=sum(told == why for told in taken.unreadable.values()),
                error=why,
                advice="nobody leads them until the bucket gives that object; it is tried again",
            )
        self._put_off.update(dict.fromkeys(taken.unreadable, self._now_ms() + _PUT_OFF_MS))
        for tp, log in taken.logs.items():
            self._acted[tp] = log.leader_revision
            self._not_led.pop(tp, None)
        self.taken_over += len(taken.logs)
        self._partitions.opened(taken)
        self._misplaced.set()
        if len(taken.logs) > len(taken.fresh):
            self._log.info(
                "partitions_taken_over",
                partitions=len(taken.logs),
                of=len(wanted),
            )
        return bool(taken.refused or self._put_off)

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
            groups = self._moving()
            if groups and (wait_ms := self._not_yet_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            elif groups:
                logs = [log for group in groups.values() for log in group]
                await self.give_up(logs)
                await self._taken_by_others(logs)
            else:
                await self._misplaced.wait()

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
            if log.state not in (State.ONLINE, State.LOADING):
                continue  # what is offline stays where its buffer files are
            tp = TopicPartition(log.topic_id, log.partition)
            node = self._plan.get(tp, self._node_id)
            if self._is_mine(tp, node) or node not in self._view.agents:
                continue
            group = groups.setdefault(node, [])
            busy[node] = busy.get(node, 0) + _is_busy(log)
            if len(group) < settings.idle_group and (
                busy[node] <= settings.group or not _is_busy(log)
            ):
                group.append(log)
        return groups

    async def give_up(self, logs: Sequence[PartitionLog]) -> None:
        """Stop, flush and release *logs*, for good.

        Raises:
            FencedError: the session is over.
        """
        for log in logs:
            self._partitions.retire(log)
        arrivals: list[Arrival] = []
        for log in logs:
            if log.high_watermark < log.log_end:
                arrivals.append(Arrival())
                log.waiting_duplicates.append((log.log_end, arrivals[-1]))
        if arrivals:
            self._flusher.hurry()
        try:
            async with asyncio.timeout(_STALLED_S):
                for arrival in arrivals:
                    await arrival.event.wait()
        except TimeoutError:
            self._log.warning(
                "hand_over_stalled",
                partitions=len(arrivals),
                advice="they have no leader until what they have in flight is committed: the "
                "bucket or the metadata store does not take it",
            )
            for arrival in arrivals:
                await arrival.event.wait()
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
            until_ms = self._now_ms() + _GIVEN_MS
            self._given[tp] = _Given(self._plan.get(tp), log.leader_epoch, until_ms)
            self._partitions.gone(log)
            if self._plan.get(tp) == self._node_id:
                self._not_led[tp] = None  # the plan has changed meanwhile
                self._cluster.wake()  # and the release may have been seen before it was answered
        self.handed_over += len(logs)
        if logs:
            self._log.info("partitions_handed_over", partitions=len(logs))

    async def _take_back(self) -> None:
        """Lead on what the receiver has claimed and released again: it cannot open it, and we
        could.  Until cancelled."""
        while True:
            await asyncio.sleep(_LOOKS_S)
            now_ms = self._now_ms()
            if any(until <= now_ms for until in self._kept.values()):
                self._kept = {tp: until for tp, until in self._kept.items() if now_ms < until}
                self._planned = None
                await self._make_plan()
            self._given = {
                tp: given
                for tp, given in self._given.items()
                if now_ms < given.until_ms and given.node == self._plan.get(tp)
            }
            back = [tp for tp, given in self._given.items() if self._is_back(tp, given)]
            if not back or self._stage is Stage.LEAVING:
                continue
            for tp in back:
                del self._given[tp]
                self._kept[tp] = now_ms + self._settings.kept_ms
                self._not_led[tp] = None
            self._log.warning(
                "partitions_taken_back",
                partitions=len(back),
                advice="they were handed over, and given back: the bucket did not give the other "
                "agent what it needs; they are led here for a while",
            )
            await self._claim()

    def _is_back(self, tp: TopicPartition, given: _Given) -> bool:
        """Whether the receiver has claimed and released it, and nobody has claimed it since the
        last look: it is not on its way to somebody else."""
        entry = self._view.leaders.get(tp)
        if (
            entry is None
            or entry.leader.session_id is not None
            or entry.leader.leader_epoch <= given.epoch
            or tp in self._not_led
            or self._is_stale(tp)
        ):
            return False
        seen, given.released_at = given.released_at, entry.mod_revision
        return seen == entry.mod_revision

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


def _is_busy(log: PartitionLog) -> bool:
    """Whether somebody would notice that it has no leader: it was written to under this one, or a
    consumer waits."""
    return bool(log.waiting_fetches) or log.log_end > (log.epochs[-1][1] if log.epochs else 0)
