"""Ranges of files have the right bytes at any border, past the page cache and through it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from driftlog_tiering.stores.buffer_pool import BufferPool
from driftlog_tiering.stores.file_reads import FileReads
from driftlog_tiering.stores.file_writes import ALIGNMENT, DIRECT_BYTES, set_direct

KiB = 1024


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_direct_here(path: Path) -> bool:
    with opened(path) as descriptor:
        return set_direct(descriptor, on=True)


@pytest.mark.parametrize("size", [DIRECT_BYTES - 1, 2 * DIRECT_BYTES, 3 * DIRECT_BYTES + 4_321])
def test_a_range_is_what_was_asked_for(tmp_path: Path, size: int) -> None:
    """
    On borders of blocks and off them, at both ends of the file, small and large.
    """
    content = Random(size).randbytes(size)
    path = tmp_path / "o"
    path.write_bytes(content)
    reads = FileReads()
    ranges = [(0, size), (0, 0), (1, size), (0, size - 1), (size - 300 * KiB, size), (5, 6)]
    ranges += [(n * ALIGNMENT, (n + 80) * ALIGNMENT) for n in (0, 1, 7)]
    ranges += [(n * ALIGNMENT + 17, (n + 70) * ALIGNMENT - 5) for n in (0, 3)]
    with opened(path) as descriptor:
        for start, stop in ranges:
            assert content[start:stop] == bytes(reads.read(descriptor, start, stop))


def test_memory_that_somebody_looks_at_is_not_used_again(tmp_path: Path) -> None:
    """
    A slice of an answer is enough; once it is let go the same memory serves the next range.
    """
    path = tmp_path / "o"
    path.write_bytes(b"a" * DIRECT_BYTES + b"b" * DIRECT_BYTES)
    if not is_direct_here(path):
        pytest.skip("no O_DIRECT on this file system: everything goes through the cache")
    reads = FileReads()
    with opened(path) as descriptor:
        first = reads.read(descriptor, 0, DIRECT_BYTES)
        assert isinstance(first, memoryview)
        kept = first[100:200]
        memory = id(first.obj)
        del first
        second = reads.read(descriptor, DIRECT_BYTES, 2 * DIRECT_BYTES)
        assert isinstance(second, memoryview)

        assert memory != id(second.obj)
        assert b"a" * 100 == bytes(kept)
        del kept
        third = reads.read(descriptor, 0, DIRECT_BYTES)
        assert isinstance(third, memoryview)
        assert memory == id(third.obj)


def test_a_buffer_that_is_too_large_to_be_kept_costs_nobody_theirs() -> None:
    """
    Those that are free stay for whom they fit.
    """
    pool = BufferPool(1024 * KiB)
    kept = pool.take(64 * KiB)
    kept[:5] = b"known"
    del kept
    pool.take(2048 * KiB)

    assert b"known" == bytes(pool.take(64 * KiB)[:5])


def test_a_file_system_that_knows_the_flag_and_not_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The cache answers.
    """
    path = tmp_path / "o"
    content = Random(7).randbytes(2 * DIRECT_BYTES)
    path.write_bytes(content)
    if not is_direct_here(path):
        pytest.skip("no O_DIRECT on this file system: everything goes through the cache")
    refused = 0

    def preadv(*_: object) -> int:
        nonlocal refused
        refused += 1
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "preadv", preadv)

    with opened(path) as descriptor:
        assert content == FileReads().read(descriptor, 0, len(content))
    assert refused == 1
