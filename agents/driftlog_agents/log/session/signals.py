"""What the parts of one session tell the rest of the agent, and how they slow its producers.

Pure.
"""

from dataclasses import dataclass

from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session_health import SessionHealth


@dataclass(frozen=True, slots=True)
class SessionSignals:
    """Each part writes its own counters, its own tracker and its own reason."""

    counters: LogCounters
    health: SessionHealth
    backpressure: Backpressure
