"""What brokers and groups are given while agents run wins in Kafka's order, and harms no record."""

import pytest

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS, BrokerSettings
from driftlog_agents.configs.definitions import (
    ConfigSource,
    ConfigValue,
    Inherited,
    InvalidConfigError,
    resolve,
)
from driftlog_agents.configs.dynamic_configs import (
    DYNAMIC,
    NO_CONFIGS,
    DynamicConfigs,
    check_broker,
    check_group,
    check_memory,
    combined,
    group_settings,
    loaded,
)
from driftlog_agents.configs.group_settings import ConsumerSettings, GroupSettings
from driftlog_agents.configs.start_configs import with_configs
from driftlog_agents.configs.topic import TOPIC_CONFIGS, topic_limits, topic_retention
from driftlog_tiering.compaction.topic_policy import BROKER_NAMES

OF_BROKER, OF_ALL = ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER
AT_START, DEFAULT = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT


def test_a_job_follows_dynamic_configs_by_the_names_that_topics_have_for_them() -> None:
    """
    Else a job would drop what the cluster's defaults keep.
    """
    inherited = {name: c.broker_name for name, c in TOPIC_CONFIGS.items()}
    assert BROKER_NAMES == {name: inherited[name] for name in BROKER_NAMES}
    followed = BROKER_NAMES.values()
    assert DYNAMIC >= set(followed)
    left_out = {name for name, theirs in inherited.items() if theirs in DYNAMIC - set(followed)}
    words = "compact", "clean", "segment"
    assert not {name for name in left_out if any(word in name for word in words)}


def test_each_dynamic_config_is_one_of_the_start() -> None:
    """
    So its definition checks it, and the agent has a setting for it.
    """
    assert DYNAMIC <= STARTUP_CONFIGS.keys()
    for name in DYNAMIC:
        default = STARTUP_CONFIGS[name].default
        if default:
            check_broker({name: default})


def test_the_broker_wins_before_all_brokers_before_the_start() -> None:
    """
    And a topic names all four in this order, as Kafka does.
    """
    at_start = with_configs(BrokerSettings(), ["message.max.bytes=3", "log.retention.ms=30"])
    dynamic = DynamicConfigs(
        {"message.max.bytes": "1"}, {"message.max.bytes": "2", "log.retention.ms": "20"}
    )
    now = combined(at_start, dynamic)
    inherited = Inherited(now.topic_defaults, dynamic.layers, at_start.topic_defaults)
    found = {c.definition.name: c for c in resolve(TOPIC_CONFIGS, {}, inherited)}

    assert (1, 20) == (now.message_max_bytes, now.log_retention_ms)
    assert at_start.given == now.given
    name = "message.max.bytes"
    assert (
        (name, "1", OF_BROKER),
        (name, "2", OF_ALL),
        (name, "3", AT_START),
        (name, "1048588", DEFAULT),
    ) == found["max.message.bytes"].synonyms
    assert ("1", OF_BROKER) == (
        found["max.message.bytes"].value,
        found["max.message.bytes"].source,
    )
    assert ("20", OF_ALL) == (found["retention.ms"].value, found["retention.ms"].source)


@pytest.mark.parametrize(
    ("config", "broker", "default"),
    [("retention.ms", "retention", "168"), ("segment.ms", "roll", "1")],
)
def test_milliseconds_of_all_brokers_go_before_the_hours_of_a_start(
    config: str, broker: str, default: str
) -> None:
    """
    Wherever they stand, and the topic names both; deleted, the hours hold again, without a name.
    """
    ms, hours = f"log.{broker}.ms", f"log.{broker}.hours"
    at_start = with_configs(BrokerSettings(), [f"{hours}=2"])

    def described(of_all: dict[str, str]) -> ConfigValue:
        dynamic = DynamicConfigs({}, of_all)
        now = combined(at_start, dynamic).topic_defaults
        inherited = Inherited(now, dynamic.layers, at_start.topic_defaults)
        return {c.definition.name: c for c in resolve(TOPIC_CONFIGS, {}, inherited)}[config]

    found, left = described({ms: "5"}), described({})

    assert ("5", OF_ALL) == (found.value, found.source)
    assert ((ms, "5", OF_ALL), (hours, "2", AT_START), (hours, default, DEFAULT)) == found.synonyms
    assert ("7200000", DEFAULT, ()) == (left.value, left.source, left.synonyms)


