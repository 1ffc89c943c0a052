"""Configs of brokers and groups are altered while agents run: on all of them, and for good."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.api import alter_configs, list_config_resources
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import alter_configs as ac
from driftlog_agents.protocol.messages import list_config_resources as lr
from driftlog_metadata.schema.codec import decode_cluster, encode_cluster, encode_configs
from driftlog_metadata.schema.keys import CLUSTER_KEY, CONFIGS_PREFIX, configs_key
from driftlog_metadata.schema.model import ConfigsOwner
from driftlog_metadata.stores.errors import OutcomeUnknownError
from driftlog_metadata.stores.store import MetadataStore, Put
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.config_requests import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    ask,
    configs_of,
)
from tests.agents.handlers.test_consumer_groups_api import beat, join, make
from tests.agents.network.serving import Serving, eventually, one_in_a_slice
from tests.support.engine import NODE_ID, RunningAgent

ME = str(NODE_ID)
ALL = ""


async def set_on(agent: RunningAgent, name: str, **configs: str) -> None:
    """Set configs of a broker, or of all."""
    done = await alter(
        agent,
        *((key.replace("_", "."), SET, value) for key, value in configs.items()),
        resource_type=BROKER,
        name=name,
    )
    assert (0, None) == done


def holds(agent: RunningAgent, of_all: dict[str, str]) -> bool:
    """Whether these are the configs of all brokers."""
    return agent.broker.dynamic.of_all == of_all


def retention_ms(agent: RunningAgent, topic: str = "t") -> int | None:
    return agent.broker.topics.retention[topic].ms


async def synonyms(agent: RunningAgent, kind: int, name: str, config: str) -> list[tuple[Any, ...]]:
    found = (await configs_of(agent, kind, name))[config]
    assert (found.value, found.config_source) == (found.synonyms[0].value, found.synonyms[0].source)
    return [(s.name, s.value, s.source) for s in found.synonyms]


# ── Brokers ──


async def test_what_topics_inherit_is_computed_once_for_a_change_of_the_settings(
    tmp_path: Path,
) -> None:
    """
    Each resource of an IncrementalAlterConfigs had all settings of the agent read again: one
    request of 19,900 groups kept it busy for 25 s.
    """
    async with RunningAgent(tmp_path) as agent:
        topics = agent.broker.topics
        before = topics.agent_configs
        assert before is topics.agent_configs
        await set_on(agent, ALL, log_retention_ms="20")
        after = topics.agent_configs
    assert ({}, {"log.retention.ms": "20"}) == (before, after)


async def test_a_change_is_answered_when_every_topic_has_taken_it(tmp_path: Path) -> None:
    """
    Whoever has the answer may rely on it, however short the loop's slices are.
    """
    async with RunningAgent(tmp_path) as agent:
        topics = [f"t{i}" for i in range(20)]
        await create(agent, *(new(t, segment_ms=str(10_000 + i)) for i, t in enumerate(topics)))
        one_in_a_slice()
        await set_on(agent, ALL, log_retention_ms="20")
        kept = {retention_ms(agent, topic) for topic in topics}
    assert {20} == kept


async def test_a_change_holds_at_once_and_after_a_restart_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    """
    Of the broker before all brokers before its start before the default, as topics inherit them.
    """
    settings = BrokerSettings(log_retention_ms=30, given=frozenset({"log.retention.ms"}))
    async with RunningAgent(tmp_path, settings=settings) as agent:
        await create(agent, new("t"), new("own", retention_ms="10"))
        seen = [retention_ms(agent)]
        await set_on(agent, ALL, log_retention_ms="20")
        seen.append(retention_ms(agent))
        await set_on(agent, ME, log_retention_ms="25", message_max_bytes="1000")
        seen.append(retention_ms(agent))
    assert [30, 20, 25] == seen

    async with RunningAgent(tmp_path, settings=settings) as agent:
        assert 25 == retention_ms(agent)
        assert 10 == retention_ms(agent, "own")
        assert 1000 == agent.broker.topics.limits["t"].max_message_bytes
        name = "log.retention.ms"
        hours = ("log.retention.hours", "168", 5)
        four = [(name, "25", 2), (name, "20", 3), (name, "30", 4), hours]
        assert four == await synonyms(agent, BROKER, ME, name)
        assert four == await synonyms(agent, TOPIC, "t", "retention.ms")
        assert [hours] == await synonyms(agent, BROKER, ME, "log.retention.hours")
        assert [(name, "20", 3)] == await synonyms(agent, BROKER, ALL, name)
        assert [name] == list(await configs_of(agent, BROKER, ALL))

        await alter(agent, (name, DELETE, None), resource_type=BROKER, name=ME)
        seen = [retention_ms(agent)]
        await alter(agent, (name, DELETE, None), resource_type=BROKER, name=ALL)
        seen.append(retention_ms(agent))
        assert [20, 30] == seen
        assert [(name, "30", 4), hours] == await synonyms(agent, BROKER, ME, name)
        left = await agent.metadata_store.get(configs_key(ConfigsOwner()))
        assert left is None


async def test_the_log_takes_a_change_at_once_and_in_the_next_session(tmp_path: Path) -> None:
    """
    Of the cleaner and of producers; deleted, what the agent was started with holds.
    """

    def of_log(agent: RunningAgent) -> list[float]:
        log = agent.engine.settings
        backoffs = log.compaction.backoff_ms, log.merging.interval_ms
        return [*backoffs, log.compaction.cleaner.map_bytes, log.producers.expiration_ms]

    async with RunningAgent(tmp_path) as agent:
        before = of_log(agent)
        await create(agent, new("t"))
        changes = {
            "log.cleaner.backoff.ms": "1",
            "log.cleaner.dedupe.buffer.size": "2000000",
            "log.roll.ms": "3",
            "producer.id.expiration.ms": "4",
        }
        set_all = [(name, SET, value) for name, value in changes.items()]
        assert (0, None) == await alter(agent, *set_all, resource_type=BROKER, name=ALL)
        now = of_log(agent), agent.broker.topics.sealing["t"].segment_ms
        await agent.lose_session()
        again = of_log(agent)
        delete = [(name, DELETE, None) for name in changes]
        assert (0, None) == await alter(agent, *delete, resource_type=BROKER, name=ALL)

        assert ([1, 1, 2_000_000, 4], 3) == now
        assert [1, 1, 2_000_000, 4] == again
        assert before == of_log(agent)


async def test_memory_that_another_agent_gave_compaction_refuses_no_other_change(
    tmp_path: Path,
) -> None:
    """
    An agent that was started with more took it; this one ignores it, and takes what else is asked.
    """
    name = "log.cleaner.dedupe.buffer.size"
    stored = encode_configs({name: str(1 << 30)})
    async with RunningAgent(tmp_path) as agent:
        await agent.metadata_store.txn((), [Put(configs_key(ConfigsOwner()), stored)])
        await eventually(lambda: name in agent.broker.view.configs.get(ConfigsOwner(), {}))
        await set_on(agent, ALL, log_retention_ms="20")
        refused = await alter(agent, (name, SET, str(1 << 29)), resource_type=BROKER, name=ALL)
        await set_on(agent, ALL, **{name.replace(".", "_"): "2000000"})

        assert 42 == refused[0]
        assert holds(agent, {name: "2000000", "log.retention.ms": "20"})


async def test_a_change_is_seen_on_the_other_agents(tmp_path: Path) -> None:
    """
    That of all brokers; that of one broker only there, and only it may be asked for it.
    """
    async with two_agents(tmp_path) as (one, other):
        await create(one, new("t"))
        await eventually(lambda: "t" in other.broker.topics.by_name)
        await set_on(one, ALL, log_retention_ms="20")
        await eventually(lambda: retention_ms(other) == 20)
        await set_on(other, str(other.broker.node_id), log_retention_ms="5")
        await eventually(lambda: retention_ms(other) == 5)

        assert 20 == retention_ms(one)
        its = str(other.broker.node_id)
        refused = await alter(one, ("log.retention.ms", SET, "7"), resource_type=BROKER, name=its)
        expected = f"Unexpected broker id, expected {one.broker.node_id}, but received {its}"
        assert (42, expected) == refused


async def test_changes_at_two_agents_at_once_are_both_made(tmp_path: Path) -> None:
    """
    The second put finds another revision, and is repeated on what is there.
    """
    async with two_agents(tmp_path) as (one, other):
        for n in range(1, 6):
            both = {"log.retention.ms": str(n), "log.retention.bytes": str(n)}
            await asyncio.gather(
                set_on(one, ALL, log_retention_ms=str(n)),
                set_on(other, ALL, log_retention_bytes=str(n)),
            )
            for agent in (one, other):
                await eventually(partial(holds, agent, both))


async def test_limits_of_connections_hold_for_the_next_connection(tmp_path: Path) -> None:
    """
    Those that are open stay open.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 1)
        await set_on(Asked(agent), ALL, max_connections_per_ip="1")
        reader, _ = await asyncio.open_connection("127.0.0.1", agent.ports[0])
        assert b"" == await asyncio.wait_for(reader.read(1), 20)
        assert 1 == agent.process.refusals.counts["max.connections.per.ip"]
        await client.create("u", 1)


