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

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
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

from driftlog.common.records import headers_of
from driftlog.consumer.lookups import TRANSIENT
from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    TailUnavailableError,
)
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.segments.columns import SCHEMA

C = TypeVar("C", Consumer, AdminClient)
K = TypeVar("K")

Place = tuple[str, int]
"""Topic and partition, as messages name them."""

ROWS: Final = 10_000
"""Of one batch of rows, at most."""

_PREFETCH_KIB: Final = 16 * 1024
"""What librdkafka reads ahead; its default of 64 MiB is too much for each task of an executor."""

_BACKOFF_MS: Final = 10
"""After its queue was full; at the default of a second each full queue would take as long."""

_WAIT_MS: Final = 50
"""All that is read is there already: a partition that is read to its end must not hold up the
others of its agent for half a second."""

_LOG: Final = logging.getLogger("driftlog.librdkafka")
_POLL_S: Final = 1.0
_OFFSETS: Final[Any] = OffsetSpec  # its methods have no types
_LOG_APPEND_TIME: Final = 2
"""librdkafka's number, and its CREATE_TIME is 1: `rd_kafka_timestamp_type_t`."""

_LATER: Final = TRANSIENT | {
    KafkaError._NOENT,  # "no leaders found", while a partition has none
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
"""Errors of a request that is repeated: the leader of a partition changes."""

_PAUSE_S: Final = 0.1
_REQUEST_S: Final = 5.0
"""Of one request.  Longer: an agent that is gone or frozen is left later for its successor."""

_NO_TOPIC: Final = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
)
_AT_ONCE: Final = _NO_TOPIC | {
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
}
"""Errors that waiting does not repair."""

