"""A buffer file of the POSIX directory: appends and reads on the event loop, syncs on a thread.

A `write` to the page cache takes less time than passing it to a thread.  The name of a file is
durable with its first sync: before, nothing in it is promised.  A file that failed to sync is not
trusted again; one that failed to append is not written to again.

Adapter.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.buffer_pool import BufferPool

_IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_JOIN_BYTES: Final = 4096
_POOLED: Final = range(32 * 1024, 4 * 1024 * 1024 + 1)
"""Reads of these sizes go into pooled memory."""
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class PosixBufferFile:
    """A `BufferFile` on a file descriptor."""

    __slots__ = (
        "_executor",
        "_named",
        "_pool",
        "_size",
        "_torn",
        "alive",
        "descriptor",
        "identity",
        "path",
        "trusted",
    )

    def __init__(
        self, descriptor: int, path: Path, executor: ThreadPoolExecutor, pool: BufferPool
    ) -> None:
        self.descriptor = descriptor
        self.path = path
        self.identity = identity_of(os.fstat(descriptor))
        self.alive = True
        self.trusted = True
        self._executor = executor
        self._pool = pool
        self._size = 0
        self._named = False
        """Its folder was synced after the file got its name."""
        self._torn = False
        """A part of a failed append is at its end.  The bytes before it can still be synced."""

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        assert self.alive
        if self._torn or not self.trusted:
            raise UnavailableError(f"{self.path} failed before and is not written to")
        start = self._size
        try:
            for i in range(0, len(buffers), _IOV_MAX):
                self._write(list(buffers[i : i + _IOV_MAX]))
        except OSError as error:
            self._torn = True
            self._size = start
            raise UnavailableError(f"cannot write {self.path}: {error.strerror}") from error
        return start

    def _write(self, buffers: list[Buffer]) -> None:
        total = sum(map(len, buffers))
        if total < len(buffers) * _JOIN_BYTES:
            buffers = [b"".join(buffers)]  # copying small ones costs less than a vector of them
        if (written := os.pwritev(self.descriptor, buffers, self._size)) == total:
            self._size += total
            return
        self._write_rest(buffers, written)

    def _write_rest(self, buffers: list[Buffer], written: int) -> None:
        """Continue after a partial write: the disk is about to be full."""
        self._size += written
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            written = os.pwrite(self.descriptor, rest, self._size)
            self._size += written
            rest = rest[written:]

    def read(self, position: int, length: int) -> bytes | memoryview:
        assert self.alive
        if position + length > self._size:
            # The file may have bytes there, of an earlier use or of a failed append.
            raise UnavailableError(f"{self.path} does not hold {length} bytes at {position}")
        data: bytes | memoryview
        try:
            if _POOLED.start <= length < _POOLED.stop:
                data = memoryview(self._pool.take(length))[:length]
                found = os.preadv(self.descriptor, [data], position)
            else:
                data = os.pread(self.descriptor, length, position)
                found = len(data)
        except OSError as error:
            raise UnavailableError(f"cannot read {self.path}: {error.strerror}") from error
        if found != length:
            raise UnavailableError(f"{self.path} is shorter than what was written to it")
        return data

    async def sync(self) -> None:
        if not self.trusted:
            # Linux reports a lost write once per descriptor: the next fdatasync would succeed.
            raise UnavailableError(f"{self.path} failed before and is not trusted again")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._sync)
        except OSError as error:
            self.trusted = False
            raise UnavailableError(f"cannot sync {self.path}: {error.strerror}") from error

    def _sync(self) -> None:
        if not self._named:
            sync_directory(self.path.parent)
            self._named = True
        _sync_data(self.descriptor)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """What no other file of the machine has while this one exists."""
    return status.st_dev, status.st_ino


def sync_directory(path: Path) -> None:
    """Make the names in *path* durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
