"""The configs of brokers and groups that change while agents run: which, and what they come to.

    set on the broker ──▶ set on all brokers ──▶ at the agent's start ──▶ the default

Dynamic are the configs that are dynamic in Apache Kafka, too, and that an agent applies at once.  A
stored config that this release does not accept is ignored, and told, and the others hold; if it is
one of retention, topics that inherit it keep all records until it is repaired.

Source: org.apache.kafka.server.config.DynamicBrokerConfig, GroupConfig of 4.3.1.

Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS, BrokerSettings
from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.configs.definitions import ConfigDef, ConfigSource, InvalidConfigError
from driftlog_agents.configs.group import GROUP_CONFIGS
from driftlog_agents.configs.group_settings import ConsumerSettings, GroupSettings
from driftlog_agents.configs.start_configs import with_configs
from driftlog_agents.log.engine_settings import EngineSettings

_RETENTION: Final = frozenset(
    {
        "log.cleanup.policy",
        "log.retention.bytes",
        "log.retention.ms",
    }
)
_CONNECTIONS: Final = frozenset(
    {
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    }
)
_OTHERS: Final = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.roll.ms",
        "log.segment.bytes",
        "message.max.bytes",
        "producer.id.expiration.ms",
    }
)
DYNAMIC: Final = _RETENTION | _CONNECTIONS | _OTHERS
"""Names of the dynamic configs of brokers; all have a setting of the agent's start."""

_CLEANER_MEMORY: Final = "log.cleaner.dedupe.buffer.size"
"""A client may set it, and must not get more of an agent's memory than the agent was given."""

_POLICY: Final = "log.cleanup.policy"
_KEEP_ALL: Final = {"log.retention.bytes": "-1", "log.retention.ms": "-1"}
"""What holds while a config of retention cannot be read."""
_NO_COMPACTION: Final = {_POLICY: "delete"}
"""What holds besides while the policy itself is not known."""


@dataclass(frozen=True, slots=True)
class DynamicConfigs:
    """The dynamic configs of one broker, and of all brokers."""

    of_broker: Mapping[str, str]
    of_all: Mapping[str, str]

    @property
    def layers(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        """As in `Inherited`."""
        return (
            (ConfigSource.DYNAMIC_BROKER, self.of_broker),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self.of_all),
        )


NO_CONFIGS: Final = DynamicConfigs({}, {})


def refused_names(names: Iterable[str]) -> list[str]:
    """Those of *names* that no broker can be given while it runs."""
    return [name for name in names if name not in DYNAMIC]


def check_broker(configs: Mapping[str, str]) -> None:
    """Check values of dynamic configs (DynamicConfig.Broker#validate).

    Raises:
        InvalidConfigError: one is invalid; the message is Kafka's.
    """
    for name, text in configs.items():
        STARTUP_CONFIGS[name].checked(text)


def combined(at_start: BrokerSettings, dynamic: DynamicConfigs) -> BrokerSettings:
    """The settings of an agent with *dynamic* configs, which are checked.

    Raises:
        InvalidConfigError: they do not fit together.
    """
    merged = {**dynamic.of_all, **dynamic.of_broker}
    found = with_configs(at_start, [f"{name}={text}" for name, text in merged.items()])
    return replace(found, given=at_start.given)


def check_memory(at_start: BrokerSettings, configs: Mapping[str, str]) -> None:
    """Check that *configs*, which are valid, give compaction no more memory than the agent's start.

    Raises:
        InvalidConfigError: they do.
    """
    wanted, most = configs.get(_CLEANER_MEMORY), at_start.log_cleaner_dedupe_buffer_size
    if wanted is not None and int(wanted) > most:
        raise InvalidConfigError(
            f"{_CLEANER_MEMORY} {wanted} is more than {most}, the agent's at its start: while it "
            f"runs, less may be set; for more, start it with --config {_CLEANER_MEMORY}={wanted}"
        )


def configure(log: EngineSettings, settings: BrokerSettings) -> None:
    """Gives *log*, which the sessions of an agent share, the dynamic configs of the log that are
    no defaults of topics."""
    log.compaction.backoff_ms = log.merging.interval_ms = settings.log_cleaner_backoff_ms
    log.compaction.cleaner = replace(
        log.compaction.cleaner, map_bytes=settings.log_cleaner_dedupe_buffer_size
    )
    log.producers.expiration_ms = settings.producer_id_expiration_ms


