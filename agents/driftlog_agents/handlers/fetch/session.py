"""One fetch session (KIP-227): its partitions, and which of them the next answer looks at.

    named by a request ──▶ due ──▶ answered: nothing is left to tell ──▶ idle
                            ▲                                             │
                            └── its high watermark or log start moves, ───┘
                                its log is lost or is not online

1. An answer contains a partition with records, with another high watermark or log start than it was
   told last, or with an error.  A partition with an error is told again without it.
2. A partition whose records were told goes behind the others, so that all have their turn.
3. Only due partitions are read.  The log of an idle partition tells its session of its next commit,
   once; its log start and its state are compared at each fetch.

Source: org.apache.kafka.server.FetchSession, CachedPartition, IncrementalFetchContext.
Pure.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Final, Protocol
from uuid import UUID

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0

SESSION_BYTES: Final = 1_024
"""Memory of a session beside its partitions."""

PARTITION_BYTES: Final = 768
"""Memory of each of its partitions, with those entries of tables that a waiting Fetch adds."""

TOPIC_BYTES: Final = 1_024
"""The same for each topic, with its name of at most 249 ASCII characters."""

_NOT_TOLD: Final = -1
_LAST_EPOCH: Final = 0x7FFF_FFFF


class WaitingFetch(Protocol):
    """The request of a session that waits for records."""

    def joined(self, log: PartitionLog, asked: FetchPartition) -> None:
        """A partition that was idle has new records."""
        ...

    def lost(self, log: PartitionLog) -> None:
        """A partition that was idle is no longer led here."""
        ...


class SessionPartition:
    """A partition of a session: what is asked, and what was told last."""

    __slots__ = ("asked", "high_watermark", "log", "log_start", "topic")

    def __init__(self, topic: "SessionTopic", asked: FetchPartition) -> None:
        self.topic = topic
        self.asked = asked
        self.high_watermark = self.log_start = _NOT_TOLD
        self.log: PartitionLog | None = None
        """Its log while it is idle; None: it is due."""

    def tell(self, data: PartitionData) -> bool:
        """Note what *data* tells; whether it must be told: `CachedPartition#maybeUpdateResponse`"""
        failed = data.error_code != 0
        told = self.high_watermark, self.log_start
        self.high_watermark = _NOT_TOLD if failed else data.high_watermark
        self.log_start = data.log_start_offset
        return (
            bool(data.records)
            or failed
            or data.diverging_epoch.epoch >= 0
            or told != (data.high_watermark, data.log_start_offset)
        )


class SessionTopic:
    """A topic of a session, by its name or by its id."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: UUID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, SessionPartition] = {}


