"""Judges a batch before its admission: appended, a duplicate, refused, or it must wait.

    partition: closed, paused, offline ──▶ refused
    its producer: out of order, fenced ──▶ refused; unknown until the snapshot is loaded ──▶ waits
                  known ──▶ duplicate of its original
    otherwise ──▶ appended

A client sends a batch again that was refused for a moment, and may have sent later ones already:
the log must not take one of these for the producer's first batch.

Pure.
"""

from typing import Final

from driftlog_agents.log.partition.batch import BatchHeaderFields
from driftlog_agents.log.partition.partition import NO_PRODUCER_ID, PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches.producers import ProducerBatch, Refusal

SETTLED_MS: Final = 5_000.0
"""For this long after a takeover the agent answers a gap in a producer's sequence with
NOT_LEADER_OR_FOLLOWER, so that the client sends all again.  For this long after a refusal, a
producer that the partition does not know must begin at sequence 0.  Longer: a producer learns of a
real gap later; shorter: a client that retries slowly learns of a gap that its retry would fill."""

_REFUSALS = {
    Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


def parks(
    log: PartitionLog,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records: int,
) -> bool:
    """Whether the batch must wait: the partition is paused, earlier batches are parked, or its
    producers are not loaded.

    Until the producer snapshot is loaded, the log knows only the producers in flush footers. A
    batch of another producer parks.  So does a batch that is out of order by the footers: its
    original may be sealed, and in the snapshot (design.md names only the first case; without
    the second, the simulation, seed 1833, refused a retry for ever).  Order is kept: behind a
    parked batch every batch parks.
    """
    if log.paused or log.parked:
        return True
    if log.state is not State.LOADING or log.damage:
        return False  # `admit` refuses batches that would wait for damaged data
    verdict = log.judge(producer_id, producer_epoch, base_sequence, records)
    return _needs_snapshot(log, producer_id, verdict)


def judge(
    log: PartitionLog, checked: BatchHeaderFields, now_ms: float, valid_until_ms: float
) -> ProducerBatch | None:
    """The original of a duplicate; None: the batch may be appended.

    *checked*: the batch's header fields; *valid_until_ms*: of the session's lease.

    Raises:
        RefusedError: with Kafka's error code.
    """
    records, _, producer_id, producer_epoch, base_sequence, _, _ = checked
    if log.state is State.CLOSED or now_ms >= valid_until_ms:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if log.paused:  # the caller did not park the batch
        raise RefusedError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is about to be handed over"
        )
    if log.state is State.OFFLINE:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline_reason)
    verdict = log.judge(producer_id, producer_epoch, base_sequence, records)
    if log.state is State.LOADING and log.damage and _needs_snapshot(log, producer_id, verdict):
        raise refused(
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
    return verdict


def check_follows(log: PartitionLog, producer_id: int, base_sequence: int, now_ms: float) -> None:
    """Check that no earlier batch of the producer may have been refused.

    Raises:
        RefusedError: one may: the client sends all again.
    """
    if base_sequence != 0 and now_ms < log.refused_ms and is_new(log, producer_id):
        refusal = "an earlier batch of this producer may have been refused a moment ago"
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal)


def _needs_snapshot(
    log: PartitionLog, producer_id: int, verdict: ProducerBatch | Refusal | None
) -> bool:
    """Whether the producer snapshot may change *verdict*, which is by the footers alone."""
    if producer_id == NO_PRODUCER_ID:
        return False
    return producer_id not in log.producers or verdict is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER


def is_new(log: PartitionLog, producer_id: int) -> bool:
    """Whether the log does not know the producer."""
    return producer_id != NO_PRODUCER_ID and producer_id not in log.producers


def refused(
    log: PartitionLog, producer_id: int, now_ms: float, code: ErrorCode, reason: str
) -> RefusedError:
    """The error of a batch that the client sends again; notes the refusal of an unknown producer. A
    later batch of that producer may arrive before the retry: the log would take it for the
    producer's first batch."""
    if is_new(log, producer_id):
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
    unknown = verdict is None and base_sequence != 0 and is_new(log, producer_id)
    return unknown or verdict is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
