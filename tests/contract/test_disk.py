"""The disk port's promises hold, sentence by sentence, on the real disk and the simulator's."""

import asyncio
import itertools
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from driftlog_agents.log.local import posix_disk
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.leftovers import Leftovers
from driftlog_agents.log.local.posix_buffer_file import PosixBufferFile
from driftlog_agents.log.local.posix_disk import DirectoryLockedError, PosixDisk
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.buffer_pool import BufferPool
from tests.simulation.faults import Process
from tests.simulation.loop import VirtualLoop
from tests.simulation.sim_disk import Platter, SimDisk

SESSION = "11111111111111111111111111111111"
OTHER = "22222222222222222222222222222222"
NOTE = Leftovers(SESSION, set_aside_at_ms=1).encode()


class Posix:
    """The real disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.disk: AgentDisk = PosixDisk(directory)

    @contextmanager
    def no_room(self) -> Iterator[None]:
        """The next byte of any file is refused (EFBIG), root's too."""
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    def again(self) -> AgentDisk:
        """As the next process opens it."""
        self.disk.close()
        self.disk = PosixDisk(self._directory)
        return self.disk


class Simulated:
    """The simulator's disk."""

    def __init__(self, directory: Path) -> None:
        self._platter, self._rng = Platter(), Random(1)
        self.disk: AgentDisk = SimDisk(self._platter, Process("first", VirtualLoop()), self._rng)

    @contextmanager
    def no_room(self) -> Iterator[None]:
        """Nothing more can be written."""
        self._platter.full = True
        yield
        self._platter.full = False

    def again(self) -> AgentDisk:
        """As the next process opens it, after a loss of power."""
        self.disk.close()
        self._platter.lose_power(self._rng)
        self.disk = SimDisk(self._platter, Process("second", VirtualLoop()), self._rng)
        return self.disk


Subject = Posix | Simulated


@pytest.fixture(params=[Posix, Simulated])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    """An empty disk, with one session."""
    opened: Subject = request.param(tmp_path)
    await opened.disk.create_session(SESSION)
    yield opened
    opened.disk.close()


@pytest.fixture
def disk(subject: Subject) -> AgentDisk:
    """An empty disk with one session, for tests that need nothing else."""
    return subject.disk


# ── Buffer files ──


def test_what_was_appended_is_read_wherever_it_stands(disk: AgentDisk) -> None:
    """
    Appends of any number of buffers of any kind and size, empty ones too, return where they
    begin, and every range of what was appended is read back.
    """
    rng = Random(2)
    file = disk.create_file(SESSION, 1)
    whole = b""
    for _ in range(60):
        parts = [rng.randbytes(rng.choice((0, 1, 48, 3000))) for _ in range(rng.randrange(1, 9))]
        kinds = (bytes, bytearray, memoryview)
        start = file.append([rng.choice(kinds)(part) for part in parts])
        assert len(whole) == start
        whole += b"".join(parts)

    assert len(whole) == file.size
    for _ in range(300):
        position = rng.randrange(len(whole))
        length = rng.randrange(len(whole) - position + 1)
        assert whole[position : position + length] == file.read(position, length)


def test_what_was_read_stays_while_others_read(disk: AgentDisk) -> None:
    """
    Reads of all sizes, many of them held at once: none is written over by a later one.
    """
    rng = Random(3)
    file = disk.create_file(SESSION, 1)
    data = rng.randbytes(6 << 20)
    file.append([data])
    held: list[tuple[int, int, bytes | memoryview]] = []
    for _ in range(400):
        length = rng.choice((1, 4096, 32_767, 32_768, 65_536, 100_000, 1 << 20, 5 << 20))
        start = rng.randrange(len(data) - length)
        held.append((start, length, file.read(start, length)))
        if len(held) > 30:
            start, length, found = held.pop(rng.randrange(len(held)))
            assert data[start : start + length] == found


def test_one_append_takes_any_number_of_buffers(disk: AgentDisk) -> None:
    """
    More than one system call takes (IOV_MAX, 1024) are one append all the same.
    """
    buffers = [number.to_bytes(4, "big") for number in range(5000)]
    file = disk.create_file(SESSION, 1)
    file.append([b"before"])

    start = file.append(buffers)

    assert (6, b"".join(buffers)) == (start, file.read(6, 20_000))


