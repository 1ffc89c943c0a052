"""Sealed records of a topic without Spark: `scan` and `read_arrow`.

    from driftlog_spark_reader import read_arrow, scan
    table = read_arrow("s3://bucket/prefix", "flights")
    scan("s3://bucket/prefix", "flights").polars().group_by("key").len().collect()

Shell.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Unpack

from driftlog_spark_reader.arrow.topic_scan import TopicScan
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.options.arguments import Wanted, batch_options
from driftlog_spark_reader.query.ranges import check_decodable, query_ranges

if TYPE_CHECKING:
    import pyarrow as pa


def scan(location: str, topic: str | Sequence[str], **wanted: Unpack[Wanted]) -> TopicScan:
    """The files of *topic* in one manifest version of each partition; no record is read yet.

    A bucket is reached as the ``AWS_*`` variables and profiles say.

    Args:
        location: a directory, or ``s3://bucket/prefix``.
        topic: its name, or several.
        wanted: as in `read_topic`: ``partitions``, ``starting_offsets``, ``ending_offsets``,
            ``starting_timestamp``, ``ending_timestamp``, ``since``, ``until``, ``topic_id``,
            ``fail_on_data_loss`` and others.

    Raises:
        ValueError: an argument is invalid.
        OffsetOutOfRangeError: requested offsets are deleted, or not sealed yet.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DataLossError: requested records cannot be decoded, and *fail_on_data_loss* is set.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.
    """
    options, time = batch_options(location, topic, **wanted)
    with closing(open_files(location)) as files:
        ranges = query_ranges(files, options, time)
        check_decodable(files, ranges, fail_on_data_loss=options.fail_on_data_loss)
        return TopicScan(files.root, ranges, time)


def read_arrow(
    location: str,
    topic: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    **wanted: Unpack[Wanted],
) -> "pa.Table":
    """The records of *topic* in memory, by partition and offset.

    Args:
        columns: only these are read.
        wanted: as in `scan`.

    Raises:
        What `scan` raises.
    """
    return scan(location, topic, **wanted).to_arrow(columns)
