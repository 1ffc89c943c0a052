"""Writes the pieces of one task as segments: what runs on executors.

    rows by piece and time ──▶ offsets ──▶ SegmentWriter, a file ──▶ PUT ──▶ reference ──▶ driver
                                               ╳ other records than were counted: the task fails

A task may run several times, also at once.  Each PUT has a name of its own, and only the references
that come back to the driver are put into manifests; the collector deletes the other objects.

Shell.
"""

import mmap
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.bulk_import.object_writes import put_object
from driftlog_spark_reader.bulk_import.pieces import Piece
from driftlog_spark_reader.common.errors import ImportTopicError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import LeaderEpoch, SegmentRef
from driftlog_tiering.segments.columns import SCHEMA
from driftlog_tiering.segments.segment import NewRows, SegmentWriter

LEADER_EPOCH: Final = 0
"""Of imported records (`import_transactions.IMPORT_EPOCH`)."""

_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Rows are added in pieces of this size: row groups are of equal size."""

REFERENCES: Final = pa.schema(
    [
        ("piece", pa.int32()),
        ("key", pa.string()),
        *(
            (name, pa.int64())
            for name in (
                *("base", "end", "size_bytes", "records", "raw_bytes", "min_timestamp_ms"),
                *("max_timestamp_ms", "max_timestamp_offset", "footer_crc"),
            )
        ),
    ]
)
"""What a task returns: a row for each segment."""


def segment_ref(row: Mapping[str, Any]) -> SegmentRef:
    """The reference in a row of `REFERENCES`."""
    fields = {name: row[name] for name in REFERENCES.names if name != "piece"}
    return SegmentRef(**fields, codec="none", received_bytes=row["raw_bytes"])


@dataclass(frozen=True)
class SegmentTask:
    """What every task of an import knows; Spark sends it to executors.

    ``segment_bytes``: a segment ends when it has so many bytes of records.
    """

    location: str
    topic: str
    topic_id: UUID
    segment_bytes: int
    pieces: Mapping[int, Piece]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write *batches*, sorted by piece and time; returns references."""
        run = _Run(self)
        for batch in batches:
            yield from run.add(batch)
        yield from run.end()


class _Run:
    """One attempt of a task."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._done: set[int] = set()
        self._piece: _PieceWriter | None = None

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        runs = pc.run_end_encode(batch.column("piece"))
        start = 0
        for number, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if self._piece is None or self._piece.number != number:
                yield from self.end()
                assert number not in self._done, "a piece comes once in a task"
                self._done.add(number)
                self._piece = _PieceWriter(self._task, self._task.pieces[number])
            yield from self._piece.add(batch.slice(start, stop - start))
            start = stop

    def end(self) -> Iterator[pa.RecordBatch]:
        if self._piece is not None:
            yield from self._piece.end()


class _PieceWriter:
    """The segments of one piece."""

    def __init__(self, task: SegmentTask, piece: Piece) -> None:
        self._task = task
        self._piece = piece
        self.number = piece.number
        self._next = piece.base
        self._segment: _OpenSegment | None = None

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._check(self._next + rows.num_rows <= self._piece.base + self._piece.records)
        step = max(1, rows.num_rows * _CHUNK_BYTES // max(rows.nbytes, 1))
        for start in range(0, rows.num_rows, step):
            if self._segment is None:
                self._segment = _OpenSegment(self._task, self._piece.partition, self._next)
            chunk = rows.slice(start, step)
            self._segment.add(chunk, self._next)
            self._next += chunk.num_rows
            if self._segment.raw_bytes >= self._task.segment_bytes:
                yield self._finish()

    def end(self) -> Iterator[pa.RecordBatch]:
        self._check(self._next == self._piece.base + self._piece.records)
        if self._segment is not None:
            yield self._finish()

    def _finish(self) -> pa.RecordBatch:
        assert self._segment is not None
        row = self._segment.finish(self._next) | {"piece": self.number}
        self._segment = None
        return pa.RecordBatch.from_pylist([row], schema=REFERENCES)

    def _check(self, as_counted: bool) -> None:
        if not as_counted:
            if self._segment is not None:
                self._segment.abandon()
            raise ImportTopicError(
                f"partition {self._piece.partition} has other records than when they were counted: "
                "the DataFrame gives other rows each time.  Import df.persist(), or write it to "
                "Parquet first"
            )


class _OpenSegment:
    """One segment in a file."""

    def __init__(self, task: SegmentTask, partition: int, base: int) -> None:
        self._task = task
        self._tp = TopicPartition(task.topic_id, partition)
        self._base = base
        self._source = NewRows(LeaderEpoch(LEADER_EPOCH, base))
        self._open = ExitStack()
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="driftlog-import-"))
        self._path = Path(folder) / "segment"
        self._sink = self._open.enter_context(pa.OSFile(str(self._path), mode="wb"))
        self._writer = self._open.enter_context(
            SegmentWriter(
                self._sink,
                topic=task.topic,
                topic_id=task.topic_id,
                partition=partition,
                base=base,
            )
        )

    @property
    def raw_bytes(self) -> int:
        return self._writer.raw_bytes

    def add(self, rows: pa.RecordBatch, first: int) -> None:
        headers = rows.column("headers").cast(SCHEMA.field("headers").type)
        if headers.values.field(0).null_count:
            self.abandon()
            raise ImportTopicError(
                f"a record of partition {self._tp.partition} has a header without a key, which "
                "Kafka does not allow: leave it out, or name it"
            )
        count = rows.num_rows
        columns = {
            "key": rows.column("key").cast(pa.binary()),
            "value": rows.column("value").cast(pa.binary()),
            "partition": pa.repeat(pa.scalar(self._tp.partition, pa.int32()), count),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pc.multiply(rows.column("ms"), 1000).cast(SCHEMA.field("timestamp").type),
            "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
            "headers": headers,
        }
        size = sum(columns[name].nbytes for name in ("key", "value", "headers"))
        self._writer.append_rows(pa.table(columns), self._source, size)

    def finish(self, end: int) -> dict[str, Any]:
        """Put the segment; returns its row of `REFERENCES`, without the piece."""
        with self._open:
            info = self._writer.finish(end)
            self._sink.close()
            task, tp, base = self._task, self._tp, self._base

            def name() -> str:
                return layout.segment_key(task.topic, tp, base, end, secrets.token_hex(8))

            with self._path.open("rb") as file:
                body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                key = put_object(task.location, name, memoryview(body))
        fields = {each: getattr(info, each) for each in REFERENCES.names if hasattr(info, each)}
        return {**fields, "key": key}

    def abandon(self) -> None:
        """Remove the file."""
        self._open.close()
