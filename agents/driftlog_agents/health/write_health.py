"""When an agent that cannot commit gives its partitions up, and when it takes some again.

    FIT ── cannot commit ──10 s──▶ looks at the others' heads, every 5 s, and asks which could
     ▲                                  │ 30 s, and just now one of them has moved, or one said so
     │ a probe succeeds                 ▼
     └────────────── UNFIT: its lease is revoked, and it begins no session

1. While no other agent could commit either (the store is down for all) it goes on: others would
   be no better, and what it has cached is read meanwhile.
2. Nor does it where no other agent lives.
3. One that falls out again soon after it was let in waits longer every time.

Times are of a clock that never goes back.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHealthSettings:
    """How long an agent may fail alone, and how it comes back."""

    patience_ms: float = 30_000
    """Without a commit, while others do.  Shorter: partitions move for what would have passed by
    itself; longer: their producers wait as long."""

    look_after_ms: float = 10_000
    """Of failing, before others are looked at."""

    look_every_ms: float = 5_000
    """Each look reads the heads of all sessions of a week."""

    probe_ms: float = 1_000
    """Before the first probe and between two; twice as long each time that it was for nothing."""

    max_probe_ms: float = 60_000

    proven_ms: float = 600_000
    """An agent that has been fit for so long begins anew."""


class Step(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    LOOK = "look"
    """Read what the other live sessions have done, then `looked`."""
    STEP_DOWN = "step down"


class WriteHealth:
    """See the module.  Outlives sessions; `tick` while there is one, `wait_ms` while unfit."""

    def __init__(self, settings: WriteHealthSettings | None = None) -> None:
        self._settings = settings or WriteHealthSettings()
        self.unfit = False
        self._since_ms: float | None = None
        self._done: dict[str, int] = {}
        self._look_at_ms = _FOREVER
        self._moved_ms = -_FOREVER
        """When a count was last found to have grown."""
        self._probe_ms = self._settings.probe_ms
        self._fit_since_ms = 0.0

    def tick(self, failing_since_ms: float | None, now_ms: float) -> Step:
        """*failing_since_ms*: when what could not be done was first tried; None: all can be, or it
        is another thing from now on, of which others have shown nothing yet."""
        settings = self._settings
        if failing_since_ms is None:
            self._since_ms = None
            return Step.NOTHING
        if self._since_ms is None:
            self._done = {}
            self._moved_ms = -_FOREVER
            self._look_at_ms = failing_since_ms + settings.look_after_ms
        self._since_ms = failing_since_ms
        if now_ms >= self._look_at_ms:
            return Step.LOOK
        if (
            now_ms - failing_since_ms >= settings.patience_ms
            and now_ms - self._moved_ms <= 2 * settings.look_every_ms
        ):
            self.step_down(now_ms)
            return Step.STEP_DOWN
        return Step.NOTHING

    def looked(self, done: Mapping[str, int] | None, now_ms: float) -> None:
        """Counts of what each *other* live session has done, by any name; None: not known."""
        self._look_at_ms = now_ms + self._settings.look_every_ms
        if done is None:
            return
        if any(count > self._done.get(name, count) for name, count in done.items()):
            self._moved_ms = now_ms
        self._done = dict(done)

    def asks(self, now_ms: float) -> bool:
        """Whether others are to be asked: as long as they are looked at."""
        since_ms = self._since_ms
        return since_ms is not None and now_ms - since_ms >= self._settings.look_after_ms

    # ── Unfit ──

    def step_down(self, now_ms: float) -> None:
        """It is unfit from now on, by `tick` or because its disk is found to fail."""
        self.unfit = True
        self._since_ms = None
        if now_ms - self._fit_since_ms >= self._settings.proven_ms:
            self._probe_ms = self._settings.probe_ms

    @property
    def wait_ms(self) -> float:
        """Before the next probe; jitter is the caller's."""
        return self._probe_ms

    def probed(self, now_ms: float, *, succeeded: bool) -> None:
        """A probe was made."""
        assert self.unfit
        self._probe_ms = min(self._probe_ms * 2, self._settings.max_probe_ms)
        if succeeded:
            self.unfit = False
            self._fit_since_ms = now_ms
