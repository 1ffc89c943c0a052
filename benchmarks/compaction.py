"""The cost of compacting one partition, beside Apache Kafka's log cleaner on the same records.

    python -m benchmarks.compaction [--records 10000000] [--keys 1000000] [--value-bytes 100]
        [--peers ours,kafka]

Ours: segments in a directory store, one run of the cleaner in this process.  Kafka's: one broker,
one pass of its cleaner (`kafka_cleaner`).  Keys are drawn at random; both maps have their default
memory (128 MiB, 5 million keys).  GiB are 2^30 bytes of uncompressed batches.  The files are in the
page cache.  Filling is not measured.

Shell.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from benchmarks import kafka_cleaner
from benchmarks.kafka_cleaner import Cleaning
from benchmarks.peers import KAFKA, OURS
from driftlog_agents.log.local.spool import spool_in
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.compaction.cleaner import Cleaned, Cleaner
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Manifest,
    ReplaceSegments,
    SegmentRef,
    empty_manifest,
)
from driftlog_tiering.formats.manifests import commit_edit, iter_segments
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import SegmentWriter
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from tests.support.kafka_peer import kafka_jars
from tests.support.process_usage import reset_peak, usage

GiB: Final = 1024**3
SEGMENT_BYTES: Final = 128 * 1024 * 1024
_BATCH_RECORDS: Final = 1_000
_TP: Final = TopicPartition(UUID(int=1), 0)


class Partition:
    """A partition in a directory store, and the bucket of its cleaner."""

    def __init__(self, root: Path) -> None:
        self._store = DirectoryObjectStore(root / "objects", fsync=False)
        self._spool = spool_in(root / "spool")
        self.manifest: Manifest = empty_manifest("bench", _TP)
        self._edits = 0
        self.received_bytes = 0

    async def fill(
        self, records: int, keys: int, value_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Seal *records* with random keys."""
        rng = random.Random(1)
        filler = random.Random(2).randbytes(value_bytes)
        at = 0
        while at < records:
            with (
                self._spool() as spool,
                SegmentWriter(
                    spool.file, topic="bench", topic_id=_TP.topic_id, partition=0, base=at
                ) as writer,
            ):
                base = at
                while at < records and writer.raw_bytes < segment_bytes:
                    writer.append(_batch(rng, at, min(_BATCH_RECORDS, records - at), keys, filler))
                    at = writer.next_offset
                info = writer.finish(at)
                key = layout.segment_key("bench", _TP, base, at, f"s{base}")
                await self._store.put(key, spool.body())
            ref = info.reference(key, info.raw_bytes)
            self.received_bytes += info.raw_bytes
            await self._edit(
                AddSegments(base=base, end=at, segments=(ref,), leader_epochs=(), producers=None)
            )

    @property
    def environment(self) -> RewriteEnvironment:
        """What a rewrite uses of this process."""
        return RewriteEnvironment(
            offload=asyncio.to_thread,
            spool=self._spool,
            nonce=lambda: f"c{time.monotonic_ns()}",
            now_ms=lambda: time.monotonic() * 1000,
        )

    async def segments(self) -> list[SegmentRef]:
        """What the manifest names."""
        return [ref async for ref in iter_segments(self._store, self.manifest)]

    async def clean(self) -> Cleaned:
        """One run over all of it."""
        segments = await self.segments()
        policy = CompactionPolicy()

        async def policy_now() -> CompactionPolicy:
            return policy

        cleaner = Cleaner(self, self.environment, seed=bytes(16))
        end = self.manifest.end
        return await cleaner.clean(self.manifest, segments, end, policy, policy_now)

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """As `Bucket.get`."""
        return await self._store.get(key, start, end)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """As `Bucket.put`."""
        await self._store.put(key, body)

    async def store_now_ms(self) -> int:
        """As `Bucket.store_now_ms`."""
        return int(time.time() * 1000)

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """As `Bucket.decode`: nothing else is decoded."""
        return await asyncio.to_thread(work, *args)

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        """As `Bucket.commit`."""
        await self._edit(edit)

    async def _edit(self, edit: AddSegments | ReplaceSegments) -> None:
        now_ms = int(time.monotonic() * 1000)
        self._edits += 1
        self.manifest = await commit_edit(
            self._store,
            self.manifest,
            edit,
            f"e{self._edits}",
            author=Cluster("bench"),
            read_at_ms=now_ms,
            deadline_ms=now_ms + 30_000,
            now_ms=lambda: int(time.monotonic() * 1000),
        )


def _batch(rng: random.Random, base: int, count: int, keys: int, filler: bytes) -> bytearray:
    section = b"".join(
        encode_record(Record(0, i, b"key-%012d" % rng.randrange(keys), filler, ()))
        for i in range(count)
    )
    return build_batch(
        section,
        base_offset=base,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=0,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        leader_epoch=0,
    )


async def _ours(options: argparse.Namespace) -> Cleaning:
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        partition = Partition(Path(folder))
        await partition.fill(options.records, options.keys, options.value_bytes)
        reset_peak(os.getpid())
        before, began_s = usage(os.getpid()), time.monotonic()
        cleaned = await partition.clean()
        took_s, after = time.monotonic() - began_s, usage(os.getpid())
        return Cleaning(
            records=cleaned.records_read,
            left=cleaned.records_kept,
            log_bytes=partition.received_bytes,
            seconds=took_s,
            cpu_s=after.cpu_seconds - before.cpu_seconds,
            rss_before_bytes=before.rss_bytes,
            rss_peak_bytes=after.peak_rss_bytes,
        )


def _row(name: str, done: Cleaning) -> dict[str, str]:
    return {
        "": name,
        "records": f"{done.records:,}",
        "left": f"{done.left:,}",
        "GiB": f"{done.log_bytes / GiB:.2f}",
        "MB/s": f"{_mb_per_s(done):.0f}",
        "CPU s/GiB": f"{_cpu_s_per_gib(done):.2f}",
        "RSS before, MiB": f"{done.rss_before_bytes >> 20}",
        "RSS peak, MiB": f"{done.rss_peak_bytes >> 20}",
    }


def _mb_per_s(done: Cleaning) -> float:
    return done.log_bytes / done.seconds / 1e6


def _cpu_s_per_gib(done: Cleaning) -> float:
    return done.cpu_s / (done.log_bytes / GiB)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.compaction")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--dir", type=Path, help="of all data; default: a temporary one")
    parser.add_argument("--peers", default=f"{OURS},{KAFKA}")
    options = parser.parse_args()
    done: dict[str, Cleaning] = {}
    if OURS in options.peers:
        done[OURS] = asyncio.run(_ours(options))
    if KAFKA in options.peers and kafka_jars() is not None:
        volume = options.records, options.keys, options.value_bytes
        done[KAFKA] = kafka_cleaner.measure(*volume, options.dir)
    rows = [_row(name, found) for name, found in done.items()]
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(row.values())} |")
    if len(done) == 2:
        speed = _mb_per_s(done[OURS]) / _mb_per_s(done[KAFKA])
        cpu = _cpu_s_per_gib(done[OURS]) / _cpu_s_per_gib(done[KAFKA])
        print(f"ours / Kafka's: {speed:.2f} x MB/s, {cpu:.2f} x CPU")


if __name__ == "__main__":
    main()
