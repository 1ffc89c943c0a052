"""The objects of a sealed range: its segments, and the producers at its end.

    chunks of batches (`range_reader`) ──▶ an agent with the role ``seal`` (`remote_segments`),
                                           else this one (`range_segments`) ──▶ segments

No manifest names these objects yet; `sealing/sealer` adds them to one.

Shell.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.attempts import NOT_SERVED
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments, local_errors
from driftlog_agents.log.segments.remote_segments import RangeSource, RemoteSegments
from driftlog_agents.log.segments.sealed_range import (
    batch_headers,
    flush_times,
    producer_snapshot,
)
from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import ProducerSnapshotRef, SegmentRef
from driftlog_tiering.foundation.types import Buffer, Offload


class SealedRangeWriter:
    """Writes the objects of one session's sealed ranges.

    Args:
        reader: reads the batches of a range.
        segments: writes them here.
        remote: has them written by other agents; None: all are written here.
        producers: a snapshot has no producers that are older than their `expiration_ms`.
    """

    def __init__(
        self,
        *,
        offload: Offload,
        rng: Random,
        reader: RangeReader,
        segments: RangeSegments,
        remote: RemoteSegments | None = None,
        producers: ProducerSettings | None = None,
    ) -> None:
        self._offload = offload
        self._rng = rng
        self._reader = reader
        self._segments = segments
        self._remote = remote
        self._producers = producers or ProducerSettings()

    async def write(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        """Segments of ``[base, end)``: one, or more where batches cannot be decoded; none where
        all of them are deleted.  They end at `sealed_range.end_of`.

        *headers* gets the headers of their batches, in order.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk failed; try
                again.
            CorruptError, NotFoundError: a flush object is damaged.
        """

        def chunks() -> AsyncGenerator[list[Buffer]]:
            return self._reader.chunks(log, base, end)

        with local_errors():
            if end <= log.log_start:
                async with aclosing(chunks()) as read:
                    async for batches in read:
                        headers += await self._offload(batch_headers, batches)
                return []
            tp = TopicPartition(log.topic_id, log.partition)
            named = PartitionRange(log.topic, tp, base, end)
            if self._remote is not None:
                source = RangeSource(named, chunks, lambda: log.state not in NOT_SERVED)
                segment = await self._remote.write(source, headers)
                if segment is not None:
                    return [segment]
            async with aclosing(chunks()) as read:
                return await self._segments.write(named, read, headers)

    async def write_producers(
        self, log: PartitionLog, states: ProducerStates, headers: list[BatchHeader], end: int
    ) -> ProducerSnapshotRef | None:
        """The producers at exactly *end*: *states* of the previous snapshot, and the sealed
        batches.  None: there are none.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: as `put`.
        """
        encoded = await self._offload(
            producer_snapshot,
            states,
            headers,
            flush_times(log, end),
            end,
            self._producers.expiration_ms,
        )
        if encoded is None:
            return None
        tp = TopicPartition(log.topic_id, log.partition)
        key = layout.producer_snapshot_key(log.topic, tp, end, f"{self._rng.getrandbits(64):016x}")
        await self._segments.put(key, [encoded])
        return ProducerSnapshotRef(offset=end, key=key)
