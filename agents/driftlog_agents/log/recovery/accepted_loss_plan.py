"""What is lost of a partition that is offline, and how its log goes on without it.

    │ sealed, by key and manifest │ slices │ gap │ slices │ gap │
                               start      lost         end   goes on here

Gaps become empty ranges of the manifest: their offsets are never given out again.

1. What the manifest has is kept, whatever the metadata store says.
2. What flush records name and the bucket has is kept.
3. New offsets begin above every end that the manifest or any footer in the bucket shows, and above
   all that objects that are gone can have held.  Where their records stood nothing says: objects
   are rewritten under other names, sessions take turns, and a gap may be a part of what one held.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from driftlog_tiering.formats.manifest import SegmentRef

UNKNOWN_RECORDS: Final = 2**31
"""As many offsets are skipped for each object that is gone with an end that nothing shows: one
batch holds no more records."""


class FoundSlice(NamedTuple):
    """``[base, end)`` of the partition in an object that the bucket has."""

    base: int
    end: int


class Piece(NamedTuple):
    """A range of the log above its start: of slices that join, or lost."""

    base: int
    end: int
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlan:
    """See the module."""

    start: int
    """What is below is sealed."""
    pieces: tuple[Piece, ...]
    """In order, without a hole."""
    objects: tuple[str, ...]
    reasons: tuple[str, ...]
    """What is wrong; none: nothing is."""
    sealed: tuple[tuple[int, int], ...] = ()
    """Ranges of segments that are gone; then there are no pieces."""

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """Ranges that have no record any more."""
        return (*self.sealed, *((piece.base, piece.end) for piece in self.pieces if piece.lost))

    @property
    def goes_on_at(self) -> int:
        """Where new offsets begin; of segments that are gone: what is above is as it was."""
        return self.pieces[-1].end if self.pieces else self.start

    @property
    def seals(self) -> bool:
        """Whether all that there is must be sealed: a gap is closed in the manifest, and flush
        records whose objects are gone are needed no more."""
        return bool(self.lost or self.objects)

    def is_as_shown(self, shown: dict[str, Any]) -> bool:
        """Whether no more is lost than what was *shown*, as JSON: a leader that serves may have
        committed and sealed more since, and what objects that are gone can have held is skipped
        behind it."""
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
        """As it is shown, and given back by who accepts it."""
        return {
            "reasons": list(self.reasons),
            "lost": [list(lost) for lost in self.lost],
            "objects": list(self.objects),
            "serves": bool(self.sealed),
            "sealed_end": self.start,
            "goes_on_at": self.goes_on_at,
        }


def plan_sealed_loss(sealed_end: int, segments: Iterable[SegmentRef]) -> LossPlan:
    """Of a partition that goes on, and of which *segments* are gone."""
    refs = sorted(segments, key=lambda ref: ref.base)
    return LossPlan(
        start=sealed_end,
        pieces=(),
        objects=tuple(ref.key for ref in refs),
        reasons=tuple(f"segment {ref.key} is gone" for ref in refs),
        sealed=tuple((ref.base, ref.end) for ref in refs),
    )


def is_ahead(key_end: int, manifest_end: int, slices: Iterable[FoundSlice]) -> bool:
    """Whether the manifest ends above all that the metadata store names."""
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
    """How the log goes on.

    *key_end*: the sealed end by the partition's key; *lost*: objects that flush records name and
    that the bucket does not have, or damaged; *unnamed_end*: the largest end in an object that no
    flush record names, of a metadata store that is older than the bucket; 0: there is none.

    Raises:
        ValueError: slices overlap, so that nobody can say which records are the log's.
    """
    reasons = [f"{key} is missing" for key in missing_keys]
    start = max(key_end, manifest_end)
    pieces: list[Piece] = []
    at = start
    found_slices = sorted(slices)
    for found in found_slices:
        if found.end <= start:
            continue
        if found.base < at and at != start:
            raise ValueError(f"[{found.base}, {found.end}) overlaps what ends at {at}")
        if found.base > at:
            pieces.append(Piece(at, found.base, lost=True))
            reasons.append(f"offsets {at} to {found.base - 1} are in no object that is there")
            at = found.base
        if pieces and not pieces[-1].lost:
            pieces[-1] = pieces[-1]._replace(end=found.end)
        else:
            pieces.append(Piece(at, found.end, lost=False))
        at = found.end
    if is_ahead(key_end, manifest_end, found_slices):
        reasons.append(f"the manifest ends at {manifest_end}, above what the metadata store knows")
    end = max(at, unnamed_end) + UNKNOWN_RECORDS * len(lost)
    if end > at:
        pieces.append(Piece(at, end, lost=True))
        # (no offset: a leader that serves moves it between the look and the answer)
        reasons.append("records may have followed what is left: offsets are skipped for them")
    reasons += [
        f"{key} is gone, or damaged: what it held is lost, wherever it stood" for key in lost
    ]
    return LossPlan(
        start=start,
        pieces=tuple(pieces),
        objects=tuple(lost),
        reasons=tuple(reasons),
    )
