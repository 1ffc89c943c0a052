"""What `Consumer` and `AsyncConsumer` are made of: librdkafka's consumer, in one thread.

    start ──▶ subscribe ──▶ assigned ──▶ fill ──▶ buffer ──▶ next_record ──▶ the user
                  │             ▲                   │ revoked: dropped, read by the next owner
                  └── assign ───┘ without a group   ▼
                                                 commit: only what was processed

A partition without a committed offset starts where `from_beginning` says, as a number; an offset
that is gone (retention) goes on at the earliest one, and librdkafka logs a warning.
All methods but `next_record` and `processed` may wait for the network.
Shell.
"""

import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from driftlog.common.connection import LOG, Connections, configuration, fail, kafka_error
from driftlog.common.records import Record, TopicPartition
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import EARLIEST, LATEST, TRANSIENT, Lookups, Where
from driftlog.consumer.positions import Positions
from driftlog.errors import (
    CommitError,
    DeserializationError,
    DriftlogError,
    UnknownTopicError,
    advice,
    reason,
    request_error,
)

Deserializer = Callable[[bytes], Any]

_BATCH: Final = 1_000
_RETRY_S: Final = 0.1
_KEEP_POLLING_S: Final = 1.0
"""Between two records of the buffer, librdkafka is shown so often that we are alive."""


