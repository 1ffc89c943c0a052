"""Restores one partition: a fence, segments of what was joined, an empty range, its keys.

    newest manifest ──fence: the new cluster's id──▶ … flush objects are listed …
        ──▶ joined batches ──▶ segments ──▶ manifest ──▶ audit record, empty range
        ──▶ leader key, partition key

What was joined is sealed at once, so no flush object is ever named again, and a second run goes on
behind what the first one sealed.  The partition's key is written last: a partition that has it is
done.  One that cannot be restored gets a leader key alone: no agent claims it.

Shell.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import replace
from random import Random
from typing import Final

from driftlog_agents.log.leadership.taken_partitions import sealed_log
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches, flushed_between, tail_slice
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.segments.sealed_range import (
    batch_headers,
    end_of,
    flush_times,
    leader_epochs,
    producer_snapshot,
)
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.restore.evidence_reads import RETRY
from driftlog_agents.restore.join import JoinedRun
from driftlog_agents.restore.partition_plan import PartitionPlan
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.batches.producers import (
    EXPIRATION_MS,
    CorruptSnapshotError,
    ProducerStates,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.accepted_loss import (
    RESTORE_REASON,
    AcceptedLoss,
    encode_accepted_loss,
)
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    SegmentRef,
    SetCluster,
    SetLogStart,
    empty_manifest,
)
from driftlog_tiering.formats.manifests import MissingManifestError, commit_edit, load_newest
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectStore

_EDIT_DEADLINE_MS: Final = 120_000
_SEGMENT_BYTES: Final = 256 * 1024 * 1024
"""Bytes of batches in one segment, at least, but for the last.  More: fewer objects, more room of
the spool."""

_FIND_RETRY: Final = replace(RETRY, errors=(MissingManifestError, *RETRY.errors))
"""A store may show a manifest a moment before it returns it."""

_WRITE_RETRY: Final = replace(RETRY, timeout_s=900.0)
"""Of the segments up to one end: they are read, written and put again under new names."""


class PartitionWriter:
    """See the module.

    Args:
        author: the cluster that the bucket gets, at its format level.
        was: the ids of the clusters that the bucket had.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        author: Cluster,
        was: tuple[str, ...],
        grace: Grace,
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        now_ms: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._author = author
        self._was = was
        self._grace = grace
        self._offload = offload
        self._rng = rng
        self._now_ms = now_ms
        self._reader = RangeReader(objects)
        self._segments = RangeSegments(
            objects=objects, offload=offload, spool=spool, rng=rng, counters=LogCounters()
        )
        self._writer = SealedRangeWriter(
            offload=offload, rng=rng, reader=self._reader, segments=self._segments
        )

    async def fence(self, topic: str, tp: TopicPartition) -> Manifest:
        """Give the partition to the new cluster: no edit of the old one applies any more.

        Raises:
            CorruptError: its newest manifest is damaged, or of a third cluster.
            StoreError: the bucket.
        """
        return await self._edit(await self.newest(topic, tp), SetCluster(self._was))

    async def write(self, topic: str, plan: PartitionPlan, at_ms: int) -> PartitionState:
        """Seal what *plan* has; returns the partition's key.  *at_ms*: now, for an audit record.

        Raises:
            CorruptError, NotFoundError: an object is damaged or missing.
            StoreError, TimeoutError: the bucket.
        """
        manifest = plan.manifest
        if not plan.is_idle:
            manifest = await self._write(topic, plan, at_ms)
        return PartitionState(
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            log_start=manifest.log_start,
        )

    async def _write(self, topic: str, plan: PartitionPlan, at_ms: int) -> Manifest:
        manifest = await self.newest(topic, plan.tp)
        if manifest.end != plan.manifest.end:
            raise FencedError(
                f"another run of this restore seals {topic}-{plan.tp.partition}: it ends at "
                f"{manifest.end}, and not at {plan.manifest.end}"
            )
        state = PartitionState(sealed_end=manifest.end, log_start=plan.log_start)
        log = sealed_log(topic, plan.tp, plan.leader_epoch, state)
        for tail in map(_tail, plan.runs):
            log.restore(tail, 0.0)
        for end in _ends(plan.runs):
            while manifest.end < end:
                manifest = await self._seal(log, manifest, end)
        if plan.empty is not None:
            await self._audit(plan, manifest, at_ms)
            manifest = await self._make_empty(plan, manifest)
        if plan.log_start > manifest.log_start:
            manifest = await self._edit(manifest, SetLogStart(plan.log_start))
        return manifest

    async def first_damaged(self, topic: str, plan: PartitionPlan) -> tuple[int, str] | None:
        """The first run of *plan* that cannot be read, by number, and why; None: all can.

        Raises:
            StoreError, TimeoutError: the bucket.
        """
        for number, run in enumerate(plan.runs):
            state = PartitionState(sealed_end=run.base)
            log = sealed_log(topic, plan.tp, plan.leader_epoch, state)
            log.restore(_tail(run), 0.0)
            try:
                await _WRITE_RETRY.run(lambda log=log, run=run: self._read(log, run))  # type: ignore[misc]
            except (CorruptError, NotFoundError) as error:
                return number, str(error) or "missing"
        return None

    async def _read(self, log: PartitionLog, run: JoinedRun) -> None:
        async with aclosing(self._reader.chunks(log, run.base, run.end)) as chunks:
            async for batches in chunks:
                await self._offload(batch_headers, batches)

    async def _seal(self, log: PartitionLog, manifest: Manifest, end: int) -> Manifest:
        """Add ``[manifest.end, end)`` of *log* to *manifest*, or the beginning of it
        (`sealed_range.end_of`)."""
        read_at_ms = self._now_ms()
        states = await self._states(manifest)

        async def write() -> tuple[list[SegmentRef], list[BatchHeader]]:
            headers: list[BatchHeader] = []
            return await self._writer.write(log, manifest.end, end, headers), headers

        segments, headers = await _WRITE_RETRY.run(write)
        end = end_of(segments, end)
        encoded = await self._offload(
            producer_snapshot, states, headers, flush_times(log, end), end, EXPIRATION_MS
        )
        edited = await self._add(
            manifest, end, segments, leader_epochs(headers), encoded, read_at_ms
        )
        log.seal(end)
        return edited

    async def _audit(self, plan: PartitionPlan, manifest: Manifest, at_ms: int) -> None:
        """Put the record of an empty range: `driftlog verify` takes the range for no damage."""
        loss = AcceptedLoss(
            topic=manifest.topic,
            tp=plan.tp,
            leader_epoch=plan.leader_epoch,
            session_id="",
            accepted_at_ms=at_ms,
            reasons=(RESTORE_REASON,),
            lost=((manifest.end, plan.goes_on_at),),
            objects=(),
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            goes_on_at=plan.goes_on_at,
        )
        body = [encode_accepted_loss(loss)]
        with suppress(AlreadyExistsError):  # a lost answer
            await RETRY.run(lambda: self._objects.create(loss.key, body))

    async def _make_empty(self, plan: PartitionPlan, manifest: Manifest) -> Manifest:
        """Add the range without records.  It has the new leader epoch: a consumer learns where the
        log of the older ones ended."""
        read_at_ms = self._now_ms()
        states = await self._states(manifest)
        encoded = states.encode(plan.goes_on_at) if len(states) else None
        epochs = (LeaderEpoch(plan.leader_epoch, manifest.end),)
        return await self._add(manifest, plan.goes_on_at, [], epochs, encoded, read_at_ms)

    async def _add(
        self,
        manifest: Manifest,
        end: int,
        segments: list[SegmentRef],
        epochs: tuple[LeaderEpoch, ...],
        snapshot: bytes | None,
        read_at_ms: float,
    ) -> Manifest:
        producers = None
        if snapshot is not None:
            key = layout.producer_snapshot_key(manifest.topic, manifest.tp, end, self._nonce())
            body = [snapshot]
            await RETRY.run(lambda: self._segments.put(key, body))
            producers = ProducerSnapshotRef(offset=end, key=key)
        edit = AddSegments(
            base=manifest.end,
            end=end,
            segments=tuple(segments),
            leader_epochs=epochs,
            producers=producers,
        )
        return await self._edit(manifest, edit, read_at_ms)

    async def newest(self, topic: str, tp: TopicPartition) -> Manifest:
        """The newest manifest of the partition; raises as `fence`."""
        newest = await _FIND_RETRY.run(lambda: load_newest(self._objects, topic, tp))
        return newest or empty_manifest(topic, tp)

    async def _states(self, manifest: Manifest) -> ProducerStates:
        """The producers at the manifest's end.

        Raises:
            CorruptSnapshotError: the snapshot is damaged or missing.
        """
        if manifest.producers is None:
            return ProducerStates()
        key = manifest.producers.key
        try:
            data = await RETRY.run(lambda: self._objects.get(key))
        except NotFoundError as error:
            raise CorruptSnapshotError(f"{key}: missing") from error
        try:
            offset, states = ProducerStates.decode(data)
        except CorruptSnapshotError as error:
            raise CorruptSnapshotError(f"{key}: {error}") from error
        if offset != manifest.end:
            raise CorruptSnapshotError(f"{key} is of {offset}, not of {manifest.end}")
        return states

    async def _edit(
        self, manifest: Manifest, edit: Edit, read_at_ms: float | None = None
    ) -> Manifest:
        now_ms = int(self._now_ms())
        return await commit_edit(
            self._objects,
            manifest,
            edit,
            self._nonce(),
            author=self._author,
            read_at_ms=now_ms if read_at_ms is None else int(read_at_ms),
            deadline_ms=now_ms + _EDIT_DEADLINE_MS,
            now_ms=lambda: int(self._now_ms()),
            grace=self._grace,
        )

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _tail(run: JoinedRun) -> TailSlice:
    """The joined batches of one object, as a slice of the partition's tail."""
    columns = run.footer.columns
    first = run.first
    topic_id = run.footer.topic_ids[columns[0][first]]
    s = Slice(topic_id, columns[1][first], run.base, run.end, first, run.count)
    data = FlushBatches.of_footer(run.footer)
    return tail_slice(data, s, StoredAt(run.object_key, 0), flushed_between(run.footer, s))


def _ends(runs: tuple[JoinedRun, ...]) -> Iterator[int]:
    """Where the segments of *runs* end."""
    size = 0
    for run in runs:
        size += sum(run.footer.columns[11][run.first : run.first + run.count])
        if size >= _SEGMENT_BYTES or run is runs[-1]:
            yield run.end
            size = 0
