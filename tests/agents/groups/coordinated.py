"""Groups on real engines and a memory store: agents that coordinate, and members that ask them.

    world = World(t=2)
    one = await Coordinated.start(world)
    await one.commit("g", {0: 7})
    assert {0: 7} == await one.fetch("g")

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.configs.group_settings import ClassicSettings, GroupSettings
from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.consumer.messages import JOIN_EPOCH, ConsumerHeartbeat
from driftlog_agents.groups.coordinator.budget import GroupBudget
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.coordinator.placement import Coordinators, coordinator_of
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.schema.keys import GROUPS_PREFIX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import (
    AnswerTooLargeError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.store import (
    Compare,
    KeyValue,
    MetadataStore,
    Operation,
    Put,
    TxnResult,
)
from tests.agents.log.lives import Life, World

SETTINGS = GroupSettings(classic=ClassicSettings(initial_rebalance_delay_ms=0))


class Lossy:
    """A store some of whose writes to groups get lost: *fates* of the next, one after the other.

    before: on the way there.  after: it happened, and nobody heard of it.  refused: it did not
    happen, and that was said.  late: it happens two seconds after its caller gave up.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.fates: list[str] = []
        self.latency_s: Callable[[], float] | None = None
        """How long a request takes on its way, and its answer on the way back."""
        self.written: list[Sequence[Operation]] = []
        """What transactions that write groups put and delete."""
        self.most_read_bytes = 0
        """Bytes of values that one transaction has read, at most."""
        self.answer_bytes = 1 << 30
        """A transaction that reads more gets no answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> KeyValue | None:
        await self._travel()
        found = await self._store.get(key)
        await self._travel()
        return found

    async def _travel(self) -> None:
        if self.latency_s is not None:
            await asyncio.sleep(self.latency_s())

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        mine = any(isinstance(op, Put) and op.key.startswith(GROUPS_PREFIX) for op in then)
        if mine:
            self.written.append(then)
        match self.fates.pop(0) if mine and self.fates else "":
            case "before":
                raise OutcomeUnknownError("lost on the way")
            case "refused":
                raise UnavailableError("no quorum")
            case "after":
                await self._store.txn(compares, then, otherwise)
                await self._store.txn((), [Put("/elsewhere", b"")])  # a revision more
                raise OutcomeUnknownError("the answer was lost")
            case "late":
                loop = asyncio.get_running_loop()
                late: Any = self._store.txn(compares, then, otherwise)
                loop.call_later(2, lambda: loop.create_task(late))
                raise OutcomeUnknownError("travels")
            case _:
                pass
        await self._travel()
        result = await self._store.txn(compares, then, otherwise)
        read_bytes = sum(len(kv.value) for kvs in result.reads for kv in kvs)
        if read_bytes > self.answer_bytes:
            raise AnswerTooLargeError(f"{read_bytes} bytes")
        self.most_read_bytes = max(self.most_read_bytes, read_bytes)
        await self._travel()
        return result


class Placement(Coordinators):
    """By the view, where the test does not say otherwise."""

    def __init__(self, view: ClusterView) -> None:
        super().__init__(view)
        self.node_id: int | None = None
        """Of all groups."""
        self.moved: dict[str, int] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        return (*super().nodes, *self.moved.values())

    def of(self, name: str) -> int | None:
        by_view = coordinator_of(name, super().nodes)
        return self.moved.get(name, by_view if self.node_id is None else self.node_id)


class Coordinated:
    """One agent, and the groups that it coordinates."""

    def __init__(self, life: Life, settings: GroupSettings, store: Lossy) -> None:
        self.life = life
        self.store = store
        self.coordinators = Placement(life.cluster.view)
        self.groups = GroupCoordinator(
            engine=life.engine,
            cluster=life.cluster,
            coordinators=self.coordinators,
            settings=settings,
            budget=GroupBudget(Limits(), Refusals(), life.engine.ports.quota),
        )
        self.task = asyncio.get_running_loop().create_task(self._run())
        life.task.add_done_callback(lambda _: self.task.cancel())  # As the agent does.

    @classmethod
    async def start(
        cls,
        world: World,
        settings: GroupSettings = SETTINGS,
        fates: Sequence[str] = (),
        answer_bytes: int = 1 << 30,
    ) -> Self:
        """A process on *world*'s disk, once it has read all groups; *fates*: of its first writes
        to groups, which are claims; *answer_bytes*: see `Lossy`."""
        stores: list[Lossy] = []

        def lossy(store: MetadataStore) -> Any:
            stores.append(Lossy(store))
            stores[0].fates = list(fates)
            stores[0].answer_bytes = answer_bytes
            return stores[0]

        life = await world.start(ready=False, metadata=lossy)
        found = cls(life, settings, stores[0])
        await found.until(lambda: found.groups.complete)
        return found

    async def _run(self) -> None:
        with contextlib.suppress(FencedError):
            try:
                await self.groups.run()
            except* FencedError:
                pass

    async def until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait, in virtual time."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL."""
        self.life.kill()
        self.task.cancel()

    async def stop(self) -> None:
        """SIGTERM."""
        await self.life.stop()
        self.task.cancel()

    def believes_in(self, node_id: int) -> None:
        """From here on it takes this agent for the coordinator of all groups."""
        self.coordinators.node_id = node_id

    def moves(self, group_id: str, node_id: int) -> None:
        """It hears of an agent that came, and that this group is that one's now."""
        self.coordinators.moved[group_id] = node_id
        self.life.cluster.wake()

    # ── Offsets ──

    def tp(self, partition: int, topic: str = "t") -> TopicPartition:
        """A partition of a topic of the world."""
        return TopicPartition(self.life.world.topics[topic].topic_id, partition)

    async def commit(
        self, group_id: str, offsets: Mapping[int, int], topic: str = "t", **said: Any
    ) -> None:
        """What OffsetCommit does for a client that is in no group."""
        group = await self.groups.made(group_id, CLASSIC)
        await group.store(
            {
                self.tp(partition, topic): Committed(
                    offset=offset, commit_ms=self.groups.now_ms(), **said
                )
                for partition, offset in offsets.items()
            }
        )

    async def fetch(self, group_id: str, topic: str = "t") -> dict[int, int]:
        """What OffsetFetch shows."""
        group = await self.groups.group(group_id)
        if group is None:
            return {}
        await self.groups.confirm(group)
        topic_id = self.life.world.topics[topic].topic_id
        return {
            tp.partition: committed.offset
            for tp, committed in sorted(group.offsets.items())
            if tp.topic_id == topic_id
        }

    # ── Members ──

    async def member(self, group_id: str, name: str = "m", **said: Any) -> "Member":
        """A member that has joined, alone, and has its assignment."""
        member = Member(self, group_id, name, **said)
        await member.join()
        await member.sync()
        return member


