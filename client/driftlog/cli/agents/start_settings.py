"""The settings of an agent's start, from a file, from the environment and from flags.

    default  <  file  <  environment  <  flags          later wins, for each name

    option    --session-timeout-ms     session-timeout-ms     DRIFTLOG_SESSION_TIMEOUT_MS
    config    --config NAME=VALUE      log.retention.ms       DRIFTLOG_LOG_RETENTION_MS
              (of driftlog's own)      driftlog.max.groups    DRIFTLOG_MAX_GROUPS

The start options are those of the command line, and the configs those of `--config`: neither is
defined again here.  A list in a variable is comma separated, and an empty variable is not set.  A
password comes from the environment alone.  Every fault is told, each with its place.

Pure.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from driftlog.cli.agents.settings_file import FileValue

PREFIX: Final = "DRIFTLOG_"
FILE_VARIABLE: Final = "DRIFTLOG_CONFIG_FILE"

SECRETS: Final[Mapping[str, str]] = {"etcd-password": "DRIFTLOG_ETCD_PASSWORD"}
"""Settings that only the environment gives, with their variables: no page, file or output has
their values."""

OTHER_VARIABLES: Final = frozenset(
    {
        FILE_VARIABLE,
        *SECRETS.values(),
        "DRIFTLOG_BOOTSTRAP",  # clients
        "DRIFTLOG_BOOTSTRAP_SERVERS",
        "DRIFTLOG_ETCD_BINARY",  # driftlog dev --agents
        "DRIFTLOG_LOCATION",  # Spark
        "DRIFTLOG_KAFKA_JARS",  # the tests
        "DRIFTLOG_MUTATIONS",
        "DRIFTLOG_SEEDS",
        "DRIFTLOG_TEST_KAFKA",
    }
)
"""Variables with the prefix that are no settings of an agent."""

_OF_KUBERNETES: Final = re.compile(
    r".*_SERVICE_(HOST|PORT|PORT_[A-Z0-9_]+)=.*"
    r"|.*_PORT=(tcp|udp|sctp)://.*"
    r"|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*"
)
"""Variables that Kubernetes sets in every pod for a service whose name begins with "driftlog", each
with its value: another ``…_PORT`` is a setting with a typo."""


class SettingsError(Exception):
    """Settings that cannot be used; one message for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class Shape(Enum):
    """How many values an option has."""

    ONE = "one"
    COMMAS = "commas"
    """One text, with commas between its parts (``--etcd URL,URL``)."""
    REPEATED = "repeated"
    """A list: the flag is repeated (``--listener``)."""
    SWITCH = "switch"
    """True or false (``--dev``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOption:
    """An option of the command line that a file and the environment may give, too."""

    name: str
    """As on the command line, without the dashes."""
    attribute: str
    """Its name in the parsed command line."""
    shape: Shape
    parse: Callable[[str], object]
    """Of one value; raises ValueError."""
    default: object
    documentation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfig:
    """A broker config that an agent takes at its start."""

    name: str
    check: Callable[[str], object]
    """Raises ValueError."""
    default: str | None


class Origin(Enum):
    """Where a value comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "env"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: *place* is PATH:LINE, a variable or a flag."""

    origin: Origin = Origin.DEFAULT
    place: str = ""

    def __str__(self) -> str:
        return f"{self.origin.value} {self.place}".rstrip()


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The effective value of a setting, and its source."""

    name: str
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class StartSettings:
    """All start options, and the configs that are set."""

    options: dict[str, SettingValue] = field(default_factory=dict)
    configs: dict[str, SettingValue] = field(default_factory=dict)

    @property
    def assignments(self) -> tuple[str, ...]:
        """The configs that are set, ``NAME=VALUE`` each."""
        return tuple(f"{c.name}={c.value}" for c in self.configs.values())

    def sources_in(self, text: str) -> str:
        """The sources of the configs that *text* names, for an error about several of them."""
        named = [c for c in self.configs.values() if re.search(rf"\b{re.escape(c.name)}\b", text)]
        return "; ".join(f"{c.name}: {c.source}" for c in named)


def variable_of(name: str) -> str:
    """The environment variable of a setting; ``driftlog.`` is not said twice."""
    return PREFIX + re.sub(r"[-.]", "_", name.removeprefix("driftlog.")).upper()


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """*environment* without the variables of settings: for a process that has them as flags."""
    kept = OTHER_VARIABLES - {FILE_VARIABLE}
    return {k: v for k, v in environment.items() if not k.startswith(PREFIX) or k in kept}


