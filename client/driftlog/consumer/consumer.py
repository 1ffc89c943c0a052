"""Records out.

    with Consumer("flights", group="board") as consumer:
        for record in consumer:
            print(record.offset, record.timestamp, record.key, record.value)

At least once: a record counts as processed when the next one is asked for, or when the ``with``
block ends without an error.  Committed is what was processed: now and then, when partitions are
revoked, and at the end.  A block that ends with an error commits all but the record it was at.
Shell.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, overload

from driftlog.common.connection import bootstrap
from driftlog.common.records import K, Record, TopicPartition, V
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import Where
from driftlog.consumer.reading import Deserializer, Reader
from driftlog.errors import ClosedError, DriftlogError

_SLICE_S: Final = 0.2
"""librdkafka is waited for so long at a time: signals are handled in between."""


class Consumer(Generic[K, V]):
    """Reads records of any Kafka cluster; one thread at a time.

    Args:
        topics: one or more names; one that begins with ``^`` is a pattern.
        group: shares the partitions with the other members of that group, and commits.  None:
            reads all partitions, and commits nothing.
        bootstrap_servers: one or more of the cluster's addresses; None: the environment variable
            DRIFTLOG_BOOTSTRAP_SERVERS, or 127.0.0.1:9092.
        from_beginning: begin with the first record, where the group has committed nothing yet;
            else with what comes next.
        end_of_topic: stop at the end as it was at the start.
        partitions: without a group, only these.
        auto_commit: False: only `commit` commits.
        key_deserializer, value_deserializer: make objects of bytes; never given None.
        settings: how much is fetched ahead, how a member of a group behaves.
        config: librdkafka's own configs, over everything; for TLS, SASL, ``group.instance.id``,
            ``group.protocol`` and the like.

    Raises:
        ValueError: a config that does not exist, or that the client sets itself.
    """

    @overload
    def __init__(
        self: "Consumer[bytes, bytes]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: None = None,
        value_deserializer: None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "Consumer[K, bytes]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "Consumer[bytes, V]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
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
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...

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
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._closed = False
        self._reader = Reader(
            [topics] if isinstance(topics, str) else topics,
            group=group,
            servers=bootstrap(bootstrap_servers),
            partitions=partitions,
            from_beginning=from_beginning,
            end_of_topic=end_of_topic,
            auto_commit=auto_commit,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            settings=settings or ConsumerSettings(),
            config=config,
        )

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self

    def __next__(self) -> Record[K, V]:
        """The next record; what was handed out before is processed.

        Raises:
            StopIteration: with *end_of_topic*, that was all; it is committed.
            DeserializationError: the next call goes on behind the record.
            UnreachableError, RequestError: reading cannot go on.
        """
        reader = self._reader
        if reader.buffer and not reader.due:
            reader.processed()
            return reader.next_record()
        self._check_open()
        reader.processed()
        reader.fill(0 if reader.buffer else _SLICE_S)
        while not reader.buffer:
            if reader.finished:
                reader.commit_processed()
                raise StopIteration
            reader.fill(_SLICE_S)
        return reader.next_record()

    def read(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record[K, V]]:
        """What is there, at least one record if one comes in time; empty: none came.

        What was handed out before is processed.

        Raises:
            As ``next``, but StopIteration.
        """
        self._check_open()
        reader = self._reader
        reader.processed()
        deadline = time.monotonic() + timeout_s
        reader.fill(0)
        while not reader.buffer and not reader.finished:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            reader.fill(min(_SLICE_S, left_s))
        if reader.finished:
            reader.commit_processed()
        return [reader.next_record() for _ in range(min(max_records, len(reader.buffer)))]

    def commit(self, record: Record[Any, Any] | None = None) -> None:
        """Commit now, and wait: all that was handed out, or its partition up to *record*.

        Raises:
            CommitError: it is not committed: those records come again.
            ValueError: this consumer has no group.
        """
        self._check_open()
        self._reader.commit(record)

    def seek(self, topic: str, partition: int, where: Where) -> None:
        """Go on at an offset, at a time, at the "beginning" or at the "end" of a partition.

        A group's partition that is not assigned begins there once it is.

        Raises:
            UnknownTopicError: this consumer does not read that partition.
        """
        self._check_open()
        self._reader.seek(TopicPartition(topic, partition), where)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._reader.assignment()

    def close(self) -> None:
        """Commit what was processed, leave the group.  Harmless when repeated.

        The record that was handed out last does not count as processed: use ``with``, or `commit`.

        Raises:
            CommitError: it could not be committed; the consumer is closed all the same.
        """
        self._closed = True
        self._reader.close(last_processed=False)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        try:
            self._reader.close(last_processed=error is None)
        except DriftlogError as uncommitted:
            if error is None:
                raise
            # The body's error is the one to see.
            error.add_note(f"driftlog: {uncommitted}")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this consumer is closed: make a new one")
