"""The way of one Produce request through the agent, for a tracing system.

    received ──▶ flush cut ──▶ PUT ──▶ stored ──▶ commit ──▶ committed ──▶ answered     acks=all
    received ──▶ buffer file synced ──▶ answered                                        acks=1

Of the requests of one batch those are traced that are timed (`handlers/common/request_times`): ten
a second at most.  Without a `ProduceTraces` no request has a cost of it.

Port: an implementation keeps or sends what it is told, and neither waits nor raises.
"""

from dataclasses import dataclass
from typing import Protocol

from driftlog_agents.log.ingest.flush_effects import FlushTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceTrace:
    """One answered request; times by the agent's clock, ms."""

    topic: str
    partition: int
    client: str
    outcome: str
    """``committed``, ``synced``, or the name of Kafka's error."""
    base_offset: int
    """−1: it was refused."""
    received_ms: float
    """When the last bytes of the request were read from the socket, perhaps with later ones."""
    flush: FlushTimes | None
    """None: the answer did not wait for a flush."""
    answered_ms: float


class ProduceTraces(Protocol):
    """Where traces go."""

    def ended(self, trace: ProduceTrace) -> None:
        """A request was answered."""
        ...
