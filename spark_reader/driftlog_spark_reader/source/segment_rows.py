"""The records of a task as Arrow batches, on an executor.

    slice ──▶ footer ──▶ row groups in the slice, one GET each ──▶ CRC ──▶ batches of its offsets

Shell.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_spark_reader.bucket.catalog import DAMAGED, MISSING
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.bucket.timestamps import open_segment
from driftlog_spark_reader.common.errors import DamagedTopicError
from driftlog_spark_reader.source.tasks import SegmentSlice
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import CorruptSegmentError, RowGroup, SegmentReader

_BATCH_BYTES: Final = 1024 * 1024
"""About so much is one Arrow batch.  More: it leaves the caches of a core on its way to the JVM, by
which a scan takes a tenth longer; less: more messages."""

_BATCH_ROWS: Final = 16 * 1024
"""Most rows of one."""


def read_slices(
    location: str, slices: tuple[SegmentSlice, ...], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """The records of the slices, in order; while a row group is decoded, the next one is read.

    Raises:
        DamagedTopicError: a segment is damaged or missing.
        StorageError: the location cannot be read.
    """
    files = _files(location)
    with ThreadPoolExecutor(1, thread_name_prefix="row groups") as pool:
        ahead: Future[pa.Table] | None = None
        for piece, reader, group in _row_groups(files, slices):
            following = pool.submit(_table, files, piece, reader, group, columns)
            if ahead is not None:
                yield from _batches(ahead.result())
            ahead = following
        if ahead is not None:
            yield from _batches(ahead.result())


@lru_cache(maxsize=8)
def _files(location: str) -> Files:
    """The connections of this process: Spark uses its Python workers for many tasks."""
    return open_files(location)


def _row_groups(
    files: Files, slices: tuple[SegmentSlice, ...]
) -> Iterator[tuple[SegmentSlice, SegmentReader, RowGroup]]:
    for piece in slices:
        reader = open_segment(files, piece.segment)
        for group in reader.row_groups:
            if group.first_offset < piece.end and piece.start <= group.last_offset:
                yield piece, reader, group


def _table(
    files: Files, piece: SegmentSlice, reader: SegmentReader, group: RowGroup, columns: list[str]
) -> pa.Table:
    key = piece.segment.key
    data: Buffer | None = files.read_range(key, group.start, group.end)
    if data is None:
        raise DamagedTopicError(f"{files.path(key)}: {MISSING}")
    try:
        table = reader.read_table(group, data, columns)
    except CorruptSegmentError as error:
        raise DamagedTopicError(f"{files.path(key)}: {error}; {DAMAGED}") from error
    if piece.start <= group.first_offset and group.last_offset < piece.end:
        return table
    offsets = table.column("offset")
    inside = pc.and_(
        pc.greater_equal(offsets, piece.start),
        pc.less(offsets, piece.end),
    )
    return table.filter(inside)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    rows = table.num_rows * _BATCH_BYTES // max(1, table.nbytes)
    for batch in table.to_batches(max_chunksize=min(max(1, rows), _BATCH_ROWS)):
        if batch.num_rows:
            yield batch
