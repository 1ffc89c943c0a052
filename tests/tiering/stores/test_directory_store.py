"""The directory store survives crashes, full disks and foreign files, and leaves other folders
alone.
"""

import asyncio
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectStore

MIB = 1 << 20

WRITER = """
import asyncio, sys
from driftlog_tiering.stores.directory_store import DirectoryObjectStore

async def main():
    store = DirectoryObjectStore(sys.argv[1])
    print("ready", flush=True)
    async def write(task):
        for i in range(1_000_000):
            write = store.put if i % 2 else store.create
            await write(f"folder-{i % 7}/{task}/{i}", [b"%08d" % i * 500_000])
            print(i, flush=True)
    await asyncio.gather(*map(write, range(3)))

asyncio.run(main())
"""

scanned: list[Path] = []


def _on_audit(event: str, args: tuple[object, ...]) -> None:
    if event == "os.scandir" and isinstance(args[0], str):
        scanned.append(Path(args[0]))


sys.addaudithook(_on_audit)


@contextmanager
def limit(kind: int, value: int) -> Iterator[None]:
    """The kernel's own refusal, for this process."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


async def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    """The whole listing."""
    listing = [page async for page in store.list(prefix, start_after=after)]
    return [info.key for page in listing for info in page.objects]


def files(folder: Path) -> list[str]:
    """Every file and folder in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def write_and_die(root: Path, answers: int) -> None:
    """A process that writes, killed after so many answers."""
    command = [sys.executable, "-c", WRITER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(answers + 1):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)


async def test_a_killed_writer_leaves_whole_objects_and_a_sweep(tmp_path: Path) -> None:
    """
    SIGKILL at any moment: what is visible is whole, the rest is gone at the next start.
    """
    for after_answers in (1, 4, 11):
        write_and_die(tmp_path, after_answers)

        store = DirectoryObjectStore(tmp_path)

        assert [".tmp"] == [name for name in files(tmp_path) if name.startswith(".tmp")]
        there = await keys(store)
        assert len(there) >= after_answers
        for key in there:
            assert b"%08d" % int(key.rpartition("/")[2]) * 500_000 == await store.get(key)
        await store.delete(there)
        await store.close()


async def test_a_start_does_not_sweep_a_living_neighbour(tmp_path: Path) -> None:
    """
    Two stores on one root, one of them in the middle of its writes.
    """
    first = DirectoryObjectStore(tmp_path)
    writes = [asyncio.ensure_future(first.put(f"k/{i}", [b"x" * (4 * MIB)] * 4)) for i in range(8)]
    for i in range(20):
        second = DirectoryObjectStore(tmp_path)
        await second.create(f"n/{i}", [b"y"])
        await second.close()
    await asyncio.gather(*writes)

    assert [f"k/{i}" for i in range(8)] == await keys(first, "k/")
    await first.close()
    assert [] == files(tmp_path / ".tmp")


async def test_a_file_that_the_disk_refuses_is_not_there(tmp_path: Path) -> None:
    """
    The write stops in the middle (EFBIG here; ENOSPC and EDQUOT come the same way): retry.
    """
    store = DirectoryObjectStore(tmp_path)
    for write in (store.put, store.create):
        refused = pytest.raises(UnavailableError, match=os.strerror(errno.EFBIG))
        with limit(resource.RLIMIT_FSIZE, MIB), refused:
            await write("a/k", [b"x" * (2 * MIB)])

        assert [] == await keys(store)
    await store.create("a/k", [b"x" * (2 * MIB)])
    assert ["a/k"] == await keys(store)
    await store.close()
    assert [] == files(tmp_path / ".tmp")


async def test_too_many_open_files_are_no_answer_about_an_object(tmp_path: Path) -> None:
    """
    Not "not found": retry.
    """
    store = DirectoryObjectStore(tmp_path)
    await store.put("k", [b"x"])
    with limit(resource.RLIMIT_NOFILE, 3):
        for call in (store.get("k"), store.put("l", [b"y"]), keys(store)):
            with pytest.raises(UnavailableError, match=os.strerror(errno.EMFILE)):
                await call

    assert b"x" == await store.get("k")
    await store.close()


@pytest.mark.parametrize("key", ["a", "a/b/c"])
async def test_a_key_is_no_folder_of_another(tmp_path: Path, key: str) -> None:
    """
    The port's rule; what breaks it is refused, as a directory cannot hold it.
    """
    store = DirectoryObjectStore(tmp_path)
    await store.put("a/b", [b"x"])

    for write in (store.put, store.create):
        with pytest.raises(ValueError, match="folder"):
            await write(key, [b"y"])

    assert b"x" == await store.get("a/b")
    await store.close()


