"""The rate of one consumer on sealed segments, and the cost of recent reads without a network.

    python -m benchmarks.cold_read [--mib 512] [--codecs none,zstd] [--fetch-kib 1024]

Segments of 128 MiB in a directory store, read from end to end through `LogReader.read` as one
consumer does (a fetch, then the next): GETs, decoding and re-encoding on two threads, row
groups read ahead.  MB are 10^6 bytes of uncompressed batches; the files are in the page
cache.  Then `read_local` from memory and from a buffer file.

Shell.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.sealing import endless, make_batches
from driftlog_agents.log.local.buffer_format import encode_entry_header
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches, lay_out, tail_slice
from driftlog_agents.log.reading.reader import LogReader
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_tiering.batches.batch import HEADER_BYTES, Codec, build_batch, parse_header
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Manifest,
    SegmentRef,
    empty_manifest,
)
from driftlog_tiering.formats.manifest_edits import Applied, apply
from driftlog_tiering.segments.segment import SegmentWriter
from driftlog_tiering.stores.directory_store import DirectoryObjectStore

MiB = 1024 * 1024
SEGMENT_BYTES = 128 * MiB
TOPIC_ID = UUID(int=1)


class Sealed:
    """A partition with sealed segments in a directory store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = DirectoryObjectStore(root, fsync=False)
        self.tp = TopicPartition(TOPIC_ID, 0)
        self.manifest = empty_manifest("bench", self.tp)
        self.log = PartitionLog(topic="bench", topic_id=TOPIC_ID, partition=0, leader_epoch=1)
        self.raw_bytes = 0

    def fill(self, batches: list[tuple[bytearray, int]], total_bytes: int) -> None:
        """Seal *total_bytes* of uncompressed batches."""
        source = endless(batches)
        while self.raw_bytes < total_bytes:
            self._segment(source, min(SEGMENT_BYTES, total_bytes - self.raw_bytes))

    def _segment(self, source: Any, size_bytes: int) -> None:
        base = self.manifest.end
        nonce = f"n{self.manifest.version}"
        with tempfile.TemporaryFile(dir=self.root.parent) as sink:
            writer = SegmentWriter(sink, topic="bench", topic_id=TOPIC_ID, partition=0, base=base)
            while writer.raw_bytes < size_bytes:
                writer.append(next(source)[0])
            info = writer.finish(writer.next_offset)
            key = layout.segment_key("bench", self.tp, base, info.end, nonce)
            sink.seek(0)
            asyncio.run(self.store.put(key, [sink.read()]))
        ref = SegmentRef(
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
            footer_crc=info.footer_crc,
        )
        edit = AddSegments(
            base=base,
            end=info.end,
            segments=(ref,),
            leader_epochs=info.leader_epochs,
            producers=None,
        )
        step = apply(self.manifest, edit, nonce, Cluster("benchmark"))
        assert isinstance(step, Applied)
        self.manifest = step.manifest
        self.raw_bytes += info.raw_bytes
        self.log.high_watermark = self.log.log_end = info.end
        self.log.seal(info.end)

    async def read_manifest(self, _: PartitionLog) -> Manifest:
        """See `LedManifests`."""
        return self.manifest

    async def refresh(self, _: PartitionLog) -> None:
        """See `LedManifests`."""
        raise AssertionError("nothing is gone")

    async def consume(self, max_bytes: int, codec: Codec | None) -> tuple[float, float, int]:
        """(seconds, CPU seconds, fetches) of one consumer from the first offset to the last."""
        loop = asyncio.get_running_loop()

        with ThreadPoolExecutor(2, "cold-read") as pool:

            async def offload(fn: Callable[..., Any], *args: Any) -> Any:
                return await loop.run_in_executor(pool, fn, *args)

            reader = LogReader(
                store=self.store,
                offload=offload,
                manifests=self,
                now_ms=lambda: time.monotonic() * 1000,
            )
            running = asyncio.create_task(reader.run())
            wall, cpu = time.perf_counter(), time.process_time()
            offset = fetches = 0
            while offset < self.log.high_watermark:
                found = await reader.read(self.log, offset, max_bytes, zstd=True, codec=codec)
                offset = parse_header(found[-1]).end_offset
                fetches += 1
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            running.cancel()
            await asyncio.wait((running,))
        return wall, cpu, fetches


