"""Bugs that are put into a stream one by one; some seed of the first few must notice each.

A bug is a patch of the running code, as in `tests/simulation/planted.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driftlog_spark_reader.common.errors import DataLossError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.source import stream_reader
from driftlog_spark_reader.source.stream_offsets import batch_ranges
from driftlog_spark_reader.source.stream_position import decode, encode
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.streams.query import Batch, Query
from tests.spark.streams.run import run_seed

Plant = Callable[[pytest.MonkeyPatch], None]


def committed_before_the_sink(patch: pytest.MonkeyPatch) -> None:
    """A batch is in the commit log before its rows are in the sink."""
    write = Query.write

    def written_last(self: Query, number: int, batch: Batch) -> None:
        self.commit(number)
        self.step()
        write(self, number, batch)

    patch.setattr(Query, "write", written_last)


def hole_not_passed(patch: pytest.MonkeyPatch) -> None:
    """A partition of which a batch would have no record, as compaction left none, stays behind."""
    latest = StreamReader.latestOffset

    def of_records(self: StreamReader, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = latest(self, start, limit)
        begun, last = decode(start), decode(end)
        ends = dict(last.offsets)
        for named in begun.offsets:
            alone = encode(replace(last, offsets={**begun.offsets, named: ends[named]}, start=None))
            try:
                tasks = self.partitions(start, alone)
            except DataLossError:
                return end  # the batch says so
            if not any(found.num_rows for task in tasks for found in self.read(task)):
                ends[named] = begun.offsets[named]
        return start if ends == begun.offsets else encode(replace(last, offsets=ends))

    patch.setattr(StreamReader, "latestOffset", of_records)


def first_start_asked_again(patch: pytest.MonkeyPatch) -> None:
    """The first batch does not log where it began: repeated, it begins where a query would now."""
    patch.setattr(stream_reader, "encode", lambda position: encode(replace(position, start=None)))


def repeated_to_the_newest_end(patch: pytest.MonkeyPatch) -> None:
    """A batch that is repeated has what came since, too."""
    partitions = StreamReader.partitions

    def to_now(
        self: StreamReader, start: dict[str, Any], end: dict[str, Any]
    ) -> list[InputPartition]:
        now = self.latestOffset(start, ReadAllAvailable())
        return partitions(self, start, {**end, **{t: now[t] for t in end if t[0] != "/"}})

    patch.setattr(StreamReader, "partitions", to_now)


def new_partitions_from_their_ends(patch: pytest.MonkeyPatch) -> None:
    """Of a new partition, what was there when the stream first saw it is left out."""
    ranges = batch_ranges

    def without_the_first(
        start: Mapping[NamedPartition, int],
        end: Mapping[NamedPartition, int],
        *more: Any,
        **options: Any,
    ) -> dict[NamedPartition, tuple[int, int]]:
        return ranges({**end, **start}, end, *more, **options)

    patch.setattr(stream_reader, "batch_ranges", without_the_first)


def lost_history_is_no_error(patch: pytest.MonkeyPatch) -> None:
    """A stream that must lose nothing goes on where its records have expired."""
    ranges = batch_ranges

    def lenient(*given: Any, fail_on_data_loss: bool) -> dict[NamedPartition, tuple[int, int]]:
        return ranges(*given, fail_on_data_loss=False)

    patch.setattr(stream_reader, "batch_ranges", lenient)


PLANTED: Final[tuple[Plant, ...]] = (
    committed_before_the_sink,
    hole_not_passed,
    first_start_asked_again,
    repeated_to_the_newest_end,
    new_partitions_from_their_ends,
    lost_history_is_no_error,
)


SEEN_AT: Final[dict[str, tuple[int, ...]]] = {
    "committed_before_the_sink": (9,),
    "hole_not_passed": (1,),
    "first_start_asked_again": (0,),
    "repeated_to_the_newest_end": (0,),
    "new_partitions_from_their_ends": (1,),
    "lost_history_is_no_error": (5,),
}
"""Seeds that notice a bug, tried first."""


def noticed(plant: Plant, seed: int) -> bool:
    """Whether the seed notices the bug."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        return bool(run_seed(seed).failed)
