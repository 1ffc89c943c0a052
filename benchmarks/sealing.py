"""The cost of sealing and reading back: batches to a segment in a file, row groups to batches.

    python -m benchmarks.sealing [--mib 512] [--codecs none,zstd] [--record-bytes 1024]

Prints CPU s per GiB of uncompressed batches: CRC check, decompression, decoding, Parquet, zstd
and the write to the file, all included; then MB/s of one thread from a row group's bytes to
batches, with the segment's file in the page cache.

Shell.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from benchmarks.batches import PAYLOADS
from driftlog_agents.process.composition.allocator import use_memory_again
from driftlog_tiering.batches.batch import Codec, build_batch, parse_header, patch_offset_and_epoch
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.segments.segment import SegmentInfo, SegmentReader, SegmentWriter

MiB = 1024 * 1024
BATCH_BYTES = 1_000_000
UNIQUE_MIB = 32


def make_batches(payload: str, codec: Codec, record_bytes: int) -> list[tuple[bytearray, int]]:
    """UNIQUE_MIB of batches, and how many bytes each has uncompressed."""
    rng = random.Random(1)
    batches = []
    per_batch = max(1, BATCH_BYTES // (record_bytes + 20))
    for _ in range(UNIQUE_MIB * MiB // BATCH_BYTES):
        records = bytearray()
        for i, value in enumerate(PAYLOADS[payload](rng, per_batch, record_bytes)):
            key = b"key-%06d" % rng.randrange(10**5)
            records += encode_record(Record(i // 10, i, key, value, ()))
        batch = build_batch(
            compress(codec, bytes(records)),
            base_offset=0,
            last_offset_delta=per_batch - 1,
            record_count=per_batch,
            attributes=codec,
            base_timestamp=1_760_000_000_000,
            max_timestamp=1_760_000_000_000 + (per_batch - 1) // 10,
            leader_epoch=1,
        )
        batches.append((batch, 61 + len(records)))
    return batches


def endless(batches: list[tuple[bytearray, int]]) -> Iterator[tuple[bytes, int]]:
    """The batches again and again, at ascending offsets."""
    base = 0
    while True:
        for batch, raw in batches:
            patch_offset_and_epoch(batch, base, 1)
            yield bytes(batch), raw
            base += parse_header(batch).record_count


def main() -> None:
    """Measure every payload with every codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--record-bytes", type=int, default=1024)
    args = parser.parse_args()
    print(f"{args.record_bytes} B records, {args.mib} MiB, batches of {BATCH_BYTES} B")
    print(
        f"{'payload':8} {'codec':7} {'seal CPU s/GiB':>14} {'seal MB/s':>10} {'size':>6}"
        f" {'back to':>8} {'MB/s':>7} {'CPU s/GiB':>10}"
    )
    # An agent seals for weeks in memory that it used before; a new process pays for new pages.
    use_memory_again()
    for payload in ("random", "json"):
        make_segment(
            Path(os.devnull), make_batches(payload, Codec.NONE, args.record_bytes), 64 * MiB
        )
    for payload in ("random", "json"):
        for name in args.codecs.split(","):
            measure(payload, Codec[name.upper()], args.mib * MiB, args.record_bytes)


def make_segment(
    path: Path, batches: list[tuple[bytearray, int]], total: int
) -> tuple[SegmentInfo, float, float]:
    """Seal *total* bytes; returns the segment, CPU seconds and seconds."""
    with path.open("r+b" if path.exists() else "w+b") as sink:
        source = endless(batches)
        writer = SegmentWriter(sink, topic="bench", topic_id=UUID(int=1), partition=0, base=0)
        raw = 0
        cpu, wall = time.process_time(), time.perf_counter()
        while raw < total:
            batch, size = next(source)
            writer.append(batch)
            raw += size
        info = writer.finish(writer.next_offset)
        sink.flush()
        if path.is_file():
            sink.truncate()
        return info, time.process_time() - cpu, time.perf_counter() - wall


def measure(payload: str, codec: Codec, total: int, record_bytes: int) -> None:
    """Seal *total* bytes, read them back, print a line."""
    batches = make_batches(payload, codec, record_bytes)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment.parquet"
        make_segment(path, batches, total)  # an agent writes a segment over an older file
        info, cpu, wall = make_segment(path, batches, total)
        raw = info.raw_bytes
        line = (
            f"{payload:8} {codec.name.lower():7} {cpu / raw * 2**30:14.2f}"
            f" {raw / wall / 1e6:10.0f} {info.size_bytes / raw:6.1%}"
        )
        for back in dict.fromkeys((Codec.NONE, codec)):
            cpu, wall, out = read_back(path, back)
            print(
                f"{line} {back.name.lower():>8} {out / wall / 1e6:7.0f} {cpu / raw * 2**30:10.2f}",
                flush=True,
            )
            line = " " * len(line)


def read_back(path: Path, codec: Codec) -> tuple[float, float, int]:
    """(CPU s, s, uncompressed bytes) from row groups to batches."""
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = SegmentReader(os.pread(file.fileno(), 64 * 1024, size - 64 * 1024), size, None)
        cpu, wall = time.process_time(), time.perf_counter()
        for group in reader.row_groups:
            data = os.pread(file.fileno(), group.end - group.start, group.start)
            for batch in reader.encoder(group, data).batches(
                group.first_offset, codec=codec, level=1
            ):
                assert batch.data
        return time.process_time() - cpu, time.perf_counter() - wall, reader.raw_bytes


if __name__ == "__main__":
    main()
