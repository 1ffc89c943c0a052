"""Where the batches of a flush are: in memory, in a buffer file, in the flush object.

Memory is given up first, a buffer file when the disk budget asks for it, and the
flush object stays until everything in it is sealed.  One `TailData` per flush holds
columns, not an object per batch: two million unsealed batches are 60 MB.

Pure.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from uuid import UUID

from driftlog_agents.log.disk import BufferFile
from driftlog_agents.log.flush import Batch
from driftlog_agents.log.partition import PartitionLog
from driftlog_tiering.flush_object import Footer, Slice


class TailData:
    """The batches of one flush object, in its order: by (topic id, partition, offset)."""

    __slots__ = (
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
        """Byte positions in the flush object."""
        self.max_timestamps_ms = max_timestamps_ms
        self.object_key = ""
        """Of the committed flush object; empty before."""
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
        end = mine[-1].base_offset + mine[-1].records
        slices.append(
            (
                log,
                Slice(
                    log.topic_id, log.partition, mine[0].base_offset, end, len(ordered), len(mine)
                ),
            )
        )
        ordered.extend(mine)
        topics.extend([len(topic_ids) - 1] * len(mine))
        partitions.extend([log.partition] * len(mine))
    lengths = array("i", [b.length for b in ordered])
    columns = (
        topics,
        partitions,
        array("i", [b.leader_epoch for b in ordered]),
        array("q", [b.base_offset for b in ordered]),
        array("i", [b.records - 1 for b in ordered]),
        array("h", [b.attributes for b in ordered]),
        array("q", [b.producer_id for b in ordered]),
        array("h", [b.producer_epoch for b in ordered]),
        array("i", [b.base_sequence for b in ordered]),
        array("q", [b.max_timestamp_ms for b in ordered]),
        array("i", _starts(lengths)),
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


def _starts(lengths: Sequence[int]) -> list[int]:
    starts, at = [], 0
    for length in lengths:
        starts.append(at)
        at += length
    return starts


def _place(data: TailData, ordered: list[Batch]) -> None:
    """Note where memory and the buffer files hold the batches."""
    data.views = [b.view for b in ordered if b.view is not None]
    assert len(data.views) == len(ordered), "a batch keeps its view until it is cut"
    if any(b.file is None for b in ordered):
        return
    numbers: dict[BufferFile, int] = {}
    file_numbers = array("B")
    for b in ordered:
        number = numbers.setdefault(b.file, len(numbers))
        if number > 255:
            return  # spread over more files than there can be: read from the object instead
        file_numbers.append(number)
    data.files = list(numbers)
    data.file_numbers = file_numbers
    data.file_positions = array("q", [b.position for b in ordered])
