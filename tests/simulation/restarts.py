"""Agents that are restarted more often than `segment.ms`, when all else is over.

    calm ──▶ a record to each partition ──▶ lives of less than `segment.ms`, with a record each ──▶

1. What was flushed is sealed `segment.ms` and a little later, however often leaders change.
2. The list of sessions in a partition's key is as long as the bound, and a little more.
3. What was flushed by a wall clock that jumped or stands is sealed as soon, where the leader stays.

Both times begin when no agent waits for an answer that a fault took: a PUT of the sealer has 30 s,
for uplinks are slow, and until then the partition's next attempt does not begin.

In every hundred the seeds 80 to 89, in which wall clocks jump too (`clocks`): while the agents are
restarted they run, for what no leader has known for long is as old as the clocks say.  Of odd
hundreds nothing is sealed by age, so that lists of sessions are as long as they get.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.clocks import has_clock_jumps
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_SESSIONS: Final = 3
_FINISHED: Final = 6
"""More in a list: live ones, and those that have nothing left in it (`finished_sessions`)."""
_LATE_S: Final = 8.0
"""What a few starts, a look of the sealer and a segment take, in all."""
_LIFE_S: Final = (2.0, 3.4)
_LIVES: Final = 14
_READY_S: Final = 30.0
_GIVEN_UP_S: Final = 60.0
"""Within this every request that was lost has met its deadline."""
_FOR_EVER_MS: Final = 1e12


def has_restarts(seed: int) -> bool:
    """Whether the seed has this."""
    return has_clock_jumps(seed)


def seals_by_age(seed: int) -> bool:
    """Whether `segment.ms` is short."""
    return not has_restarts(seed) or seed // 100 % 2 == 0


def settings_of(seed: int, settings: EngineSettings) -> EngineSettings:
    """Of the seed's agents."""
    if seals_by_age(seed):
        return settings
    seal = replace(
        settings.seal, segment_ms=_FOR_EVER_MS, small_ms=_FOR_EVER_MS, sessions=_SESSIONS
    )
    return replace(settings, seal=seal)


async def restart_often(world: "World", settings: EngineSettings) -> None:
    """See the module; *settings* are those of most seeds."""
    if not has_restarts(world.seed):
        return
    rng = Random(f"restarts {world.seed}")
    limit_s = settings.seal.segment_ms / 1000 + _LATE_S
    if seals_by_age(world.seed):
        await _lost_is_given_up(world)
        for node in world.nodes:
            node.wall.change(rng)
        ends = await _produce(world)
        leaders = dict(world.ledger.leaders)
        await asyncio.sleep(limit_s)
        stayed = {tp: end for tp, end in ends.items() if world.ledger.leaders[tp] == leaders[tp]}
        _expect_sealed(world, stayed, "whatever the clocks say")
    for node in world.nodes:
        node.wall.run()
    ends = await _produce(world)
    if world.many:
        return  # leaders go to and fro: none may have led for long enough to seal
    (node,) = world.nodes
    end_s = world.loop.now_s + limit_s
    for _ in range(_LIVES):
        await _restart(node, rng)
        await _produce(world)
        await asyncio.sleep(rng.uniform(*_LIFE_S))
        _expect_bounded(world)
        if seals_by_age(world.seed) and world.loop.now_s >= end_s:
            _expect_sealed(world, ends, "however often leaders change")
            return


async def _lost_is_given_up(world: "World") -> None:
    """Wait until nothing waits for what was asked up to now, in whichever fault."""
    asked = {request for node in world.nodes for request in node.process.waits_for}
    async with asyncio.timeout(_GIVEN_UP_S):
        while any(asked & node.process.waits_for for node in world.nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _restart(node: "Node", rng: Random) -> None:
    process = node.process
    node.stays_away_s = (0.01, 0.2)
    if rng.random() < 0.5:
        node.kill("restart")
    else:
        node.world.note("restart")
        process.stop()
    async with asyncio.timeout(_READY_S):
        while node.process is process or not node.process.serving:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _produce(world: "World") -> dict[TopicPartition, int]:
    """A record to each partition; returns where what is committed ends."""
    # What is being deleted goes when its request acts, which may be late.
    found = (await read_topics(world)).values()
    topics = [topic for topic in found if topic.topic_id not in world.admin.dying]
    probes = [
        world.produce_one(topic.name, partition)
        for topic in topics
        for partition in range(topic.partitions)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*probes)
    there = {topic.topic_id for topic in topics} - world.admin.dying
    return {tp: end for tp, end in world.ledger.ends.items() if tp.topic_id in there}


def _expect_sealed(world: "World", ends: dict[TopicPartition, int], why: str) -> None:
    for tp, end in ends.items():
        state = world.ledger.states.get(tp)
        sealed = 0 if state is None else state.sealed_end
        world.expect(sealed >= end, f"{tp} is sealed up to {sealed}, not to {end}, {why}")


def _expect_bounded(world: "World") -> None:
    if seals_by_age(world.seed):
        return
    for tp, state in world.ledger.states.items():
        many = len(state.sessions)
        world.expect(many <= _SESSIONS + _FINISHED, f"{many} sessions are in the key of {tp}")
