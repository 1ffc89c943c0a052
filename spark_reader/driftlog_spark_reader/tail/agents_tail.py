"""The tail from agents, as consumers get it: librdkafka without a group.

    driver     ListOffsets: high watermarks, log starts, offsets of times
    executors  assign(partition, start) ──▶ records ──▶ until the position is the piece's end

The position reaches the end by a record, or, where the last offsets have none, by the end of the
partition (which librdkafka reports) or by a record behind it.  A read that makes no progress for
``kafkaConsumer.pollTimeoutMs`` fails.

A topic that is deleted and created again has the same name, and its offsets start again.  The id of
the topic is compared after each read: ids never return, so all that was read is of the topic asked.

Adapter.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    OffsetSpec,
)

from driftlog.consumer.lookups import TRANSIENT
from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    TailUnavailableError,
)
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.formats.columns import SCHEMA

K = TypeVar("K")

ROWS: Final = 10_000
"""Of one batch of rows, at most."""

ROWS_BYTES: Final = 16 * 1024 * 1024
"""Of keys and values, after which a batch of rows ends."""

_PREFETCH_KIB: Final = 16 * 1024
"""What librdkafka reads ahead; its default of 64 MiB is too much for each task of an executor."""

_POLL_S: Final = 1.0
_OFFSETS: Final[Any] = OffsetSpec  # its methods have no types
_LOG_APPEND_TIME: Final = 2
"""librdkafka's number, and its CREATE_TIME is 1: `rd_kafka_timestamp_type_t`."""

_LATER: Final = TRANSIENT | {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
"""Errors of a request that is repeated: the leader of a partition changes."""

_PAUSE_S: Final = 0.1
_REQUEST_S: Final = 30.0
"""Of one request.  Longer: a frozen agent is left later for its successor."""

_AT_ONCE: Final = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    )
)
"""Errors that waiting does not repair."""


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """Where the agents are, and what a read does."""

    properties: Mapping[str, str] = field(repr=False)
    """Of librdkafka; passwords are among them."""
    timeout_s: float = 120.0
    """Without progress.  Longer: a query waits longer for agents that are away."""
    fail_on_data_loss: bool = True
    """False: records that were deleted after the query was planned are left out."""

    @property
    def servers(self) -> str:
        """The addresses to begin with."""
        return self.properties["bootstrap.servers"]

    @property
    def request_s(self) -> float:
        """Timeout of one request."""
        return min(self.timeout_s, _REQUEST_S)

    @property
    def isolation(self) -> IsolationLevel:
        """Kafka's default is READ_UNCOMMITTED, librdkafka's is the other one."""
        if self.properties.get("isolation.level", "") == "read_committed":
            return IsolationLevel.READ_COMMITTED
        return IsolationLevel.READ_UNCOMMITTED


