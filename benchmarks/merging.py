"""The cost of merging one partition: small segments in a directory store, all merges that are due.

    python -m benchmarks.merging [--records 5000000] [--value-bytes 100] [--segment-kib 512]

GiB are 2^30 bytes of uncompressed batches that came in, each counted once, however many merges
write it.  The files are in the page cache.  Filling is not measured.

Shell.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.compaction import SEGMENT_BYTES, GiB, Partition
from driftlog_tiering.merging.merger import Merger
from driftlog_tiering.merging.policy import MergePolicy, next_merge
from tests.support.process_usage import reset_peak, usage

_KEYS: Final = 1_000_000
_POLICY: Final = MergePolicy(segment_bytes=SEGMENT_BYTES, span_ms=None)


async def _merge_all(partition: Partition) -> tuple[int, int]:
    """(merges, bytes that they read) until no merge is due."""
    merger = Merger(partition, partition.environment)
    merges = bytes_read = 0
    while chosen := next_merge(
        await partition.segments(),
        _POLICY,
        log_start=0,
        cleaned_end=0,
        end=partition.manifest.end,
    ):
        bytes_read += (await merger.merge(partition.manifest, chosen)).bytes_read
        merges += 1
    return merges, bytes_read


async def _measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        partition = Partition(Path(folder))
        small = options.segment_kib * 1024
        await partition.fill(options.records, _KEYS, options.value_bytes, small)
        segments = len(await partition.segments())
        reset_peak(os.getpid())
        before, began_s = usage(os.getpid()), time.monotonic()
        merges, bytes_read = await _merge_all(partition)
        took_s, after = time.monotonic() - began_s, usage(os.getpid())
        left = len(await partition.segments())
    gib = partition.received_bytes / GiB
    print("| segments | left | merges | GiB | read, MiB | MB/s | CPU s/GiB | RSS peak, MiB |")
    print(f"|{'---|' * 8}")
    print(
        f"| {segments:,} | {left:,} | {merges:,} | {gib:.2f} | {bytes_read >> 20:,} "
        f"| {partition.received_bytes / took_s / 1e6:.0f} "
        f"| {(after.cpu_seconds - before.cpu_seconds) / gib:.2f} | {after.peak_rss_bytes >> 20} |"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.merging")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--segment-kib", type=int, default=512)
    parser.add_argument("--dir", type=Path, help="of all data; default: a temporary one")
    asyncio.run(_measure(parser.parse_args()))


if __name__ == "__main__":
    main()
