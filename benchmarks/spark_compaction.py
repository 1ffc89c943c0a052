"""Compaction by Spark beside that of an agent, of the same partitions.

    python -m benchmarks.spark_compaction [--mib 1024] [--files 1000] [--partitions 8] [--runs 3]

A topic in a directory: partitions of small files, with random keys.  Each turn compacts a copy of
it: the cleaner of one agent takes the partitions one after another, in one thread, as that of
upkeep; `compact_topics` on ``local[2]`` takes two at once.  The session runs before, and the first
turn is not counted; the time of both is printed apart, for a job that is submitted for one
compaction.  Medians of wall time, and of CPU time per GiB of uncompressed batches (goal: 0.6 times
the wall time on two cores).  The files are in the page cache.

Shell.
"""

import argparse
import asyncio
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.compaction import GiB
from benchmarks.spark import spark_session
from benchmarks.spark_import import cpu_s
from driftlog_agents.log.local.spool import spool_in
from driftlog_metadata.schema.grace import Grace
from driftlog_spark_reader import compact_topics
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.sealed_topics import SealedTopic

MiB: Final = 1024 * 1024
TOPIC: Final = "bench"
_VALUE_BYTES: Final = 200
_RECORD_BYTES: Final = _VALUE_BYTES + 26
_BATCH_RECORDS: Final = 500
_DIRTY: Final = CompactionPolicy(min_dirty_ratio=0)


def fill(folder: Path, mib: int, files: int, partitions: int) -> tuple[SealedTopic, int]:
    """The topic, and the bytes of its batches."""
    topic = SealedTopic(
        str(folder), TOPIC, partitions=partitions, configs={"cleanup.policy": "compact"}
    ).create()
    rng = random.Random(1)
    records = max(1, mib * MiB // files // _RECORD_BYTES)
    keys = max(1, records * files // partitions // 4)
    size = 0
    for partition in range(partitions):
        base = 0
        for _ in range(files // partitions):
            batches = [
                _batch(rng, at, min(_BATCH_RECORDS, base + records - at), keys)
                for at in range(base, base + records, _BATCH_RECORDS)
            ]
            size += sum(map(len, batches))
            topic.seal_batches(partition, base, [(base + records, batches)])
            base += records
    return topic, size


def _batch(rng: random.Random, base: int, records: int, keys: int) -> bytearray:
    text = rng.randbytes(_VALUE_BYTES // 4).hex().encode() * 2  # zstd makes a quarter of it
    section = b"".join(
        encode_record(Record(0, i, b"key-%012d" % rng.randrange(keys), text, ()))
        for i in range(records)
    )
    return build_batch(
        section,
        base_offset=base,
        last_offset_delta=records - 1,
        record_count=records,
        attributes=0,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        leader_epoch=0,
    )


def copy_of(made: Path, folder: Path) -> Path:
    """Another bucket of the same files: compaction changes none of them."""
    for path in made.rglob("*"):
        target = folder / path.relative_to(made)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    return folder


def by_agent(topic: SealedTopic, location: Path, spool: Path) -> None:
    """One partition after another, in this process."""
    here = SealedTopic(str(location), TOPIC, partitions=topic.partitions, topic_id=topic.topic_id)

    async def always_dirty() -> CompactionPolicy:
        return _DIRTY

    async def upkeep(work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

    async def main(store: ObjectStore) -> None:
        environment = RewriteEnvironment(
            offload=upkeep,
            spool=spool_in(spool),
            nonce=lambda: secrets.token_hex(8),
            now_ms=lambda: time.monotonic() * 1000,
        )
        for number in range(topic.partitions):
            partition = SealedPartition(
                store, TOPIC, here.tp(number), (topic.cluster, Grace()), environment, "agent"
            )
            report = await compact_one(
                partition,
                RewriteReport(topic=TOPIC, partition=number),
                always_dirty,
                settings=CleanerSettings(),
                new_seed=lambda: secrets.token_bytes(16),
            )
            assert report.outcome is Outcome.DONE, report

    with ThreadPoolExecutor(1) as thread:
        here.with_store(main)


def by_spark(spark: SparkSession, location: Path) -> None:
    """One task for each partition."""
    found = compact_topics(spark, str(location), TOPIC, min_dirty_ratio=0)
    assert {each.outcome for each in found.partitions} == {Outcome.DONE}, found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-compaction-") as name:
        folder = Path(name)
        topic, size = fill(folder / "made", options.mib, options.files, options.partitions)
        began_s = time.perf_counter()
        with spark_session(folder) as spark:
            started_s = time.perf_counter() - began_s
            measure(spark, folder, topic, size, options.runs)
            print(f"start of the session: {started_s:.2f} s")


def measure(spark: SparkSession, folder: Path, topic: SealedTopic, size: int, runs: int) -> None:
    """Print the medians of both sides, and their ratio."""
    number = count()

    def used_s() -> float:
        return cpu_s(0) + sum(os.times()[:2])

    sides: dict[str, Callable[[Path], None]] = {
        "agent": lambda location: by_agent(topic, location, folder / "spool"),
        "Spark": lambda location: by_spark(spark, location),
    }
    walls: dict[str, list[float]] = {name: [] for name in sides}
    cpus: dict[str, list[float]] = {name: [] for name in sides}
    first_s: dict[str, float] = {}
    for turn in range(runs + 1):
        for name in sides if turn % 2 else reversed(sides):
            side = sides[name]
            location = copy_of(folder / "made", folder / f"copy-{next(number)}")
            began_s, before_s = time.perf_counter(), used_s()
            side(location)
            wall_s = time.perf_counter() - began_s
            if turn:
                walls[name].append(wall_s)
                cpus[name].append((used_s() - before_s) / (size / GiB))
            else:
                first_s[name] = wall_s
    print(f"{size / GiB:.2f} GiB of batches in {topic.partitions} partitions")
    for name in sides:
        wall, cpu = median(walls[name]), median(cpus[name])
        print(
            f"{name:6} {wall:7.2f} s, {size / wall / 1e6:6.0f} MB/s, {cpu:6.2f} CPU s/GiB; "
            f"first turn {first_s[name]:.2f} s"
        )
    print(f"Spark / agent: {median(walls['Spark']) / median(walls['agent']):.2f} x wall time")


if __name__ == "__main__":
    main()
