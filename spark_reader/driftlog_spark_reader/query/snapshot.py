"""One state of the topics for a batch query: sealed records, and the tail behind them.

Shell.
"""

from collections.abc import Callable
from typing import Final

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.common.errors import SealedMeanwhileError
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.options.time_range import ALL_TIMES, TimeRange
from driftlog_spark_reader.query.ranges import check_decodable, query_ranges
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.tail.open_tail import open_tail
from driftlog_spark_reader.tail.port import TailReader

_LOOKS: Final = 5
"""Of one query: what is sealed between the look at the tail and its plan is looked at again."""


def read_snapshot(
    location: str,
    options: SourceOptions,
    time: TimeRange = ALL_TIMES,
    open_bucket: Callable[[], Files] | None = None,
) -> tuple[list[PartitionRange], TailReader | None]:
    """The ranges of a batch query, and what executors read the tail with; None: without a tail.

    Args:
        open_bucket: opens the location for manifests; None: without a JVM.

    Raises:
        ValueError: the options do not fit the topics.
        ReadTopicError: the topics cannot be read, as `query_ranges` says.
    """
    tail = open_tail(options.tail, location)
    try:
        files = open_files(location) if open_bucket is None else open_bucket()
        try:
            looks = _LOOKS
            while True:
                try:
                    ranges = query_ranges(files, options, time, tail)
                    break
                except SealedMeanwhileError:
                    looks -= 1
                    if not looks:
                        raise
            check_decodable(files, ranges, fail_on_data_loss=options.fail_on_data_loss)
            return ranges, None if tail is None else tail.reader()
        finally:
            files.close()
    finally:
        if tail is not None:
            tail.close()
