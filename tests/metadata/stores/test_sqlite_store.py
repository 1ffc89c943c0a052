"""The embedded store survives crashes, refuses a second opener, and explains its errors."""

import asyncio
import itertools
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftlog_metadata.stores import sqlite_store
from driftlog_metadata.stores.errors import CorruptError, UnavailableError, UnsupportedFormatError
from driftlog_metadata.stores.sqlite_database import (
    RESERVE_BYTES,
    Change,
    Database,
    StoreLockedError,
)
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import (
    CompactedError,
    Delete,
    DeleteEvent,
    DeletePrefix,
    KeyValue,
    LeaseNotFoundError,
    Put,
    PutEvent,
)

CHILD = Path(__file__).with_name("sqlite_child.py")
NOW_MS = 1_700_000_000_000


def stopped_clock() -> int:
    """A time at which no lease ends."""
    return NOW_MS


def wall_clock() -> int:
    """The machine's time."""
    return time.time_ns() // 1_000_000


def child(act: str, path: Path) -> "subprocess.Popen[str]":
    """Start `sqlite_child`."""
    return subprocess.Popen(
        [sys.executable, CHILD, act, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is to be."""
    return tmp_path / "metadata.db"


# ── Crashes ──


async def test_kill_9_loses_nothing_that_was_acknowledged(path: Path) -> None:
    """
    A process that counts up is killed at six moments, on one file: each count it told is there
    with its step, at most one step more per task, and revisions never go back.
    """
    moments = random.Random(3)
    told: dict[int, int] = {}
    told_revision = 0
    for _ in range(6):
        writer = child("write", path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        lines = [writer.stdout.readline() for _ in range(moments.randrange(400))]
        writer.kill()
        lines += writer.stdout.readlines()
        writer.wait()
        kept_before = told.copy()
        for line in lines:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a word
            task, count, revision = map(int, line.split())
            told[task] = count
            told_revision = max(told_revision, revision)

        store = await SqliteMetadataStore.open(path, stopped_clock)
        revision, counts = await store.get_prefix("/count/")
        _, steps = await store.get_prefix("/step/")
        await store.close()

        kept = {int(kv.key.rpartition("/")[2]): int(kv.value) for kv in counts}
        for task, count in kept.items():
            assert kept_before.get(task, 0) <= told.get(task, 0) <= count <= told.get(task, 0) + 1
        assert kept.keys() >= told.keys()
        told = kept
        assert told_revision <= revision
        assert len(steps) == sum(kept.values())
        assert [kv.mod_revision for kv in steps] == [kv.create_revision for kv in steps]
        assert len({kv.mod_revision for kv in steps}) == len(steps)


async def test_a_killed_creation_leaves_nothing_in_the_way(path: Path) -> None:
    """
    A file that another process had begun and SQLite not yet filled is made again.
    """
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()

    store = await SqliteMetadataStore.open(path, stopped_clock)

    assert (await store.txn([], [Put("/a", b"")])).revision == 2
    await store.close()


async def test_the_file_keeps_everything_but_history(path: Path) -> None:
    """
    Keys, revisions and leases are as they were; a watch of what was before is refused.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.grant_lease(7, 1_000)
    await store.txn([], [Put("/a", b"1", 7), Put("/b", b"2")])
    await store.txn([], [Put("/b", b"3")])
    before = await store.get_prefix("/")
    await store.close()

    store = await SqliteMetadataStore.open(path, stopped_clock)

    assert before == await store.get_prefix("/")
    with pytest.raises(CompactedError):
        await anext(store.watch("/", before[0]))
    watch = store.watch("/", before[0] + 1)
    await store.revoke_lease(7)
    assert [DeleteEvent("/a", before[0] + 1)] == await anext(watch)
    await store.close()


async def test_a_lease_that_ended_while_nobody_ran_is_gone(path: Path) -> None:
    """
    The wall clock decides, not how long a process lived.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.grant_lease(7, 1_000)
    await store.txn([], [Put("/a", b"", 7)])
    await store.close()

    store = await SqliteMetadataStore.open(path, lambda: NOW_MS + 1_000)

    assert await store.get("/a") is None
    with pytest.raises(LeaseNotFoundError):
        await store.keep_alive(7)
    await store.close()


async def test_a_clock_that_went_back_does_not_prolong_a_lease(path: Path) -> None:
    """
    After a restart with the clock a day behind, it ends one time to live after the start.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.grant_lease(7, 1_000)
    await store.txn([], [Put("/a", b"", 7)])
    await store.close()
    now_ms = NOW_MS - 86_400_000
    store = await SqliteMetadataStore.open(path, lambda: now_ms)

    now_ms += 999
    assert await store.get("/a") is not None
    now_ms += 1
    assert await store.get("/a") is None
    await store.close()


async def test_leases_end_by_themselves(path: Path) -> None:
    """
    Nobody calls anything, and the watch still tells that the key went.
    """
    store = await SqliteMetadataStore.open(path, wall_clock)
    await store.grant_lease(7, 2_000)
    revision = (await store.txn([], [Put("/a", b"", 7)])).revision
    watch = store.watch("/a", revision + 1)

    async with asyncio.timeout(30):
        assert [DeleteEvent("/a", revision + 1)] == await anext(watch)
    await store.close()


# ── One agent for a directory ──


async def test_a_second_agent_is_refused_with_the_reason(path: Path) -> None:
    """
    The error names the directory and the process that runs on it; when that ends, the next
    one gets in.
    """
    holder = child("hold", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"

    with pytest.raises(StoreLockedError, match=f"process {holder.pid}.* runs on {path.parent}"):
        await SqliteMetadataStore.open(path, stopped_clock)

    holder.kill()
    holder.wait()
    holder.stdout.close()
    store = await SqliteMetadataStore.open(path, stopped_clock)
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        await SqliteMetadataStore.open(path, stopped_clock)
    await store.close()


async def test_a_database_that_somebody_has_locked_is_unavailable(path: Path) -> None:
    """
    Whoever holds a transaction with the sqlite3 command delays writers; nothing happened.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.txn([], [Put("/a", b"")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(UnavailableError, match=r"another process has locked"):
        await store.txn([], [Put("/b", b"")])
    assert [kv.key for kv in (await store.get_prefix("/"))[1]] == ["/a"]

    other.execute("ROLLBACK")
    other.close()
    assert (await store.txn([], [Put("/b", b"")])).revision == 3
    await store.close()


# ── Bad files ──


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(100_000))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 8192 * 4096)


def overwritten_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xa5" * 4096)


def another_database(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE kv (key, value)")
    connection.close()


@pytest.mark.parametrize("damage", [garbage, cut_in_half, overwritten_page, another_database])
async def test_a_bad_file_is_refused_by_name(path: Path, damage: Callable[[Path], None]) -> None:
    """
    CorruptError with the file's name; and the lock is free again.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.txn([], [Put(f"/{n}", b"x" * 1_000) for n in range(100)])
    await store.close()
    damage(path)

    for _ in range(2):
        with pytest.raises(CorruptError, match=str(path)):
            await SqliteMetadataStore.open(path, stopped_clock)


async def test_a_newer_file_is_refused_as_newer(path: Path) -> None:
    """
    It is not damaged: this driftlog is too old for it.
    """
    await (await SqliteMetadataStore.open(path, stopped_clock)).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()

    with pytest.raises(UnsupportedFormatError, match=r"version 2.*up to 1"):
        await SqliteMetadataStore.open(path, stopped_clock)


async def test_a_directory_that_is_not_there_is_unavailable(path: Path) -> None:
    """
    The message names the path.
    """
    with pytest.raises(UnavailableError, match=r"no-such-directory"):
        await SqliteMetadataStore.open(path.parent / "no-such-directory" / path.name, stopped_clock)


# ── Files that were removed ──


async def test_what_is_committed_is_saved_when_the_directory_is_gone(tmp_path: Path) -> None:
    """
    `rm -r` of all that the agent has: the copy makes the directory again, for its user alone, and
    the store goes on until then, also when it looks for its reserve.
    """
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    store = await SqliteMetadataStore.open(directory / "metadata.db", stopped_clock, reserve_s=0.0)
    await store.txn([], [Put("/before", b"1")])
    shutil.rmtree(tmp_path / "a")
    filler = b"x" * 100_000
    for n in range(40):  # more than half of the reserve
        await store.txn([], [Put(f"/behind/{n}", filler)])

    assert store.removed() == str(directory / "metadata.db")
    await store.save_copy(directory / "rescued")
    await store.close()

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    again = await SqliteMetadataStore.open(directory / "rescued", stopped_clock)
    _, kept = await again.get_prefix("/")
    await again.close()
    assert ["/before", *sorted(f"/behind/{n}" for n in range(40))] == [kv.key for kv in kept]


async def test_numbers_of_files_that_change_are_not_taken_for_files_that_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Some mounts (FUSE, 9p, SMB) give a file another number each time it is looked at: there only
    what has no name any more is removed.
    """
    numbers = itertools.count()
    monkeypatch.setattr(sqlite_store, "_identity", lambda _: (1, next(numbers)))
    store = await SqliteMetadataStore.open(path, stopped_clock)
    await store.txn([], [Put("/a", b"")])

    assert store.removed() is None
    path.unlink()
    assert str(path) == store.removed()
    await store.close()


# ── Space ──


async def test_nobody_waits_for_the_reserve_to_be_filled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who was committed is answered before 4 MiB are written and synced for those to come.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock, reserve_s=0.0)
    fill, begun, go_on = Database.fill_reserve, threading.Event(), threading.Event()

    def slow(database: Database, *, always: bool) -> None:
        begun.set()
        go_on.wait(60)
        fill(database, always=always)

    monkeypatch.setattr(Database, "fill_reserve", slow)
    try:
        async with asyncio.timeout(30):
            result = await store.txn([], [Put("/a", b"")])
        assert await asyncio.to_thread(begun.wait, 30)
    finally:
        go_on.set()

    assert result.succeeded
    await store.close()


async def test_a_full_store_refuses_puts_and_lets_deletes_through(path: Path) -> None:
    """
    At its limit a put is refused and leaves no trace; what is deleted makes room again.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock, max_bytes=256 * 1024)
    written = 0
    refusal = ""
    while not refusal:
        try:
            await store.txn([], [Put(f"/k/{written}", b"x" * 20_000), Put("/count", b"")])
            written += 1
        except UnavailableError as error:
            refusal = str(error)

    assert "full" in refusal
    revision, kvs = await store.get_prefix("/k/")
    assert (written + 1, written) == (revision, len(kvs))
    assert 5 < written < 13

    assert (await store.txn([], [DeletePrefix("/k/")])).revision == revision + 1
    assert (await store.txn([], [Put("/k/again", b"x" * 20_000)])).succeeded
    await store.close()


async def test_the_file_does_not_grow_with_history(path: Path) -> None:
    """
    Ten times as many overwrites of the same keys take the same space.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock, history_events=100)

    async def overwrite(times: int) -> int:
        for start in range(0, times, 500):
            puts = (
                store.txn([], [Put(f"/{n % 50}", b"%d" % n * 100)])
                for n in range(start, start + 500)
            )
            await asyncio.gather(*puts)
        return sum(file.stat().st_size for file in path.parent.iterdir())

    once = await overwrite(2_000)
    again = await overwrite(20_000)

    assert again <= once + 4 * 1024 * 1024  # the write-ahead log before its checkpoint
    await store.close()
    assert path.stat().st_size < RESERVE_BYTES + 200_000


async def test_a_watch_resumes_within_the_history_that_is_kept(path: Path) -> None:
    """
    The last hundred events are there, the one before them is not.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock, history_events=100)
    for n in range(150):
        revision = (await store.txn([], [Put("/k", b"%d" % n)])).revision

    watch = store.watch("/k", revision - 99)
    assert 100 == len([await anext(watch) for _ in range(100)])
    with pytest.raises(CompactedError):
        await anext(store.watch("/k", revision - 100))
    await store.close()


async def test_the_history_is_bounded_in_bytes(path: Path) -> None:
    """
    Events hold whole values: 10,000 of a page of a large group would be 10 GB of the agent's
    memory, for as many heartbeats of 42 bytes.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    value = b"x" * 1024 * 1024
    revisions = [(await store.txn([], [Put("/k", value)])).revision for _ in range(33)]

    assert 1 == len(await anext(store.watch("/k", revisions[2])))
    with pytest.raises(CompactedError):
        await anext(store.watch("/k", revisions[0]))
    await store.close()


async def test_a_value_beyond_the_bound_of_the_history_is_delivered(path: Path) -> None:
    """
    The newest revision is kept whatever its size: else a watch of it would never get on.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock, history_bytes=1000)
    watch = store.watch("/k", 1)
    revision = (await store.txn([], [Put("/k", b"x" * 2000)])).revision

    assert [PutEvent(KeyValue("/k", b"x" * 2000, revision, revision))] == await anext(watch)
    await store.close()


