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
LONGEST_MS: Final = 600_000.0
"""How long an agent that failed is not asked; doubled with each failure in a row.  Longer: leaders
seal for longer after it is back; shorter: an agent that hangs costs more attempts."""

PATIENCE_MS: Final = 20_000.0
"""How long a leader whose unsealed data is over its bounds waits for an answer."""


class FailedAgents:
    """The agents that failed a short time ago, by session, for all ranges of a leader."""

    def __init__(self) -> None:
        self._until_ms: dict[str, float] = {}
        self._alone_ms: dict[str, float] = {}

    def failed(self, agent: Agent, now_ms: float) -> None:
        """*agent* gave no answer, or a wrong one."""
        for session, until_ms in list(self._until_ms.items()):
            if until_ms + LONGEST_MS <= now_ms:  # over, or never asked since
                del self._until_ms[session]
                self._alone_ms.pop(session, None)
        session = agent.session_id
        alone_ms = min(2 * self._alone_ms.get(session, LEFT_ALONE_MS / 2), LONGEST_MS)
        self._alone_ms[session], self._until_ms[session] = alone_ms, now_ms + alone_ms

    def answered(self, agent: Agent) -> None:
        """*agent* wrote a segment."""
        self._alone_ms.pop(agent.session_id, None)

    def asked(self, agents: Sequence[Agent], now_ms: float) -> list[Agent]:
        """Those of *agents* that are asked now, in their order."""
        return [a for a in agents if self._until_ms.get(a.session_id, now_ms) <= now_ms]


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
