"""Consumer groups: members that join, commit and read offsets back, and what must hold of that.

Members do what Kafka's consumers do, through the agents' own handlers: they ask anybody for the
coordinator, go to another one when it is not, join again when they are told to, and believe
nothing of a request that was not answered.  Offsets that are committed are never used again, so
that each says by whom and when it was written.

1. What was committed is what is read: an answer that begins after a commit was acknowledged has
   that commit's offset, or a later one's.  What was fenced (ILLEGAL_GENERATION …) is never read.
2. A generation has one plan: whoever is told an assignment of it is told one of the same leader.
3. Generations that are told go up; a member of an old one commits nothing once a new one is told.
4. When the faults are over, each group is complete in bounded time, and all can commit.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.broker import RequestContext
from driftlog_agents.groups.classic_messages import ClassicSettings
from driftlog_agents.groups.settings import GroupSettings
from driftlog_agents.handlers.table import HANDLERS
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.find_coordinator import FindCoordinatorRequest
from driftlog_agents.protocol.messages.heartbeat import HeartbeatRequest
from driftlog_agents.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from driftlog_agents.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from driftlog_agents.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from driftlog_metadata.errors import StoreError
from driftlog_metadata.model import Topic, TopicPartition
from tests.simulation.loop import NOBODY

if TYPE_CHECKING:
    from tests.simulation.agent import AgentProcess
    from tests.simulation.world import World

SETTINGS: Final = GroupSettings(
    classic=ClassicSettings(
        initial_rebalance_delay_ms=300,
        min_session_timeout_ms=500,
        new_member_join_timeout_ms=20_000,
    ),
    offsets_retention_minutes=10**7,  # grace periods go by; nobody comes back for so long
)
_SESSION_MS: Final = 4_000
_REBALANCE_MS: Final = 6_000
_HEARTBEAT_S: Final = 0.7
_PATIENCE_S: Final = 12.0
"""For an answer; then the connection is closed."""
_SETTLED_S: Final = 90.0
_MOVED: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_FENCED: Final = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
_REJOIN: Final = {*_FENCED, ErrorCode.REBALANCE_IN_PROGRESS}
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_ID


@dataclass(slots=True)
class Commit:
    """One try to commit *offset*; *end_s* is None while nobody knows what came of it."""

    offset: int
    start_s: float
    end_s: float | None = None
    fenced: bool = False


@dataclass(slots=True)
class GroupLedger:
    """What one group was told, and told us."""

    name: str
    expect: Callable[[bool, str], None]
    commits: dict[TopicPartition, dict[int, Commit]] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)
    """The leader's plan of each generation that somebody was told an assignment of."""
    told: list[tuple[float, int]] = field(default_factory=list)
    """When which generation was told; both ascend."""
    reads: int = 0

    def begin(self, tp: TopicPartition, offset: int, now_s: float) -> Commit:
        """Somebody is about to commit."""
        commit = Commit(offset, now_s)
        self.commits.setdefault(tp, {})[offset] = commit
        return commit

    def acknowledged(self, commit: Commit, generation: int, now_s: float) -> None:
        """It is stored."""
        commit.end_s = now_s
        newer = [g for at, g in self.told if at < commit.start_s and g > generation >= 0]
        self.expect(
            not newer, f"{self.name}: generation {generation} commits, {newer} were told before"
        )

    def read(self, tp: TopicPartition, offset: int, start_s: float) -> None:
        """An answer that was asked for at *start_s* says that *offset* is committed (−1: none)."""
        self.reads += 1
        all_of_it = self.commits.get(tp, {})
        found = all_of_it.get(offset)
        self.expect(found is not None or offset == -1, f"{self.name}: {offset} of {tp} is nobody's")
        if found is not None:
            self.expect(not found.fenced, f"{self.name}: {offset} of {tp} was fenced, and is read")
        since = float("-inf") if found is None else found.end_s
        if since is None:
            return  # it may have been stored at any time since
        lost = [
            c.offset
            for c in all_of_it.values()
            if c.end_s is not None and c.start_s > since and c.end_s < start_s
        ]
        self.expect(not lost, f"{self.name}: {offset} of {tp} is read, {lost} were committed since")

    def assigned(self, generation: int, plan: str, now_s: float) -> None:
        """A member of *generation* is told its part of *plan*."""
        there = self.plans.setdefault(generation, plan)
        self.expect(
            there == plan, f"{self.name}: generation {generation} has the plans {there} and {plan}"
        )
        if not self.told or generation > self.told[-1][1]:
            self.told.append((now_s, generation))

    def starts(self, generation: int, start_s: float) -> None:
        """A join that was sent at *start_s* was answered with *generation*."""
        before = [g for at, g in self.told if at < start_s]
        self.expect(
            not before or generation >= before[-1],
            f"{self.name}: generation {generation} after {before[-1:]} was told",
        )


