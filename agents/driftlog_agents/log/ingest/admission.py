"""Admission: a checked batch gets its offset, or the error that Kafka gives.

    judge ──▶ duplicate? ──▶ its original's offset, when the original is committed
      │  (`admission_verdict`)
      ├──▶ refused: sequence, epoch, disk
      └──▶ append ──▶ patch offset and epoch ──▶ buffer ──▶ answered by acks

Synchronous on purpose: offsets are given in the order in which requests are read.

Shell.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from driftlog_agents.log.ingest.admission_verdict import check_follows, is_new, judge, refused
from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.partition.batch import Batch, BatchHeaderFields, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, Waiter
from driftlog_agents.log.session.producer_memory import ProducerMemory
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.stores.quota import Quota
from driftlog_tiering.batches.producers import ProducerBatch

_PINNED_BYTES: Final = 256 * 1024
"""Memory that a batch may pin beside four times its own bytes: the chunk that small frames arrive
in.  The flush that holds the batch counts it."""


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
        original = judge(log, checked, now_ms, self._session.valid_until_ms)
        if original is not None:
            return self._duplicate(log, original, acks, waiter)
        if self._quota.refusal:
            # Every client retries this error, does not look for another leader, and knows that
            # nothing was appended: `NotEnoughReplicasException`, librdkafka's
            # rd_kafka_handle_Produce_error.
            refusal = self._quota.refusal
            raise refused(log, producer_id, now_ms, ErrorCode.NOT_ENOUGH_REPLICAS, refusal)
        if self._producers.full and is_new(log, producer_id):
            refusal = self._producers.refusal()  # as above
            raise refused(log, producer_id, now_ms, ErrorCode.NOT_ENOUGH_REPLICAS, refusal)
        if log.full:
            raise refused(
                log,
                producer_id,
                now_ms,
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the partition has too much unsealed data and cannot be sealed: {log.damage}",
            )
        if acks == 1 and self._buffer.refuses(log):
            raise refused(
                log,
                producer_id,
                now_ms,
                ErrorCode.KAFKA_STORAGE_ERROR,
                "the agent's disk accepts no writes: acks=1 cannot be promised, acks=all can",
            )
        check_follows(log, producer_id, base_sequence, now_ms)
        base_offset = log.append(records, producer_id, producer_epoch, base_sequence, now_ms)
        size = len(view)
        if len(view.obj) > size * 4 + _PINNED_BYTES:  # type: ignore[arg-type]
            view = memoryview(bytearray(view))  # otherwise it pins a much larger frame
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
            earlier = log.wait_for_commit(end, waiter)
            if earlier is not None:
                earlier.lost(log)
            if acks == 1:
                waiter.unsynced(log)
        return Admitted(original.base_offset, answered=False)
