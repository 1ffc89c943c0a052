"""Records in, from asyncio.

    async with AsyncProducer() as producer:
        await producer.produce("flights", b"…")                       buffered; waits only for room
        delivered = await producer.send_and_wait("flights", b"…")     acknowledged

`confluent_kafka.aio` is not used because its producer takes no headers.  One thread polls
librdkafka and passes its reports to the loop, many records at a time:

    loop:    produce ──▶ librdkafka          futures ◀── waiters for room ◀──┐
    thread:                  └──▶ poll ──▶ reports ──── call_soon_threadsafe ┘

A cancelled call has taken its record or not.  A record that was taken is delivered, and its failure
is raised like that of any other.
Shell.
"""

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Self

from confluent_kafka import KafkaError, KafkaException

from driftlog.common.connection import bootstrap, fail
from driftlog.common.records import Delivered, Message
from driftlog.common.serialization import Serializer, Serializers
from driftlog.common.settings import ProducerSettings
from driftlog.errors import ClosedError, DeliveryError, DriftlogError, FlushTimeoutError
from driftlog.producer.deliveries import where
from driftlog.producer.producer import (
    NOT_TAKEN,
    HeadersLike,
    K,
    ProducerLink,
    V,
    abandon,
    header_list,
    record_timestamp,
    still_waiting,
)

_SLICE_S: Final = 0.1
_YIELD_EVERY: Final = 256
"""Records in a row that find room at once; then other tasks of the loop run."""

Report = tuple[asyncio.Future[Delivered] | None, KafkaError | None, Message]


