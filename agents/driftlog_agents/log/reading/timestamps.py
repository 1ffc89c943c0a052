"""Offsets by time (ListOffsets): does the reads that `time_search` asks for.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from driftlog_agents.foundation.single_flight import SingleFlight
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.flush_objects import FlushReads
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.sealed_read import Open
from driftlog_agents.log.reading.segments import SegmentReads, run
from driftlog_agents.log.reading.time_search import (
    Ask,
    Found,
    LookInBatch,
    LookInGroup,
    Search,
    Tiers,
    epoch_at,
)
from driftlog_tiering.batches.batch_limits import LIGHT_BYTES
from driftlog_tiering.formats.manifest import Manifest


class TimeReads:
    """Lookups by time, for all partitions."""

    def __init__(
        self,
        *,
        reads: RangedReads,
        segments: SegmentReads,
        flushes: FlushReads,
        manifest: Callable[[PartitionLog], Awaitable[Manifest]],
        decoding: BatchDecoder,
    ) -> None:
        self._reads = reads
        self._decoding = decoding
        self._segments = segments
        self._flushes = flushes
        self._manifest = manifest
        self._searches = SingleFlight[Hashable, tuple[int, int, int] | None]()

    async def run(
        self, log: PartitionLog, begin: Callable[[Tiers], Search], asked: Hashable
    ) -> tuple[int, int, int] | None:
        """The result of a search: see `LogReader.find_timestamp`.

        Searches for the same, *asked* at the same state of the log, are one.
        """
        state = log.log_start, log.sealed_end, log.high_watermark
        return await self._searches.do((log, asked, state), partial(self._run, log, begin))

    async def _run(
        self, log: PartitionLog, begin: Callable[[Tiers], Search]
    ) -> tuple[int, int, int] | None:
        tiers = await self._tiers(log)
        found = await run(begin(tiers), partial(self._answer, log, tiers.manifest))
        return None if found is None else (*found, epoch_at(log, tiers.manifest, found[0]))

    async def _tiers(self, log: PartitionLog) -> Tiers:
        start, slices, sealed_end = log.log_start, list(log.slices), log.sealed_end
        if start >= sealed_end:
            return Tiers(start, None, slices)
        manifest = await self._manifest(log)
        if manifest.end < sealed_end:
            raise ObjectUnavailableError(
                f"the segment of offset {manifest.end} of {manifest.key}", "missing"
            )
        return Tiers(max(start, manifest.log_start), manifest, slices)

    async def _answer(self, log: PartitionLog, manifest: Manifest | None, ask: Ask) -> Any:
        match ask:
            case Open(ref):
                assert manifest is not None
                return await self._segments.open(manifest, ref)
            case LookInGroup(of, look):
                data = await self._reads.get(of.ref.key, *of.reader.times_range(of.group))
                return await self._reads.run(of.ref.key, look, data)
            case LookInBatch():
                return await self._look_in_batch(log, ask)
            case None:
                return await asyncio.sleep(0)

    async def _look_in_batch(self, log: PartitionLog, ask: LookInBatch) -> Found | None:
        batch = await self._flushes.batch(log, ask.tail, ask.at)
        key, most = ask.tail.stored_at.object_key, self._decoding.limits.decompressed_bytes
        light = min(LIGHT_BYTES, most)
        found: Found | None
        found, large = await self._reads.run(key, ask.look, batch, light)
        if large and light < most:
            offload = self._decoding.read_large
            found, _ = await self._reads.run(key, ask.look, batch, most, offload=offload)
        return found
