"""Reading the log back, wherever it is: memory, buffer files, flush objects, sealed segments.

    offset      log_start ........ sealed_end ................ high_watermark
    is in       segments │ tail: flush object │ buffer file │ memory
    read by     SegmentReads     FlushReads       `read_local`

1. No read begins at or above the high watermark, or below log start.
2. Batches come whole and in order, without a hole between them.
3. Data that cannot be read is an error that names the object; it is never skipped.
4. Cold reads have their own threads, memory, requests (`ReadSettings`) and files
   (`local/cached_objects`): they slow neither producers nor consumers of the recent log.

Batches that a read has looked up may be sealed, consolidated or recycled while it awaits the
bucket.  The read is still correct: committed batches never change.  An object that is gone was
probably replaced, so the read looks it up again, once, after `refresh`.  If it is still missing,
consumers get a retriable error for half a minute, and their retries look for it again; after that
they get `DamagedObjectError`.  A damaged object may have been repaired in the bucket: what memory
and disk have of it is dropped, and it is read once more.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import structlog

from driftlog_agents.log.local.cached_objects import ColdObjects
from driftlog_agents.log.objects.availability import (
    LOST_MS,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog, State, TailSlice
from driftlog_agents.log.reading.flush_objects import FlushReads
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_plan import (
    Batches,
    Place,
    SequentialReaders,
    Tier,
    check_led,
    check_sealed,
    find_tier,
)
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.segments import SegmentReads
from driftlog_agents.log.reading.shared_cache import WANTED, always
from driftlog_agents.log.reading.time_search import Search, Tiers, find_first, find_latest
from driftlog_agents.log.reading.timestamps import TimeReads
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import MissingManifestError
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.stores.object_store import NotFoundError

T = TypeVar("T")


class LedManifests(Protocol):
    """The manifests of the partitions that are led here."""

    async def read_manifest(self, log: PartitionLog) -> Manifest:
        """The partition's manifest, at least up to its sealed end."""
        ...

    async def refresh(self, log: PartitionLog) -> None:
        """Reads the manifest and the flush records of *log* again: one of its objects is gone."""
        ...


