"""Configs of groups and of subscriptions to client metrics.

A group uses the settings of its agent where it has no configs of its own (`dynamic_configs`).
Configs of client metrics cannot be set: driftlog does not request the metrics of clients.

Pure.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.definitions import ConfigDef, ConfigType

_NOT_ASKED: Final = " Agents collect no client metrics."

_OF_GROUP: Final = tuple(
    replace(STARTUP_CONFIGS[of_agent], name=of_agent.removeprefix("group."), broker_name=of_agent)
    for of_agent in (
        "group.consumer.assignment.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.session.timeout.ms",
    )
)

_OF_CLIENT_METRICS: Final = (
    ConfigDef(
        name="interval.ms",
        type=ConfigType.INT,
        default="300000",
        documentation="Interval at which clients push their metrics." + _NOT_ASKED,
    ),
    ConfigDef(
        name="match",
        type=ConfigType.LIST,
        default="",
        documentation="Clients that push their metrics." + _NOT_ASKED,
    ),
    ConfigDef(
        name="metrics",
        type=ConfigType.LIST,
        default="",
        documentation="Metrics that clients push." + _NOT_ASKED,
    ),
)

GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType({c.name: c for c in _OF_GROUP})
"""Group configs by name, sorted."""

CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {c.name: c for c in _OF_CLIENT_METRICS}
)
"""Client metrics configs by name, sorted."""
