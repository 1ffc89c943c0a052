"""The machine of classic groups says what Apache Kafka says, line by line.

Shell.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.agents.groups.classic_broker import BrokerWorld, prepare
from tests.agents.groups.classic_machine import MachineWorld
from tests.agents.groups.classic_scripts import lines_of, play
from tests.agents.groups.classic_transcripts import (
    DELAYED,
    DELAYED_CONFIGS,
    DELAYED_SETTINGS,
    KAFKA_CONFIGS,
    SETTINGS,
    TRANSCRIPTS,
)
from tests.support.kafka_peer import KafkaPeer, kafka_jars

_AT_ONCE: Final = 12
"""Transcripts: most of their time is waiting."""

needs_kafka = pytest.mark.skipif(kafka_jars() is None, reason="no Java, or no jars of Kafka")


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_machine_says_what_kafka_said(name: str) -> None:
    """Every answer to every client: its fields, and after what it comes."""
    transcript = TRANSCRIPTS[name]

    written = play(transcript, MachineWorld(SETTINGS), TRANSCRIPTS)

    assert lines_of(transcript) == written


@pytest.mark.parametrize("name", DELAYED)
def test_the_machine_waits_for_others_as_kafka_did(name: str) -> None:
    """With `group.initial.rebalance.delay.ms`."""
    transcript = DELAYED[name]

    written = play(transcript, MachineWorld(DELAYED_SETTINGS), DELAYED)

    assert lines_of(transcript) == written


@needs_kafka
@pytest.mark.parametrize(
    ("transcripts", "configs"),
    [
        pytest.param(TRANSCRIPTS, KAFKA_CONFIGS, id="no delay"),
        pytest.param(DELAYED, DELAYED_CONFIGS, id="delay"),
    ],
)
def test_kafka_says_it_still(
    transcripts: Mapping[str, str], configs: Mapping[str, str], tmp_path: Path
) -> None:
    """A real Apache Kafka writes the same transcripts, each with a group of its own."""
    with KafkaPeer(tmp_path, configs) as kafka:
        prepare(kafka.port)

        def play_it(transcript: str) -> list[str]:
            with BrokerWorld(kafka.port) as world:
                return play(transcript, world, transcripts)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            written = list(pool.map(play_it, transcripts.values()))

    assert [lines_of(transcript) for transcript in transcripts.values()] == written
