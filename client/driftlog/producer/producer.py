"""Records in.

    with Producer() as producer:
        for number in range(1_000_000):
            producer.produce("flights", b"…", key=b"…")

    produce ──▶ librdkafka's queue ──▶ batches ──▶ agents ──▶ acknowledgement
       │  waits where the queue is full                              │ or a failure
       ◀──────────── the next produce, flush or exit raises ─────────┘

Any number of threads may use one producer.
Shell.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Self

import confluent_kafka
from confluent_kafka import KafkaException

from driftlog.common.connection import LOG, Connections, bootstrap, configuration, fail, unreachable
from driftlog.common.records import to_ms
from driftlog.common.serialization import HeaderList, Serializer, Serializers
from driftlog.common.settings import ProducerSettings
from driftlog.errors import ClosedError, DriftlogError, FlushTimeoutError, QueueFullError
from driftlog.producer.deliveries import Deliveries, DeliveryCallback, DeliveryFuture

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes | str)
    V = TypeVar("V", default=bytes | str)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

_SLICE_S: Final = 0.1
"""How long one wait for librdkafka takes: Python handles signals in between."""
_ABANDONED_S: Final = 10.0
NOT_TAKEN: Final = " (the record of this call was not taken either: produce it again)"


class Producer(Generic[K, V]):
    """Writes records to any Kafka cluster.

    Keys and values are bytes, or str in UTF-8; others need a serializer, which is never given
    None: null stays null.  As a context manager it flushes on exit and raises failures::

        from driftlog import Producer
        from driftlog.serializers import to_json

        with Producer(value_serializer=to_json) as producer:
            producer.produce("flights", {"number": "LX 18"}, key="LX", headers={"source": b"demo"})
            delivered = producer.send("flights", {"number": "LX 19"}, key="LX").result(60)
            print(delivered.partition, delivered.offset)

    Args:
        bootstrap_servers: one or more of the cluster's addresses; None: the environment variable
            DRIFTLOG_BOOTSTRAP_SERVERS, or 127.0.0.1:9092.
        key_serializer, value_serializer: make bytes of keys and values, from the value alone or
            from the value and a `driftlog.serializers.SerializationContext`.
        settings: how records become batches; the defaults suit acknowledgements from a bucket.
        config: librdkafka's own configs, over everything; for TLS and SASL.

    Raises:
        ValueError: a config that does not exist, or that the client sets itself.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] | None = None,
        key_serializer: Serializer[K] | None = None,
        value_serializer: Serializer[V] | None = None,
        settings: ProducerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings or ProducerSettings()
        self._serializers = Serializers(key_serializer, value_serializer)
        self._link = ProducerLink(bootstrap(bootstrap_servers), self._settings, config)
        self._deliveries = self._link.deliveries
        self._report: Callable[[Any, Any], None] = self._deliveries.delivered
        self._handle = self._link.handle
        self._poller: threading.Thread | None = None
        self._starting = threading.Lock()
        self._connected = self._settings.connect_timeout_ms <= 0
        self._closed = False
        self._abandoned = weakref.finalize(self, abandon, self._link)

    def produce(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Buffer a record; waits while too many records are unacknowledged.

        Args:
            partition: None: by the key's hash; without a key, spread in batches.
            timestamp: milliseconds since 1970, or a time with its zone; None: now.
            headers: in their order; a value may be None.
            on_delivery: called with this record's error or place, by a later call of this producer;
                no call raises the failure then.

        Raises:
            DeliveryError: records of earlier calls failed.  This one was not taken.
            QueueFullError: there is no room after `max_block_ms`.  This one was not taken.
            UnreachableError: the first call found no cluster.  This one was not taken.
            SerializationError: the key or the value is not bytes or str and has no serializer, or
                its serializer failed.  This one was not taken.
            RequestError: librdkafka declines it, such as a record above `max_message_bytes`.
            ValueError: the timestamp has no zone, or is not after the start of 1970.
            ClosedError: the producer is closed.
        """
        deliveries = self._deliveries
        report = self._report if on_delivery is None else deliveries.to_callback(on_delivery)
        self._produce(topic, value, key, partition, timestamp, headers, report)

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
    ) -> DeliveryFuture:
        """As `produce`; returns a future of the record's place.

        The future holds a failure; `close` raises one that the program did not read.

        Raises:
            As `produce`.
        """
        if self._poller is None:
            self._start_poller()
        future = DeliveryFuture()
        report = self._deliveries.to_future(future)
        self._produce(topic, value, key, partition, timestamp, headers, report)
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all produced records are acknowledged.

        Args:
            timeout_s: seconds; None: until each record is acknowledged or has failed, which takes
                `delivery_timeout_ms` at most.

        Raises:
            DeliveryError: records failed.
            FlushTimeoutError: records still wait for acknowledgement after *timeout_s*.
            ClosedError: the producer is closed.
        """
        self._check_open()
        waiting = self._link.flush(timeout_s)
        self._deliveries.raise_pending()
        if waiting:
            raise FlushTimeoutError(waiting, still_waiting(waiting, timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, raise failures that were not raised yet, and end.  Harmless when repeated.

        Args:
            timeout_s: seconds, after which unacknowledged records are given up; None: as `flush`.

        Raises:
            DeliveryError: records failed, or were given up.
        """
        if self._closed:
            return
        waiting = self._link.flush(timeout_s)
        self._closed = True
        self._abandoned.detach()
        self._link.stopped.set()
        if self._poller is not None:
            self._poller.join()
        if waiting:
            self._link.purge()
        self._deliveries.raise_all()

    def __len__(self) -> int:
        """How many records wait for acknowledgement."""
        return len(self._handle)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except DriftlogError as undelivered:
            # The body's error is raised; this one is a note of it.
            error.add_note(f"driftlog: {undelivered}")

    # ── Inside ──

    def _produce(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: HeadersLike | None,
        report: Callable[[Any, Any], None],
    ) -> None:
        self._check_open()
        if not self._connected:
            self._link.connect(topic)
            self._connected = True
        sent_headers = [] if headers is None else header_list(headers)
        raw_key, raw_value = self._serializers(topic, key, value, sent_headers)
        arguments = (
            topic,
            raw_value,
            raw_key,
            -1 if partition is None else partition,
            report,  # `callback`; if it is given, even as None, librdkafka ignores `on_delivery`
            None,
            0 if timestamp is None else record_timestamp(timestamp),
            sent_headers or None,
        )
        self._handle.poll(0)
        if self._deliveries.pending:
            self._deliveries.raise_pending(NOT_TAKEN)
        try:
            self._handle.produce(*arguments)
        except BufferError:
            self._produce_when_there_is_room(arguments)
        except TypeError:
            self._serializers.refuse(topic, raw_key, raw_value)
            raise
        except KafkaException as error:
            fail(f"produce to topic {topic!r}", error)

    def _produce_when_there_is_room(self, arguments: tuple[Any, ...]) -> None:
        deadline = time.monotonic() + self._settings.max_block_ms / 1000
        while True:
            self._handle.poll(_SLICE_S)
            if self._deliveries.pending:
                self._deliveries.raise_pending(NOT_TAKEN)
            try:
                self._handle.produce(*arguments)
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._link.queue_full() from None
            except KafkaException as error:
                fail(f"produce to topic {arguments[0]!r}", error)
            else:
                return

    def _start_poller(self) -> None:
        with self._starting:
            if self._poller is None:
                self._check_open()
                self._poller = threading.Thread(
                    target=_poll, args=(self._link,), name="driftlog-producer", daemon=True
                )
                self._poller.start()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this producer is closed: create a new one")


class ProducerLink:
    """librdkafka's handle, and its reports; does not refer to the producer that uses it."""

    def __init__(
        self, servers: str, settings: ProducerSettings, config: Mapping[str, Any] | None
    ) -> None:
        self.settings = settings
        self.connections = Connections(servers, config)
        self.deliveries = Deliveries(self.connections)
        self.stopped = threading.Event()
        self.leftovers: Callable[[], None] = lambda: None
        """Collects failures for an event loop that is closed."""
        configs = configuration(servers, settings.configs(), config, self.connections.failed)
        try:
            self.handle = confluent_kafka.Producer(configs)
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the configuration: {error.args[0]}") from error

    def connect(self, topic: str) -> None:
        """Request the topic's metadata.

        Raises:
            UnreachableError: no broker answered in time.
        """
        timeout_s = self.settings.connect_timeout_ms / 1000
        self.connections.check(timeout_s)
        try:
            self.handle.list_topics(topic, timeout_s)
        except KafkaException as error:
            self.handle.poll(0)  # errors of connections
            last = self.connections.last_error
            raise unreachable(self.connections.servers, timeout_s, last) from error

    def flush(self, timeout_s: float | None) -> int:
        """Wait, and serve librdkafka's reports; returns how many records still wait."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _SLICE_S if deadline is None else deadline - time.monotonic()
            waiting = self.handle.flush(max(0.0, min(_SLICE_S, left_s)))
            if not waiting or left_s <= 0:
                return waiting

    def purge(self) -> None:
        """Give up the records that wait; each fails, and is reported."""
        self.handle.purge()
        self.handle.flush(1)

    def queue_full(self) -> QueueFullError:
        """The exception for a queue without room for `max_block_ms`."""
        last = self.connections.last_error
        return QueueFullError(
            f"{len(self.handle):,} records wait for acknowledgement, and there was no room for "
            f"{self.settings.max_block_ms / 1000:g} s: the record of this call was not taken. "
            "Check that the agents and their bucket answer"
            + (f" (the last error of a connection: {last})" if last else "")
            + ", then produce it again; or raise queue_max_bytes or max_block_ms."
        )


def record_timestamp(timestamp: int | datetime) -> int:
    """The timestamp in milliseconds, for librdkafka.

    Raises:
        ValueError: it has no zone, or is not after the start of 1970: 0 means now to librdkafka.
    """
    timestamp_ms = timestamp if isinstance(timestamp, int) else to_ms(timestamp)
    if timestamp_ms <= 0:
        raise ValueError(f"a timestamp must be later than the start of 1970, not {timestamp!r}")
    return timestamp_ms


def header_list(headers: HeadersLike) -> HeaderList:
    """The headers in librdkafka's form."""
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def still_waiting(waiting: int, timeout_s: float | None) -> str:
    """The message of a flush that ended too early."""
    return (
        f"{waiting:,} records are not acknowledged after {timeout_s or 0:g} s; they are neither "
        "delivered nor lost yet. Flush again."
    )


def _poll(link: ProducerLink) -> None:
    while not link.stopped.is_set():
        link.handle.poll(_SLICE_S)


def abandon(link: ProducerLink) -> None:
    """For a producer that was not closed: deliver its records, and log those that fail."""
    link.stopped.set()
    waiting = link.flush(_ABANDONED_S)
    link.leftovers()
    if waiting:
        LOG.error("a Producer was not closed: %s records are lost. Use `with Producer()`.", waiting)
    try:
        link.deliveries.raise_all()
    except Exception as error:  # noqa: BLE001  # the producer is gone: no call can raise it
        LOG.error("a Producer was not closed: %s", error)
