"""The offsets that a consumer may commit: those of records that were handed out and processed.

    assigned ──▶ hand_out ──▶ processed ──▶ to_commit ──▶ committed
                 (the last record is processed at the next read, or at the end without an error)

An offset is one past the last processed record, or the start of reading: a group that has read no
record of a partition yet must not begin elsewhere next time.  Revoked and lost partitions are
removed: nothing is committed for another member's partition.
Pure.
"""

from collections.abc import Iterable, Mapping

from driftlog.common.records import TopicPartition


class Positions:
    """The positions in the assigned partitions."""

    def __init__(self) -> None:
        self._processed: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._handed_out: dict[TopicPartition, int] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._processed

    def assigned(self, tp: TopicPartition, start: int, *, committed: bool) -> None:
        """Reading of *tp* begins at *start*, which the group has *committed*, or not."""
        assert start >= 0
        self._processed[tp] = start
        self._handed_out.pop(tp, None)
        if committed:
            self._committed[tp] = start
        else:
            self._committed.pop(tp, None)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost."""
        for tp in partitions:
            for offsets in (self._processed, self._committed, self._handed_out):
                offsets.pop(tp, None)

    def hand_out(self, tp: TopicPartition, offset: int) -> None:
        """Note that the user has the record at *offset*."""
        self._handed_out[tp] = offset + 1

    def processed(self) -> None:
        """Note that all records that were handed out are processed."""
        if self._handed_out:
            self._processed.update(self._handed_out)
            self._handed_out.clear()

    def not_processed(self) -> None:
        """Forget records that were handed out and not processed: the group reads them again."""
        self._handed_out.clear()

    def processed_to(self, tp: TopicPartition, offset: int) -> None:
        """Everything of *tp* below *offset* is processed: the user commits that offset."""
        assert offset >= 0
        if tp in self._processed:
            self._processed[tp] = offset
            if self._handed_out.get(tp, offset + 1) <= offset:
                del self._handed_out[tp]

    def moved(self, tp: TopicPartition, offset: int) -> None:
        """Continue at *offset*, which may lie before processed records."""
        if tp in self._processed:
            self._processed[tp] = offset
            self._handed_out.pop(tp, None)

    def to_commit(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Offsets that are processed and not committed yet."""
        of = self._processed if partitions is None else partitions
        return {
            tp: self._processed[tp]
            for tp in of
            if tp in self._processed and self._committed.get(tp) != self._processed[tp]
        }

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has committed these offsets."""
        for tp, offset in offsets.items():
            if tp in self._processed:
                self._committed[tp] = offset
