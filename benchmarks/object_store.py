"""What objects cost: 8 MiB puts and ranged gets, on a directory and on moto's server.

    python -m benchmarks.object_store [--mib 512] [--dir DIR] [--concurrency 4]

CPU is this process's own, all its threads; moto's is not in it, but shares the cores, so
that MB/s on moto is moto's.  "write + fdatasync" is the directory's limit: the same bytes
into files, in as many threads, and nothing else.  Bytes are random; reads come from the page
cache.
Root.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from driftlog_tiering.locations import open_object_store
from driftlog_tiering.object_store import ObjectStore
from tests.support.s3_servers import fresh_bucket, running

MIB = 1 << 20
GIB = 1 << 30
OBJECT_BYTES = 8 * MIB
BATCH_BYTES = 64 << 10
"""Of the buffers of a put: a flush object is made of record batches."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of the table."""

    what: str
    total_bytes: int
    requests: int
    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        mb_per_second = self.total_bytes / self.seconds / 1e6
        cpu_per_gib = self.cpu_seconds / (self.total_bytes / GIB)
        cpu_us = self.cpu_seconds / self.requests * 1e6
        return f"{self.what:<44} {mb_per_second:>8.0f} {cpu_per_gib:>12.2f} {cpu_us:>14.0f}"


async def measured(
    what: str, calls: Sequence[Callable[[], Awaitable[object]]], each_bytes: int, concurrency: int
) -> None:
    """Run the calls, *concurrency* at once, and print their row."""
    waiting = iter(calls)

    async def worker() -> None:
        for call in waiting:
            await call()

    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(concurrency)])
    seconds = time.perf_counter() - seconds
    cpu_seconds = time.process_time() - cpu_seconds
    print(Cost(what, len(calls) * each_bytes, len(calls), seconds, cpu_seconds), flush=True)


async def measure_store(
    name: str, store: ObjectStore, body: list[memoryview], mib: int, concurrency: int
) -> None:
    """Puts, gets of whole objects, of 1 MiB and of 64 KiB; then everything is deleted."""
    run = uuid.uuid4().hex
    keys = [f"{run}/{i:06d}" for i in range(mib * MIB // OBJECT_BYTES)]
    await store.put(f"{run}/warm", [b"x"])
    puts = [lambda key=key: store.put(key, body) for key in keys]
    await measured(f"{name}: put 8 MiB", puts, OBJECT_BYTES, concurrency)
    for size in (OBJECT_BYTES, MIB, 64 << 10):
        count = min(mib * MIB // size, 1000)
        places = [(keys[i % len(keys)], (i // len(keys)) % 8 * MIB) for i in range(count)]
        if size == OBJECT_BYTES:
            places = [(key, 0) for key, _ in places]
        gets = [lambda k=key, s=start, n=size: store.get(k, s, s + n) for key, start in places]
        label = f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB"
        await measured(f"{name}: get {label}", gets, size, concurrency)
    await store.delete([*keys, f"{run}/warm"])
    await store.close()


async def measure_disk(
    attempt: str, folder: Path, body: list[memoryview], mib: int, concurrency: int
) -> None:
    """The limit: the same writes, without names that matter."""
    sync = getattr(os, "fdatasync", os.fsync)

    def write(number: int) -> None:
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o644)
        os.writev(fd, body)
        sync(fd)
        os.close(fd)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(concurrency) as pool:
        writes = [
            lambda i=i: loop.run_in_executor(pool, write, i)
            for i in range(mib * MIB // OBJECT_BYTES)
        ]
        await measured(
            f"disk: write + fdatasync 8 MiB, {attempt}", writes, OBJECT_BYTES, concurrency
        )


async def main(mib: int, folder: Path, concurrency: int) -> None:
    """Print the table."""
    data = memoryview(os.urandom(OBJECT_BYTES))
    body = [data[i : i + BATCH_BYTES] for i in range(0, OBJECT_BYTES, BATCH_BYTES)]
    print(f"{'':<44} {'MB/s':>8} {'CPU s/GiB':>12} {'CPU µs/request':>14}")
    for attempt in ("first", "again"):  # The first pays for memory and blocks that are new.
        (folder / "raw").mkdir()
        await measure_disk(attempt, folder / "raw", body, mib, concurrency)
        shutil.rmtree(folder / "raw")
    directory = open_object_store(str(folder / "objects"))
    await measure_store("directory", directory, body, mib, concurrency)
    with running("moto", folder) as endpoint_url:
        server = fresh_bucket(endpoint_url)
        os.environ.update(server.environment)
        await measure_store(
            "moto", open_object_store(server.location), body, min(mib, 256), concurrency
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="written to each store")
    parser.add_argument("--dir", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--concurrency", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as temporary:
        asyncio.run(main(arguments.mib, Path(temporary), arguments.concurrency))
