"""The opposite oracle: when everything has been checked, bucket and metadata hold nothing unnamed.

    all is checked ──▶ one agent starts again ──▶ all topics, or some, are deleted
        ──looks for more than a grace period──▶ objects are gone
        ──another grace period──▶ tombstones are gone, heads of dead sessions are marked
        ──7 days──▶ heads are gone ──▶ every key and every object is named by something that exists

Time passes in jumps, as in `chaos.grow_old`: the collector looks after each of them, and the
agent's session ends in each of them.

Of topics that exist, only those sealed objects are there that a manifest of the last grace names.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Final
from uuid import UUID

from driftlog_metadata.schema import keys
from driftlog_metadata.schema.codec import (
    decode_ended_head,
    decode_flush_record,
    decode_partition_state,
)
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_tiering.formats import layout
from tests.simulation.blind_coordinators import ALONE
from tests.simulation.collecting import SEALED
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.node import Node
    from tests.simulation.world import World

_HOUR_S: Final = 3_600.0
_STEP_S: Final = 1.8 * _HOUR_S
"""Shorter than the collector's `max_gap_ms`, or its grace would begin again."""
_STEPS: Final = 8
"""Together longer than the collector's grace of 12 h, also without the first one, in which what
was on its way for long arrives."""
_GRACE_S: Final = 12.1 * _HOUR_S
_HEADS_S: Final = (7 * 24 + 1) * _HOUR_S
_LOOK_AT_HEADS_S: Final = 6.1 * _HOUR_S
_MORE_LOOKS: Final = 4
_WALKED_S: Final = 120.0
"""In which the superseded versions of all partitions go, behind a listing."""
_LOOKED_S: Final = 120.0
_LISTED_GRACES: Final = 2.1
"""Longer than the time between two listings of sealed objects."""
_HEADS_LOOKED_S: Final = 1.0
"""How long a look at heads takes behind it; shorter than the interval between two looks."""
_READY_S: Final = 60.0
_SESSION_S: Final = 20.0
"""In which a session begins behind a jump, and the collector looks."""
_SEALED_S: Final = 25.0
"""In which a session seals what is there and forgets its flush records."""
_ALL_DELETED: Final = 0.6
"""Of the seeds with an ending: all topics are deleted; in the others some are."""


_FOREIGN: Final = (33, 44, 72, 95)
"""Seeds of two hundred with foreign objects that have an ending, too (`bucket_faults`)."""


def has_ending(seed: int) -> bool:
    """Whether the seed goes on to its opposite end: one in nine, whatever its last digit."""
    return seed % 11 == 3 or seed % 200 in _FOREIGN


