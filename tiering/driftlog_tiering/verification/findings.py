"""What a verification found in one partition: what is right, and what is damaged in which object.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

from driftlog_tiering.formats.manifest import SegmentRef

MOST_KEPT: Final = 1_000
"""Damaged ranges, and gaps, of one partition that a report keeps; more are counted only."""


class DamageKind(StrEnum):
    """What is wrong with an object."""

    MISSING = "missing"
    """It is named and not there."""
    NAME = "name"
    """Its key is not that of the range for which it is named."""
    SIZE = "size"
    """It has fewer or more bytes than its reference says."""
    CONTENT = "content"
    """It is whole, and another object than its reference says."""
    MANIFEST = "manifest"
    """A manifest or a list cannot be read, or contradicts itself."""
    FOOTER = "footer"
    """A segment's footer cannot be read, or contradicts the reference."""
    COUNT = "count"
    """The number of records or segments is not that of the reference."""
    CRC = "crc"
    """A row group or a batch has other bytes than were written."""
    ROWS = "rows"
    """The rows are not those that footer and reference describe."""
    HOLE = "hole"
    """Offsets without a record, which neither compaction nor an accepted loss explains."""
    PRODUCERS = "producers"
    """The snapshot of idempotent producers cannot be read, or is of another offset."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The records ``[base, end)`` cannot be trusted, because of the object *key*.

    ``end`` None: all records from *base* on.
    """

    kind: DamageKind
    base: int
    end: int | None
    key: str
    detail: str

    def __str__(self) -> str:
        end = "end" if self.end is None else self.end
        return f"[{self.base}, {end}) {self.kind}: {self.key}: {self.detail}"

    @property
    def advice(self) -> str:
        """What an operator does about it."""
        if self.kind is DamageKind.HOLE:
            return _SEARCH
        if self.kind is DamageKind.NAME:
            return _REPORT
        if not self.key.endswith(_SEGMENTS):
            return _RESTORE_ONLY
        return _RESTORE_MISSING if self.kind is DamageKind.MISSING else _RESTORE_DAMAGED


_SEGMENTS: Final = (".parquet", ".raw")

_RESTORE: Final = "bring the object back under its key: an older version in the bucket, a replica"
_RESTORE_MISSING: Final = (
    f"{_RESTORE}; if it is gone for good, `driftlog partitions accept-loss TOPIC:PARTITION` makes "
    "its range empty"
)
_RESTORE_DAMAGED: Final = (
    f"{_RESTORE}; if there is none, keep a copy of the damaged object, delete it from the bucket, "
    "and `driftlog partitions accept-loss TOPIC:PARTITION` makes its range empty"
)
_RESTORE_ONLY: Final = f"{_RESTORE}; accept-loss does not cover it"
_SEARCH: Final = (
    "records are missing from the sealed log: keep the bucket's older versions and report it; "
    "`driftlog gc --dry-run` lists the objects that no manifest names, which may have them"
)
_REPORT: Final = "reads do not depend on the name: no record is lost; report it"


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """``missing`` offsets of ``[base, end)`` have no record; *key*: of the segment, or manifest."""

    base: int
    end: int
    missing: int
    key: str


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """See the module.

    Counts are of what was found right, also of what a rewrite replaced meanwhile.
    """

    topic: str
    topic_id: UUID
    partition: int
    manifest: str | None = None
    """Key of the newest manifest that was read; None: nothing is sealed, or none can be read."""
    log_start: int = 0
    end: int = 0
    """The sealed end: records from here on are in flush objects, which are not verified."""
    segments: int = 0
    lists: int = 0
    undecodable: int = 0
    """``.raw`` segments among `segments`: batches as they came."""
    records: int = 0
    size_bytes: int = 0
    gap_offsets: int = 0
    """Offsets above log start without a record, which compaction or an accepted loss explains, or
    which are among `damage`."""
    gaps: list[OffsetGap] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    is_deleted: bool = False
    """The topic was deleted meanwhile: nothing of it is damage."""
    more_damage: int = 0
    """Damaged ranges that `damage` does not hold."""

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_unknown(self) -> bool:
        """Whether no manifest can be read: nothing is known of the sealed log, also where the
        counts are 0."""
        return self.manifest is None and bool(self.damage)

    @property
    def damaged(self) -> int:
        """Damaged ranges."""
        return len(self.damage) + self.more_damage

    def add_damage(self, found: Sequence[Damage]) -> None:
        """Keep *found*, as far as there is room."""
        room = max(0, MOST_KEPT - len(self.damage))
        self.damage += found[:room]
        self.more_damage += len(found[room:])

    def add_gaps(self, found: Sequence[OffsetGap], base: int, end: int) -> None:
        """Count those in ``[base, end)``, and keep them as far as there is room."""
        for gap in found:
            start, stop = max(gap.base, base), min(gap.end, end)
            if start >= stop:
                continue
            missing = min(gap.missing, stop - start)
            self.gap_offsets += missing
            if len(self.gaps) < MOST_KEPT:
                self.gaps.append(OffsetGap(start, stop, missing, gap.key))

    def add_segment(self, ref: SegmentRef, *, undecodable: bool) -> None:
        """Count a segment that is right."""
        self.segments += 1
        self.undecodable += undecodable
        self.records += ref.records
        self.size_bytes += ref.size_bytes
