"""Bugs to be planted about agents of a cluster that is restored beside them: see `planted`."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from tests.simulation.loop import _FREEZER, Freezer
from tests.simulation.planted import Plant


def nobody_looks_whose_the_bucket_is(patch: pytest.MonkeyPatch) -> None:
    """Commits and edits go on, whatever the newest cluster file says."""

    async def hold(_: ClusterFile, patience_ms: float = 0.0) -> None:
        return None

    patch.setattr(ClusterFile, "hold", hold)
    patch.setattr(ClusterFile, "holds", lambda _: True)
    patch.setattr(ClusterFile, "is_due", lambda _: False)


def looks_count_from_their_answers(patch: pytest.MonkeyPatch) -> None:
    """A file that was created while the answer travelled is not seen for longer than a minute."""
    found = ClusterFile._found

    def from_the_answer(self: ClusterFile, number: int, there: str, _: float) -> None:
        found(self, number, there, self._now_ms())

    patch.setattr(ClusterFile, "_found", from_the_answer)


def looks_age_by_a_clock_that_stops(patch: pytest.MonkeyPatch) -> None:
    """The time during which the machine is suspended does not count."""
    stood_still_s: defaultdict[Freezer, float] = defaultdict(float)
    freeze, thaw, make = Freezer.freeze, Freezer.thaw, ClusterFile.__init__

    def freezes(self: Freezer) -> None:
        freeze(self)
        stood_still_s[self] -= self._loop.now_s

    def thaws(self: Freezer, **options: Any) -> None:
        if self.frozen:
            stood_still_s[self] += self._loop.now_s
        thaw(self, **options)

    def made(
        self: ClusterFile,
        objects: Any,
        cluster_id: str,
        grace: Any,
        now_ms: Callable[[], float],
        **options: Any,
    ) -> None:
        own = _FREEZER.get()
        assert own is not None
        make(
            self,
            objects,
            cluster_id,
            grace,
            lambda: now_ms() - stood_still_s[own] * 1000,
            **options,
        )

    patch.setattr(Freezer, "freeze", freezes)
    patch.setattr(Freezer, "thaw", thaws)
    patch.setattr(ClusterFile, "__init__", made)


RESTORED_BUGS: tuple[Plant, ...] = (
    nobody_looks_whose_the_bucket_is,
    looks_count_from_their_answers,
    looks_age_by_a_clock_that_stops,
)
