"""The first bytes at random offsets of a partition with very many segments.

    python -m benchmarks.many_segments [--segments 100000] [--reads 40] [--mib 16]

A directory store has the manifest of a partition that has grown for years: 1,000 segments, and the
others in lists of 500.  The segments that are read are real, of one row group; the others are named
alone.  Each read is the first of its segment: footer and row group come from the store, and the
list, unless one of its segments was read before.  Prints the time to read the newest manifest; then
of each kind of read its requests to the store, the median and the worst time, and the CPU time.
The files are in the page cache.

Shell.
"""

import argparse
import asyncio
import io
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from benchmarks.sealing import make_batches
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.reader import LogReader
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import Codec, parse_header, patch_offset_and_epoch
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    LeaderEpoch,
    Manifest,
    SegmentList,
    SegmentRef,
    empty_manifest,
    list_ref,
)
from driftlog_tiering.formats.manifest_codec import encode_manifest, encode_segment_list
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import SegmentWriter
from driftlog_tiering.stores.directory_store import DirectoryObjectStore

MiB = 1024 * 1024
TOPIC, TP = "bench", TopicPartition(UUID(int=1), 0)
_IN_MANIFEST, _IN_LIST = 1_000, 500


class CountedStore:
    """Counts the GETs of cold reads; `ColdObjects`."""

    def __init__(self, store: DirectoryObjectStore) -> None:
        self.store = store
        self.gets = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """See `ObjectStore.get`."""
        self.gets += 1
        return await self.store.get(key, start, end)


class LongPartition:
    """A partition of very many segments of equal length, in a directory store."""

    def __init__(self, root: Path, mib: int) -> None:
        self.store = DirectoryObjectStore(root, fsync=False)
        self._bytes = mib * MiB
        self._batches = make_batches("json", Codec.NONE, 1024)
        self._like = self._make(0)
        self.records = self._like.end
        self.log = PartitionLog(topic=TOPIC, topic_id=TP.topic_id, partition=0, leader_epoch=1)
        self.manifest = empty_manifest(TOPIC, TP)

    def fill(self, segments: int, real: Iterable[int]) -> None:
        """Store the lists and the manifest of so many segments, and those of *real*."""
        made = {number: self._make(number * self.records) for number in real}
        refs = [made.get(number) or self._ref(number) for number in range(segments)]
        lists, at = [], 0
        while len(refs) - at > _IN_MANIFEST:
            content = SegmentList(1, segments=tuple(refs[at : at + _IN_LIST]))
            first, last = content.segments[0], content.segments[-1]
            key = layout.segment_list_key(TOPIC, TP, 1, 1, first.base, last.end, "n")
            self._put(key, encode_segment_list(self.manifest, content))
            lists.append(list_ref(key, content))
            at += _IN_LIST
        self.manifest = replace(
            self.manifest,
            version=1,
            end=segments * self.records,
            lists=tuple(lists),
            segments=tuple(refs[at:]),
            leader_epochs=(LeaderEpoch(1, 0),),
        )
        self._put(layout.manifest_key(TOPIC, TP, 1), encode_manifest(self.manifest))
        self.log.high_watermark = self.log.log_end = self.manifest.end
        self.log.seal(self.manifest.end)

    def _put(self, key: str, body: bytes) -> None:
        asyncio.run(self.store.put(key, [body]))

    def _ref(self, number: int) -> SegmentRef:
        base = number * self.records
        key = layout.segment_key(TOPIC, TP, base, base + self.records, "n")
        return replace(self._like, key=key, base=base, end=base + self.records)

    def _make(self, base: int) -> SegmentRef:
        """Store the segment that begins at *base*."""
        sink, at = io.BytesIO(), base
        writer = SegmentWriter(
            sink,
            topic=TOPIC,
            topic_id=TP.topic_id,
            partition=0,
            base=base,
            row_group_bytes=2 * self._bytes,
        )
        for batch, _ in cycle(self._batches):
            patch_offset_and_epoch(batch, at, 1)
            writer.append(bytes(batch))
            at = writer.next_offset
            if writer.raw_bytes >= self._bytes:
                break
        info = writer.finish(at)
        key = layout.segment_key(TOPIC, TP, base, info.end, "n")
        self._put(key, sink.getvalue())
        return SegmentRef(
            key=key,
            base=base,
            end=info.end,
            size_bytes=info.size_bytes,
            records=info.records,
            raw_bytes=info.raw_bytes,
            min_timestamp_ms=info.min_timestamp_ms,
            max_timestamp_ms=info.max_timestamp_ms,
            max_timestamp_offset=info.max_timestamp_offset,
            codec=info.codec,
        )

    # ── Reads ──

    async def read_manifest(self, _: PartitionLog) -> Manifest:
        """See `LedManifests`."""
        return self.manifest

    async def refresh(self, _: PartitionLog) -> None:
        """See `LedManifests`."""
        raise AssertionError("nothing is gone")

    async def open(self) -> float:
        """Milliseconds to read the newest manifest."""
        began = time.perf_counter()
        found = await load_newest(self.store, TOPIC, TP)
        assert found is not None
        assert found.end == self.manifest.end
        return (time.perf_counter() - began) * 1000

    async def read(self, offsets: Iterable[int]) -> list[tuple[int, float, float]]:
        """Requests, milliseconds and CPU milliseconds of one read of 1 MiB at each of *offsets*."""
        loop, store, found = asyncio.get_running_loop(), CountedStore(self.store), []
        with ThreadPoolExecutor(2, "cold-read") as pool:

            async def offload(fn: Callable[..., Any], *args: Any) -> Any:
                return await loop.run_in_executor(pool, fn, *args)

            reader = LogReader(
                store=store,
                offload=offload,
                manifests=self,
                now_ms=lambda: time.monotonic() * 1000,
                settings=ReadSettings(hold_ms=0),
            )
            for offset in offsets:
                gets, began, cpu = store.gets, time.perf_counter(), time.process_time()
                batches = await reader.read(self.log, offset, MiB, zstd=True)
                took_ms = (time.perf_counter() - began) * 1000
                cpu_ms = (time.process_time() - cpu) * 1000
                header = parse_header(batches[0])
                assert header.base_offset <= offset < header.end_offset
                found.append((store.gets - gets, took_ms, cpu_ms))
        return found


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--reads", type=int, default=40)
    parser.add_argument("--mib", type=int, default=16)
    args = parser.parse_args()
    rng = Random(1)
    real = rng.sample(range(args.segments), args.reads)
    with tempfile.TemporaryDirectory() as folder:
        partition = LongPartition(Path(folder), args.mib)
        partition.fill(args.segments, real)
        opened = [asyncio.run(partition.open()) for _ in range(9)]
        offsets = [number * partition.records + rng.randrange(partition.records) for number in real]
        rows = asyncio.run(partition.read(offsets))
        asyncio.run(partition.store.close())
    manifest = partition.manifest
    print(f"{args.segments:,} segments of {args.mib} MiB, {len(manifest.lists)} lists")
    print(f"newest manifest: {statistics.median(opened):.1f} ms, worst {max(opened):.1f}")
    for gets in sorted({row[0] for row in rows}):
        times = [took_ms for count, took_ms, _ in rows if count == gets]
        cpu_ms = [cpu_ms for count, _, cpu_ms in rows if count == gets]
        print(
            f"{gets} requests: {len(times)} first reads, median {statistics.median(times):.1f} ms, "
            f"worst {max(times):.1f}; CPU {statistics.median(cpu_ms):.1f} ms"
        )
    print(f"RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
