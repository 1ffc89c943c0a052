"""Produce: admits each batch in the order of arrival, and answers when its acks are met.

    decode ──▶ per partition: check ──▶ limits ──▶ admit ──▶ wait (acks=1: sync, −1: commit)
                                  │        │
                                  │        └─ recompress, look for null keys …: off the loop,
                                  │           the partition's later batches queue behind
                                  └─ error for this partition; the others continue

Admission is synchronous, and its work is per batch, not per record.  A large request is admitted in
slices (`foundation/loop_slices`); its connection admits no other request until then.
Source: kafka.server.KafkaApis#handleProduceRequest, ProduceRequest#validateRecords,
org.apache.kafka.storage.internals.log.LogValidator.

Shell.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import structlog

from driftlog_agents.configs.limits import MAX_MESSAGE_BYTES
from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.foundation.loop_slices import sliced, time_for_large, time_to_work
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import not_led
from driftlog_agents.handlers.common.request_times import RequestTimer, RequestTimes
from driftlog_agents.handlers.produce.batch_checks import BatchChecks, bad_batch, too_large
from driftlog_agents.handlers.produce.batch_conversion import Rewrite, needs_rewrite, rewrite
from driftlog_agents.handlers.produce.conversion_lanes import ConversionLanes
from driftlog_agents.handlers.produce.record_errors import RefusedRecordsError
from driftlog_agents.handlers.produce.timeouts import ProduceTimeouts
from driftlog_agents.handlers.produce.traces import ProduceTrace, ProduceTraces
from driftlog_agents.handlers.produce.waiters import (
    OPEN,
    ManyBatches,
    OneBatchWaiter,
    PartitionWaiter,
    ProduceWaiter,
    SeveralBatches,
    TimedOneBatchWaiter,
)
from driftlog_agents.handlers.produce.waiting_batches import LONGEST_MS, WaitingBatches, own_memory
from driftlog_agents.log.ingest.admission_verdict import parks
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.batch import BatchHeaderFields
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.slots import Slot
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.produce import (
    API,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
)
from driftlog_agents.protocol.requests.one_batch import OneBatch
from driftlog_agents.topics.validation import INTERNAL_TOPICS
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches import batch as batches
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import LOG_APPEND_TIME_FLAG

_NEWEST_VERSION: Final = API.served[-1]
_BY_ID: Final = 13
"""From this version on topics have ids and no names."""

_BY_THE_LOG: Final = frozenset(
    {
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Errors that Kafka's log finds while it appends: their answers have its start, others −1
(ReplicaManager#appendRecordsToLeader)."""


