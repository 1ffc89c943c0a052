"""docs/configs.md: configs of agents and of topics, made from the configs themselves.

    python -m tools.config_page          writes the page; a test fails when it is not up to date

Shell.
"""

from pathlib import Path
from typing import Final

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
from driftlog_agents.configs.limits import LIMITS
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from driftlog_agents.process.startup_configs import DEV_REBALANCE_DELAY_MS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "configs.md"

_HEAD: Final = """\
# Configs

[Of an agent](#configs-of-an-agent) · [of topics](#configs-of-topics)

<!-- Made by `python -m tools.config_page`: change the configs, not this page. -->

## Configs of an agent

`driftlog agent run --config NAME=VALUE` and `driftlog dev --config NAME=VALUE` accept these broker
configs, each once. Another name, and a value out of range, is refused. A config holds until the
agent ends. `driftlog configs describe --broker ID` shows the configs that were set, with `--all`
all of them; so does `kafka-configs.sh --describe --all`. Names that begin with `driftlog.` are
driftlog's, all others are Kafka's.

A config with "beyond it" is a limit: [limits](limits.md) says what happens beyond it, and
`driftlog_refused_total{limit="NAME"}` counts that.

| config | default | values | what it does |
|---|---|---|---|
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
_MOST: Final = {ConfigType.SHORT: 2**15 - 1, ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}


def page() -> str:
    """The content of the page."""
    rows = [
        f"| `{name}` | {_default(config)} | {_values(config)} | {_does(config)} |"
        for name, config in sorted(STARTUP_CONFIGS.items())
    ]
    topics = [_topic_row(config) for _, config in sorted(TOPIC_CONFIGS.items())]
    return _HEAD + "\n".join(rows) + "\n" + _TOPICS + "\n".join(topics) + "\n"


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
            assert config.type is ConfigType.BOOLEAN
            return "`true`, `false`"
        case _:
            return "text"


def _does(config: ConfigDef) -> str:
    beyond = " ([beyond it](limits.md))" if config.name in LIMITS else ""
    return config.documentation.replace("|", "\\|") + beyond


if __name__ == "__main__":
    PAGE.write_text(page())