async def test_what_was_synced_is_there_after_the_end_of_the_process(subject: Subject) -> None:
    """
    Of appends before the last sync every byte is in the file that the next process reads.
    """
    file = subject.disk.create_file(SESSION, 7)
    file.append([b"a" * 1000])
    await file.sync()
    file.append([b"b" * 1000])
    await file.sync()
    file.append([b"c" * 1000])

    found = await subject.again().read_file(SESSION, 7)

    assert b"a" * 1000 + b"b" * 1000 == found[:2000]


async def test_an_append_during_a_sync_is_kept(disk: AgentDisk) -> None:
    """
    The file is written to while it is being synced, and synced again.
    """
    file = disk.create_file(SESSION, 1)
    file.append([b"first"])
    syncing = asyncio.ensure_future(file.sync())
    await asyncio.sleep(0)
    file.append([b"second"])
    await syncing
    await file.sync()

    assert b"firstsecond" == file.read(0, 11)


def test_a_full_disk_refuses_and_keeps_what_was_there(subject: Subject) -> None:
    """
    An append that is not wholly written raises, does not count, and leaves what stands before
    it readable.
    """
    file = subject.disk.create_file(SESSION, 1)
    file.append([b"kept"])

    with subject.no_room(), pytest.raises(UnavailableError):
        file.append([b"x" * 10_000, b"y" * 10_000])

    assert (4, b"kept") == (file.size, file.read(0, 4))


def test_a_file_that_failed_is_not_written_to_again(subject: Subject) -> None:
    """
    Half an entry may stand at its end: with room again it still refuses, and a new file takes.
    """
    file = subject.disk.create_file(SESSION, 1)
    with subject.no_room(), pytest.raises(UnavailableError):
        file.append([b"x" * 10_000])

    with pytest.raises(UnavailableError):
        file.append([b"y"])

    fresh = subject.disk.create_file(SESSION, 2)
    assert 0 == fresh.append([b"y"])
    assert b"y" == fresh.read(0, 1)


async def test_a_failed_sync_ends_the_use_of_the_file(tmp_path: Path) -> None:
    """
    After it nobody knows what the disk has, and Linux says so only once (fsyncgate): the file is
    not written to again, and no later sync vouches for it.
    """
    with ThreadPoolExecutor(1) as executor:
        descriptor = os.open("/dev/null", os.O_RDWR)  # takes writes, knows no sync
        real = PosixBufferFile(descriptor, Path("/dev/null"), executor, BufferPool(0))
        simulated = SimDisk(Platter(), Process("it", VirtualLoop()), Random(1))
        await simulated.create_session(SESSION)
        for file in (real, simulated.create_file(SESSION, 1)):
            simulated.sync_fails = 1.0
            file.append([b"x"])
            assert file.trusted
            with pytest.raises(UnavailableError):
                await file.sync()
            assert (True, False) == (file.alive, file.trusted)
            simulated.sync_fails = 0.0
            with pytest.raises(UnavailableError):
                file.append([b"y"])
            with pytest.raises(UnavailableError):
                await file.sync()
        os.close(descriptor)


async def test_a_sync_that_would_succeed_now_vouches_for_nothing(tmp_path: Path) -> None:
    """
    Linux reports a lost write once per descriptor; here the descriptor becomes a healthy file's.
    """
    with ThreadPoolExecutor(1) as executor:
        descriptor = os.open("/dev/null", os.O_RDWR)
        file = PosixBufferFile(descriptor, tmp_path / "1.buf", executor, BufferPool(0))
        file.append([b"x"])
        with pytest.raises(UnavailableError, match=r"cannot sync"):
            await file.sync()
        healthy = os.open(tmp_path / "healthy", os.O_RDWR | os.O_CREAT)
        os.dup2(healthy, descriptor)
        os.close(healthy)

        with pytest.raises(UnavailableError, match=r"not trusted"):
            await file.sync()
        os.close(descriptor)


