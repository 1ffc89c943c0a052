"""A disk in memory: what was written survives a killed process, what was synced a lost machine."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from driftlog_agents.log.local.buffer_format import entries
from driftlog_agents.log.local.disk import BufferFile
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import parse_header
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.faults import Process

_SESSION_DIGITS: Final = 32


@dataclass(slots=True, eq=False)
class _Pages:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    """What the platter has."""
    named: tuple[str, int] | None = None
    """Where the platter has it since its last sync: session and number; None: nowhere."""
    _batches: tuple[bytes, tuple[tuple[TopicPartition, int, int], ...]] = (b"", ())

    def batches(self) -> tuple[tuple[TopicPartition, int, int], ...]:
        """What is synced: partition, first offset, the one behind the last."""
        if self._batches[0] is not self.synced:
            found = []
            for entry in entries(self.synced):
                header = parse_header(entry.batch)
                tp = TopicPartition(entry.topic_id, entry.partition)
                found.append((tp, header.base_offset, header.end_offset))
            self._batches = self.synced, tuple(found)
        return self._batches[1]


class Platter:
    """What outlives processes."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[int, _Pages]] = {}
        self.small: dict[str, bytes] = {}
        self.notes: dict[str, bytes] = {}
        """By session; of sessions that are not there they mean nothing."""
        self.on_note: Callable[[bytes], None] = lambda _: None
        self.away: dict[str, dict[int, _Pages]] = {}
        self.kept: dict[str, dict[int, bytes]] = {}
        """What was set aside of sessions."""
        self.kept_away: dict[str, dict[int, bytes]] = {}
        self.kept_notes: dict[str, bytes] = {}
        self.full = False
        self.not_removed: set[str] = set()
        """Sessions whose folders were to go and could not: a later start looks at them."""

    def synced_end(self, tp: TopicPartition, offset: int) -> int:
        """Up to where it has all of the partition from *offset* on, whatever happens to power."""
        ends: dict[int, int] = {}
        for files in self.sessions.values():
            for pages in files.values():
                for there, base, end in pages.batches():
                    if there == tp and end > offset:
                        ends[max(base, offset)] = end
        while offset in ends:
            offset = ends[offset]
        return offset

    def lose_everything(self) -> None:
        """Another disk is there in its place."""
        self.swap()
        self.sessions.clear()
        self.kept.clear()
        self.small.clear()

    def swap(self) -> None:
        """The disk that was there before this one is mounted in its place."""
        self.sessions, self.away = self.away, self.sessions
        self.kept, self.kept_away = self.kept_away, self.kept

    def lose_power(self, rng: Random) -> None:
        """Of what was not synced any part may be there, or not; names as well."""
        self._lose_names()
        for files in self.sessions.values():
            for pages in files.values():
                synced, data = pages.synced, bytes(pages.data)
                survived = bytearray(synced)
                for at in range(0, len(data), 512):
                    block = data[at : at + 512]
                    if block != synced[at : at + 512] and rng.random() < 0.5:
                        if len(survived) < at + len(block):
                            survived.extend(bytes(at + len(block) - len(survived)))
                        survived[at : at + len(block)] = block
                pages.data = survived
                pages.synced = bytes(survived)

    def _lose_names(self) -> None:
        """Files that were made or renamed since their last sync may be as they were before."""
        for session_id, files in list(self.sessions.items()):
            for number, pages in list(files.items()):
                # (a coin of its own: the schedules of seeds stay what they are)
                if pages.named != (session_id, number) and Random(len(pages.data)).random() < 0.5:
                    del files[number]
                    if pages.named is not None and pages.named[0] in self.sessions:
                        self.sessions[pages.named[0]][pages.named[1]] = pages