@pytest.mark.parametrize(
    ("stored", "holds", "keeps_all"),
    [
        ({"log.retention.ms": "soon", "message.max.bytes": "5"}, {"message.max.bytes": "5"}, True),
        ({"message.max.bytes": "-5"}, {}, False),
        ({"num.partitions": "4"}, {}, False),  # of a newer release, or put there by hand
        ({"log.cleanup.policy": "shred"}, {}, True),
        ({"message.max.bytes": "99999999"}, {}, False),  # over the agent's own limit
        (
            {"message.max.bytes": "99999999", "max.connections": "5"},
            {"max.connections": "5"},
            False,
        ),
        (
            {
                "log.cleaner.max.compaction.lag.ms": "5",
                "log.cleaner.min.compaction.lag.ms": "1",
                "message.max.bytes": "99999999",
            },
            {"log.cleaner.max.compaction.lag.ms": "5", "log.cleaner.min.compaction.lag.ms": "1"},
            False,
        ),
    ],
)
def test_what_is_stored_and_invalid_is_ignored_and_deletes_nothing(
    stored: dict[str, str], holds: dict[str, str], keeps_all: bool
) -> None:
    """
    The other configs hold; a retention that is not known is no retention.
    """
    at_start = with_configs(
        BrokerSettings(),
        [
            "log.retention.ms=9",
            "log.retention.bytes=9",
            "log.cleaner.min.compaction.lag.ms=7",
            "log.cleaner.max.compaction.lag.ms=9",
        ],
    )
    found = loaded(at_start, DynamicConfigs({}, stored))

    assert found.faults
    assert holds == {n: v for n, v in found.dynamic.of_all.items() if n in stored}
    kept = (found.settings.log_retention_ms, found.settings.log_retention_bytes)
    assert ((-1, -1) if keeps_all else (9, 9)) == kept


@pytest.mark.parametrize(
    ("of_broker", "of_all", "unreadable", "policy"),
    [
        ({"log.retention.ms": "soon"}, {"log.cleanup.policy": "compact"}, False, "compact"),
        ({"log.cleanup.policy": "compact"}, {"log.cleanup.policy": "shred"}, False, "compact"),
        ({"log.cleanup.policy": "shred"}, {"log.cleanup.policy": "compact"}, False, "delete"),
        ({}, {"log.cleanup.policy": "compact"}, True, "delete"),
    ],
)
def test_a_policy_that_is_known_holds_beside_a_retention_that_is_not(
    of_broker: dict[str, str], of_all: dict[str, str], unreadable: bool, policy: str
) -> None:
    """
    A compacted topic goes on to refuse records without a key, which compaction would remove.
    """
    found = loaded(BrokerSettings(), DynamicConfigs(of_broker, of_all), unreadable=unreadable)

    defaults = found.settings.topic_defaults
    assert policy == defaults.get("log.cleanup.policy", "delete")
    limits = topic_limits({}, defaults)
    assert ("compact" in policy) is limits.compacted
    assert (policy != "compact") is limits.deletes_records
    assert topic_retention({}, defaults).ms is None


def test_brokers_may_have_no_policy() -> None:
    """
    As Kafka's: topics that inherit it keep all records.
    """
    check_broker({"log.cleanup.policy": ""})
    found = loaded(BrokerSettings(), DynamicConfigs({}, {"log.cleanup.policy": ""}))

    assert () == found.faults
    limits = topic_limits({}, found.settings.topic_defaults)
    assert not limits.compacted
    assert topic_retention({}, found.settings.topic_defaults).ms is None