async def test_a_file_that_was_cut_behind_our_back_is_unavailable(tmp_path: Path) -> None:
    """
    Fewer bytes than were appended are never handed out as if they were all.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    file = disk.create_file(SESSION, 1)
    file.append([b"x" * 100])
    os.truncate(file.path, 50)

    with pytest.raises(UnavailableError, match=r"shorter"):
        file.read(20, 80)
    disk.close()


@pytest.mark.parametrize("position, length", [(3, 1), (0, 4), (2, 2), (1000, 1), (3, 7)])
async def test_nothing_is_read_beyond_what_was_appended(
    tmp_path: Path, position: int, length: int
) -> None:
    """
    There are bytes, of the file's earlier use: whoever asks for them gets an error, and looks
    elsewhere, never another batch's bytes.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    old = disk.create_file(SESSION, 1)
    old.append([b"0123456789"])
    file = disk.recycle_file(old, SESSION, 2)
    file.append([b"abc"])

    with pytest.raises(UnavailableError, match=r"does not hold"):
        file.read(position, length)
    assert b"abc" == file.read(0, 3)
    assert b"" == file.read(3, 0)
    disk.close()


async def test_what_was_appended_before_a_refused_append_can_be_synced(tmp_path: Path) -> None:
    """
    A disk that is full takes no more, and keeps what it took: acks=1 that waits for it is kept.
    """
    subject = Posix(tmp_path)
    await subject.disk.create_session(SESSION)
    file = subject.disk.create_file(SESSION, 1)
    file.append([b"kept"])
    with subject.no_room(), pytest.raises(UnavailableError):
        file.append([b"x" * 10_000])

    await file.sync()

    assert b"kept" == (await subject.again().read_file(SESSION, 1))[:4]
    subject.disk.close()


# ── Files used again ──


async def test_a_recycled_file_is_a_new_file_in_old_pages(disk: AgentDisk) -> None:
    """
    It is empty, has its new number and only that, and what the earlier use wrote stands behind
    its end; positions in the old one mean nothing.
    """
    old = disk.create_file(SESSION, 1)
    old.append([b"0123456789"])

    new = disk.recycle_file(old, SESSION, 2)
    assert (False, True, 0) == (old.alive, new.alive, new.size)
    assert 0 == new.append([b"abc"])

    assert [2] == await disk.read_files(SESSION)
    assert b"abc3456789" == await disk.read_file(SESSION, 2)
    assert (3, b"abc") == (new.size, new.read(0, 3))


async def test_a_file_is_recycled_into_another_session(disk: AgentDisk) -> None:
    """
    The old session has it no more, and removing that session leaves the file alone.
    """
    await disk.create_session(OTHER)
    old = disk.create_file(SESSION, 3)
    old.append([b"old"])

    new = disk.recycle_file(old, OTHER, 1)
    new.append([b"new"])
    assert [] == await disk.read_files(SESSION)
    await disk.remove_session(SESSION)

    assert (True, b"new") == (new.alive, new.read(0, 3))
    assert b"new" == await disk.read_file(OTHER, 1)


async def test_what_a_recycled_file_had_synced_may_be_overwritten_and_synced(
    subject: Subject,
) -> None:
    """
    After a sync of the new use its bytes survive, not those that they replaced.
    """
    old = subject.disk.create_file(SESSION, 1)
    old.append([b"o" * 3000])
    await old.sync()
    new = subject.disk.recycle_file(old, SESSION, 2)
    new.append([b"n" * 1000])
    await new.sync()

    assert b"n" * 1000 == (await subject.again().read_file(SESSION, 2))[:1000]


async def test_a_removed_file_is_gone_and_not_alive(disk: AgentDisk) -> None:
    """
    The next process does not find it; other files stay.
    """
    gone, stays = disk.create_file(SESSION, 1), disk.create_file(SESSION, 2)
    disk.remove_file(gone)
    disk.remove_file(gone)

    assert [2] == await disk.read_files(SESSION)
    assert (False, True) == (gone.alive, stays.alive)


# ── What is removed under it ──


def test_what_is_removed_or_replaced_is_told(tmp_path: Path) -> None:
    """
    Nothing is at first; a file that another one stands in for is as gone as one that is.
    """
    disk = PosixDisk(tmp_path)
    told = [disk.removed()]
    for name in ("lock", "buffer"):
        (tmp_path / name).rename(tmp_path / "aside")
        told.append(disk.removed())
        (tmp_path / name).touch()
        told.append(disk.removed())
        (tmp_path / name).unlink()
        (tmp_path / "aside").rename(tmp_path / name)
    told.append(disk.removed())
    disk.close()

    lock, buffer = str(tmp_path / "lock"), str(tmp_path / "buffer")
    assert [None, lock, lock, buffer, buffer, None] == told


