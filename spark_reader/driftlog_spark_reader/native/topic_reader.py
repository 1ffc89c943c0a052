"""Sealed segments of topics as one DataFrame.

    newest manifest of each partition ──▶ ranges ──▶ exact files ──▶ Spark's own Parquet scan

No code of driftlog runs per record, and on executors only for the tail.

Root.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.session_files import session_files
from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_spark_reader.native.file_list import read_files
from driftlog_spark_reader.native.plan import Scan, plan_scans
from driftlog_spark_reader.native.tail_rows import tail_rows
from driftlog_spark_reader.options.arguments import ByPartition, OffsetsArgument, batch_options
from driftlog_spark_reader.options.time_range import ALL_TIMES, TimeRange, Timestamp
from driftlog_spark_reader.query.snapshot import read_snapshot
from driftlog_spark_reader.query.wanted_files import PartitionRange


def read_topic(
    spark: SparkSession,
    location: str,
    topic: str | Sequence[str],
    *,
    partitions: Collection[int] | None = None,
    starting_offsets: OffsetsArgument = "earliest",
    ending_offsets: OffsetsArgument = "latest",
    starting_timestamp: Timestamp | None = None,
    ending_timestamp: Timestamp | None = None,
    starting_offsets_by_timestamp: ByPartition | None = None,
    ending_offsets_by_timestamp: ByPartition | None = None,
    starting_offsets_by_timestamp_strategy: str = "error",
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    topic_id: UUID | str | None = None,
    fail_on_data_loss: bool = True,
    include_tail: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """The sealed records of *topic*, with the columns of Spark's Kafka source and headers.

    The call reads one manifest version per partition, and the DataFrame always shows that state, as
    long as the files exist: replaced and expired ones stay for a grace period (12 h).  It does not
    hold records that are not sealed yet, unless *include_tail* adds them.

    Args:
        spark: the Hadoop settings of a classic session reach the location; with Spark Connect, this
            process lists a directory, or a bucket with the agents' S3 client.
        location: a directory, ``s3://bucket/prefix`` or ``s3a://…``.
        topic: its name, or several.
        partitions: only these are read, of each topic.
        starting_offsets: ``"earliest"``, ``{0: 5}``, or Spark's ``{"topic":{"0":5}}``, as JSON too.
        ending_offsets: ``"latest"`` or offsets likewise, exclusive.
        starting_timestamp: each partition starts at its first record with this timestamp or a later
            one, as Spark's ``startingTimestamp``: epoch milliseconds, or a datetime with a time
            zone.
        ending_timestamp: each partition ends before its first such record.
        starting_offsets_by_timestamp, ending_offsets_by_timestamp: the same by partition, as
            ``starting_offsets``.
        starting_offsets_by_timestamp_strategy: for a partition where no record is that late:
            ``"error"``, or ``"latest"``: none of its records is read.
        since, until: records whose own timestamp is in ``[since, until)``, wherever they stand in
            the log; segments without such records are not read.
        topic_id: chooses one when several topics have the name.
        fail_on_data_loss: False: leave out offsets that are deleted, not sealed yet, or cannot be
            decoded, instead of raising.
        include_tail: add what is committed and not sealed: every record that was acknowledged when
            this call began.
        options: of the tail: ``kafka.bootstrap.servers``, or ``etcd``, and others of
            `tail.open_tail`.

    Raises:
        ValueError: an argument is invalid.
        OffsetOutOfRangeError: requested offsets are deleted, or not sealed yet.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DataLossError: requested records cannot be decoded, and *fail_on_data_loss* is set.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.
    """
    query, time = batch_options(
        location,
        topic,
        partitions=partitions,
        starting_offsets=starting_offsets,
        ending_offsets=ending_offsets,
        starting_timestamp=starting_timestamp,
        ending_timestamp=ending_timestamp,
        starting_offsets_by_timestamp=starting_offsets_by_timestamp,
        ending_offsets_by_timestamp=ending_offsets_by_timestamp,
        starting_offsets_by_timestamp_strategy=starting_offsets_by_timestamp_strategy,
        since=since,
        until=until,
        topic_id=topic_id,
        fail_on_data_loss=fail_on_data_loss,
    )
    flags = {"includeTail": str(include_tail), "failOnDataLoss": str(fail_on_data_loss)}
    query = replace(query, tail={**options, **flags})
    files = session_files(spark, location)
    ranges, reader = read_snapshot(location, query, time, lambda: files)
    sealed = scan_ranges(spark, files, ranges, time)
    pieces = [piece for wanted in ranges for piece in wanted.tail]
    if reader is None or not pieces:
        return sealed
    return sealed.unionAll(tail_rows(spark, reader, pieces, time))


def scan_ranges(
    spark: SparkSession,
    files: Files,
    ranges: Sequence[PartitionRange],
    time: TimeRange = ALL_TIMES,
) -> DataFrame:
    """The sealed records of *ranges*; those that cannot be decoded are left out."""
    scans = plan_scans(ranges, time)
    if not scans:
        return spark.createDataFrame([], KAFKA_SCHEMA)

    def one(scan: Scan) -> DataFrame:
        rows = read_files(spark, files, scan.segments)
        return rows if scan.condition is None else rows.where(scan.condition)

    return reduce(DataFrame.unionAll, map(one, scans))
