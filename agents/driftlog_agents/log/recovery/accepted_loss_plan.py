"""Plans which ranges of an offline partition are lost, and where its log continues.

    │ sealed, by key and manifest │ slices │ gap │ slices │ gap │
                               start      lost         end   continues here

Gaps become empty ranges of the manifest: their offsets are never given out again.

1. Every segment in the manifest is kept, whatever the metadata store has.
2. Every flush object that a flush record names and the bucket has is kept.
3. New offsets begin above every end in the manifest and in any footer in the bucket, and above
   every record that lost objects can have held.  The offsets of those records are unknown: objects
   are rewritten under other names, sessions alternate, and a gap may be only a part of one object.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from driftlog_tiering.formats.manifest import SegmentRef

UNKNOWN_RECORDS: Final = 2**31
"""Offsets skipped for each lost object of unknown end: one batch holds no more records."""


class FoundSlice(NamedTuple):
    """``[base, end)`` of the partition in an object that the bucket has."""

    base: int
    end: int


class LogPiece(NamedTuple):
    """A range of the log above `LossPlan.start`: joined slices, or a lost range."""

    base: int
    end: int
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlan:
    """See the module."""

    start: int
    """The log below this offset is sealed."""
    pieces: tuple[LogPiece, ...]
    """Ascending, without a gap between them."""
    objects: tuple[str, ...]
    reasons: tuple[str, ...]
    """The defects; empty: no defect."""
    sealed: tuple[tuple[int, int], ...] = ()
    """Ranges of lost segments; then there are no pieces."""

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """Ranges without records."""
        return (*self.sealed, *((piece.base, piece.end) for piece in self.pieces if piece.lost))

    @property
    def goes_on_at(self) -> int:
        """Where new offsets begin.  If only segments are lost, the log above is unchanged."""
        return self.pieces[-1].end if self.pieces else self.start

    @property
    def seals(self) -> bool:
        """Whether every piece must be sealed: the manifest then has the gaps as empty ranges, and
        flush records of lost objects are needed no more."""
        return bool(self.lost or self.objects)

    def is_as_shown(self, shown: dict[str, Any]) -> bool:
        """Whether no more is lost than in the *shown* plan, as JSON.  A serving leader may have
        committed and sealed more since; the offsets for lost objects are then skipped after
        that."""
        now = self.as_json()
        if self.sealed:
            return all(now[name] == shown.get(name) for name in ("reasons", "objects", "lost"))
        if now == shown or not self.objects:
            return now == shown
        same = all(now[name] == shown.get(name) for name in ("reasons", "objects", "sealed_end"))
        try:
            gaps, goes_on_at = shown["lost"][:-1], int(shown["goes_on_at"])
        except (KeyError, TypeError, ValueError):
            return False
        return same and now["lost"][:-1] == gaps and self.goes_on_at >= goes_on_at

    def as_json(self) -> dict[str, Any]:
        """The plan as `examine` shows it, and as `accept` receives it."""
        return {
            "reasons": list(self.reasons),
            "lost": [list(lost) for lost in self.lost],
            "objects": list(self.objects),
            "serves": bool(self.sealed),
            "sealed_end": self.start,
            "goes_on_at": self.goes_on_at,
        }


def plan_sealed_loss(sealed_end: int, segments: Iterable[SegmentRef]) -> LossPlan:
    """The plan for a served partition whose *segments* are lost."""
    refs = sorted(segments, key=lambda ref: ref.base)
    return LossPlan(
        start=sealed_end,
        pieces=(),
        objects=tuple(ref.key for ref in refs),
        reasons=tuple(f"segment {ref.key} is gone" for ref in refs),
        sealed=tuple((ref.base, ref.end) for ref in refs),
    )


def is_ahead(key_end: int, manifest_end: int, slices: Iterable[FoundSlice]) -> bool:
    """Whether the manifest ends above every end that the metadata store names."""
    return manifest_end > max((key_end, *(found.end for found in slices)))


def plan_loss(
    *,
    key_end: int,
    manifest_end: int,
    slices: Iterable[FoundSlice],
    lost: Sequence[str],
    unnamed_end: int,
    missing_keys: Sequence[str],
) -> LossPlan:
    """Plans where the log continues.

    *key_end*: the sealed end in the partition's key; *lost*: objects that flush records name and
    that are missing or damaged in the bucket; *unnamed_end*: the partition's largest end in any
    flush object, for a metadata store that is older than the bucket; 0: not needed, or none.

    Raises:
        ValueError: slices overlap, so the records of the log are ambiguous.
    """
    reasons = [f"{key} is missing" for key in missing_keys]
    start = max(key_end, manifest_end)
    pieces: list[LogPiece] = []
    at = start
    found_slices = sorted(slices)
    for found in found_slices:
        if found.end <= start:
            continue
        if found.base < at and at != start:
            raise ValueError(f"[{found.base}, {found.end}) overlaps a slice that ends at {at}")
        if found.base > at:
            pieces.append(LogPiece(at, found.base, lost=True))
            reasons.append(f"no object in the bucket has offsets {at} to {found.base - 1}")
            at = found.base
        if pieces and not pieces[-1].lost:
            pieces[-1] = pieces[-1]._replace(end=found.end)
        else:
            pieces.append(LogPiece(at, found.end, lost=False))
        at = found.end
    if is_ahead(key_end, manifest_end, found_slices):
        reasons.append(f"the manifest ends at {manifest_end}, above all ends in the metadata store")
    end = max(at, unnamed_end) + UNKNOWN_RECORDS * len(lost)
    if end > at:
        pieces.append(LogPiece(at, end, lost=True))
        # (without an offset: a serving leader moves it between examine and accept)
        reasons.append("records may be lost after the remaining ones: their offsets are skipped")
    reasons += [
        f"{key} is missing or damaged: its records are lost, at unknown offsets" for key in lost
    ]
    return LossPlan(
        start=start,
        pieces=tuple(pieces),
        objects=tuple(lost),
        reasons=tuple(reasons),
    )
