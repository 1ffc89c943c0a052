"""An agent's worth of metadata store in a process of its own, for tests that hurt it.

write PATH     eight tasks count up for ever under guards; a line "{task} {count} {revision}"
               for each acknowledged step, until it is killed
hold PATH      open the store, say so, and wait for the end of stdin
fill PATH      fill the disk that PATH is on, and tell what the store says about it
break PATH     let a COMMIT fail to write, and tell what the store says from then on
"""

import asyncio
import resource
import signal
import sys
import time
from pathlib import Path

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Delete, ModRevisionIs, Put

TASKS = 8


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(*words: object) -> None:
    print(*words, flush=True)


async def write(path: Path) -> None:
    store = await SqliteMetadataStore.open(path, now_ms)
    say("open")

    async def count_up(task: int) -> None:
        key = f"/count/{task}"
        kv = await store.get(key)
        count, revision = (int(kv.value), kv.mod_revision) if kv else (0, 0)
        while True:
            count += 1
            step = [Put(key, b"%d" % count), Put(f"/step/{task}/{count:06d}", b"x" * 500)]
            result = await store.txn([ModRevisionIs(key, revision)], step)
            assert result.succeeded
            revision = result.revision
            say(task, count, revision)

    async with asyncio.TaskGroup() as tasks:
        for task in range(TASKS):
            tasks.create_task(count_up(task))


async def hold(path: Path) -> None:
    store = await SqliteMetadataStore.open(path, now_ms)
    say("open")
    await asyncio.to_thread(sys.stdin.read)
    await store.close()


async def fill(path: Path) -> None:
    store = await SqliteMetadataStore.open(path, now_ms)
    await store.txn([], [Put("/first", b"")])
    written = 0
    try:
        while True:
            await store.txn([], [Put(f"/fill/{written:06d}", b"x" * 20_000)])
            written += 1
    except UnavailableError as error:
        say("refused", "full" in str(error))
    _, kvs = await store.get_prefix("/fill/")
    say("kept", len(kvs) == written > 0)
    for freed in path.parent.glob("ballast*"):
        freed.unlink()
    say("goes on", (await store.txn([], [Put("/after", b""), Delete("/first")])).succeeded)
    await store.close()
    store = await SqliteMetadataStore.open(path, now_ms)
    revision, kvs = await store.get_prefix("/")
    say("reopened", (revision, len(kvs)) == (written + 3, written + 1))
    await store.close()


async def break_commit(path: Path) -> None:
    store = await SqliteMetadataStore.open(path, now_ms)
    before = await store.txn([], [Put("/before", b"")])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The log has its full size, and is written from its start: 50,000 bytes reach beyond this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
    try:
        await store.txn([], [Put("/unknown", b"x" * 50_000)])
    except OutcomeUnknownError:
        say("unknown")
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    try:
        await store.txn([], [Put("/after", b"")])
    except UnavailableError as error:
        say("in doubt", "in doubt" in str(error))
    await store.close()
    store = await SqliteMetadataStore.open(path, now_ms)
    after = await store.txn([], [Put("/after", b"")])
    say("reopened", after.revision - before.revision)
    await store.close()


if __name__ == "__main__":
    act = {"write": write, "hold": hold, "fill": fill, "break": break_commit}[sys.argv[1]]
    asyncio.run(act(Path(sys.argv[2])))