async def test_who_has_read_a_revision_may_watch_from_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A reader sees what is committed before the writer's thread has told the loop of it.  Its watch
    is not refused as one from the future, which would be evidence of a store that went back.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    committed, tell, commit = threading.Event(), threading.Event(), Database.commit

    def commit_and_wait(database: Database) -> list[Change]:
        changes = commit(database)
        committed.set()
        tell.wait(10)
        return changes

    monkeypatch.setattr(Database, "commit", commit_and_wait)
    put = asyncio.ensure_future(store.txn([], [Put("/a", b"1")]))
    await asyncio.to_thread(committed.wait, 10)
    reads = [asyncio.ensure_future(read) for read in (store.get_prefix("/a"), store.get("/a"))]
    await asyncio.wait(reads, timeout=0.2)
    watches = [asyncio.ensure_future(_watch_after(store, read)) for read in reads]
    await asyncio.wait(watches, timeout=0.2)
    tell.set()
    revision = (await put).revision
    await store.txn([], [Put("/a", b"2")])

    assert [[revision + 1]] * 2 == await asyncio.gather(*watches)
    await store.close()


async def _watch_after(store: SqliteMetadataStore, read: "asyncio.Future[Any]") -> list[int]:
    """The revisions of the first events after what *read* gave."""
    found = await read
    seen = found.mod_revision if isinstance(found, KeyValue) else found[0]
    watch = store.watch("/a", seen + 1)
    events = await anext(watch)
    await watch.aclose()
    return [event.kv.mod_revision for event in events if isinstance(event, PutEvent)]


