"""Which agent with the role ``seal`` a leader asks next for a range, and when it writes the range
itself.

    agents of the partition, the best first ──▶ but those that failed a short time ago ──▶ asked
    written, or undecodable ──▶ over
    failed ──▶ the next one; it is left alone for a while
    all that were asked are busy ──▶ a pause, and once more; after the last pause, or while unsealed
                                     data is over its bounds: the leader

Pure.
"""

from collections.abc import Sequence
from typing import Final

from driftlog_metadata.schema.model import Agent

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
"""Between two questions while all agents are busy: a segment takes them a second or two.  Longer in
all: the leader's other partitions wait behind this one; shorter: it compresses more itself."""

LEFT_ALONE_MS: Final = 10_000.0
"""How long an agent that failed is not asked.  Longer: leaders seal for longer after it is back;
shorter: a frozen agent costs more attempts."""


class FailedAgents:
    """The agents that failed a short time ago, for all ranges of a leader."""

    def __init__(self) -> None:
        self._failed_ms: dict[int, float] = {}

    def failed(self, agent: Agent, now_ms: float) -> None:
        """*agent* gave no answer, or a wrong one."""
        self._failed_ms[agent.node_id] = now_ms

    def asked(self, agents: Sequence[Agent], now_ms: float) -> list[Agent]:
        """Those of *agents* that are asked now, in their order."""
        self._failed_ms = {
            node: at_ms for node, at_ms in self._failed_ms.items() if at_ms > now_ms - LEFT_ALONE_MS
        }
        return [agent for agent in agents if agent.node_id not in self._failed_ms]


class Questions:
    """The rounds of questions about one range."""

    def __init__(self, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._pauses_s = list(pauses_s)
        self._refused = False

    def refused(self) -> None:
        """An agent was busy."""
        self._refused = True

    def pause_s(self, *, behind: bool) -> float | None:
        """How long to wait until the agents are asked once more; None: the leader writes the range.

        Args:
            behind: unsealed data of the leader is over its bounds.
        """
        refused, self._refused = self._refused, False
        if not refused or behind or not self._pauses_s:
            return None
        return self._pauses_s.pop(0)


def is_there(agent: Agent, agents: Sequence[Agent]) -> bool:
    """Whether *agent* is among *agents*, with the session that was asked."""
    return any(each.session_id == agent.session_id for each in agents)