@dataclass(frozen=True, slots=True)
class LoadedConfigs:
    """What stored configs come to."""

    settings: BrokerSettings
    dynamic: DynamicConfigs
    """Those of them that hold."""
    faults: tuple[str, ...] = ()
    """The errors of those that are ignored."""


def loaded(
    at_start: BrokerSettings, dynamic: DynamicConfigs, *, unreadable: bool = False
) -> LoadedConfigs:
    """The settings of an agent with stored configs, which another release may have checked.

    Args:
        unreadable: some are set, and not known.
    """
    faults: list[str] = []
    ignored: set[str] = set()

    def valid(configs: Mapping[str, str]) -> dict[str, str]:
        found = {}
        for name, text in configs.items():
            try:
                if refused_names([name]):
                    raise InvalidConfigError(f"{name} is no dynamic config of this release")
                check_broker({name: text})
                check_memory(at_start, {name: text})
                found[name] = text
            except InvalidConfigError as error:
                faults.append(str(error))
                ignored.add(name)
        return found

    if unreadable:
        faults.append("a key of configs cannot be read")
    held = DynamicConfigs(valid(dynamic.of_broker), valid(dynamic.of_all))
    held, misfits = _fitting(at_start, held)
    faults += misfits
    if unreadable or ignored & _RETENTION:
        known = not unreadable and (_POLICY in held.of_broker or _POLICY not in ignored)
        kept = _KEEP_ALL if known else _KEEP_ALL | _NO_COMPACTION
        held = replace(held, of_broker={**held.of_broker, **kept})
    return LoadedConfigs(combined(at_start, held), held, tuple(faults))


def _fitting(at_start: BrokerSettings, dynamic: DynamicConfigs) -> tuple[DynamicConfigs, list[str]]:
    """Those of *dynamic* that fit together and with *at_start*, and the errors of the others.

    The configs of the broker are taken first.  What does not fit is tried again after each that
    does: two lags may fit only together.
    """
    try:
        combined(at_start, dynamic)
    except InvalidConfigError:
        pass
    else:
        return dynamic, []
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    left = [
        (layer, name, text)
        for layer, configs in enumerate((dynamic.of_broker, dynamic.of_all))
        for name, text in configs.items()
    ]
    while True:
        errors: list[str] = []
        misfits = []
        for layer, name, text in left:
            found[layer][name] = text
            try:
                combined(at_start, DynamicConfigs(*found))
            except InvalidConfigError as error:
                del found[layer][name]
                errors.append(str(error))
                misfits.append((layer, name, text))
        if len(misfits) == len(left):
            return DynamicConfigs(*found), errors
        left = misfits


# ── Groups ──


def check_group(configs: Mapping[str, str], settings: GroupSettings) -> None:
    """Check all configs of a group, which has *settings* without them (GroupConfig#validate).

    Raises:
        InvalidConfigError: one is unknown or invalid, or they do not fit together.
    """
    values = {name: _group_config(name).checked(text) for name, text in configs.items()}
    bounds = settings.configs
    for name, value in values.items():
        _, _, end = name.partition("consumer.")
        least, most = f"group.consumer.min.{end}", f"group.consumer.max.{end}"
        assert isinstance(value, int)
        if value < int(bounds.get(least) or BROKER_CONFIGS[least].default or 0):
            raise InvalidConfigError(f"{name} must be greater than or equal to {least}")
        if value > int(bounds.get(most) or BROKER_CONFIGS[most].default or 0):
            raise InvalidConfigError(f"{name} must be less than or equal to {most}")
    found = _with_group(settings.consumer, configs)
    if found.session_timeout_ms <= found.heartbeat_interval_ms:
        raise InvalidConfigError(
            "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
        )


def group_settings(
    settings: GroupSettings, configs: Mapping[str, str], told: Callable[[str], None]
) -> ConsumerSettings:
    """The settings of a group with stored *configs*; *told* gets the error of those that another
    release has checked, and that are ignored here."""
    try:
        check_group(configs, settings)
    except InvalidConfigError as error:
        told(str(error))
        return settings.consumer
    return _with_group(settings.consumer, configs)


def _with_group(settings: ConsumerSettings, configs: Mapping[str, str]) -> ConsumerSettings:
    changes = {
        name.removeprefix("consumer.").replace(".", "_"): _group_config(name).parse(text)
        for name, text in configs.items()
    }
    return replace(settings, **changes)  # type: ignore[arg-type]  # by the definitions of the names


def _group_config(name: str) -> ConfigDef:
    if name not in GROUP_CONFIGS:
        raise InvalidConfigError(f"Unknown group config name: {name}")
    return GROUP_CONFIGS[name]