def test_a_disk_that_fills_up_refuses_and_recovers(path: Path) -> None:
    """
    On a real file system of 1 MiB: nothing of the refused put is there, what was acknowledged
    is, and with some space freed the same store goes on.
    """
    if shutil.which("unshare") is None:
        pytest.skip("no unshare, so no file system of our own")
    directory = path.parent
    script = (
        f"mount -t tmpfs -o size=1m none {directory} || exit 77; "
        f"head -c 200000 /dev/zero > {directory}/ballast; "
        f"{sys.executable} {CHILD} fill {path}"
    )
    ran = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 77 or ran.stderr.startswith("unshare:"):
        pytest.skip(f"no mount namespaces here: {ran.stderr.strip()}")

    told = ["refused True", "kept True", "goes on True", "reopened True"]
    assert told == ran.stdout.splitlines(), ran.stderr


def test_a_commit_that_cannot_be_written_is_unknown(path: Path) -> None:
    """
    Its caller hears that it may have happened; then everything is refused until the store is
    opened again, which goes on from what is in the file.
    """
    ran = subprocess.run(
        [sys.executable, CHILD, "break", path], capture_output=True, text=True, check=False
    )

    told = ran.stdout.splitlines()
    assert ["unknown", "in doubt True"] == told[:2], ran.stderr
    assert told[2] in ("reopened 1", "reopened 2")


# ── The end ──


async def test_a_closed_store_answers_what_it_had_taken_and_refuses_the_rest(path: Path) -> None:
    """
    Calls before the close are carried out, watches end, later calls are unavailable.
    """
    store = await SqliteMetadataStore.open(path, stopped_clock)
    watch = store.watch("/x", 1)
    waiting = asyncio.ensure_future(anext(watch, None))
    calls = [asyncio.ensure_future(store.txn([], [Put(f"/{n}", b"")])) for n in range(500)]
    await asyncio.sleep(0)

    await store.close()
    await store.close()

    assert list(range(2, 502)) == [call.result().revision for call in calls]
    assert await waiting is None
    for refused in (store.get("/a"), store.txn([], [Delete("/a")]), store.keep_alive(1)):
        with pytest.raises(UnavailableError, match=r"closed"):
            await refused
