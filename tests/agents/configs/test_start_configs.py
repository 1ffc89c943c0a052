"""What `--config` sets is what the agent does, and what DescribeConfigs will say."""

from dataclasses import fields

import pytest

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS, BrokerSettings
from driftlog_agents.configs.definitions import InvalidConfigError, values_of
from driftlog_agents.configs.limits import DEFINITIONS
from driftlog_agents.configs.start_configs import with_configs


def test_each_config_has_the_place_that_it_names() -> None:
    """
    Set to something else than its default, it shows under its own name, and no other changes.
    """
    other = {
        "auto.create.topics.enable": "false",
        "driftlog.segment.merge.enable": "false",
        "driftlog.traces.enable": "true",
        "log.cleaner.enable": "false",
        "log.cleaner.dedupe.buffer.size": "12345678",
        "group.consumer.assignors": "range",
        "max.connections.per.ip.overrides": "10.0.0.7:5000",
        "group.consumer.migration.policy": "upgrade",
        "compression.gzip.level": "1",
        "compression.lz4.level": "1",
        "compression.type": "lz4",
        "compression.zstd.level": "1",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.cleanup.policy": "compact",
        "log.message.timestamp.type": "LogAppendTime",
        "log.segment.bytes": "12345678",
    }
    bounds = {
        f"group.consumer.{end}.{what}.ms"
        for end in ("min", "max")
        for what in ("heartbeat.interval", "session.timeout")
    }
    before = BrokerSettings()
    for name in STARTUP_CONFIGS:
        after = with_configs(before, [f"{name}={other.get(name, '12345')}"])
        changed = {
            f.name
            for f in fields(BrokerSettings)
            if f.name != "given" and getattr(before, f.name) != getattr(after, f.name)
        }
        assert {name} == after.given
        shown = {
            key
            for key, value in after.groups.configs.items()
            if before.groups.configs[key] != value
        }

        if name in DEFINITIONS:
            assert changed == {"limits"}
            assert [name] == [
                key
                for key, value in values_of(after.limits).items()
                if values_of(before.limits)[key] != value
            ]
            continue
        assert changed == (
            {"groups"} if "group" in name or "offset" in name else {name.replace(".", "_")}
        )
        assert shown - bounds == ({name} if changed == {"groups"} else set())


def test_a_size_of_groups_holds_for_those_that_change_their_protocol() -> None:
    """
    group.max.size is also what a group of KIP-848 may have to become a classic one.
    """
    groups = with_configs(BrokerSettings(), ["group.max.size=7"]).groups

    assert (7, 7) == (groups.classic.max_size, groups.consumer.classic_max_size)


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["offsets.retention.minute=5"], "offsets.retention.minutes"),
        (["num.partitions"], "is not NAME=VALUE"),
        (["num.partitions=0"], "at least 1"),
        (["num.partitions=3", "num.partitions=4"], "given twice, as '3' and as '4'"),
        (["num.partitions=3", "num.partitions = 3"], "given twice"),
        (["num.partitions=many"], "Not a number of type INT"),
        (["group.consumer.assignors="], "at least one value"),
        (["group.consumer.assignors=sticky"], "uniform, range"),
        (["group.min.session.timeout.ms=5000000"], "more than group.max.session.timeout.ms"),
        (["group.consumer.heartbeat.interval.ms=45000"], "must be less than"),
        (
            ["log.cleaner.min.compaction.lag.ms=9", "log.cleaner.max.compaction.lag.ms=8"],
            "9 is more than log.cleaner.max.compaction.lag.ms 8",
        ),
    ],
)
def test_what_is_none_is_refused_with_what_may_be(assignments: list[str], said: str) -> None:
    """
    Nobody guesses why an agent does not do what it was told.
    """
    with pytest.raises(InvalidConfigError, match=said):
        with_configs(BrokerSettings(), assignments)


def test_batches_are_no_larger_than_the_agent_allows() -> None:
    """
    `message.max.bytes` is what topics have that say nothing.
    """
    with pytest.raises(InvalidConfigError, match=r"more than driftlog.max.message.bytes 16777216"):
        with_configs(BrokerSettings(), ["message.max.bytes=16777217"])
    more = ["message.max.bytes=16777217", "driftlog.max.message.bytes=16777217"]
    assert 16_777_217 == with_configs(BrokerSettings(), more).message_max_bytes