class Groups:
    """All groups of a world, and their members."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.offsets = 0
        self.ledgers = [GroupLedger(f"g{i}", world.expect) for i in range(2)]
        self.members = [
            Member(self, ledger, f"{ledger.name}-m{i}", Random(rng.random()))
            for ledger in self.ledgers
            for i in range(rng.randint(2, 3))
        ]

    async def run(self) -> None:
        """Members and readers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(member.run())
            for ledger in self.ledgers:
                tasks.create_task(self._read(ledger))

    def next_offset(self) -> int:
        """One that nobody has committed."""
        self.offsets += 1
        return self.offsets

    async def settle(self) -> None:
        """The faults are over: all are in one generation, and can commit."""
        for _ in range(int(_SETTLED_S * 10)):
            late = [
                ledger.name
                for ledger in self.ledgers
                if len({m.generation for m in self.members if m.ledger is ledger and m.stable}) != 1
                or not all(m.stable for m in self.members if m.ledger is ledger)
            ]
            if not late:
                break
            await asyncio.sleep(0.1)
        self.world.expect(not late, f"not complete: {late} {[m.state for m in self.members]}")
        for member in self.members:
            for _ in range(50):
                if await member.commit():
                    break
                await asyncio.sleep(0.3)
            else:
                self.world.expect(False, f"{member.name} cannot commit: {member.state}")
        for ledger in self.ledgers:
            for _ in range(50):
                if await self._read_once(ledger):
                    break
                await asyncio.sleep(0.3)
            else:
                self.world.expect(False, f"{ledger.name} cannot be read")
        self.world.count_many("offsets read", sum(ledger.reads for ledger in self.ledgers))
        self.world.count_many("generations", sum(len(ledger.plans) for ledger in self.ledgers))

    async def _read(self, ledger: GroupLedger) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 3))
            await self._read_once(ledger)

    async def _read_once(self, ledger: GroupLedger) -> bool:
        """As an administrator does: whoever seems to coordinate is asked for everything."""
        process = await find(self.world, self.rng, ledger.name)
        tps = list(ledger.commits)
        if process is None or not tps:
            return not tps
        topics = [
            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
            for topic_id in {tp.topic_id for tp in tps}
        ]
        start_s = self.world.loop.now_s
        answer = await ask(
            process,
            ApiKey.OFFSET_FETCH,
            10,
            OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=ledger.name, topics=topics)]
            ),
        )
        if answer is None or answer.groups[0].error_code:
            return False
        for topic in answer.groups[0].topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    tp = TopicPartition(topic.topic_id, partition.partition_index)
                    ledger.read(tp, partition.committed_offset, start_s)
        return True


