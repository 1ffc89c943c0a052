"""A dataset of pyarrow on exactly the requested records of files.

A dataset has one filter for all of its files:

    (partition != 0 or 13 <= offset < 30) and (partition != 1 or …) and (timestamp >= …)

Each file comes with what its manifest says of it (partition, offsets, times), by which Arrow
reduces the filter: nothing of it is left for a file that is asked for as a whole.

Shell.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, WantedFile
from driftlog_tiering.formats.columns import SCHEMA


def dataset(
    paths: Sequence[str], files: Sequence[WantedFile], time: TimeRange, filesystem: pafs.FileSystem
) -> pads.Dataset:
    """The records of *files*, which are at *paths*, in their order."""
    cut = {file.wanted.named: file.wanted for file in files if not file.is_whole}
    conditions = [
        *map(_in_offsets, cut.values()),
        *([] if time.start_ms is None else [pc.field("timestamp") >= _timestamp(time.start_ms)]),
        *([] if time.end_ms is None else [pc.field("timestamp") < _timestamp(time.end_ms)]),
    ]
    parquet = pads.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            path,
            filesystem,
            partition_expression=_known(file) if conditions else None,
            # Not the size of the manifest: of an object that is shorter, pyarrow 26 then reads what
            # its buffer held before.
        )
        for path, file in zip(paths, files, strict=True)
    ]
    found = pads.FileSystemDataset(fragments, SCHEMA, parquet, filesystem)
    return found.filter(_all(conditions)) if conditions else found


def _in_offsets(wanted: PartitionRange) -> Any:
    topic, partition = wanted.named
    return (
        (pc.field("partition") != pa.scalar(partition, pa.int32()))
        | (pc.field("topic") != topic)
        | ((pc.field("offset") >= wanted.start) & (pc.field("offset") < wanted.end))
    )


def _known(file: WantedFile) -> Any:
    segment = file.segment
    topic, partition = file.wanted.named
    return (
        (pc.field("topic") == topic)
        & (pc.field("partition") == pa.scalar(partition, pa.int32()))
        & (pc.field("offset") >= segment.base)
        & (pc.field("offset") < segment.end)
        & (pc.field("timestamp") >= _timestamp(segment.min_timestamp_ms))
        & (pc.field("timestamp") <= _timestamp(segment.max_timestamp_ms))
    )


def _timestamp(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1_000, pa.timestamp("us", tz="UTC"))


def _all(conditions: Sequence[Any]) -> Any:
    """Their conjunction, as a tree that is not deep: Arrow walks it by recursion."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return _all(conditions[:half]) & _all(conditions[half:])