async def test_numbers_of_files_that_change_are_not_taken_for_files_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Some mounts (FUSE, 9p, SMB) give a file another number each time it is looked at: there only
    what has no name any more is removed, and a healthy agent goes on.
    """
    numbers = itertools.count()
    monkeypatch.setattr(posix_disk, "identity_of", lambda _: (1, next(numbers)))
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    file = disk.create_file(SESSION, 1)
    before = disk.removed()
    file.path.unlink()
    behind = disk.removed()
    disk.close()

    assert (None, str(file.path)) == (before, behind)


# ── Sessions ──


async def test_the_next_process_finds_the_files_of_every_session(subject: Subject) -> None:
    """
    Sessions in any order, numbers ascending as numbers, bytes as they were synced.
    """
    await subject.disk.create_session(OTHER)
    for session, number in ((SESSION, 9), (SESSION, 10), (SESSION, 11), (OTHER, 1)):
        file = subject.disk.create_file(session, number)
        file.append([f"{session}/{number}".encode()])
        await file.sync()

    disk = subject.again()

    assert sorted([SESSION, OTHER]) == sorted(disk.sessions())
    assert [9, 10, 11] == await disk.read_files(SESSION)
    assert f"{SESSION}/10".encode() == await disk.read_file(SESSION, 10)
    assert f"{OTHER}/1".encode() == await disk.read_file(OTHER, 1)


async def test_removing_a_session_takes_its_files_and_no_others(disk: AgentDisk) -> None:
    """
    Files of it that are open are not alive after that; a session that is not there is no error.
    """
    await disk.create_session(OTHER)
    gone, stays = disk.create_file(SESSION, 1), disk.create_file(OTHER, 1)
    stays.append([b"x"])

    await disk.remove_session(SESSION)
    await disk.remove_session(SESSION)

    assert [OTHER] == disk.sessions()
    assert (False, True) == (gone.alive, stays.alive)
    assert b"x" == await disk.read_file(OTHER, 1)


async def test_a_session_that_is_set_aside_is_no_session_any_more(subject: Subject) -> None:
    """
    Nobody recovers it again, nor removes what is kept of it; the others stay.
    """
    await subject.disk.create_session(OTHER)
    subject.disk.create_file(OTHER, 1).append([b"x"])

    await subject.disk.create_kept(OTHER)
    await subject.disk.write_kept(OTHER, 1, b"of it")
    assert ([], {SESSION, OTHER}) == (subject.disk.kept(), set(subject.disk.sessions()))
    await subject.disk.finish_kept(OTHER, NOTE)
    await subject.disk.remove_session(OTHER)

    for disk in (subject.disk, subject.again()):
        assert ([SESSION], [OTHER]) == (disk.sessions(), disk.kept())
        assert 1 == disk.count_kept()


async def test_notes_are_counted_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each metrics scrape counts them on the event loop; replay, another process, removes some.
    """
    disk = PosixDisk(tmp_path)
    for session in (SESSION, OTHER):
        await disk.create_session(session)
        await disk.create_kept(session)
        await disk.finish_kept(session, NOTE)
    os.utime(tmp_path / "kept", (1_000, 1_000))
    reads: list[Path] = []
    load = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        reads.append(path)
        return load(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)

    counts = [disk.count_kept() for _ in range(3)]
    read = len(reads)
    (tmp_path / "kept" / OTHER).rename(tmp_path / "kept" / f".{OTHER}.part")

    assert ([2, 2, 2], 2, 1) == (counts, read, disk.count_kept())
    disk.close()


async def test_what_is_set_aside_in_part_is_not_there_at_the_next_start(subject: Subject) -> None:
    """
    A process that dies in the middle leaves its session as it was, and the next attempt begins
    anew.
    """
    await subject.disk.create_kept(SESSION)
    await subject.disk.write_kept(SESSION, 1, b"of the first attempt")
    disk = subject.again()
    assert ([SESSION], []) == (disk.sessions(), disk.kept())

    with pytest.raises(UnavailableError):
        await disk.write_kept(SESSION, 2, b"without a beginning")
    await disk.create_kept(SESSION)
    await disk.finish_kept(SESSION, NOTE)

    assert ([], [SESSION]) == (disk.sessions(), disk.kept())


