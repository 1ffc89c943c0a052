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

from driftlog_agents.broker import BrokerSettings
from driftlog_agents.configs import (
    Check,
    ConfigDef,
    ConfigType,
    InvalidConfigError,
    Value,
    at_least,
    between,
    one_of,
)
from driftlog_agents.limits import DEFINITIONS, FIELDS
from driftlog_tiering.producers import MAX_BODY_BYTES

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_AGENT, _GROUPS, _CLASSIC, _CONSUMER = "agent", "groups", "classic", "consumer"
_LIMITS = "limits"


class _Place(NamedTuple):
    """Which field of which settings it is."""

    owner: str
    field: str


class _Static(NamedTuple):
    definition: ConfigDef
    places: tuple[_Place, ...]


def _static(
    name: str, type_: ConfigType, check: Check | None, *places: tuple[str, str]
) -> tuple[str, _Static]:
    definition = ConfigDef(name=name, type=type_, default=None, documentation="", check=check)
    return name, _Static(definition, tuple(_Place(*place) for place in places))


STATIC: Final = MappingProxyType(
    dict(
        (
            _static(
                "auto.create.topics.enable",
                ConfigType.BOOLEAN,
                None,
                (_AGENT, "auto_create_topics_enable"),
            ),
            _static(
                "connections.max.idle.ms", _LONG, at_least(1), (_AGENT, "connections_max_idle_ms")
            ),
            _static(
                "default.replication.factor",
                ConfigType.SHORT,
                at_least(1),
                (_AGENT, "default_replication_factor"),
            ),
            _static(
                "driftlog.producer.state.max.bytes",
                _LONG,
                between(0, MAX_BODY_BYTES),
                (_AGENT, "driftlog_producer_state_max_bytes"),
            ),
            _static("fetch.max.bytes", _INT, at_least(1024), (_AGENT, "fetch_max_bytes")),
            _static(
                "group.consumer.assignment.interval.ms",
                _INT,
                at_least(0),
                (_CONSUMER, "assignment_interval_ms"),
            ),
            _static(
                "group.consumer.assignors",
                ConfigType.LIST,
                one_of("uniform", "range"),
                (_CONSUMER, "assignors"),
            ),
            _static(
                "group.consumer.heartbeat.interval.ms",
                _INT,
                at_least(1),
                (_CONSUMER, "heartbeat_interval_ms"),
            ),
            _static("group.consumer.max.size", _INT, at_least(1), (_CONSUMER, "max_size")),
            _static(
                "group.consumer.migration.policy",
                ConfigType.STRING,
                one_of("bidirectional", "upgrade", "downgrade", "disabled"),
                (_CONSUMER, "migration_policy"),
            ),
            _static(
                "group.consumer.session.timeout.ms",
                _INT,
                at_least(1),
                (_CONSUMER, "session_timeout_ms"),
            ),
            _static(
                "group.initial.rebalance.delay.ms",
                _INT,
                at_least(0),
                (_CLASSIC, "initial_rebalance_delay_ms"),
            ),
            _static(
                "group.max.session.timeout.ms",
                _INT,
                at_least(1),
                (_CLASSIC, "max_session_timeout_ms"),
            ),
            _static(
                "group.max.size",
                _INT,
                at_least(1),
                (_CLASSIC, "max_size"),
                (_CONSUMER, "classic_max_size"),
            ),
            _static(
                "group.min.session.timeout.ms",
                _INT,
                at_least(1),
                (_CLASSIC, "min_session_timeout_ms"),
            ),
            _static("max.connections", _INT, at_least(1), (_AGENT, "max_connections")),
            _static("message.max.bytes", _INT, at_least(0), (_AGENT, "message_max_bytes")),
            _static("num.partitions", _INT, at_least(1), (_AGENT, "num_partitions")),
            _static(
                "offset.metadata.max.bytes",
                _INT,
                at_least(0),
                (_GROUPS, "offset_metadata_max_bytes"),
            ),
            _static(
                "offsets.retention.check.interval.ms",
                _LONG,
                at_least(1),
                (_GROUPS, "offsets_retention_check_interval_ms"),
            ),
            _static(
                "offsets.retention.minutes",
                _INT,
                at_least(1),
                (_GROUPS, "offsets_retention_minutes"),
            ),
            _static(
                "producer.id.expiration.ms",
                _INT,
                at_least(1),
                (_AGENT, "producer_id_expiration_ms"),
            ),
            _static(
                "socket.request.max.bytes", _INT, at_least(1), (_AGENT, "socket_request_max_bytes")
            ),
            *(
                (name, _Static(definition, (_Place(_LIMITS, FIELDS[name]),)))
                for name, definition in DEFINITIONS.items()
            ),
        )
    )
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
