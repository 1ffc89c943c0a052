"""The lease of one session, by the agent's own clock: how long it is valid, when it is renewed.

    opened ──▶ valid until (when the last good keep-alive was *sent* + TTL) ──▶ over
                 ▲                                      │
                 └── a keep-alive every TTL / 3 ────────┘

1. Until the end of its validity the store gives no other session the partitions of this one.
2. A session that is over stays over: no later answer to a keep-alive revives it.
3. A store that is not the one that the process has seen (`witness`) ends the session at once.
4. An event loop that has not ticked for a whole TTL serves no client: the session must end.

Each field that a thread of keep-alives shares with the event loop has one writer or one value.

Pure.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from driftlog_metadata.schema.model import AgentRelease
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.witness.witness import StoreWitness

_UNCHANGED_TIMEOUTS: Final = 2
_LONGER_TIMES: Final = 2
"""After two timeouts, which may be lost answers, deadlines double up to twice: a store that needs
more time for each answer would never be heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How long an agent may be silent, and how long it waits for the store."""

    ttl_ms: int = 6_000
    """The lease's time to live.  Shorter: a dead agent's partitions move sooner, a slow one loses
    its session."""

    request_deadline_ms: float = 1_000
    """How long one keep-alive or transaction may take before it is repeated; up to four times as
    long after several without an answer, until the store answers in time again."""

    retry_ms: float = 100

    knows: AgentRelease = field(default_factory=AgentRelease)
    """The release and the format level that the session's keys say."""


class SessionLease:
    """See the module."""

    __slots__ = ("_ended_by", "_settings", "_ticked_ms", "_witness", "renewed_until_ms", "timeouts")

    def __init__(self, settings: SessionSettings, witness: StoreWitness) -> None:
        self._settings = settings
        self._witness = witness
        self._ended_by = ""
        """Why the session is over; set once, by the first component that learns of it, never
        cleared."""
        self._ticked_ms = math.inf
        """When the event loop last ticked; inf: keep-alives are sent on it."""
        self.renewed_until_ms = 0.0
        """The end of the lease, whether the session is over or not."""
        self.timeouts = 0
        """Requests that timed out since the last answer within `request_deadline_ms`."""

    # ── Validity ──

    @property
    def valid_until_ms(self) -> float:
        """Until then no other session has the partitions of this one; 0: the session is over."""
        ended = self._ended_by or self._witness.evidence is not None
        return 0.0 if ended else self.renewed_until_ms

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, other than by its clock."""
        return bool(self._ended_by)

    def end(self, why: str) -> None:
        """The session serves nothing more, whatever its lease."""
        self._ended_by = self._ended_by or why

    def end_if_store_changed(self) -> None:
        """End the session if the store is not the one that this process has seen."""
        if self._witness.evidence is not None:
            self.end(self._witness.evidence.reason)

    def check(self, now_ms: float) -> None:
        """Check that the session lives.

        Raises:
            FencedError: it is over, or its lease has ended by our own clock.
        """
        self.end_if_store_changed()
        if self._ended_by:
            raise FencedError(f"the session is over: {self._ended_by}")
        if now_ms >= self.valid_until_ms:
            raise FencedError("the session's lease could not be renewed in time")

    # ── Renewal ──

    def renewed(self, sent_ms: float) -> None:
        """The store granted or renewed the lease by a request that was sent at *sent_ms*."""
        self.renewed_until_ms = sent_ms + self._settings.ttl_ms

    def must_repeat(self, sent_ms: float, now_ms: float) -> bool:
        """Whether the grant took too long: it may have taken effect at its first attempt."""
        return now_ms - sent_ms > self._settings.ttl_ms / 2

    def renewal_in_ms(self, now_ms: float) -> float:
        """Time until the next keep-alive, which counts from when the last one was sent: its answer
        may have taken long."""
        return max(0.0, self.renewed_until_ms - self._settings.ttl_ms * 2 / 3 - now_ms)

    def ticked(self, now_ms: float) -> None:
        """The event loop runs."""
        self._ticked_ms = now_ms

    def stood_still_ms(self, now_ms: float) -> float:
        """For how long the event loop has stood still, if that is a whole TTL; otherwise 0."""
        since_ms = now_ms - self._ticked_ms
        return since_ms if since_ms >= self._settings.ttl_ms else 0.0

    # ── Deadlines ──

    @property
    def deadline_ms(self) -> float:
        """The deadline of the next request."""
        longer = min(max(0, self.timeouts - _UNCHANGED_TIMEOUTS), _LONGER_TIMES)
        return self._settings.request_deadline_ms * (1 << longer)

    def keep_alive_deadline_ms(self, sent_ms: float, *, in_thread: bool) -> float:
        """The deadline of one keep-alive.

        The thread's own store tries the next endpoint by itself, after a second at each: it gets
        the time for all of them.
        """
        left_ms = max(self.valid_until_ms - sent_ms, self._settings.request_deadline_ms)
        return left_ms if in_thread else min(self.deadline_ms, left_ms)

    def answered(self, took_ms: float) -> None:
        """A request was answered."""
        if took_ms < self._settings.request_deadline_ms:
            self.timeouts = 0

    def timed_out(self) -> None:
        """A request was not answered by its deadline."""
        self.timeouts += 1
