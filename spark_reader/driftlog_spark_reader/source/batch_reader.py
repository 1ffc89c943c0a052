"""The reader of a batch query: ranges become tasks when Spark plans, records come from executors.

Shell.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.common.schema import column_names
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.query.ranges import query_ranges, warn_of_undecodable
from driftlog_spark_reader.source.segment_rows import read_slices
from driftlog_spark_reader.source.tasks import SegmentSlice, plan_tasks, segment_slices


@dataclass
class SegmentTask(InputPartition):
    """What one task of Spark reads."""

    location: str
    slices: tuple[SegmentSlice, ...]


class BatchReader(DataSourceReader):
    """Reads the newest manifest versions of when Spark plans the query."""

    def __init__(self, location: str, options: SourceOptions) -> None:
        self._location = location
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks; an empty one if there are no records.

        Raises:
            ValueError: the options do not fit the topics.
            ReadTopicError: the topics cannot be read, as `query_ranges` says.
        """
        files = open_files(self._location)
        try:
            ranges = query_ranges(files, self._options)
            warn_of_undecodable(files, ranges)
        finally:
            files.close()
        tasks = plan_tasks(
            list(segment_slices(ranges)),
            min_tasks=self._options.min_partitions,
            max_records=self._options.max_records,
        )
        return [SegmentTask(self._location, task) for task in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        assert isinstance(partition, SegmentTask)
        columns = column_names(include_headers=self._options.include_headers)
        return read_slices(partition.location, partition.slices, columns)