class Ending:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"ending {world.seed}")
        self._node = next(node for node in world.nodes if not node.left)
        self._deleted: set[UUID] = set()

    async def run(self) -> None:
        """Delete, let time pass, look.

        Raises:
            Violation: something unnamed is there.
        """
        world = self._world
        node = self._node
        world.note("ending")
        async with asyncio.TaskGroup() as tasks:
            node.come_back()
            tasks.create_task(node.run())
            await self._delete_topics(await self._ready(node))
            await self._sealed()
            await self._flush_objects_collected()
            ended = self._heads() - self._names(keys.SESSIONS_PREFIX)
            await self._pass(_GRACE_S)
            ended -= self._named_sessions()
            await self._passes_until(lambda: not self._heads() & ended - self._marked())
            await self._pass(_HEADS_S)
            await self._passes_until(lambda: not self._heads() & ended)
            await self._sealed_objects_listed()
            await self._ready(node)
            await self._check(ended)
            await node.leave()

    async def _flush_objects_collected(self) -> None:
        """Let a grace pass in steps.  What is sealed meanwhile begins its grace then."""
        for _ in range(_MORE_LOOKS):
            before = self._names(keys.FLUSHES_PREFIX)
            for _ in range(_STEPS):
                await self._pass(_STEP_S)
            if before <= self._names(keys.FLUSHES_PREFIX):
                return

    async def _pass(self, seconds: float) -> None:
        self._world.pass_time(seconds)
        await self._look()

    async def _look(self) -> None:
        """Wait for a look of the collector that begins from now on, so that time jumps between two
        looks: one that time jumps in would pass for one that began too late."""
        began_ms = self._world.now_ms()
        for _ in range(int(_LOOKED_S / 0.1)):
            if self._node.process.looked_ms > began_ms:
                break
            await asyncio.sleep(0.1)
        else:
            self._world.expect(False, "the collector does not look when all is over")
        await asyncio.sleep(_HEADS_LOOKED_S)

    async def _sealed_objects_listed(self) -> None:
        """Let a listing be due, wait for it, and for the walks behind it."""
        grace_s = self._world.grace.ms / 1000
        began_ms = self._world.now_ms()
        await self._pass(_LISTED_GRACES * grace_s)
        for _ in range(_MORE_LOOKS):
            if self._node.process.listed_ms > began_ms:
                break
            # The session ends in a jump, and an agent without a session lists nothing.
            await self._ready(self._node)
            await asyncio.sleep(_SESSION_S)
            if self._node.process.listed_ms > began_ms:
                break
            self._world.pass_time(grace_s / 12)  # a process that began anew lists after that
        listed = self._node.process.listed_ms > began_ms
        self._world.expect(listed, "sealed objects are not listed when all is over")
        for _ in range(int(_WALKED_S)):
            if not await self._sealed_garbage():
                break
            await asyncio.sleep(1)

    async def _sealed_garbage(self) -> list[str]:
        """Sealed objects that no manifest version of the last grace names."""
        world = self._world
        return [
            info.key
            async for page in world.bucket.list(layout.TOPICS_PREFIX)
            for info in page.objects
            if info.key not in world.foreign.bodies
            and isinstance(layout.parse_key(info.key), (layout.ManifestKey, *SEALED))
            and not world.collected.allowed(info.key)
        ]

    async def _passes_until(self, holds: Callable[[], bool]) -> None:
        """Heads are marked and deleted in batches; one that was written meanwhile, as the head of a
        session that ends in the jump is, puts its batch off to the next look."""
        for _ in range(_MORE_LOOKS):
            if holds():
                return
            await self._pass(_LOOK_AT_HEADS_S)

    async def _sealed(self) -> None:
        """Wait until all is sealed, or for as long as that takes, and for a look behind that."""
        for _ in range(int(_SEALED_S / 0.5)):
            if not self._world.metadata.snapshot(keys.FLUSHES_PREFIX):
                break
            await asyncio.sleep(0.5)
        await self._look()

    async def _ready(self, node: "Node") -> "SimulatedAgent":
        for _ in range(int(_READY_S / 0.1)):
            if node.well and node.process.serving:
                return node.process
            await asyncio.sleep(0.1)
        self._world.expect(False, "no session begins when all is over")
        raise AssertionError

    async def _delete_topics(self, process: "SimulatedAgent") -> None:
        topics = list((await read_topics(self._world)).values())
        if self._rng.random() >= _ALL_DELETED:
            topics = [topic for topic in topics if self._rng.random() < 0.5]
        for topic in topics:
            self._world.admin.dying.add(topic.topic_id)
            self._deleted.add(topic.topic_id)
            await process.do(process.broker.topics.delete(topic))

    def _names(self, prefix: str) -> set[str]:
        return {kv.key.removeprefix(prefix) for kv in self._world.metadata.snapshot(prefix)}

    def _heads(self) -> set[str]:
        return self._names(keys.HEADS_PREFIX)

    def _marked(self) -> set[str]:
        heads = self._world.metadata.snapshot(keys.HEADS_PREFIX)
        return {keys.parse_head_key(kv.key) for kv in heads if decode_ended_head(kv.value)}

    # ── The oracle ──

    async def _check(self, ended: set[str]) -> None:
        """*ended*: sessions that were over more than 7 days ago, and that nothing named then."""
        topics = await read_topics(self._world)
        self._expect(not topics.keys() & self._deleted, "a deleted topic", self._deleted)
        self._check_partitions(topics)
        self._check_sessions(ended)
        self._check_flush_records(topics)
        self._check_groups(topics)
        self._nothing("tombstones", [key for key in self._tombstones() if not self._stays(key)])
        await self._check_objects(topics, ended)

    def _tombstones(self) -> list[str]:
        return [kv.key for kv in self._world.metadata.snapshot(keys.DELETED_PREFIX)]

    def _stays(self, tombstone: str) -> bool:
        """Whether a foreign object keeps the folder of a deleted topic, and so its tombstone, or a
        flush object that is not sealed yet: one that is older than the mark would bring the topic
        back in a restore."""
        topic_id = str(keys.parse_deleted_key(tombstone))
        return bool(self._world.metadata.snapshot(keys.FLUSHES_PREFIX)) or any(
            topic_id in key for key in self._world.foreign.bodies
        )

    def _check_partitions(self, topics: dict[UUID, Topic]) -> None:
        for prefix, parse in (
            (keys.LEADERS_PREFIX, keys.parse_leader_key),
            (keys.PARTITIONS_PREFIX, keys.parse_partition_key),
        ):
            for kv in self._world.metadata.snapshot(prefix):
                tp = parse(kv.key)
                self._expect(_exists(tp, topics), kv.key, "of a partition that does not exist")

    def _check_sessions(self, ended: set[str]) -> None:
        live = self._names(keys.SESSIONS_PREFIX)
        agents = [kv.key for kv in self._world.metadata.snapshot(keys.AGENTS_PREFIX)]
        self._expect(len(live) == len(agents) == 1, (live, agents), "one agent lives")
        self._nothing("heads", self._heads() & ended)

    def _named_sessions(self) -> set[str]:
        """Dead sessions whose heads stay: a partition's list or a flush record names them."""
        snapshot = self._world.metadata.snapshot
        listed = {
            session_id
            for kv in snapshot(keys.PARTITIONS_PREFIX)
            for session_id in decode_partition_state(kv.value).sessions
        }
        recorded = {keys.parse_flush_key(kv.key).session_id for kv in snapshot(keys.FLUSHES_PREFIX)}
        return listed | recorded

    def _check_flush_records(self, topics: dict[UUID, Topic]) -> None:
        states = {
            keys.parse_partition_key(kv.key): decode_partition_state(kv.value).sealed_end
            for kv in self._world.metadata.snapshot(keys.PARTITIONS_PREFIX)
        }
        unneeded = [
            key
            for key, ends in self._world.ledger.record_ends().items()
            if not any(_exists(tp, topics) and end > states.get(tp, 0) for tp, end in ends.items())
        ]
        self._nothing("flush records of sealed or deleted data", unneeded)

    def _check_groups(self, topics: dict[UUID, Topic]) -> None:
        groups = self._world.groups
        names = {ledger.name for ledger in groups.ledgers} if groups is not None else set()
        names.add(ALONE)
        for kv in self._world.metadata.snapshot(keys.GROUPS_PREFIX):
            key = keys.parse_group_key(kv.key)
            self._expect(key.group_id in names, kv.key, "of a group that does not exist")
            there = key.topic_id is None or key.topic_id in topics
            self._expect(there, kv.key, "offsets of a topic that does not exist")

    async def _check_objects(self, topics: dict[UUID, Topic], ended: set[str]) -> None:
        world = self._world
        named = {
            decode_flush_record(kv.value).object_key
            for kv in world.metadata.snapshot(keys.FLUSHES_PREFIX)
        }
        async for page in world.bucket.list(""):
            for info in page.objects:
                if info.key in world.foreign.bodies:
                    continue
                key = layout.parse_key(info.key)
                match key:
                    case layout.FlushObjectKey():
                        self._expect(info.key in named, info.key, "no flush record names it")
                    case layout.FinalHeadKey(session_id=session_id):
                        self._expect(session_id not in ended, info.key, "its session has nothing")
                    case layout.TopicKey(topic_id=topic_id) | layout.ImportKey(topic_id=topic_id):
                        self._expect(topic_id in topics, info.key, "its topic does not exist")
                    case layout.DeletedKey(topic_id=topic_id):
                        stays = keys.deleted_key(topic_id) in self._tombstones()
                        self._expect(stays, info.key, "the mark of a topic that is gone")
                    case layout.ClusterKey() | layout.AuditKey() | layout.ProducerIdsKey():
                        pass  # what was given out or accepted is known for ever
                    case layout.GroupSnapshotKey():
                        pass  # the collector keeps some of them
                    case _:
                        there = _exists(key.tp, topics)
                        self._expect(there, info.key, "its partition does not exist")
        self._nothing("sealed objects", await self._sealed_garbage())

    def _nothing(self, what: str, found: Iterable[str]) -> None:
        there = sorted(found)
        self._expect(not there, there, f"{what} that nothing names")

    def _expect(self, holds: bool, what: object, why: str | object) -> None:
        self._world.expect(holds, f"left at the end: {what}: {why}")


def _exists(tp: TopicPartition, topics: dict[UUID, Topic]) -> bool:
    topic = topics.get(tp.topic_id)
    return topic is not None and tp.partition < topic.partitions
