"""Waits for the outcome of each batch of a Produce request, and answers the request.

    one batch:  OneBatchWaiter ───────────────────────────▶ the answer, written by hand
    several:    PartitionWaiter, PartitionWaiter … ──▶ SeveralBatches ──▶ after the last outcome
    many:       the same, and a thread encodes the answer: ManyBatches

The first outcome counts: committed or synced, refused, lost, or timed out.  The log notifies many
waiters in one pass: an answer that cannot be made closes its connection, and raises nothing.

Shell.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from driftlog_agents.foundation.loop_slices import off_the_loop, sliced, work_for
from driftlog_agents.handlers.common.leader_hints import PRODUCE_SINCE, ProduceHints, add_to_produce
from driftlog_agents.handlers.common.request_times import RequestTimer
from driftlog_agents.handlers.produce.answers import encode_success
from driftlog_agents.handlers.produce.record_errors import MOST_NAMED
from driftlog_agents.handlers.produce.timeouts import ProduceTimeouts
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.slots import Slot
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.produce import (
    API,
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

BadRecords = Sequence[tuple[int, str]]
"""(index in the batch, error text) of each bad record."""

_ANSWER_BYTES: Final = 256
"""Memory of one partition's answer."""

OPEN: Final = -2
"""Not a code of Kafka's: the partition has no answer yet."""


class SeveralBatches:
    """A Produce request of several batches, until every partition has its answer."""

    __slots__ = (
        "admitted",
        "answer_bytes",
        "correlation_id",
        "done",
        "expected",
        "nameable",
        "slot",
        "timeout_ms",
        "timeouts",
        "timer",
        "topics",
        "version",
        "waiting",
        "wanted",
    )

    def __init__(
        self,
        timeouts: ProduceTimeouts,
        slot: Slot,
        version: int,
        correlation_id: int,
        wanted: int,
        timeout_ms: int,
    ) -> None:
        self.timeouts = timeouts
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.wanted = wanted
        self.answer_bytes = wanted * _ANSWER_BYTES
        self.waiting = 0
        """Batches of the request that wait for admission, and keep its answers in memory."""
        self.timeout_ms = timeout_ms
        self.nameable = MOST_NAMED
        """Bad records that the answer may still name."""
        self.admitted = self.expected = False
        self.topics: list[TopicProduceResponse] = []
        self.timer: RequestTimer | None = None
        self.done = False

    def one_done(self) -> None:
        self.wanted -= 1
        if self.wanted == 0 and not self.done:
            self.respond()

    def all_admitted(self, *, expected: bool) -> None:
        """Every batch is admitted or refused; *expected*: the timeout applies from now on."""
        self.admitted = True
        self.one_done()
        if (expected or self.expected) and not self.done:
            self.timeouts.expect(self.slot, self, self.timeout_ms)

    def unsynced(self) -> None:
        """The disk did not take a batch: the request waits for the commit, and may time out."""
        if self.admitted and not self.expected and not self.done:
            self.timeouts.expect(self.slot, self, self.timeout_ms)
        self.expected = True

    def respond(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.answered()
        self.slot.connection.on_close.discard(self.forget)
        self.slot.connection.on_loop(self._respond)

    def forget(self) -> None:
        """The client has its answer, or has left: drop the answers.  The waiters stay until their
        batches are committed, and keep the request."""
        self.topics = []

    def _respond(self) -> None:
        response = ProduceResponse(responses=self.topics)
        self.forget()
        if self.slot.connection.closed:
            return
        add_to_produce(self.timeouts.broker, self.version, response, self.slot.connection.listener)
        self.slot.respond(API.encode_response_parts(self.version, self.correlation_id, response))

    def time_out(self) -> None:
        """Answer the open partitions with REQUEST_TIMED_OUT: the log may have their batches, now or
        later."""
        if self.done:
            return
        for topic in self.topics:
            for answer in topic.partition_responses:
                if answer.error_code == OPEN:
                    _fail(answer, ErrorCode.REQUEST_TIMED_OUT, None)
        self.respond()


class ManyBatches(SeveralBatches):
    """A Produce request of so many batches that a thread encodes its answer, made in slices.

    Args:
        spawn: starts a task of the request.
    """

    __slots__ = ("_spawn",)

    def __init__(
        self,
        timeouts: ProduceTimeouts,
        slot: Slot,
        version: int,
        correlation_id: int,
        wanted: int,
        timeout_ms: int,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        super().__init__(timeouts, slot, version, correlation_id, wanted, timeout_ms)
        self._spawn = spawn

    def _respond(self) -> None:
        response = ProduceResponse(responses=self.topics)
        self.forget()
        if not self.slot.connection.closed:
            self._spawn(self._make(response))

    async def _make(self, response: ProduceResponse) -> None:
        connection = self.slot.connection
        work_for(connection.client)
        try:
            if self.version >= PRODUCE_SINCE:
                hints = ProduceHints(self.timeouts.broker, connection.listener)
                async for name, answer in sliced(_answers(response)):
                    hints.add(name, answer)
                response.node_endpoints = hints.endpoints()
            if connection.closed:
                return
            parts = await off_the_loop(
                API.encode_response_parts, self.version, self.correlation_id, response
            )
            if not connection.closed:
                self.slot.respond(parts)
        except Exception:  # noqa: BLE001  # as `Connection.on_loop`
            connection.broken()


class OneBatchWaiter(Slot):
    """The `Waiter` and the turn of a request of one batch, which nearly every request is."""

    __slots__ = (
        "base_offset",
        "correlation_id",
        "done",
        "log_append_time_ms",
        "partition",
        "timeout_ms",
        "timeouts",
        "topic",
        "version",
    )

    def __init__(
        self,
        timeouts: ProduceTimeouts,
        connection: Connection,
        version: int,
        correlation_id: int,
        topic: str,
        partition: int,
        timeout_ms: int,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.timeouts = timeouts
        self.connection = connection
        self.begin = self.answer = None
        self.version = version
        self.correlation_id = correlation_id
        self.topic = topic
        self.partition = partition
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.done = False

    def committed(self, log: PartitionLog) -> None:
        if self.done:
            return
        self.done = True
        if not self.connection.closed:
            try:
                answer = encode_success(
                    self.version,
                    self.correlation_id,
                    self.topic,
                    self.partition,
                    self.base_offset,
                    self.log_append_time_ms,
                    log.log_start,
                )
            except Exception:  # noqa: BLE001
                self.connection.broken()
            else:
                self.answer = (answer,)
                self.connection.answered()

    synced = committed

    def waits(self) -> int:
        """The batch starts to wait for admission; returns the bytes held besides the batch."""
        return 0

    waits_no_longer = waits

    def unsynced(self, log: PartitionLog) -> None:
        self.timeouts.expect(self, self, self.timeout_ms)

    def refuse(
        self,
        code: ErrorCode,
        message: str | None,
        named: BadRecords = (),
        log_start_offset: int = -1,
    ) -> None:
        """Answer with an error; *named*: the records that caused it, if not the whole batch did."""
        if self.done:
            return
        self.done = True
        answer = PartitionProduceResponse(index=self.partition)
        _fail(answer, code, message, named, log_start_offset)
        self.connection.on_loop(partial(self._refuse, answer))

    def _refuse(self, answer: PartitionProduceResponse) -> None:
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=self.topic, partition_responses=[answer])]
        )
        if not self.connection.closed:
            add_to_produce(self.timeouts.broker, self.version, response, self.connection.listener)
            self.respond(API.encode_response_parts(self.version, self.correlation_id, response))

    def lost(self, log: PartitionLog) -> None:
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)

    def time_out(self) -> None:
        """Answer with REQUEST_TIMED_OUT: the log may have the batch, now or later."""
        self.refuse(ErrorCode.REQUEST_TIMED_OUT, None)