class AgentsTail:
    """See the module; a `driftlog_spark_reader.tail.port.Tail`.

    Raises:
        ValueError: librdkafka refuses a property.
    """

    def __init__(self, settings: AgentsSettings) -> None:
        self._settings = settings
        self._admin = _admin(settings)
        self._ends: dict[tuple[UUID, int], int] = {}

    def ends(self, topic: Topic, partitions: Collection[int]) -> dict[int, int]:
        """See `Tail.ends`."""
        found = self._offsets(topic, partitions, _OFFSETS.latest())
        _check_topic(self._admin, self._settings, topic.name, topic.topic_id)
        ends = {partition: offset for partition, (offset, _) in found.items()}
        self._ends |= {(topic.topic_id, partition): end for partition, end in ends.items()}
        return ends

    def plan(self, topic: Topic, partition: int, start: int, end: int) -> list[TailRange]:
        """See `Tail.plan`; agents serve sealed offsets too."""
        if start >= end:
            return []
        if end > self._end(topic, partition) and end > self.ends(topic, [partition])[partition]:
            high_watermark = self._end(topic, partition)
            raise OffsetOutOfRangeError(
                f"{topic.name}-{partition}: the end {end} is above the high watermark, "
                f"{high_watermark}"
            )
        start = max(start, self._offsets(topic, [partition], _OFFSETS.earliest())[partition][0])
        _check_topic(self._admin, self._settings, topic.name, topic.topic_id)
        if start >= end:
            return []
        return [TailRange(topic.name, topic.topic_id, partition, start, end)]

    def offset_at(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """See `Tail.offset_at`."""
        end = self._end(topic, partition)
        at = _OFFSETS.for_timestamp(timestamp_ms)
        offset, found_ms = self._offsets(topic, [partition], at)[partition]
        _check_topic(self._admin, self._settings, topic.name, topic.topic_id)
        return (offset, found_ms) if 0 <= offset < end else None

    def reader(self) -> "AgentsReader":
        """See `Tail.reader`."""
        return AgentsReader(self._settings)

    def close(self) -> None:
        """Nothing to release: librdkafka's client ends with this object."""

    def _end(self, topic: Topic, partition: int) -> int:
        known = self._ends.get((topic.topic_id, partition))
        return self.ends(topic, [partition])[partition] if known is None else known

    def _offsets(
        self, topic: Topic, partitions: Collection[int], spec: OffsetSpec
    ) -> dict[int, tuple[int, int]]:
        """(offset, ms) of each partition."""
        if not partitions:
            return {}
        return _offsets(self._admin, self._settings, topic.name, topic.topic_id, partitions, spec)


@dataclass(frozen=True, slots=True)
class AgentsReader:
    """Reads pieces from agents; a `driftlog_spark_reader.tail.port.TailReader`."""

    settings: AgentsSettings

    def read(self, piece: TailRange) -> Iterator[pa.RecordBatch]:
        """See `TailReader.read`."""
        admin = _admin(self.settings)
        consumer = _consumer(self.settings)
        try:
            consumer.assign([TopicPartition(piece.topic, piece.partition, piece.start)])
            yield from _PieceRead(self.settings, consumer, admin, piece).rows()
        finally:
            consumer.close()
        _check_topic(admin, self.settings, piece.topic, piece.topic_id)


class _PieceRead:
    """The read of one piece."""

    def __init__(
        self, settings: AgentsSettings, consumer: Consumer, admin: AdminClient, piece: TailRange
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._admin = admin
        self._piece = piece
        self._position = piece.start
        self._said = "none"
        """The last error."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        piece, pending, size = self._piece, list[Message](), 0
        deadline = time.monotonic() + self._settings.timeout_s
        while self._position < piece.end:
            for message in self._poll():
                error = message.error()
                if error is not None:
                    self._take_error(message, error)
                    continue
                deadline = time.monotonic() + self._settings.timeout_s
                offset = message.offset()
                assert offset is not None
                self._position = max(self._position, offset + 1)
                if offset >= piece.end:
                    break
                pending.append(message)
                size += len(message.key() or b"") + len(message.value() or b"")
                if size >= ROWS_BYTES or len(pending) >= ROWS:
                    yield _batch(piece, pending)
                    pending, size = [], 0
            if self._position < piece.end and time.monotonic() > deadline:
                raise self._late()
        if pending:
            yield _batch(piece, pending)

    def _poll(self) -> list[Message]:
        """Messages that are there, or the first that comes within a second."""
        message = self._consumer.poll(_POLL_S)
        return [] if message is None else [message, *self._consumer.consume(ROWS, 0)]

    def _take_error(self, message: Message, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._position = max(self._position, message.offset() or 0)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._find_start(error)
        elif code in _AT_ONCE or error.fatal():
            _fail(self._settings, f"read {self._where}", self._piece.topic_id, error)
        elif code == KafkaError._BAD_MSG:
            raise DamagedTopicError(
                f"{self._where}: the batch behind offset {self._position} cannot be decoded "
                f"({error.str()}); seal the topic, which keeps it as it came, or give option etcd"
            )
        else:
            self._said = error.str()

    def _find_start(self, error: KafkaError) -> None:
        """Go on at the log start, which is above the position: records were deleted."""
        piece = self._piece
        start, _ = _offsets(
            *(self._admin, self._settings, piece.topic, piece.topic_id),
            *([piece.partition], _OFFSETS.earliest()),
        )[piece.partition]
        if start <= self._position:
            raise OffsetOutOfRangeError(
                f"{self._where}: the log ends below offset {self._position} ({error.str()}), and "
                f"the query was planned to {piece.end}: the cluster has lost records, or was "
                "restored; run the query again"
            )
        if self._settings.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{self._where}: offsets {self._position} to {min(start, piece.end) - 1} were "
                "deleted after the query was planned; run it again, or read what is left with "
                "failOnDataLoss=false"
            )
        self._position = start
        self._consumer.assign([TopicPartition(piece.topic, piece.partition, start)])

    def _late(self) -> TailUnavailableError:
        return TailUnavailableError(
            f"{self._where}: no record behind offset {self._position} for "
            f"{self._settings.timeout_s:g} s, and the piece ends at {self._piece.end} (last error: "
            f"{self._said}). Check that this machine reaches the agents behind "
            f"{self._settings.servers}, by the addresses that they advertise; raise "
            "kafkaConsumer.pollTimeoutMs; or give option etcd, which needs no agent"
        )

    @property
    def _where(self) -> str:
        return f"{self._piece.topic}-{self._piece.partition}"


def _batch(piece: TailRange, messages: list[Message]) -> pa.RecordBatch:
    times = [message.timestamp() for message in messages]
    columns: list[list[Any]] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [piece.topic] * len(messages),
        [piece.partition] * len(messages),
        [message.offset() for message in messages],
        [ms * 1000 for _, ms in times],
        [int(kind == _LOG_APPEND_TIME) for kind, _ in times],
        [_headers(message) for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    headers: Any = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None


# ── Clients ──


def _admin(settings: AgentsSettings) -> AdminClient:
    properties: dict[str, str | int | float | bool] = {
        name: value for name, value in settings.properties.items() if not _of_consumers(name)
    }
    try:
        return AdminClient(properties)
    except KafkaException as error:
        raise ValueError(f"an option kafka.* is refused: {error.args[0].str()}") from error


def _of_consumers(name: str) -> bool:
    """librdkafka warns of them in other clients."""
    return name.startswith(("fetch.", "max.partition.")) or name in (
        "check.crcs",
        "group.id",
        "isolation.level",
        "queued.max.messages.kbytes",
    )


def _consumer(settings: AgentsSettings) -> Consumer:
    try:
        return Consumer(
            {
                "queued.max.messages.kbytes": _PREFETCH_KIB,
                "isolation.level": "read_uncommitted",
                # librdkafka requires a name, and sends it to no coordinator.
                "group.id": "driftlog-spark-reader",
                **settings.properties,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
            }
        )
    except KafkaException as error:
        raise ValueError(f"an option kafka.* is refused: {error.args[0].str()}") from error


def _check_topic(admin: AdminClient, settings: AgentsSettings, topic: str, topic_id: UUID) -> None:
    """
    Raises:
        DeletedTopicError: the agents have no topic of that id under that name.
    """

    def ask(names: list[str]) -> Mapping[str, Future[Any]]:
        topics = TopicCollection(names)
        return admin.describe_topics(topics, request_timeout=settings.request_s)

    told = _ask(settings, f"describe {topic}", topic_id, [topic], ask)[topic].topic_id
    high, low = told.get_most_significant_bits(), told.get_least_significant_bits()
    bits = high % 2**64 << 64 | low % 2**64
    if bits != topic_id.int:
        raise DeletedTopicError(
            f"topic {topic!r} of the agents at {settings.servers} is {UUID(int=bits)}, and in the "
            f"bucket it is {topic_id}: it was created again, or kafka.bootstrap.servers is another "
            "cluster's address"
        )


def _offsets(
    admin: AdminClient,
    settings: AgentsSettings,
    topic: str,
    topic_id: UUID,
    partitions: Collection[int],
    spec: OffsetSpec,
) -> dict[int, tuple[int, int]]:
    """(offset, ms) of each partition."""

    def ask(waiting: list[int]) -> Mapping[int, Future[Any]]:
        asked = admin.list_offsets(
            {TopicPartition(topic, partition): spec for partition in waiting},
            isolation_level=settings.isolation,
            request_timeout=settings.request_s,
        )
        return {tp.partition: answer for tp, answer in asked.items()}

    found = _ask(settings, f"list offsets of {topic}", topic_id, partitions, ask)
    return {partition: (info.offset, info.timestamp) for partition, info in found.items()}


def _ask(
    settings: AgentsSettings,
    what: str,
    topic_id: UUID,
    wanted: Iterable[K],
    ask: Callable[[list[K]], Mapping[K, Future[Any]]],
) -> dict[K, Any]:
    """The answers; requests are repeated while leaders change, until the timeout.

    Raises:
        DeletedTopicError, TailUnavailableError: see `Tail.ends`.
    """
    deadline = time.monotonic() + settings.timeout_s
    waiting = list(wanted)
    found: dict[K, Any] = {}
    while waiting:
        for key, answer in ask(waiting).items():
            try:
                found[key] = answer.result()
            except KafkaException as error:
                refusal: KafkaError = error.args[0]
                if refusal.code() not in _LATER or time.monotonic() > deadline:
                    _fail(settings, what, topic_id, refusal)
        waiting = [key for key in waiting if key not in found]
        if waiting:
            time.sleep(_PAUSE_S)
    return found


def _fail(settings: AgentsSettings, what: str, topic_id: UUID, error: KafkaError) -> NoReturn:
    if error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    ):
        raise DeletedTopicError(
            f"cannot {what}: the agents at {settings.servers} have no such topic ({topic_id}); it "
            "was deleted, or kafka.bootstrap.servers is another cluster's address"
        )
    raise TailUnavailableError(
        f"cannot {what}: {error.str()}; check kafka.bootstrap.servers ({settings.servers}) and "
        "the options kafka.* for security, or give option etcd, which needs no agent"
    )