async def test_what_is_set_aside_is_there_for_a_person_to_look_at(tmp_path: Path) -> None:
    """
    Its files and its note, where the path says; nobody else may read them.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    disk.create_file(SESSION, 1).append([b"x"])
    await disk.create_kept(SESSION)
    await disk.write_kept(SESSION, 7, b"of the first attempt")
    await disk.create_kept(SESSION)
    await disk.write_kept(SESSION, 1, b"kept")
    where = Path(await disk.finish_kept(SESSION, NOTE))
    disk.close()

    assert tmp_path / "kept" / SESSION == where
    found = {path.name: path.read_bytes() for path in where.iterdir()}
    assert {"0000000001.buf": b"kept", "leftovers.json": NOTE} == found
    assert {0o700, 0o600} == {stat.S_IMODE(p.stat().st_mode) for p in (where, *where.iterdir())}
    assert [] == list((tmp_path / "buffer").iterdir())


async def test_a_start_ends_what_a_process_was_cut_off_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Killed between the rename that makes it whole and the removal of the session: it is kept, and
    is not recovered a second time.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    disk.create_file(SESSION, 1).append([b"x"])
    await disk.create_kept(SESSION)
    await disk.write_kept(SESSION, 1, b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(posix_disk, "_remove_folder", lambda _: None)
        await disk.finish_kept(SESSION, NOTE)
        assert [SESSION] == [path.name for path in (tmp_path / "buffer").iterdir()]
        assert [] == disk.sessions()
        await disk.create_session(OTHER)
        await disk.create_kept(OTHER)
        disk.close()

    disk = PosixDisk(tmp_path)

    assert ([OTHER], [SESSION]) == (disk.sessions(), disk.kept())
    assert [OTHER] == [path.name for path in (tmp_path / "buffer").iterdir()]
    assert [SESSION] == [path.name for path in (tmp_path / "kept").iterdir()]
    disk.close()


async def test_a_session_stays_until_what_is_set_aside_of_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A failed fsync of DIR/kept is raised: a power failure may undo the rename.  The session is as
    it was, and the next attempt sets it aside.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    disk.create_file(SESSION, 1).append([b"x"])

    def fails(path: Path) -> None:
        if path.name == "kept":
            raise OSError(5, "Input/output error")

    async def set_aside() -> None:
        await disk.create_kept(SESSION)
        await disk.write_kept(SESSION, 1, b"kept")
        await disk.finish_kept(SESSION, NOTE)

    with monkeypatch.context() as patch:
        patch.setattr(posix_disk, "sync_directory", fails)
        with pytest.raises(UnavailableError, match="Input/output error"):
            await set_aside()
    assert ([SESSION], []) == (disk.sessions(), disk.kept())
    assert b"x" == await disk.read_file(SESSION, 1)

    await set_aside()

    assert ([], [SESSION]) == (disk.sessions(), disk.kept())
    assert [] == list((tmp_path / "buffer").iterdir())
    disk.close()


async def test_a_start_removes_no_session_before_what_is_set_aside_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Killed between the rename and its fsync: the next start repeats the fsync first.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    await disk.create_kept(SESSION)
    with monkeypatch.context() as patch:
        patch.setattr(posix_disk, "_remove_folder", lambda _: None)
        await disk.finish_kept(SESSION, NOTE)
        disk.close()
    steps: list[Path] = []

    with monkeypatch.context() as patch:
        patch.setattr(posix_disk, "sync_directory", steps.append)
        patch.setattr(posix_disk, "_remove_folder", steps.append)
        PosixDisk(tmp_path).close()

    assert [tmp_path / "kept", tmp_path / "buffer" / SESSION] == steps


@pytest.mark.parametrize(
    "note",
    [None, b"", NOTE[:-9], Leftovers(SESSION).encode()],
    ids=["none", "empty", "torn", "of the buffer"],
)
async def test_a_folder_is_set_aside_only_if_its_note_says_so(
    tmp_path: Path, note: bytes | None
) -> None:
    """
    A copy by hand, or what an interrupted removal left, in DIR/kept: the session's records are
    recovered from DIR/buffer.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    disk.create_file(SESSION, 1).append([b"x"])
    disk.close()
    folder = tmp_path / "kept" / SESSION
    folder.mkdir(parents=True)
    (folder / "0000000001.buf").write_bytes(b"x")
    if note is not None:
        (folder / "leftovers.json").write_bytes(note)

    disk = PosixDisk(tmp_path)

    assert ([SESSION], []) == (disk.sessions(), disk.kept())
    assert b"x" == await disk.read_file(SESSION, 1)
    await disk.create_kept(SESSION)
    with pytest.raises(UnavailableError, match=f"{folder}: Directory not empty"):
        await disk.finish_kept(SESSION, NOTE)
    assert [SESSION] == disk.sessions()
    disk.close()