class Member:
    """A consumer: one life after the other, of one group."""

    def __init__(self, groups: Groups, ledger: GroupLedger, name: str, rng: Random) -> None:
        self.groups, self.ledger, self.name, self.rng = groups, ledger, name, rng
        self.world = groups.world
        self.id = ""
        self.generation = -1
        self.assigned: list[TopicPartition] = []
        self._coordinator: AgentProcess | None = None

    @property
    def stable(self) -> bool:
        """It has a place in a generation, as far as it was told."""
        return self.generation >= 0

    @property
    def state(self) -> str:
        """For people."""
        return f"{self.name} {self.id} in {self.generation} at {self._coordinator}"

    async def run(self) -> None:
        """Join, stay for a while, leave or die, and come again."""
        while True:
            await asyncio.sleep(self.rng.uniform(0, 0.5))
            if self.generation < 0:
                await self._join()
            else:
                await self._stay()

    async def _stay(self) -> None:
        dice = self.rng.random()
        calm = self.world.calm
        if dice < 0.01 and not calm:
            self.world.count("members left")
            await self._ask(
                ApiKey.LEAVE_GROUP,
                5,
                LeaveGroupRequest(
                    group_id=self.ledger.name, members=[MemberIdentity(member_id=self.id)]
                ),
            )
            self._forget()
        elif dice < 0.02 and not calm:
            self.world.count("members died")
            self._forget()
            await asyncio.sleep(self.rng.uniform(0, 3))
        elif dice < 0.03 and not calm:
            self.world.count("members slept")
            await asyncio.sleep(self.rng.uniform(1, 8))  # and goes on as if nothing were
            await self.commit()
        elif dice < 0.4:
            await self.commit()
        else:
            await asyncio.sleep(self.rng.uniform(0, _HEARTBEAT_S))
            beat = HeartbeatRequest(
                group_id=self.ledger.name, generation_id=self.generation, member_id=self.id
            )
            answer = await self._ask(ApiKey.HEARTBEAT, 4, beat)
            if answer is not None:
                self._heard(ErrorCode(answer.error_code))

    async def _join(self) -> None:
        start_s = self.world.loop.now_s
        answer: JoinGroupResponse | None = await self._ask(
            ApiKey.JOIN_GROUP,
            9,
            JoinGroupRequest(
                group_id=self.ledger.name,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=_REBALANCE_MS,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=self.name.encode())],
            ),
        )
        if answer is None:
            return
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            return
        if code:
            self._heard(code)
            return
        self.ledger.starts(answer.generation_id, start_s)
        self.id = answer.member_id
        await self._sync(answer)

    async def _sync(self, joined: JoinGroupResponse) -> None:
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self.id:
            plan = f"{self.rng.getrandbits(32):08x}"
            ids = [member.member_id for member in joined.members]
            self.world.expect(self.id in ids, f"{self.name} leads a group without it: {ids}")
            for number, member_id in enumerate(ids):
                share = [str(p) for p in range(4) if p % len(ids) == number]
                text = f"{plan}:{','.join(share)}"
                assignments.append(
                    SyncGroupRequestAssignment(member_id=member_id, assignment=text.encode())
                )
        answer = await self._ask(
            ApiKey.SYNC_GROUP,
            5,
            SyncGroupRequest(
                group_id=self.ledger.name,
                generation_id=joined.generation_id,
                member_id=self.id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            ),
        )
        if answer is None:
            return
        if answer.error_code:
            self._heard(ErrorCode(answer.error_code))
            return
        plan, _, parts = bytes(answer.assignment).decode().partition(":")
        self.ledger.assigned(joined.generation_id, plan, self.world.loop.now_s)
        self.generation = joined.generation_id
        topics = self._topics()
        self.assigned = [
            TopicPartition(topics[int(p) // 2].topic_id, int(p) % 2)
            for p in parts.split(",")
            if p and int(p) // 2 < len(topics) and int(p) % 2 < topics[int(p) // 2].partitions
        ]

    def _topics(self) -> list[Topic]:
        assert self._coordinator is not None
        known = self._coordinator.broker.topics.by_name.values()
        return sorted(known, key=lambda topic: topic.topic_id)[:2]

    async def commit(self) -> bool:
        """Commit what it is assigned; whether it could."""
        if self.generation < 0 or not self.assigned:
            return self.generation >= 0
        generation = self.generation
        tries = {
            tp: self.ledger.begin(tp, self.groups.next_offset(), self.world.loop.now_s)
            for tp in self.assigned
        }
        topics = [
            OffsetCommitRequestTopic(
                topic_id=tp.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=commit.offset,
                        committed_metadata=self.name,
                    )
                ],
            )
            for tp, commit in tries.items()
        ]
        answer = await self._ask(
            ApiKey.OFFSET_COMMIT,
            10,
            OffsetCommitRequest(
                group_id=self.ledger.name,
                generation_id_or_member_epoch=generation,
                member_id=self.id,
                topics=topics,
            ),
        )
        if answer is None:
            return False
        codes: set[ErrorCode] = set()
        for topic in answer.topics:
            for partition in topic.partitions:
                code = ErrorCode(partition.error_code)
                codes.add(code)
                commit = tries[TopicPartition(topic.topic_id, partition.partition_index)]
                if code is ErrorCode.NONE:
                    self.ledger.acknowledged(commit, generation, self.world.loop.now_s)
                elif code in _FENCED:
                    commit.fenced = True
        self.world.expect(
            codes <= {ErrorCode.NONE, _UNKNOWN_TOPIC, *_MOVED, *_REJOIN},
            f"{self.name}: a commit was answered with {codes}",
        )
        if _UNKNOWN_TOPIC in codes:
            self.assigned = []  # its topic is gone
        for code in codes - {ErrorCode.NONE, _UNKNOWN_TOPIC}:
            self._heard(code)
        return codes <= {ErrorCode.NONE, _UNKNOWN_TOPIC}

    # ── Coordinators ──

    def _heard(self, code: ErrorCode) -> None:
        if code in _MOVED:
            self._coordinator = None
        elif code in _REJOIN:
            self.generation = -1
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.id = ""
        else:
            self.world.expect(code is ErrorCode.NONE, f"{self.name} was told {code.name}")

    def _forget(self) -> None:
        self.id, self.generation, self.assigned = "", -1, []

    async def _ask(self, key: ApiKey, version: int, request: Any) -> Any:
        there = self._coordinator
        if there is None or not there.listening:
            self._coordinator = await find(self.world, self.rng, self.ledger.name)
            if self._coordinator is None:
                await asyncio.sleep(0.2)
                return None
        assert self._coordinator is not None
        answer = await ask(self._coordinator, key, version, request)
        if answer is None:
            self._coordinator = None
        return answer


