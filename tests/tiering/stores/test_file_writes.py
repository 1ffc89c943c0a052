"""Small bodies through the page cache and big ones past it: the bytes are the same."""

import errno
import fcntl
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from driftlog_tiering.stores.file_writes import DIRECT_BYTES, write_new_file

MIB = 1 << 20


def parts(rng: random.Random, total: int) -> list[bytes]:
    """*total* random bytes, cut anywhere; some parts empty."""
    data = rng.randbytes(total)
    cuts = sorted(rng.choices(range(total + 1), k=rng.choice((0, 1, 7, 3000))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def write(path: Path, body: Sequence[bytes]) -> bytes:
    """What is in the file afterwards."""
    write_new_file(path, body, sync=True, abandoned=lambda: False)
    return path.read_bytes()


def cached_bytes(path: Path) -> int:
    """How much of the file is in the page cache: /proc/self/pagemap's cheaper cousin, mincore."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * pages)()
        view = ctypes.c_char.from_buffer(mapped)
        address = ctypes.addressof(view)
        done = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), resident)
        del view
        assert done == 0, os.strerror(ctypes.get_errno())
        return sum(byte & 1 for byte in resident) * mmap.PAGESIZE


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_is_there(seed: int, tmp_path: Path) -> None:
    """
    Bodies around the border of a block, of the buffer, and of what goes past the cache.
    """
    rng = random.Random(seed)
    border = rng.choice((0, 4096, DIRECT_BYTES, 2 * MIB, 5 * MIB))
    total = max(0, border + rng.choice((-4096, -1, 0, 1, 511, 4095, 4096, 70_000)))
    body = parts(rng, total)

    assert b"".join(body) == write(tmp_path / "file", body)


@pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT and mincore are Linux's")
def test_a_big_body_leaves_the_page_cache_alone(tmp_path: Path) -> None:
    """
    A block at most: what an agent puts, it hardly ever reads.
    """
    body = [os.urandom(100_001)] * 80
    path = tmp_path / "file"
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")

    write_new_file(path, body, sync=True, abandoned=lambda: False)

    assert cached_bytes(path) < MIB
    assert b"".join(body) == path.read_bytes()


def test_a_file_system_without_o_direct_takes_it_through_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    /dev/shm where it refuses the flag; and everywhere with the flag not there at all.
    """
    body = [os.urandom(3 * MIB + 5)]
    monkeypatch.setattr("driftlog_tiering.stores.file_writes._O_DIRECT", 0)
    assert body[0] == write(tmp_path / "file", body)
    if (shared := Path("/dev/shm")).is_dir():
        monkeypatch.undo()
        path = shared / f"driftlog-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            assert body[0] == write(path, body)
        finally:
            path.unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT is Linux's")
@pytest.mark.parametrize("taken", [1, 511, 4095, 4096, 70_001])
def test_a_direct_write_that_stops_inside_a_block_leaves_nothing_twice(
    taken: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    What follows it begins on no block's border and is refused; the cache takes all of it, where it
    belongs.
    """
    body = [os.urandom(3 * MIB + 5)]
    calls: list[bool] = []

    def writev(fd: int, buffers: Sequence[memoryview]) -> int:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        calls.append(bool(flags & os.O_DIRECT))
        if len(calls) == 2 and calls[-1]:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            written = os.write(fd, buffers[0][:taken])
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            return written
        if calls[-1] and os.lseek(fd, 0, os.SEEK_CUR) % 4096:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, buffers)

    real = os.writev
    monkeypatch.setattr(os, "writev", writev)

    assert body[0] == write(tmp_path / "file", body)

    if not any(calls):
        pytest.skip("this file system has no O_DIRECT")


def test_a_file_of_another_size_than_its_body_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    Whatever the file system does: an object of which a byte is missing is not published.
    """
    real = os.writev

    def writev(fd: int, buffers: Sequence[memoryview]) -> int:
        return real(fd, [buffers[0][:-1]]) + 1

    monkeypatch.setattr(os, "writev", writev)

    with pytest.raises(OSError, match="99 bytes were written, not 100"):
        write(tmp_path / "file", [bytes(100)])


def test_an_abandoned_write_stops(tmp_path: Path) -> None:
    """
    The buffers are the caller's again: not another byte of them is read.
    """
    asked = 0

    def abandoned() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    write_new_file(tmp_path / "file", [bytes(64 * MIB)], sync=True, abandoned=abandoned)

    assert (tmp_path / "file").stat().st_size < 8 * MIB


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    """
    Names are never reused.
    """
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write(tmp_path / "file", [b"new"])
    assert b"old" == (tmp_path / "file").read_bytes()
