"""When the collection of flush records reads what other agents did, and when it rewrites.

    every `sealed_interval_ms` ─────────────────┐
    a session ended ── `ended_ms` later ────────┴──▶ sessions, sealed ends, topics
    a topic is deleted ─────────────────────────────▶ topics only

    rewrites: at once, one after the other ── a failed one, or stores that fail ──▶ later

Pure.
"""

from enum import Enum
from typing import Final

from driftlog_agents.log.consolidation.policy import ConsolidationLag, ConsolidationSettings

RETRY_MS: Final = 10_000
"""Time before the next rewrite after a failed one."""


class LookSchedule:
    """The looks at what other agents did.

    Args:
        now_ms: the session begins; an earlier one of this agent may have ended.
    """

    def __init__(self, settings: ConsolidationSettings, now_ms: float) -> None:
        self._settings = settings
        self._due_ms = now_ms + settings.sealed_interval_ms
        self._session_ended = True

    def session_ended(self) -> None:
        """A session is no longer in the view."""
        self._session_ended = True

    def wait_ms(self, now_ms: float) -> float:
        """How long until a look is due in any case."""
        return self._due_ms - now_ms

    @property
    def delay_ms(self) -> float:
        """How long a look that is wanted is put off: takeovers read the records of a dead session
        first."""
        return self._settings.ended_ms if self._session_ended else 0.0

    def takes_all(self, now_ms: float) -> bool:
        """Whether the look that begins now is at everything; False: at topics only."""
        if not (self._session_ended or now_ms >= self._due_ms):
            return False
        self._session_ended = False
        return True

    def looked(self, now_ms: float) -> None:
        """A look at everything has ended."""
        self._due_ms = now_ms + self._settings.sealed_interval_ms


class RewriteSchedule:
    """The rewrites: one at a time, none soon after a failed one."""

    def __init__(self) -> None:
        self._retry_at_ms = 0.0

    def may_begin(self, now_ms: float, *, flushes_fail: bool) -> bool:
        """Whether a rewrite may begin.  While flushes fail, its PUTs would fail as well."""
        return now_ms >= self._retry_at_ms and not flushes_fail

    def failed(self, now_ms: float) -> None:
        """A store failed, or refused the transaction."""
        self._retry_at_ms = now_ms + RETRY_MS


class LagNews(Enum):
    """A change that operators are told of."""

    NONE = "none"
    BEHIND = "behind"
    CAUGHT_UP = "caught up"


def hold_back(lag: ConsolidationLag, waiting: int, *, failing: bool) -> LagNews:
    """Updates *lag*: *waiting* records of this session wait for a rewrite.  While rewrites fail,
    producers do not wait: it would not help, and might last for days."""
    was_behind = lag.behind
    lag.update(0 if failing else waiting)
    if lag.behind and not was_behind:
        return LagNews.BEHIND
    if was_behind and not lag.behind and not failing:
        return LagNews.CAUGHT_UP
    return LagNews.NONE