async def test_what_cannot_be_set_aside_stays_where_it_is(subject: Subject) -> None:
    """
    With no room: its session is recovered again.
    """
    await subject.disk.create_kept(SESSION)
    with subject.no_room(), pytest.raises(UnavailableError):
        await subject.disk.write_kept(SESSION, 1, b"x")

    assert [SESSION] == subject.again().sessions()


async def test_what_others_put_into_the_directory_is_no_session(tmp_path: Path) -> None:
    """
    `lost+found`, a backup's copy, a file: nobody recovers or removes them.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    (tmp_path / "buffer" / "lost+found").mkdir()
    (tmp_path / "buffer" / f"{OTHER}.bak").mkdir()
    (tmp_path / "buffer" / OTHER).write_bytes(b"")

    assert [SESSION] == disk.sessions()
    disk.close()


async def test_a_session_that_was_half_made_is_made(disk: AgentDisk) -> None:
    """
    Its folder may be there already, from an attempt whose sync failed.
    """
    await disk.create_session(SESSION)

    await disk.create_session(SESSION)

    assert [SESSION] == disk.sessions()


async def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(tmp_path: Path) -> None:
    """
    What it holds was acknowledged: whoever asks must ask again.
    """
    disk = PosixDisk(tmp_path)
    folder = tmp_path / "buffer" / SESSION
    folder.write_text("no folder")
    with pytest.raises(UnavailableError, match="cannot list"):
        await disk.read_files(SESSION)
    folder.unlink()
    (tmp_path / "buffer").rmdir()

    with pytest.raises(UnavailableError, match="cannot list"):
        disk.sessions()

    assert [] == await disk.read_files(SESSION)
    disk.close()


def test_an_empty_session_is_a_session(subject: Subject) -> None:
    """
    One that died before its first batch is found, so that its head is closed too.
    """
    assert [SESSION] == subject.again().sessions()


# ── Notes ──


async def test_a_note_is_replaced_survives_and_goes_with_its_session(subject: Subject) -> None:
    """
    The newest is there at the next start; it is none of the session's files, and no other
    session's.
    """
    await subject.disk.create_session(OTHER)
    assert await subject.disk.load_note(SESSION) is None
    await subject.disk.save_note(SESSION, b"1")
    await subject.disk.save_note(SESSION, b"22")

    disk = subject.again()
    assert (b"22", None) == (await disk.load_note(SESSION), await disk.load_note(OTHER))
    assert [] == await disk.read_files(SESSION)
    await disk.remove_session(SESSION)
    assert await disk.load_note(SESSION) is None

    with pytest.raises(UnavailableError):
        await disk.save_note(SESSION, b"of a session that is gone")
    await disk.create_session(SESSION)
    assert await disk.load_note(SESSION) is None


async def test_a_note_that_cannot_be_replaced_stays_whole(subject: Subject) -> None:
    """
    With no room the old one stays.
    """
    await subject.disk.save_note(SESSION, b"old")
    with subject.no_room(), pytest.raises(UnavailableError):
        await subject.disk.save_note(SESSION, b"new")

    assert b"old" == await subject.again().load_note(SESSION)


async def test_a_note_is_the_last_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A process that dies while it removes a session leaves no file without the note that says what
    of it is elsewhere already.
    """
    disk = PosixDisk(tmp_path)
    await disk.create_session(SESSION)
    for number in range(1, 4):
        disk.create_file(SESSION, number).append([b"x"])
    await disk.save_note(SESSION, b"note")
    unlink, left = Path.unlink, [2]

    def dying(path: Path, missing_ok: bool = False) -> None:
        if not left[0]:
            raise OSError("killed")
        left[0] -= 1
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        await disk.remove_session(SESSION)

    assert b"note" == await disk.load_note(SESSION)
    assert 1 == len(await disk.read_files(SESSION))
    await disk.remove_session(SESSION)
    assert [] == disk.sessions()
    disk.close()


# ── The event loop ──


