"""Configs of what is neither topic nor broker: groups, and subscriptions to clients' metrics.

Both have Kafka's defaults, and none can be set: a group takes what its agent has, and clients are
not asked for their metrics.

Pure.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.definitions import ConfigDef, ConfigType

_NOT_ASKED: Final = " Clients are not asked for their metrics here."

_OF_GROUP: Final = (
    ConfigDef(
        name="consumer.assignment.interval.ms",
        type=ConfigType.INT,
        default="1000",
        broker_name="group.consumer.assignment.interval.ms",
        documentation="How long a target of the group's assignment stands at least (KIP-848).",
    ),
    ConfigDef(
        name="consumer.heartbeat.interval.ms",
        type=ConfigType.INT,
        default="5000",
        broker_name="group.consumer.heartbeat.interval.ms",
        documentation="How often members of the group are to say that they live (KIP-848).",
    ),
    ConfigDef(
        name="consumer.session.timeout.ms",
        type=ConfigType.INT,
        default="45000",
        broker_name="group.consumer.session.timeout.ms",
        documentation="Silence after which a member of the group is gone (KIP-848).",
    ),
)

_OF_CLIENT_METRICS: Final = (
    ConfigDef(
        name="interval.ms",
        type=ConfigType.INT,
        default="300000",
        documentation="How often clients push their metrics." + _NOT_ASKED,
    ),
    ConfigDef(
        name="match",
        type=ConfigType.LIST,
        default="",
        documentation="Which clients push their metrics." + _NOT_ASKED,
    ),
    ConfigDef(
        name="metrics",
        type=ConfigType.LIST,
        default="",
        documentation="Which metrics clients push." + _NOT_ASKED,
    ),
)

GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType({c.name: c for c in _OF_GROUP})
"""By name, in the order of names."""

CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {c.name: c for c in _OF_CLIENT_METRICS}
)
"""By name, in the order of names."""
