"""`describe_topic`: what is sealed of each partition, and how far its log goes beyond.

    newest manifests (and segment lists, where their sums do not suffice)  ──▶  sums by partition
    agents, when they are asked: ListOffsets (latest)                      ──▶  log end, lag

No segment is read.

Root.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from driftlog_spark_reader.bucket.catalog import entries
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.session_files import session_files
from driftlog_spark_reader.describe.log_ends import log_ends
from driftlog_spark_reader.describe.topic_description import (
    PartitionDescription,
    describe_partition,
    must_open,
    table,
    to_dict,
)
from driftlog_spark_reader.options.arguments import batch_options
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.query.ranges import THREADS, read_states
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's partitions; as text it is a table, with times in UTC."""

    name: str
    topic_id: UUID
    location: str
    partitions: tuple[PartitionDescription, ...]
    _spark: "SparkSession | None" = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.topic_id}) at {self.location}\n{table(self.partitions)}"

    __repr__ = __str__

    def to_dicts(self) -> list[dict[str, Any]]:
        """A mapping for each partition; times are datetimes in UTC."""
        return [to_dict(partition) for partition in self.partitions]

    def to_dataframe(self) -> "DataFrame":
        """The same rows as `to_dicts`.

        Raises:
            ValueError: the topic was described without a Spark session.
        """
        if self._spark is None:
            raise ValueError("describe_topic(spark, …) makes descriptions that have DataFrames")
        return self._spark.createDataFrame(
            self.to_dicts(),
            "partition int, log_start bigint, sealed_end bigint, records bigint, "
            "records_are_exact boolean, size_bytes bigint, files bigint, "
            "min_timestamp timestamp, max_timestamp timestamp, log_end bigint, lag bigint",
        )


def describe_topic(
    spark: "SparkSession | None",
    location: str,
    topic: str,
    *,
    topic_id: UUID | str | None = None,
    kafka: str | Mapping[str, str] | None = None,
) -> TopicDescription:
    """Describe the sealed part of *topic*.

    Args:
        spark: lists files with its settings; None: PySpark is not needed.
        location: a directory, or ``s3://bucket/prefix``.
        topic: its name.
        topic_id: chooses one when several topics have the name.
        kafka: the address of agents, or librdkafka's configs (``bootstrap.servers`` and those of
            TLS and SASL, with or without ``kafka.`` before them): they are asked for the log's end.

    Raises:
        ValueError: the agents have another topic of this name.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.
        DriftlogError: the agents do not answer, or do not know the topic.
    """
    options, _ = batch_options(location, topic, topic_id=topic_id)
    with closing(session_files(spark, location)) as files:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="manifests") as pool:
            states = read_states(files, options, pool)
            found = list(pool.map(lambda s: _describe(files, s[0], s[1].manifest), states.items()))
        root = files.root
    if kafka is not None:
        # After the manifests: an end that is asked later is not below what is sealed.
        found = _with_ends(found, log_ends(kafka, topic), topic)
    described = next(iter(states.values())).topic
    return TopicDescription(topic, described.topic_id, root, tuple(found), spark)


def _describe(files: Files, named: NamedPartition, manifest: Manifest) -> PartitionDescription:
    def opens(entry: SegmentListRef) -> bool:
        return must_open(entry, manifest.log_start)

    present = entries(files, manifest, manifest.log_start, manifest.end, opens)
    return describe_partition(named.partition, manifest.log_start, manifest.end, present)


def _with_ends(
    partitions: list[PartitionDescription], ends: Mapping[int, int], topic: str
) -> list[PartitionDescription]:
    for each in partitions:
        if ends.get(each.partition, 0) < each.sealed_end:
            raise ValueError(
                f"the agents' log of {topic}-{each.partition} ends at "
                f"{ends.get(each.partition, 0)}, and more is sealed ({each.sealed_end}): they are "
                "not of the cluster that owns this bucket, or have a newer topic of this name"
            )
    return [replace(each, log_end=ends[each.partition]) for each in partitions]
