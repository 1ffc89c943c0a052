"""Sealing: committed batches become one Parquet segment, and then are forgotten.

    due ──▶ read batches ──▶ decode, write Parquet (worker thread) ──▶ PUT segment
        ──▶ PUT producer snapshot ──▶ manifest edit ──▶ read the manifest back
        ──▶ partition's key: sealed end, manifest version ──▶ drop the tail below it
        ──▶ forget flush records that nobody needs

*Sealed* means below the sealed end in the partition's key, and nothing else does.  A
manifest that is ahead of the key is adopted: the key is written first.  Whatever fails
on the way leaves objects that no manifest names, and the next attempt starts afresh.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from random import Random
from typing import IO, Any, Final, Protocol

import structlog

from driftlog_agents.log.manifests import Manifests
from driftlog_agents.log.partition import NO_PRODUCER_ID, PartitionLog, State, TailSlice
from driftlog_agents.log.records_index import KnownRecord, RecordsIndex
from driftlog_agents.log.seal_policy import (
    SealSettings,
    TopicSealing,
    due,
    seal_end,
    segment_bytes,
    too_much,
)
from driftlog_agents.log.session import Session
from driftlog_agents.log.tail import TailData, unsealed_sessions
from driftlog_metadata import transactions
from driftlog_metadata.codec import decode_partition_state
from driftlog_metadata.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.model import PartitionState, TopicPartition
from driftlog_tiering import layout
from driftlog_tiering.batch import NO_TIMESTAMP, BatchHeader, check_batch, iterate_batches
from driftlog_tiering.layout import SegmentKind
from driftlog_tiering.manifest import (
    AddSegments,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    SegmentRef,
)
from driftlog_tiering.manifests import VoidEditError, commit_edit, load_at_least
from driftlog_tiering.object_store import Buffer, NotFoundError, ObjectStore
from driftlog_tiering.producers import ProducerStates
from driftlog_tiering.segment import SegmentWriter

__all__ = ["Manifests", "Sealer", "Spool"]

_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Read and handed to the worker at once: half a row group."""

_REQUEST_DEADLINE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
"""An uplink slower than this cannot keep up with anything worth sealing."""

_EDIT_DEADLINE_MS: Final = 30_000
_MANIFEST_AGE_MS: Final = 3_600_000
"""Read again after this: no edit may be based on what was read more than 6 h ago."""

_BLOCKED_MS: Final = 60_000
"""Between two attempts to seal a partition in which something is missing or damaged."""

Offload = Callable[..., Awaitable[Any]]


class Spool(Protocol):
    """Where a segment grows before it is put: a temporary file, or memory in the simulator."""

    @property
    def file(self) -> IO[bytes]:
        """To be written."""
        ...

    def body(self) -> Buffer:
        """Everything written so far."""
        ...


