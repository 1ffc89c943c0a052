"""The buffer files of one session: which is written, which is used again, which is deleted.

    begun ──▶ written ──full──▶ holds uncommitted batches ──▶ only cache ──▶ used again, or deleted

Files are used in order.  A file that holds no uncommitted batch, and is not being synced, stays as
cache until a new file reuses its pages, or the disk budget is exceeded.  A file whose sync failed
is not trusted again: it is deleted when all its batches are committed.

Pure.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from driftlog_agents.log.local.buffer_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    encode_entry_header,
    encode_file_header,
)
from driftlog_agents.log.local.disk import BufferFile
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, Waiter
from driftlog_tiering.foundation.types import Buffer, MiB

PendingBatch = tuple[PartitionLog, Batch, Waiter | None]
"""A batch that is not written yet, and the acks=1 request that waits for its sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSettings:
    """What the local disk may hold."""

    disk_bytes: int = 4096 * MiB
    """Budget of all buffer files; above it the buffer deletes files that are only cache.
    `MemorySettings.pending_bytes` bounds the uncommitted batches.  More: after a burst consumers
    read more of the recent log without the store."""

    cache_bytes: int = 1024 * MiB
    """Size of all files above which a new file overwrites the oldest one that is only cache.  More:
    consumers read more of the recent log locally; fresh pages cost more CPU than used ones."""

    file_bytes: int = 64 * MiB
    """Size at which the buffer begins a new file: cache is freed file by file."""

    probe_interval_ms: float = 1_000
    """How long after a failure the disk is tried again."""


@dataclass(slots=True, eq=False)
class FileInUse:
    """A buffer file of this session."""

    file: BufferFile
    salt: int
    uncommitted: int = 0
    """Uncommitted batches in the file."""
    dirty: bool = False
    syncing: bool = False

    @property
    def only_cache(self) -> bool:
        """Whether the file may be deleted or overwritten.  Not during a sync: the kernel reports a
        lost write once per descriptor, and would report it for the deleted file and not for the new
        file in the same pages."""
        return self.uncommitted == 0 and not self.syncing


class BufferFiles:
    """See the module."""

    def __init__(self, settings: BufferSettings) -> None:
        self._settings = settings
        self._files: deque[FileInUse] = deque()
        self._by_file: dict[BufferFile, FileInUse] = {}
        self._number = 0

    def __iter__(self) -> Iterator[FileInUse]:
        """Iterates over a copy, oldest first."""
        return iter(list(self._files))

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(use.file.size for use in self._files)

    @property
    def newest(self) -> FileInUse:
        """The file that is written."""
        return self._files[-1]

    @property
    def is_full(self) -> bool:
        """Whether the next batch begins a new file."""
        return not self._files or self._files[-1].file.size >= self._settings.file_bytes

    def next_number(self) -> int:
        """The number of a new file: no name is tried twice."""
        self._number += 1
        return self._number

    def spare(self) -> FileInUse | None:
        """The oldest file that is only cache, if there is enough cache: its pages may be used
        again."""
        if self.size_bytes + self._settings.file_bytes <= self._settings.cache_bytes:
            return None
        for use in self._files:
            if use.only_cache and use.file.trusted and use is not self._files[-1]:
                return use
        return None

    def begin(self, file: BufferFile, salt: int, spare: FileInUse | None) -> None:
        """*file* is the newest from now on; it has the pages of *spare*."""
        if spare is not None:
            self._forget(spare)
        use = FileInUse(file, salt)
        self._files.append(use)
        self._by_file[file] = use

    def entries(self, pending: Sequence[PendingBatch]) -> list[Buffer]:
        """What is written to the newest file for *pending*; each batch gets its position there."""
        use = self._files[-1]
        buffers: list[Buffer] = []
        at = use.file.size
        if at == 0:
            buffers.append(encode_file_header(use.salt, self._number))
            at = FILE_HEADER_BYTES
        for log, batch, waiter in pending:
            assert batch.view is not None
            one = waiter is not None
            buffers.append(
                encode_entry_header(use.salt, log.topic_bytes, log.partition, batch.length, one)
            )
            buffers.append(batch.view)
            batch.position = at + ENTRY_HEADER_BYTES
            at += ENTRY_HEADER_BYTES + batch.length
        return buffers

    def let_go(self, batches: Iterable[Batch]) -> bool:
        """*batches* are committed; True: a file has no uncommitted batch any more."""
        freed = False
        for file, count in Counter(batch.file for batch in batches).items():
            use = self._by_file.get(file)
            if use is not None:
                use.uncommitted -= count
                freed |= use.uncommitted == 0
        return freed

    def take_deletable(self) -> list[BufferFile]:
        """Files that are only cache, above the budget or not trusted: the caller deletes them."""
        over = self.size_bytes - self._settings.disk_bytes
        deletable: list[BufferFile] = []
        for use in list(self._files):
            spent = over > 0 and use is not self._files[-1]
            if use.only_cache and (spent or not use.file.trusted):
                over -= use.file.size
                self._forget(use)
                deletable.append(use.file)
        return deletable

    def _forget(self, use: FileInUse) -> None:
        self._files.remove(use)
        del self._by_file[use.file]
