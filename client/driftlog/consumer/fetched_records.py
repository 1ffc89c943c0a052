"""The records that a consumer has fetched and not handed out yet, partition by partition.

    assigned ──▶ take ──▶ ready ──▶ next_record
                   │        ▲ resume
                   └──▶ paused: kept, and not handed out

A revoked partition is dropped with its records, which the next owner reads, and with its pause.
librdkafka delivers no record of a paused partition, and continues after the last delivered one;
hence the records fetched before the pause are kept here.
Pure.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from driftlog.common.records import UNREADABLE, Message, Record, TopicPartition, headers_of


class FetchedRecords:
    """The fetched records of the assigned partitions.

    Args:
        end_of_topic: records at or after `ends` are not taken.
    """

    def __init__(self, *, end_of_topic: bool) -> None:
        self.ready: deque[Record[bytes, bytes]] = deque()
        self.ends: Mapping[TopicPartition, int] = {}
        """With *end_of_topic*: the ends at the start of the consumer."""
        self._end_of_topic = end_of_topic
        self._assigned_once = False
        self._next: dict[TopicPartition, int] = {}
        """One past the last record taken, by assigned partition."""
        self._open: set[TopicPartition] = set()
        """With *end_of_topic*: the assigned partitions that are not at their end."""
        self._paused: dict[TopicPartition, deque[Record[bytes, bytes]]] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._next

    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions, in order."""
        return sorted(self._next)

    def paused(self) -> list[TopicPartition]:
        """The paused partitions, in order."""
        return sorted(self._paused)

    @property
    def finished(self) -> bool:
        """With *end_of_topic*: every record was handed out."""
        return (
            self._end_of_topic
            and self._assigned_once
            and not self._open
            and not self.ready
            and not any(self._paused.values())
        )

    def assigned(self, starts: Mapping[TopicPartition, int]) -> None:
        """Add assigned partitions, each with the offset to read from."""
        self._assigned_once = True
        for tp, start in starts.items():
            self._next[tp] = start
            if start < self.ends.get(tp, 0):
                self._open.add(tp)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that are revoked or lost."""
        gone = set(partitions)
        self._forget_records(gone)
        for tp in gone:
            self._next.pop(tp, None)
            self._paused.pop(tp, None)
            self._open.discard(tp)

    def take(self, message: Message) -> None:
        """Keep a fetched record; one of a partition that is not assigned any more is dropped."""
        tp = TopicPartition(message.topic(), message.partition())
        if tp not in self._next:
            return  # revoked while the record was in flight
        offset = message.offset()
        self._next[tp] = offset + 1
        if self._end_of_topic:
            end = self.ends.get(tp, 0)
            if offset + 1 >= end:
                self._open.discard(tp)
            if offset >= end:
                return
        try:
            headers = headers_of(message)
        except UnicodeError:
            headers = UNREADABLE  # `Deserializers` raises, in the record's turn.
        record: Record[bytes, bytes] = Record(
            *tp,
            offset,
            message.timestamp()[1],
            message.key(),
            message.value(),
            headers,
            message.leader_epoch(),
        )
        self._paused.get(tp, self.ready).append(record)

    def reached(self, tp: TopicPartition, offset: int) -> None:
        """Note that the partition has no record at or after *offset* yet."""
        if offset >= self.ends.get(tp, 0):
            self._open.discard(tp)

    def move(self, tp: TopicPartition, offset: int) -> None:
        """Continue at *offset*; the partition's fetched records are dropped."""
        self._forget_records({tp})
        self._next[tp] = offset
        if self._end_of_topic:
            at_end = offset >= self.ends.get(tp, 0)
            (self._open.discard if at_end else self._open.add)(tp)

    def position(self, tp: TopicPartition) -> int:
        """The offset of the record that is handed out next."""
        kept = self._paused.get(tp, self.ready)
        return next((r.offset for r in kept if (r.topic, r.partition) == tp), self._next[tp])

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing of the partition until `resume`."""
        if tp not in self._paused:
            kept = deque(r for r in self.ready if (r.topic, r.partition) == tp)
            self._forget_records({tp})
            self._paused[tp] = kept

    def resume(self, tp: TopicPartition) -> None:
        """Hand out records of the partition again, beginning with those that were kept."""
        self.ready.extend(self._paused.pop(tp, ()))

    def _forget_records(self, partitions: set[TopicPartition]) -> None:
        if any((record.topic, record.partition) in partitions for record in self.ready):
            kept = [r for r in self.ready if (r.topic, r.partition) not in partitions]
            self.ready.clear()
            self.ready.extend(kept)
        for tp in partitions & self._paused.keys():
            self._paused[tp].clear()
