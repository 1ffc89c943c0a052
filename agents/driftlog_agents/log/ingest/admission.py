"""Admission: a checked batch gets its offset, or the error that Kafka gives.

    judge ──▶ duplicate? ──▶ its original's offset, when the original is committed
      │
      ├──▶ refused: sequence, epoch, disk
      └──▶ append ──▶ patch offset and epoch ──▶ buffer ──▶ answered by acks

Synchronous on purpose: offsets are given in the order in which requests are read.

Shell.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.partition.batch import Batch, BatchHeaderFields, ConnectionActivity
from driftlog_agents.log.partition.partition import NO_PRODUCER_ID, PartitionLog, State, Waiter
from driftlog_agents.log.session.producer_memory import ProducerMemory
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.quota import Quota
from driftlog_tiering.batches.producers import ProducerBatch, Refusal

SETTLED_MS: Final = 5_000.0
"""For this long after a takeover the agent answers a gap in a producer's sequence with
NOT_LEADER_OR_FOLLOWER, so that the client sends all again.  For this long after a refusal, a
producer that the partition does not know must begin at sequence 0.  Longer: a producer learns of a
real gap later; shorter: a client that retries slowly learns of a gap that its retry would fill."""

_PINNED_BYTES: Final = 256 * 1024
"""Memory that a batch may pin beside its own bytes: the chunk that small frames arrive in."""

_REFUSALS = {
    Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class Admitted(NamedTuple):
    """The batch is in the log, or its original is.  *answered*: the request waits for nothing
    more."""

    base_offset: int
    answered: bool


_admitted: Final = tuple.__new__
"""Skips the NamedTuple's own constructor, which is Python code."""


class Admission:
    """Admits batches to the log, or refuses them, for one session."""

    def __init__(
        self,
        *,
        flusher: Flusher,
        buffer: BufferLog,
        session: Session,
        now_ms: Callable[[], float],
        patch: Callable[[bytearray | memoryview, int, int, int], None],
        quota: Quota,
        producers: ProducerMemory,
    ) -> None:
        self._flusher = flusher
        self._buffer = buffer
        self._session = session
        self._now_ms = now_ms
        self._patch = patch
        self._quota = quota
        self._producers = producers

    def parks(
        self,
        log: PartitionLog,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        records: int,
    ) -> bool:
        """Whether the batch must wait: the partition is paused, or its producers are not loaded.

        Until the producer snapshot is loaded, the log knows only the producers in flush footers. A
        batch of another producer parks.  So does a batch that is out of order by the footers: its
        original may be sealed, and in the snapshot (design.md names only the first case; without
        the second, the simulation, seed 1833, refused a retry for ever).  Order is kept: behind a
        parked batch every batch parks.
        """
        if log.paused:
            return True
        if log.state is not State.LOADING or log.damage:
            return False  # `admit` refuses batches that would wait for damaged data
        if log.parked:
            return True
        verdict = log.judge(producer_id, producer_epoch, base_sequence, records)
        return _needs_snapshot(log, producer_id, verdict)

    def admit(
        self,
        log: PartitionLog,
        view: memoryview,
        checked: BatchHeaderFields,
        acks: int,
        source: ConnectionActivity | None,
        waiter: Waiter | None,
    ) -> Admitted:
        """Append one batch.  *view*: writable, and kept by the batch; *checked*: its header fields.

        The log later calls `committed` (acks=all), `synced` (acks=1) or `lost` of *waiter*, unless
        the result is *answered*.

        Raises:
            RefusedError: with Kafka's error code; nothing was appended.
        """
        records, _, producer_id, producer_epoch, base_sequence, _, _ = checked
        now_ms = self._now_ms()
        if log.state is State.CLOSED or now_ms >= self._session.valid_until_ms:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if log.paused:  # the caller did not park the batch
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is about to be handed over"
            )
        if log.state is State.OFFLINE:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline_reason)
        verdict = log.judge(producer_id, producer_epoch, base_sequence, records)
        if log.state is State.LOADING and log.damage and _needs_snapshot(log, producer_id, verdict):
            raise _not_now(
                log,
                producer_id,
                now_ms,
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"this producer's earlier batches are unknown until this is repaired: {log.damage}",
            )
        if now_ms < log.settled_ms and _leaves_a_gap(log, producer_id, base_sequence, verdict):
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader has just changed")
        if isinstance(verdict, Refusal):
            raise RefusedError(_REFUSALS[verdict])
        if verdict is not None:
            return self._duplicate(log, verdict, acks, waiter)
        if self._quota.refusal:
            # Every client retries this error, does not look for another leader, and knows that
            # nothing was appended: `NotEnoughReplicasException`, librdkafka's
            # rd_kafka_handle_Produce_error.
            refusal = self._quota.refusal
            raise _not_now(log, producer_id, now_ms, ErrorCode.NOT_ENOUGH_REPLICAS, refusal)
        if self._producers.full and _is_new(log, producer_id):
            refusal = self._producers.refusal()  # as above
            raise _not_now(log, producer_id, now_ms, ErrorCode.NOT_ENOUGH_REPLICAS, refusal)
        if log.full:
            raise _not_now(
                log,
                producer_id,
                now_ms,
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the partition has too much unsealed data and cannot be sealed: {log.damage}",
            )
        if acks == 1 and self._buffer.refuses(log):
            raise _not_now(
                log,
                producer_id,
                now_ms,
                ErrorCode.KAFKA_STORAGE_ERROR,
                "the agent's disk accepts no writes: acks=1 cannot be promised, acks=all can",
            )
        if base_sequence != 0 and now_ms < log.refused_ms and _is_new(log, producer_id):
            refusal = "an earlier batch of this producer may have been refused a moment ago"
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal)
        base_offset = log.append(records, producer_id, producer_epoch, base_sequence, now_ms)
        size = len(view)
        if size < _PINNED_BYTES and len(view.obj) > size * 4 + _PINNED_BYTES:  # type: ignore[arg-type]
            view = memoryview(bytearray(view))  # otherwise a small batch pins a large frame
        self._patch(view, 0, base_offset, log.leader_epoch)
        batch = Batch(view, size, base_offset, log.leader_epoch, checked)
        if waiter is None or acks == 0:
            self._flusher.append(log, batch, None, None, now_ms)
            return _admitted(Admitted, (base_offset, True))
        if acks == 1:
            self._flusher.append(log, batch, None, waiter, now_ms)
        else:
            log.waiters.append((base_offset + records, waiter))
            self._flusher.append(log, batch, source, None, now_ms)
        return _admitted(Admitted, (base_offset, False))

    def _duplicate(
        self, log: PartitionLog, original: ProducerBatch, acks: int, waiter: Waiter | None
    ) -> Admitted:
        """Answers once the original is as safe as the duplicate's acks ask for."""
        end = original.last_offset + 1
        if waiter is None or acks == 0 or end <= log.high_watermark:
            return Admitted(original.base_offset, answered=True)
        if acks == 1 and not self._buffer.refuses(log):
            self._buffer.wait_for_sync(log, end, waiter)
        else:
            log.waiting_duplicates.append((end, waiter))
            if acks == 1:
                waiter.unsynced(log)
        return Admitted(original.base_offset, answered=False)


