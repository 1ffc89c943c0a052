"""The configs that an agent takes at its start, from texts.

    NAME=VALUE ──▶ known? valid? together? ──▶ `BrokerSettings`

Pure.
"""

import difflib
from collections.abc import Iterable
from dataclasses import replace

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS, BrokerSettings
from driftlog_agents.configs.definitions import InvalidConfigError, Value, with_values


def checked(name: str, text: str) -> Value:
    """The value of the config *name*, which an agent takes at its start.

    Raises:
        InvalidConfigError: *text* is no value of it.
    """
    value = STARTUP_CONFIGS[name].checked(text)
    if value == [] and name != "log.cleanup.policy":  # Without one, all records are kept.
        raise InvalidConfigError(f"{name} needs at least one value")
    return value


def with_configs(settings: BrokerSettings, assignments: Iterable[str]) -> BrokerSettings:
    """*settings*, changed by *assignments*: ``NAME=VALUE`` each.

    Raises:
        InvalidConfigError: a name is unknown or given twice, or a value is invalid; the message
            says what to do.
    """
    values: dict[str, Value] = {}
    given: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise InvalidConfigError(f"{assignment!r} is not NAME=VALUE")
        if name not in STARTUP_CONFIGS:
            raise InvalidConfigError(_unknown(name))
        if name in given:
            raise InvalidConfigError(
                f"{name} is given twice, as {given[name]!r} and as {text!r}: give it once"
            )
        given[name] = text
        values[name] = checked(name, text)
    settings = replace(with_values(settings, values), given=settings.given | given.keys())
    classic, consumer = settings.groups.classic, settings.groups.consumer
    if classic.min_session_timeout_ms > classic.max_session_timeout_ms:
        raise InvalidConfigError(
            f"group.min.session.timeout.ms {classic.min_session_timeout_ms} is more than "
            f"group.max.session.timeout.ms {classic.max_session_timeout_ms}"
        )
    if consumer.heartbeat_interval_ms >= consumer.session_timeout_ms:
        raise InvalidConfigError(
            f"group.consumer.heartbeat.interval.ms {consumer.heartbeat_interval_ms} must be less "
            f"than group.consumer.session.timeout.ms {consumer.session_timeout_ms}"
        )
    min_ms, max_ms = (
        settings.log_cleaner_min_compaction_lag_ms,
        settings.log_cleaner_max_compaction_lag_ms,
    )
    if min_ms > max_ms:
        raise InvalidConfigError(
            f"log.cleaner.min.compaction.lag.ms {min_ms} is more than "
            f"log.cleaner.max.compaction.lag.ms {max_ms}"
        )
    most = settings.limits.driftlog_max_message_bytes
    if "message.max.bytes" in values and settings.message_max_bytes > most:
        raise InvalidConfigError(
            f"message.max.bytes {settings.message_max_bytes} is more than "
            f"driftlog.max.message.bytes {most}"
        )
    if "group.max.size" in values:
        consumer = replace(consumer, classic_max_size=classic.max_size)
        settings = replace(settings, groups=replace(settings.groups, consumer=consumer))
    return settings


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, STARTUP_CONFIGS, n=3, cutoff=0.75)
    meant = f": did you mean {' or '.join(near)}?" if near else "."
    there = ", ".join(sorted(STARTUP_CONFIGS))
    return (
        f"{name!r} is not a config of an agent's start{meant}  These are: {there}.  "
        "(What topics have as configs, retention and segments too, is set with the topic.)"
    )