def test_configs_that_cannot_be_read_delete_nothing() -> None:
    """
    Also where none of them can be read.
    """
    found = loaded(
        with_configs(BrokerSettings(), ["log.retention.ms=9"]), NO_CONFIGS, unreadable=True
    )

    assert -1 == found.settings.log_retention_ms
    assert loaded(BrokerSettings(), NO_CONFIGS).settings == BrokerSettings()


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"consumer.nope": "1"}, "Unknown group config name: consumer.nope"),
        ({"consumer.session.timeout.ms": "x"}, "Not a number of type INT"),
        (
            {"consumer.session.timeout.ms": "44999"},
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"consumer.session.timeout.ms": "60001"},
            "consumer.session.timeout.ms must be less than or equal to "
            "group.consumer.max.session.timeout.ms",
        ),
        (
            {"consumer.heartbeat.interval.ms": "15001"},
            "consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"consumer.assignment.interval.ms": "15001"},
            "consumer.assignment.interval.ms must be less than or equal to "
            "group.consumer.max.assignment.interval.ms",
        ),
    ],
)
def test_a_group_stays_within_the_bounds_of_brokers(configs: dict[str, str], said: str) -> None:
    """
    The texts are those of Kafka's GroupConfig.
    """
    with pytest.raises(InvalidConfigError, match=said):
        check_group(configs, GroupSettings())


def test_a_session_lasts_longer_than_a_heartbeat() -> None:
    """
    Else each member would be fenced between two heartbeats.
    """
    groups = GroupSettings(
        consumer=ConsumerSettings(session_timeout_ms=8_000, heartbeat_interval_ms=5_000)
    )

    with pytest.raises(InvalidConfigError, match="must be greater than consumer"):
        check_group({"consumer.heartbeat.interval.ms": "8000"}, groups)


def test_a_group_has_what_is_set_on_it_and_else_what_agents_have() -> None:
    """
    Configs that another release has stored, and this one does not accept, are ignored and told.
    """
    told: list[str] = []
    groups = GroupSettings()
    set_ = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    found = group_settings(groups, set_, told.append)
    ignored = group_settings(groups, {**set_, "consumer.nope": "1"}, told.append)

    assert (50_000, 6_000) == (found.session_timeout_ms, found.heartbeat_interval_ms)
    assert groups.consumer.assignment_interval_ms == found.assignment_interval_ms
    assert groups.consumer == ignored
    assert ["Unknown group config name: consumer.nope"] == told


def test_compaction_gets_no_more_memory_than_the_agent_had_at_its_start() -> None:
    """
    A client can alter it: 8 GiB were taken, where 128 MiB are the default.  A larger one that is
    stored is ignored, and told; what else is stored holds.
    """
    name, other = "log.cleaner.dedupe.buffer.size", {"log.retention.ms": "5"}
    at_start = with_configs(BrokerSettings(), [f"{name}=4000000"])
    less, same, more = ({name: size} for size in ("3000000", "4000000", "4000001"))

    assert 3_000_000 == combined(at_start, DynamicConfigs(less, {})).log_cleaner_dedupe_buffer_size
    assert 4_000_000 == combined(at_start, DynamicConfigs({}, same)).log_cleaner_dedupe_buffer_size
    for each in less, same, other:
        check_memory(at_start, each)
    with pytest.raises(InvalidConfigError, match=f"start it with --config {name}=4000001"):
        check_memory(at_start, more)

    found = loaded(at_start, DynamicConfigs({}, more | other))
    assert DynamicConfigs({}, other) == found.dynamic
    assert (4_000_000, 5) == (
        found.settings.log_cleaner_dedupe_buffer_size,
        found.settings.log_retention_ms,
    )
    (fault,) = found.faults
    assert f"{name} 4000001 is more than 4000000" in fault