class FetchSession:
    """See the module.  It is the `Waiter` of its idle partitions.

    Args:
        by_id: its topics are named by id: Fetch 13 and later.
    """

    __slots__ = (
        "_due",
        "_idle",
        "_topics",
        "by_id",
        "closed",
        "created_ms",
        "epoch",
        "partitions",
        "session_id",
        "used_ms",
        "waiting",
    )

    def __init__(self, session_id: int, *, by_id: bool, now_ms: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self.created_ms = self.used_ms = now_ms
        self.closed = False
        self.partitions = 0
        self.waiting: WaitingFetch | None = None
        self._topics: dict[UUID | str, SessionTopic] = {}
        self._due: dict[SessionPartition, None] = {}
        """In the order of the answer."""
        self._idle: dict[PartitionLog, SessionPartition] = {}

    @property
    def size_bytes(self) -> int:
        """Memory that it holds, at most."""
        return held_bytes(len(self._topics), self.partitions)

    # ── What is asked ──

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add, replace and remove partitions, as a request asks."""
        for topic in topics:
            for asked in topic.partitions:
                self._ask(topic.topic, topic.topic_id, asked)
        for gone in forgotten:
            self._forget(gone)

    def _ask(self, name: str, topic_id: UUID, asked: FetchPartition) -> None:
        key: UUID | str = topic_id if self.by_id else name
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = SessionTopic(name, topic_id)
        partition = topic.partitions.get(asked.partition)
        if partition is None:
            partition = topic.partitions[asked.partition] = SessionPartition(topic, asked)
            self.partitions += 1
        else:
            partition.asked = asked
            self._not_idle(partition)
        self._due[partition] = None

    def _forget(self, gone: ForgottenTopic) -> None:
        key: UUID | str = gone.topic_id if self.by_id else gone.topic
        topic = self._topics.get(key)
        if topic is None:
            return
        for number in gone.partitions:
            partition = topic.partitions.pop(number, None)
            if partition is not None:
                self.partitions -= 1
                self._due.pop(partition, None)
                self._not_idle(partition)
        if not topic.partitions:
            del self._topics[key]

    # ── What is looked at ──

    def due(self) -> list[FetchTopic]:
        """The partitions that the next answer looks at, in its order."""
        online = State.ONLINE
        for log in [
            log
            for log, partition in self._idle.items()
            if log.log_start != partition.log_start or log.state is not online
        ]:
            self._wake(log)
        return [
            FetchTopic(
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=[partition.asked for partition in partitions],
            )
            for topic, partitions in groupby(self._due, key=_topic_of)
        ]

    def told(
        self, answers: Iterable[tuple[FetchableTopicResponse, list[PartitionLog | None]]]
    ) -> list[FetchableTopicResponse]:
        """Take the answers of due partitions, with their logs; returns those that must be told."""
        told: list[FetchableTopicResponse] = []
        for answer, logs in answers:
            topic = self._topics.get(answer.topic_id if self.by_id else answer.topic)
            if topic is None:
                continue
            partitions: list[PartitionData] = []
            for data, log in zip(answer.partitions, logs, strict=True):
                partition = topic.partitions.get(data.partition_index)
                if partition is None:
                    continue
                if partition.tell(data):
                    partitions.append(data)
                self._settle(partition, data, log)
            if partitions:
                answer.partitions = partitions
                told.append(answer)
        return told

    def _settle(
        self, partition: SessionPartition, data: PartitionData, log: PartitionLog | None
    ) -> None:
        """Let *partition* be idle, if *log* has nothing more for it now."""
        if partition.log is not None:
            return  # a request that names it twice
        if data.records:
            self._due.pop(partition)
            self._due[partition] = None
        elif (
            log is not None
            and log.state is State.ONLINE
            and data.diverging_epoch.epoch < 0
            and partition.high_watermark == log.high_watermark <= partition.asked.fetch_offset
        ):
            self._due.pop(partition)
            partition.log = log
            self._idle[log] = partition
            log.waiting_fetches[self] = None

    # ── What the logs tell ──

    def committed(self, log: PartitionLog) -> None:
        """The high watermark of an idle partition moved."""
        partition = self._wake(log)
        if partition is not None and self.waiting is not None:
            self.waiting.joined(log, partition.asked)

    def lost(self, log: PartitionLog) -> None:
        """An idle partition is no longer led here."""
        if self._wake(log) is not None and self.waiting is not None:
            self.waiting.lost(log)

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("a fetch waits for no sync")

    unsynced = synced

    def _wake(self, log: PartitionLog) -> SessionPartition | None:
        partition = self._idle.get(log)
        if partition is not None:
            self._not_idle(partition)
            self._due[partition] = None
        return partition

    def _not_idle(self, partition: SessionPartition) -> None:
        log, partition.log = partition.log, None
        if log is not None:
            log.waiting_fetches.pop(self, None)
            del self._idle[log]

    def close(self) -> None:
        """Its id is unknown from now on."""
        self.closed = True
        for partition in list(self._idle.values()):
            self._not_idle(partition)


def next_epoch(epoch: int) -> int:
    """The epoch of the request after that of *epoch*: `FetchMetadata#nextEpoch`."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _LAST_EPOCH else epoch + 1


def held_bytes(topics: int, partitions: int) -> int:
    """Memory of a session of so many topics and partitions, at most."""
    return SESSION_BYTES + topics * TOPIC_BYTES + partitions * PARTITION_BYTES


def _topic_of(partition: SessionPartition) -> SessionTopic:
    return partition.topic