class AsyncProducer(Generic[K, V]):
    """As `driftlog.Producer`, for the tasks of one event loop; it never blocks the loop.

    Its methods raise what those of `driftlog.Producer` raise.

    This program writes two records::

        import asyncio

        from driftlog import AsyncProducer


        async def main() -> None:
            async with AsyncProducer() as producer:
                await producer.produce("flights", b"LX 18", key=b"LX")
                delivered = await producer.send_and_wait("flights", b"LX 19", key=b"LX")
                print(delivered.partition, delivered.offset)


        asyncio.run(main())

    Args:
        As those of `driftlog.Producer`.
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
        self._bridge: _Bridge | None = None
        self._connecting: asyncio.Future[_Bridge] | None = None
        self._since_yield = 0
        self._closed = False
        self._abandoned = weakref.finalize(self, abandon, self._link)

    async def produce(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Buffer a record; waits only while too many records are unacknowledged.

        Raises:
            As `Producer.produce`.
        """
        await self._produce(topic, value, key, partition, timestamp, headers, None)

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
    ) -> asyncio.Future[Delivered]:
        """As `produce`; returns a future of the record's place.

        The future holds a failure; `close` raises one that the program did not read.

        Raises:
            As `produce`.
        """
        future: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()
        await self._produce(topic, value, key, partition, timestamp, headers, future)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivered:
        """As `produce`; returns the record's place, once it is acknowledged.

        Raises:
            DeliveryError: this record failed.
            As `Producer.produce`.
        """
        sent = self.send(
            topic, value, key, partition=partition, timestamp=timestamp, headers=headers
        )
        return await (await sent)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when all produced records are acknowledged."""
        self._check_open()
        waiting = await self._flush(timeout_s)
        self._link.deliveries.raise_pending()
        if waiting:
            raise FlushTimeoutError(waiting, still_waiting(waiting, timeout_s))

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, raise failures that were not raised yet, and end.  Harmless when repeated.

        A cancelled close gives up unacknowledged records.

        Raises:
            DeliveryError: records failed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            waiting = await self._flush(timeout_s)
            if waiting and self._bridge is not None:
                await asyncio.to_thread(self._link.purge)
                self._bridge.bring()
        finally:
            self._abandoned.detach()
            self._link.stopped.set()
        if self._bridge is not None:
            await asyncio.to_thread(self._bridge.thread.join)
        self._link.deliveries.raise_all()

    def __len__(self) -> int:
        """How many records wait for acknowledgement."""
        return len(self._link.handle)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except DriftlogError as undelivered:
            error.add_note(f"driftlog: {undelivered}")

    # ── Inside ──

    async def _produce(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: HeadersLike | None,
        future: asyncio.Future[Delivered] | None,
    ) -> None:
        self._check_open()
        bridge = self._bridge or await self._start(topic)
        sent_headers = [] if headers is None else header_list(headers)
        raw_key, raw_value = self._serializers(topic, key, value, sent_headers)
        arguments = (
            topic,
            raw_value,
            raw_key,
            -1 if partition is None else partition,
            bridge.report if future is None else bridge.report_to(future),
            None,
            0 if timestamp is None else record_timestamp(timestamp),
            sent_headers or None,
        )
        self._since_yield += 1
        if self._since_yield >= _YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)
            self._check_open()
        if not self._offer(arguments):
            await self._offer_until_there_is_room(bridge, arguments)

    def _offer(self, arguments: tuple[Any, ...]) -> bool:
        if self._link.deliveries.pending:
            self._link.deliveries.raise_pending(NOT_TAKEN)
        try:
            self._link.handle.produce(*arguments)
        except BufferError:
            return False
        except TypeError:
            topic, raw_value, raw_key, *_ = arguments
            self._serializers.refuse(topic, raw_key, raw_value)
            raise
        except KafkaException as error:
            fail(f"produce to topic {arguments[0]!r}", error)
        return True

    async def _offer_until_there_is_room(
        self, bridge: "_Bridge", arguments: tuple[Any, ...]
    ) -> None:
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000) as limit:
                while True:
                    await bridge.room()
                    self._since_yield = 0
                    if self._offer(arguments):
                        return
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._link.queue_full() from None

    async def _start(self, topic: str) -> "_Bridge":
        connecting = self._connecting or asyncio.ensure_future(self._connect(topic))
        self._connecting = connecting
        try:
            return await asyncio.shield(connecting)
        finally:
            if connecting.done():
                self._connecting = None

    async def _connect(self, topic: str) -> "_Bridge":
        if self._settings.connect_timeout_ms > 0:
            await asyncio.to_thread(self._link.connect, topic)
        self._bridge = _Bridge(self._link, asyncio.get_running_loop())
        return self._bridge

    async def _flush(self, timeout_s: float | None) -> int:
        if self._bridge is None:
            return 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._bridge.until_empty()
        return len(self._link.handle)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this producer is closed: create a new one")


class _Bridge:
    """Passes reports from librdkafka's thread to the loop.  Does not refer to its producer."""

    def __init__(self, link: ProducerLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._reports: deque[Report] = deque()
        self._changed: asyncio.Future[None] = loop.create_future()
        link.leftovers = self._leftovers
        self.report = self.report_to(None)
        self.thread = threading.Thread(target=self._poll, name="driftlog-producer", daemon=True)
        self.thread.start()

    # ── In the loop ──

    async def room(self) -> None:
        """Wait for a report of librdkafka's: there may be room then."""
        await asyncio.shield(self._changed)

    async def until_empty(self) -> None:
        """Wait until every record is acknowledged, and the futures have every report."""
        while len(self._link.handle):
            # Meanwhile librdkafka sends batches before they are full.
            await asyncio.to_thread(self._link.handle.flush, _SLICE_S)
        self.bring()

    def bring(self) -> None:
        """Give the reports to the futures, and wake the calls that wait for room."""
        while self._reports:
            future, error, message = self._reports.popleft()
            if error is not None:
                self._failed(future, error, message)
            elif future is not None and not future.done():
                future.set_result(where(message))
        self._changed.set_result(None)
        self._changed = self._loop.create_future()

    def _failed(
        self, future: asyncio.Future[Delivered] | None, error: KafkaError, message: Message
    ) -> None:
        deliveries = self._link.deliveries
        failure = deliveries.failure(error, message)
        if future is None or future.done():
            deliveries.add(failure)
            return
        future.set_exception(DeliveryError([failure], 1))
        # asyncio's own mark of an error that was not read; without it the error counts as read.
        deliveries.add_unseen(lambda: not getattr(future, "_log_traceback", False), failure)

    # ── In the thread ──

    def report_to(
        self, future: asyncio.Future[Delivered] | None
    ) -> Callable[[KafkaError | None, Message], None]:
        """librdkafka's callback for a record."""
        reports = self._reports

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None or future is not None:
                reports.append((future, error, message))

        return delivered

    def _poll(self) -> None:
        handle, stopped = self._link.handle, self._link.stopped
        while not stopped.is_set():
            if handle.poll(_SLICE_S) or self._reports:
                try:
                    self._loop.call_soon_threadsafe(self.bring)
                except RuntimeError:
                    return  # the loop is closed, and its futures with it

    def _leftovers(self) -> None:
        """The loop is closed: keep the failures among the reports, to be raised or logged."""
        while self._reports:
            _, error, message = self._reports.popleft()
            if error is not None:
                self._link.deliveries.delivered(error, message)
