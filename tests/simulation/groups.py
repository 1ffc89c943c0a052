"""Consumer groups: members that join, commit and read offsets back, and what must hold of that.

Members do what Kafka's consumers do, through the agents' own handlers: they ask anybody for the
coordinator, go to another one when it is not, join again when they are told to, and believe
nothing of a request that was not answered.  Offsets that are committed are never used again, so
that each says by whom and when it was written.

1. What was committed is what is read: an answer that begins after a commit was acknowledged has
   that commit's offset, or a later one's.  What was fenced (ILLEGAL_GENERATION …) is never read.
2. A generation has one plan: whoever is told an assignment of it is told one of the same leader.
3. Generations that a coordinator tells go up; a member of an old one commits nothing once a new one
   is told.
4. When the faults are over, each group is complete in bounded time, and all can commit.
5. Of KIP-848: what `consumer_members` says.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.configs.group_settings import ClassicSettings, ConsumerSettings, GroupSettings
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.consumer_members import Ownership
from tests.simulation.group_ledger import GroupLedger
from tests.simulation.group_members import SESSION_MS, Member, ask, find

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.world import World

SETTINGS: Final = GroupSettings(
    classic=ClassicSettings(
        initial_rebalance_delay_ms=300,
        min_session_timeout_ms=500,
        new_member_join_timeout_ms=20_000,
    ),
    consumer=ConsumerSettings(session_timeout_ms=SESSION_MS, assignment_interval_ms=300),
    offsets_retention_minutes=10**7,  # grace periods go by; nobody comes back for so long
)
_SETTLED_S: Final = 90.0


class Groups:
    """All groups of a world, and their members."""

    def __init__(self, world: "World", rng: Random, *, both: bool) -> None:
        self.world = world
        self.rng = rng
        self.offsets = 0
        self.ledgers = [GroupLedger(f"g{i}", world.expect) for i in range(2)]
        self.members = [
            Member(world, ledger, f"{ledger.name}-m{i}", Random(rng.random()), self.next_offset)
            for ledger in self.ledgers
            for i in range(rng.randint(2, 3))
        ]
        self.ownership: Ownership | None = None
        if both:
            ledger = GroupLedger("c0", world.expect)
            self.ledgers.append(ledger)
            self.ownership = Ownership(world, ledger, rng, self.next_offset)
            self.members += self.ownership.members

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
            if self.ownership is not None:
                late += self.ownership.missing()
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
        known: SimulatedAgent | None = None
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 3))
            if known is None or known.dead:
                known = await find(self.world, self.rng, ledger.name)
            if known is not None and not await self._read_from(known, ledger):
                known = None

    async def _read_once(self, ledger: GroupLedger) -> bool:
        process = await find(self.world, self.rng, ledger.name)
        return process is not None and await self._read_from(process, ledger)

    async def _read_from(self, process: "SimulatedAgent", ledger: GroupLedger) -> bool:
        """As an administrator does: who coordinates, or did when it was asked for last, is asked
        for everything; whether it answered."""
        tps = list(ledger.commits)
        if not tps:
            return True
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
                is_gone = topic.topic_id in self.world.admin.dying  # its offsets go with it
                if not partition.error_code and not is_gone:
                    tp = TopicPartition(topic.topic_id, partition.partition_index)
                    ledger.read(tp, partition.committed_offset, start_s)
        return True
