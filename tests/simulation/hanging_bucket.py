"""A bucket that hangs for all agents, for tens of seconds to minutes, while agents join and leave.

    the other faults are over ──▶ writes, or all requests, have no answer ──▶ agents come and go
                              ──▶ the bucket answers again                ──▶ all goes on

Promise: *every partition that could be served is served within ten seconds*: its leader takes
batches, and does not let them wait.  It could be served when the session that served it last lives,
its agent was not told to stop, and its topic is not being deleted: nothing else may take its leader
away.  What that session had released by the time that the bucket had hung for two seconds is left
out until it is served again: it was on its way.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import decode_leader
from driftlog_metadata.schema.keys import LEADERS_PREFIX, parse_leader_key
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.faults import Refused
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.world import World

_ON_THEIR_WAY_S: Final = 2.0
_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.25
_MOST_NODES: Final = 5
_HAND_OVER_LOOK_S: Final = 0.003
_LOOKS: Final = 3_000
_LOOKS_A_LOAD: Final = 30


def has_hanging_bucket(seed: int) -> bool:
    """Whether the seed, one of a cluster, has it: one in eleven hundreds.

    (None of a hundred in which a seed is that finds something.)
    """
    return seed // 100 % 11 == 7


def hangs_in_a_hand_over(seed: int) -> bool:
    """Whether the hang begins while a hand-over waits for the last flush of a partition: where the
    second digit is even."""
    return has_hanging_bucket(seed) and not seed // 10 % 2


class HangingBucket:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"hanging bucket {world.seed}")
        self._kind = Refused.NOTHING
        self._missing_since_s: dict[TopicPartition, float] = {}
        self._served_by: dict[TopicPartition, str] = {}
        """Sessions that served them last; of what was on its way then: none."""

    async def run(self) -> None:
        """From when the bucket hangs to when it answers again."""
        world, rng = self._world, self._rng
        await asyncio.sleep(rng.uniform(0, 10))
        for topic in (await read_topics(world)).values():
            world.produce_to(topic, batches=12)
        async with asyncio.TaskGroup() as tasks:
            # From before: what is being handed over when the hang begins could be served as well.
            looking = tasks.create_task(self._look())
            await asyncio.sleep(rng.uniform(0, 2))
            await self._begin_a_hand_over()
            kind = rng.choice((Refused.WRITES, Refused.WRITES, Refused.ALL))
            world.note(f"bucket hangs: {kind.value}")
            self._set(kind)
            moving = tasks.create_task(self._come_and_go())
            leaving_out = tasks.create_task(self._leave_out())
            await asyncio.sleep(rng.choice((rng.uniform(15, 40), rng.uniform(60, 150))))
            for task in (moving, looking, leaving_out):
                task.cancel()
        self._set(Refused.NOTHING)

    async def _begin_a_hand_over(self) -> None:
        """Return when one waits for the last flush of a partition."""
        world = self._world
        there = [node for node in world.nodes if not node.last_life]
        if not hangs_in_a_hand_over(world.seed) or len(there) >= _MOST_NODES:
            return
        world.join()
        for look in range(_LOOKS):
            if self._waits_for_a_flush():
                return
            if look % _LOOKS_A_LOAD == 0:
                for topic in (await read_topics(world)).values():
                    world.produce_to(topic, batches=6)
            await asyncio.sleep(_HAND_OVER_LOOK_S)

    def _waits_for_a_flush(self) -> bool:
        engines = [node.process.engine for node in self._world.nodes]
        return any(
            log.high_watermark < log.log_end and (log.paused or log.state is State.CLOSED)
            for engine in engines
            if engine is not None
            for log in engine.logs()
        )

    def _set(self, kind: Refused) -> None:
        self._kind = kind
        for node in self._world.nodes:
            node.store_weather.refused_kind = kind
            node.store_weather.mute = kind is not Refused.NOTHING

    async def _come_and_go(self) -> None:
        world, rng = self._world, self._rng
        joins = False
        while True:
            await asyncio.sleep(rng.uniform(0.2, 12))
            there = [node for node in world.nodes if not node.last_life]
            joins = not joins if rng.random() < 0.8 else joins
            if joins and len(there) < _MOST_NODES:
                world.join()
                self._set(self._kind)
            elif len(there) > 1:
                world.note("stop")
                rng.choice(there).process.stop()

    async def _look(self) -> None:
        while True:
            for topic in (await read_topics(self._world)).values():
                for partition in range(topic.partitions):
                    self._check(topic.name, TopicPartition(topic.topic_id, partition))
            await asyncio.sleep(_LOOK_S)

    async def _leave_out(self) -> None:
        """Who served it last has released it: it is on its way."""
        await asyncio.sleep(_ON_THEIR_WAY_S)
        leaders = {
            parse_leader_key(kv.key): decode_leader(kv.value).session_id
            for kv in self._world.metadata.snapshot(LEADERS_PREFIX)
        }
        for tp in self._missing_since_s:
            if leaders.get(tp) != self._served_by[tp]:
                del self._served_by[tp]

    def _check(self, topic: str, tp: TopicPartition) -> None:
        world = self._world
        led = world.leading(topic, tp.partition)
        if led is not None and led.log.paused:
            led = None
        if led is not None:
            self._served_by[tp] = led.engine.session.session_id
        dying = tp.topic_id in world.admin.dying
        if led is not None or dying or not self._lives(self._served_by.get(tp)):
            self._missing_since_s.pop(tp, None)
            return
        lasted_s = world.loop.now_s - self._missing_since_s.setdefault(tp, world.loop.now_s)
        world.expect(
            lasted_s <= _WITHIN_S, f"{tp} is not served for {lasted_s:.0f} s, and could be"
        )

    def _lives(self, session_id: str | None) -> bool:
        """Whether the session goes on."""
        for node in self._world.nodes:
            process, engine = node.process, node.process.engine
            if engine is not None and engine.session.session_id == session_id:
                there = session_id in self._world.ledger.sessions
                return there and engine.session.alive and not process.stopping
        return False
