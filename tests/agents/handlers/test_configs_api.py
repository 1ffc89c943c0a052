"""Configs of topics and brokers are described and altered as Kafka's tools expect."""

from dataclasses import replace
from pathlib import Path

import pytest

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.definitions import Inherited, InvalidConfigError, resolve
from driftlog_agents.configs.dynamic_configs import DYNAMIC
from driftlog_agents.configs.group_settings import ConsumerSettings, GroupSettings
from driftlog_agents.configs.topic import (
    TOPIC_CONFIGS,
    TopicLimits,
    topic_limits,
    topic_retention,
    validate,
)
from driftlog_agents.handlers.api import (
    alter_configs,
    delete_topics,
    incremental_alter_configs,
)
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_agents.protocol.messages import alter_configs as ac
from driftlog_agents.protocol.messages import incremental_alter_configs as iac
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from driftlog_tiering.batches.batch import Codec
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.config_requests import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    Operation,
    alter,
    ask,
    configs_of,
)
from tests.support.engine import NODE_ID, RunningAgent

WEEK_MS = 604_800_000


# ── Describing ──


async def test_every_topic_config_is_said_with_where_it_comes_from(tmp_path: Path) -> None:
    """
    What the topic sets is dynamic (1), what the agent sets static (4), all else a default (5);
    each has a type and a documentation.
    """
    settings = BrokerSettings(message_max_bytes=5_000_000)
    async with RunningAgent(tmp_path, settings=settings) as agent:
        await create(agent, new("t", cleanup_policy="compact"))
        found = await configs_of(agent, TOPIC, "t")

    assert list(TOPIC_CONFIGS) == list(found)
    assert ("compact", 1) == (found["cleanup.policy"].value, found["cleanup.policy"].config_source)
    assert [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)] == [
        (s.name, s.value, s.source) for s in found["cleanup.policy"].synonyms
    ]
    assert ("5000000", 4) == (
        found["max.message.bytes"].value,
        found["max.message.bytes"].config_source,
    )
    assert ("604800000", 5) == (found["retention.ms"].value, found["retention.ms"].config_source)
    assert not any(c.is_sensitive or c.read_only for c in found.values())
    assert all(c.config_type and c.documentation for c in found.values())


@pytest.mark.parametrize(
    "given, value, source, synonyms",
    [
        ({}, "604800000", 5, []),
        ({"log_retention_hours": 5}, "18000000", 5, []),
        ({"log_retention_hours": -7}, "-1", 5, []),
        ({"log_retention_hours": 5, "log_retention_minutes": 9}, "540000", 5, []),
        (
            {"log_retention_minutes": 9, "log_retention_ms": 77},
            "77",
            4,
            [
                ("log.retention.ms", "77", 4),
                ("log.retention.minutes", "9", 4),
                ("log.retention.hours", "168", 5),
            ],
        ),
        (
            {"log_retention_ms": -1},
            "-1",
            4,
            [("log.retention.ms", "-1", 4), ("log.retention.hours", "168", 5)],
        ),
    ],
)
def test_the_agents_retention_is_the_default_of_topics(
    given: dict[str, int], value: str, source: int, synonyms: list[tuple[str, str, int]]
) -> None:
    """
    Milliseconds before minutes before hours; minutes and hours are named only behind milliseconds,
    as Kafka 4.3.1 does.
    """
    agent = BrokerSettings(**given).topic_defaults  # type: ignore[arg-type]
    resolved = resolve(TOPIC_CONFIGS, {}, Inherited(agent))
    found = {c.definition.name: c for c in resolved}["retention.ms"]

    assert (value, source, synonyms) == (found.value, found.source, list(found.synonyms))
    ms = topic_retention({}, agent).ms
    assert int(value) == (-1 if ms is None else ms)
    assert 5 == topic_retention({"retention.ms": "5"}, agent).ms