class SimBufferFile:
    """A `BufferFile` in memory."""

    def __init__(self, disk: "SimDisk", pages: _Pages, place: tuple[str, int]) -> None:
        self._disk = disk
        self.pages = pages
        self.place = place
        self._size = 0
        self.alive = True
        self.trusted = True
        self._broken = False

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        assert self.alive
        if self._disk.process.dead:
            raise UnavailableError("dead")
        whole = b"".join(buffers)
        start = self._size
        flaky = self._disk.rng.random() < self._disk.write_fails
        if self._broken or self._disk.platter.full or flaky:
            # Part of it may be there.
            part = whole[: self._disk.rng.randrange(len(whole))]
            self.pages.data[start : start + len(part)] = part
            self._broken = not self._disk.spares_files
            raise UnavailableError("no space left on device")
        self.pages.data[start : start + len(whole)] = whole
        self._size += len(whole)
        return start

    def read(self, position: int, length: int) -> bytes:
        assert self.alive
        assert position + length <= self._size
        return bytes(self.pages.data[position : position + length])

    async def sync(self) -> None:
        if self._disk.process.dead:
            raise asyncio.CancelledError
        snapshot = bytes(self.pages.data)
        self._disk.syncing += 1
        try:
            await self._wait()
        finally:
            self._disk.syncing -= 1
        if self._disk.process.dead:
            raise asyncio.CancelledError
        if self._broken or self._disk.rng.random() < self._disk.sync_fails:
            self._broken = True
            self.trusted = False
            raise UnavailableError("input/output error")
        self.pages.synced = snapshot + self.pages.synced[len(snapshot) :]
        if self.pages.named != self.place:
            self.pages.named = self.place
            session_id, _ = self.place  # its folder was synced, with every name in it
            for number, pages in self._disk.platter.sessions.get(session_id, {}).items():
                pages.named = session_id, number

    async def _wait(self) -> None:
        await asyncio.sleep(self._disk.rng.uniform(0.0001, 0.003))
        if self._disk.sync_stalls and self._disk.rng.random() < self._disk.sync_stalls:
            await asyncio.sleep(self._disk.rng.uniform(0.1, 2))


