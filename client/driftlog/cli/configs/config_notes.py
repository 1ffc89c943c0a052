"""Configs without an effect, by the documentation in DescribeConfigs.

librdkafka does not request the documentation: these commands do it themselves, over plaintext.
Without plaintext they print no note.
Shell.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from driftlog.cli.common.errors import CommandError
from driftlog.cli.common.output import complain
from driftlog.cli.connection.cluster_client import ClusterClient, any_broker
from driftlog.cli.connection.connection import address_of
from driftlog.cli.connection.wire import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, Wire

_TYPES: Final = {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}
_SENTENCE_END: Final = re.compile(r"(?<=\.)\s+")
_NO_EFFECT: Final = re.compile(r"\b(changes nothing here|does nothing until)\b")


def no_effect(documentation: str | None) -> str | None:
    """The documentation's sentence about a config without an effect; None: it has one."""
    for sentence in _SENTENCE_END.split(documentation or ""):
        if _NO_EFFECT.search(sentence):
            return sentence
    return None


def config_notes(cluster: ClusterClient, kind: str, name: str) -> dict[str, str]:
    """The sentences of `no_effect`, by config of this topic, broker or group."""
    try:
        if kind == "broker":
            address = address_of(cluster.metadata().brokers[int(name)])
        else:
            address = any_broker(cluster)
        with Wire(cluster.options, address) as wire:
            found = wire.describe_configs(_TYPES[kind], name)
    except CommandError:  # TLS, or a broker without documentation of configs
        return {}
    notes = {config.name: no_effect(config.documentation) for config in found}
    return {name: note for name, note in notes.items() if note is not None}


def say_notes(names: Iterable[str], notes: Mapping[str, str]) -> None:
    """Print which of the configs *names* have no effect."""
    for name in dict.fromkeys(names):
        if name in notes:
            complain(f"note: {name}: {notes[name]}")