async def test_what_nobody_set_is_a_default(tmp_path: Path) -> None:
    """
    Tools show what is not a default beside a topic, and copy it to others.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        found = await configs_of(agent, TOPIC, "t")

    assert {5} == {config.config_source for config in found.values()}


async def test_a_broker_says_what_tools_look_for(tmp_path: Path) -> None:
    """
    User interfaces read these; secrets have no value; all are read-only.
    """
    async with RunningAgent(tmp_path) as agent:
        found = await configs_of(agent, BROKER, str(NODE_ID))
        default = await ask(agent, BROKER, "")

    for name in (
        "auto.create.topics.enable",
        "default.replication.factor",
        "delete.topic.enable",
        "inter.broker.protocol.version",
        "log.dirs",
        "log.retention.ms",
        "message.max.bytes",
        "min.insync.replicas",
        "num.partitions",
    ):
        assert name in found
    assert (str(NODE_ID), 4) == (found["node.id"].value, found["node.id"].config_source)
    assert found["ssl.key.password"].is_sensitive
    assert found["ssl.key.password"].value is None
    assert set(found) - DYNAMIC == {c.name for c in found.values() if c.read_only}
    assert (0, []) == (default.error_code, default.configs)


@pytest.mark.parametrize(
    "resource_type, name, code, message",
    [
        (TOPIC, "nope", 3, ""),
        (
            TOPIC,
            "b b",
            17,
            "Topic name is invalid: 'b b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (
            BROKER,
            "99",
            42,
            "Unexpected broker id, expected 7 or empty string, but received 99",
        ),
        (BROKER, "xx", 42, "Broker id must be an integer, but it is: xx"),
        (LOGGER, "99", 42, "Unexpected broker id, expected 7 but received 99"),
        (LOGGER, "", 42, "Broker id must not be empty"),
        (77, "x", 42, "Configs of resource type 77 are not kept here"),
    ],
)
async def test_what_cannot_be_described_is_an_error_and_not_empty(
    tmp_path: Path, resource_type: int, name: str, code: int, message: str
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1 (but for the last one's words).
    """
    async with RunningAgent(tmp_path) as agent:
        result = await ask(agent, resource_type, name)

    assert (code, message, []) == (result.error_code, result.error_message, result.configs)


