"""Bugs to be planted in what goes by age, or by how many sessions there were: when it is sealed.

Seeds 80 to 89 of a hundred can notice the former: `restarts`; and 20 to 29 what is forgotten of
producers: `many_producers`.
"""

from typing import Any, Final

import pytest

from driftlog_agents.log.ingest.admission import Admission, Admitted
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing import policy as seal_policy
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches.producers import ProducerStates
from tests.simulation.planted import Plant

_MANY: Final = 5


def age_begins_with_the_leader(patch: pytest.MonkeyPatch) -> None:
    """`segment.ms` counts from when this leader knew of a batch: a restart begins it anew."""

    def age_ms(self: PartitionLog, now_ms: float, wall_ms: float) -> float:
        return now_ms - self._known_ms[0] if self.slices else 0.0

    patch.setattr(PartitionLog, "unsealed_age_ms", age_ms)


def age_by_wall_clocks_alone(patch: pytest.MonkeyPatch) -> None:
    """A wall clock that stands, or was set back, postpones sealing."""

    def age_ms(self: PartitionLog, now_ms: float, wall_ms: float) -> float:
        return wall_ms - self._flushed_ms[0] if self.slices else 0.0

    patch.setattr(PartitionLog, "unsealed_age_ms", age_ms)


def sessions_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A partition's key has a session for each start of an agent, until something else seals it."""
    patch.setattr(seal_policy, "unsealed_sessions", lambda _, __: set())


def producers_forgotten_by_count(patch: pytest.MonkeyPatch) -> None:
    """A partition remembers so many producers: a retry behind others is appended twice."""
    original = ProducerStates.append

    def append(self: ProducerStates, *args: Any) -> None:
        original(self, *args)
        if len(self) > _MANY:
            self._pop(next(iter(self._silent or self._writing)))

    patch.setattr(ProducerStates, "append", append)


def producers_forgotten_while_they_live(patch: pytest.MonkeyPatch) -> None:
    """One is forgotten before it was silent for as long as is said."""
    original = ProducerStates.age

    def age(self: ProducerStates, now_ms: float, expiration_ms: float, most: int = 100) -> bool:
        return original(self, now_ms, expiration_ms / 4, most)

    patch.setattr(ProducerStates, "age", age)


def budget_refuses_those_that_are_known(patch: pytest.MonkeyPatch) -> None:
    """A full budget stops every idempotent producer."""
    original = Admission.admit

    def admit(self: Admission, log: Any, view: Any, checked: Any, *rest: Any) -> Admitted:
        if self._producers.full and checked[2] >= 0:
            raise RefusedError(ErrorCode.NOT_ENOUGH_REPLICAS, self._producers.refusal())
        return original(self, log, view, checked, *rest)

    patch.setattr(Admission, "admit", admit)


AGE_BUGS: tuple[Plant, ...] = (
    age_begins_with_the_leader,
    age_by_wall_clocks_alone,
    sessions_not_counted,
    producers_forgotten_by_count,
    producers_forgotten_while_they_live,
    budget_refuses_those_that_are_known,
)
"""And the seeds in which they are looked for."""