@pytest.mark.parametrize(
    ("configs", "code", "message"),
    [
        ({"broker.id": "2"}, 42, "Cannot update these configs dynamically: [broker.id]"),
        (
            {"log.retention.ms": "x"},
            42,
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            {"log.cleanup.policy": "shred"},
            42,
            "Invalid value shred for configuration log.cleanup.policy: String must be one of: "
            "compact, delete",
        ),
        (
            {"message.max.bytes": "99999999"},
            42,
            "message.max.bytes 99999999 is more than driftlog.max.message.bytes 16777216",
        ),
    ],
)
@pytest.mark.parametrize("name", [ME, ALL])
async def test_what_cannot_be_is_refused_and_not_stored(
    tmp_path: Path, configs: dict[str, str], code: int, message: str, name: str
) -> None:
    """
    The whole request, also where another config of it is right.
    """
    async with RunningAgent(tmp_path) as agent:
        changes = [
            (key, SET, value) for key, value in {**configs, "log.retention.bytes": "5"}.items()
        ]
        refused = await alter(agent, *changes, resource_type=BROKER, name=name)
        checked = await alter(
            agent,
            ("log.retention.bytes", SET, "5"),
            resource_type=BROKER,
            name=name,
            validate_only=True,
        )

        assert (code, message) == refused
        assert (0, None) == checked
        assert {} == agent.broker.view.configs


