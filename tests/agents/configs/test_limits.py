"""docs/limits.md names each limit with its default, and each has a counter from the start."""

import re

import pytest

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.configs.limits import LIMITS, Refusals
from tests.support.components import REPOSITORY

BOUNDS_NOTHING = {
    "auto.create.topics.enable",
    "default.replication.factor",
    "driftlog.metrics.max.partitions",
    "driftlog.segment.merge.enable",
    "driftlog.traces.enable",
    "group.consumer.assignment.interval.ms",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.migration.policy",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.roll.hours",
    "log.roll.ms",
    "log.segment.bytes",
    "log.retention.bytes",
    "log.retention.check.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.enable",
    "driftlog.read.cache.bytes",
    "driftlog.verification.bytes.per.second",
    "driftlog.verification.interval.ms",
    "num.partitions",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
    "producer.id.expiration.ms",
}
"""Configs of an agent that refuse nothing."""

COMPUTED = {"max.connections": "the limit of open files, less 1024 and the HTTP port's"}
"""Limits whose default is no number."""


def _rows() -> dict[str, tuple[str, str]]:
    """Default, and what happens beyond it, of each row of the page's tables."""
    page = (REPOSITORY / "docs" / "limits.md").read_text()
    found = re.findall(r"^\| `([a-z.]+)` \| ([^|]*) \|.*\| ([^|]*)\|$", page, re.MULTILINE)
    return {name: (default, beyond.strip()) for name, default, beyond in found}


def test_the_page_has_each_limit_with_its_default() -> None:
    """
    And what happens beyond it.
    """
    defaults = {name: BROKER_CONFIGS[name].default or "none" for name in LIMITS} | COMPUTED

    assert defaults == {name: default for name, (default, _) in _rows().items()}
    assert [] == [name for name, (_, beyond) in _rows().items() if not beyond]


def test_each_config_is_a_limit_or_bounds_nothing() -> None:
    """
    A config that is added is given a row and a counter, or named here.
    """
    assert set() == BOUNDS_NOTHING & set(LIMITS)
    assert set(STARTUP_CONFIGS) == BOUNDS_NOTHING | set(LIMITS)


def test_each_limit_is_counted_from_the_start() -> None:
    """
    A dashboard finds the series before anything was refused; no other name is counted.
    """
    refusals = Refusals()
    refusals.count("queued.max.requests")

    assert set(_rows()) == set(refusals.counts)
    assert 1 == refusals.counts["queued.max.requests"]
    with pytest.raises(AssertionError):
        refusals.count("num.partitions")