class ProduceHandler:
    """Handles Produce requests for one agent."""

    def __init__(
        self,
        broker: Broker,
        lanes: ConversionLanes,
        spawn: Callable[[Any], None],
        times: RequestTimes,
        traces: ProduceTraces | None = None,
    ) -> None:
        self._broker = broker
        self._times = times
        self._traces = traces
        self._lanes = lanes
        self._spawn = spawn
        most = broker.settings.limits.driftlog_max_batch_records
        self._checks = BatchChecks(most, broker.refusals)
        self._log = structlog.get_logger()
        self._timeouts = ProduceTimeouts(broker)
        self._waiter: Callable[..., OneBatchWaiter] = OneBatchWaiter
        """Makes the waiter of a request of one batch."""
        self._due = False
        """Whether the next request is timed."""
        self.requests = 0
        self.bytes = 0
        self.errors = 0
        self.waiting = WaitingBatches(broker.settings.limits, broker.refusals, times.now_ms)

    def handle(
        self, connection: Connection, version: int, correlation_id: int, request: ProduceRequest
    ) -> None:
        """Admit every batch of the request at once; its answer is sent in its turn."""
        topics = request.topic_data
        if (
            len(topics) == 1
            and len(topics[0].partition_data) == 1
            and request.acks != 0
            and version < _BY_ID
        ):
            (one,) = topics[0].partition_data
            asked = OneBatch(version, request.acks, request.timeout_ms, topics[0].name, one.index)
            self.handle_one(connection, asked, correlation_id, one.records)
            return
        self.requests += 1
        slot, engine = connection.turn(), self._engine()
        count = sum(len(topic.partition_data) for topic in topics)
        pending = SeveralBatches(
            self._timeouts, slot, version, correlation_id, count + 1, request.timeout_ms
        )
        self._time(pending)
        for name, data, answers in self._each(version, request, pending):
            if data is not None:
                self._of_several(engine, name, data, request.acks, version, pending, answers)
        self._all_admitted(pending, slot, request)

    async def handle_large(
        self, slot: Slot, version: int, correlation_id: int, request: ProduceRequest
    ) -> None:
        """As `handle`, in slices, in the request's turn; returns when every batch is admitted.

        If the client disconnects, the remaining batches are not admitted.
        """
        self.requests += 1
        count = sum(len(topic.partition_data) for topic in request.topic_data)
        pending = ManyBatches(
            self._timeouts,
            slot,
            version,
            correlation_id,
            count + 1,
            request.timeout_ms,
            self._spawn,
        )
        self._time(pending)
        await time_for_large()
        connection = slot.connection
        async for name, data, answers in sliced(self._each(version, request, pending)):
            if data is not None and self.waiting.full(connection) and self.may_wait(name, data):
                await self.waiting.room(connection)
            if connection.closed:
                pending.forget()
                return
            # Between two slices the session may end, and another may begin.
            engine = self._engine()
            if data is not None:
                self._of_several(engine, name, data, request.acks, version, pending, answers)
        self._all_admitted(pending, slot, request)

    def handle_one(
        self,
        connection: Connection,
        asked: OneBatch,
        correlation_id: int,
        records: memoryview | None,
    ) -> None:
        """As `handle`, for a request of one batch, which nearly every one is; acks are not 0."""
        self.requests += 1
        version, acks, timeout_ms, topic, partition = asked
        engine = self._engine()
        one = self._waiter(
            self._timeouts, connection, version, correlation_id, topic, partition, timeout_ms
        )
        connection.queue(one)
        try:
            self._partition(engine, topic, partition, records, acks, version, one, one)
        except RefusedError as error:
            self._refused(one, error, _log_of(engine, topic, partition))
        if acks < 0 and not one.done:
            self._timeouts.expect(one, one, timeout_ms)

    def _timed_waiter(self, *of: Any) -> OneBatchWaiter:
        trace = None if self._traces is None else self._traced
        return TimedOneBatchWaiter(self._timer(), trace, *of)

    def _traced(self, waiter: TimedOneBatchWaiter, outcome: str) -> None:
        assert self._traces is not None
        engine = self._engine()
        flush = None if engine is None else engine.flusher.last_committed
        if outcome != "committed" or (flush is not None and flush.cut_ms < waiter.received_ms):
            flush = None  # a duplicate of what was committed before
        trace = ProduceTrace(
            topic=waiter.topic,
            partition=waiter.partition,
            client=waiter.connection.client_host,
            outcome=outcome,
            base_offset=waiter.base_offset,
            received_ms=waiter.received_ms,
            flush=flush,
            answered_ms=self._times.now_ms(),
        )
        self._traces.ended(trace)

    def _time(self, pending: SeveralBatches) -> None:
        if self._due:
            pending.timer = self._timer()

    def _timer(self) -> RequestTimer:
        self._due, self._waiter = False, OneBatchWaiter
        return self._times.produce(self.requests)

    def may_wait(self, topic: str | None, data: PartitionProduceData) -> bool:
        """Whether a batch may have to wait for admission, by its header and its partition alone."""
        engine = self._engine()
        log = _log_of(engine, topic, data.index)
        if log is None or topic is None:
            return False
        if log.busy or log.parked or log.paused or log.state is State.LOADING:
            return True
        limits, records = self._broker.topics.limits.get(topic), data.records
        if limits is None or records is None or len(records) < batches.HEADER_BYTES:
            return False
        header = batches.parse_header(records)
        checked = (*(0,) * 5, header.base_timestamp, header.max_timestamp)
        return limits.codec is not None or needs_rewrite(limits, checked, self._broker.wall_ms())

    def any_may_wait(self, version: int, request: ProduceRequest) -> bool:
        """As `may_wait`, for any batch of a request."""
        return any(
            self.may_wait(self._name(version, topic), data)
            for topic in request.topic_data
            for data in topic.partition_data
        )

    def _engine(self) -> Engine | None:
        engine = self._broker.engine
        return engine if engine is not None and engine.ready.is_set() else None

    def _each(
        self, version: int, request: ProduceRequest, pending: SeveralBatches
    ) -> Iterator[tuple[str | None, PartitionProduceData | None, list[PartitionProduceResponse]]]:
        """Each partition: its topic's name, its batch, and the list of its answer.  Before each
        topic's partitions an item without a batch, for a slice may end there as well."""
        for topic in request.topic_data:
            answers: list[PartitionProduceResponse] = []
            pending.topics.append(
                TopicProduceResponse(
                    name=self._name(version, topic) or "",
                    topic_id=topic.topic_id,
                    partition_responses=answers,
                )
            )
            yield None, None, answers
            for data in topic.partition_data:
                yield self._name(version, topic), data, answers  # it may be deleted between slices

    def _of_several(
        self,
        engine: Engine | None,
        topic: str | None,
        data: PartitionProduceData,
        acks: int,
        version: int,
        pending: SeveralBatches,
        answers: list[PartitionProduceResponse],
    ) -> None:
        answer = PartitionProduceResponse(index=data.index, error_code=OPEN, base_offset=-1)
        answers.append(answer)
        waiter = PartitionWaiter(pending, answer)
        try:
            if topic is None:
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
            self._partition(
                engine, topic, data.index, data.records, acks, version, waiter, pending.slot
            )
        except RefusedError as error:
            self._refused(waiter, error, _log_of(engine, topic, data.index))

    def _all_admitted(self, pending: SeveralBatches, slot: Slot, request: ProduceRequest) -> None:
        if request.acks == 0:
            self._acks_zero(pending, slot)
            return
        pending.all_admitted(expected=request.acks < 0)
        if not pending.done:
            slot.connection.on_close.add(pending.forget)

    def _name(self, version: int, topic: TopicProduceData) -> str | None:
        """The topic's name; None: no topic has this id (any more)."""
        if version < _BY_ID:
            return topic.name
        known = self._broker.topics.by_id.get(topic.topic_id)
        now = None if known is None else self._broker.topics.by_name.get(known.name)
        return now.name if now is not None and now.topic_id == topic.topic_id else None

    def _acks_zero(self, pending: SeveralBatches, slot: Slot) -> None:
        """Send no answer; an error closes the connection, the only way to report it (KafkaApis)."""
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
        topic: str,
        partition: int,
        records: memoryview | None,
        acks: int,
        version: int,
        waiter: ProduceWaiter,
        slot: Slot,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise RefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}")
        if engine is None:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = engine.log(topic, partition)
        if log is None:
            if topic in INTERNAL_TOPICS:  # as ReplicaManager#appendRecords
                raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            known = self._broker.topics.by_name.get(topic)
            raise RefusedError(not_led(self._broker, known, partition))
        limits = self._broker.topics.limits.get(topic)
        if limits is None:  # the topic is being deleted, or not all of it is known yet
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not records:
            raise RefusedError(
                ErrorCode.INVALID_RECORD, "a produce request has one record batch per partition"
            )
        size = len(records)
        if size > limits.max_message_bytes:
            raise too_large(limits, records)  # before the CRC check, which takes longest
        checked = kernel.check(records, 0, size)
        if isinstance(checked, int):
            raise bad_batch(records, checked)
        self._checks.check(limits, checked, size, version)
        self.bytes += size
        if log.busy or needs_rewrite(limits, checked, self._broker.wall_ms()):
            self._later(engine, log, limits, records, checked, acks, slot, waiter)
        elif (log.parked or log.paused or log.state is State.LOADING) and parks(
            log, checked[2], checked[3], checked[4], checked[0]
        ):
            records = own_memory(records)
            self.waiting.add(size, waiter, slot.connection)
            if acks == 1:
                waiter.unsynced(log)
            resume = partial(
                self._resume, engine, log, limits, records, checked, acks, slot, waiter
            )
            log.parked.append(partial(slot.connection.on_loop, resume))
        else:
            self._admit(engine, log, limits, records, checked, acks, slot, waiter)

    def _admit(
        self,
        engine: Engine,
        log: PartitionLog,
        limits: TopicLimits,
        records: memoryview,
        checked: BatchHeaderFields,
        acks: int,
        slot: Slot,
        waiter: ProduceWaiter,
    ) -> None:
        if limits.log_append_time:
            log_end, now_ms = log.log_end, self._broker.wall_ms()
            batches.stamp_log_append_time(records, now_ms)
            checked = (checked[0], checked[1] | LOG_APPEND_TIME_FLAG, *checked[2:6], now_ms)
        elif checked[1] & LOG_APPEND_TIME_FLAG:
            batches.clear_log_append_time(records)
            checked = (checked[0], checked[1] & ~LOG_APPEND_TIME_FLAG, *checked[2:])
        try:
            base_offset, answered = engine.admission.admit(
                log, records, checked, acks, slot.connection.source, waiter
            )
        except RefusedError:
            raise
        except Exception as bug:
            # Not an error of this connection: the agent exits, and this request gets the error of
            # all others.
            engine.flusher.fail(bug)
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from bug
        waiter.base_offset = base_offset
        if limits.log_append_time and base_offset >= log_end:  # else a duplicate: it has another
            waiter.log_append_time_ms = now_ms
        if answered:
            waiter.committed(log)

    def _resume(
        self,
        engine: Engine,
        log: PartitionLog,
        limits: TopicLimits,
        records: memoryview,
        checked: BatchHeaderFields,
        acks: int,
        slot: Slot,
        waiter: ProduceWaiter,
    ) -> None:
        """Admit a parked batch; an error is that of its partition."""
        self.waiting.remove(len(records), waiter, slot.connection)
        try:
            self._admit(engine, log, limits, records, checked, acks, slot, waiter)
        except RefusedError as error:
            self._refused_late(acks, slot, waiter, error, log)

    def _refused_late(
        self,
        acks: int,
        slot: Slot,
        waiter: ProduceWaiter,
        error: RefusedError,
        log: PartitionLog,
    ) -> None:
        """Refuse a batch that had to wait; with acks=0 its turn is over, and the connection
        closes."""
        self._refused(waiter, error, log)
        if acks == 0:
            slot.connection.hang_up("produce_refused", f"acks=0 and {error.code.name}")

    # ── Off the loop ──

    def _later(
        self,
        engine: Engine,
        log: PartitionLog,
        limits: TopicLimits,
        records: memoryview,
        checked: BatchHeaderFields,
        acks: int,
        slot: Slot,
        waiter: ProduceWaiter,
    ) -> None:
        """Queue the batch behind those of its partition that are being converted."""
        records = own_memory(records)
        self.waiting.add(len(records), waiter, slot.connection)
        if acks == 1:
            waiter.unsynced(log)
        since_ms = self._times.now_ms()
        log.busy.append((engine, limits, records, checked, acks, slot, waiter, since_ms))
        if len(log.busy) == 1:
            self._spawn(self._work(log))

    async def _work(self, log: PartitionLog) -> None:
        while log.busy:
            engine, limits, records, checked, acks, slot, waiter, since_ms = log.busy[0]
            size = len(records)
            try:
                if acks != 0 and slot.connection.closed:
                    await time_to_work()  # there may be thousands
                    waiter.lost(log)  # no client waits for the batch, and it may take long
                    continue
                if acks == 0 and self._times.now_ms() - since_ms > LONGEST_MS:
                    await time_to_work()
                    raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "it has waited too long")
                await engine.admits(log)  # before a rewrite, which may enlarge the batch
                now_ms = self._broker.wall_ms()
                if needs_rewrite(limits, checked, now_ms):
                    convert = partial(rewrite, now_ms)
                    done: Rewrite = await self._lanes.run(
                        slot.connection.client, convert, limits, records, checked
                    )
                    records, checked = done.records, done.checked
                    if len(records) > limits.max_message_bytes:
                        raise too_large(limits, records)
                    self._checks.check(limits, checked, len(records), _NEWEST_VERSION)
                await engine.admits(log)
                self._admit(engine, log, limits, records, checked, acks, slot, waiter)
            except RefusedError as error:
                self._refused_late(acks, slot, waiter, error, log)
            except CorruptError as error:
                refused = RefusedError(ErrorCode.INVALID_RECORD, str(error))
                self._refused_late(acks, slot, waiter, refused, log)
            except UnavailableError:
                waiter.lost(log)
            except AssertionError:
                raise  # a broken invariant of the log: the agent exits
            except Exception:  # noqa: BLE001
                # A bug in the conversion of a batch costs one connection, not the agent.
                self._log.exception("produce_bug", client=slot.connection.client_host)
                slot.connection.close()
                waiter.lost(log)
            finally:
                log.busy.popleft()
                self.waiting.remove(size, waiter, slot.connection)

    # ── Errors and time ──

    def _refused(
        self, waiter: ProduceWaiter, error: RefusedError, log: PartitionLog | None
    ) -> None:
        self.errors += 1
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            self._broker.refusals.count(MAX_MESSAGE_BYTES)
        named = error.records if isinstance(error, RefusedRecordsError) else ()
        message = None if error.message is None else str(error)
        start = log.log_start if log is not None and error.code in _BY_THE_LOG else -1
        waiter.refuse(error.code, message, named, start)

    def sweep(self, now_ms: float) -> None:
        """Answer requests whose timeout has passed, and time the next request; call it a few times
        a second."""
        self._timeouts.sweep(now_ms)
        self._due, self._waiter = True, self._timed_waiter


def _log_of(engine: Engine | None, topic: str | None, partition: int) -> PartitionLog | None:
    return None if engine is None or topic is None else engine.log(topic, partition)
