"""Bugs to be planted of what cannot be read now, and of hand-overs while the bucket hangs.

Seeds of `untrue_absence` and `hanging_bucket` can notice them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import pytest

from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.led_partitions import LedPartitions
from driftlog_agents.log.objects.availability import Availability, FailedRequests, ReadVerdict
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_metadata.schema.model import TopicPartition

Plant = Callable[[pytest.MonkeyPatch], None]

_FOR_EVER_MS: Final = 1e9


def _one_request_proves_it(patch: pytest.MonkeyPatch) -> None:
    """A read is not repeated before its object counts as unavailable."""

    def failed(self: FailedRequests, now_ms: float, *, answered: bool) -> ReadVerdict:
        self.due_ms = self.due_ms or now_ms
        return ReadVerdict.UNAVAILABLE if answered or self.bucket_answers else ReadVerdict.PROBE

    patch.setattr(FailedRequests, "failed", failed)


def absence_is_believed(patch: pytest.MonkeyPatch) -> None:
    """One 404 of a flush object puts partitions offline until somebody starts the agent again."""
    _one_request_proves_it(patch)
    original = Takeover.give_back

    async def give_back(self: Takeover, taken: Taken, tps: Collection[TopicPartition]) -> None:
        for tp in [tp for tp in tps if "not found" in taken.unreadable.get(tp, "")]:
            taken.logs[tp].state = State.OFFLINE
            taken.logs[tp].offline_reason = taken.unreadable.pop(tp)
        await original(self, taken, list(taken.unreadable))

    patch.setattr(Takeover, "give_back", give_back)


def never_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    """What could not be read once is not looked for again."""
    _one_request_proves_it(patch)
    original = Availability._failed

    def failed(self: Availability[Any], what: Any, now_ms: float, jitter: float) -> bool:
        says = original(self, what, now_ms, jitter)
        self._missed[what].due_ms = now_ms + _FOR_EVER_MS
        return says

    patch.setattr(Availability, "_failed", failed)


def _without_a_probe(patch: pytest.MonkeyPatch) -> None:
    async def unprobed(_: Handover) -> bool:
        return True

    patch.setattr(Handover, "_bucket_answers", unprobed)


def moved_without_a_probe(patch: pytest.MonkeyPatch) -> None:
    """Partitions are handed over whether the bucket answers or not.

    (In `agents.test_left_out`: what is busy stays while it cannot be flushed, and an agent that
    joins a bucket that hangs is not ready, so hardly a seed notices.)
    """
    _without_a_probe(patch)
    # Until the first flush has failed it is not known that none succeeds.
    patch.setattr(
        Handover, "_not_yet_ms", lambda self: self._assignments.planned_ms + 300 - self._now_ms()
    )


async def _stop_and_wait(handover: Handover, logs: Sequence[PartitionLog]) -> None:
    handover.retire_all(logs)
    handover._flusher.hurry()
    while any(log.high_watermark < log.log_end for log in logs):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await handover.release(logs)


def stopped_and_released_together(patch: pytest.MonkeyPatch) -> None:
    """All that is to be moved is stopped at once, and released when the last flush is committed."""
    _without_a_probe(patch)

    async def move(self: Handover, logs: Sequence[PartitionLog]) -> None:
        await _stop_and_wait(self, logs)
        await self._led_by_others(logs)

    patch.setattr(Handover, "_move", move)


def stopped_before_its_last_flush(patch: pytest.MonkeyPatch) -> None:
    """A busy partition is stopped, and then its last flush is waited for, however long it takes."""

    async def stop(self: Handover, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        await _stop_and_wait(self, logs)
        return list(logs)

    patch.setattr(Handover, "_stop", stop)


def never_admitted_again(patch: pytest.MonkeyPatch) -> None:
    """Batches of a partition whose last flush takes too long to move it wait for good."""
    patch.setattr(LedPartitions, "resume", lambda *_: None)


UNAVAILABLE_BUGS: tuple[Plant, ...] = (
    absence_is_believed,
    never_looked_for_again,
    stopped_and_released_together,
    stopped_before_its_last_flush,
    never_admitted_again,
)
