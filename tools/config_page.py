"""docs/configs.md: start options and configs, made from the options and configs themselves.

    python -m tools.config_page          writes the page; a test fails when it is not up to date

Shell.
"""

import re
from pathlib import Path
from typing import Final

from driftlog.cli import parser
from driftlog.cli.agents.start_options import start_options
from driftlog.cli.agents.start_settings import Shape, StartOption, shown, variable_of
from driftlog.cli.common.parsers import commands_of
from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigType,
    OneOf,
    PositiveOrUnlimited,
    Range,
    gzip_level,
    throttled_replicas,
)
from driftlog_agents.configs.dynamic_configs import DYNAMIC
from driftlog_agents.configs.group import GROUP_CONFIGS
from driftlog_agents.configs.limits import LIMITS
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from driftlog_agents.process.startup_configs import DEV_REBALANCE_DELAY_MS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "configs.md"

_HEAD: Final = """\
# Configs

[Where settings stand](#where-settings-stand) · [start options](#start-options) ·
[configs of an agent](#configs-of-an-agent) · [dynamic configs](#dynamic-configs) ·
[of topics](#configs-of-topics)

<!-- Made by `python -m tools.config_page`: change the configs, not this page. -->

## Where settings stand

An agent takes its settings from one TOML file, from variables of its environment, and from flags.
A variable overrides the file, and a flag overrides both. A later list replaces an earlier one.

    driftlog agent run --config-file /etc/driftlog/agent.toml --rack zone-a

    # /etc/driftlog/agent.toml: start options by their names, and broker configs by Kafka's
    dir = "/var/lib/driftlog"
    store = "s3://bucket/prefix"
    etcd = ["https://etcd-1:2379", "https://etcd-2:2379", "https://etcd-3:2379"]
    listener = ["PLAINTEXT://0.0.0.0:9092"]
    advertised-listener = ["PLAINTEXT://10.0.1.7:9092"]
    log.retention.ms = 259200000
    "max.connections" = 5000            # quoted: else max.connections is a value and a table
    "max.connections.per.ip" = 500

* `--config-file FILE`, or `DRIFTLOG_CONFIG_FILE`, names the file. There is none by default.
* The variable of a setting is `DRIFTLOG_` and its name in upper case, with `_` for `-` and `.`:
  `DRIFTLOG_STORE`, `DRIFTLOG_LOG_RETENTION_MS`. A name that begins with `driftlog.` says that
  once: `DRIFTLOG_MAX_PARTITIONS`. A list has commas. An empty variable is not set.
* `driftlog agent config`, with the options of `driftlog agent run`, shows every setting with its
  value and its source, and starts nothing. Its exit status is 2 where a name, a value or a listener
  is wrong. It opens no port, and reads no PEM file of etcd.
* An unknown name in the file, and an unknown variable that begins with `DRIFTLOG_`, stop the
  start. The error names the line or the variable, and a setting that may be meant. (Variables of
  driftlog's clients, and those that Kubernetes sets for a service, are passed over.)
* A password is in a variable only: `DRIFTLOG_ETCD_PASSWORD`. No output shows it, and a URL of etcd
  with a user in it is refused.
* `driftlog dev` takes the same file and variables, but for `dev`, `roles`, `etcd` and the other
  settings that begin with `etcd-`.

## Start options

| flag | in the file | variable | default | what it is |
|---|---|---|---|---|
"""

_CONFIGS: Final = """
## Configs of an agent

`driftlog agent run --config NAME=VALUE` and `driftlog dev --config NAME=VALUE` accept these broker
configs, each once; the file and variables do, too. Another name, and a value out of range, is
refused. `driftlog configs describe --broker ID` shows the configs that were set, with `--all`
all of them; so does `kafka-configs.sh --describe --all`. Names that begin with `driftlog.` are
driftlog's, all others are Kafka's.

A config with "beyond it" is a limit: [limits](limits.md) says what happens beyond it, and
`driftlog_refused_total{limit="NAME"}` counts that.

| config | variable | default | values | what it does |
|---|---|---|---|---|
"""

_DYNAMIC: Final = """
## Dynamic configs

These configs of brokers may be altered while agents run. They hold on every agent at once and
after a restart, until they are deleted:

    driftlog configs alter --all-brokers --add-config log.retention.ms=86400000
    kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --entity-type brokers --entity-default \\
        --alter --add-config max.connections=500
    kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --entity-type brokers --entity-name 1 \\
        --alter --delete-config max.connections

What is set on the broker goes before what is set on all brokers, and that before what the agent was
started with; the configs of a topic go before all of them. `configs describe` shows the source.
All others are refused: agents take them at their start. A shorter `log.cleaner.backoff.ms` holds
after 15 seconds at most. `log.retention.ms` and `log.roll.ms` go before the minutes and hours that
agents were started with, wherever they are set. `driftlog spark compact` and `merge`
follow what is set on all brokers, within two minutes, and do not see what is set on one broker, or
what an agent was started with; `compact` takes only topics with a `cleanup.policy` of their own.

"""

_GROUPS: Final = """

Configs of KIP-848 groups (`driftlog configs alter --group GROUP`). Members take them with their
next heartbeat. Bounds, in milliseconds: assignment interval 0 to 15000, heartbeat 5000 to 15000,
session 45000 to 60000. Where an agent's own heartbeat or session is outside, the bounds include it:

"""

