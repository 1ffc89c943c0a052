"""Decides when an agent that cannot commit steps down, and when it may serve again.

    FIT ── cannot commit ──10 s──▶ reads the others' heads, every 5 s, and asks which can commit
     ▲                                  │ 30 s, and a head has just moved, or an agent has answered
     │ a probe succeeds                 ▼
     └────────────── UNFIT: its lease is revoked, and it begins no session

1. While no other agent can commit either (the store is down for all), the agent does not step
   down: others would do no better, and it serves reads from its caches meanwhile.
2. An agent without other live agents does not step down.
3. An agent that steps down again soon after it resumed waits longer every time.

Times are in ms of a monotonic clock.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHealthSettings:
    """When an agent that fails alone steps down, and how it resumes."""

    patience_ms: float = 30_000
    """Time without a commit, while others commit, until the agent steps down.  Shorter: partitions
    move for a short outage; longer: their producers wait longer."""

    look_after_ms: float = 10_000
    """Time of failing until the first check of the other agents."""

    look_every_ms: float = 5_000
    """Interval of the checks; each reads the heads of all sessions of a week."""

    probe_ms: float = 1_000
    """Time until the first probe and between two; doubled after each probe."""

    max_probe_ms: float = 60_000

    proven_ms: float = 600_000
    """An agent that has been fit for this long starts again with `probe_ms`."""


class HealthStep(Enum):
    """The next action of the caller."""

    NOTHING = "nothing"
    LOOK = "look"
    """Read the counts of the other live sessions, then call `looked`."""
    STEP_DOWN = "step down"


class WriteHealth:
    """See the module.  Outlives sessions; use `tick` during a session, `wait_ms` while unfit."""

    def __init__(self, settings: WriteHealthSettings | None = None) -> None:
        self._settings = settings or WriteHealthSettings()
        self.unfit = False
        self._since_ms: float | None = None
        self._done: dict[str, int] = {}
        self._look_at_ms = _FOREVER
        self._moved_ms = -_FOREVER
        """When a check last found that a count has grown."""
        self._probe_ms = self._settings.probe_ms
        self._fit_since_ms = 0.0

    def tick(self, failing_since_ms: float | None, now_ms: float) -> HealthStep:
        """The next step.

        Args:
            failing_since_ms: the first failed attempt; None: nothing fails, or another operation
                begins to fail, so that earlier counts of other agents do not apply.
        """
        settings = self._settings
        if failing_since_ms is None:
            self._since_ms = None
            return HealthStep.NOTHING
        if self._since_ms is None:
            self._done = {}
            self._moved_ms = -_FOREVER
            self._look_at_ms = failing_since_ms + settings.look_after_ms
        self._since_ms = failing_since_ms
        if now_ms >= self._look_at_ms:
            return HealthStep.LOOK
        if (
            now_ms - failing_since_ms >= settings.patience_ms
            and now_ms - self._moved_ms <= 2 * settings.look_every_ms
        ):
            self.step_down(now_ms)
            return HealthStep.STEP_DOWN
        return HealthStep.NOTHING

    def looked(self, done: Mapping[str, int] | None, now_ms: float) -> None:
        """Take the counts of the *other* live sessions, by any stable name; None: unknown."""
        self._look_at_ms = now_ms + self._settings.look_every_ms
        if done is None:
            return
        if any(count > self._done.get(name, count) for name, count in done.items()):
            self._moved_ms = now_ms
        self._done = dict(done)

    def asks(self, now_ms: float) -> bool:
        """Whether to ask the other agents: True as long as they are checked."""
        since_ms = self._since_ms
        return since_ms is not None and now_ms - since_ms >= self._settings.look_after_ms

    # ── Unfit ──

    def step_down(self, now_ms: float) -> None:
        """Become unfit, by `tick` or because the disk fails."""
        self.unfit = True
        self._since_ms = None
        if now_ms - self._fit_since_ms >= self._settings.proven_ms:
            self._probe_ms = self._settings.probe_ms

    @property
    def wait_ms(self) -> float:
        """Wait before the next probe; the caller adds jitter."""
        return self._probe_ms

    def probed(self, now_ms: float, *, succeeded: bool) -> None:
        """Take the result of a probe."""
        assert self.unfit
        self._probe_ms = min(self._probe_ms * 2, self._settings.max_probe_ms)
        if succeeded:
            self.unfit = False
            self._fit_since_ms = now_ms
