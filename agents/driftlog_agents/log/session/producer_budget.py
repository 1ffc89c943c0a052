"""For how long idempotent producers are remembered, and how many: the budget of one agent.

    used < budget ──▶ every producer is admitted
    used ≥ budget ──▶ batches of producers that their partition does not know are refused, with an
                      error that every client retries; known producers continue

The agent forgets no producer in favour of another: a retry of the forgotten one would be appended
twice.  A takeover loads every committed producer, and may exceed the budget; then the agent takes
no new producer until old ones expire.

Pure.
"""

from dataclasses import dataclass
from enum import Enum

from driftlog_tiering.batches.producers import EXPIRATION_MS, STATE_BYTES


@dataclass(slots=True, kw_only=True)
class ProducerSettings:
    """For how long idempotent producers are remembered, and in how much memory.  The time may
    change during a session."""

    expiration_ms: float = EXPIRATION_MS
    """`producer.id.expiration.ms`: of a producer that appends nothing to a partition.  Longer: a
    later retry is still not appended twice; shorter: producers that are gone take less memory."""

    state_bytes: int = STATE_BYTES
    """Budget of all partitions of the agent.  A producer takes 400 bytes in each partition that it
    writes to, and 16 more for each of up to 64 batches: enough for 180,000 that write, or 550,000
    that are silent.  More: more producers in a day."""


class BudgetNews(Enum):
    """A change that operators are told of."""

    NONE = "none"
    FULL = "full"
    HAS_ROOM = "has room"


class ProducerBudget:
    """The producers of one session's partitions, as last counted."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.used_bytes = 0
        self.producers = 0
        """Producers remembered, each once per partition."""
        self.full = False
        """The budget is used up."""

    def counted(self, used_bytes: int, producers: int) -> BudgetNews:
        """All partitions were counted."""
        self.used_bytes, self.producers = used_bytes, producers
        was, self.full = self.full, used_bytes >= self.settings.state_bytes
        if self.full is was:
            return BudgetNews.NONE
        return BudgetNews.FULL if self.full else BudgetNews.HAS_ROOM

    @property
    def refusal(self) -> str:
        """Why an unknown producer's batch is refused while the budget is full."""
        return (
            "the agent's memory for idempotent producers is used up "
            f"({self.settings.state_bytes} bytes); try again"
        )
