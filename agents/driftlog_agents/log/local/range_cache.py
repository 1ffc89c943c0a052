"""Ranges of objects on the agent's disk: what cold reads fetched survives a restart.

    {folder}/{name}     names, bytes and order of the entries: `cached_ranges`

1. A damaged entry is deleted, and the bucket is read.  The name of an object is never used twice,
   so no entry is out of date.  What the bucket sent is not checked here: a reader that cannot
   decode it drops the object.
2. The order of the entries outlives a restart: the modification time of one is that of its last
   read.
3. The disk never fails a read.  A fault, or one entry that takes `slowest_s`, turns the cache off
   for a minute.  A read that waits twice as long for other entries goes to the bucket.
4. Entries leave `RESERVE_BYTES` of the disk to buffer files.

All work is done by a thread of the cache; it needs no sync, because of rule 1.

Shell.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final, TypeVar

import structlog

from driftlog_agents.log.local.cached_ranges import (
    CachedRanges,
    decode_entry,
    encode_entry,
    name_of,
)
from driftlog_tiering.foundation.types import Buffer

T = TypeVar("T")

SLOWEST_S: Final = 1.0
"""The bucket is about as slow."""

RESERVE_BYTES: Final = 2 * 1024**3
"""With less free space nothing is stored."""

PAUSE_S: Final = 60.0
"""How long the cache is left alone after a fault."""

_MOST_WAITING: Final = 4
"""Entries that wait to be written, of some MiB each; more are not stored."""

_TURNS: Final = 2
"""How often a read waits `slowest_s` while the disk reads and writes other entries; after that the
bucket is read."""

_UNFINISHED: Final = ".new"


class RangeCache:
    """See the module.

    Args:
        budget_bytes: of all files.
        free_bytes: free space of the disk that holds the folder.
        slowest_s: a disk that takes longer for one entry is left alone.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        now_s: Callable[[], float] = time.monotonic,
        slowest_s: float = SLOWEST_S,
    ) -> None:
        self._slowest_s = slowest_s
        self._folder = folder
        self._free_bytes = free_bytes
        self._now_s = now_s
        self._entries = CachedRanges(budget_bytes)
        """Only the thread changes it."""
        self._log = structlog.get_logger()
        self._thread = ThreadPoolExecutor(1, "read-cache")
        self._waiting = BoundedSemaphore(_MOST_WAITING)
        self._off_until_s = 0.0
        self._begun = 0
        """Entries that the thread has begun to read or to write."""
        self.hits = self.misses = self.damaged = 0
        self._thread.submit(self._quietly, self._open)

    @property
    def used_bytes(self) -> int:
        """Size of all files."""
        return self._entries.used_bytes

    async def get(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes ``[start, end)`` of the object, *end* may be `WHOLE`; None: they are not
        there."""
        if self._now_s() < self._off_until_s:
            return None
        found = await self._asked(self._read, key, start, end)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def put(self, key: str, start: int, end: int, body: Buffer) -> None:
        """Store the bytes ``[start, end)`` of the object, soon, if the disk can take them."""
        if self._now_s() < self._off_until_s or not self._waiting.acquire(blocking=False):
            return

        def work() -> None:
            try:
                self._quietly(self._write, key, start, end, body)
            finally:
                self._waiting.release()

        self._thread.submit(work)

    async def drop(self, key: str) -> bool:
        """Delete all entries of the object; whether there was one."""
        if self._now_s() < self._off_until_s:
            return False
        return bool(await self._asked(self._drop, key))

    def close(self) -> None:
        """Store what waits, and end the thread."""
        self._thread.shutdown()

    async def _asked(self, work: Callable[..., T], *args: object) -> T | None:
        """The result of *work* by the thread; None: the disk failed, is slow or has much to do."""
        answer = self._thread.submit(self._quietly, work, *args)
        done = asyncio.wrap_future(answer)
        try:
            for _ in range(_TURNS):
                begun = self._begun
                await asyncio.wait((done,), timeout=self._slowest_s)
                if answer.done():
                    return answer.result()
                if self._begun == begun:  # one entry took all the time, this one or another
                    if self._now_s() >= self._off_until_s:
                        self._failed("the disk is slow")
                    return None
            return None
        finally:
            answer.cancel()

    # ── In the thread ──

    def _quietly(self, work: Callable[..., T], *args: object) -> T | None:
        self._begun += 1
        try:
            return work(*args)
        except OSError as error:
            self._failed(str(error))
            return None

    def _failed(self, error: str) -> None:
        self._off_until_s = self._now_s() + PAUSE_S
        self._log.warning(
            "read_cache_failed",
            folder=str(self._folder),
            error=error,
            advice="reads go to the bucket; the cache is tried again in a minute",
        )

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[float, str, int]] = []
        with os.scandir(self._folder) as files:
            for file in files:
                if file.name.endswith(_UNFINISHED):
                    os.unlink(file.path)
                else:
                    info = file.stat()
                    found.append((info.st_mtime, file.name, info.st_size))
        for _, name, size in sorted(found):
            self._entries.add(name, size)
        self._make_room(0)

    def _read(self, key: str, start: int, end: int) -> bytes | None:
        name = name_of(key, start, end)
        if name not in self._entries:
            return None
        path = self._folder / name
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            self._entries.forget(name)
            return None
        body = decode_entry(stored, key, start, end)
        if body is None:
            self.damaged += 1
            self._log.warning(
                "read_cache_entry_damaged",
                object=key,
                file=str(path),
                advice="no action needed; it is deleted, and the bucket is read.  If it happens "
                "again, check the disk",
            )
            self._remove(name)
            return None
        self._entries.was_read(name)
        os.utime(path)
        return body

    def _write(self, key: str, start: int, end: int, body: Buffer) -> None:
        name = name_of(key, start, end)
        entry = encode_entry(key, start, end, body)
        size = sum(map(len, entry))
        if not self._entries.fits(name, size):
            return
        if self._free_bytes(self._folder) < RESERVE_BYTES + size:
            return
        self._make_room(size)
        path = self._folder / name
        new = path.with_suffix(_UNFINISHED)
        try:
            with new.open("wb") as file:
                file.writelines(entry)
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self._entries.add(name, size)

    def _drop(self, key: str) -> bool:
        names = self._entries.of_object(key)
        for name in names:
            self._remove(name)
        return bool(names)

    def _make_room(self, size: int) -> None:
        while (name := self._entries.to_delete(size)) is not None:
            self._remove(name)

    def _remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._entries.forget(name)