async def test_lists_are_appended_to_and_the_old_api_replaces_all(tmp_path: Path) -> None:
    """
    As with the configs of topics.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        change = ("log.cleanup.policy", APPEND, "compact")
        assert (0, None) == await alter(agent, change, resource_type=BROKER, name=ALL)
        assert "t" in agent.broker.topics.compaction
        request = ac.AlterConfigsRequest(
            resources=[
                ac.AlterConfigsResource(
                    resource_type=BROKER,
                    resource_name=ALL,
                    configs=[ac.AlterableConfig(name="log.segment.bytes", value="2000000")],
                )
            ]
        )
        answer = await alter_configs.handle(agent.broker, request, agent.context(2))

        assert [0] == [r.error_code for r in answer.responses]
        assert {"log.segment.bytes": "2000000"} == agent.broker.dynamic.of_all
        assert 2_000_000 == agent.broker.topics.sealing["t"].segment_bytes
        assert "t" not in agent.broker.topics.compaction


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b'{"v":2,"configs":{}}',
        b'{"v":1,"configs":{"log.retention.ms":"soon"}}',
        b'{"v":1,"configs":{"log.retention.mss":"1","log.retention.ms":"soon"}}',
    ],
)
async def test_what_is_stored_and_no_config_deletes_no_record(tmp_path: Path, value: bytes) -> None:
    """
    Of a newer release, or damaged: it is told, and retention that is not known is none.
    """
    settings = BrokerSettings(log_retention_ms=5)
    async with RunningAgent(tmp_path, settings=settings) as agent:
        await create(agent, new("t"))
        assert 5 == retention_ms(agent)
        with capture_logs() as logs:
            await agent.metadata_store.txn((), [Put(configs_key(ConfigsOwner()), value)])
            await eventually(lambda: retention_ms(agent) is None)
        told = {line["event"] for line in logs if line["log_level"] == "error"}
        assert "broker_configs_ignored" in told
        repaired = await alter(
            agent,
            ("log.retention.mss", DELETE, None),
            ("log.retention.ms", SET, "7"),
            resource_type=BROKER,
            name=ALL,
        )
        content = json.loads(value)
        newer, damaged = content.get("v") == 2, not content
        assert (35 if newer else 42 if damaged else 0) == repaired[0]
        if not newer and not damaged:
            await eventually(lambda: retention_ms(agent) == 7)


async def test_a_value_that_no_longer_fits_is_seen_and_repaired(tmp_path: Path) -> None:
    """
    Though both layers have one: as after a start with a lower limit.
    """
    settings = BrokerSettings(limits=Limits(driftlog_max_message_bytes=2_000_000))
    stored = b'{"v":1,"configs":{"max.connections":"5","message.max.bytes":"3000000"}}'
    mine = b'{"v":1,"configs":{"message.max.bytes":"4000000","log.nope":"1"}}'
    name = "message.max.bytes"
    async with RunningAgent(tmp_path, settings=settings) as agent:
        await agent.metadata_store.txn(
            (),
            [
                Put(configs_key(ConfigsOwner()), stored),
                Put(configs_key(ConfigsOwner(node_id=NODE_ID)), mine),
            ],
        )
        await eventually(lambda: {"max.connections": "5"} == agent.broker.dynamic.of_all)
        described = await configs_of(agent, BROKER, ALL)
        assert {"max.connections": "5", name: "3000000"} == {
            c.name: c.value for c in described.values()
        }
        await set_on(agent, ALL, message_max_bytes="1000000")
        delete = (("log.nope", DELETE, None), (name, SET, "1500000"))
        assert (0, None) == await alter(agent, *delete, resource_type=BROKER, name=ME)
        await eventually(lambda: agent.broker.settings.message_max_bytes == 1_500_000)

        await agent.metadata_store.txn(
            (), [Put(configs_key(ConfigsOwner()), b'{"v":1,"configs":{"log.nope":"1"}}')]
        )
        await eventually(lambda: {} == agent.broker.dynamic.of_all)
        assert ["log.nope"] == list(await configs_of(agent, BROKER, ALL))


async def test_a_long_value_is_refused_though_it_means_little(tmp_path: Path) -> None:
    """
    Else any client fills the metadata store with spaces; a few are kept, as Kafka does.
    """
    padding, short = "\x1c " * 100_000, "Value must be no longer than 255 bytes"
    ratio, replicas = "log.cleaner.min.cleanable.ratio", "leader.replication.throttled.replicas"
    session = "consumer.session.timeout.ms"
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", retention_ms=" 6 "))
        assert {"retention.ms": " 6 "} == agent.broker.topics.by_name["t"].configs
        refused_topic = await create(agent, new("u", retention_ms=f"{padding}6"))
        assert 40 == refused_topic["u"].error_code
        request = ac.AlterConfigsRequest(
            resources=[
                ac.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[ac.AlterableConfig(name="retention.ms", value=f"{padding}7")],
                )
            ]
        )
        replaced = await alter_configs.handle(agent.broker, request, agent.context(2))
        assert [40] == [r.error_code for r in replaced.responses]
        for change, kind, name, said in (
            (("log.retention.ms", SET, f"{padding}5"), BROKER, ALL, short),
            (("log.retention.ms", SET, f"5{padding}"), BROKER, ME, short),
            (("log.cleanup.policy", APPEND, f"compact{padding}"), BROKER, ALL, short),
            ((ratio, SET, "0." + "0" * 254), BROKER, ALL, short),
            ((session, SET, f"{padding}50000"), GROUP, "g", short),
            (("retention.ms", SET, f"{padding}5"), TOPIC, "t", short),
            (("cleanup.policy", APPEND, f"compact{padding}"), TOPIC, "t", short),
            ((replicas, SET, ",".join(["1:1"] * 3_000)), TOPIC, "t", "longer than 8192 bytes"),
        ):
            refused = await alter(agent, change, resource_type=kind, name=name)
            assert refused[0] in (40, 42)
            assert said in (refused[1] or "")

        assert {} == agent.broker.view.configs
        assert {"retention.ms": " 6 "} == agent.broker.topics.by_name["t"].configs
        assert (0, None) == await alter(agent, (replicas, SET, ",".join(["1:1"] * 2_000)))


async def test_a_damaged_key_is_not_replaced_by_one_config(tmp_path: Path) -> None:
    """
    Its retention would be lost, and records with it; deleted, it has no configs, and the log says
    so.
    """
    settings = BrokerSettings(log_retention_ms=5)
    key = configs_key(ConfigsOwner())
    async with RunningAgent(tmp_path, settings=settings) as agent:
        await create(agent, new("t"))
        await agent.metadata_store.txn((), [Put(key, b'{"v":1,"confi')])
        await eventually(lambda: retention_ms(agent) is None)
        change = ("max.connections", SET, "5")
        refused = await alter(agent, change, resource_type=BROKER, name=ALL)

        assert 42 == refused[0]
        assert f"{key} is damaged" in (refused[1] or "")
        assert retention_ms(agent) is None

        with capture_logs() as logs:
            delete = ("max.connections", DELETE, None)
            assert (0, None) == await alter(agent, delete, resource_type=BROKER, name=ALL)
        assert ["damaged_configs_deleted"] == [
            line["event"] for line in logs if line["log_level"] == "warning"
        ]
        await eventually(lambda: retention_ms(agent) == 5)
        assert (0, None) == await alter(agent, change, resource_type=BROKER, name=ALL)


async def test_configs_of_brokers_wait_for_the_format_level(tmp_path: Path) -> None:
    """
    An agent of an older release would not follow them.
    """
    async with RunningAgent(tmp_path) as agent:
        witness = agent.broker.metadata.witness
        assert witness.cluster is not None
        witness.cluster = encode_cluster(replace(decode_cluster(witness.cluster), format_version=1))
        refused = await alter(agent, ("log.retention.ms", SET, "1"), resource_type=BROKER, name=ALL)

        assert 35 == refused[0]
        assert "driftlog cluster upgrade --finalize" in (refused[1] or "")
        assert await agent.metadata_store.get(CLUSTER_KEY) is not None


async def test_a_change_waits_for_a_session(tmp_path: Path) -> None:
    """
    Between two sessions it is refused with an error that clients retry; the next session makes it.
    """
    async with RunningAgent(tmp_path) as agent:
        await agent.lose_session()
        await set_on(agent, ALL, log_retention_ms="20")
        engine, agent.broker.engine = agent.broker.engine, None
        refused = await alter(agent, ("log.retention.ms", SET, "9"), resource_type=BROKER, name=ALL)
        agent.broker.engine = engine

        assert 41 == refused[0]
        assert {"log.retention.ms": "20"} == agent.broker.dynamic.of_all


class Deaf:
    """A metadata store that applies a change of configs and loses its answer; *events* set: the
    events of its watches arrive."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.loses = False
        self.events = asyncio.Event()
        self.events.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> Any:
        result = await self.store.txn(compares, then, otherwise)
        if self.loses and any(op.key.startswith(CONFIGS_PREFIX) for op in then):
            self.loses = False
            raise OutcomeUnknownError("the answer is lost")
        return result

    def watch(self, prefix: str, start_revision: int) -> Any:
        return LateEvents(self.store.watch(prefix, start_revision), self.events)


