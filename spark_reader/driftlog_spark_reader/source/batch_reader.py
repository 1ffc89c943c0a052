"""The reader of a batch query: ranges become tasks when Spark plans, records come from executors.

Shell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from driftlog_spark_reader.common.schema import column_names
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.query.snapshot import read_snapshot
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.source.tasks import SegmentSlice, plan_tasks, segment_slices, tail_tasks
from driftlog_spark_reader.tail.port import TAIL_TASKS, TailRange, TailReader


@dataclass
class SegmentsPartition(InputPartition):
    """Records of segments that one task of Spark reads."""

    location: str
    slices: tuple[SegmentSlice, ...]


@dataclass
class TailPartition(InputPartition):
    """Records of the tail that one task of Spark reads."""

    reader: TailReader
    pieces: tuple[TailRange, ...]


def input_partitions(
    location: str,
    options: SourceOptions,
    ranges: Sequence[PartitionRange],
    reader: TailReader | None,
) -> list[InputPartition]:
    """The tasks of the ranges: those of segments, and then those of the tail."""
    tasks: list[InputPartition] = [
        SegmentsPartition(location, task)
        for task in plan_tasks(
            list(segment_slices(ranges)),
            min_tasks=options.min_partitions,
            max_records=options.max_records,
        )
    ]
    if reader is not None:
        pieces = [piece for wanted in ranges for piece in wanted.tail]
        most = max(TAIL_TASKS, (options.min_partitions or 0) - len(tasks))
        found = tail_tasks(
            pieces, most, cut=options.min_partitions is not None, max_records=options.max_records
        )
        tasks += [TailPartition(reader, task) for task in found]
    return tasks


def read_task(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task, on an executor."""
    columns = column_names(include_headers=options.include_headers)
    match task:
        case SegmentsPartition(location, slices):
            from driftlog_spark_reader.source.segment_rows import read_slices  # noqa: PLC0415

            yield from read_slices(location, slices, columns)
        case TailPartition(reader, pieces):
            for batch in reader.read(*pieces):
                yield batch.select(columns)
        case _:
            raise AssertionError(task)


class BatchReader(DataSourceReader):
    """Reads the newest manifest versions of when Spark plans the query."""

    def __init__(self, location: str, options: SourceOptions) -> None:
        self._location = location
        self._options = options

    def __getstate__(self) -> dict[str, Any]:
        """What executors need: no passwords."""
        return {**self.__dict__, "_options": replace(self._options, tail={})}

    def partitions(self) -> list[InputPartition]:
        """The tasks; an empty one if there are no records.

        Raises:
            ValueError: the options do not fit the topics.
            ReadTopicError: the topics cannot be read, as `query_ranges` says.
        """
        ranges, reader = read_snapshot(self._location, self._options)
        tasks = input_partitions(self._location, self._options, ranges, reader)
        return tasks or [SegmentsPartition(self._location, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_task(self._options, partition)