class TimedOneBatchWaiter(OneBatchWaiter):
    """The same, of a request that is timed: the others have no cost of that.

    Args:
        trace: takes the way of the request and its outcome; None: it is not traced.
    """

    __slots__ = ("_timer", "_trace", "received_ms")

    def __init__(
        self,
        timer: RequestTimer,
        trace: "Callable[[TimedOneBatchWaiter, str], None] | None",
        *of: Any,
    ) -> None:
        super().__init__(*of)
        self._timer = timer
        self._trace = trace
        self.received_ms = self.connection.source.heard_ms

    def committed(self, log: PartitionLog) -> None:
        self._answered("committed")
        super().committed(log)

    def synced(self, log: PartitionLog) -> None:
        self._answered("synced")
        super().committed(log)

    def refuse(
        self,
        code: ErrorCode,
        message: str | None,
        named: BadRecords = (),
        log_start_offset: int = -1,
    ) -> None:
        """See `OneBatchWaiter`."""
        self._answered(code.name)
        super().refuse(code, message, named, log_start_offset)

    def _answered(self, outcome: str) -> None:
        if self.done:
            return
        self._timer.answered()
        if self._trace is not None:
            self._trace(self, outcome)


class PartitionWaiter:
    """The `Waiter` of one partition of a request."""

    __slots__ = ("answer", "base_offset", "log_append_time_ms", "pending")

    def __init__(self, pending: SeveralBatches, answer: PartitionProduceResponse) -> None:
        self.pending = pending
        self.answer = answer
        self.base_offset = -1
        self.log_append_time_ms = -1

    def committed(self, log: PartitionLog) -> None:
        answer = self.answer
        if answer.error_code == OPEN:
            answer.error_code = 0
            answer.base_offset = self.base_offset
            answer.log_append_time_ms = self.log_append_time_ms
            answer.log_start_offset = log.log_start
            self.pending.one_done()

    synced = committed

    def waits(self) -> int:
        """The batch starts to wait for admission; returns the bytes held besides the batch.

        The first waiting batch of a request counts the answers of the whole request.
        """
        pending = self.pending
        pending.waiting += 1
        return pending.answer_bytes if pending.waiting == 1 else 0

    def waits_no_longer(self) -> int:
        """The batch waits no longer; returns the bytes that are now free besides the batch."""
        pending = self.pending
        pending.waiting -= 1
        return 0 if pending.waiting else pending.answer_bytes

    def unsynced(self, log: PartitionLog) -> None:
        self.pending.unsynced()

    def refuse(
        self,
        code: ErrorCode,
        message: str | None,
        named: BadRecords = (),
        log_start_offset: int = -1,
    ) -> None:
        """Set the partition's answer to an error; *named* as in `OneBatchWaiter.refuse`."""
        if self.answer.error_code == OPEN:
            named = named[: self.pending.nameable]
            self.pending.nameable -= len(named)
            _fail(self.answer, code, message, named, log_start_offset)
            self.pending.one_done()

    def lost(self, log: PartitionLog) -> None:
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)


ProduceWaiter = OneBatchWaiter | PartitionWaiter


def _answers(response: ProduceResponse) -> Iterator[tuple[str, PartitionProduceResponse]]:
    for topic in response.responses:
        for answer in topic.partition_responses:
            yield topic.name, answer


def _fail(
    answer: PartitionProduceResponse,
    code: ErrorCode,
    message: str | None,
    named: BadRecords = (),
    log_start_offset: int = -1,
) -> None:
    answer.error_code = code
    answer.error_message = message
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
        for index, text in named
    ]
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = log_start_offset
