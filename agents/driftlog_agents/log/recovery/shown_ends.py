"""Where partitions end in the flush objects whose footers were read.

A flush object never changes, so each is read once.  An object that was deleted since still counts:
its offsets were assigned.

Pure.
"""

from collections.abc import Iterable

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.stores.object_store import ObjectInfo


class ShownEnds:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._ends: dict[TopicPartition, tuple[int, int]] = {}

    def of(self, tp: TopicPartition) -> tuple[int, int]:
        """The largest end of *tp*, and its newest leader epoch; 0 and -1: no object has it."""
        return self._ends.get(tp, (0, -1))

    def unread(self, objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Those of *objects* that were not read before."""
        return [info for info in objects if info.key not in self._read]

    def add(self, key: str, footer: Footer | None) -> None:
        """The object was read; None: it is no flush object (a probe)."""
        self._read.add(key)
        if footer is None:
            return
        for s in footer.slices():
            tp = TopicPartition(s.topic_id, s.partition)
            end, epoch = self.of(tp)
            epochs = footer.columns[2][s.first : s.first + s.count]
            self._ends[tp] = max(end, s.end), max(epoch, *epochs)