_UNDECODABLE: Final = frozenset((KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION))


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """Where the agents are, and what a read does."""

    properties: Mapping[str, str] = field(repr=False)
    """Of librdkafka; passwords are among them."""
    timeout_s: float = 120.0
    """Without progress.  Longer: a query waits longer for agents that are away."""
    fail_on_data_loss: bool = True
    """False: records that were deleted after the query was planned are left out."""
    rows_bytes: int = 16 * 1024 * 1024
    """Of keys, values and headers, after which a batch of rows ends."""

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
        self._requests = _Requests(settings)
        self._requests.check_properties()
        self._bounds: dict[tuple[UUID, int], LogEnds] = {}
        """Of each partition, as of its last `ends`."""

    def ends(self, topic: Topic, partitions: Collection[int]) -> dict[int, LogEnds]:
        """See `Tail.ends`."""
        ends = self._requests.offsets(topic, partitions, _OFFSETS.latest())
        starts = self._requests.offsets(topic, partitions, _OFFSETS.earliest())
        self._requests.check_topic(topic.name, topic.topic_id)
        found = {p: LogEnds(starts[p][0], ends[p][0]) for p in partitions}
        self._bounds |= {(topic.topic_id, p): bounds for p, bounds in found.items()}
        return found

    def plan(self, topic: Topic, partition: int, start: int, end: int) -> list[TailRange]:
        """See `Tail.plan`; agents serve sealed offsets too."""
        if start >= end:
            return []
        log = self._known(topic, partition)
        if end > log.end:
            log = self.ends(topic, [partition])[partition]
        if end > log.end:
            raise OffsetOutOfRangeError(
                f"{topic.name}-{partition}: the end {end} is above the high watermark, {log.end}"
            )
        start = max(start, log.start)
        if start >= end:
            return []
        return [TailRange(topic.name, topic.topic_id, partition, start, end)]

    def offset_at(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """See `Tail.offset_at`."""
        end = self._known(topic, partition).end
        found = self._requests.offsets(topic, [partition], _OFFSETS.for_timestamp(timestamp_ms))
        self._requests.check_topic(topic.name, topic.topic_id)
        offset, found_ms = found[partition]
        return (offset, found_ms) if 0 <= offset < end else None

    def reader(self) -> "AgentsReader":
        """See `Tail.reader`."""
        return AgentsReader(self._settings)

    def close(self) -> None:
        """Nothing to release: librdkafka's client ends with this object."""

    def _known(self, topic: Topic, partition: int) -> LogEnds:
        found = self._bounds.get((topic.topic_id, partition))
        return self.ends(topic, [partition])[partition] if found is None else found


@dataclass(frozen=True, slots=True)
class AgentsReader:
    """Reads pieces from agents; a `driftlog_spark_reader.tail.port.TailReader`."""

    settings: AgentsSettings

    def read(self, *pieces: TailRange) -> Iterator[pa.RecordBatch]:
        """See `TailReader.read`."""
        requests = _Requests(self.settings)
        errors = _Errors()
        consumer = _client(Consumer, self.settings, errors)
        try:
            for together in _by_partition(pieces):
                yield from _PiecesRead(self.settings, consumer, requests, errors, together).rows()
        finally:
            consumer.close()
        for topic, topic_id in {(piece.topic, piece.topic_id): None for piece in pieces}:
            requests.check_topic(topic, topic_id)


def _by_partition(pieces: Iterable[TailRange]) -> list[dict[Place, TailRange]]:
    """The pieces in rounds of one for each partition, by partition."""
    rounds: list[dict[Place, TailRange]] = []
    for piece in pieces:
        place = piece.topic, piece.partition
        together = next((found for found in rounds if place not in found), None)
        if together is None:
            rounds.append(together := {})
        together[place] = piece
    return rounds


class _PiecesRead:
    """The read of one piece of each partition, side by side."""

    def __init__(
        self,
        settings: AgentsSettings,
        consumer: Consumer,
        requests: "_Requests",
        errors: "_Errors",
        pieces: Mapping[Place, TailRange],
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._requests = requests
        self._errors = errors
        self._open = dict(pieces)
        """Pieces whose position is not their end."""
        self._positions = {place: piece.start for place, piece in pieces.items()}

    def rows(self) -> Iterator[pa.RecordBatch]:
        pending, size = list[_Row](), 0
        deadline = time.monotonic() + self._settings.timeout_s
        self._assign()
        while self._open:
            for message in self._poll():
                if (error := message.error()) is not None:
                    self._take_error(message, error)
                elif self._take(message):
                    row = self._row(message)
                    pending.append(row)
                    size += row.size_bytes
                    if size >= self._settings.rows_bytes or len(pending) >= ROWS:
                        yield _batch(pending)
                        pending, size = [], 0
                    deadline = time.monotonic() + self._settings.timeout_s
            if self._open and time.monotonic() > deadline:
                raise self._late()
        if pending:
            yield _batch(pending)

    def _row(self, message: Message) -> "_Row":
        try:
            headers = headers_of(message)
        except UnicodeError as error:
            offset = message.offset()
            raise self._undecodable(
                (message.topic() or "", message.partition() or 0),
                f"the record at offset {offset}",
                str(error),
            ) from error
        return _Row(message, headers)

    def _undecodable(self, place: Place, which: str, why: str) -> DamagedTopicError:
        return DamagedTopicError(
            f"{place[0]}-{place[1]}: {which} cannot be decoded ({why}); consumers get it as it "
            "came.  failOnDataLoss=false leaves its batch out once it is sealed, or with option "
            "etcd"
        )

    def _assign(self) -> None:
        places = [TopicPartition(*place, self._positions[place]) for place in self._open]
        self._consumer.assign(places)
        self._consumer.resume(places)  # librdkafka keeps a pause for the next assignment

    def _poll(self) -> list[Message]:
        """Messages that are there, or the first that comes within a second."""
        message = self._consumer.poll(_POLL_S)
        if (refusal := self._errors.refusal) is not None:
            piece = next(iter(self._open.values()))
            _fail(self._settings, f"read {_name(piece)}", piece.topic_id, refusal)
        return [] if message is None else [message, *self._consumer.consume(ROWS, 0)]

    def _take(self, message: Message) -> bool:
        """Move the position; whether the record is of a piece that is read."""
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        piece = self._open.get(place)
        if piece is None or offset < self._positions[place]:
            return False  # behind the end, or there already before partitions were assigned again
        self._move(place, offset + 1)
        return offset < piece.end

    def _move(self, place: Place, position: int) -> None:
        piece = self._open[place]
        self._positions[place] = max(self._positions[place], position)
        if self._positions[place] >= piece.end:
            del self._open[place]
            self._consumer.pause([TopicPartition(*place)])

    def _take_error(self, message: Message, error: KafkaError) -> None:
        code, place = error.code(), (message.topic() or "", message.partition() or 0)
        piece = self._open.get(place)
        if piece is None:
            self._errors.take(error)
        elif code == KafkaError._PARTITION_EOF:
            self._move(place, message.offset() or 0)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._find_start(place, piece, error)
        elif code in _AT_ONCE or error.fatal():
            _fail(self._settings, f"read {_name(piece)}", piece.topic_id, error)
        elif code in _UNDECODABLE:
            which = f"the batch at or behind offset {self._positions[place]}"
            raise self._undecodable(place, which, error.str())
        else:
            self._errors.take(error)

    def _find_start(self, place: Place, piece: TailRange, error: KafkaError) -> None:
        """Go on at the log start, which is above the position: records were deleted."""
        topic = Topic(name=piece.topic, topic_id=piece.topic_id, partitions=piece.partition + 1)
        found = self._requests.offsets(topic, [piece.partition], _OFFSETS.earliest())
        start, position = found[piece.partition][0], self._positions[place]
        if start <= position:
            raise OffsetOutOfRangeError(
                f"{_name(piece)}: the log ends below offset {position} ({error.str()}), and the "
                f"query was planned to {piece.end}: the cluster has lost records, or was "
                "restored; run the query again"
            )
        if self._settings.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{_name(piece)}: offsets {position} to {min(start, piece.end) - 1} were deleted "
                "after the query was planned; run it again, or read what is left with "
                "failOnDataLoss=false"
            )
        self._move(place, start)
        self._assign()

    def _late(self) -> TailUnavailableError:
        place, piece = next(iter(self._open.items()))
        return TailUnavailableError(
            f"{_name(piece)}: no record behind offset {self._positions[place]} for "
            f"{self._settings.timeout_s:g} s, and the piece ends at {piece.end} (last error: "
            f"{self._errors.last}). Check that this machine reaches the agents behind "
            f"{self._settings.servers}, by the addresses that they advertise; raise "
            "kafkaConsumer.pollTimeoutMs; or give option etcd, which needs no agent"
        )


def _name(piece: TailRange) -> str:
    return f"{piece.topic}-{piece.partition}"


class _Row(NamedTuple):
    """A record, and its headers, which a message decodes at each call."""

    message: Message
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def size_bytes(self) -> int:
        """Of its key, value and headers."""
        size = len(self.message.key() or b"") + len(self.message.value() or b"")
        return size + sum(len(key) + len(value or b"") for key, value in self.headers)

    def header_structs(self) -> list[dict[str, Any]] | None:
        """The headers as the column has them."""
        return [{"key": key, "value": value} for key, value in self.headers] or None


def _batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    messages = [row.message for row in rows]
    times = [message.timestamp() for message in messages]
    columns: list[list[Any]] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [ms * 1000 for _, ms in times],
        [int(kind == _LOG_APPEND_TIME) for kind, _ in times],
        [row.header_structs() for row in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# ── Requests ──


class _Errors:
    """What librdkafka says of its connections."""

    def __init__(self) -> None:
        self.last = "none"
        self.refusal: KafkaError | None = None
        """An error that waiting does not repair."""

    def take(self, error: KafkaError) -> None:
        self.last = error.str()
        if error.code() in _AT_ONCE:
            self.refusal = error


class _Requests:
    """Requests of one answer, repeated while leaders change, until the timeout.

    The client is made anew for each repeat: librdkafka 2.16 waits for a controller that it has
    known and that is gone, without looking for the next one (and connects 10,000 times a second).
    """

    def __init__(self, settings: AgentsSettings) -> None:
        self._settings = settings
        self._errors = _Errors()
        self._client: AdminClient | None = None

    def offsets(
        self, topic: Topic, partitions: Collection[int], spec: OffsetSpec
    ) -> dict[int, tuple[int, int]]:
        """(offset, ms) of each partition.

        Raises:
            DeletedTopicError, TailUnavailableError: see `Tail.ends`.
        """

        def ask(waiting: list[int]) -> Mapping[int, Future[Any]]:
            asked = self._admin().list_offsets(
                {TopicPartition(topic.name, partition): spec for partition in waiting},
                isolation_level=self._settings.isolation,
                request_timeout=self._settings.request_s,
            )
            return {tp.partition: answer for tp, answer in asked.items()}

        found = self._ask(f"list offsets of {topic.name}", topic.topic_id, partitions, ask)
        return {partition: (info.offset, info.timestamp) for partition, info in found.items()}

    def check_topic(self, topic: str, topic_id: UUID) -> None:
        """
        Raises:
            DeletedTopicError: the agents have no topic of that id under that name.
            TailUnavailableError: see `Tail.ends`.
        """

        def ask(names: list[str]) -> Mapping[str, Future[Any]]:
            topics = TopicCollection(names)
            return self._admin().describe_topics(topics, request_timeout=self._settings.request_s)

        told = self._ask(f"describe {topic}", topic_id, [topic], ask)[topic].topic_id
        high, low = told.get_most_significant_bits(), told.get_least_significant_bits()
        bits = high % 2**64 << 64 | low % 2**64
        if bits != topic_id.int:
            raise DeletedTopicError(
                f"topic {topic!r} of the agents at {self._settings.servers} is {UUID(int=bits)}, "
                f"and in the bucket it is {topic_id}: it was created again, or "
                "kafka.bootstrap.servers is another cluster's address"
            )

    def check_properties(self) -> None:
        """
        Raises:
            ValueError: librdkafka refuses a property.
        """
        self._admin()

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = _client(AdminClient, self._settings, self._errors)
        return self._client

    def _ask(
        self,
        what: str,
        topic_id: UUID,
        wanted: Iterable[K],
        ask: Callable[[list[K]], Mapping[K, Future[Any]]],
    ) -> dict[K, Any]:
        self._admin().poll(0)  # What connections said since the last request leaves its queue,
        self._errors.refusal = None  # and says nothing of this one.
        deadline = time.monotonic() + self._settings.timeout_s
        waiting = list(wanted)
        found: dict[K, Any] = {}
        while waiting:
            for key, answer in ask(waiting).items():
                try:
                    told = answer.result()
                except KafkaException as error:
                    self._refused(what, topic_id, error.args[0], deadline)
                    continue
                if getattr(told, "offset", 0) == OFFSET_INVALID:
                    # librdkafka 2.16: of a partition whose leader went away meanwhile, no error.
                    no_leader = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                    self._refused(what, topic_id, no_leader, deadline)
                    continue
                found[key] = told
            waiting = [key for key in waiting if key not in found]
            if waiting:
                self._client = None
                time.sleep(_PAUSE_S)
        return found

    def _refused(self, what: str, topic_id: UUID, error: KafkaError, deadline: float) -> None:
        """
        Raises:
            DeletedTopicError, TailUnavailableError: no repeat can succeed, or it is too late.
        """
        self._admin().poll(0)  # what its connections say
        if self._errors.refusal is not None:
            error = self._errors.refusal
        elif error.code() in _LATER and time.monotonic() <= deadline:
            return
        _fail(self._settings, what, topic_id, error, self._errors.last)


def _client(kind: type[C], settings: AgentsSettings, errors: _Errors) -> C:
    properties: dict[str, Any] = dict(settings.properties)
    if kind is Consumer:
        properties = {
            "queued.max.messages.kbytes": _PREFETCH_KIB,
            "fetch.queue.backoff.ms": _BACKOFF_MS,
            "fetch.wait.max.ms": _WAIT_MS,
            "isolation.level": "read_uncommitted",
            # librdkafka requires a name; a partition that is assigned makes no member of a group.
            "group.id": "driftlog-spark-reader",
            **properties,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
    else:
        properties = {name: of for name, of in properties.items() if not _is_consumers(name)}
    properties |= {"error_cb": errors.take, "logger": _LOG}
    try:
        return kind(properties)
    except KafkaException as error:
        raise ValueError(f"an option kafka.* is refused: {error.args[0].str()}") from error


def _is_consumers(name: str) -> bool:
    """librdkafka warns of them in other clients."""
    return name.startswith(("fetch.", "max.partition.")) or name in (
        "check.crcs",
        "group.id",
        "isolation.level",
        "queued.max.messages.kbytes",
    )


def _fail(
    settings: AgentsSettings, what: str, topic_id: UUID, error: KafkaError, last: str = "none"
) -> NoReturn:
    if error.code() in _NO_TOPIC:
        raise DeletedTopicError(
            f"cannot {what}: the agents at {settings.servers} have no such topic ({topic_id}); it "
            "was deleted, or kafka.bootstrap.servers is another cluster's address"
        )
    raise TailUnavailableError(
        f"cannot {what}: {error.str()} (last error of a connection: {last}); check "
        f"kafka.bootstrap.servers ({settings.servers}) and the options kafka.* for security, or "
        "give option etcd, which needs no agent"
    )
