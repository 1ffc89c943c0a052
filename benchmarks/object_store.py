"""The cost of objects: 8 MiB puts and ranged gets, on a directory and on moto's server.

    python -m benchmarks.object_store [--mib 512] [--dir DIR] [--concurrency 4]

CPU is this process's own, all its threads, without moto's; moto shares the cores, so that
its MB/s are moto's own limit.  Bytes are random; reads come from the page cache.

Puts into the directory are compared with the same bytes written and synced by as many
threads into plain files.  The two take turns, each first in every other round, and their
medians and extremes are printed: the same writev costs up to five times more CPU from one
run to the next (seen on a shared virtual machine, in both arms; the cause was not
established), so that one run after the other compares the runs.
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
from statistics import median

from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.s3_servers import fresh_bucket, running

MIB = 1 << 20
GIB = 1 << 30
OBJECT_BYTES = 8 * MIB
ROUNDS = 12
BATCH_BYTES = 64 << 10
"""Size of the buffers of a put: a flush object is made of record batches."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of the table."""

    what: str
    total_bytes: int
    requests: int
    seconds: float
    cpu_seconds: float

    @property
    def mb_per_second(self) -> float:
        return self.total_bytes / self.seconds / 1e6

    @property
    def cpu_seconds_per_gib(self) -> float:
        return self.cpu_seconds / (self.total_bytes / GIB)

    def __str__(self) -> str:
        cpu_us = self.cpu_seconds / self.requests * 1e6
        row = f"{self.what:<34} {self.mb_per_second:>8.0f} {self.cpu_seconds_per_gib:>12.2f}"
        return f"{row} {cpu_us:>14.0f}"


async def measured(
    what: str, calls: Sequence[Callable[[], Awaitable[object]]], each_bytes: int, concurrency: int
) -> Cost:
    """Run the calls, *concurrency* at once."""
    waiting = iter(calls)

    async def worker() -> None:
        for call in waiting:
            await call()

    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(concurrency)])
    seconds = time.perf_counter() - seconds
    cpu_seconds = time.process_time() - cpu_seconds
    return Cost(what, len(calls) * each_bytes, len(calls), seconds, cpu_seconds)


async def measure_store(
    name: str, store: ObjectStore, body: list[memoryview], mib: int, concurrency: int
) -> None:
    """Puts, gets of whole objects, of 1 MiB and of 64 KiB; then everything is deleted."""
    run = uuid.uuid4().hex
    keys = [f"{run}/{i:06d}" for i in range(mib * MIB // OBJECT_BYTES)]
    await store.put(f"{run}/warm", [b"x"])
    puts = [lambda key=key: store.put(key, body) for key in keys]
    put = await measured(f"{name}: put 8 MiB", puts, OBJECT_BYTES, concurrency)
    if name != "directory":  # measured above, in turns: one run says little
        print(put, flush=True)
    for size in (OBJECT_BYTES, MIB, 64 << 10):
        count = min(mib * MIB // size, 1000)
        places = [(keys[i % len(keys)], (i // len(keys)) % 8 * MIB) for i in range(count)]
        if size == OBJECT_BYTES:
            places = [(key, 0) for key, _ in places]
        gets = [lambda k=key, s=start, n=size: store.get(k, s, s + n) for key, start in places]
        label = f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB"
        print(await measured(f"{name}: get {label}", gets, size, concurrency), flush=True)
    await store.delete([*keys, f"{run}/warm"])
    await store.close()


async def measure_disk(folder: Path, body: list[memoryview], mib: int, concurrency: int) -> None:
    """Puts and plain writes in turns: the store's cost on top of the disk's."""
    sync = getattr(os, "fdatasync", os.fsync)
    loop = asyncio.get_running_loop()
    store = open_object_store(str(folder / "puts"))
    numbers = range(max(concurrency, mib * MIB // OBJECT_BYTES // ROUNDS))

    def write(path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.writev(fd, body)
        sync(fd)
        os.close(fd)

    async def plain() -> Cost:
        (folder / "raw").mkdir()
        paths = [folder / "raw" / str(i) for i in numbers]
        writes = [lambda p=path: loop.run_in_executor(pool, write, p) for path in paths]
        cost = await measured("plain write + fdatasync", writes, OBJECT_BYTES, concurrency)
        shutil.rmtree(folder / "raw")
        return cost

    async def puts() -> Cost:
        keys = [f"k/{i}" for i in numbers]
        calls = [lambda k=key: store.put(k, body) for key in keys]
        cost = await measured("directory put", calls, OBJECT_BYTES, concurrency)
        await store.delete(keys)
        return cost

    rounds: list[tuple[Cost, Cost]] = []
    with ThreadPoolExecutor(concurrency) as pool:
        for i in range(ROUNDS):
            if i % 2:
                put = await puts()
                rounds.append((await plain(), put))
            else:
                raw = await plain()
                rounds.append((raw, await puts()))
    await store.close()
    print(f"{ROUNDS} rounds in turns, 8 MiB, min / median / max")
    for costs in zip(*rounds, strict=True):
        speeds = _spread([cost.mb_per_second for cost in costs], 0)
        print(f"{costs[0].what:<34} {speeds} MB/s")
        print(f"{'':<34} {_spread([c.cpu_seconds_per_gib for c in costs], 2)} CPU s/GiB")
    ratios = [put.mb_per_second / raw.mb_per_second for raw, put in rounds]
    print(f"{'put ÷ plain, MB/s, by round':<34} {_spread(ratios, 2)}\n")


def _spread(values: list[float], digits: int) -> str:
    ends = (min(values), median(values), max(values))
    return " / ".join(f"{value:>6.{digits}f}" for value in ends)


async def main(mib: int, folder: Path, concurrency: int) -> None:
    """Print the table."""
    data = memoryview(os.urandom(OBJECT_BYTES))
    body = [data[i : i + BATCH_BYTES] for i in range(0, OBJECT_BYTES, BATCH_BYTES)]
    await measure_disk(folder, body, mib * 2, concurrency)
    print(f"{'':<34} {'MB/s':>8} {'CPU s/GiB':>12} {'CPU µs/request':>14}")
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
