"""A group of KIP-848: members that heartbeat, are given partitions and give them up.

They do what Kafka's consumers do: what they are not to have any more they let go before they say
so, and after a heartbeat that was not answered the next one says everything again.

1. A partition has one owner: nobody is told to have what another member holds that was answered
   within its session timeout.
2. Epochs that a member is told go up.
3. Nobody is fenced who was answered within the session timeout, whoever coordinates the group by
   now: what was told is stored.
4. When the faults are over, all have the group's epoch, and each partition of what they read is
   somebody's.
"""

import math
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import UUID

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from driftlog_metadata.schema.model import Topic, TopicPartition
from tests.simulation.group_ledger import GroupLedger
from tests.simulation.group_members import REBALANCE_MS, SESSION_MS, Member

if TYPE_CHECKING:
    from tests.simulation.world import World

_JOIN: Final = 0
_LEAVE: Final = -1
_COMMITTED_AT_ONCE: Final = 4
_EVERYTHING: Final = ".*"


class Ownership:
    """One group, and who has which partitions of it."""

    def __init__(
        self, world: "World", ledger: GroupLedger, rng: Random, next_offset: Callable[[], int]
    ) -> None:
        self.world, self.name = world, ledger.name
        self.members = [
            ConsumerMember(self, ledger, f"{ledger.name}-m{i}", Random(rng.random()), next_offset)
            for i in range(rng.randint(2, 3))
        ]

    def taken(self, by: "ConsumerMember", tps: set[TopicPartition]) -> None:
        """*by* was told to have *tps*."""
        now_s = self.world.loop.now_s
        for other in self.members:
            both = other.holds & tps
            if other is not by and now_s - other.heard_s < SESSION_MS / 1000:
                self.world.expect(not both, f"{by.name} is to have {both} that {other.name} holds")

    def missing(self) -> list[str]:
        """What is not as it is to be when nothing happens any more."""
        held = [tp for member in self.members for tp in member.holds]
        wanted = {
            TopicPartition(topic.topic_id, partition)
            for member in self.members
            for topic in member.subscribed()
            for partition in range(topic.partitions)
        }
        return [] if sorted(held) == sorted(wanted) else [f"{self.name}: {held} of {wanted}"]


class ConsumerMember(Member):
    """A consumer of the protocol of KIP-848."""

    fenced: ClassVar = {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
    rejoin: ClassVar = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}

    def __init__(
        self,
        ownership: Ownership,
        ledger: GroupLedger,
        name: str,
        rng: Random,
        next_offset: Callable[[], int],
    ) -> None:
        super().__init__(ownership.world, ledger, name, rng, next_offset)
        self._ownership = ownership
        self.holds: set[TopicPartition] = set()
        self.heard_s = -math.inf
        """When the last heartbeat was sent that was answered well, by who coordinates the group."""
        self._names: list[str] | None = None
        """What it subscribes to; None: to everything, by a pattern."""
        self._says_all = False
        self._gave_up = False
        """It is to say so with the next heartbeat."""

    def subscribed(self) -> list[Topic]:
        """The topics that it subscribes to, as who coordinates it knows them."""
        if self._coordinator is None:
            return []
        topics = self._coordinator.broker.topics.by_name.values()
        return [topic for topic in topics if self._names is None or topic.name in self._names]

    async def _join(self) -> None:
        if not self.id:
            self.id = f"{self.name}-{self.rng.getrandbits(32):08x}"
        if not await self._find():
            return
        pattern = self.rng.random() < 0.3
        self._names = None if pattern else [topic.name for topic in self.topics()]
        self.holds.clear()
        await self._heartbeat(_JOIN)

    async def _beat(self) -> None:
        await self._heartbeat(self.generation)

    async def _leave(self) -> None:
        self.holds.clear()
        await self._heartbeat(_LEAVE)

    async def _heartbeat(self, epoch: int) -> None:
        start_s = self.world.loop.now_s
        in_doubt = self._says_all or epoch == _JOIN
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.ledger.name, member_id=self.id, member_epoch=epoch
        )
        if epoch == _JOIN or self._says_all or self.rng.random() < 0.1:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = self._names if self._names is not None else []
            request.subscribed_topic_regex = _EVERYTHING if self._names is None else ""
            request.topic_partitions = self._owned()
        elif self.rng.random() < 0.5 or self._gave_up:
            request.topic_partitions = self._owned()
        answer: ConsumerGroupHeartbeatResponse | None = await self._ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request
        )
        self._says_all = answer is None or answer.error_code != ErrorCode.NONE
        if answer is None or epoch == _LEAVE:
            return
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            silent_s = self.world.loop.now_s - self.heard_s
            self.world.expect(
                code not in self.rejoin or in_doubt or silent_s >= SESSION_MS / 1000,
                f"{self.name}: {code.name} in epoch {epoch}, {silent_s} s after it was answered",
            )
            self._heard(code)
            return
        if self._is_coordinated():  # else another one may count its silence
            self.heard_s = start_s
        self._gave_up = False
        self.world.expect(
            answer.member_epoch >= max(epoch, 1),
            f"{self.name}: epoch {answer.member_epoch} after {epoch}",
        )
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            told = {
                TopicPartition(topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            }
            self._ownership.taken(self, told - self.holds)
            self._gave_up = bool(self.holds - told)
            self.holds = told
            self.world.count("assignments told")
        self.assigned = self.rng.sample(
            sorted(self.holds), min(len(self.holds), _COMMITTED_AT_ONCE)
        )

    def _owned(self) -> list[TopicPartitions]:
        topics: dict[UUID, list[int]] = {}
        for tp in sorted(self.holds):
            topics.setdefault(tp.topic_id, []).append(tp.partition)
        return [TopicPartitions(topic_id=t, partitions=p) for t, p in topics.items()]

    def _heard(self, code: ErrorCode) -> None:
        if code is not ErrorCode.STALE_MEMBER_EPOCH:  # of a commit: the next heartbeat has the new
            super()._heard(code)

    def _told_to_join_again(self, code: ErrorCode) -> None:
        self.generation = -1
        self.holds.clear()

    def _forget(self) -> None:
        super()._forget()
        self.holds.clear()
