"""A dataset of pyarrow on exactly the requested records of files.

A dataset has one filter for all of its files:

    (partition not in (0, 1) or offset >= (the start of that partition) and …) and timestamp >= …

Each file comes with what its manifest says of it (partition, offsets, times), by which Arrow
reduces the filter: nothing of it is left for a file that is asked for as a whole.  The starts of
1,000 partitions in one lookup cost 3 ms for each file; a term for each partition, 48 ms.

Shell.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, WantedFile
from driftlog_tiering.segments.columns import SCHEMA


def dataset(
    paths: Sequence[str], files: Sequence[WantedFile], time: TimeRange, filesystem: pafs.FileSystem
) -> pads.Dataset:
    """The records of *files*, which are at *paths*, in their order."""
    cut = {file.wanted.named: file.wanted for file in files if _has_other_offsets(file)}
    topics = groupby(cut.values(), key=lambda wanted: wanted.named.topic)
    conditions = [
        *(_in_offsets(topic, list(of_topic)) for topic, of_topic in topics),
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
    return found.filter(reduce(and_, conditions)) if conditions else found


def _has_other_offsets(file: WantedFile) -> bool:
    return file.segment.base < file.wanted.start or file.wanted.end < file.segment.end


def _in_offsets(topic: str, ranges: Sequence[PartitionRange]) -> Any:
    partitions = pa.array([wanted.named.partition for wanted in ranges], pa.int32())
    place = pc.index_in(pc.field("partition"), partitions)
    start, end = (
        pc.choose(place, *map(pc.scalar, bounds))
        for bounds in zip(*((wanted.start, wanted.end) for wanted in ranges), strict=True)
    )
    return (
        (pc.field("topic") != topic)
        | ~pc.is_in(pc.field("partition"), partitions)
        | ((pc.field("offset") >= start) & (pc.field("offset") < end))
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