class Reader:
    """A consumer without its surface.

    Args:
        topics: names, or patterns that begin with ``^``.
        group: None: all partitions of *topics*, or those of *partitions*; nothing is committed.
    """

    def __init__(
        self,
        topics: Sequence[str],
        *,
        group: str | None,
        servers: str,
        partitions: Sequence[int] | None,
        from_beginning: bool,
        end_of_topic: bool,
        auto_commit: bool,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
        settings: ConsumerSettings,
        config: Mapping[str, Any] | None,
    ) -> None:
        if not topics:
            raise ValueError("name at least one topic")
        if group == "":
            raise ValueError("a group needs a name; leave it out to read without one")
        if group is not None and partitions is not None:
            raise ValueError("partitions of a group are assigned by it: leave out one of the two")
        self.group = group
        self.settings = settings
        self.connections = Connections(servers)
        self.positions = Positions()
        self.buffer: deque[Record[bytes, bytes]] = deque()
        self._topics = list(topics)
        self._partitions = partitions
        self._from_beginning = from_beginning
        self._end_of_topic = end_of_topic
        self._auto_commit = auto_commit and group is not None
        self._deserializers = (key_deserializer, value_deserializer)
        self._started = self._assigned_once = self._closed = False
        self._seeks: dict[TopicPartition, Where] = {}
        self._fetched: dict[TopicPartition, int] = {}
        """One past the last record that came, by assigned partition."""
        self._ends: dict[TopicPartition, int] = {}
        self._open: set[TopicPartition] = set()
        """With *end_of_topic*: assigned, and not at their end."""
        self._polled_at = self._committed_at = self._looked_at = time.monotonic()
        configs = configuration(servers, settings.configs(), config, self.connections.failed)
        self._cooperative = configs.get("group.protocol") == "consumer" or "cooperative" in str(
            configs.get("partition.assignment.strategy", "")
        )
        if configs.get("group.protocol") == "consumer":
            # The broker's own (group.consumer.session.timeout.ms) holds: librdkafka refuses ours.
            del configs["session.timeout.ms"]
        configs |= {
            # Without a group nothing is asked of its coordinator, but librdkafka wants a name.
            "group.id": group or f"driftlog-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": end_of_topic,
            "on_commit": self._on_commit,
        }
        try:
            self._handle = confluent_kafka.Consumer(configs)
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the configuration: {error.args[0]}") from error
        self._lookups = Lookups(self._handle, self.connections, settings)

    # ── Records ──

    @property
    def finished(self) -> bool:
        """With *end_of_topic*: everything was handed out."""
        return self._end_of_topic and self._assigned_once and not self._open and not self.buffer

    @property
    def due(self) -> bool:
        """`fill` shall be called, though there are records."""
        return time.monotonic() - self._polled_at > _KEEP_POLLING_S

    def processed(self) -> None:
        """What was handed out is processed."""
        self.positions.processed()

    def next_record(self) -> Record[Any, Any]:
        """The first of the buffer; it is the user's now.

        Raises:
            DeserializationError: a deserializer failed.  The next call goes on behind it.
        """
        record = self.buffer.popleft()
        self.positions.hand_out(TopicPartition(record.topic, record.partition), record.offset)
        key, value = self._deserializers
        if key is None and value is None:
            return record
        return record._replace(
            key=_deserialized("key", key, record.key, record),
            value=_deserialized("value", value, record.value, record),
        )

    def fill(self, timeout_s: float) -> None:
        """Wait for records, at most so long; take what is there.  Commit what is due.

        Raises:
            DriftlogError: reading cannot go on.
        """
        self.start()
        self._commit_if_due()
        self._look_for_partitions_if_due()
        try:
            message = self._handle.poll(timeout_s)
            messages = [] if message is None else [message, *self._handle.consume(_BATCH, 0)]
        except KafkaException as error:
            fail("read", error)
        except RuntimeError as error:
            raise DriftlogError(f"{error}: one consumer is for one thread at a time") from error
        self._polled_at = time.monotonic()
        for message in messages:
            self._take(message)
        if self.connections.fatal is not None:
            raise request_error("read", self.connections.fatal)

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            self._take_error(error, message)
            return
        tp = TopicPartition(message.topic(), message.partition())
        if tp not in self._fetched:
            return  # revoked while it was on its way
        offset = message.offset()
        self._fetched[tp] = offset + 1
        if self._end_of_topic and offset + 1 >= self._ends.get(tp, 0):
            self._open.discard(tp)
            if offset >= self._ends.get(tp, 0):
                return
        headers = message.headers()
        self.buffer.append(
            Record(
                *tp,
                offset,
                message.timestamp()[1],
                message.key(),
                message.value(),
                () if headers is None else tuple(headers),
                message.leader_epoch(),
            )
        )

    def _take_error(self, error: KafkaError, message: Any) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            tp = TopicPartition(message.topic(), message.partition())
            if message.offset() >= self._ends.get(tp, 0):
                self._open.discard(tp)
        elif code == KafkaError._MAX_POLL_EXCEEDED or code in TRANSIENT:
            LOG.warning("%s. %s", reason(error), advice(code))
        else:
            raise request_error(f"read {message.topic() or ', '.join(self._topics)}", error)

    # ── Partitions ──

    def start(self) -> None:
        """Find the topics, and subscribe or assign; once.

        Raises:
            UnreachableError: nobody answered.
            UnknownTopicError: a topic, or a partition of it, is not there.
        """
        if self._started:
            return
        found = self._find_partitions()
        if self._end_of_topic:
            self._ends = self._lookups.offsets(dict.fromkeys(found, LATEST))
        if self.group is None:
            self._on_assign(self._handle, [Place(*tp) for tp in found])
        else:
            self._handle.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        self._started = True
        self._polled_at = self._committed_at = self._looked_at = time.monotonic()

    def _find_partitions(self) -> list[TopicPartition]:
        patterns = [topic for topic in self._topics if topic.startswith("^")]
        known = self._lookups.topics(None if patterns or len(self._topics) > 1 else self._topics[0])
        names = [topic for topic in self._topics if topic not in patterns]
        names += sorted(
            name for name in known if any(re.match(pattern, name) for pattern in patterns)
        )
        for name in names:
            if name not in known or known[name].error is not None or not known[name].partitions:
                raise UnknownTopicError(
                    f"there is no topic {name!r} at {self.connections.servers}. Create it, or "
                    "produce to it, first.",
                    code=KafkaError.UNKNOWN_TOPIC_OR_PART,
                )
        found = [TopicPartition(name, p) for name in names for p in sorted(known[name].partitions)]
        if self._partitions is None:
            return found
        wanted = [TopicPartition(name, p) for name in names for p in self._partitions]
        missing = sorted(set(wanted) - set(found))
        if missing:
            raise UnknownTopicError(
                f"there is no partition {missing[0].partition} of topic {missing[0].topic!r}: it "
                f"has {len(known[missing[0].topic].partitions)}, counted from 0."
            )
        return wanted

    def _look_for_partitions_if_due(self) -> None:
        """A group is told of new partitions; without one, we look."""
        age_ms = (time.monotonic() - self._looked_at) * 1000
        if self.group is not None or self._partitions is not None or self._end_of_topic:
            return
        if age_ms < self.settings.metadata_max_age_ms:
            return
        self._looked_at = time.monotonic()
        try:
            new = [tp for tp in self._find_partitions() if tp not in self._fetched]
        except DriftlogError as error:
            LOG.warning("new partitions are looked for again later: %s", error)
            return
        if new:
            # Whatever is in them came since we looked last.
            self._fetched |= self._lookups.offsets(dict.fromkeys(new, EARLIEST))
            for tp in new:
                self.positions.assigned(tp, self._fetched[tp], committed=False)
            self._handle.assign([Place(*tp, offset) for tp, offset in self._fetched.items()])

    def _on_assign(self, handle: Any, places: list[Place]) -> None:
        partitions = [TopicPartition(place.topic, place.partition) for place in places]
        committed = {} if self.group is None else self._lookups.committed(self.group, partitions)
        without = [tp for tp in partitions if tp not in committed]
        begin = EARLIEST if self._from_beginning else LATEST
        starts = committed | self._lookups.offsets(dict.fromkeys(without, begin))
        moved = {tp: self._seeks.pop(tp) for tp in partitions if tp in self._seeks}
        starts |= self._lookups.resolve(moved)
        for tp in partitions:
            self.positions.assigned(tp, starts[tp], committed=starts[tp] == committed.get(tp))
            self._fetched[tp] = starts[tp]
            if starts[tp] < self._ends.get(tp, 0):
                self._open.add(tp)
        at = [Place(*tp, starts[tp]) for tp in partitions]
        if self._cooperative and self.group is not None:
            handle.incremental_assign(at)
        else:
            handle.assign(at)
        self._assigned_once = True

    def _on_revoke(self, _: Any, places: list[Place]) -> None:
        partitions = [TopicPartition(place.topic, place.partition) for place in places]
        self._drop(partitions)
        if self._auto_commit:
            try:
                self._commit_now(self.positions.to_commit(partitions))
            except CommitError as error:
                LOG.warning("as partitions were revoked: %s", error)
        self.positions.forget(partitions)

    def _on_lost(self, _: Any, places: list[Place]) -> None:
        partitions = [TopicPartition(place.topic, place.partition) for place in places]
        self._drop(partitions)
        uncommitted = self.positions.to_commit(partitions)
        self.positions.forget(partitions)
        if uncommitted:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(uncommitted))
            LOG.warning(
                "group %s: this member's session ended before it had committed what it processed "
                "of %s: that is read again, here or elsewhere. Processing took longer than "
                "max_poll_interval_ms, or nothing reached the coordinator for session_timeout_ms.",
                self.group,
                names,
            )

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        if any((record.topic, record.partition) in gone for record in self.buffer):
            kept = [r for r in self.buffer if (r.topic, r.partition) not in gone]
            self.buffer.clear()
            self.buffer.extend(kept)
        for tp in gone:
            self._fetched.pop(tp, None)
            self._open.discard(tp)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return sorted(self._fetched)

    # ── Offsets ──

    def seek(self, tp: TopicPartition, where: Where) -> None:
        """Go on at *where*; a partition that is not assigned (yet) begins there.

        Raises:
            RequestError: there is no such partition.
        """
        if self.group is None:
            self.start()
        if tp not in self._fetched:
            if self.group is None:
                raise UnknownTopicError(
                    f"{tp.topic}-{tp.partition} is not among what this consumer reads"
                )
            self._seeks[tp] = where
            return
        offset = self._lookups.resolve({tp: where})[tp]
        at_end = self._end_of_topic and offset >= self._ends.get(tp, 0)
        self._drop([tp])
        self._fetched[tp] = offset
        if self._end_of_topic and not at_end:
            self._open.add(tp)
        self.positions.moved(tp, offset)
        self._lookups.until_done(
            f"seek {tp.topic}-{tp.partition} to {offset}",
            lambda: self._handle.seek(Place(*tp, offset)),
            # It cannot yet, just after the assignment.
            also=frozenset({KafkaError._STATE}),
        )

    # ── Commits ──

    def commit(self, record: Record[Any, Any] | None = None) -> None:
        """Commit what was handed out, or all of a partition up to *record*; wait for it.

        Raises:
            CommitError: it is not committed.
            ValueError: there is no group.
        """
        if self.group is None:
            raise ValueError("only groups commit: give the consumer a group")
        if record is None:
            self.positions.processed()
            self._commit_now(self.positions.to_commit())
            return
        tp = record.topic_partition
        if tp not in self.positions:
            raise CommitError(
                f"{tp.topic}-{tp.partition} is not this member's any more: its records come again, "
                "elsewhere."
            )
        self.positions.processed_to(tp, record.offset + 1)
        self._commit_now(self.positions.to_commit([tp]))

    def commit_processed(self) -> None:
        """Commit what was processed, unless only the user commits.

        Raises:
            CommitError: it is not committed.
        """
        if self._auto_commit:
            self._commit_now(self.positions.to_commit())

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        since_ms = (now - self._committed_at) * 1000
        if not self._auto_commit or since_ms < self.settings.commit_interval_ms:
            return
        self._committed_at = now
        offsets = self.positions.to_commit()
        if offsets:
            try:
                self._handle.commit(offsets=_places(offsets), asynchronous=True)
            except KafkaException as error:
                LOG.warning("a commit is tried again later: %s", error)

    def _on_commit(self, error: KafkaError | None, places: list[Place]) -> None:
        done = {
            TopicPartition(place.topic, place.partition): place.offset
            for place in places
            if place.error is None and error is None
        }
        self.positions.committed(done)
        errors = [e for e in (error, *(place.error for place in places)) if e is not None]
        if errors and errors[0].code() != KafkaError._NO_OFFSET:
            LOG.warning(
                "group %s: a commit failed: %s. %s What is not committed is tried again.",
                self.group,
                reason(errors[0]),
                advice(errors[0].code()),
            )

    def _commit_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        deadline = time.monotonic() + self.settings.commit_timeout_ms / 1000
        while True:
            try:
                answer = self._handle.commit(offsets=_places(offsets), asynchronous=False)
                failed = next((place.error for place in answer if place.error is not None), None)
            except KafkaException as error:
                failed = kafka_error(error)
            if failed is None:
                self.positions.committed(offsets)
                return
            if failed.code() not in TRANSIENT or time.monotonic() > deadline:
                raise CommitError(
                    f"group {self.group!r} could not commit: {reason(failed)}. "
                    f"{advice(failed.code())}",
                    code=failed.code(),
                    retriable=failed.code() in TRANSIENT,
                )
            time.sleep(_RETRY_S)

    def close(self, *, last_processed: bool) -> None:
        """Commit what was processed, leave the group, and end.  Harmless when repeated.

        Raises:
            CommitError: it could not be committed; all the same the consumer is closed.
        """
        if self._closed:
            return
        self._closed = True
        if last_processed:
            self.positions.processed()
        try:
            self.commit_processed()
        finally:
            self._auto_commit = False
            self.buffer.clear()
            self._handle.close()


def _places(offsets: Mapping[TopicPartition, int]) -> list[Place]:
    return [Place(*tp, offset) for tp, offset in offsets.items()]


def _deserialized(
    what: str, deserializer: Deserializer | None, data: bytes | None, record: Record[bytes, bytes]
) -> Any:
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        raise DeserializationError(
            f"the {what}_deserializer failed for {record.topic}-{record.partition} at offset "
            f"{record.offset}: {error!r}. Asking for the next record skips it.",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
        ) from error
