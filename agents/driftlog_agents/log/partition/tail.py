"""Where the batches of a flush are: in memory, in a buffer file, in the flush object.

Memory is given up first, a buffer file when the disk budget requires it.  The flush object stays
until everything in it is sealed, or a rewrite has replaced it.  One `FlushBatches` per flush holds
columns, not an object per batch: two million unsealed batches are 60 MB.

The columns of a flush never change.  Each slice names the object that holds it (`StoredAt`): a
rewrite replaces slices in the log and changes none, so a read that found its slice before an await
finds the same bytes after it.  Memory and buffer files belong to the flush, and are given up for
all of its slices at once.

Pure.
"""

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Final
from uuid import UUID

from driftlog_agents.log.local.disk import BufferFile
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_tiering.formats.flush_object import (
    FLUSHED_AT,
    NOT_KNOWN,
    Footer,
    RestoreFacts,
    Slice,
)

_VIEW_BYTES: Final = 256
"""Memory of a batch beside its own bytes: a memoryview, and its entries in lists."""

_base: Final = itemgetter(0)
"""The base offset of a slice."""


class FlushBatches:
    """The batches of one flush object, in its order: by (topic id, partition, offset)."""

    __slots__ = (
        "_header_times",
        "base_offsets",
        "file_numbers",
        "file_positions",
        "files",
        "held_bytes",
        "lengths",
        "max_timestamps_ms",
        "positions",
        "session_id",
        "size_bytes",
        "views",
    )

    def __init__(
        self,
        *,
        session_id: str,
        base_offsets: "array[int]",
        lengths: "array[int]",
        positions: "array[int]",
        max_timestamps_ms: "array[int]",
    ) -> None:
        self.session_id = session_id
        """The session that flushed it."""
        self.base_offsets = base_offsets
        self.lengths = lengths
        self.positions = positions
        """Byte positions in the flush.  The batches of one slice stand back to back, here and in
        every object that holds them: see `StoredAt`."""
        self.max_timestamps_ms = max_timestamps_ms
        """The largest timestamp of each batch, as its header says; no more than its records from
        log start on have, once they were searched in vain."""
        self._header_times = max_timestamps_ms
        """As their headers say; others may have the same array."""
        self.views: list[memoryview | bytes] | None = None
        self.files: list[BufferFile] = []
        self.file_numbers: array[int] | None = None
        self.file_positions: array[int] | None = None
        self.size_bytes = positions[-1] + lengths[-1] if positions else 0
        self.held_bytes = self.size_bytes
        """Bytes that `views` keep: of a view, all of the frame that it is a part of."""

    @classmethod
    def of_footer(cls, footer: Footer) -> "FlushBatches":
        """From the footer of a committed object that this session read, and did not write."""
        columns = footer.columns
        return cls(
            session_id=footer.session_id,
            base_offsets=columns[3],
            lengths=columns[11],
            positions=columns[10],
            max_timestamps_ms=columns[9],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def limit_time(self, index: int, most_ms: int) -> None:
        """No record of the batch at *index* from log start on is later than *most_ms*."""
        if self.max_timestamps_ms[index] <= most_ms:
            return
        if self.max_timestamps_ms is self._header_times:
            self.max_timestamps_ms = self._header_times[:]
        self.max_timestamps_ms[index] = most_ms

    def index_of(self, offset: int, first: int, count: int) -> int:
        """Index of the batch in ``[first, first + count)`` that holds *offset*."""
        index = bisect_right(self.base_offsets, offset, first, first + count) - 1
        assert index >= first
        return index

    def bytes_before(self, index: int, first: int) -> int:
        """Bytes of the batches ``[first, index)``, which stand back to back."""
        return self.positions[index] - self.positions[first]

    def read_local(self, index: int) -> memoryview | bytes | None:
        """The batch at *index* from memory or from its buffer file; None: neither has it, or the
        file is not trusted.

        Raises:
            UnavailableError: the disk failed; the flush object has it too, once committed.
        """
        if self.views is not None:
            return self.views[index]
        if self.file_positions is None or self.file_numbers is None:
            return None
        file = self.files[self.file_numbers[index]]
        if not (file.alive and file.trusted):
            return None
        return file.read(self.file_positions[index], self.lengths[index])

    @property
    def view_bytes(self) -> int:
        """Memory that `views` take, while there are any."""
        return self.held_bytes + len(self.lengths) * _VIEW_BYTES

    @property
    def in_files(self) -> bool:
        """Whether every batch is in a buffer file that still exists, and no sync of it failed."""
        return self.file_positions is not None and all(f.alive and f.trusted for f in self.files)

    @property
    def is_local(self) -> bool:
        """Whether memory or buffer files hold all its batches."""
        return self.views is not None or self.in_files


def span_bytes(data: FlushBatches, first: int, end: int) -> int:
    """Bytes of the batches ``[first, end)``, which stand back to back in the flush object."""
    return data.positions[end - 1] + data.lengths[end - 1] - data.positions[first]


def last_that_fits(data: FlushBatches, first: int, stop: int, room_bytes: int) -> int:
    """The largest *end* ≤ *stop* with ``[first, end)`` within *room_bytes*; *first* if none."""
    limit = data.positions[first] + room_bytes
    end = bisect_right(data.positions, limit, first, stop)
    if end > first and data.positions[end - 1] + data.lengths[end - 1] > limit:
        end -= 1
    return max(end, first)


def tail_slice(
    data: FlushBatches, s: Slice, stored_at: StoredAt, flushed: tuple[int, int] = (0, 0)
) -> TailSlice:
    """The slice *s* of a committed flush, for the tail of its partition; *flushed*: when its first
    batch was flushed, and the last time any of it was (ms, wall clocks)."""
    _, _, base, end, first, count = s
    size = span_bytes(data, first, first + count)
    return TailSlice(base, end, data, first, count, size, stored_at, *flushed)


def flushed_between(footer: Footer, s: Slice) -> tuple[int, int]:
    """When the first batch of *s* was flushed, and the last time any of it was."""
    times = footer.columns[FLUSHED_AT][s.first : s.first + s.count]
    return times[0], max(times)


def object_range(
    data: FlushBatches, first: int, end: int, stored_at: StoredAt
) -> tuple[str, int, int]:
    """Object key, start and end of the batches ``[first, end)`` of one slice in the bucket."""
    start = data.positions[first] + stored_at.shift_bytes
    return stored_at.object_key, start, start + span_bytes(data, first, end)


def move(log: PartitionLog, footer: Footer, s: Slice, object_key: str) -> None:
    """From now on reads of *log* take the slice *s* of a consolidated object from *object_key*,
    where it is not local: memory and buffer files stay as they are.  Reads that found their slices
    before continue with the old object.

    The tail's slices are parts of *s*, except ranges that were sealed before it was written.
    """
    bases, positions = footer.columns[3], footer.columns[10]
    tails = log.slices
    at = max(bisect_right(tails, s.base, key=_base) - 1, 0)
    while at < len(tails) and tails[at].base < s.end:
        tail = tails[at]
        data = tail.data
        assert isinstance(data, FlushBatches)
        if tail.base < s.base < tail.end:
            assert s.base <= log.sealed_end, f"{s.base} of {log!r} was left out of a rewrite"
            first = data.index_of(s.base, tail.first, tail.count)
            count = tail.first + tail.count - first
            size = sum(data.lengths[first : first + count])
            flushed_at_ms = footer.columns[FLUSHED_AT][s.first]
            times = (flushed_at_ms, tail.flushed_until_ms)
            tail = TailSlice(s.base, tail.end, data, first, count, size, tail.stored_at, *times)
            log.trim(tail)
        if s.base <= tail.base and tail.end <= s.end:
            index = bisect_left(bases, tail.base, s.first, s.first + s.count)
            assert bases[index] == tail.base
            shift = positions[index] - data.positions[tail.first]
            log.move(at, StoredAt(object_key, shift))
        at += 1


def unsealed_sessions(log: PartitionLog, end: int) -> set[str]:
    """The sessions that flushed batches of *log* at and above *end*: their flush records hold
    them."""
    sessions: set[str] = set()
    for tail in log.slices:
        if tail.end > end:
            sessions.add(session_of(tail))
    return sessions


def session_of(tail: TailSlice) -> str:
    """The id of the session that flushed *tail*."""
    assert isinstance(tail.data, FlushBatches)
    return tail.data.session_id


def restore_facts(batches: dict[PartitionLog, list[Batch]]) -> RestoreFacts:
    """What a restore needs of a cut buffer, in the order of `lay_out`."""
    names: dict[UUID, str] = {}
    epoch_starts: array[int] = array("q")
    log_starts: array[int] = array("q")
    for log in sorted(batches, key=_order):
        names[log.topic_id] = log.topic
        starts = dict(log.epochs)
        mine = batches[log]
        epoch_starts.extend([starts.get(b.leader_epoch, NOT_KNOWN) for b in mine])
        log_starts.extend([log.log_start] * len(mine))
    return RestoreFacts(tuple(names.values()), epoch_starts, log_starts)


def _order(log: PartitionLog) -> tuple[bytes, int]:
    return log.topic_bytes, log.partition


def lay_out(
    batches: dict[PartitionLog, list[Batch]], session_id: str, flushed_at_ms: int = 0
) -> tuple[
    FlushBatches, tuple[UUID, ...], tuple["array[int]", ...], list[tuple[PartitionLog, Slice]]
]:
    """Sort a cut buffer into a flush object's order.  *flushed_at_ms*: when it was cut, by the wall
    clock; 0: not known.

    Returns the flush's batches, topic ids and columns for the footer, and each partition's slice.
    """
    logs = sorted(batches, key=_order)
    topic_ids: list[UUID] = []
    ordered: list[Batch] = []
    topics: array[int] = array("i")
    partitions: array[int] = array("i")
    slices: list[tuple[PartitionLog, Slice]] = []
    for log in logs:
        mine = batches[log]
        if not topic_ids or topic_ids[-1] != log.topic_id:
            topic_ids.append(log.topic_id)
        slices.append(
            (
                log,
                Slice(
                    log.topic_id,
                    log.partition,
                    mine[0].base_offset,
                    mine[-1].end_offset,
                    len(ordered),
                    len(mine),
                ),
            )
        )
        ordered.extend(mine)
        topics.extend([len(topic_ids) - 1] * len(mine))
        partitions.extend([log.partition] * len(mine))
    lengths = array("i", [b.length for b in ordered])
    records, attributes, producer_ids, producer_epochs, sequences, _, max_timestamps = zip(
        *[b.checked for b in ordered], strict=True
    )
    columns = (
        topics,
        partitions,
        array("i", [b.leader_epoch for b in ordered]),
        array("q", [b.base_offset for b in ordered]),
        array("i", [n - 1 for n in records]),
        array("h", attributes),
        array("q", producer_ids),
        array("h", producer_epochs),
        array("i", sequences),
        array("q", max_timestamps),
        array("i", accumulate(lengths[:-1], initial=0)),
        lengths,
        array("q", [flushed_at_ms]) * len(ordered),
    )
    data = FlushBatches(
        session_id=session_id,
        base_offsets=columns[3],
        lengths=lengths,
        positions=columns[10],
        max_timestamps_ms=columns[9],
    )
    _place(data, ordered)
    return data, tuple(topic_ids), columns, slices


def _place(data: FlushBatches, ordered: list[Batch]) -> None:
    """Note where memory and the buffer files hold the batches."""
    data.views = [b.view for b in ordered if b.view is not None]
    assert len(data.views) == len(ordered), "a batch keeps its view until it is cut"
    files = [b.file for b in ordered]
    numbers = {file: number for number, file in enumerate(dict.fromkeys(files))}
    if None in numbers or len(numbers) > 256:
        return  # not all in files, or in more than a byte can number: read from the object instead
    data.files = list(numbers)
    data.file_numbers = array("B", map(numbers.__getitem__, files))
    data.file_positions = array("q", [b.position for b in ordered])
