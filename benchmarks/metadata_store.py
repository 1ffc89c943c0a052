"""The cost of a metadata store: latency, throughput, and a claim of 10,000 partitions.

    python -m benchmarks.metadata_store [--directory DIR] [--seconds 3] [--etcd URL[,URL]]

Prints, on the disk of DIR (a fresh directory below it), or of the etcd at URL, which must have
no key below ``/driftlog/v1/`` and has none afterwards:

* fsync, not for etcd: p50/p99 of appending 4 KiB to a file and syncing it, the floor of commits;
* put: p50/p99 and transactions/s of unguarded puts of 100 bytes, at 1 and at 64 in flight;
* commit: p50/p99 and transactions/s of the guarded commit of a flush (session's revision and head
  compared, head and flush record put), at 1 and at 64 in flight, each on a session of its own;
* claim: every partition's leader and state compared and put, 128 operations a transaction, all
  sent at once; then reading all of them back at one revision, and opening the file again.

The latency of a commit at 1 in flight is etcd's part of a produce request's.

Shell.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import UUID

from driftlog_metadata.schema import codec, keys
from driftlog_metadata.schema.model import FlushRecord, Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import (
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    DeletePrefix,
    MetadataStore,
    ModRevisionIs,
    Operation,
    Put,
    ValueIs,
)

SESSION_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
TOPIC_ID = UUID(int=7)
PARTITIONS = 10_000
FSYNCS = 500


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def percentiles(latencies_s: list[float]) -> str:
    """``p50 p99`` in milliseconds."""
    ordered = sorted(latencies_s)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:6.2f} ms   p99 {p99:6.2f} ms"


def measure_fsync(directory: Path) -> str:
    """The floor: append and sync, without SQLite."""
    latencies_s = []
    fd = os.open(directory / "fsync", os.O_WRONLY | os.O_CREAT)
    for _ in range(FSYNCS):
        start = time.perf_counter()
        os.write(fd, bytes(4096))
        os.fdatasync(fd)
        latencies_s.append(time.perf_counter() - start)
    os.close(fd)
    return percentiles(latencies_s)


async def put_values(
    store: MetadataStore, session_id: str, until: float, latencies_s: list[float]
) -> None:
    """Write one key of a session again and again."""
    key = keys.head_key(session_id)
    while time.perf_counter() < until:
        start = time.perf_counter()
        await store.txn([], [Put(key, bytes(100))])
        latencies_s.append(time.perf_counter() - start)


async def commit_flushes(
    store: MetadataStore, session_id: str, until: float, latencies_s: list[float]
) -> None:
    """Make one session's commits, one at a time, as an agent does."""
    session, head = keys.session_key(session_id), keys.head_key(session_id)
    created = await store.txn([], [Put(session, b""), Put(head, codec.encode_head(0))])
    seq = 0
    while time.perf_counter() < until:
        seq += 1
        record = FlushRecord(
            object_key=f"flush/{session_id}/{seq:020d}-0123456789abcdef.flush",
            size_bytes=8_388_608,
            footer_start=8_380_000,
        )
        start = time.perf_counter()
        result = await store.txn(
            [
                CreateRevisionIs(session, created.revision),
                ValueIs(head, codec.encode_head(seq - 1)),
            ],
            [
                Put(head, codec.encode_head(seq)),
                Put(keys.flush_key(session_id, seq), codec.encode_flush_record(record)),
            ],
        )
        latencies_s.append(time.perf_counter() - start)
        assert result.succeeded


Work = Callable[[MetadataStore, str, float, list[float]], Coroutine[None, None, None]]


async def measure(store: MetadataStore, work: Work, in_flight: int, seconds: float) -> str:
    """Run *work* in *in_flight* sessions at once; returns a line of figures."""
    latencies_s: list[float] = []
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(in_flight):
            session_id = f"{SESSION_ID[:-4]}{in_flight:02d}{number:02d}"
            tasks.create_task(work(store, session_id, start + seconds, latencies_s))
    rate = len(latencies_s) / (time.perf_counter() - start)
    return f"{percentiles(latencies_s)}   {rate:8,.0f} txns/s"


async def measure_claims(store: MetadataStore) -> str:
    """Claim every partition: two compares and two puts each."""
    leader = codec.encode_leader(Leader(SESSION_ID, 1))
    state = codec.encode_partition_state(PartitionState(sessions=(SESSION_ID,)))
    per_txn = MAX_TXN_OPS // 2
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for first in range(0, PARTITIONS, per_txn):
            compares: list[Compare] = []
            puts: list[Operation] = []
            for partition in range(first, min(first + per_txn, PARTITIONS)):
                tp = TopicPartition(TOPIC_ID, partition)
                compares += [
                    ModRevisionIs(keys.leader_key(tp), 0),
                    ModRevisionIs(keys.partition_key(tp), 0),
                ]
                puts += [Put(keys.leader_key(tp), leader), Put(keys.partition_key(tp), state)]
            tasks.create_task(store.txn(compares, puts))
    return f"{time.perf_counter() - start:.2f} s"


async def measure_all(store: MetadataStore, seconds: float) -> int:
    """Take the figures of every store; returns how many keys they left."""
    for in_flight in (1, 64):
        line = await measure(store, put_values, in_flight, seconds)
        print(f"put,    {in_flight:2} at once {line}")
    await store.txn([], [DeletePrefix(keys.HEADS_PREFIX)])
    for in_flight in (1, 64):
        line = await measure(store, commit_flushes, in_flight, seconds)
        print(f"commit, {in_flight:2} at once {line}")
    print(f"claim of {PARTITIONS:,} partitions   {await measure_claims(store)}")
    start = time.perf_counter()
    _, kvs = await store.get_prefix(keys.ROOT + "/")
    print(f"read of {len(kvs):,} keys   {time.perf_counter() - start:.2f} s")
    return len(kvs)


async def run(directory: Path, seconds: float) -> None:
    """Measure the embedded store and print."""
    print(f"fsync              {measure_fsync(directory)}")
    path = directory / "metadata.db"
    store = await SqliteMetadataStore.open(path, now_ms)
    count = await measure_all(store, seconds)
    await store.close()
    start = time.perf_counter()
    store = await SqliteMetadataStore.open(path, now_ms)
    print(
        f"open with {count:,} keys, {path.stat().st_size / 2**20:.0f} MiB   "
        f"{time.perf_counter() - start:.2f} s"
    )
    await store.close()


async def run_etcd(endpoints: tuple[str, ...], seconds: float) -> None:
    """Measure an etcd and print."""
    store = EtcdMetadataStore(EtcdSettings(endpoints=endpoints))
    try:
        status = await store.status()
        print(f"etcd {status.version} at {status.endpoint}, {len(endpoints)} endpoint(s)")
        if (await store.get_prefix(keys.ROOT + "/"))[1]:
            sys.exit(f"there is a driftlog in this etcd ({keys.ROOT}/): measure another one")
        await measure_all(store, seconds)
        await store.txn([], [DeletePrefix(keys.ROOT + "/")])
    finally:
        await store.close()


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each commit measurement")
    parser.add_argument("--etcd", default=None, help="endpoints of an etcd to measure")
    arguments = parser.parse_args()
    if arguments.etcd is not None:
        asyncio.run(run_etcd(tuple(arguments.etcd.split(",")), arguments.seconds))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        asyncio.run(run(Path(directory), arguments.seconds))


if __name__ == "__main__":
    main()