def sealed(payload: str, codec: Codec, mib: int, max_bytes: int, record_bytes: int) -> None:
    """Print the rates of reading back *mib*, uncompressed and with the producer's codec."""
    with tempfile.TemporaryDirectory() as folder:
        world = Sealed(Path(folder) / "bucket")
        world.fill(make_batches(payload, codec, record_bytes), mib * MiB)
        for back in dict.fromkeys((Codec.NONE, codec)):
            wall, cpu, fetches = asyncio.run(world.consume(max_bytes, back))
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(
                f"{payload:8} {codec.name.lower():7} {back.name.lower():8}"
                f" {world.raw_bytes / wall / 1e6:7.0f} {cpu / world.raw_bytes * 2**30:10.2f}"
                f" {fetches:8} {rss:8}",
                flush=True,
            )
        asyncio.run(world.store.close())


def recent(batch_bytes: int, max_bytes: int) -> None:
    """Print the rates of `read_local` from memory and from a buffer file."""
    view = bytes(
        build_batch(
            bytes(batch_bytes - HEADER_BYTES),
            base_offset=0,
            last_offset_delta=0,
            record_count=1,
            attributes=0,
            base_timestamp=0,
            max_timestamp=0,
        )
    )
    count = 64 * MiB // len(view)
    with tempfile.TemporaryDirectory() as folder:
        disk = PosixDisk(Path(folder))
        asyncio.run(disk.create_session("s"))
        file = disk.create_file("s", 1)
        for tier in ("memory", "file"):
            log = PartitionLog(topic="t", topic_id=TOPIC_ID, partition=0, leader_epoch=1)
            data = _tail(log, file, view, count)
            if tier == "file":
                data.views = None
            read, wall = 0, time.perf_counter()
            fetches = 0
            while read < 2**30:
                offset = 0
                while offset < log.high_watermark:
                    found = read_local(log, offset, max_bytes)
                    assert found is not None
                    read += sum(map(len, found))
                    offset += len(found)
                    fetches += 1
            wall = time.perf_counter() - wall
            print(
                f"{tier:8} batches of {len(view):8} B: {read / wall / 1e6:9.0f} MB/s,"
                f" {wall / fetches * 1e6:8.1f} us a fetch",
                flush=True,
            )
        disk.close()


def _tail(log: PartitionLog, file: Any, view: bytes, count: int) -> FlushBatches:
    batches = []
    header = encode_entry_header(1, TOPIC_ID.bytes, 0, len(view), False)
    for i in range(count):
        made = Batch(memoryview(view), len(view), i, 1, (1, 0, -1, -1, -1, 0, 0))
        made.file = file
        made.position = file.append([header, view]) + len(header)
        batches.append(made)
    data, _, _, slices = lay_out({log: batches}, "s")
    found = slices[0][1]
    log.log_end = found.end
    log.commit(tail_slice(data, found, StoredAt("flush", 0)), 0.0)
    return data


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--payloads", default="random,json")
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--fetch-kib", type=int, default=1024)
    args = parser.parse_args()
    print(f"{args.record_bytes} B records, {args.mib} MiB, fetches of {args.fetch_kib} KiB")
    print(
        f"{'payload':8} {'codec':7} {'back to':8} {'MB/s':>7} {'CPU s/GiB':>10}"
        f" {'fetches':>8} {'RSS MiB':>8}"
    )
    for payload in args.payloads.split(","):
        for name in args.codecs.split(","):
            codec = Codec[name.upper()]
            sealed(payload, codec, args.mib, args.fetch_kib * 1024, args.record_bytes)
    print("recent reads, no socket:")
    for size in (1_000_000, 16_384, 300):
        recent(size, args.fetch_kib * 1024)


if __name__ == "__main__":
    main()
