"""One client fills every agent's memory and etcd with topics and configs, or room cannot be made.

Requests go to handlers of a real agent.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.api import create_partitions
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from driftlog_agents.topics.budget import MAX_BYTES
from driftlog_metadata.schema.keys import CONFIGS_PREFIX, DELETED_PREFIX, TOPICS_PREFIX
from driftlog_metadata.stores.quota import Usage
from driftlog_metadata.stores.store import KeyValue
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.config_requests import (
    BROKER,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    alter,
    configs_of,
)
from tests.agents.network.serving import eventually
from tests.support.engine import NODE_ID, RunningAgent

NONE, REFUSED = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
REPLICAS, CONNECTIONS = "leader.replication.throttled.replicas", "max.connections.per.ip.overrides"
LONG, LONGER = [",".join(f"{n}:{n}" for n in range(count)) for count in (500, 900)]
"""Values of REPLICAS, of 3,900 and 7,100 bytes."""
OTHER = ",".join(reversed(LONG.split(",")))
"""Of as many bytes as LONG."""
SESSION = "consumer.session.timeout.ms"
MOST = 20_000
PREFIXES = TOPICS_PREFIX, DELETED_PREFIX, CONFIGS_PREFIX


def limited(most: int) -> BrokerSettings:
    return BrokerSettings(limits=Limits(driftlog_max_configs_bytes=most))


def filled(agent: RunningAgent, percent: int) -> None:
    """The metadata store uses so much of its quota."""
    usage = Usage(member="m", size_bytes=percent, quota_bytes=100, full=False, revision=1)
    agent.process.quota.told([usage])


async def made(agent: RunningAgent, *names: str, value: str = LONG) -> list[ErrorCode]:
    """CreateTopics, one request a topic, with a long config."""
    codes = []
    for name in names:
        topic = (await create(agent, new(name, 1, -1, **{REPLICAS: value})))[name]
        codes.append(ErrorCode(topic.error_code))
    return codes


async def deleted(agent: RunningAgent, *names: str) -> None:
    for name in names:
        await agent.broker.topics.delete(agent.broker.topics.by_name[name])


async def stored(agent: RunningAgent) -> list[KeyValue]:
    """Topics, tombstones and configs in the store."""
    return [kv for prefix in PREFIXES for kv in (await agent.metadata_store.get_prefix(prefix))[1]]


async def seen(agent: RunningAgent) -> int:
    """Bytes of topics, tombstones and configs in the store, which the agent's watch has seen."""
    there = sum(len(kv.key) + len(kv.value) for kv in await stored(agent))
    await eventually(lambda: agent.broker.view.stored_bytes == there)
    return there


async def code(agent: RunningAgent, value: str, kind: int = TOPIC, name: str = "t") -> int:
    """IncrementalAlterConfigs that sets one config."""
    configs = {TOPIC: REPLICAS, GROUP: SESSION, BROKER: CONNECTIONS}
    return (await alter(agent, (configs[kind], SET, value), resource_type=kind, name=name))[0]


async def extended(agent: RunningAgent, name: str, count: int) -> ErrorCode:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)
    response = await create_partitions.handle(agent.broker, request, agent.context(1))
    return ErrorCode(response.results[0].error_code)


async def test_topics_and_configs_have_a_limit_of_bytes(tmp_path: Path) -> None:
    """
    Configs of groups and brokers are among them, and so are the names of groups.  Beyond it
    nothing grows, what shrinks is accepted, and what is deleted makes room.
    """
    async with RunningAgent(tmp_path, settings=limited(MOST)) as agent:
        await asyncio.gather(*(made(agent, name) for name in ("t", "u")))
        addresses = ",".join(f"10.0.0.{n}:1000" for n in range(250))
        codes = [
            await code(agent, addresses, BROKER, str(NODE_ID)),
            await code(agent, "45000", GROUP, "ü" * 500),  # a key of 3,000 bytes
            await code(agent, "45000", GROUP, "ö" * 500),
            await code(agent, "45000", GROUP, "ü" * 500),
            await code(agent, "45000", GROUP, "ä" * 500),
            *await made(agent, "v"),
            await code(agent, LONGER),
            await code(agent, "1:1"),
            *await made(agent, "v"),
            *await made(agent, "w"),
        ]
        there, refused = await seen(agent), agent.process.refusals.counts[MAX_BYTES]
        shown = (await configs_of(agent, BROKER, str(NODE_ID)))[MAX_BYTES].value
        _, why = await alter(agent, (REPLICAS, SET, LONG))

    assert [NONE] * 4 + [REFUSED] * 3 + [NONE] * 2 + [REFUSED] == codes
    assert there <= MOST
    assert (4, str(MOST)) == (refused, shown)
    assert MAX_BYTES in (why or "")


async def test_deleted_topics_count_until_their_objects_are_deleted(tmp_path: Path) -> None:
    """
    Else topics that are created and deleted again and again fill the metadata store: the tombstone
    stays for hours.  It is small beside the topic, so that a deletion makes room.
    """
    async with RunningAgent(tmp_path, settings=limited(1_500)) as agent:
        codes: list[ErrorCode] = []
        for _ in range(12):
            codes += await made(agent, "t", value="1:1")
            if codes[-1] is not NONE:
                break
            await deleted(agent, "t")
            await seen(agent)

        assert await seen(agent) <= 1_500
    assert (REFUSED, True) == (codes[-1], len(codes) > 5)


