"""Bugs to be planted in retention: what goes too early, too far or never, or in the wrong order."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.retention import policy, segment_expiry
from driftlog_agents.log.retention.checks import LastCheck
from driftlog_agents.log.retention.policy import Expiry
from driftlog_agents.log.retention.segment_expiry import SegmentExpiry
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_metadata.schema.model import PartitionState
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from tests.simulation.deletions import has_deletions
from tests.simulation.expiry_seeds import has_retention
from tests.simulation.planted import Plant

_LATE_S, _LATER_S = 1.5, 5.0


async def _write_anyway(self: RecordDeletion, log: PartitionLog, offset: int, *_wanted: Any) -> int:
    """The end of `delete_to`, with nothing looked at before."""

    def deleted(state: PartitionState) -> PartitionState:
        return replace(state, log_start=offset)

    await self._keys.write(log, deleted)
    return log.log_start


def what_is_not_committed_expires(patch: pytest.MonkeyPatch) -> None:
    """A log that has expired starts at its end, not at the last stable offset."""
    original = policy.check

    def check(log: PartitionLog, *args: Any) -> Any:
        found = original(log, *args)
        if isinstance(found, Expiry) and found.log_start == log.high_watermark:
            return replace(found, log_start=log.log_end)
        return found

    patch.setattr(segment_expiry, "check", check)
    patch.setattr(RecordDeletion, "delete_to", _write_anyway)


def segments_expire_by_their_smallest_timestamp(patch: pytest.MonkeyPatch) -> None:
    """A segment goes when its first record is old, with records that are not."""
    original = policy._Front.largest_ms

    def smallest_ms(self: Any, piece: Any, now_ms: int) -> int:
        if isinstance(piece, SegmentRef) and piece.min_timestamp_ms >= 0:
            return piece.min_timestamp_ms
        return original(self, piece, now_ms)

    patch.setattr(policy._Front, "largest_ms", smallest_ms)


def what_is_not_adopted_counts_twice(patch: pytest.MonkeyPatch) -> None:
    """A segment of a manifest that is ahead of the key counts beside the same batches in the tail.

    (Until seed 147 it did.)
    """

    def all_refs(_: PartitionLog, manifest: Manifest | None) -> list[Any]:
        return [] if manifest is None else [*manifest.lists, *manifest.segments]

    patch.setattr(policy, "sealed_refs", all_refs)


class _LateDeletion:
    """Writes a log start a while after it was found, as it was found."""

    def __init__(self, deletion: RecordDeletion) -> None:
        self._deletion = deletion

    async def delete_to(self, log: PartitionLog, offset: int, *_wanted: Any) -> int:
        await asyncio.sleep(_LATER_S)
        return await _write_anyway(self._deletion, log, offset)


def log_start_of_an_old_read(patch: pytest.MonkeyPatch) -> None:
    """The log start that was found is written, however far it moved since."""
    original = SegmentExpiry.__init__

    def init(self: Any, **ports: Any) -> None:
        ports["deletion"] = _LateDeletion(ports["deletion"])
        original(self, **ports)

    patch.setattr(SegmentExpiry, "__init__", init)


def manifest_moves_before_the_key(patch: pytest.MonkeyPatch) -> None:
    """The sealer moves the manifest's log start while the partition's key is not written."""
    original = RecordDeletion.delete_to

    async def delete_to(self: RecordDeletion, log: PartitionLog, offset: int, *wanted: Any) -> int:
        before, log.log_start = log.log_start, max(log.log_start, offset)
        await asyncio.sleep(_LATE_S)
        log.log_start = before
        return await original(self, log, offset, *wanted)

    patch.setattr(RecordDeletion, "delete_to", delete_to)


def checked_once(patch: pytest.MonkeyPatch) -> None:
    """A partition of which nothing was due is not looked at again."""
    patch.setattr(LastCheck, "holds", lambda *_: True)


def failed_moves_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A log start that could not be stored passes for moved."""
    original = RecordDeletion.delete_to

    async def delete_to(self: RecordDeletion, log: PartitionLog, offset: int, *wanted: Any) -> int:
        try:
            return await original(self, log, offset, *wanted)
        except (FencedError, UnavailableError):
            log.log_start = offset
            return offset

    patch.setattr(RecordDeletion, "delete_to", delete_to)


def both(seed: int) -> bool:
    """Whether records expire and are deleted."""
    return has_retention(seed) and has_deletions(seed)


def by_size(seed: int) -> bool:
    """Whether records expire by size."""
    return has_retention(seed) and seed // 100 % 2 == 1


def by_time(seed: int) -> bool:
    """Whether records expire by time."""
    return has_retention(seed) and not by_size(seed)


RETENTION_BUGS: tuple[Plant, ...] = (
    what_is_not_committed_expires,
    segments_expire_by_their_smallest_timestamp,
    what_is_not_adopted_counts_twice,
    log_start_of_an_old_read,
    manifest_moves_before_the_key,
    checked_once,
    failed_moves_are_forgotten,
)
"""And the seeds in which they are looked for."""
