"""Which flush records may be forgotten: all their batches are sealed, or of topics that are gone.

    commit ──▶ known ──sealed, partition by partition──▶ nothing left ──▶ forget the record

Pure.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from driftlog_metadata.model import FlushRecord, TopicPartition


@dataclass(slots=True, eq=False)
class KnownRecord:
    """A flush record in the metadata store, and how many partitions still need it."""

    key: str
    record: FlushRecord
    needed_by: int


class RecordsIndex:
    """All flush records that hold something of the partitions led here, or of nobody's."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, deque[tuple[int, KnownRecord]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, key: str, record: FlushRecord, ends: Iterable[tuple[TopicPartition, int]]
    ) -> KnownRecord | None:
        """Note a record and, per partition, where its batches end.

        Returns it if nobody needs it: it can be forgotten at once.
        """
        known = KnownRecord(key, record, 0)
        for tp, end in ends:
            known.needed_by += 1
            self._by_partition.setdefault(tp, deque()).append((end, known))
        if not known.needed_by:
            return known
        self._count += 1
        return None

    def sealed(self, tp: TopicPartition, end: int) -> list[KnownRecord]:
        """Everything of *tp* below *end* is sealed; returns the records to forget."""
        waiting = self._by_partition.get(tp)
        if waiting is None:
            return []
        released: list[KnownRecord] = []
        while waiting and waiting[0][0] <= end:
            released.append(waiting.popleft()[1])
        if not waiting:
            del self._by_partition[tp]
        return self._release(released)

    def topic_gone(self, topic_id: UUID) -> list[KnownRecord]:
        """The topic was deleted; returns the records to forget."""
        gone = [tp for tp in self._by_partition if tp.topic_id == topic_id]
        released = [known for tp in gone for _, known in self._by_partition.pop(tp)]
        return self._release(released)

    def _release(self, released: list[KnownRecord]) -> list[KnownRecord]:
        forgotten: list[KnownRecord] = []
        for known in released:
            known.needed_by -= 1
            assert known.needed_by >= 0
            if not known.needed_by:
                forgotten.append(known)
                self._count -= 1
        return forgotten