class LateEvents:
    """A watch whose events arrive while *events* is set."""

    def __init__(self, watch: Any, events: asyncio.Event) -> None:
        self.watch, self.events = watch, events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await anext(self.watch)
        await self.events.wait()
        return found

    async def aclose(self) -> None:
        await self.watch.aclose()


@pytest.mark.parametrize("operation", [SET, DELETE])
async def test_a_change_whose_answer_was_lost_is_read_back(tmp_path: Path, operation: int) -> None:
    """
    The answer waits for the watch as always: a client that reads its change back finds it.
    """
    name = "max.connections"
    stores: list[Deaf] = []

    def wrapped(store: MetadataStore) -> MetadataStore:
        stores.append(Deaf(store))
        return stores[-1]

    async with RunningAgent(tmp_path, metadata=wrapped) as agent:
        (store,) = stores
        await set_on(agent, ALL, max_connections="5")
        store.events.clear()
        store.loses = True
        value = "6" if operation == SET else None
        change = alter(agent, (name, operation, value), resource_type=BROKER, name=ALL)
        asked = asyncio.ensure_future(change)
        done, _ = await asyncio.wait((asked,), timeout=1)
        store.events.set()

        assert set() == done
        assert not store.loses
        assert (0, None) == await asked
        assert ({name: "6"} if operation == SET else {}) == agent.broker.dynamic.of_all


