"""The common part of `Consumer` and `AsyncConsumer`: librdkafka's consumer, in one thread.

    start ──▶ subscribe ──▶ assigned ──▶ fill ──▶ records ──▶ next_record(s) ──▶ the user
                  │             ▲                    │ revoked: dropped, read by the next owner
                  └── assign ───┘ without a group    ▼
                                                  commit: only processed records

A partition without a committed offset starts at the offset that `from_beginning` gives.  If an
offset is gone (retention), reading continues at the earliest one, and librdkafka logs a warning.
All methods except `next_record`, `next_records`, `processed` and those that return the assignment
may wait for the network.
Shell.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from driftlog.common.connection import LOG, Connections, configuration, fail
from driftlog.common.records import Record, TopicPartition
from driftlog.common.serialization import Deserializers
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.fetched_records import FetchedRecords
from driftlog.consumer.lookups import EARLIEST, LATEST, TRANSIENT, Lookups, Where, check_place
from driftlog.consumer.offset_commits import OffsetCommits, places
from driftlog.consumer.positions import Positions
from driftlog.consumer.rebalance import RebalanceEvent
from driftlog.consumer.subscription import Subscription
from driftlog.errors import (
    ClosedError,
    CommitError,
    DeserializationError,
    DriftlogError,
    NotAssignedError,
    advice,
    reason,
    request_error,
)

Notify = Callable[[RebalanceEvent, list[TopicPartition]], None]

_BATCH: Final = 1_000
_KEEP_POLLING_S: Final = 1.0
"""How often librdkafka is polled while records come from the buffer: a poll counts as reading."""


class Reader:
    """A consumer without its public API.

    Args:
        servers: as librdkafka takes them.
        notify: called during a group's assignments and revocations.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        servers: str,
        deserializers: Deserializers,
        settings: ConsumerSettings,
        config: Mapping[str, Any] | None,
        notify: Notify | None,
    ) -> None:
        if notify is not None and subscription.group is None:
            raise ValueError("only a group rebalances: give the consumer a group, or no rebalance")
        self.group = subscription.group
        self.notifying = False
        """Whether a rebalance callback of the user runs."""
        self.positions = Positions()
        self.records = FetchedRecords(end_of_topic=subscription.end_of_topic)
        self._subscription = subscription
        self._settings = settings
        self._connections = Connections(servers, config)
        self._deserialize = deserializers
        self._notify = notify
        self._auto_commit = subscription.commits
        self._started = self._closed = False
        self._seeks: dict[TopicPartition, Where] = {}
        self._starting: set[TopicPartition] = set()
        """Partitions of a running assignment, which librdkafka does not read yet."""
        self._unplaced: list[Place] = []
        """Assigned partitions whose lookup of offsets failed, and is due again."""
        self._polled_at = self._looked_at = time.monotonic()
        self._commits = OffsetCommits(self.group, self.positions, settings)
        configs = configuration(servers, settings.configs(), config, self._connections.failed)
        self._cooperative = configs.get("group.protocol") == "consumer" or "cooperative" in str(
            configs.get("partition.assignment.strategy", "")
        )
        if configs.get("group.protocol") == "consumer":
            # The broker's group.consumer.session.timeout.ms applies; librdkafka refuses this one.
            del configs["session.timeout.ms"]
        configs |= {
            # librdkafka requires a name; without a group it sends no request to a coordinator.
            "group.id": self.group or f"driftlog-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": subscription.end_of_topic,
            "on_commit": self._commits.answered,
        }
        try:
            self._handle = confluent_kafka.Consumer(configs)
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the configuration: {error.args[0]}") from error
        self._lookups = Lookups(self._handle, self._connections, settings)

    # ── Records ──

    @property
    def due(self) -> bool:
        """Whether to call `fill` though there are records."""
        return time.monotonic() - self._polled_at > _KEEP_POLLING_S

    def processed(self) -> None:
        """Note that the records that were handed out are processed."""
        self.positions.processed()

    def next_record(self) -> Record[Any, Any]:
        """Hand out the first of the fetched records.

        Raises:
            DeserializationError: a deserializer failed.  The next call continues after the record.
        """
        return self._deserialize(self._hand_out())

    def next_records(self, max_records: int) -> list[Record[Any, Any]]:
        """Hand out the first *max_records* fetched ones; stop before one whose deserializer fails.

        Raises:
            DeserializationError: as `next_record`, where that is the first one.
        """
        records: list[Record[Any, Any]] = []
        for record in islice(self.records.ready, max(0, max_records)):
            try:
                records.append(self._deserialize(record))
            except DeserializationError:
                if records:
                    break
                self._hand_out()
                raise
        for _ in records:
            self._hand_out()
        return records

    def _hand_out(self) -> Record[bytes, bytes]:
        record = self.records.ready.popleft()
        self.positions.hand_out(TopicPartition(record.topic, record.partition), record.offset)
        return record

    def fill(self, timeout_s: float) -> None:
        """Wait up to *timeout_s* for records, and take them.  Commit if it is due.

        Raises:
            DriftlogError: the consumer cannot continue.
            BaseException: a rebalance callback raised it.
        """
        if self.notifying:
            raise DriftlogError("a rebalance callback must not read: read after it has returned")
        self.start()
        if self._unplaced:
            unplaced, self._unplaced = self._unplaced, []
            self._on_assign(self._handle, unplaced)
        if self._auto_commit:
            self._commits.in_background_if_due(self._handle)
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
            if message.error() is None:
                self.records.take(message)
            else:
                self._take_error(message)
        if self._connections.fatal is not None:
            raise request_error("read", self._connections.fatal)

    def _take_error(self, message: Any) -> None:
        error: KafkaError = message.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            tp = TopicPartition(message.topic(), message.partition())
            self.records.reached(tp, message.offset())
        elif code == KafkaError._MAX_POLL_EXCEEDED or code in TRANSIENT:
            LOG.warning("%s. %s", reason(error), advice(code))
        else:
            what = message.topic() or ", ".join(self._subscription.topics)
            raise request_error(f"read {what}", error)

    # ── Partitions ──

    def start(self) -> None:
        """Find the topics, and subscribe or assign; once.

        Raises:
            UnreachableError: no broker answered.
            UnknownTopicError: a topic, or a partition of it, does not exist.
        """
        if self._started:
            return
        self._connections.check(self._settings.request_timeout_ms / 1000)
        found = self._find_partitions()
        if self._subscription.end_of_topic:
            self.records.ends = self._lookups.offsets(dict.fromkeys(found, LATEST))
        if self.group is None:
            self._on_assign(self._handle, [Place(*tp) for tp in found])
        else:
            self._handle.subscribe(
                list(self._subscription.topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        self._started = True
        self._polled_at = self._looked_at = time.monotonic()
        self._commits.start()

    def _find_partitions(self) -> list[TopicPartition]:
        known = self._lookups.partitions(self._subscription.only_topic)
        return self._subscription.partitions_of(known, self._connections.servers)

    def _look_for_partitions_if_due(self) -> None:
        """Without a group, check for new partitions; in a group the coordinator assigns them."""
        age_ms = (time.monotonic() - self._looked_at) * 1000
        if not self._subscription.grows or age_ms < self._settings.metadata_max_age_ms:
            return
        self._looked_at = time.monotonic()
        try:
            new = [tp for tp in self._find_partitions() if tp not in self.records]
        except DriftlogError as error:
            LOG.warning("the consumer looks for new partitions again later: %s", error)
            return
        if new:
            # Their records came since the last check.
            starts = self._lookups.offsets(dict.fromkeys(new, EARLIEST))
            for tp, start in starts.items():
                self.positions.assigned(tp, start, committed=False)
            self.records.assigned(starts)
            self._handle.incremental_assign(places(starts))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`.

        Raises:
            NotAssignedError: one of them is not assigned; none is paused.
        """
        tps = self._assigned(partitions)
        for tp in tps:
            self.records.pause(tp)
        self._handle.pause([Place(*tp) for tp in tps])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again.

        Raises:
            NotAssignedError: one of them is not assigned; none is resumed.
        """
        tps = self._assigned(partitions)
        for tp in tps:
            self.records.resume(tp)
        self._handle.resume([Place(*tp) for tp in tps])

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """*partitions* as a list, checked.

        Raises:
            NotAssignedError: one of them is not assigned.
        """
        if self.group is None:
            self.start()
        tps = [TopicPartition(*tp) for tp in partitions]
        for tp in tps:
            if tp not in self.records:
                raise NotAssignedError(tp.topic, tp.partition)
        return tps

    # ── Rebalances ──

    def _on_assign(self, handle: Any, assigned: list[Place]) -> None:
        if self._closed:
            return  # a rebalance that ends while the consumer closes: no record is read any more
        partitions = [TopicPartition(place.topic, place.partition) for place in assigned]
        try:
            starts = self._find_starts(partitions)
        except DriftlogError:
            # This read raises it; the next one repeats the lookup, and fetches nothing before.
            self._unplaced = assigned
            (handle.incremental_assign if self._cooperative else handle.assign)([])
            raise
        self.records.assigned(starts)
        self._starting = set(partitions)
        try:
            self._call_back("assign", partitions)
        finally:
            self._starting = set()
            at = places({tp: self.records.position(tp) for tp in partitions})
            if self._cooperative and self.group is not None:
                handle.incremental_assign(at)
            else:
                handle.assign(at)
            handle.pause([Place(*tp) for tp in self.records.paused() if tp in starts])

    def _find_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets at which reading of assigned partitions begins.

        Raises:
            DriftlogError: the cluster did not say.
        """
        committed = {} if self.group is None else self._lookups.committed(self.group, partitions)
        without = [tp for tp in partitions if tp not in committed]
        begin = EARLIEST if self._subscription.from_beginning else LATEST
        starts = committed | self._lookups.offsets(dict.fromkeys(without, begin))
        starts |= self._lookups.resolve(
            {tp: self._seeks[tp] for tp in partitions if tp in self._seeks}
        )
        for tp in partitions:
            self._seeks.pop(tp, None)
            self.positions.assigned(tp, starts[tp], committed=starts[tp] == committed.get(tp))
        return starts

    def _on_revoke(self, handle: Any, revoked: list[Place]) -> None:
        partitions = [TopicPartition(place.topic, place.partition) for place in revoked]
        try:
            self._call_back("revoke", partitions)
        finally:
            if self._auto_commit:
                try:
                    self._commits.now(handle, self.positions.to_commit(partitions))
                except CommitError as error:
                    LOG.warning("the consumer could not commit revoked partitions: %s", error)
            self._forget(handle, partitions)

    def _on_lost(self, handle: Any, lost: list[Place]) -> None:
        partitions = [TopicPartition(place.topic, place.partition) for place in lost]
        try:
            self._call_back("lost", partitions)
        finally:
            uncommitted = self.positions.to_commit(partitions)
            if uncommitted:
                LOG.warning(
                    "group %s: this member's session ended before it had committed what it "
                    "processed of %s: the next owner reads that again. Processing took longer than "
                    "max_poll_interval_ms, or nothing reached the coordinator for "
                    "session_timeout_ms.",
                    self.group,
                    ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(uncommitted)),
                )
            self._forget(handle, partitions)

    def _forget(self, handle: Any, partitions: list[TopicPartition]) -> None:
        gone = set(partitions)
        self._unplaced = [p for p in self._unplaced if (p.topic, p.partition) not in gone]
        # Otherwise librdkafka keeps the pause for the next assignment of the partition.
        paused = gone.intersection(self.records.paused())
        handle.resume([Place(*tp) for tp in paused])
        self.records.drop(partitions)
        self.positions.forget(partitions)

    def _call_back(self, event: RebalanceEvent, partitions: list[TopicPartition]) -> None:
        known = [tp for tp in partitions if tp in self.records]
        if self._notify is None or not known:
            return
        self.notifying = True
        try:
            self._notify(event, known)
        finally:
            self.notifying = False

    # ── Offsets ──

    def position(self, tp: TopicPartition) -> int:
        """The offset of the record that is handed out next.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        return self.records.position(self._assigned([tp])[0])

    def committed(self, tp: TopicPartition) -> int | None:
        """The group's committed offset, from its coordinator; None: there is none.

        Raises:
            ValueError: there is no group.
            ClosedError: the consumer closes.
        """
        if self.group is None:
            raise ValueError("only groups commit: give the consumer a group")
        if self._closed:
            raise ClosedError("the consumer closes: librdkafka reads no committed offsets any more")
        self._connections.check(self._settings.request_timeout_ms / 1000)
        return self._lookups.committed(self.group, [tp]).get(tp)

    def seek(self, tp: TopicPartition, where: Where) -> None:
        """Continue at *where*; a group's partition that is not assigned (yet) begins there.

        Raises:
            NotAssignedError: a consumer without a group does not read that partition.
            ValueError: *where* is no place.
        """
        check_place(where)
        if self.group is not None and tp not in self.records:
            self._seeks[tp] = where
            return
        self._assigned([tp])
        offset = self._lookups.resolve({tp: where})[tp]
        self.records.move(tp, offset)
        self.positions.moved(tp, offset)
        if tp not in self._starting:
            self._lookups.until_done(
                f"seek {tp.topic}-{tp.partition} to {offset}",
                lambda: self._handle.seek(Place(*tp, offset)),
                # Just after the assignment librdkafka cannot seek yet.
                also=frozenset({KafkaError._STATE}),
            )

    # ── Commits ──

    def commit(
        self,
        record: Record[Any, Any] | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit all records handed out, a partition up to *record*, or *offsets*; wait for it.

        Raises:
            CommitError: it is not committed.
            ValueError: there is no group, or an offset is negative, or both arguments are given.
        """
        if self.group is None:
            raise ValueError("only groups commit: give the consumer a group")
        if record is not None:
            if offsets is not None:
                raise ValueError("commit a record or offsets, not both")
            offsets = {record.topic_partition: record.offset + 1}
        if offsets is None:
            self.positions.processed()
            self._commits.now(self._handle, self.positions.to_commit())
            return
        given = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
        for tp, offset in given.items():
            if offset < 0:
                raise ValueError(f"an offset is not negative: {offset}")
            if tp not in self.positions:
                raise CommitError(
                    f"{tp.topic}-{tp.partition} is not assigned to this member (any more); nothing "
                    "was committed. The partition's owner reads from the last committed offset."
                )
        for tp, offset in given.items():
            self.positions.processed_to(tp, offset)
        self._commits.now(self._handle, self.positions.to_commit(given))

    def commit_processed(self) -> None:
        """Commit processed records, unless only the user commits.

        Raises:
            CommitError: it is not committed.
        """
        if self._auto_commit:
            self._commits.now(self._handle, self.positions.to_commit())

    def close(self, *, last_processed: bool) -> None:
        """Commit processed records, leave the group, and end.  Harmless when repeated.

        Raises:
            CommitError: it could not be committed; all the same the consumer is closed.
            BaseException: a rebalance callback raised it; all the same the consumer is closed.
        """
        if self._closed:
            return
        self._closed = True
        if last_processed:
            self.positions.processed()
        else:
            self.positions.not_processed()
        try:
            self.commit_processed()
        finally:
            self._auto_commit = False
            try:
                self._handle.close()
            finally:
                self.records.ready.clear()
