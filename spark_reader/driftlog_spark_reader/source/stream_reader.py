"""The reader of a stream: offsets of its micro-batches on the driver, records from executors.

An offset of the stream has the form of Spark's Kafka source, ``{"flights": {"0": 5, "1": 7}}``: the
next offset to read of each partition.  A batch between two such offsets is the same records
whenever it is planned, from whatever manifest version, but for those that compaction or retention
has removed since.

Spark keeps the end of a batch, and asks again where the first one starts if it must run again.  A
start at the latest offset is another one then, so the first batch of such a query is empty.

Shell.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from driftlog_spark_reader.options.bounds import (
    LATEST,
    Everywhere,
    NamedPartition,
    offsets_json,
    parse_offsets,
)
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.source.batch_reader import input_partitions, read_task
from driftlog_spark_reader.source.stream_log import StreamLog
from driftlog_spark_reader.source.stream_offsets import batch_ranges, limited_ends, new_offsets


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query on the driver, where Spark calls one method at a time; executors have copies
    for `read`, which have no `StreamLog`."""

    def __init__(self, location: str, options: SourceOptions) -> None:
        self._location = location
        self._options = options
        self._log: StreamLog | None = None
        self._latest: dict[NamedPartition, LogEnds] = {}
        self._target: dict[NamedPartition, LogEnds] | None = None
        """Of Trigger.AvailableNow: where the query ends."""
        self._first: dict[NamedPartition, int] | None = None
        """Where a query without a checkpoint starts, if that is the latest offset."""
        self._triggered_s = 0.0

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        found = self._opened().initial_offsets()
        if self._options.starting == Everywhere(LATEST):
            self._first = found
        return offsets_json(found)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends where the log ends now."""
        self._target = self._opened().refresh()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options.

        Spark has no limit with both bounds for Python; `latestOffset` knows the other one.
        """
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; *start* where there is none yet."""
        begun = _offsets(start)
        if begun == self._first:
            self._first = None
            return start
        log = self._opened()
        self._latest = log.refresh() if self._target is None else self._target
        if isinstance(limit, ReadMinRows) and self._is_delayed(begun, limit.min_rows):
            return start
        ends = {named: reach.end for named, reach in self._latest.items()}
        most = None if isinstance(limit, ReadAllAvailable) else self._options.max_offsets
        if most is not None:
            ends = limited_ends(begun, self._latest, most, log.segment_ends)
        return offsets_json(ends) or start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the log, for the query's progress."""
        return offsets_json({named: reach.end for named, reach in self._latest.items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch.

        Raises:
            DataLossError: records of the batch are gone.
        """
        log = self._opened()
        begun, wanted = _offsets(start), _offsets(end)
        if begun == self._first:  # The first batch runs again: it was empty.
            begun = wanted
        ranges = batch_ranges(
            begun,
            wanted,
            log.log_starts(wanted),
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return input_partitions(
            self._location, self._options, log.with_segments(ranges), log.tail_reader()
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint of the query has its offsets."""

    def stop(self) -> None:
        """Release connections."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _opened(self) -> StreamLog:
        if self._log is None:
            self._log = StreamLog(self._location, self._options)
        return self._log

    def _is_delayed(self, start: dict[NamedPartition, int], least: int) -> bool:
        """Whether the batch waits for more records; never at the end of Trigger.AvailableNow."""
        now_s = time.monotonic()
        waited_s = now_s - self._triggered_s
        if (
            self._target is not None
            or waited_s * 1000 >= self._options.max_delay_ms
            or new_offsets(start, self._latest) >= least
        ):
            self._triggered_s = now_s
            return False
        return True


def _offsets(offset: dict[str, Any]) -> dict[NamedPartition, int]:
    return parse_offsets("the stream's offset", json.dumps(offset))
