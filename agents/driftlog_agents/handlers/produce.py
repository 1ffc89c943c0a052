"""Produce: admit each batch in the order of arrival, answer when its acks are kept.

    decode ──▶ per partition: check ──▶ limits ──▶ admit ──▶ wait (acks=1: sync, −1: commit)
                                  │        │
                                  │        └─ recompress, look for null keys …: off the loop,
                                  │           the partition's later batches queue behind
                                  └─ error for this partition; the others go on

Synchronous up to the waiting, and per batch, never per record.
Source: kafka.server.KafkaApis#handleProduceRequest, ProduceRequest#validateRecords,
org.apache.kafka.storage.internals.log.LogValidator.

Shell.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from driftlog_agents.broker import Broker
from driftlog_agents.handlers.rewrite import Rewrite, needs_rewrite, rewrite
from driftlog_agents.log.engine import Engine
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.network.server import Slot
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.produce import (
    API,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from driftlog_agents.topic_configs import TopicLimits
from driftlog_metadata.errors import CorruptError
from driftlog_tiering import batch as batches
from driftlog_tiering import kernel
from driftlog_tiering.batch import Reason

_TRANSACTIONAL: Final = 0x10
_LOG_APPEND_TIME: Final = 0x08
_CODEC_MASK: Final = 0x07
_ZSTD: Final = 4

_REASONS: Final = {
    Reason.LENGTH: (ErrorCode.CORRUPT_MESSAGE, "the batch's length is not what there is"),
    Reason.MAGIC: (ErrorCode.INVALID_RECORD, "only record batches of magic 2 are taken"),
    Reason.CRC: (ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match"),
    Reason.COUNT: (
        ErrorCode.INVALID_RECORD,
        "the record count does not agree with the last offset delta",
    ),
    Reason.CODEC: (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "an unknown compression codec"),
    Reason.NEGATIVE: (ErrorCode.INVALID_RECORD, "a negative offset, sequence, epoch or count"),
    Reason.TIMESTAMP: (
        ErrorCode.INVALID_TIMESTAMP,
        "a timestamp that does not fit int64 microseconds",
    ),
    Reason.CONTROL: (ErrorCode.INVALID_RECORD, "clients may not write control batches"),
    Reason.BASE_OFFSET: (ErrorCode.INVALID_RECORD, "the batch's base offset is not 0"),
    Reason.OFFSET_OVERFLOW: (ErrorCode.INVALID_RECORD, "the batch's offsets pass int64"),
}

Offload = Callable[..., Awaitable[Any]]


class _Pending:
    """One Produce request until every partition of it is answered."""

    __slots__ = ("answers", "broker", "correlation_id", "done", "slot", "topics", "version", "wanted")

    def __init__(
        self, broker: Broker, slot: Slot, version: int, correlation_id: int, wanted: int
    ) -> None:
        self.broker = broker
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.wanted = wanted
        self.answers: list[PartitionProduceResponse] = []
        self.topics: list[TopicProduceResponse] = []
        self.done = False

    def one_done(self) -> None:
        self.wanted -= 1
        if self.wanted == 0 and not self.done:
            self.respond()

    def respond(self) -> None:
        self.done = True
        if self.slot.connection.closed:
            return
        response = ProduceResponse(responses=self.topics)
        self.slot.respond(
            API.encode_response_parts(self.version, self.correlation_id, response)
        )

    def time_out(self) -> None:
        """Answer what is still open as timed out: it may be in the log, now or later."""
        if self.done:
            return
        for topic in self.topics:
            for answer in topic.partition_responses:
                if answer.error_code == _OPEN:
                    _refuse(answer, ErrorCode.REQUEST_TIMED_OUT, None)
        self.respond()


_OPEN: Final = -2
"""No error code of Kafka's: the partition is not answered yet."""


