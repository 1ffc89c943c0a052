"""Configs of topics and brokers: names, valid values, and effective values.

    set on the topic ──▶ on the broker ──▶ on all brokers ──▶ at the agent's start ──▶ the default

The store keeps only the values that clients set, as text: a default may change later.  Errors have
the texts of Kafka's ConfigDef, which tools show to their users.

Source: org.apache.kafka.common.config.ConfigDef, DescribeConfigsResponse, LogConfig of 4.3.1;
tests/agents/handlers/test_kafka_says_so.py compares this with a real Kafka where one is installed.

Pure.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from enum import IntEnum
from itertools import dropwhile
from typing import Any, Final, TypeVar


class ConfigType(IntEnum):
    """Type of a value in DescribeConfigs (ConfigType#id)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Source of a value (DescribeConfigsResponse.ConfigSource)."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_GROUP = 8


class ResourceType(IntEnum):
    """Type of the resource that has configs (ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class InvalidConfigError(ValueError):
    """An invalid name or value of a config; the client gets the message."""


_SPACES: Final = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
"""Those that both String#trim and Python's numbers leave out; others are part of a value."""

_LONGEST_WORD_BYTES: Final = 255
_LONGEST_TEXT_BYTES: Final = 8 * 1024
"""Longest values, with spaces around them, which Kafka keeps: of a number, a boolean or some of few
words, and of any other.  Longer: clients fill the metadata store with configs; shorter: a list of
throttled replicas is refused."""

Value = bool | int | float | str | list[str]
Check = Callable[[Value], str | None]
"""Returns the error of a parsed value, or None; ``{name}`` in it stands for the config's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One config: its type, its default as text, and its valid values.

    ``broker_name``: for a topic config, the broker config with its default; see `synonyms_of`.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    check: Check | None = None
    broker_name: str = ""

    def given(self, configs: Mapping[str, str], agent: Mapping[str, str]) -> str | None:
        """The value that is set on a resource, which has *configs*, or else on its agent; None:
        on neither.  *agent*: as in `Inherited`."""
        if (own := configs.get(self.name)) is not None:
            return own
        for name, unit_ms in synonyms_of(self.broker_name).items():
            if (text := agent.get(name)) is not None:
                return text if unit_ms is None else str(max(int(text) * unit_ms, -1))
        return None

    def effective(self, configs: Mapping[str, str], agent: Mapping[str, str]) -> str | None:
        """As `given`, or the default."""
        found = self.given(configs, agent)
        return self.default if found is None else found

    @property
    def broker_defaults(self) -> dict[str, str]:
        """The default, by the broker config that has it."""
        *_, (name, unit_ms) = synonyms_of(self.broker_name).items()
        if not name or self.default is None:
            return {}
        return {name: self.default if unit_ms is None else str(int(self.default) // unit_ms)}

    def parse(self, text: str) -> Value:
        """Parse *text* by the config's type.

        Raises:
            InvalidConfigError: *text* is no value of this type.
        """
        trimmed = text.strip(_SPACES)
        value: Value
        match self.type:
            case ConfigType.BOOLEAN:
                if trimmed.lower() not in ("true", "false"):
                    raise self._invalid(trimmed, "Expected value to be either true or false")
                value = trimmed.lower() == "true"
            case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
                value = self._integer(trimmed)
            case ConfigType.DOUBLE:
                value = self._double(trimmed)
            case ConfigType.LIST:
                value = [part.strip(_SPACES) for part in trimmed.split(",")] if trimmed else []
                if isinstance(self.check, OneOf):  # as ConfigDef#parseValue, for a ValidList
                    value = list(dict.fromkeys(value))
            case _:
                value = trimmed
        return value

    def formatted(self, text: str | None) -> str | None:
        """*text*, parsed and written as DescribeConfigs shows it (ConfigDef#convertToString).

        What is no value of this type, which another release may have stored, stays as it is.
        """
        if text is None:
            return None
        try:
            return _text(self.parse(text))
        except InvalidConfigError:
            return text

    def checked(self, text: str) -> Value:
        """As `parse`, with the check of the value.

        Raises:
            InvalidConfigError: the value cannot be set.
        """
        self._check_length(text)
        value = self.parse(text)
        wrong = self.check(value) if self.check is not None else None
        if wrong is not None:
            raise InvalidConfigError(wrong.replace("{name}", self.name))
        return value

    def _check_length(self, text: str) -> None:
        free = self.type in (ConfigType.STRING, ConfigType.LIST, ConfigType.CLASS)
        is_text = free and not isinstance(self.check, OneOf)
        most = _LONGEST_TEXT_BYTES if is_text else _LONGEST_WORD_BYTES
        length = len(text.encode(errors="replace"))
        if length > most:
            raise InvalidConfigError(
                f"Invalid value of {length} bytes for configuration {self.name}: Value must be no "
                f"longer than {most} bytes"
            )

    def _integer(self, text: str) -> int:
        bits = {ConfigType.SHORT: 15, ConfigType.INT: 31}.get(self.type, 63)
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 40):
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        value = int(text)
        if not -(1 << bits) <= value < 1 << bits:
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        return value

    def _double(self, text: str) -> float:
        try:
            if text.isascii() and "_" not in text:
                return float(text)
        except ValueError:
            pass
        raise self._invalid(text, "Not a number of type DOUBLE")

    def _invalid(self, value: object, why: str) -> InvalidConfigError:
        return InvalidConfigError(f"Invalid value {value} for configuration {self.name}: {why}")


# ── Valid values ──


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from *least* to *most*, inclusive; *most* None: no upper limit."""

    least: float
    most: float | None

    def __call__(self, value: Value) -> str | None:
        assert isinstance(value, int | float)
        if not value >= self.least:  # NaN fails every comparison.
            return _wrong(value, f"Value must be at least {self.least}")
        if self.most is not None and value > self.most:
            return _wrong(value, f"Value must be no more than {self.most}")
        return None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of *words*, or a list of them."""

    words: tuple[str, ...]

    def __call__(self, value: Value) -> str | None:
        assert isinstance(value, str | list)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(value, list) and not part:
                return "Configuration '{name}' values must not be empty."
            if part not in self.words:
                return _wrong(part, f"String must be one of: {', '.join(self.words)}")
        return None


def at_least(least: float) -> Range:
    """ConfigDef.Range#atLeast."""
    return Range(least, None)


def between(least: float, most: float | None) -> Range:
    """ConfigDef.Range#between, both ends included."""
    return Range(least, most)


def one_of(*words: str) -> OneOf:
    """ConfigDef.ValidString#in, and ValidList#in for each element of a list."""
    return OneOf(words)


@dataclass(frozen=True, slots=True)
class PositiveOrUnlimited:
    """At least 1; a negative number means no limit (AbstractKafkaConfig#validateValues)."""

    def __call__(self, value: Value) -> str | None:
        if value == 0:
            return "{name} must be unlimited (-1) or, equal or greater than 1"
        return None


def gzip_level(value: Value) -> str | None:
    """CompressionType.GZIP#levelValidator."""
    if value == -1 or (isinstance(value, int) and 1 <= value <= 9):
        return None
    return _wrong(value, "Value must be between 1 and 9 or equal to -1")


def throttled_replicas(value: Value) -> str | None:
    """ThrottledReplicaListValidator: ``*`` or ``partition:broker`` pairs."""
    assert isinstance(value, list)
    if value in ([], ["*"]) or all(_is_replica(part) for part in value if part):
        return None
    return _wrong(
        f"[{', '.join(value)}]",
        "{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    )


def _is_replica(part: str) -> bool:
    partition, colon, broker = part.partition(":")
    return bool(colon) and part.isascii() and partition.isdecimal() and broker.isdecimal()


def _wrong(value: object, why: str) -> str:
    return f"Invalid value {value} for configuration {{name}}: {why}"


# ── Settings from configs ──

_CONFIG: Final = "config"
"""Key of a field's metadata; the value is its `ConfigDef`."""

T = TypeVar("T")


def setting(
    default: bool | int | str | tuple[str, ...] | None,
    documentation: str,
    type_: ConfigType = ConfigType.INT,
    check: Check | None = None,
    *,
    shown: str | None = None,
) -> Any:
    """A field of a dataclass of settings, with the only definition of its config.

    The config's name is the class's ``CONFIG_PREFIX`` and the name of the field with dots.

    Args:
        default: None: not set, and without a value until it is.
        check: checks the value; None: any text, or any integer of at least 1.
        shown: the default that DescribeConfigs returns, if it differs from the agent's.
    """
    if check is None and type_ in (ConfigType.INT, ConfigType.LONG):
        check = at_least(1)
    definition = ConfigDef(
        name="",
        type=type_,
        default=_text_or_none(default) if shown is None else shown,
        documentation=documentation,
        check=check,
    )
    return setting_of(definition, default)


def setting_of(definition: ConfigDef, default: object) -> Any:
    """As `setting`, for a config that is defined elsewhere."""
    return field(default=default, metadata={_CONFIG: definition})


def definitions_of(settings: Any) -> dict[str, ConfigDef]:
    """The configs of a class of settings and of its nested settings, by name."""
    found: dict[str, ConfigDef] = {}
    for f in fields(settings):
        if is_dataclass(f.default_factory):
            found |= definitions_of(f.default_factory)
        elif (name := _name(settings, f)) is not None:
            found[name] = replace(f.metadata[_CONFIG], name=name)
    return found


def values_of(settings: Any) -> dict[str, str]:
    """Effective values of *settings* and its nested settings, by config name; without those that
    are not set."""
    found: dict[str, str] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if is_dataclass(value):
            found |= values_of(value)
        elif (name := _name(settings, f)) is not None and value is not None:
            found[name] = _text(value)
    return found


def with_values(settings: T, values: Mapping[str, Value]) -> T:
    """A copy of *settings* with *values*, which are parsed, by config name."""
    changes: dict[str, Any] = {}
    for f in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, f.name)
        if is_dataclass(value):
            changes[f.name] = with_values(value, values)
        elif (name := _name(settings, f)) is not None and name in values:
            new = values[name]
            changes[f.name] = tuple(new) if isinstance(new, list) else new
    return replace(settings, **changes)  # type: ignore[type-var]


def _name(settings: Any, f: Any) -> str | None:
    """The name of the config of a field of *settings*; None: it has no config."""
    dotted = str(f.name).replace("_", ".")
    return f"{getattr(settings, 'CONFIG_PREFIX', '')}{dotted}" if _CONFIG in f.metadata else None


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(value)
    if isinstance(value, float) and value and not 1e-3 <= abs(value) < 1e7:  # Double#toString
        digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
        return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"
    return str(value).lower() if isinstance(value, bool) else str(value)


# ── Effective values ──

_SYNONYMS: Final[tuple[Mapping[str, int | None], ...]] = (
    {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000},
    {"log.roll.ms": 1, "log.roll.hours": 3_600_000},
)
"""Broker configs of one time, with their units in ms.  The first one that is set holds, whatever
its source; only the last one has a default."""


def synonyms_of(name: str) -> Mapping[str, int | None]:
    """The broker config *name* and those that hold where it is not set, with their units in ms;
    None: that of the topic config.

    Source: org.apache.kafka.server.config.DynamicBrokerConfig#brokerConfigSynonyms.
    """
    for units_ms in _SYNONYMS:
        if name in units_ms:
            return dict(dropwhile(lambda each: each[0] != name, units_ms.items()))
    return {name: None}


Synonym = tuple[str, str | None, ConfigSource]
"""A name of a config, its value under this name, and where that is set."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What resources inherit from their agent.

    Args:
        agent: the agent's settings that are not the defaults, by broker name.
        dynamic: configs of the broker and of all brokers, by broker name: first the ones that win.
        at_start: as *agent*, without *dynamic*; None: the same.
    """

    agent: Mapping[str, str] = field(default_factory=dict)
    dynamic: Sequence[tuple[ConfigSource, Mapping[str, str]]] = ()
    at_start: Mapping[str, str] | None = None

    def synonyms(self, name: str, defaults: Mapping[str, str]) -> list[Synonym]:
        """The values of a broker config and of its synonyms, the effective one first; none if it
        is not set and has no default.

        Source: kafka.server.ConfigHelper#configSynonyms.
        """
        at_start = self.agent if self.at_start is None else self.at_start
        found = [
            (each, values[each], source)
            for source, values in (
                *self.dynamic,
                (ConfigSource.STATIC_BROKER, at_start),
                (ConfigSource.DEFAULT, defaults),
            )
            for each in synonyms_of(name)
            if each in values
        ]
        return list(dropwhile(lambda synonym: synonym[0] != name, found))


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The effective value of one config and its source; the first synonym, if any, is the same."""

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...] = ()


def resolve(
    definitions: Mapping[str, ConfigDef],
    configs: Mapping[str, str],
    inherited: Inherited,
    own: ConfigSource = ConfigSource.DYNAMIC_TOPIC,
) -> list[ConfigValue]:
    """Every config of *definitions*, in their order, with its effective value.

    Args:
        configs: the values that are set on the topic or group.
        own: their source.
    """
    return [_resolve_one(c, configs, inherited, own) for c in definitions.values()]


def _resolve_one(
    definition: ConfigDef, configs: Mapping[str, str], inherited: Inherited, own: ConfigSource
) -> ConfigValue:
    synonyms = inherited.synonyms(definition.broker_name, definition.broker_defaults)
    if (itself := configs.get(definition.name)) is not None:
        synonyms.insert(0, (definition.name, itself, own))
    value = definition.effective(configs, inherited.agent)
    source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT
    return ConfigValue(definition, value, source, tuple(synonyms))


# ── Changes ──


class ConfigOperation(IntEnum):
    """AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One operation of IncrementalAlterConfigs."""

    name: str
    operation: ConfigOperation
    value: str | None


def changed(
    definitions: Mapping[str, ConfigDef],
    configs: Mapping[str, str],
    changes: Sequence[ConfigChange],
    agent: Mapping[str, str],
) -> dict[str, str]:
    """*configs* after *changes*; not yet validated (ConfigurationControlManager).

    Raises:
        InvalidConfigError: a list operation on a config that is not a list.
    """
    after = dict(configs)
    for change in changes:
        match change.operation:
            case ConfigOperation.SET:
                assert change.value is not None
                after[change.name] = change.value
            case ConfigOperation.DELETE:
                after.pop(change.name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                assert change.value is not None
                definition = definitions.get(change.name)
                if definition is None or definition.type is not ConfigType.LIST:
                    raise InvalidConfigError(
                        f"Can't {change.operation.name} to key {change.name} because its type "
                        f"is not LIST."
                    )
                now = definition.effective(after, agent) or ""
                after[change.name] = _relisted(now, change.operation, change.value)
    return after


def _relisted(now: str, operation: ConfigOperation, value: str) -> str:
    """*now* after the operation; its time is linear, because a value may have 32 KB.

    Java splits a text without the empty parts at its end, but for an empty text.
    """
    parts = [part for part in now.split(",") if part]
    named = value.rstrip(",").split(",") if value.strip(",") or not value else []
    if operation is ConfigOperation.APPEND:
        before = set(parts)
        return ",".join(parts + [part for part in dict.fromkeys(named) if part not in before])
    gone, rest = Counter(named), []
    for part in parts:
        if gone[part]:
            gone[part] -= 1
        else:
            rest.append(part)
    return ",".join(rest)