@pytest.mark.parametrize(
    "keys, expected",
    [(["retention.ms", "nope"], ["retention.ms"]), ([], list(TOPIC_CONFIGS))],
)
async def test_only_what_is_asked_for_is_described(
    tmp_path: Path, keys: list[str], expected: list[str]
) -> None:
    """
    Names that are no configs are left out; an empty list asks for all (KAFKA-9675).
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        result = await ask(agent, TOPIC, "t", keys)

    assert expected == [c.name for c in result.configs]


async def test_a_broker_has_one_logger(tmp_path: Path) -> None:
    """
    Its level is said, and it is set when the agent is started.
    """
    settings = BrokerSettings(log_level="warning")
    async with RunningAgent(tmp_path, settings=settings) as agent:
        found = await configs_of(agent, LOGGER, str(NODE_ID))
        refused = await alter(
            agent, ("root", SET, "DEBUG"), resource_type=LOGGER, name=str(NODE_ID)
        )

    assert [("root", "WARN")] == [(name, config.value) for name, config in found.items()]
    assert (42, "Log levels are set when the agent is started") == refused


async def test_a_group_has_what_its_agent_has(tmp_path: Path) -> None:
    """
    Its configs are the agent's settings of groups, until it has configs of its own.
    """
    groups = GroupSettings(consumer=ConsumerSettings(session_timeout_ms=50_000))
    async with RunningAgent(tmp_path, settings=BrokerSettings(groups=groups)) as agent:
        found = await configs_of(agent, GROUP, "g")
        of_agent = await configs_of(agent, BROKER, str(NODE_ID))

    timeout = found["consumer.session.timeout.ms"]
    assert ("50000", 4, False) == (timeout.value, timeout.config_source, timeout.read_only)
    assert [("50000", 4), ("45000", 5)] == [(s.value, s.source) for s in timeout.synonyms]
    assert ("5000", 5) == (
        found["consumer.heartbeat.interval.ms"].value,
        found["consumer.heartbeat.interval.ms"].config_source,
    )
    assert "50000" == of_agent["group.consumer.session.timeout.ms"].value


# ── What values may be ──


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("cleanup.policy", "x", "Invalid value x for configuration {}: String must be one of: "
         "compact, delete"),
        ("retention.ms", "-2", "Invalid value -2 for configuration {}: Value must be at least -1"),
        ("retention.ms", "abc", "Invalid value abc for configuration {}: Not a number of type "
         "LONG"),
        ("retention.ms", "9" * 5_000, None),
        ("retention.ms", "٣", None),
        ("retention.ms", "5\u00a0", None),
        ("compression.type", "producer\u2003", None),
        ("cleanup.policy", "delete,", "Configuration '{}' values must not be empty."),
        ("nope", "1", "Unknown topic config name: nope"),
        ("message.format.version", "2.8", "Unknown topic config name: message.format.version"),
        ("preallocate", "maybe", "Invalid value maybe for configuration {}: Expected value to be "
         "either true or false"),
        ("min.cleanable.dirty.ratio", "2", "Invalid value 2.0 for configuration {}: Value must be "
         "no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", None),
        ("min.cleanable.dirty.ratio", "٠.٥", None),
        ("min.cleanable.dirty.ratio", "0.0_5", None),
        ("compression.type", "foo", "Invalid value foo for configuration {}: String must be one "
         "of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("segment.bytes", "14", "Invalid value 14 for configuration {}: Value must be at least "
         "1048576"),
        ("segment.bytes", "9999999999", "Invalid value 9999999999 for configuration {}: Not a "
         "number of type INT"),
        ("compression.gzip.level", "99", "Invalid value 99 for configuration {}: Value must be "
         "between 1 and 9 or equal to -1"),
        ("compression.lz4.level", "99", "Invalid value 99 for configuration {}: Value must be no "
         "more than 17"),
        ("index.interval.bytes", "1.5", "Invalid value 1.5 for configuration {}: Not a number of "
         "type INT"),
        ("leader.replication.throttled.replicas", "٣:1", None),
        ("leader.replication.throttled.replicas", "x", "Invalid value [x] for configuration {0}: "
         "{0} must be the literal '*' or a list of replicas in the following format: "
         "[partitionId]:[brokerId],[partitionId]:[brokerId],..."),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_kafkas_words(name: str, value: str, message: str | None) -> None:
    """
    Messages are those of Apache Kafka 4.3.1; None: only that it is refused is held.
    """
    with pytest.raises(InvalidConfigError) as refused:
        validate({name: value}, {})

    assert message is None or message.format(name) == str(refused.value)


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact,delete"},
        {"unclean.leader.election.enable": "TRUE"},
        {"file.delete.delay.ms": " 7 "},
        {"retention.bytes": "-5"},
        {"min.insync.replicas": "5"},
        {"leader.replication.throttled.replicas": "1:1,2:2"},
        {"follower.replication.throttled.replicas": "*"},
        {"follower.replication.throttled.replicas": "1:1,"},
        {"follower.replication.throttled.replicas": ","},
        {"compression.gzip.level": "-1"},
    ],
)
def test_what_kafka_takes_is_taken(configs: dict[str, str]) -> None:
    """
    As Apache Kafka 4.3.1 does.
    """
    validate(configs, {})


def test_defaults_may_be_set() -> None:
    """
    Tools read all configs and set them on another topic.
    """
    validate({name: c.default for name, c in TOPIC_CONFIGS.items() if c.default is not None}, {})


@pytest.mark.parametrize(
    ("configs", "agent"),
    [
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, {}),
        ({"min.compaction.lag.ms": "10"}, {"log.cleaner.max.compaction.lag.ms": "5"}),
        ({"max.compaction.lag.ms": "5"}, {"log.cleaner.min.compaction.lag.ms": "10"}),
    ],
)
def test_compaction_lags_that_contradict_each_other_are_refused(
    configs: dict[str, str], agent: dict[str, str]
) -> None:
    """
    In Kafka's words, also where the other one is the agent's: such a topic would be compacted
    before it may be.
    """
    with pytest.raises(InvalidConfigError) as refused:
        validate(configs, agent)

    message = "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    assert message == str(refused.value)


async def test_values_are_shown_formatted_and_stored_as_they_were_typed(tmp_path: Path) -> None:
    """
    The topic's own value and its synonym are formatted, and CreateTopics answers with what was
    typed: all as Kafka does.  What its agent has is shown as it was typed there.
    """
    async with RunningAgent(tmp_path) as agent:
        ratio = ("log.cleaner.min.cleanable.ratio", SET, " 1 ")
        assert (0, None) == await alter(agent, ratio, resource_type=BROKER, name="")
        made = (await create(agent, new("t", retention_ms=" +5 ")))["t"]
        topic = await configs_of(agent, TOPIC, "t")
        broker = (await configs_of(agent, BROKER, str(NODE_ID)))[ratio[0]]
        all_brokers = (await configs_of(agent, BROKER, ""))[ratio[0]]
        stored = dict(agent.broker.topics.by_name["t"].configs)

    assert " +5 " == next(c.value for c in made.configs or () if c.name == "retention.ms")
    assert {"retention.ms": " +5 "} == stored
    own = topic["retention.ms"]
    assert ("5", "5") == (own.value, own.synonyms[0].value)
    inherited = topic["min.cleanable.dirty.ratio"]
    assert ("1.0", " 1 ") == (inherited.value, inherited.synonyms[0].value)
    assert ("1.0", " 1 ") == (broker.value, broker.synonyms[0].value)
    assert " 1 " == all_brokers.value


async def test_a_lag_that_contradicts_the_agents_is_refused(tmp_path: Path) -> None:
    """
    Of a new topic and of one that is altered.
    """
    lag = ("log.cleaner.max.compaction.lag.ms", SET, "5")
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        assert (0, None) == await alter(agent, lag, resource_type=BROKER, name="")
        altered, _ = await alter(agent, ("min.compaction.lag.ms", SET, "6"))
        made = (await create(agent, new("u", min_compaction_lag_ms="6")))["u"]

    assert (40, 40) == (altered, made.error_code)


# ── Changing them ──


async def test_configs_are_set_deleted_appended_and_subtracted(tmp_path: Path) -> None:
    """
    Lists begin at their default; what is validated only changes nothing; a restart keeps it.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        steps: list[tuple[Operation, dict[str, str]]] = [
            (("retention.ms", SET, "100"), {"retention.ms": "100"}),
            (
                ("cleanup.policy", APPEND, "compact"),
                {"retention.ms": "100", "cleanup.policy": "delete,compact"},
            ),
            (("retention.ms", DELETE, None), {"cleanup.policy": "delete,compact"}),
            (("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": "compact"}),
            (("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        ]
        for operation, expected in steps:
            assert (0, None) == await alter(agent, operation)
            assert expected == dict(agent.broker.topics.by_name["t"].configs)
        assert (0, None) == await alter(agent, ("retention.ms", SET, "1"), validate_only=True)
    async with RunningAgent(tmp_path) as agent:
        kept = dict(agent.broker.topics.by_name["t"].configs)

    assert {"cleanup.policy": "compact"} == kept


@pytest.mark.parametrize(
    "operations, code, message",
    [
        (
            [("retention.ms", APPEND, "5")],
            40,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("retention.ms", SET, None), ("segment.ms", SET, None)],
            42,
            "Null value not supported for : retention.ms, segment.ms",
        ),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            42,
            "Error due to duplicate config keys",
        ),
        ([("nope", SET, "1")], 40, "Unknown topic config name: nope"),
        ([("nope", DELETE, None)], 0, None),
        ([], 0, None),
        (
            [("segment.ms", SET, "5"), ("retention.ms", SET, "-7")],
            40,
            "Invalid value -7 for configuration retention.ms: Value must be at least -1",
        ),
    ],
)
async def test_a_change_that_makes_no_sense_changes_nothing(
    tmp_path: Path, operations: list[Operation], code: int, message: str | None
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        answer = await alter(agent, *operations)
        after = dict(agent.broker.topics.by_name["t"].configs)

    assert (code, message) == answer
    assert {} == after


@pytest.mark.parametrize(
    "resource_type, name, code, message",
    [
        (TOPIC, "zzz", 3, "The topic 'zzz' does not exist."),
        (TOPIC, "", 42, "Default topic resources are not allowed."),
        (BROKER, "99", 42, "Unexpected broker id, expected 7, but received 99"),
        (BROKER, "-1", 42, "Unexpected broker id, expected 7, but received -1"),
        (BROKER, "2147483648", 42, "Node id must be an integer, but it is: 2147483648"),
        (BROKER, "xx", 42, "Node id must be an integer, but it is: xx"),
        (BROKER, "7", 42, "Cannot update these configs dynamically: [retention.ms]"),
        (LOGGER, "9", 42, "Unexpected node id. Expected 7, but received 9"),
        (77, "x", 42, "Unknown resource type 77"),
    ],
)
async def test_a_resource_that_is_not_there_cannot_be_changed(
    tmp_path: Path, resource_type: int, name: str, code: int, message: str
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1.
    """
    async with RunningAgent(tmp_path) as agent:
        answer = await alter(
            agent, ("retention.ms", SET, "1"), resource_type=resource_type, name=name
        )

    assert (code, message) == answer


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (("nope", SET, "1"), "Unknown topic config name: nope"),
        (
            ("retention.ms", SET, "-9"),
            "Invalid value -9 for configuration retention.ms: Value must be at least -1",
        ),
        (
            ("retention.ms", APPEND, "1"),
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
    ],
)
async def test_configs_are_checked_before_their_topic_is_looked_for(
    tmp_path: Path, operation: Operation, message: str
) -> None:
    """
    As in Kafka: who misspells a config and the topic learns of the config.
    """
    async with RunningAgent(tmp_path) as agent:
        answer = await alter(agent, operation, name="zz")

    assert (40, message) == answer


async def test_the_old_api_replaces_everything(tmp_path: Path) -> None:
    """
    What AlterConfigs does not name is not set any more.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", retention_ms="5"))
        request = ac.AlterConfigsRequest(
            resources=[
                ac.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[ac.AlterableConfig(name="segment.ms", value="60000")],
                )
            ]
        )
        response = await alter_configs.handle(agent.broker, request, agent.context(2))
        after = dict(agent.broker.topics.by_name["t"].configs)

    assert [(0, None)] == [(r.error_code, r.error_message) for r in response.responses]
    assert {"segment.ms": "60000"} == after


async def test_one_resource_twice_is_refused_both_times(tmp_path: Path) -> None:
    """
    In Kafka's words.
    """
    resource = iac.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="t",
        configs=[iac.AlterableConfig(name="retention.ms", config_operation=SET, value="1")],
    )
    request = iac.IncrementalAlterConfigsRequest(resources=[resource, resource])
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        response = await incremental_alter_configs.handle(agent.broker, request, agent.context(1))

    assert [(42, "Each resource must appear at most once.")] * 2 == [
        (r.error_code, r.error_message) for r in response.responses
    ]


async def test_batches_may_not_be_made_larger_than_the_agent_allows(tmp_path: Path) -> None:
    """
    By no topic that is made or altered; what a topic has stays, whatever else is altered.
    """
    name, most = "max.message.bytes", 16 << 20
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", max_message_bytes=str(most)))
        await create(agent, new("u", max_message_bytes=str(most + 1)))
        made = "u" in agent.broker.topics.by_name
        refused = await alter(agent, (name, SET, "2147483647"))
        less = replace(agent.broker.settings.limits, driftlog_max_message_bytes=1_000)
        agent.broker.settings = replace(agent.broker.settings, limits=less)
        other = await alter(agent, ("retention.ms", SET, "5"))
        counted = agent.broker.refusals.counts["driftlog.max.message.bytes"]
        configs = dict(agent.broker.topics.by_name["t"].configs)

    assert refused == (
        40,  # INVALID_CONFIG
        "Invalid value 2147483647 for configuration max.message.bytes: Value must be no more than "
        "16777216, which is driftlog.max.message.bytes of the agent",
    )
    assert (False, (0, None)) == (made, other)
    assert 2 == counted
    assert {name: str(most), "retention.ms": "5"} == configs


# ── What they do ──


async def test_a_change_holds_for_the_next_batch_and_the_next_segment(tmp_path: Path) -> None:
    """
    Limits that produce asks, and the sealer's, follow the topic's configs, and go with it.
    """
    settings = BrokerSettings(message_max_bytes=1_000, log_roll_hours=1)
    async with RunningAgent(tmp_path, settings=settings) as agent:
        topics = agent.broker.topics
        await create(agent, new("t"))
        before = topics.limits["t"], topics.sealing["t"]
        kept = [topics.retention["t"]]
        await alter(
            agent,
            ("max.message.bytes", SET, "2000"),
            ("compression.type", SET, "zstd"),
            ("message.timestamp.type", SET, "LogAppendTime"),
            ("cleanup.policy", SET, "compact"),
            ("segment.bytes", SET, "2000000"),
            ("segment.ms", SET, "5000"),
        )
        after = topics.limits["t"], topics.sealing["t"]
        kept.append(topics.retention["t"])
        for policy in ("delete", "compact,delete", ""):
            await alter(
                agent,
                ("cleanup.policy", SET, policy),
                ("retention.ms", SET, "1000"),
                ("retention.bytes", SET, "5"),
            )
            kept.append(topics.retention["t"])
        eager = topics.sealing["t"]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        await delete_topics.handle(agent.broker, request, agent.context(6))
        left = topics.limits.get("t"), topics.sealing.get("t"), topics.retention.get("t")

    assert (
        TopicLimits(max_message_bytes=1_000),
        TopicSealPolicy(segment_ms=3_600_000, longest_ms=WEEK_MS),
    ) == before
    assert (
        TopicLimits(
            max_message_bytes=2_000,
            codec=Codec.ZSTD,
            compression_level=3,
            log_append_time=True,
            compacted=True,
            deletes_records=False,
        ),
        TopicSealPolicy(segment_bytes=2_000_000, segment_ms=5_000),
    ) == after
    assert (None, None, None) == left
    nothing, both = TopicRetention(), TopicRetention(ms=1_000, size_bytes=5)
    assert [TopicRetention(ms=WEEK_MS), nothing, both, both, nothing] == kept
    assert eager.longest_ms is None


@pytest.mark.parametrize(
    "word, codec, level",
    [
        ("producer", None, None),
        ("uncompressed", Codec.NONE, None),
        ("gzip", Codec.GZIP, -1),
        ("snappy", Codec.SNAPPY, None),
        ("lz4", Codec.LZ4, 9),
        ("zstd", Codec.ZSTD, 3),
    ],
)
def test_every_codec_has_its_level(word: str, codec: Codec | None, level: int | None) -> None:
    """
    Levels are Kafka's defaults where the topic does not say.
    """
    limits = topic_limits({"compression.type": word}, {})

    assert (codec, level) == (limits.codec, limits.compression_level)


async def test_a_config_that_an_agent_takes_at_its_start_is_refused_with_the_option(
    tmp_path: Path,
) -> None:
    """
    Kafka's text comes first; the repair follows.
    """
    async with RunningAgent(tmp_path) as agent:
        answer = await alter(
            agent,
            ("num.partitions", SET, "3"),
            ("log.retention.ms", SET, "1000"),
            ("num.io.threads", SET, "4"),
            resource_type=BROKER,
            name=str(NODE_ID),
        )

    assert (
        42,
        "Cannot update these configs dynamically: [num.partitions, num.io.threads]. Agents take "
        "them at their start: --config num.partitions=3",
    ) == answer
