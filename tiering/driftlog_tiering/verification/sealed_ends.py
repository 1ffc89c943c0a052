"""How far the sealed objects of a partition reach, whether a manifest names them or not.

An object that ends above the newest manifest is what an interrupted attempt to seal has left, and
then flush objects have its records too; or a manifest named it that is gone.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from driftlog_tiering.formats import layout


@dataclass(slots=True)
class SealedEnds:
    """The largest ends of a partition's sealed objects, with their keys; named or not."""

    segments: tuple[int, str] = (0, "")
    others: tuple[int, str] = (0, "")
    """Of segment lists and producer snapshots."""

    @property
    def end(self) -> int:
        """The largest."""
        return max(self.segments[0], self.others[0])

    def add(self, text: str, key: layout.Key) -> None:
        """Take in one object of the partition: its key as text, and as it was parsed."""
        match key:
            case layout.SegmentKey():
                self.segments = max(self.segments, (key.end, text))
            case layout.SegmentListKey():
                self.others = max(self.others, (key.end, text))
            case layout.ProducerSnapshotKey():
                self.others = max(self.others, (key.offset, text))
            case _:
                pass

    def unnamed(self, manifest_end: int, joined_end: int) -> tuple[int, str] | None:
        """The object that only a missing manifest names, with its end; None: no manifest is known
        to be missing.

        *manifest_end*: of the newest manifest, 0 if there is none; *joined_end*: up to which flush
        objects have all records from there on.  A producer snapshot alone may be that of an empty
        range, which an interrupted restore began.
        """
        seen = self.segments if manifest_end else max(self.segments, self.others)
        return seen if seen[0] > joined_end else None


def joined_end(base: int, ranges: Iterable[tuple[int, int]]) -> int:
    """Up to where *ranges* of offsets follow each other without a gap from *base* on."""
    for first, end in sorted(ranges):
        if first > base:
            break
        base = max(base, end)
    return base