def _needs_snapshot(
    log: PartitionLog, producer_id: int, verdict: ProducerBatch | Refusal | None
) -> bool:
    """Whether the producer snapshot may change *verdict*, which is by the footers alone."""
    if producer_id == NO_PRODUCER_ID:
        return False
    return producer_id not in log.producers or verdict is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER


def _is_new(log: PartitionLog, producer_id: int) -> bool:
    return producer_id != NO_PRODUCER_ID and producer_id not in log.producers


def _not_now(
    log: PartitionLog, producer_id: int, now_ms: float, code: ErrorCode, reason: str
) -> RefusedError:
    """The error of a batch that the client sends again; notes the refusal of an unknown producer. A
    later batch of that producer may arrive before the retry: the log would take it for the
    producer's first batch."""
    if _is_new(log, producer_id):
        log.refused_ms = now_ms + SETTLED_MS
    return RefusedError(code, reason)


def _leaves_a_gap(
    log: PartitionLog,
    producer_id: int,
    base_sequence: int,
    verdict: ProducerBatch | Refusal | None,
) -> bool:
    """Whether the batch may have overtaken one that was refused at the change of the leader.

    Both were in flight when the leader changed.  A client that learns of a gap begins a new
    producer epoch, and sends again what may be in the log, in other partitions too (librdkafka
    #4953).  A log that does not know the producer accepts the second batch, and then the first one
    is out of order.  A client that gets NOT_LEADER_OR_FOLLOWER sends all of them again, in order.
    False once the producer has written under this leader.
    """
    if producer_id == NO_PRODUCER_ID:
        return False
    start = log.epochs[-1][1] if log.epochs else 0
    if log.producers.last_offset(producer_id) >= start:
        return False
    unknown = verdict is None and base_sequence != 0 and _is_new(log, producer_id)
    return unknown or verdict is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
