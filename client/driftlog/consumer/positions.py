"""Which offsets a consumer may commit: those of records that were handed out and processed.

    assigned ──▶ hand_out ──▶ processed ──▶ to_commit ──▶ committed
                 (the next record is asked for, or the block ends well: the last one is processed)

An offset is one past the last processed record, or where reading began: a group that was given a
partition and read nothing of it yet must not begin somewhere else next time.  Revoked and lost
partitions are forgotten: nothing is committed for what is another member's.
Pure.
"""

from collections.abc import Iterable, Mapping

from driftlog.common.records import TopicPartition


class Positions:
    """Of the partitions that are assigned."""

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
        """These partitions were revoked, or lost."""
        for tp in partitions:
            for offsets in (self._processed, self._committed, self._handed_out):
                offsets.pop(tp, None)

    def hand_out(self, tp: TopicPartition, offset: int) -> None:
        """The record at *offset* is the user's now."""
        self._handed_out[tp] = offset + 1

    def processed(self) -> None:
        """Everything that was handed out is processed."""
        if self._handed_out:
            self._processed.update(self._handed_out)
            self._handed_out.clear()

    def not_processed(self) -> None:
        """What was handed out and is not processed yet comes again."""
        self._handed_out.clear()

    def processed_to(self, tp: TopicPartition, offset: int) -> None:
        """Everything of *tp* below *offset* is processed: the user commits that offset."""
        assert offset >= 0
        if tp in self._processed:
            self._processed[tp] = offset
            if self._handed_out.get(tp, offset + 1) <= offset:
                del self._handed_out[tp]

    def moved(self, tp: TopicPartition, offset: int) -> None:
        """Reading goes on at *offset*, which may lie before what was processed."""
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
