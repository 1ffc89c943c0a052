"""Where the batches of a flush are: in memory, in a buffer file, in the flush object.

Memory is given up first, a buffer file when the disk budget asks for it, and the
flush object stays until everything in it is sealed.  One `TailData` per flush holds
columns, not an object per batch: two million unsealed batches are 60 MB.

Pure.
"""

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Final
from uuid import UUID

from driftlog_agents.log.disk import BufferFile
from driftlog_agents.log.flush import Batch
from driftlog_agents.log.partition import PartitionLog, TailSlice
from driftlog_tiering.flush_object import Footer, Slice

_base: Final = itemgetter(0)
"""Of a slice."""


class TailData:
    """The batches of one flush object, in its order: by (topic id, partition, offset)."""

    __slots__ = (
        "_moved_to",
        "_objects",
        "base_offsets",
        "file_numbers",
        "file_positions",
        "files",
        "lengths",
        "max_timestamps_ms",
        "object_key",
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
        """Who flushed it."""
        self.base_offsets = base_offsets
        self.lengths = lengths
        self.positions = positions
        """Byte positions in the flush object, or in the one that replaced it.  The batches of one
        slice stand back to back in one object."""
        self.max_timestamps_ms = max_timestamps_ms
        self.object_key = ""
        """Of the committed flush object; empty before.  Its batches may be elsewhere by now: see
        `object_of`."""
        self._objects: list[str] = []
        self._moved_to: array[int] | None = None
        """By batch: 0, or 1 + where the object that it was moved to stands in `_objects`."""
        self.views: list[memoryview | bytes] | None = None
        self.files: list[BufferFile] = []
        self.file_numbers: array[int] | None = None
        self.file_positions: array[int] | None = None
        self.size_bytes = positions[-1] + lengths[-1] if positions else 0

    @classmethod
    def of_footer(cls, footer: Footer, object_key: str) -> "TailData":
        """Of a committed object that was found, not written, by this session."""
        columns = footer.columns
        data = cls(
            session_id=footer.session_id,
            base_offsets=columns[3],
            lengths=columns[11],
            positions=columns[10],
            max_timestamps_ms=columns[9],
        )
        data.object_key = object_key
        return data

    def __len__(self) -> int:
        return len(self.lengths)

    def object_of(self, index: int) -> str:
        """Key of the object that has the batch at *index*, at ``positions[index]``."""
        number = 0 if self._moved_to is None else self._moved_to[index]
        return self._objects[number - 1] if number else self.object_key

    def move(self, first: int, count: int, object_key: str, position: int) -> None:
        """The batches ``[first, first + count)`` of one slice stand in *object_key* now, from
        *position* on."""
        if self._moved_to is None:
            self._moved_to = array("H", bytes(2 * len(self)))
        if object_key not in self._objects:
            self._objects.append(object_key)
        number = self._objects.index(object_key) + 1
        shift = position - self.positions[first]
        stop = first + count
        self._moved_to[first:stop] = array("H", [number]) * count
        self.positions[first:stop] = array("i", [at + shift for at in self.positions[first:stop]])

    def index_of(self, offset: int, first: int, count: int) -> int:
        """Index of the batch in ``[first, first + count)`` that holds *offset*."""
        index = bisect_right(self.base_offsets, offset, first, first + count) - 1
        assert index >= first
        return index

    def read_local(self, index: int) -> memoryview | bytes | None:
        """The batch at *index* from memory or from its buffer file; None: neither has it, or the
        file is not trusted.

        Raises:
            UnavailableError: the disk fails; the flush object has it too, once committed.
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
    def in_files(self) -> bool:
        """Every batch is in a buffer file that is still there, and no sync of it failed."""
        return self.file_positions is not None and all(f.alive and f.trusted for f in self.files)


def move(log: PartitionLog, footer: Footer, s: Slice, object_key: str) -> None:
    """What *log* has in its tail of the slice *s* of a consolidated object is read there from now
    on, where it is not here: memory and buffer files are as they were.

    The tail's slices are parts of *s*, but for what was sealed already when it was written.
    """
    bases, positions = footer.columns[3], footer.columns[10]
    tails = log.slices
    at = max(bisect_right(tails, s.base, key=_base) - 1, 0)
    while at < len(tails) and tails[at].base < s.end:
        tail = tails[at]
        data = tail.data
        assert isinstance(data, TailData)
        if tail.base < s.base < tail.end:
            assert s.base <= log.sealed_end, f"{s.base} of {log!r} was left out of a rewrite"
            first = data.index_of(s.base, tail.first, tail.count)
            count = tail.first + tail.count - first
            size = sum(data.lengths[first : first + count])
            tail = TailSlice(s.base, tail.end, data, first, count, size)
            log.trim(tail)
        if s.base <= tail.base and tail.end <= s.end:
            index = bisect_left(bases, tail.base, s.first, s.first + s.count)
            assert bases[index] == tail.base
            data.move(tail.first, tail.count, object_key, positions[index])
        at += 1


def unsealed_sessions(log: PartitionLog, end: int) -> set[str]:
    """Who flushed what *log* has at and above *end*: whose flush records continue it there."""
    sessions: set[str] = set()
    for tail in log.slices:
        if tail.end > end:
            assert isinstance(tail.data, TailData)
            sessions.add(tail.data.session_id)
    return sessions


def lay_out(
    batches: dict[PartitionLog, list[Batch]], session_id: str
) -> tuple[TailData, tuple[UUID, ...], tuple["array[int]", ...], list[tuple[PartitionLog, Slice]]]:
    """Sort a cut buffer into a flush object's order.

    Returns its data, the topic ids and columns for the footer, and the slice of each partition.
    """
    logs = sorted(batches, key=lambda log: (log.topic_bytes, log.partition))
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
    )
    data = TailData(
        session_id=session_id,
        base_offsets=columns[3],
        lengths=lengths,
        positions=columns[10],
        max_timestamps_ms=columns[9],
    )
    _place(data, ordered)
    return data, tuple(topic_ids), columns, slices


def _place(data: TailData, ordered: list[Batch]) -> None:
    """Note where memory and the buffer files hold the batches."""
    data.views = [b.view for b in ordered if b.view is not None]
    assert len(data.views) == len(ordered), "a batch keeps its view until it is cut"
    files = [b.file for b in ordered]
    numbers = {file: number for number, file in enumerate(dict.fromkeys(files))}
    if None in numbers or len(numbers) > 256:
        return  # spread over more files than there can be: read from the object instead
    data.files = list(numbers)
    data.file_numbers = array("B", map(numbers.__getitem__, files))
    data.file_positions = array("q", [b.position for b in ordered])
