"""What a restore did, for people and for programs.

Pure.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class EmptyRange:
    """Offsets of a partition that have no records: they were given out, or may have been."""

    partition: str
    base: int
    end: int


@dataclass(slots=True, kw_only=True)
class RestoreReport:
    """See the module."""

    from_id: str
    to_id: str | None
    """None: a dry run, and no restore has begun."""
    dry_run: bool = False
    """Nothing was written: the counts are of what a restore would do."""
    was_restored: bool = False
    """An earlier run has restored everything that it could."""
    refused: str = ""
    """Why a restore ends before it seals anything, for a dry run."""
    topics: int = 0
    partitions: int = 0
    sessions: int = 0
    flush_objects: int = 0
    joined_records: int = 0
    """Records that came back from flush objects; sealed ones are not counted."""
    groups: int = 0
    groups_revision: int | None = None
    """Revision of the metadata store at which the groups' offsets were read; None: there is no
    snapshot."""
    refuted: dict[str, str] = field(default_factory=dict)
    """Objects that were never committed, and why."""
    empty: list[EmptyRange] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Objects that cannot be read, and why: their records may be missing."""
    offline: dict[str, str] = field(default_factory=dict)
    """Partitions that have no leader until the object is put back and the restore runs again."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Topics and configs that are not restored, and why."""
    not_believed: dict[str, str] = field(default_factory=dict)
    """Offsets of groups above which no partition goes on, and why."""

    @property
    def is_whole(self) -> bool:
        """Whether all that the bucket should have is restored."""
        return not (self.unreadable or self.offline or self.left_out)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)