class Sealer:
    """Seals the partitions of one session, one at a time."""

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        logs: Callable[[], Iterable[PartitionLog]],
        records: RecordsIndex,
        manifests: Manifests,
        settings: SealSettings,
        topic_sealing: Callable[[], dict[str, TopicSealing]],
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        now_ms: Callable[[], float],
        forget: Callable[[list[KnownRecord]], None],
    ) -> None:
        self._session = session
        self._objects = objects
        self._logs = logs
        self._records = records
        self._manifests = manifests
        self._settings = settings
        self._topic_sealing = topic_sealing
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._now_ms = now_ms
        self._forget = forget
        self._lock = asyncio.Lock()
        self._blocked: dict[PartitionLog, float] = {}
        """Partitions in which something is damaged, and when they are tried again."""
        self._log = structlog.get_logger()
        self.sealed_bytes = 0
        self.segments = 0
        self.undecodable_batches = 0

    def use_records(self, records: RecordsIndex) -> None:
        """The flush records that a takeover found."""
        self._records = records

    async def run(self) -> None:
        """Seal what is due until cancelled.

        Raises:
            FencedError: the session, or a partition, is somebody else's now.
        """
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            now_ms = self._now_ms()
            self._bound_damaged()
            for log, end in due(self._logs(), self._settings, self._topic_sealing(), now_ms):
                await self._attempt(log, end)
            for log, at_ms in list(self._blocked.items()):
                if log.state is State.CLOSED:
                    del self._blocked[log]
                elif at_ms <= now_ms:
                    await self._attempt(log, self.next_end(log, log.high_watermark))

    async def _attempt(self, log: PartitionLog, end: int) -> None:
        try:
            await self.seal(log, end)
        except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
            self._log.warning("seal_failed", partition=_name(log), error=str(error))
        except (CorruptError, NotFoundError) as error:
            self._blocked[log] = self._now_ms() + _BLOCKED_MS
            log.damage = str(error) or repr(error)
            self._log.error(
                "seal_blocked",
                partition=_name(log),
                error=log.damage,
                unsealed_bytes=log.unsealed_bytes,
                advice="put the object back: nothing more of this partition is sealed until then",
            )
        else:
            if self._blocked.pop(log, None) is not None:
                log.damage = ""
                log.full = False
                self._log.info("seal_unblocked", partition=_name(log))

    def _bound_damaged(self) -> None:
        """What cannot be sealed may not grow for ever."""
        damaged = [log for log in self._logs() if log.damage]
        if not damaged:
            return
        full = too_much(damaged, self._settings)
        for log in damaged:
            if full and not log.full:
                self._log.error(
                    "partition_full",
                    partition=_name(log),
                    unsealed_bytes=log.unsealed_bytes,
                    damage=log.damage,
                    advice="it takes no more records until the object is back and it is sealed",
                )
            log.full = full

    def next_end(self, log: PartitionLog, wanted: int) -> int:
        """Where the next segment of *log* ends on the way to *wanted*."""
        sealing = self._topic_sealing().get(log.topic)
        return min(wanted, seal_end(log, segment_bytes(self._settings, sealing)))

    async def seal(self, log: PartitionLog, end: int | None = None) -> int:
        """Seal *log* up to *end* (default: its high watermark); returns its sealed end.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptError, NotFoundError: the manifest or a flush object is damaged.
            FencedError: the partition is led elsewhere.
        """
        async with self._lock:
            if log.state in (State.CLOSED, State.OFFLINE):
                raise UnavailableError(f"{_name(log)} is not led here")
            manifest = await self._adopt(log)
            end = log.high_watermark if end is None else min(end, log.high_watermark)
            if end <= log.sealed_end:
                return log.sealed_end
            await self._seal(log, manifest, end)
            return log.sealed_end

    async def _adopt(self, log: PartitionLog) -> Manifest:
        """The partition's manifest, with its key not behind it."""
        if self._now_ms() - self._manifests.read_at_ms(log) > _MANIFEST_AGE_MS:
            self._manifests.drop(log)
        manifest = await self._manifests.get(log)
        if manifest.end > log.sealed_end:
            # An earlier attempt got as far as the manifest: what it sealed is sealed.
            assert manifest.end <= log.high_watermark
            await self._write_key(log, manifest)
        return manifest

    # ── One segment ──

    async def _seal(self, log: PartitionLog, manifest: Manifest, end: int) -> None:
        base = log.sealed_end
        assert manifest.end == base, f"{_name(log)}: manifest ends at {manifest.end}, not {base}"
        started_ms = self._now_ms()
        read_at_ms = int(self._manifests.read_at_ms(log))
        states = await self._manifests.producers(manifest)  # first: it may be damaged
        headers: list[BatchHeader] = []
        segments = await self._write_segments(log, base, end, headers)
        producers = await self._snapshot(log, states, headers, end)
        epochs = _epochs(headers)
        edit = AddSegments(
            base=base,
            end=end,
            segments=tuple(segments),
            leader_epochs=epochs,
            producers=producers,
        )
        try:
            edited = await commit_edit(
                self._objects,
                manifest,
                edit,
                self._nonce(),
                read_at_ms=read_at_ms,
                deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
                now_ms=lambda: int(self._now_ms()),
            )
        except VoidEditError as error:
            # Another session of ours was faster, or a lost attempt was taken: adopt what is there.
            self._manifests.put(log, error.manifest)
            self._log.info("seal_void", partition=_name(log), reason=str(error))
            return
        tp = TopicPartition(log.topic_id, log.partition)
        newest = await load_at_least(self._objects, log.topic, tp, edited.version)
        self._manifests.put(log, newest)
        await self._write_key(log, newest)
        size = sum(segment.size_bytes for segment in segments)
        self.segments += len(segments)
        self._log.info(
            "segment_sealed",
            partition=_name(log),
            base=base,
            end=end,
            bytes=size,
            ms=round(self._now_ms() - started_ms),
        )

    async def _write_segments(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        """Segments of ``[base, end)``: one, but where a batch cannot be decoded."""
        refs: list[SegmentRef] = []
        chunks = self._chunks(log, base, end)
        carried: list[Buffer] = []
        start = base
        while start < end:
            bad: Buffer | None = None
            with self._spool() as spool:
                writer = SegmentWriter(
                    spool.file,
                    topic=log.topic,
                    topic_id=log.topic_id,
                    partition=log.partition,
                    base=start,
                )
                while bad is None:
                    if not carried:
                        carried = await anext(chunks, [])
                        if not carried:
                            break
                    taken = await self._offload(_append, writer, carried, headers)
                    bad = carried[taken] if taken < len(carried) else None
                    carried = carried[taken:]
                stop = writer.next_offset if bad is not None else end
                if stop > start:
                    refs.append(await self._put_segment(log, writer, spool, start, stop))
                else:
                    writer.abandon()
            if bad is not None:
                refs.append(await self._put_raw(log, bad, headers))
                carried = carried[1:]
                stop = refs[-1].end
            start = stop
        return refs

    async def _put_segment(
        self, log: PartitionLog, writer: SegmentWriter, spool: Spool, base: int, end: int
    ) -> SegmentRef:
        info = await self._offload(writer.finish, end)
        key = self._segment_key(log, base, end, SegmentKind.PARQUET)
        self.sealed_bytes += info.raw_bytes
        await self._put(key, [spool.body()])
        return SegmentRef(
            key=key,
            base=base,
            end=end,
            size_bytes=info.size_bytes,
            records=info.records,
            raw_bytes=info.raw_bytes,
            min_timestamp_ms=info.min_timestamp_ms,
            max_timestamp_ms=info.max_timestamp_ms,
            max_timestamp_offset=info.max_timestamp_offset,
            codec=info.codec,
            format_version=info.format_version,
        )

    async def _put_raw(
        self, log: PartitionLog, bad: Buffer, headers: list[BatchHeader]
    ) -> SegmentRef:
        """Keep a batch whose records cannot be decoded as it came."""
        header = check_batch(bad, from_client=False)
        headers.append(header)
        base, end = header.base_offset, header.end_offset
        key = self._segment_key(log, base, end, SegmentKind.RAW)
        await self._put(key, [bad])
        self.undecodable_batches += 1
        self._log.error(
            "batch_undecodable",
            partition=_name(log),
            base=base,
            end=end,
            object=key,
            advice="kept as it came: consumers get it, Spark skips it",
        )
        return SegmentRef(
            key=key,
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=len(bad),
            records=header.record_count,
            raw_bytes=len(bad),
            min_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=header.max_timestamp,
            max_timestamp_offset=-1,
        )

    # ── What goes in ──

    async def _chunks(self, log: PartitionLog, base: int, end: int) -> AsyncIterator[list[Buffer]]:
        """Batches of ``[base, end)`` in offset order."""
        chunk: list[Buffer] = []
        size = 0
        for tail in [tail for tail in log.slices if tail.base < end and tail.end > base]:
            async for batch in self._slice(tail, base, end):
                chunk.append(batch)
                size += len(batch)
                if size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk

    async def _slice(self, tail: TailSlice, base: int, end: int) -> AsyncIterator[Buffer]:
        data = tail.data
        assert isinstance(data, TailData)
        first, stop = tail.first, tail.first + tail.count
        if tail.base < base:
            first = data.index_of(base, tail.first, tail.count)
            assert data.base_offsets[first] == base, "sealed ends are batch borders"
        for index in range(first, stop):
            if data.base_offsets[index] >= end:
                return
            batch = None
            try:
                batch = data.read_local(index)
            except UnavailableError as error:
                self._log.warning("buffer_file_unreadable", error=str(error))
            if batch is None:
                async for fetched in self._fetch(data, index, stop):
                    yield fetched
                return
            yield batch

    async def _fetch(self, data: TailData, index: int, stop: int) -> AsyncIterator[Buffer]:
        """The batches ``[index, stop)`` of a flush object, which stand side by side in it."""
        while index < stop:
            last = index
            start = data.positions[index]
            while last + 1 < stop and (
                data.positions[last + 1] + data.lengths[last + 1] - start <= _CHUNK_BYTES
            ):
                last += 1
            async with asyncio.timeout(_REQUEST_DEADLINE_S):
                body = await self._objects.get(
                    data.object_key, start, data.positions[last] + data.lengths[last]
                )
            for _, batch in iterate_batches(body):
                yield batch
            index = last + 1

    # ── What goes along ──

    async def _snapshot(
        self, log: PartitionLog, states: ProducerStates, headers: list[BatchHeader], end: int
    ) -> ProducerSnapshotRef | None:
        """Producer state at exactly *end*: the previous snapshot's and the sealed batches'."""
        for header in headers:
            if header.producer_id != NO_PRODUCER_ID:
                states.append(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta + 1,
                    header.base_offset,
                )
        if not len(states):
            return None
        tp = TopicPartition(log.topic_id, log.partition)
        key = layout.producer_snapshot_key(log.topic, tp, end, self._nonce())
        await self._put(key, [states.encode(end)])
        return ProducerSnapshotRef(offset=end, key=key)

    async def _write_key(self, log: PartitionLog, manifest: Manifest) -> None:
        """Write sealed end and manifest version to the partition's key: now it is sealed."""
        end = manifest.end
        mine = self._session.session_id
        needed = unsealed_sessions(log, end)
        state = PartitionState(
            sealed_end=end,
            manifest_version=manifest.version,
            log_start=max(log.log_start, manifest.log_start),
            sessions=tuple(s for s in log.sessions if s in needed or s == mine),
        )
        tp = TopicPartition(log.topic_id, log.partition)
        txn = transactions.write_state(tp, log.leader_revision, log.partition_revision, state)
        result = await self._session.transact(txn)
        revision = result.revision
        if not result.succeeded:
            leader, current = result.reads
            if log.state is State.CLOSED:
                # Its topic was deleted while this was sealed; that is nobody's session lost.
                raise UnavailableError(f"{_name(log)} is not led here any more")
            if not leader or leader[0].mod_revision != log.leader_revision:
                raise FencedError(f"{_name(log)} is led elsewhere")
            if not current or decode_partition_state(current[0].value) != state:
                raise UnavailableError(f"{_name(log)}: its key changed; sealing starts again")
            revision = current[0].mod_revision  # our own attempt, its answer lost
        log.partition_revision = revision
        log.manifest_version = manifest.version
        log.sessions = state.sessions
        log.log_start = state.log_start
        log.seal(end, self._now_ms())
        self._forget(self._records.sealed(tp, end))

    # ── Small things ──

    def _segment_key(self, log: PartitionLog, base: int, end: int, kind: SegmentKind) -> str:
        tp = TopicPartition(log.topic_id, log.partition)
        return layout.segment_key(log.topic, tp, base, end, self._nonce(), kind)

    async def _put(self, key: str, body: list[Buffer]) -> None:
        size_bytes = sum(map(len, body))
        async with asyncio.timeout(_REQUEST_DEADLINE_S + size_bytes / _SLOWEST_BYTES_PER_S):
            await self._objects.put(key, body)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _append(writer: SegmentWriter, batches: list[Buffer], headers: list[BatchHeader]) -> int:
    """Add batches until one cannot be decoded; returns how many were taken."""
    for taken, batch in enumerate(batches):
        try:
            headers.append(writer.append(batch))
        except CorruptError:
            return taken
    return len(batches)


def _epochs(headers: list[BatchHeader]) -> tuple[LeaderEpoch, ...]:
    epochs: list[LeaderEpoch] = []
    for header in headers:
        if not epochs or epochs[-1].epoch < header.partition_leader_epoch:
            epochs.append(LeaderEpoch(header.partition_leader_epoch, header.base_offset))
    return tuple(epochs)


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"