async def find(world: "World", rng: Random, group: str) -> "AgentProcess | None":
    """Who coordinates the group, as somebody says who is asked."""
    asked = rng.choice(world.nodes).process
    request = FindCoordinatorRequest(coordinator_keys=[group])
    answer = await ask(asked, ApiKey.FIND_COORDINATOR, 4, request)
    if answer is None or answer.coordinators[0].error_code:
        return None
    number = answer.coordinators[0].node_id
    return next((node.process for node in world.nodes if node.number == number), None)


async def ask(process: "AgentProcess", key: ApiKey, version: int, request: Any) -> Any:
    """The answer; None: there is none, and the connection is closed."""
    if not process.listening:
        return None
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()
    context = RequestContext(
        api_version=version, client_id="member", client_host="10.0.0.1:5", listener="PLAINTEXT"
    )

    def tell(answer: Any) -> None:
        if not answered.done():
            answered.set_result(answer)

    async def handle() -> None:
        answer: Any = None
        with contextlib.suppress(RefusedError, StoreError):  # the dispatcher hangs up
            answer = await HANDLERS[key](process.broker, request, context)
        if not process.dead:
            loop.call_soon(tell, answer, context=NOBODY)

    def arrive() -> None:
        if process.broker.engine is not None or not process.stopping:
            process.spawn(handle())

    process.receive(arrive)
    await asyncio.wait([answered], timeout=_PATIENCE_S)
    if answered.done():
        return answered.result()

    def hang_up() -> None:
        for end in list(context.on_close):
            end()

    process.receive(hang_up)
    return None