class Resolution:
    """The settings of a command, layer by layer.

    Args:
        command: its name, for errors.
        options: of the command.
        configs: of an agent.
        elsewhere: names of options that another command has, with that command.
    """

    def __init__(
        self,
        command: str,
        options: Iterable[StartOption],
        configs: Iterable[StartConfig],
        elsewhere: Mapping[str, str],
    ) -> None:
        self._command = command
        self._options = {option.name: option for option in options}
        self._configs = {config.name: config for config in configs}
        self._elsewhere = elsewhere
        self._faults: list[str] = []
        self._found = StartSettings(
            {o.name: SettingValue(o.name, o.default, Source()) for o in self._options.values()}
        )

    def add_file(self, path: str, values: Iterable[FileValue]) -> None:
        """The values of the file at *path*."""
        known = (*self._options, *self._configs)
        for found in values:
            place = f"{path}:{found.line}"
            if found.value is None:
                if not any(name.startswith(f"{found.name}.") for name in known):
                    self._faults.append(
                        f"{place}: no setting of `{self._command}` is in [{found.name}]"
                    )
            elif found.name in SECRETS:
                self._faults.append(
                    f"{place}: {found.name} is in no file: the variable {SECRETS[found.name]} "
                    "has it"
                )
            elif self._known(found.name, place, found.name, None):
                self._set(found.name, found.value, Source(Origin.FILE, place))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """The variables that begin with `PREFIX`."""
        names = {variable_of(name): name for name in (*self._options, *self._configs)}
        elsewhere = {variable_of(name): name for name in self._elsewhere}
        for variable, text in sorted(environment.items()):
            if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or not text:
                continue
            name = names.get(variable, elsewhere.get(variable, ""))
            if not name and _OF_KUBERNETES.fullmatch(f"{variable}={text}"):
                continue
            if self._known(name, variable, variable, names):
                option = self._options.get(name)
                listed = option is not None and option.shape is Shape.REPEATED
                value = tuple(part.strip() for part in text.split(",")) if listed else text
                self._set(name, value, Source(Origin.ENVIRONMENT, variable))

    def add_flags(self, values: Mapping[str, object], assignments: Sequence[str]) -> None:
        """The flags of options, parsed, by name; and those of configs, ``NAME=VALUE`` each."""
        for name, value in values.items():
            source = Source(Origin.FLAG, f"--{name}")
            self._found.options[name] = SettingValue(name, value, source)
        given: dict[str, str] = {}
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            name = name.strip()
            if not equals:
                self._faults.append(f"--config: {assignment!r} is not NAME=VALUE")
            elif name in given:
                self._faults.append(
                    f"--config: {name} is given twice, as {given[name]!r} and as {text!r}: give it "
                    "once"
                )
            elif name not in self._configs:
                self._faults.append(f"--config: {self._unknown(name, self._configs)}")
            else:
                given[name] = text
                self._set(name, text, Source(Origin.FLAG, "--config"))

    def settings(self) -> StartSettings:
        """What all layers make.

        Raises:
            SettingsError: they have faults.
        """
        if self._faults:
            raise SettingsError(self._faults)
        return self._found

    # ── One value ──

    def _known(self, name: str, place: str, given: str, names: Mapping[str, str] | None) -> bool:
        """Whether the command has the setting; else a fault that says what it has."""
        if name in self._options or name in self._configs:
            return True
        if name in self._elsewhere:
            self._faults.append(
                f"{place}: `{self._command}` has no setting {name}; {self._elsewhere[name]} has it"
            )
        else:
            known = (*self._options, *self._configs) if names is None else names
            # A variable is its own place.
            where = f"{place}: " if names is None else ""
            self._faults.append(where + self._unknown(given, known))
        return False

    def _unknown(self, name: str, known: Iterable[str]) -> str:
        start = PREFIX if name.startswith(PREFIX) else ""  # which all variables have in common
        there = [other.removeprefix(start) for other in known]
        near = difflib.get_close_matches(name.removeprefix(start), there, n=3, cutoff=0.75)
        meant = f": did you mean {' or '.join(start + other for other in near)}?" if near else ""
        return f"{name!r} is no setting of `{self._command}`{meant or '; docs/configs.md has all'}"

    def _set(self, name: str, value: str | tuple[str, ...], source: Source) -> None:
        try:
            if name in self._options:
                parsed = _option_value(self._options[name], value)
                self._found.options[name] = SettingValue(name, parsed, source)
            else:
                text = value if isinstance(value, str) else ",".join(value)
                self._configs[name].check(text)
                self._found.configs[name] = SettingValue(name, text, source)
        except ValueError as error:
            said = str(error)
            named = said if name in said else f"{name}: {said}"
            self._faults.append(f"{source.place}: {named}")


def _option_value(option: StartOption, value: str | tuple[str, ...]) -> object:
    match option.shape, value:
        case Shape.REPEATED, _:
            parts = (value,) if isinstance(value, str) else value
            return [option.parse(part) for part in parts]
        case Shape.COMMAS, tuple():
            return option.parse(",".join(value))
        case _, tuple():
            raise ValueError("one value is needed, not a list")
        case Shape.SWITCH, str():
            if value.lower() not in ("true", "false"):
                raise ValueError(f"{value!r} is neither true nor false")
            return value.lower() == "true"
        case _, str():
            return option.parse(value)
        case _:
            raise AssertionError(option.shape)


def shown(value: object) -> str | None:
    """*value* as text, a list with commas; None: not set."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def rows(
    settings: StartSettings, effective: Mapping[str, str | None], environment: Mapping[str, str]
) -> Iterator[SettingValue]:
    """Every setting with its effective value as text: options, passwords, configs.

    Args:
        effective: the agent's configs by name, as it would start.
        environment: has the passwords, which are hidden.
    """
    for setting in sorted(settings.options.values(), key=lambda s: s.name):
        yield SettingValue(setting.name, shown(setting.value), setting.source)
    for name, variable in SECRETS.items():
        given = bool(environment.get(variable))
        source = Source(Origin.ENVIRONMENT, variable) if given else Source()
        yield SettingValue(name, "(hidden)" if given else None, source)
    for name, value in sorted(effective.items()):
        known = settings.configs.get(name)
        yield SettingValue(name, value, known.source if known else Source())