@pytest.mark.parametrize(
    ("config", "operation", "message"),
    [
        ("nope", APPEND, "Unknown config name: nope"),
        (
            "max.connections",
            APPEND,
            "Config value append is not allowed for config key: max.connections",
        ),
        (
            "max.connections",
            SUBTRACT,
            "Config value subtract is not allowed for config key: max.connections",
        ),
    ],
)
async def test_list_operations_of_brokers_are_for_lists(
    tmp_path: Path, config: str, operation: int, message: str
) -> None:
    """
    The code and the messages are those of ConfigAdminManager of Apache Kafka 4.3.1.
    """
    async with RunningAgent(tmp_path) as agent:
        refused = await alter(agent, (config, operation, "5"), resource_type=BROKER, name=ALL)

        assert (40, message) == refused


# ── Groups ──


async def test_configs_of_a_group_that_are_ignored_are_not_described(tmp_path: Path) -> None:
    """
    The group has what its agent has; a change names what is wrong.
    """
    name = "consumer.session.timeout.ms"
    owner = ConfigsOwner(group_id="g")
    stored = b'{"v":1,"configs":{"consumer.nope":"1","consumer.session.timeout.ms":"50000"}}'
    async with RunningAgent(tmp_path) as agent:
        await agent.metadata_store.txn((), [Put(configs_key(owner), stored)])
        await eventually(lambda: owner in agent.broker.view.configs)

        assert [(f"group.{name}", "45000", 5)] == await synonyms(agent, GROUP, "g", name)
        refused = await alter(agent, (name, SET, "51000"), resource_type=GROUP, name="g")
        assert (40, "Unknown group config name: consumer.nope") == refused
        repair = ("consumer.nope", DELETE, None)
        assert (0, None) == await alter(agent, repair, resource_type=GROUP, name="g")
        assert (name, "50000", 8) == (await synonyms(agent, GROUP, "g", name))[0]


