"""Members of consumer groups: of the classic protocol here, of KIP-848 in `consumer_members`."""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final

from driftlog_agents.groups.storage_format import decode_group
from driftlog_agents.handlers.common.context import RequestContext
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
from driftlog_agents.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from driftlog_metadata.schema.keys import group_key
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import StoreError
from tests.simulation.group_ledger import GroupLedger
from tests.simulation.loop import NOBODY

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.world import World

SESSION_MS: Final = 4_000
REBALANCE_MS: Final = 6_000
_HEARTBEAT_S: Final = 0.7
_PATIENCE_S: Final = 12.0
"""For an answer; then the connection is closed."""
_MOVED: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_ID


class Member:
    """A consumer: one life after the other, of one group.

    Args:
        next_offset: one that nobody has committed.
    """

    fenced: ClassVar = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
    """What refuses a commit for good: it is not stored."""
    rejoin: ClassVar = {*fenced, ErrorCode.REBALANCE_IN_PROGRESS}

    def __init__(
        self,
        world: "World",
        ledger: GroupLedger,
        name: str,
        rng: Random,
        next_offset: Callable[[], int],
    ) -> None:
        self.world, self.ledger, self.name, self.rng = world, ledger, name, rng
        self._next_offset = next_offset
        self.id = ""
        self.generation = -1
        self.assigned: list[TopicPartition] = []
        self._coordinator: SimulatedAgent | None = None

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
            await self._leave()
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
            await self._beat()

    async def _leave(self) -> None:
        who = [MemberIdentity(member_id=self.id)]
        request = LeaveGroupRequest(group_id=self.ledger.name, members=who)
        await self._ask(ApiKey.LEAVE_GROUP, 5, request)

    async def _beat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.ledger.name, generation_id=self.generation, member_id=self.id
        )
        answer = await self._ask(ApiKey.HEARTBEAT, 4, request)
        if answer is not None:
            self._heard(ErrorCode(answer.error_code))

    async def _join(self) -> None:
        start_s = self.world.loop.now_s
        answer: JoinGroupResponse | None = await self._ask(
            ApiKey.JOIN_GROUP,
            9,
            JoinGroupRequest(
                group_id=self.ledger.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
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
        if self._is_coordinated():
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
        topics = self.topics()
        self.assigned = [
            TopicPartition(topics[int(p) // 2].topic_id, int(p) % 2)
            for p in parts.split(",")
            if p and int(p) // 2 < len(topics) and int(p) % 2 < topics[int(p) // 2].partitions
        ]

    def topics(self) -> list[Topic]:
        """Those that it reads, as who coordinates it knows them."""
        assert self._coordinator is not None
        known = self._coordinator.broker.topics.by_name.values()
        return sorted(known, key=lambda topic: topic.topic_id)[:2]

    async def commit(self) -> bool:
        """Commit what it is assigned; whether it could."""
        if self.generation < 0 or not self.assigned:
            return self.generation >= 0
        generation = self.generation
        tries = {
            tp: self.ledger.begin(tp, self._next_offset(), self.world.loop.now_s)
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
                elif code in self.fenced:
                    commit.fenced = True
        self.world.expect(
            codes <= {ErrorCode.NONE, _UNKNOWN_TOPIC, *_MOVED, *self.fenced, *self.rejoin},
            f"{self.name}: a commit was answered with {codes}",
        )
        if _UNKNOWN_TOPIC in codes:
            self.assigned = []  # its topic is gone
        for code in codes - {ErrorCode.NONE, _UNKNOWN_TOPIC}:
            self._heard(code)
        return codes <= {ErrorCode.NONE, _UNKNOWN_TOPIC}

    # ── Coordinators ──

    def _is_coordinated(self) -> bool:
        """Whether who answered is who coordinates the group: whose session the store names.  One
        that was replaced and has not heard of it answers from memory, until it is to write."""
        assert self._coordinator is not None
        engine = self._coordinator.broker.engine
        kvs = self.world.metadata.snapshot(group_key(self.ledger.name))
        stored = [decode_group(kv.value) for kv in kvs if kv.key == group_key(self.ledger.name)]
        if engine is None or not stored:
            return False
        return stored[0].session_id == engine.agent.session_id

    def _heard(self, code: ErrorCode) -> None:
        if code in _MOVED:
            self._coordinator = None
        elif code in self.rejoin:
            self._told_to_join_again(code)
        else:
            self.world.expect(code is ErrorCode.NONE, f"{self.name} was told {code.name}")

    def _told_to_join_again(self, code: ErrorCode) -> None:
        self.generation = -1
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""

    def _forget(self) -> None:
        self.id, self.generation, self.assigned = "", -1, []

    async def _find(self) -> bool:
        """Whether it knows who coordinates its group."""
        if self._coordinator is None or not self._coordinator.listening:
            self._coordinator = await find(self.world, self.rng, self.ledger.name)
            if self._coordinator is None:
                await asyncio.sleep(0.2)
        return self._coordinator is not None

    async def _ask(self, key: ApiKey, version: int, request: Any) -> Any:
        if not await self._find():
            return None
        assert self._coordinator is not None
        answer = await ask(self._coordinator, key, version, request)
        if answer is None:
            self._coordinator = None
        return answer


async def find(world: "World", rng: Random, group: str) -> "SimulatedAgent | None":
    """Who coordinates the group, as somebody says who is asked."""
    asked = rng.choice(world.nodes).process
    request = FindCoordinatorRequest(coordinator_keys=[group])
    answer = await ask(asked, ApiKey.FIND_COORDINATOR, 4, request)
    if answer is None or answer.coordinators[0].error_code:
        return None
    number = answer.coordinators[0].node_id
    return next((node.process for node in world.nodes if node.number == number), None)


async def ask(process: "SimulatedAgent", key: ApiKey, version: int, request: Any) -> Any:
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
            process.agent.dispatcher.spawn(handle())

    process.receive(arrive)
    await asyncio.wait([answered], timeout=_PATIENCE_S)
    if answered.done():
        return answered.result()

    def hang_up() -> None:
        for end in list(context.on_close):
            end()

    process.receive(hang_up)
    return None
