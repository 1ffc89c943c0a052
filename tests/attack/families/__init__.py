"""Attacks, a module for each family."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tests.attack.attacks import Attack
from tests.attack.families import (
    answers,
    batches,
    floods,
    fuzzing,
    groups,
    http_port,
    process,
    topics,
)

ALL: Final[Mapping[str, tuple[type[Attack], ...]]] = MappingProxyType(
    {
        "answers": answers.ATTACKS,
        "batches": batches.ATTACKS,
        "floods": floods.ATTACKS,
        "fuzzing": fuzzing.ATTACKS,
        "groups": groups.ATTACKS,
        "http": http_port.ATTACKS,
        "process": process.ATTACKS,
        "topics": topics.ATTACKS,
    }
)
"""By family, in the order in which they are made."""