def _join(
    machine: ClassicGroup, asked: JoinRequest, request_id: int, now_ms: int
) -> Sequence[Answer | Persist]:
    return machine.join(request_id, asked, now_ms)


class Member:
    """A member of a classic group."""

    def __init__(
        self,
        at: Coordinated,
        group_id: str,
        name: str = "m",
        *,
        protocol_type: str = "x",
        session_timeout_ms: int = 10_000,
        instance_id: str | None = None,
    ) -> None:
        self.at = at
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.asked = JoinRequest(
            version=9,
            client_id=name,
            client_host="/127.0.0.1",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=30_000,
            member_id="",
            instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=(Protocol("p", name.encode()),),
        )

    async def group(self) -> ServedGroup:
        """Where it is."""
        return await self.at.groups.made(self.group_id, CLASSIC)

    async def join(self) -> JoinResponse:
        """JoinGroup, as often as it takes to have an id."""
        while True:
            group = await self.group()
            asked = replace(self.asked, member_id=self.member_id)
            machine = group.classic
            assert machine is not None
            answer: JoinResponse = await group.ask(partial(_join, machine, asked))
            self.member_id = answer.member_id
            if answer.error is not ErrorCode.MEMBER_ID_REQUIRED:
                self.generation = answer.generation
                self.members = [member.member_id for member in answer.members]
                self.leads = answer.leader == self.member_id
                return answer

    async def sync(self) -> SyncResponse:
        """SyncGroup; the leader gives each member its own id."""
        group = await self.group()
        machine = group.classic
        assert machine is not None
        assignments = tuple((m, m.encode()) for m in self.members) if self.leads else ()
        asked = SyncRequest(
            version=5,
            generation=self.generation,
            member_id=self.member_id,
            protocol_type=self.asked.protocol_type,
            protocol="p",
            assignments=assignments,
        )
        answer: SyncResponse = await group.ask(lambda i, now: machine.sync(i, asked, now))
        self.assignment = answer.assignment
        return answer

    async def heartbeat(self, at: Coordinated | None = None) -> ErrorCode:
        """Heartbeat, perhaps elsewhere."""
        group = await (at or self.at).groups.group(self.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        machine = group.classic
        assert machine is not None
        asked = HeartbeatRequest(generation=self.generation, member_id=self.member_id)
        answer = await group.ask(lambda i, now: machine.heartbeat(i, asked, now))
        error: ErrorCode = answer.error
        return error

    async def leave(self) -> ErrorCode:
        """LeaveGroup."""
        group = await self.group()
        machine = group.classic
        assert machine is not None
        asked = LeaveRequest(members=(LeavingMember(member_id=self.member_id),))
        answer = await group.ask(lambda i, now: machine.leave(i, asked, now))
        error: ErrorCode = answer.members[0].error
        return error


def beat(
    epoch: int = JOIN_EPOCH,
    pattern: str | None = None,
    topic: str = "t",
    member_id: str = "m",
) -> ConsumerHeartbeat:
    """A heartbeat of KIP-848; one that joins names a topic, or a pattern."""
    joins = epoch == JOIN_EPOCH
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=30_000,
        topic_names=(topic,) if joins and pattern is None else None,
        topic_regex=pattern,
        owned={} if joins else None,
    )