async def test_topics_that_are_made_at_the_same_time_count(tmp_path: Path) -> None:
    """
    Each of a hundred requests would see the room of the others.
    """
    async with RunningAgent(tmp_path, settings=limited(MOST)) as agent:
        codes = await asyncio.gather(*(made(agent, f"t{n}") for n in range(8)))
        there = await seen(agent)

    assert [[NONE]] * 5 + [[REFUSED]] * 3 == sorted(codes)
    assert there <= MOST


async def test_nothing_grows_while_the_metadata_store_is_nearly_full(tmp_path: Path) -> None:
    """
    From 80 % of its quota on, where produce is refused, too.  What makes room goes on.
    """
    group, broker = (GROUP, "g"), (BROKER, str(NODE_ID))

    async def codes(agent: RunningAgent) -> Sequence[int]:
        return [
            *await made(agent, f"new{agent.process.refusals.counts[MAX_BYTES]}"),
            await extended(agent, "t", 3),
            await code(agent, LONGER),
            await code(agent, "45000", *group),
            await code(agent, "10.0.0.1:1000", *broker),
        ]

    async with RunningAgent(tmp_path) as agent:
        await made(agent, "t", "u")
        await code(agent, "45000", GROUP, "h")
        filled(agent, 80)
        nearly = await codes(agent)
        smaller = [
            await code(agent, "1:1"),
            (await alter(agent, (SESSION, DELETE, None), resource_type=GROUP, name="h"))[0],
        ]
        filled(agent, 85)
        await deleted(agent, "u")
        full = await codes(agent)
        left = sorted(agent.broker.topics.by_name), list(agent.broker.view.configs)
        filled(agent, 79)
        again = await codes(agent)

    assert [REFUSED] * 5 == nearly == full
    assert [NONE] * 2 == smaller
    assert (["t"], []) == left
    assert [NONE] * 5 == again


async def test_no_value_takes_the_place_of_another_while_the_store_is_nearly_full(
    tmp_path: Path,
) -> None:
    """
    The store keeps both until it compacts: one client that alters a config between two values of
    one length fills it.  A change that changes nothing writes nothing, and is accepted.
    """
    group, broker = (GROUP, "g" * 1_000), (BROKER, str(NODE_ID))
    async with RunningAgent(tmp_path) as agent:
        await made(agent, "t")
        await code(agent, "45000", *group)
        await code(agent, "10.0.0.1:1000", *broker)
        filled(agent, 80)
        before = await stored(agent)
        refused = [
            await code(agent, OTHER),
            await code(agent, "46000", *group),
            await code(agent, "10.0.0.2:1000", *broker),
        ]
        same = [
            await code(agent, LONG),
            await code(agent, "45000", *group),
            await code(agent, "10.0.0.1:1000", *broker),
        ]
        after = await stored(agent)
        smaller = [await code(agent, "1:1"), await code(agent, "10.0.0.1:1", *broker)]

    assert [REFUSED] * 3 == refused
    assert [NONE] * 3 == same
    assert before == after
    assert [NONE] * 2 == smaller


async def test_changes_that_arrive_together_do_not_grow_by_turns(tmp_path: Path) -> None:
    """
    Each is checked against what is there when it is made: the one that changes nothing when it
    arrives would undo the one that makes the config smaller.
    """
    async with RunningAgent(tmp_path) as agent:
        await made(agent, "t")
        filled(agent, 80)
        codes = await asyncio.gather(*(code(agent, v) for v in ("1:1", LONG) * 3))
        configs = agent.broker.topics.by_name["t"].configs

    assert {NONE, REFUSED} >= set(codes)
    assert {REPLICAS: "1:1"} == configs


async def test_every_change_counts_for_the_bytes_that_clients_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With the names of topics and groups; that a change waits while too much was written, is the
    claim of `groups/coordinator/test_write_batcher`.
    """
    group = "g" * 1_000
    async with RunningAgent(tmp_path) as agent:
        written: list[int] = []
        quota = agent.process.quota
        monkeypatch.setattr(quota, "wrote", lambda size_bytes, _: written.append(size_bytes))
        await made(agent, "t")
        await extended(agent, "t", 11)
        await code(agent, OTHER)
        await code(agent, "45000", GROUP, group)
        await code(agent, "10.0.0.1:1000", BROKER, str(NODE_ID))
        await code(agent, "10.0.0.1:1000", BROKER, str(NODE_ID))  # it changes nothing
        await alter(agent, (SESSION, DELETE, None), resource_type=GROUP, name=group)
        await deleted(agent, "t")

    least = [3_900 + 500, 3_900 + 10 * 500, 3_900, 1_000, 60, 1_000, 150]
    assert len(least) == len(written)
    assert all(low <= size <= low + 600 for low, size in zip(least, written, strict=True)), written
