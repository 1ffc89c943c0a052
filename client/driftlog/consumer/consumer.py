"""Records out.

    with Consumer("flights", group="board") as consumer:
        for record in consumer:
            print(record.offset, record.timestamp, record.key, record.value)

At least once: a record counts as processed when the program requests the next one, or when the
``with`` block ends without an error.  The consumer commits processed records: at an interval, when
partitions are revoked, and at the end.  A block that ends with an error commits all but its current
record.  `DeserializationError` hands out its record.
Shell.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Self

from driftlog.common.connection import bootstrap
from driftlog.common.records import K, Record, TopicPartition, V
from driftlog.common.serialization import Deserializer, Deserializers
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import Where
from driftlog.consumer.reader import Reader
from driftlog.consumer.rebalance import RebalanceCallbacks, RebalanceEvent
from driftlog.consumer.subscription import Subscription
from driftlog.errors import ClosedError, DriftlogError

_SLICE_S: Final = 0.2
"""How long one wait for librdkafka takes: Python handles signals in between."""


class Consumer(Generic[K, V]):
    """Reads records of any Kafka cluster; one thread at a time.

    This program writes a record and reads it::

        from driftlog import Consumer, Producer

        with Producer() as producer:
            producer.produce("greetings", b"hello")
        with Consumer("greetings", from_beginning=True, end_of_topic=True) as consumer:
            for record in consumer:
                print(record.partition, record.offset, record.value)

    Args:
        topics: one or more names; one that begins with ``^`` is a pattern.
        group: shares the partitions with the other members of that group, and commits.  None:
            reads all partitions, and commits nothing.
        bootstrap_servers: one or more of the cluster's addresses; None: the environment variable
            DRIFTLOG_BOOTSTRAP_SERVERS, or 127.0.0.1:9092.
        from_beginning: True: begin with the first record, where the group has committed nothing
            yet.  False: begin with the next record that is written.
        end_of_topic: True: the loop stops at the end as it was when the consumer started.
        partitions: without a group, only these.
        auto_commit: False: only `commit` commits.
        key_deserializer, value_deserializer: make objects of bytes, from the bytes alone or from
            the bytes and a `driftlog.serializers.SerializationContext`; never given None.
        rebalance: called when the group gives or takes partitions.
        settings: how much is fetched ahead, how a member of a group behaves.
        config: librdkafka's own configs, over everything; for TLS, SASL, ``group.instance.id``,
            ``group.protocol`` and the like.

    Raises:
        ValueError: a config that does not exist, or that the client sets itself; arguments that
            contradict one another.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        rebalance: RebalanceCallbacks | None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._rebalance = rebalance
        self._reader = Reader(
            Subscription(
                topics=[topics] if isinstance(topics, str) else topics,
                group=group,
                partitions=partitions,
                from_beginning=from_beginning,
                end_of_topic=end_of_topic,
                auto_commit=auto_commit,
            ),
            servers=bootstrap(bootstrap_servers),
            deserializers=Deserializers(key_deserializer, value_deserializer),
            settings=settings or ConsumerSettings(),
            config=config,
            notify=None if rebalance is None else self._rebalanced,
        )
        self._closed = False

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self

    def __next__(self) -> Record[K, V]:
        """The next record; the records that were handed out before are processed.

        Waits for as long as no record comes, also where all partitions are paused.

        Raises:
            StopIteration: with *end_of_topic*, all records were read; they are committed.
            DeserializationError: the next call continues after the record.
            UnreachableError: no broker answered when the consumer started.
            UnknownTopicError: a topic, or a named partition, does not exist.
            RequestError: the consumer cannot continue.
            ClosedError: the consumer is closed.
        """
        reader = self._reader
        if reader.records.ready and not reader.due:
            reader.processed()
            return reader.next_record()
        self._check_open()
        reader.processed()
        reader.fill(0 if reader.records.ready else _SLICE_S)
        while not reader.records.ready:
            if reader.records.finished:
                reader.commit_processed()
                raise StopIteration
            reader.fill(_SLICE_S)
        return reader.next_record()

    def read(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record[K, V]]:
        """Up to *max_records* records: at least one if one comes within *timeout_s*, or none.

        The records that were handed out before are processed.  The list ends before a record whose
        deserializer fails: the next call raises its error.

        Raises:
            As ``next``, without StopIteration.
        """
        self._check_open()
        reader = self._reader
        reader.processed()
        deadline = time.monotonic() + timeout_s
        reader.fill(0)
        while not reader.records.ready and not reader.records.finished:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            reader.fill(min(_SLICE_S, left_s))
        if reader.records.finished:
            reader.commit_processed()
        return reader.next_records(max_records)

    def commit(
        self,
        record: Record[Any, Any] | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit now, and wait for the answer.

        Args:
            record: its partition up to this record, included.
            offsets: these, each one past the last processed record.
                Neither: all records that were handed out.

        Raises:
            CommitError: the group has not committed it, and reads those records again; another
                member may have the partition by now.
            ValueError: this consumer has no group, an offset is negative, or both are given.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        self._reader.commit(record, offsets)

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, from its coordinator; None: there is none.

        Raises:
            ValueError: this consumer has no group.
            UnreachableError, RequestError: the coordinator did not answer, or declined.
            ClosedError: the consumer is closed, or closes: also in the `on_revoke` of its `close`.
        """
        self._check_open()
        return self._reader.committed(TopicPartition(topic, partition))

    def position(self, topic: str, partition: int) -> int:
        """The offset of the record that is handed out next, if nothing is deleted until then.

        Raises:
            NotAssignedError: this consumer does not read that partition, or not any more.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        return self._reader.position(TopicPartition(topic, partition))

    def seek(self, topic: str, partition: int, where: Where) -> None:
        """Continue at an offset, at a time, at the "beginning" or at the "end" of a partition.

        A group's partition that is not assigned begins there after its assignment.

        Raises:
            NotAssignedError: without a group: this consumer does not read that partition.
            ValueError: the offset is negative, or the time has no zone.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        self._reader.seek(TopicPartition(topic, partition), where)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no records of these partitions until `resume`, such as ``pause(assignment())``.

        A member stays in its group as long as it calls `read`, which returns [] meanwhile.
        The pause ends when a partition is revoked.  Harmless when repeated.

        Raises:
            NotAssignedError: one of them is not assigned; none is paused.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        self._reader.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again, from where each stopped.

        Raises:
            NotAssignedError: one of them is not assigned; none is resumed.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        self._reader.resume(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now; empty before the first read."""
        return self._reader.records.partitions()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return self._reader.records.paused()

    def close(self) -> None:
        """Commit processed records, leave the group.  Harmless when repeated.

        The record that was handed out last does not count as processed: use ``with``, or `commit`.

        Raises:
            CommitError: it could not be committed; the consumer is closed all the same.
        """
        self._close(last_processed=False)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._close(last_processed=error is None)
        except DriftlogError as uncommitted:
            if error is None:
                raise
            # The body's error is raised, not this one.
            error.add_note(f"driftlog: {uncommitted}")

    # ── Inside ──

    def _close(self, *, last_processed: bool) -> None:
        self._closed = True
        self._reader.close(last_processed=last_processed)

    def _rebalanced(self, event: RebalanceEvent, partitions: list[TopicPartition]) -> None:
        callback = None if self._rebalance is None else self._rebalance.of(event)
        if callback is not None:
            callback(self, partitions)

    def _check_open(self) -> None:
        # While it closes, on_revoke may still commit.
        if self._closed and not self._reader.notifying:
            raise ClosedError("this consumer is closed: create a new one")
