"""What an agent leaves in etcd over time: flush records, keys, bytes.

    python -m benchmarks.bounded_metadata                  2 minutes, 1,000 partitions, 50 KiB/s
    python -m benchmarks.bounded_metadata --minutes 60     by hand: levels 1 and 2, and sealing
    python -m benchmarks.bounded_metadata --off            without consolidation, for comparison
    python -m benchmarks.bounded_metadata --minutes 60 --kib 51200 --batch 51200 --sweep
                                                           50 KiB/s for each partition

One agent in this process, on a real etcd and a directory.  Each batch is a request of its own,
spread over all partitions: with the 512 bytes of the first three commands 20 flushes/s, the most
that an agent makes for requests that wait.  etcd compacts every minute, as it should in production.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog

from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.process.composition.allocator import use_memory_again
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, ROOT, parse_flush_key, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import Put
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from tests.support import etcd_server
from tests.support.engine import RunningAgent

_UNNAMED_S: Final = 120.0
"""After this long an object that no record names is deleted: there is no consumer here."""
MiB: Final = 1024 * 1024
BOUND: Final = 2_000
"""design.md: one or two thousand flush records per agent."""


def make_batch(size: int) -> bytearray:
    """A batch of one record and about *size* bytes."""
    section = encode_record(Record(0, 0, None, bytes(size - 80), ()))
    now_ms = time.time_ns() // 1_000_000
    return build_batch(
        section,
        base_offset=0,
        last_offset_delta=0,
        record_count=1,
        attributes=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


async def produce(agent: RunningAgent, options: argparse.Namespace) -> None:
    """Produce at a steady rate until cancelled.  While the agent holds producers back, send nothing
    (its server then does not read from them), and do not make up for it later."""
    batch, partitions = make_batch(options.batch), options.partitions
    per_second = options.kib * 1024 / options.batch
    backpressure = agent.engine.ports.backpressure
    began, sent = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            due = int((time.monotonic() - began) * per_second)
            if backpressure.held:
                began += max(due - sent, 0) / per_second
            else:
                for n in range(sent, due):
                    tasks.create_task(agent.append("t", n % partitions, batch))
                sent = max(sent, due)
            await asyncio.sleep(0.02)


async def sweep(folder: Path, store: EtcdMetadataStore, *, on: bool) -> None:
    """Delete objects that no record names any more, to save disk: the collector waits 12 hours."""
    while on:
        await asyncio.sleep(_UNNAMED_S / 4)
        old = time.time() - _UNNAMED_S
        files = await asyncio.to_thread(
            lambda old: [p for p in folder.rglob("*.flush") if p.stat().st_mtime < old], old
        )
        _, records = await store.get_prefix(FLUSHES_PREFIX)
        named = b" ".join(kv.value for kv in records)
        gone = [file for file in files if file.name.encode() not in named]
        await asyncio.to_thread(_delete, gone)


def _delete(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def _resident_mib() -> float:
    """Resident memory of this process, without etcd."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MiB


async def report(agent: RunningAgent, store: EtcdMetadataStore, began: float) -> int:
    """Print a line; returns the number of flush records."""
    _, flushes = await store.get_prefix(FLUSHES_PREFIX)
    _, everything = await store.get_prefix(ROOT)
    levels = Counter(parse_flush_key(kv.key).level for kv in flushes)
    status = await store.status()
    gc, committed = agent.engine.flush_records, agent.engine.flusher.pipeline.committed_seq
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{time.monotonic() - began:6.0f} s  {committed:8,} flushes  {len(flushes):6,} records "
        f"{dict(sorted(levels.items()))!s:24} {len(everything):7,} keys  "
        f"etcd {status.db_size_bytes / 1e6:6.1f} MB ({status.db_size_in_use_bytes / 1e6:5.1f} in "
        f"use)  rewritten {gc.rewritten_bytes / 1e6:7.1f} of "
        f"{agent.engine.counters.committed_bytes / 1e6:7.1f} MB in {gc.rewrites:4}  "
        f"rss {_resident_mib():4.0f} MiB, at most {peak:4.0f}",
        flush=True,
    )
    return len(flushes)


async def run(options: argparse.Namespace, folder: Path) -> int:
    """Measure; returns the largest number of flush records that was seen."""
    settings = ConsolidationSettings()
    if options.off:
        settings = ConsolidationSettings(
            age_ms=1e15, records=10**9, large_records=10**9, waiting_records=10**9
        )
    most = 0
    (folder / "etcd").mkdir()
    with etcd_server.start(etcd_server.VERSIONS[-1], folder / "etcd", members=1) as etcd:
        store = EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints))
        topic = Topic(name="t", topic_id=uuid4(), partitions=options.partitions)
        await store.txn((), [Put(topic_key("t"), encode_topic(topic))])
        async with RunningAgent(
            folder / "agent",
            engine=EngineSettings(consolidation=settings, seal=SealSettings()),
            metadata=lambda _: store,
        ) as agent:
            while any(log is None for log in agent.engine.topics["t"].logs):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            began = time.monotonic()
            producing = asyncio.create_task(produce(agent, options))
            sweeping = asyncio.create_task(sweep(folder / "agent", store, on=options.sweep))
            compacted = began
            while (now := time.monotonic()) - began < options.minutes * 60:
                await asyncio.sleep(min(options.every, began + options.minutes * 60 - now))
                most = max(most, await report(agent, store, began))
                if time.monotonic() - compacted > 60:
                    compacted = time.monotonic()
                    etcd.compact((await store.status()).revision)
            for task in (producing, sweeping):
                task.cancel()
            await asyncio.wait([producing, sweeping])
        await store.close()
    return most


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--kib", type=float, default=50.0, help="a second, of all partitions")
    parser.add_argument("--batch", type=int, default=512, help="bytes of a request")
    parser.add_argument("--sweep", action="store_true", help="delete objects that nobody names")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two lines")
    parser.add_argument("--off", action="store_true", help="without consolidation")
    options = parser.parse_args()
    if not etcd_server.VERSIONS:
        sys.exit(etcd_server.NO_ETCD)
    use_memory_again()  # as an agent's process does
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        most = asyncio.run(run(options, Path(folder)))
    print(f"at most {most:,} flush records; {BOUND:,} are what an agent may leave")
    sys.exit(most > BOUND and not options.off)


if __name__ == "__main__":
    main()