class LogReader:
    """Reads of all partitions that an agent leads.

    Args:
        offload: ``await offload(fn, *args)`` runs CPU work on threads of cold reads; inline in
            the simulator.
        now_ms: a clock that never goes back.
        decoding: decodes large batches in turns, for the whole process.
    """

    def __init__(
        self,
        *,
        store: ColdObjects,
        offload: Offload,
        manifests: LedManifests,
        now_ms: Callable[[], float],
        settings: ReadSettings | None = None,
        decoding: BatchDecoder | None = None,
    ) -> None:
        self._settings = settings or ReadSettings()
        decoding = decoding or BatchDecoder()
        self._manifests = manifests
        self._log = structlog.get_logger()
        self._now_ms = now_ms
        self.objects = RangedReads(store, self._settings, now_ms, offload)
        self.segments = SegmentReads(
            reads=self.objects, settings=self._settings, now_ms=now_ms, decoding=decoding
        )
        self.flushes = FlushReads(reads=self.objects, settings=self._settings, now_ms=now_ms)
        self._times = TimeReads(
            reads=self.objects,
            segments=self.segments,
            flushes=self.flushes,
            manifest=self._manifest,
            decoding=decoding,
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._sequential = SequentialReaders()
        self._manifests_missing: dict[PartitionLog, str] = {}
        """Partition → key of its manifest, or of a list of it, that the last read did not find."""
        self.damaged_reads = 0
        """Reads that failed for a missing or damaged object: an operator must act."""
        self.prefetches = 0

    async def run(self) -> None:
        """Read ahead of sequential consumers, until cancelled; without it there is no
        read-ahead."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    # ── By offset ──

    read_local = staticmethod(read_local)

    async def read(
        self,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        *,
        zstd: bool,
        codec: Codec | None = None,
    ) -> list[Buffer]:
        """Whole batches from the one that holds *offset* on: at most *max_bytes*, or one.

        Empty at the high watermark, and above it up to the log's end.

        Args:
            zstd: re-encoded batches may be zstd (Fetch ≥ 10); else they come uncompressed.
                Batches of the tail come as they were produced: see `holds_zstd`.
            codec: the topic's ``compression.type``; None is ``producer``.

        Raises:
            OffsetOutOfRangeError: below log start, or above the log's end.
            RefusedError: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR (offline).
            DamagedObjectError: an object is damaged, or missing for long.
            UnavailableError: a store failed, each time, or an object is missing; the client may
                retry.
        """
        found = await self._looking_again(
            log, lambda: self._read(log, offset, max_bytes, codec, zstd)
        )
        if found is None:
            return []
        self._read_ahead(log, offset, found)
        return found.buffers

    async def _read(
        self, log: PartitionLog, offset: int, max_bytes: int, codec: Codec | None, zstd: bool
    ) -> Batches | None:
        tier = find_tier(log, offset)
        if tier is Tier.END:
            return None
        here = read_local(log, offset, max_bytes)
        if here is not None:
            return Batches(here, -1, -1)
        if isinstance(tier, TailSlice):
            return await self.flushes.read(log, tier, offset, max_bytes)
        manifest = await self._manifest(log)
        check_sealed(log, manifest, offset)
        return await self.segments.read(manifest, offset, max_bytes, codec, zstd=zstd)

    # ── By time ──

    async def find_timestamp(
        self, log: PartitionLog, target_ms: int
    ) -> tuple[int, int, int] | None:
        """(offset, timestamp ms, leader epoch) of the first record at or after *target_ms*, in
        offset order, within [log start, high watermark); None: there is none.

        A batch that cannot be decoded counts with its first offset and its largest timestamp.

        Raises: as `read`, except OffsetOutOfRangeError.
        """
        return await self._search(log, partial(find_first, target_ms), target_ms)

    async def max_timestamp(self, log: PartitionLog) -> tuple[int, int, int] | None:
        """(offset, timestamp ms, leader epoch) of the first record with the largest timestamp
        (ListOffsets −3); None: no record has any.

        Raises: as `find_timestamp`.
        """
        return await self._search(log, find_latest, None)

    async def _search(
        self, log: PartitionLog, begin: Callable[[Tiers], Search], target_ms: int | None
    ) -> tuple[int, int, int] | None:
        check_led(log)
        return await self._looking_again(log, lambda: self._times.run(log, begin, target_ms))

    # ── Looking again ──

    async def _looking_again(self, log: PartitionLog, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            try:
                result = await attempt()
            except ObjectUnavailableError as error:
                if error.known:
                    raise
                await self._renew(log)
                result = await attempt()
                self._log.info(
                    "object_gone",
                    object=error.key,
                    advice="no action needed; the read has looked it up again",
                )
            except DamagedObjectError as error:
                self.segments.drop_footer(error.key)
                if not await self.objects.drop_stored(error.key):
                    raise
                # The disk may have stored what the bucket has no longer.
                result = await attempt()
        except ObjectUnavailableError as error:
            self.damaged_reads += 1
            self._missing(log, error)
            raise
        except DamagedObjectError:
            self.damaged_reads += 1
            raise
        check_led(log)
        return result

    def _missing(self, log: PartitionLog, error: ObjectUnavailableError) -> None:
        """
        Raises:
            DamagedObjectError: it has been missing for long: a retry would not help.
        """
        now_ms, missing = self._now_ms(), self.objects.missing
        if not error.known and missing.failed(error.key, now_ms):
            self._log.error(
                "object_missing",
                partition=f"{log.topic}-{log.partition}",
                object=error.key,
                advice="restore the object; consumers' fetches retry it.  If it is lost for good: "
                "driftlog partitions accept-loss",
            )
        if missing.lasted_ms(error.key, now_ms) >= LOST_MS:
            raise DamagedObjectError(error.key, "missing") from error

    async def _renew(self, log: PartitionLog) -> None:
        try:
            await self._manifests.refresh(log)
        except (OutcomeUnknownError, TimeoutError) as error:
            raise UnavailableError(f"{log!r}: {error!r}") from error

    async def _manifest(self, log: PartitionLog) -> Manifest:
        missing = self._manifests_missing.get(log)
        if missing is not None and self.objects.missing.waits(missing, self._now_ms()):
            raise ObjectUnavailableError(missing, "missing", known=True)
        try:
            manifest = await self._manifests.read_manifest(log)
        except (OutcomeUnknownError, TimeoutError) as error:
            raise UnavailableError(f"the manifest of {log!r}: {error!r}") from error
        except MissingManifestError as error:
            if log.state is not State.CLOSED:
                self._manifests_missing = {
                    other: key
                    for other, key in self._manifests_missing.items()
                    if other.state is not State.CLOSED
                }
                self._manifests_missing[log] = error.key
            raise ObjectUnavailableError(error.key, "missing") from error
        except (CorruptError, NotFoundError) as error:
            tp = TopicPartition(log.topic_id, log.partition)
            raise DamagedObjectError(layout.manifest_prefix(log.topic, tp), str(error)) from error
        if missing is not None:
            self._manifests_missing.pop(log, None)
            self.objects.missing.found(missing)
        return manifest

    # ── Reading ahead ──

    def _read_ahead(self, log: PartitionLog, offset: int, found: Batches) -> None:
        """Note where this read ended; if it began where another one ended, load what follows."""
        if found.end < 0:
            return
        following = self._sequential.follow(log, offset, found)
        if following is None:
            return
        if self._tasks is None or not self._settings.prefetch_row_groups:
            self._sequential.finished(following)
            return
        self._tasks.create_task(self._prefetch(log, following))

    async def _prefetch(self, log: PartitionLog, place: Place) -> None:
        self.prefetches += 1
        WANTED.set(always)  # by a request that follows
        offset = place[2]
        try:
            for _ in range(self._settings.prefetch_row_groups):
                if log.state is not State.ONLINE or offset >= log.high_watermark:
                    return
                tail = log.find(offset)
                if tail is not None:
                    await self.flushes.prefetch(log, tail, offset)
                    return
                following = await self.segments.prefetch(await self._manifest(log), offset)
                if following is None:
                    return
                offset = following
        except (UnavailableError, CorruptError) as error:
            # The consumer's own read gets the error again, and returns it.
            self._log.debug("prefetch_failed", partition=repr(log), error=str(error))
        finally:
            self._sequential.finished(place)