async def test_folders_go_with_their_last_object(tmp_path: Path) -> None:
    """
    So that sessions and topics of years ago cost a listing nothing; and they come back.
    """
    store = DirectoryObjectStore(tmp_path)
    for key in ("a/b/1", "a/b/2", "a/c/d/e/1"):
        await store.put(key, [b"x"])

    await store.delete(["a/c/d/e/1", "a/b/1"])

    assert ["a", "a/b", "a/b/2"] == [name for name in files(tmp_path) if ".tmp" not in name]
    await store.put("a/c/d/e/2", [b"y"])
    assert ["a/b/2", "a/c/d/e/2"] == await keys(store)
    await store.close()


async def test_puts_and_deletes_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    """
    A folder removed under a put, here or by a neighbour, is made again.
    """
    stores = [DirectoryObjectStore(tmp_path, fsync=False) for _ in range(2)]

    async def come_and_go(task: int) -> None:
        store = stores[task % 2]
        for i in range(200):
            await store.create(f"deep/er/{task}-{i}", [b"x"])
            await store.delete([f"deep/er/{task}-{i}"])

    await asyncio.gather(*map(come_and_go, range(4)))

    assert [] == await keys(stores[0])
    for store in stores:
        await store.close()


async def test_a_listing_reads_only_the_folders_it_needs(tmp_path: Path) -> None:
    """
    Those of its prefix, after its start, and no more of them than its pages take.
    """
    store = DirectoryObjectStore(tmp_path, fsync=False)
    for topic in "abcd":
        for partition in range(3):
            await store.put(f"{topic}/{partition}/x", [b""])

    scanned.clear()
    await keys(store, "b/1/")
    assert ["b/1"] == [str(path.relative_to(tmp_path)) for path in scanned]

    scanned.clear()
    await keys(store, "", after="c/2/")
    assert [".", "c", "c/2", "d", "d/0", "d/1", "d/2"] == [
        str(path.relative_to(tmp_path)) for path in scanned
    ]

    scanned.clear()
    async for _ in store.list("", page_size=1):
        break
    assert [".", "a", "a/0"] == [str(path.relative_to(tmp_path)) for path in scanned]
    await store.close()


async def test_stores_on_one_root_create_once(tmp_path: Path) -> None:
    """
    Atomic between processes' stores too.
    """
    stores = [DirectoryObjectStore(tmp_path, fsync=False) for _ in range(4)]
    for i in range(20):
        attempts = [store.create(f"k/{i}", [b"%d" % j]) for j, store in enumerate(stores)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)

        assert [None] == [o for o in outcomes if not isinstance(o, AlreadyExistsError)]
    for store in stores:
        await store.close()


async def test_an_object_that_exists_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A create whose folder could not be synced is tried again, and its author takes "exists" for its
    own success: the folder is synced before that answer.
    """
    store = DirectoryObjectStore(tmp_path)
    await store.create("k/1", [b"x"])
    fsync, synced = os.fsync, []
    fails = True

    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            if fails:
                raise OSError(errno.EIO, "Input/output error")
            synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            await store.create("k/2", [b"x"])
    fails = False
    with pytest.raises(AlreadyExistsError):
        await store.create("k/2", [b"x"])
    assert [(tmp_path / "k").stat().st_ino] == synced
    await store.close()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """
    At the start, by name.
    """
    (tmp_path / "file").write_bytes(b"x")

    with pytest.raises(UnavailableError, match="file"):
        DirectoryObjectStore(tmp_path / "file" / "objects")
    with pytest.raises(UnavailableError, match="file"):
        DirectoryObjectStore(tmp_path / "file")


async def test_nothing_is_absent_because_the_folder_itself_is_gone(tmp_path: Path) -> None:
    """
    As a share that is not mounted for a moment: neither a GET nor a listing says that there is
    nothing.
    """
    root = tmp_path / "bucket"
    store = DirectoryObjectStore(root)
    await store.put("a/b", [b"body"])
    with pytest.raises(NotFoundError):
        await store.get("a/c")

    root.rename(tmp_path / "elsewhere")
    for made in (False, True):
        if made:
            root.mkdir()  # a mount point without its share
        for asks in (store.get("a/b"), store.stat("a/b"), keys(store), keys(store, "a/")):
            with pytest.raises(UnavailableError, match="mounted"):
                await asks
    root.rmdir()
    (tmp_path / "elsewhere").rename(root)

    assert b"body" == bytes(await store.get("a/b"))
    assert ["a/b"] == await keys(store)
    await store.close()