class SimDisk:
    """An `AgentDisk` in memory, as one process has it open."""

    def __init__(self, platter: Platter, process: Process, rng: Random) -> None:
        self.platter = platter
        self.process = process
        self.rng = rng
        self.sync_fails = 0.0
        self.sync_stalls = 0.0
        """Of syncs: those that take a busy disk up to two seconds."""
        self.write_fails = 0.0
        self.spares_files = False
        """Where a write fails, what was written before can still be synced."""
        self.syncing = 0
        """Syncs that go on."""
        self.folder_fails = 0.0
        """Of operations on folders; half of those that fail have happened."""
        self._open: set[SimBufferFile] = set()
        self._parts: dict[str, dict[int, bytes]] = {}
        """What is being set aside."""
        self._turn = asyncio.Lock()
        """Operations on folders keep their order."""

    def sessions(self) -> list[str]:
        self._may_fail()
        return self.all_sessions

    @property
    def all_sessions(self) -> list[str]:
        """Of the folders that are there those of sessions; others are somebody's probes, and what
        is kept is no session any more."""
        kept = self.platter.kept
        there = self.platter.sessions
        return [name for name in there if len(name) == _SESSION_DIGITS and name not in kept]

    async def create_session(self, session_id: str) -> None:
        await self._stall()
        self._check()
        happened = self._half()
        if happened is not False:
            self.platter.sessions.setdefault(session_id, {})
        _raise_if(happened is not None)

    def create_file(self, session_id: str, number: int) -> SimBufferFile:
        self._check()
        pages = _Pages()
        happened = self._half()
        if happened is not False:
            self.platter.sessions[session_id][number] = pages
        _raise_if(happened is not None)
        return self._opened(SimBufferFile(self, pages, (session_id, number)))

    @property
    def open_files(self) -> list[SimBufferFile]:
        """Oldest first."""
        return sorted(self._open, key=lambda file: file.place)

    def _opened(self, file: SimBufferFile) -> SimBufferFile:
        self._open.add(file)
        return file

    def _close(self, file: SimBufferFile) -> None:
        file.alive = False
        self._open.discard(file)

    def recycle_file(self, file: BufferFile, session_id: str, number: int) -> SimBufferFile:
        self._check()
        assert isinstance(file, SimBufferFile)
        happened = self._half()
        if happened is False:
            _raise_if(True)
        old_session, old_number = file.place
        pages = self.platter.sessions[old_session].pop(old_number)
        self.platter.sessions[session_id][number] = pages
        file.place = (session_id, number)
        _raise_if(happened is not None)
        self._close(file)
        return self._opened(SimBufferFile(self, pages, (session_id, number)))

    def remove_file(self, file: BufferFile) -> None:
        assert isinstance(file, SimBufferFile)
        self._close(file)
        if not self.process.dead and self._half() is None:
            self.platter.sessions.get(file.place[0], {}).pop(file.place[1], None)

    async def read_files(self, session_id: str) -> list[int]:
        self._may_fail()
        return sorted(self.platter.sessions.get(session_id, ()))

    async def read_file(self, session_id: str, number: int) -> bytes:
        await asyncio.sleep(0.001)
        self._may_fail()
        return bytes(self.platter.sessions[session_id][number].data)

    async def remove_session(self, session_id: str) -> None:
        await self._stall()
        if self.process.dead:
            return
        for file in [file for file in self._open if file.place[0] == session_id]:
            self._close(file)
        if self._half() is None:
            self.platter.sessions.pop(session_id, None)
            self.platter.notes.pop(session_id, None)
            return
        self.platter.not_removed.add(session_id)
        files = self.platter.sessions.get(session_id, {})
        for number in [number for number in files if self.rng.random() < 0.5]:
            del files[number]  # the others, and the folder, could not be

    async def create_kept(self, session_id: str) -> None:
        await self._stall()
        self._check()
        self._may_fail()
        self._parts[session_id] = {}

    async def write_kept(self, session_id: str, number: int, data: bytes) -> None:
        await self._stall()
        self._check()
        self._may_fail()
        _raise_if(session_id not in self._parts)
        self._parts[session_id][number] = data

    async def finish_kept(self, session_id: str, note: bytes) -> str:
        await self._stall()
        self._check()
        self._may_fail()
        self.platter.kept[session_id] = self._parts.pop(session_id)
        self.platter.kept_notes[session_id] = note
        await self.remove_session(session_id)
        return f"kept/{session_id}"

    def kept(self) -> list[str]:
        return list(self.platter.kept)

    def count_kept(self) -> int:
        return len(self.kept())

    async def load_note(self, session_id: str) -> bytes | None:
        self._may_fail()
        there = session_id in self.platter.sessions
        return self.platter.notes.get(session_id) if there else None

    async def save_note(self, session_id: str, data: bytes) -> None:
        self._check()
        await asyncio.sleep(0.001)
        self._check()
        _raise_if(session_id not in self.platter.sessions)
        happened = self._half()
        if happened is not False:
            self.platter.notes[session_id] = data
            self.platter.on_note(data)
        _raise_if(happened is not None)

    def load(self, name: str) -> bytes | None:
        return self.platter.small.get(name)

    async def save(self, name: str, data: bytes) -> None:
        await self._stall()
        self._check()
        self.platter.small[name] = data

    def close(self) -> None:
        """Nothing to close."""

    async def _stall(self) -> None:
        """Where disks are busy now and then, operations on folders wait as syncs do."""
        if not self.sync_stalls:
            return
        async with self._turn:
            if self.rng.random() < self.sync_stalls:
                await asyncio.sleep(self.rng.uniform(0.1, 2))

    def _half(self) -> bool | None:
        """None: all goes well; else the operation fails, and this says whether it happened."""
        if not self.folder_fails or self.rng.random() >= self.folder_fails:
            return None
        return self.rng.random() < 0.5

    def _may_fail(self) -> None:
        _raise_if(self._half() is not None)

    def _check(self) -> None:
        if self.process.dead or self.platter.full:
            raise UnavailableError("no space left on device")


def _raise_if(failed: bool) -> None:
    if failed:
        raise UnavailableError("input/output error")