class _Answer:
    """A `Waiter`: one partition of a request."""

    __slots__ = ("answer", "base_offset", "pending")

    def __init__(self, pending: _Pending, answer: PartitionProduceResponse) -> None:
        self.pending = pending
        self.answer = answer
        self.base_offset = -1

    def committed(self, log: PartitionLog) -> None:
        answer = self.answer
        if answer.error_code == _OPEN:
            answer.error_code = 0
            answer.base_offset = self.base_offset
            answer.log_start_offset = log.log_start
            self.pending.one_done()

    synced = committed

    def lost(self, log: PartitionLog) -> None:
        if self.answer.error_code == _OPEN:
            _refuse(self.answer, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            self.pending.one_done()


class Producing:
    """Handles Produce requests for one agent."""

    def __init__(self, broker: Broker, offload: Offload, spawn: Callable[[Any], None]) -> None:
        self._broker = broker
        self._offload = offload
        self._spawn = spawn
        self._timeouts: dict[int, deque[tuple[float, _Pending]]] = {}
        self.requests = 0
        self.bytes = 0
        self.errors = 0

    def handle(
        self, slot: Slot, version: int, correlation_id: int, request: ProduceRequest
    ) -> None:
        """Admit everything in the request, now; answer through *slot*."""
        acks = request.acks
        wanted = sum(len(topic.partition_data) for topic in request.topic_data)
        pending = _Pending(self._broker, slot, version, correlation_id, wanted + 1)
        self.requests += 1
        engine = self._broker.engine
        if engine is not None and not engine.ready.is_set():
            engine = None
        for topic in request.topic_data:
            answers: list[PartitionProduceResponse] = []
            for data in topic.partition_data:
                answer = PartitionProduceResponse(
                    index=data.index, error_code=_OPEN, base_offset=-1
                )
                answers.append(answer)
                try:
                    self._partition(
                        engine, pending, answer, topic.name, data.records, acks, version, slot
                    )
                except RefusedError as error:
                    self.errors += 1
                    self._refuse(engine, topic.name, answer, error)
                    pending.one_done()
            pending.topics.append(
                TopicProduceResponse(name=topic.name, partition_responses=answers)
            )
        if acks == 0:
            self._acks_zero(pending, slot)
            return
        pending.one_done()
        if not pending.done:
            self._expect_by(pending, request.timeout_ms)

    def _acks_zero(self, pending: _Pending, slot: Slot) -> None:
        """No answer; an error closes the connection, the only way to say so (KafkaApis)."""
        pending.done = True
        failed = [a for t in pending.topics for a in t.partition_responses if a.error_code > 0]
        if failed:
            slot.connection.hang_up(
                "produce_refused", f"acks=0 and {ErrorCode(failed[0].error_code).name}"
            )
        else:
            slot.respond(())

    # ── One partition ──

    def _partition(
        self,
        engine: Engine | None,
        pending: _Pending,
        answer: PartitionProduceResponse,
        topic: str,
        records: memoryview | None,
        acks: int,
        version: int,
        slot: Slot,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise RefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}")
        if engine is None:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = _find(engine, topic, answer.index)
        if not records:
            raise RefusedError(
                ErrorCode.INVALID_RECORD, "a produce request has one record batch per partition"
            )
        size = len(records)
        checked = kernel.check(records, 0, size)
        if isinstance(checked, int):
            raise _bad_batch(records, checked)
        limits = self._limits(topic)
        self._check_limits(limits, checked, size, version)
        self.bytes += size
        waiter = _Answer(pending, answer)
        if log.busy or needs_rewrite(limits, checked):
            self._later(engine, log, limits, records, checked, acks, slot, waiter)
        elif engine.admission.parks(log, checked[2]):
            log.parked.append(
                lambda: self._resume(engine, log, records, checked, acks, slot, waiter)
            )
        else:
            self._admit(engine, log, records, checked, acks, slot, waiter)

    def _limits(self, topic: str) -> TopicLimits:
        limits = self._broker.topics.limits.get(topic)
        if limits is None:  # the topic is being deleted, or not yet known whole
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return limits

    def _check_limits(
        self, limits: TopicLimits, checked: tuple[int, ...], size: int, version: int
    ) -> None:
        attributes = checked[1]
        if size > limits.max_message_bytes:
            raise RefusedError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes is over max.message.bytes ({limits.max_message_bytes})",
            )
        if attributes & _CODEC_MASK == _ZSTD and version < 7:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        if attributes & _TRANSACTIONAL:
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE, "this release has no transactions yet"
            )
        if not limits.log_append_time and checked[6] >= 0:
            now_ms = self._broker.wall_ms()
            if (
                checked[6] > now_ms + limits.timestamp_after_max_ms
                or checked[5] < now_ms - limits.timestamp_before_max_ms
            ):
                raise RefusedError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamps {checked[5]} to {checked[6]} are outside of what "
                    "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow",
                )

    def _admit(
        self,
        engine: Engine,
        log: PartitionLog,
        records: memoryview,
        checked: tuple[int, ...],
        acks: int,
        slot: Slot,
        waiter: _Answer,
    ) -> None:
        limits = self._limits(log.topic)
        count, attributes, producer_id, epoch, sequence, _, max_timestamp = checked
        if limits.log_append_time:
            max_timestamp = self._broker.wall_ms()
            batches.stamp_log_append_time(records, max_timestamp)
            attributes |= _LOG_APPEND_TIME
            waiter.answer.log_append_time_ms = max_timestamp
        elif attributes & _LOG_APPEND_TIME:
            raise RefusedError(
                ErrorCode.INVALID_TIMESTAMP, "clients may not write log append times"
            )
        admitted = engine.admission.admit(
            log,
            records,
            count,
            attributes,
            producer_id,
            epoch,
            sequence,
            max_timestamp,
            acks,
            slot.connection.source,
            waiter,
        )
        waiter.base_offset = admitted.base_offset
        if admitted.answered:
            waiter.committed(log)

    def _resume(
        self,
        engine: Engine,
        log: PartitionLog,
        records: memoryview,
        checked: tuple[int, ...],
        acks: int,
        slot: Slot,
        waiter: _Answer,
    ) -> None:
        """Admit what had to wait; errors are this partition's."""
        try:
            self._admit(engine, log, records, checked, acks, slot, waiter)
        except RefusedError as error:
            if waiter.answer.error_code == _OPEN:
                self._refuse(engine, log.topic, waiter.answer, error)
                waiter.pending.one_done()

    # ── Off the loop ──

    def _later(
        self,
        engine: Engine,
        log: PartitionLog,
        limits: TopicLimits,
        records: memoryview,
        checked: tuple[int, ...],
        acks: int,
        slot: Slot,
        waiter: _Answer,
    ) -> None:
        """Queue behind what the partition already has in work, in order."""
        log.busy.append((engine, limits, records, checked, acks, slot, waiter))
        if len(log.busy) == 1:
            self._spawn(self._work(log))

    async def _work(self, log: PartitionLog) -> None:
        while log.busy:
            engine, limits, records, checked, acks, slot, waiter = log.busy[0]
            try:
                if needs_rewrite(limits, checked):
                    done: Rewrite = await self._offload(rewrite, limits, records, checked)
                    records, checked = done.records, done.checked
                await engine.loaded(log)
                self._admit(engine, log, records, checked, acks, slot, waiter)
            except RefusedError as error:
                self._refuse(engine, log.topic, waiter.answer, error)
                waiter.pending.one_done()
            except CorruptError as error:
                _refuse(waiter.answer, ErrorCode.INVALID_RECORD, str(error))
                waiter.pending.one_done()
            except Exception:
                waiter.lost(log)
                raise
            finally:
                log.busy.popleft()

    # ── Errors and time ──

    def _refuse(
        self,
        engine: Engine | None,
        topic: str,
        answer: PartitionProduceResponse,
        error: RefusedError,
    ) -> None:
        _refuse(answer, error.code, str(error) or None)
        if error.code is ErrorCode.INVALID_RECORD or error.code is ErrorCode.INVALID_TIMESTAMP:
            answer.record_errors = [
                BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message=str(error))
            ]
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and engine is not None:
            log = engine.log(topic, answer.index)
            if log is not None:
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=self._broker.node_id, leader_epoch=log.leader_epoch
                )

    def _expect_by(self, pending: _Pending, timeout_ms: int) -> None:
        due = self._timeouts.setdefault(max(0, timeout_ms), deque())
        due.append((pending.slot.connection.source.heard_ms + max(0, timeout_ms), pending))

    def sweep(self, now_ms: float) -> None:
        """Answer requests whose timeout has passed; call it a few times a second."""
        for timeout_ms in list(self._timeouts):
            due = self._timeouts[timeout_ms]
            while due and (due[0][1].done or due[0][0] <= now_ms):
                due.popleft()[1].time_out()
            if not due:
                del self._timeouts[timeout_ms]


def _find(engine: Engine, topic: str, partition: int) -> PartitionLog:
    found = engine.topics.get(topic)
    if found is None or not 0 <= partition < len(found.logs):
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    log = found.logs[partition]
    if log is None:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return log


def _bad_batch(records: memoryview, reason: int) -> RefusedError:
    """The error of a batch that the kernel refused.

    More than one batch, or none whole, is found by its length: Kafka has words for it.
    """
    if reason == Reason.LENGTH and len(records) >= batches.HEADER_BYTES:
        header = batches.parse_header(records)
        if batches.HEADER_BYTES <= header.size_bytes < len(records):
            return RefusedError(
                ErrorCode.INVALID_RECORD, "more than one record batch for one partition"
            )
    code, text = _REASONS[Reason(reason)]
    return RefusedError(code, text)


def _refuse(answer: PartitionProduceResponse, code: ErrorCode, message: str | None) -> None:
    answer.error_code = code
    answer.error_message = message
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1
