"""A body written to a new file: small ones through the page cache, big ones past it.

A flush object is written once and hardly ever read by its writer.  Through the page
cache each 4 KiB of it take a fresh page, and on a virtual machine a fresh page costs
more than all other work on those bytes; O_DIRECT takes them from a small buffer that
is used over and over.

Where the file system has no O_DIRECT (tmpfs, macOS), everything goes through the cache.

Adapter.
"""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_keys import body_bytes

DIRECT_BYTES: Final = 1 << 20
"""Bodies from this size on are written past the cache."""

_STAGE_BYTES: Final = 1 << 20
"""One per writing thread: big enough for the disk, small enough for the CPU's cache."""

ALIGNMENT: Final = 4096
"""Alignment of address, position and length: the largest logical block in use."""

_MAX_BUFFERS: Final = max(16, os.sysconf("SC_IOV_MAX"))
_MAX_CALL_BYTES: Final = 1 << 30
"""Limit of one write: macOS refuses 2 GiB, Linux cuts there."""

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has none.
_of_thread = threading.local()


def write_new_file(
    path: Path, body: Sequence[Buffer], *, sync: bool, abandoned: Callable[[], bool]
) -> None:
    """
    Make *path* and write all of *body*; stop in the middle once *abandoned* is true.

    Args:
        sync: return when the bytes survive the loss of power.

    Raises:
        OSError: the file system refused; the file may be there in part.
    """
    size_bytes = body_bytes(body)
    parts = (part for buffer in body if (part := memoryview(buffer).cast("B")))
    direct = size_bytes >= DIRECT_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if direct and set_direct(fd, on=True):
            _write_past_the_cache(fd, parts, abandoned)
        else:
            _write_through_the_cache(fd, list(parts), abandoned)
        if abandoned():
            return
        if (found := os.fstat(fd).st_size) != size_bytes:
            raise OSError(errno.EIO, f"{found} bytes were written, not {size_bytes}", str(path))
        if sync:
            _sync_data(fd)
    finally:
        os.close(fd)


# ── Past the cache ──


def _write_past_the_cache(
    fd: int, parts: Iterable[memoryview], abandoned: Callable[[], bool]
) -> None:
    stage = _stage()
    filled = 0
    for part in parts:
        at = 0
        while at < len(part):
            size = min(len(part) - at, _STAGE_BYTES - filled)
            stage[filled : filled + size] = part[at : at + size]
            at += size
            filled += size
            if filled == _STAGE_BYTES:
                if abandoned():
                    return
                _write_blocks(fd, stage)
                filled = 0
    whole = filled - filled % ALIGNMENT
    _write_blocks(fd, stage[:whole])
    if filled > whole:
        set_direct(fd, on=False)
        _write_all(fd, [stage[whole:filled]])


def _write_blocks(fd: int, blocks: memoryview) -> None:
    start = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        _write_all(fd, [blocks])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The platform has O_DIRECT, this file does not; or a write stopped inside a block, so
        # that the rest is not aligned.  All of it is written through the cache.
        set_direct(fd, on=False)
        os.lseek(fd, start, os.SEEK_SET)
        _write_all(fd, [blocks])


def _stage() -> memoryview:
    """This thread's buffer, on a page's border."""
    stage: memoryview | None = getattr(_of_thread, "stage", None)
    if stage is None:
        stage = _of_thread.stage = memoryview(mmap.mmap(-1, _STAGE_BYTES))
    return stage


def set_direct(fd: int, *, on: bool) -> bool:
    """Set or clear O_DIRECT; False where the platform or the file system does not know it."""
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
    except OSError:
        return False
    return True


# ── Through the cache ──


def _write_through_the_cache(
    fd: int, parts: list[memoryview], abandoned: Callable[[], bool]
) -> None:
    for buffers in _calls(parts):
        if abandoned():
            return
        _write_all(fd, buffers)


def _calls(parts: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Cut *parts* into calls of writev, by its limits of buffers and bytes."""
    call: list[memoryview] = []
    call_bytes = 0
    for rest in parts:
        while rest:
            part = rest[: _MAX_CALL_BYTES - call_bytes]
            rest = rest[len(part) :]
            call.append(part)
            call_bytes += len(part)
            if len(call) == _MAX_BUFFERS or call_bytes == _MAX_CALL_BYTES:
                yield call
                call, call_bytes = [], 0
    if call:
        yield call


def _write_all(fd: int, buffers: list[memoryview]) -> None:
    first = 0
    while first < len(buffers):
        written = os.writev(fd, buffers[first:] if first else buffers)
        while first < len(buffers) and written >= len(buffers[first]):
            written -= len(buffers[first])
            first += 1
        if written:
            buffers[first] = buffers[first][written:]
