"""The machine of classic groups, and an agent with it, say what Apache Kafka says, line by line.

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
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars

_AT_ONCE: Final = 12
"""Transcripts: most of their time is waiting."""


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


@pytest.mark.skipif(kafka_jars() is None, reason="no Java, or no jars of Kafka")
@pytest.mark.verify
@pytest.mark.real_processes
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("kafka_tools")
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
        written = play_to(kafka.port, transcripts, transcripts)

    assert {name: lines_of(said) for name, said in transcripts.items()} == written


def test_an_agent_says_it_too(tmp_path: Path) -> None:
    """Through its sockets, handlers and store: all that needs no other configs than Kafka's."""
    usual = {
        name: transcript
        for name, transcript in TRANSCRIPTS.items()
        if "session=" not in transcript and not name.startswith("a full")
    }
    assert len(usual) > len(TRANSCRIPTS) / 2

    with DriftlogProcess(parent=tmp_path) as agent:
        written = play_to(agent.port, usual, TRANSCRIPTS)

    assert {name: lines_of(said) for name, said in usual.items()} == written


def play_to(
    port: int, transcripts: Mapping[str, str], library: Mapping[str, str]
) -> dict[str, list[str]]:
    """What the broker on *port* makes of each, all of them at a time."""
    prepare(port)

    def play_one(transcript: str) -> list[str]:
        with BrokerWorld(port) as world:
            return play(transcript, world, library)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        written = pool.map(play_one, transcripts.values())
        return dict(zip(transcripts, written, strict=True))