async def test_a_group_takes_its_configs_with_the_next_heartbeat(tmp_path: Path) -> None:
    """
    Loaded or new, after a restart, and until they are deleted; other groups have the agent's.
    """
    name = "consumer.heartbeat.interval.ms"
    async with RunningAgent(tmp_path) as agent:
        await make(agent, t=1)
        joined = await join(agent, "m")
        assert 5_000 == joined.heartbeat_interval_ms
        done = await alter(agent, (name, SET, "6000"), resource_type=GROUP, name="g")
        assert (0, None) == done
        beaten = await beat(agent, "m", joined.member_epoch)
        other = await join(agent, "n", group_id="h")

        assert (6_000, 5_000) == (beaten.heartbeat_interval_ms, other.heartbeat_interval_ms)
        of_agent = (f"group.{name}", "5000", 5)
        assert [(name, "6000", 8), of_agent] == await synonyms(agent, GROUP, "g", name)
        assert [of_agent] == await synonyms(agent, GROUP, "h", name)
        assert ["g"] == await listed(agent)

    async with RunningAgent(tmp_path) as agent:
        beaten = await beat(agent, "m", joined.member_epoch)
        assert (0, 6_000) == (beaten.error_code, beaten.heartbeat_interval_ms)
        await alter(agent, (name, DELETE, None), resource_type=GROUP, name="g")
        beaten = await beat(agent, "m", joined.member_epoch)
        assert 5_000 == beaten.heartbeat_interval_ms
        assert [] == await listed(agent)


