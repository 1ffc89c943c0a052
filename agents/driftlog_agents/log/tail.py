"""Where the batches of a flush are: in memory, in a buffer file, in the flush object.

Memory is given up first, a buffer file when the disk budget asks for it, and the
flush object stays until everything in it is sealed.  One `TailData` per flush holds
columns, not an object per batch: two million unsealed batches are 60 MB.

Pure.
"""

from array import array
from bisect import bisect_right
from itertools import accumulate
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
