"""The reader of a stream: offsets of its micro-batches on the driver, records from executors.

An offset of the stream is that of Spark's Kafka source, and the ids of its topics
(`stream_position`).  A batch between two such offsets is the same records
whenever it is planned, from whatever manifest version, but for those that compaction or retention
has removed since.

Shell.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from driftlog_spark_reader.common.errors import SealedMeanwhileError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.source.batch_reader import input_partitions, read_task
from driftlog_spark_reader.source.stream_log import StreamLog
from driftlog_spark_reader.source.stream_offsets import (
    batch_ranges,
    limited_ends,
    made_again,
    new_offsets,
    shorter_logs,
)
from driftlog_spark_reader.source.stream_position import (
    UNRESOLVED,
    Position,
    decode,
    encode,
    sealed_behind,
)

_LOOKS: Final = 5
"""Of one batch: the tail is sealed, or deleted, between its plan and the look before it once in a
while at most."""


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
        self._triggered_s = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        """What executors need: neither connections nor passwords."""
        return {**self.__dict__, "_options": replace(self._options, tail={}), "_log": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts; the log is not looked at for it."""
        return dict(UNRESOLVED)

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
        """Where the next batch ends; *start* where there is none yet.

        Raises:
            ValueError: the options do not fit the topics, where the query has no batch yet.
            DataLossError: a log is shorter than it was.
        """
        log = self._opened()
        if start == UNRESOLVED:
            start = encode(self._first())
        begun = decode(start)
        logs = log.refresh()
        self._latest = _up_to(self._target, logs)
        ids = log.ids()
        remade = made_again(begun.offsets, begun.ids, ids)
        same = {named: begun.offsets[named] for named in begun.offsets.keys() - remade}
        least_ends = begun.least_ends(has_tail=log.has_tail)
        shorter = shorter_logs(
            {named: end for named, end in least_ends.items() if named in same},
            logs,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        if isinstance(limit, ReadMinRows) and self._is_delayed(same, limit.min_rows):
            return start
        # A target of before the start, and a tail that is not read any more, take no query back.
        ends = {named: max(reach.end, same.get(named, 0)) for named, reach in self._latest.items()}
        ends |= shorter
        most = None if isinstance(limit, ReadAllAvailable) else self._options.max_offsets
        if most is not None:
            reached = {n: LogEnds(reach.start, ends[n]) for n, reach in self._latest.items()}
            ends = limited_ends(same, reached, most, log.segment_ends)
        # A partition that came behind the target, and before the query's start, stays where it is.
        ends |= {named: same[named] for named in (same.keys() & logs.keys()) - ends.keys()}
        if ends == begun.offsets and not remade:
            return start
        sealed = sealed_behind(ends, log.sealed_ends(), logs, begun)
        first = begun.offsets if begun.is_first else None
        return encode(Position(ends, ids, start=first, sealed=sealed))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the log, for the query's progress."""
        return encode(Position({n: reach.end for n, reach in self._latest.items()})) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch.

        Raises:
            DataLossError: records of the batch are gone.
            OffsetOutOfRangeError: records of the batch cannot be read yet.
        """
        last = decode(end)
        if last.is_first:
            return []  # The first batch had no record.
        log = self._opened()
        begun = self._begun(start, last)
        logs = log.logs_to(last.offsets)
        for _ in range(_LOOKS - 1):
            try:
                return self._tasks(log.with_segments(self._ranges(begun, last, logs)))
            except SealedMeanwhileError:
                logs = log.refresh()
        return self._tasks(log.with_segments(self._ranges(begun, last, logs)))

    def _begun(self, start: dict[str, Any], last: Position) -> Position:
        """Where a batch begins; a converted checkpoint may have planned the first one."""
        if start != UNRESOLVED:
            return decode(start)
        return self._first() if last.start is None else Position(last.start)

    def _first(self) -> Position:
        """Where the query starts, as its options say now."""
        log = self._opened()
        offsets = log.initial_offsets()
        sealed = sealed_behind(offsets, log.sealed_ends(), log.logs(), Position({}))
        return Position(offsets, log.ids(), is_first=True, sealed=sealed)

    def _ranges(
        self, begun: Position, last: Position, logs: Mapping[NamedPartition, LogEnds]
    ) -> dict[NamedPartition, tuple[int, int]]:
        """What a batch reads, as of the last look."""
        log = self._opened()
        gone = made_again(last.offsets, last.ids, log.ids())
        there = {named: reach for named, reach in logs.items() if named not in gone}
        shorter = shorter_logs(
            last.least_ends(has_tail=log.has_tail),
            there,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return batch_ranges(
            begun.offsets,
            {**last.offsets, **shorter},
            there,
            made_again(begun.offsets.keys() & last.offsets.keys(), begun.ids, last.ids) - gone,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _tasks(self, ranges: list[PartitionRange]) -> list[InputPartition]:
        reader = self._opened().tail_reader()
        return input_partitions(self._location, self._options, ranges, reader)

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
        now_s = monotonic()
        waited_s = now_s - self._triggered_s
        if (
            self._target is not None
            or waited_s * 1000 >= self._options.max_delay_ms
            or new_offsets(start, self._latest) >= least
        ):
            self._triggered_s = now_s
            return False
        return True


def _up_to(
    target: dict[NamedPartition, LogEnds] | None, logs: dict[NamedPartition, LogEnds]
) -> dict[NamedPartition, LogEnds]:
    """The logs as far as the query goes."""
    if target is None:
        return logs
    return {
        named: LogEnds(reach.start, min(reach.end, target[named].end))
        for named, reach in logs.items()
        if named in target
    }