@pytest.mark.parametrize(
    ("group", "config", "value", "code", "message"),
    [
        (
            "",
            "consumer.session.timeout.ms",
            "50000",
            42,
            "Default group resources are not allowed.",
        ),
        ("g", "retention.ms", "5", 40, "Unknown group config name: retention.ms"),
        (
            "g",
            "consumer.session.timeout.ms",
            "5",
            40,
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
    ],
)
async def test_what_is_no_config_of_a_group_is_refused(
    tmp_path: Path, group: str, config: str, value: str, code: int, message: str
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1.
    """
    async with RunningAgent(tmp_path) as agent:
        refused = await alter(agent, (config, SET, value), resource_type=GROUP, name=group)

        assert (code, message) == refused
        assert {} == agent.broker.view.configs


async def test_a_group_with_a_long_id_gets_no_configs(tmp_path: Path) -> None:
    """
    As no such group may come into being; what it has can be deleted.
    """
    long, name = "é" * 513, "consumer.session.timeout.ms"
    change = partial(alter, resource_type=GROUP, name=long)
    async with RunningAgent(tmp_path) as agent:
        refused = await change(agent, (name, SET, "50000"))
        await agent.metadata_store.txn(
            (), [Put(configs_key(ConfigsOwner(group_id=long)), encode_configs({name: "50000"}))]
        )
        changed = await change(agent, (name, SET, "46000"))
        deleted = await change(agent, (name, DELETE, None))

    assert ErrorCode.INVALID_REQUEST == refused[0]
    assert "1024 bytes, and not 1026" in (refused[1] or "")
    assert [(0, None)] * 2 == [changed, deleted]


async def test_not_more_groups_have_configs_than_an_agent_may_have(tmp_path: Path) -> None:
    """
    They are keys of the metadata store, and in the memory of every agent.
    """
    settings = BrokerSettings(limits=Limits(driftlog_max_groups=2))
    change = ("consumer.heartbeat.interval.ms", SET, "6000")
    async with RunningAgent(tmp_path, settings=settings) as agent:
        codes = [
            (await alter(agent, change, resource_type=GROUP, name=group))[0]
            for group in ("a", "b", "c", "a")
        ]

        assert [0, 0, 44, 0] == codes
        assert 1 == agent.process.refusals.counts["driftlog.max.groups"]


async def listed(agent: RunningAgent) -> list[str]:
    """Groups in ListConfigResources."""
    request = lr.ListConfigResourcesRequest(resource_types=[GROUP])
    answer = await list_config_resources.handle(agent.broker, request, agent.context(1))
    return [resource.resource_name for resource in answer.config_resources]


# ── Two agents ──


class Asked(RunningAgent):
    """What handlers are asked with, of an agent of another kind."""

    def __init__(self, agent: Serving) -> None:
        self.process = agent.process


@asynccontextmanager
async def two_agents(path: Path) -> AsyncIterator[tuple[Asked, Asked]]:
    """On one metadata store and one bucket."""
    async with Serving(path / "a") as one, Serving(path / "b", beside=one) as other:
        yield Asked(one), Asked(other)


async def test_the_defaults_of_all_brokers_are_none_at_first(tmp_path: Path) -> None:
    """
    Tools describe them before anything is set.
    """
    async with RunningAgent(tmp_path) as agent:
        result = await ask(agent, BROKER, ALL)

        assert (0, []) == (result.error_code, result.configs)
