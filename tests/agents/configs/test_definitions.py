"""Values of configs are read, written and changed as Kafka's are."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.configs.definitions import (
    ConfigChange,
    ConfigDef,
    ConfigOperation,
    ConfigType,
    changed,
)
from driftlog_agents.configs.topic import TOPIC_CONFIGS

LIST = "leader.replication.throttled.replicas"
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT

LISTS = st.lists(st.sampled_from(["a", "b", "ab", "c", ""]), max_size=8).map(",".join)


def relisted(now: str, operation: ConfigOperation, value: str) -> str:
    """The value of a list after one operation."""
    return changed(TOPIC_CONFIGS, {LIST: now}, [ConfigChange(LIST, operation, value)], {})[LIST]


def as_kafka(now: str, operation: ConfigOperation, value: str) -> str:
    """ConfigurationControlManager#incrementalAlterConfigResource, on an ArrayList."""
    parts = [part for part in now.split(",") if part]
    named = value.split(",")
    while value and named and not named[-1]:  # String#split drops empty parts at the end
        named.pop()
    for part in named:
        if operation is APPEND and part not in parts:
            parts.append(part)
        elif operation is SUBTRACT and part in parts:
            parts.remove(part)
    return ",".join(parts)


@given(LISTS, st.sampled_from([APPEND, SUBTRACT]), LISTS)
def test_a_list_has_what_kafka_s_would_have(
    now: str, operation: ConfigOperation, value: str
) -> None:
    """
    Repeated and empty parts too, and in the same order.
    """
    assert as_kafka(now, operation, value) == relisted(now, operation, value)


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_a_long_list_takes_time_in_proportion(operation: ConfigOperation) -> None:
    """
    A value of 32 KB, with 9,000 parts, held up the event loop for 1.7 s; this one is ten times as
    long.
    """
    parts = [str(n) for n in range(90_000)]
    began_s = time.process_time()
    after = relisted(",".join(reversed(parts)), operation, ",".join(parts))

    assert time.process_time() - began_s < 2.0
    assert (90_000 if operation is APPEND else 1) == len(after.split(","))


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "compact,compact,delete", "compact,delete"),
        ("leader.replication.throttled.replicas", "1:1, 2:2,1:1", "1:1,2:2,1:1"),
        ("compression.type", " zstd ", "zstd"),
        ("index.interval.bytes", "0010", "10"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", "1e-4", "1.0E-4"),
        ("min.cleanable.dirty.ratio", ".000123", "1.23E-4"),
        ("preallocate", "False", "false"),
        ("retention.ms", "+5", "5"),
        ("retention.ms", "soon", "soon"),
    ],
)
def test_a_value_is_shown_as_kafka_writes_it(name: str, text: str, shown: str) -> None:
    """
    Tools compare it with what they want: Terraform would change TRUE to true at each run.  A value
    that this release cannot read is shown as it is stored, and can be repaired.
    """
    assert shown == TOPIC_CONFIGS[name].formatted(text)


def test_a_large_double_is_written_as_java_writes_it() -> None:
    """
    From 10^7 on with an exponent.
    """
    rate = ConfigDef(name="rate", type=ConfigType.DOUBLE, default=None, documentation="")

    assert ["9999999.0", "1.0E7", "1.7976931348623157E308"] == [
        rate.formatted(text) for text in ("9999999", "10000000", "1.7976931348623157e308")
    ]