async def test_a_disk_whose_fsync_takes_long_does_not_stop_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A cloud disk that stalls for a second would else stop every connection, and the keep-alives.
    """
    disk = PosixDisk(tmp_path)
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    turns: list[bool] = []
    """Whether the event loop had one during each fsync."""

    def slow(_: int) -> None:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        hopeless = threading.get_ident() == thread or False in turns
        turns.append(turned.wait(0 if hopeless else 30))

    monkeypatch.setattr(os, "fsync", slow)
    await disk.create_session(SESSION)
    await disk.save_note(SESSION, b"note")
    await disk.save("node_id.json", b"{}")
    await disk.create_kept(SESSION)
    await disk.write_kept(SESSION, 1, b"x")
    await disk.finish_kept(SESSION, NOTE)
    await disk.create_session(OTHER)
    await disk.save_note(OTHER, b"note")
    await disk.remove_session(OTHER)
    await disk.create_session(OTHER)
    file = disk.create_file(OTHER, 1)
    await file.sync()
    recycled = disk.recycle_file(file, OTHER, 2)
    await recycled.sync()
    disk.close()

    assert len(turns) >= 11
    assert all(turns)


async def test_what_is_asked_at_once_is_done_in_the_order_of_the_calls(disk: AgentDisk) -> None:
    """
    Also behind a call that was cancelled: what it began is over before the next begins.
    """
    for n in range(20):
        saves = [
            asyncio.create_task(disk.save("state.json", b"%d" % i))
            for i in range(10 * n, 10 * n + 9)
        ]
        await asyncio.sleep(0)
        saves[3].cancel()
        saves[8].cancel()
        await asyncio.gather(*saves, disk.save("state.json", b"last"), return_exceptions=True)

        assert b"last" == disk.load("state.json")


# ── Small files ──


def test_a_small_file_that_is_not_there_is_none(disk: AgentDisk) -> None:
    """
    The first start of an agent is no error.
    """
    assert disk.load("node_id.json") is None


async def test_small_files_are_replaced_and_survive(subject: Subject) -> None:
    """
    The newest of each name is there at the next start; they are no sessions.
    """
    await subject.disk.save("node_id.json", b"1")
    await subject.disk.save("other.json", b"")
    await subject.disk.save("node_id.json", b"22")

    disk = subject.again()

    assert (b"22", b"") == (disk.load("node_id.json"), disk.load("other.json"))
    assert [SESSION] == disk.sessions()


async def test_a_small_file_that_cannot_be_replaced_stays_whole(subject: Subject) -> None:
    """
    With no room the old contents stay; with room again the new ones take their place.
    """
    await subject.disk.save("node_id.json", b"old")
    with subject.no_room(), pytest.raises(UnavailableError):
        await subject.disk.save("node_id.json", b"new")

    assert b"old" == subject.disk.load("node_id.json")
    await subject.disk.save("node_id.json", b"new")
    assert b"new" == subject.again().load("node_id.json")


# ── The lock ──


def test_a_second_process_is_refused_and_told_who_has_the_directory(tmp_path: Path) -> None:
    """
    The message names the directory, the process and the way out; a killed holder's lock is free.
    """
    script = (
        "import sys; from pathlib import Path\n"
        "from driftlog_agents.log.local.posix_disk import PosixDisk\n"
        "disk = PosixDisk(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"

    with pytest.raises(DirectoryLockedError) as refusal:
        PosixDisk(tmp_path)
    holder.kill()
    holder.communicate()

    assert f"process {holder.pid})" in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)
    assert "--dir" in str(refusal.value)
    PosixDisk(tmp_path).close()


def test_the_lock_is_free_after_close_and_not_before(tmp_path: Path) -> None:
    """
    A refused attempt takes nothing from the holder, neither the lock nor its name in it.
    """
    first = PosixDisk(tmp_path)
    for _ in range(2):
        with pytest.raises(DirectoryLockedError, match=f"process {os.getpid()}"):
            PosixDisk(tmp_path)
    first.close()

    second = PosixDisk(tmp_path)
    with pytest.raises(DirectoryLockedError, match=f"process {os.getpid()}"):
        PosixDisk(tmp_path)
    second.close()


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    """
    A file stands in its place: the message names it.
    """
    (tmp_path / "taken").write_bytes(b"")

    with pytest.raises(UnavailableError, match=r"taken"):
        PosixDisk(tmp_path / "taken")
