"""A buffer file that is deleted or overwritten while it holds uncommitted batches fails here.

Pure.
"""

from collections.abc import Sequence
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.ingest.buffer_files import BufferFiles, BufferSettings, FileInUse
from driftlog_agents.log.local.buffer_format import entries
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import make_batch

SETTINGS = BufferSettings(file_bytes=300, cache_bytes=600, disk_bytes=900)
LOG = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)


class File:
    """Bytes in memory."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.trusted = True
        self.alive = True

    @property
    def size(self) -> int:
        """Written so far."""
        return len(self.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        """As a disk does."""
        start = self.size
        for buffer in buffers:
            self.data += buffer
        return start

    def read(self, start: int, size: int) -> memoryview:
        """As a disk does."""
        return memoryview(self.data)[start : start + size]

    async def sync(self) -> None:
        """Nothing to do."""


def batch(base: int) -> Batch:
    """One of a record."""
    view = memoryview(make_batch([b"x" * (base % 50)]))
    return Batch(view, len(view), base, 0, (1, 0, -1, -1, -1, 0, 0))


class FilesMachine(RuleBasedStateMachine):
    """Batches are written, committed and synced; files come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.files = BufferFiles(SETTINGS)
        self.uncommitted: list[Batch] = []
        self.count = 0
        self.deleted: set[File] = set()
        self.overwritten: set[File] = set()
        self.syncing: FileInUse | None = None

    def _file(self, written: Batch) -> File:
        assert isinstance(written.file, File)
        return written.file

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        files = self.files
        if files.is_full:
            spare, number = files.spare(), files.next_number()
            if spare is not None:
                assert isinstance(spare.file, File)
                assert spare is not self.syncing
                self.overwritten.add(spare.file)
            files.begin(File(), number, spare)
        use = files.newest
        made = [batch(self.count + n) for n in range(count)]
        self.count += count
        use.file.append(files.entries([(LOG, one, None) for one in made]))
        use.uncommitted += count
        for one in made:
            one.file = use.file
        self.uncommitted += made

    @precondition(lambda self: self.uncommitted)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.uncommitted)))
        done, self.uncommitted = self.uncommitted[:count], self.uncommitted[count:]
        if self.files.let_go(done):
            self._delete()

    def _delete(self) -> None:
        for file in self.files.take_deletable():
            assert isinstance(file, File)
            assert self.syncing is None or file is not self.syncing.file
            self.deleted.add(file)

    @precondition(lambda self: bool(list(self.files)) and self.syncing is None)
    @rule(data=st.data(), fails=st.booleans())
    def begin_a_sync(self, data: st.DataObject, fails: bool) -> None:
        self.syncing = data.draw(st.sampled_from(list(self.files)))
        self.syncing.syncing = True
        if fails:
            assert isinstance(self.syncing.file, File)
            self.syncing.file.trusted = False

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def end_the_sync(self) -> None:
        assert self.syncing is not None
        self.syncing.syncing = False
        self.syncing = None
        self._delete()

    @invariant()
    def uncommitted_batches_are_where_they_say(self) -> None:
        for one in self.uncommitted:
            file = self._file(one)
            assert file not in self.deleted | self.overwritten
            assert one.view is not None
            assert bytes(one.view) == bytes(file.read(one.position, one.length))

    @invariant()
    def a_failed_file_is_never_overwritten(self) -> None:
        assert all(file.trusted for file in self.overwritten)

    @invariant()
    def what_is_only_cache_stays_within_the_budget(self) -> None:
        self._delete()
        cache = [use for use in self.files if use.only_cache][:-1]
        if self.files.size_bytes > SETTINGS.disk_bytes:
            assert not [use for use in cache if use is not self.files.newest]


TestFiles = FilesMachine.TestCase


def test_a_recovery_reads_the_entries_of_a_file() -> None:
    """In the order in which they were written, from one file's own number on."""
    files = BufferFiles(SETTINGS)
    files.begin(File(), 99, None)
    number = files.next_number()
    made = [batch(n) for n in range(3)]
    for one in (made[:2], made[2:]):
        files.newest.file.append(files.entries([(LOG, each, None) for each in one]))

    file = files.newest.file
    assert isinstance(file, File)
    found = list(entries(bytes(file.data), number))

    assert [bytes(one.view or b"") for one in made] == [bytes(entry.batch) for entry in found]
