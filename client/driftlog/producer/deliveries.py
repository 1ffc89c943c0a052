"""The outcomes of a producer's records: each failure is raised, or read, at least once.

    librdkafka ──▶ delivered(error, message) ──▶ failures ──▶ raised by the next call
                                            └──▶ a callback or a future, if there is one

A failure that a future holds counts as read when the program has read the future's result; `close`
raises the others.
Shell.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError

from driftlog.common.connection import Connections
from driftlog.common.records import Delivered, Message
from driftlog.errors import DeliveryError, FailedDelivery, advice, outcome_unknown, reason

KEPT: Final = 1_000
"""The number of failures that are kept whole; the others are counted."""


DeliveryCallback = Callable[[DeliveryError | None, Delivered | None], None]
"""Called with the error, or the record's place; exactly one of them is None."""


class DeliveryFuture(Future[Delivered]):
    """The record's place, or `DeliveryError`.

    `Producer.close` raises an error for which neither `result` nor `exception` was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def result(self, timeout: float | None = None) -> Delivered:
        """The record's place; waits for it.

        Raises:
            DeliveryError: the record failed.
            TimeoutError: the outcome is not known after *timeout* seconds.
        """
        try:
            return super().result(timeout)
        finally:
            self.seen = self.seen or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None; waits for the outcome.

        Raises:
            TimeoutError: the outcome is not known after *timeout* seconds.
        """
        try:
            return super().exception(timeout)
        finally:
            self.seen = self.seen or self.done()


class Deliveries:
    """Failures that no call has raised yet.  For any thread."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.pending = False
        """Whether there is a failure to raise."""
        self._lock = threading.Lock()
        self._failures: list[FailedDelivery] = []
        self._count = 0
        self._callback_errors: list[BaseException] = []
        self._futures: list[tuple[Callable[[], bool], FailedDelivery]] = []

    # ── Reports of librdkafka ──

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """The report of a record without a callback and without a future."""
        if error is not None:
            self.add(self.failure(error, message))

    def to_callback(self, callback: DeliveryCallback) -> Callable[[Any, Message], None]:
        """The report's handler for a record with *callback*.  The next call of the producer raises
        the callback's exception."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            try:
                if error is None:
                    callback(None, where(message))
                else:
                    callback(DeliveryError([self.failure(error, message)], 1), None)
            except BaseException as raised:  # noqa: BLE001  # librdkafka must not see it
                with self._lock:
                    self._callback_errors.append(raised)
                    self.pending = True

        return delivered

    def to_future(self, future: DeliveryFuture) -> Callable[[Any, Message], None]:
        """The report's handler for a record with *future*."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            cancelled = not future.set_running_or_notify_cancel()
            if error is None:
                if not cancelled:
                    future.set_result(where(message))
                return
            failure = self.failure(error, message)
            if cancelled:
                self.add(failure)
                return
            self.add_unseen(lambda: future.seen, failure)
            future.set_exception(DeliveryError([failure], 1))

        return delivered

    # ── Failures to raise ──

    def add(self, failure: FailedDelivery) -> None:
        """Keep a failure until it is raised."""
        with self._lock:
            self._count += 1
            if len(self._failures) < KEPT:
                self._failures.append(failure)
            self.pending = True

    def add_unseen(self, seen: Callable[[], bool], failure: FailedDelivery) -> None:
        """Keep a failure that a future holds; raised at the end unless *seen*.

        With `KEPT` unread failures already, the next call raises it.
        """
        with self._lock:
            if len(self._futures) >= KEPT:
                self._futures = [entry for entry in self._futures if not entry[0]()]
            if len(self._futures) < KEPT:
                self._futures.append((seen, failure))
                return
        self.add(failure)

    def raise_pending(self, addition: str = "") -> None:
        """Raise the failures since the last call; *addition* says what they mean for this one.

        Raises:
            DeliveryError: records failed.
            BaseException: a callback raised it.
        """
        with self._lock:
            failures, count = self._failures, self._count
            raised = self._callback_errors
            self._failures, self._count, self._callback_errors = [], 0, []
            self.pending = False
        if failures:
            delivery_error = DeliveryError(failures, count, addition)
            for error in raised:
                delivery_error.add_note(f"and an on_delivery callback raised {error!r}")
            raise delivery_error
        if raised:
            for error in raised[1:]:
                raised[0].add_note(f"and another on_delivery callback raised {error!r}")
            raise raised[0]

    def raise_all(self) -> None:
        """As `raise_pending`, with the failures of futures that were not read.

        Raises:
            DeliveryError: records failed.
            BaseException: a callback raised it.
        """
        with self._lock:
            unseen = [failure for seen, failure in self._futures if not seen()]
            self._futures = []
        for failure in unseen:
            self.add(failure)
        self.raise_pending()

    def failure(self, error: KafkaError, message: Message) -> FailedDelivery:
        """The failure of a record, from librdkafka's error."""
        code, partition = error.code(), message.partition()
        what_to_do = advice(code)
        last = self.connections.last_error
        if last is not None and code in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
            what_to_do += f" The last error of a connection: {last}."
        return FailedDelivery(
            topic=message.topic() or "",
            partition=None if partition is None or partition < 0 else partition,
            key=_bytes(message.key()),
            value=_bytes(message.value()),
            code=code,
            reason=reason(error),
            advice=what_to_do,
            outcome_unknown=outcome_unknown(code),
        )


def where(message: Message) -> Delivered:
    """The place of an acknowledged record."""
    offset = message.offset()
    return Delivered(
        message.topic() or "",
        message.partition() or 0,
        -1 if offset is None else offset,
        message.timestamp()[1],
    )


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