_TOPICS: Final = """
## Configs of topics

`driftlog topics create TOPIC --config NAME=VALUE` and `driftlog configs alter --topic TOPIC
--add-config NAME=VALUE` set them, and so do Kafka's tools. All configs of Apache Kafka 4.3 are
there, and an agent checks each value as Kafka does. **Not all of them have an effect here**; the
fourth column says which have, and DescribeConfigs says it too.

| config | default | values | here | what it does |
|---|---|---|---|---|
"""

_NO_EFFECT: Final = {
    "Accepted and kept for tools; it changes nothing here.": "no meaning",
    "": "works",
}
"""The last sentence of a topic config's documentation, and the word for it on the page."""

_DEV: Final = "with `driftlog dev` and `--dev`"
_DEFAULTS: Final = {
    "auto.create.topics.enable": f"false; {_DEV}: true",
    "log.roll.hours": f"1, and 24 below 1 MiB; {_DEV}: a minute",
    "group.initial.rebalance.delay.ms": f"3000; {_DEV}: {DEV_REBALANCE_DELAY_MS}",
    "max.connections": "as many as files may be open, less 1024 and those of the HTTP port",
}
"""Configs whose default in an agent is not the one that DescribeConfigs shows."""

_UNITS: Final = {
    ".ms": "milliseconds",
    ".minutes": "minutes",
    ".hours": "hours",
    ".bytes": "bytes",
    ".rate": "connections a second",
    ".bytes.per.second": "bytes a second",
    ".per.second": "lines a second",
    ".per.minute": "seals a minute",
}
_START: Final = start_options(commands_of(commands_of(parser())["agent"])["run"])
_DEFAULT: Final = re.compile(r" \(default: ([^()]*)\)")
"""The default in an option's help, which has a column of its own."""

_MOST: Final = {ConfigType.SHORT: 2**15 - 1, ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}


def page() -> str:
    """The content of the page."""
    options = [_option_row(option) for option in sorted(_START, key=lambda o: o.name)]
    rows = [
        f"| `{name}` | `{variable_of(name)}` | {_default(config)} | {_values(config)} "
        f"| {_does(config)} |"
        for name, config in sorted(STARTUP_CONFIGS.items())
    ]
    topics = [_topic_row(config) for _, config in sorted(TOPIC_CONFIGS.items())]
    dynamic = ["· ".join(f"`{name}` " for name in sorted(DYNAMIC)).rstrip() + _GROUPS.rstrip(" ")]
    dynamic[0] += "· ".join(f"`{name}` " for name in sorted(GROUP_CONFIGS)).rstrip()
    tables = (_HEAD, options), (_CONFIGS, rows), (_DYNAMIC, dynamic), (_TOPICS, topics)
    return "".join(head + "\n".join(lines) + "\n" for head, lines in tables)


def _option_row(option: StartOption) -> str:
    name = option.name
    form = {
        Shape.REPEATED: "list",
        Shape.COMMAS: "text or list",
        Shape.SWITCH: "true or false",
    }.get(option.shape, "number" if isinstance(option.default, int) else "text")
    said = _DEFAULT.search(option.documentation)
    default = shown(option.default) or (said[1] if said else "none")
    text = _DEFAULT.sub("", option.documentation).replace("|", "\\|")
    cells = f"`--{name}`", f"`{name}`, {form}", f"`{variable_of(name)}`", default, text
    return f"| {' | '.join(cells)} |"


def _topic_row(config: ConfigDef) -> str:
    text = config.documentation
    end, word = next((end, word) for end, word in _NO_EFFECT.items() if text.endswith(end))
    if "cannot be turned on" in text:
        word = "cannot be turned on"
    does = text.removesuffix(end).rstrip(" :").replace("|", "\\|").rstrip()
    default = config.default or "none"
    return f"| `{config.name}` | {default} | {_values(config)} | {word} | {does} |"


def _default(config: ConfigDef) -> str:
    return _DEFAULTS.get(config.name, config.default or "none")


def _values(config: ConfigDef) -> str:
    match config.check:
        case OneOf(words=words):
            listed = ", ".join(f"`{word}`" for word in words)
            return f"list of {listed}" if config.type is ConfigType.LIST else f"one of {listed}"
        case Range(least=least, most=most):
            unit = next((unit for end, unit in _UNITS.items() if config.name.endswith(end)), "")
            span = f"{least} to {_MOST[config.type] if most is None else most}"
            return f"{unit}, {span}" if unit else span
        case PositiveOrUnlimited():
            unit = next(unit for end, unit in _UNITS.items() if config.name.endswith(end))
            return f"{unit}, 1 to {_MOST[config.type]}, or -1"
        case None if config.type in _MOST:
            return f"-{_MOST[config.type] + 1} to {_MOST[config.type]}"
        case _ if config.check is gzip_level:
            return "1 to 9, or -1"
        case _ if config.check is throttled_replicas:
            return "`*`, or a list of `PARTITION:BROKER`"
        case None:
            assert config.type is ConfigType.BOOLEAN, config
            return "`true`, `false`"
        case _:
            return "text"


def _does(config: ConfigDef) -> str:
    beyond = " ([beyond it](limits.md))" if config.name in LIMITS else ""
    return config.documentation.replace("|", "\\|") + beyond


if __name__ == "__main__":
    PAGE.write_text(page())
