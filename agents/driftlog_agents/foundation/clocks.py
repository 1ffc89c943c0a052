"""The two clocks of an agent: one for durations, and one for what is compared with other machines.

Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Both are arguments of the process; the simulator's are virtual."""

    now_ms: Callable[[], float]
    """A monotonic clock that includes the time that the machine was suspended."""

    wall_ms: Callable[[], int]
    """Unix time in ms, by a clock that may jump or stand still."""
