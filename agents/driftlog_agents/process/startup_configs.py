"""Broker configs that are said when an agent is started: `--config NAME=VALUE`.

Under Kafka's names, those that mean something here, and our own, which begin with ``driftlog.``;
what is set shows in DescribeConfigs, and holds until the next start.  Addresses, directories and
the session's timeout have options of their own.
Shell.
"""

import difflib
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.configs.definitions import (
    Check,
    ConfigDef,
    InvalidConfigError,
    Value,
    at_least,
    between,
    one_of,
)
from driftlog_agents.configs.limits import DEFINITIONS, FIELDS
from driftlog_tiering.batches.producers import MAX_BODY_BYTES

_AGENT, _GROUPS, _CLASSIC, _CONSUMER = "agent", "groups", "classic", "consumer"
_LIMITS = "limits"


class _Place(NamedTuple):
    """Which field of which settings it is."""

    owner: str
    field: str


class _Static(NamedTuple):
    definition: ConfigDef
    places: tuple[_Place, ...]


_PLACES: Final[tuple[tuple[str, Check | None, tuple[_Place, ...]], ...]] = (
    ("auto.create.topics.enable", None, (_Place(_AGENT, "auto_create_topics_enable"),)),
    ("connections.max.idle.ms", at_least(1), (_Place(_AGENT, "connections_max_idle_ms"),)),
    (
        "default.replication.factor",
        between(1, 32_767),
        (_Place(_AGENT, "default_replication_factor"),),
    ),
    (
        "driftlog.producer.state.max.bytes",
        between(0, MAX_BODY_BYTES),
        (_Place(_AGENT, "driftlog_producer_state_max_bytes"),),
    ),
    ("fetch.max.bytes", at_least(1024), (_Place(_AGENT, "fetch_max_bytes"),)),
    (
        "group.consumer.assignment.interval.ms",
        at_least(0),
        (_Place(_CONSUMER, "assignment_interval_ms"),),
    ),
    ("group.consumer.assignors", one_of("uniform", "range"), (_Place(_CONSUMER, "assignors"),)),
    (
        "group.consumer.heartbeat.interval.ms",
        at_least(1),
        (_Place(_CONSUMER, "heartbeat_interval_ms"),),
    ),
    ("group.consumer.max.size", at_least(1), (_Place(_CONSUMER, "max_size"),)),
    (
        "group.consumer.migration.policy",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        (_Place(_CONSUMER, "migration_policy"),),
    ),
    ("group.consumer.session.timeout.ms", at_least(1), (_Place(_CONSUMER, "session_timeout_ms"),)),
    (
        "group.initial.rebalance.delay.ms",
        at_least(0),
        (_Place(_CLASSIC, "initial_rebalance_delay_ms"),),
    ),
    ("group.max.session.timeout.ms", at_least(1), (_Place(_CLASSIC, "max_session_timeout_ms"),)),
    (
        "group.max.size",
        at_least(1),
        (
            _Place(_CLASSIC, "max_size"),
            _Place(_CONSUMER, "classic_max_size"),
        ),
    ),
    ("group.min.session.timeout.ms", at_least(1), (_Place(_CLASSIC, "min_session_timeout_ms"),)),
    ("max.connections", at_least(1), (_Place(_AGENT, "max_connections"),)),
    ("message.max.bytes", at_least(0), (_Place(_AGENT, "message_max_bytes"),)),
    ("num.partitions", at_least(1), (_Place(_AGENT, "num_partitions"),)),
    ("offset.metadata.max.bytes", at_least(0), (_Place(_GROUPS, "offset_metadata_max_bytes"),)),
    (
        "offsets.retention.check.interval.ms",
        at_least(1),
        (_Place(_GROUPS, "offsets_retention_check_interval_ms"),),
    ),
    ("offsets.retention.minutes", at_least(1), (_Place(_GROUPS, "offsets_retention_minutes"),)),
    ("producer.id.expiration.ms", at_least(1), (_Place(_AGENT, "producer_id_expiration_ms"),)),
    ("socket.request.max.bytes", at_least(1), (_Place(_AGENT, "socket_request_max_bytes"),)),
    *((name, limit.check, (_Place(_LIMITS, FIELDS[name]),)) for name, limit in DEFINITIONS.items()),
)
"""Configs that may be set, what they may be, and where they go.

Their types, defaults and texts are in `configs/broker`; docs/configs.md is made from both.
"""

STATIC: Final = MappingProxyType(
    {
        name: _Static(replace(BROKER_CONFIGS[name], check=check), places)
        for name, check, places in _PLACES
    }
)
"""By name."""


def with_configs(settings: BrokerSettings, assignments: Iterable[str]) -> BrokerSettings:
    """*settings*, changed by *assignments*: ``NAME=VALUE`` each.

    Raises:
        InvalidConfigError: a name that is none or is given twice, a value that is not one; says
            what to do.
    """
    owners = (_AGENT, _GROUPS, _CLASSIC, _CONSUMER, _LIMITS)
    changes: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    given: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise InvalidConfigError(f"{assignment!r} is not NAME=VALUE")
        static = STATIC.get(name)
        if static is None:
            raise InvalidConfigError(_unknown(name))
        if name in given:
            raise InvalidConfigError(
                f"{name} is given twice, as {given[name]!r} and as {text!r}: give it once"
            )
        given[name] = text
        value: Value | tuple[str, ...] = static.definition.checked(text)
        if isinstance(value, list):
            if not value:
                raise InvalidConfigError(f"{name} must name one at least")
            value = tuple(value)
        for place in static.places:
            changes[place.owner][place.field] = value
    groups = settings.groups
    classic = replace(groups.classic, **changes[_CLASSIC])
    if classic.min_session_timeout_ms > classic.max_session_timeout_ms:
        raise InvalidConfigError(
            f"group.min.session.timeout.ms {classic.min_session_timeout_ms} is more than "
            f"group.max.session.timeout.ms {classic.max_session_timeout_ms}"
        )
    consumer = replace(groups.consumer, **changes[_CONSUMER])
    if consumer.heartbeat_interval_ms >= consumer.session_timeout_ms:
        raise InvalidConfigError(
            f"group.consumer.heartbeat.interval.ms {consumer.heartbeat_interval_ms} must be less "
            f"than group.consumer.session.timeout.ms {consumer.session_timeout_ms}"
        )
    groups = replace(groups, classic=classic, consumer=consumer, **changes[_GROUPS])
    limits = replace(settings.limits, **changes[_LIMITS])
    settings = replace(
        settings,
        groups=groups,
        limits=limits,
        given=settings.given | given.keys(),
        **changes[_AGENT],
    )
    most = limits.driftlog_max_message_bytes
    if "message_max_bytes" in changes[_AGENT] and settings.message_max_bytes > most:
        raise InvalidConfigError(
            f"message.max.bytes {settings.message_max_bytes} is more than "
            f"driftlog.max.message.bytes {most}"
        )
    return settings


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, STATIC, n=3, cutoff=0.75)
    meant = f": did you mean {' or '.join(near)}?" if near else "."
    there = ", ".join(sorted(STATIC))
    return (
        f"{name!r} is no config that an agent can be started with{meant}  These are: {there}.  "
        "(What topics have as configs, retention and segments too, is set with the topic.)"
    )
