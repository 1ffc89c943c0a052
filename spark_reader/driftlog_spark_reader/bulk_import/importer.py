"""A DataFrame of history as a new topic, whose segments executors write into the bucket.

    count ──▶ begin (an agent) ──▶ sort, write segments (executors) ──▶ manifests (driver)
          ──▶ publish (an agent): the topic exists, with all of its records

No record passes an agent.  Until the publication there is no topic: an import that fails leaves
objects that agents delete.

Root.
"""

import re
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # as everywhere
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from pyspark.sql.utils import is_remote

from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.bulk_import.agent_imports import AgentImports, BegunImport, Renewal
from driftlog_spark_reader.bulk_import.columns import check_columns, check_keys, record_columns
from driftlog_spark_reader.bulk_import.object_writes import write_manifests
from driftlog_spark_reader.bulk_import.pieces import (
    ImportPlan,
    PartitionCount,
    plan_import,
    split_large,
)
from driftlog_spark_reader.bulk_import.segment_task import (
    LEADER_EPOCH,
    REFERENCES,
    SegmentTask,
    segment_ref,
)
from driftlog_spark_reader.common.errors import ImportTopicError, TopicExistsError
from driftlog_spark_reader.common.session_config import session_config
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import SegmentRef

SEGMENT_BYTES: Final = 256 * 1024 * 1024
"""A quarter of Kafka's `segment.bytes`: agents do not merge segments of this size."""

_NO_TIMESTAMP_MS: Final = -1
"""Kafka's `NO_TIMESTAMP`: of a record without one."""

_LEAST_RECORDS: Final = 50_000
"""Of a piece.  Fewer: a task costs more than it does."""

_TASKS: Final = 32
"""At least, where the number of cores is not known and there are records for more than one."""

_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES: Final = 512 * 1024
"""Of records that a task gets at once.  Spark's default of 10,000 records, of 1 KiB each, takes 1.3
times as much CPU time for the whole write."""

_WRITTEN: Final = ("ms", "key", "value", "headers")
_OWN_ERROR: Final = re.compile(r"\.(?:ImportTopicError|StorageError): (.+)")

_SAMPLED_ROWS: Final = 1_000
_KEEPS: Final = {"retention.ms": "-1"}

_REFERENCE_TYPE: Final = StructType(
    [
        StructField(
            name,
            {"piece": IntegerType(), "key": StringType()}.get(name, LongType()),
        )
        for name in REFERENCES.names
    ]
)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was imported.  ``bytes``: of the segments in the bucket."""

    topic: str
    topic_id: UUID
    records: int
    bytes: int
    partitions: int
    segments: int


def import_parquet(
    source: DataFrame | str,
    location: str,
    topic: str,
    *,
    partitions: int,
    bootstrap_servers: str | Sequence[str] | None = None,
    configs: Mapping[str, str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    client_config: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Make *source* the new topic *topic*: sorted by partition and time, with offsets from 0.

    The columns are those of Spark's Kafka sink: ``value`` (binary or string), and, where they are
    there, ``key``, ``headers``, ``timestamp`` and ``partition``; others are left out.  A record
    without a partition goes where Kafka's default partitioner sends its key, and without a key to
    any.  One without a timestamp gets the present time.  Records of one partition and time are in
    any order.

    Args:
        source: the records, which Spark computes twice or more; or the path of Parquet files.
        location: where the agents store their objects: a directory, ``s3://bucket/prefix`` or
            ``s3a://…``.  Executors write to it.
        topic: its name, which no topic has.
        partitions: as many as the topic gets.
        bootstrap_servers: where clients reach the agents; None: as in `driftlog.Admin`.
        configs: of the topic.  Unless they have ``retention.ms``, it is -1: with Kafka's default
            of a week, agents would delete older records at once.
        segment_bytes: of records in one segment, before compression.
        client_config: librdkafka's configs, for TLS and SASL.

    Raises:
        ValueError: an argument, or a column.
        ImportTopicError: the topic exists, or the import failed.  Nothing exists of it then, unless
            a line on stderr says that it may be published: the answer was lost.
        StorageError: the bucket.
    """
    rows = _read(source) if isinstance(source, str) else source
    target = ImportTarget(
        location=location,
        topic=topic,
        partitions=partitions,
        bootstrap_servers=bootstrap_servers,
        configs=_KEEPS | dict(configs or {}),
        segment_bytes=segment_bytes,
        client_config=client_config,
    )
    target.check()
    check_columns(rows)
    records = record_columns(rows, partitions, round(time.time() * 1000))
    return import_records(records, target, ("ms",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """Where an import goes: the arguments of `import_parquet`."""

    location: str
    topic: str
    partitions: int
    bootstrap_servers: str | Sequence[str] | None
    configs: Mapping[str, str]
    segment_bytes: int
    client_config: Mapping[str, Any] | None

    def check(self) -> None:
        """
        Raises:
            ValueError: an argument is invalid.
        """
        if not layout.is_topic_name(self.topic):
            raise ValueError(f"{self.topic!r} cannot be a topic's name")
        if self.partitions < 1 or self.segment_bytes < 1:
            raise ValueError("partitions and segment_bytes are at least 1")

    @property
    def shared_location(self) -> str:
        """The location, also where executors have another working directory."""
        return self.location if ":" in self.location else str(Path(self.location).absolute())


def import_records(
    records: DataFrame, target: ImportTarget, order: tuple[str, ...]
) -> ImportReport:
    """Make *records* the new topic: ``key``, ``value``, ``headers``, ``ms``, ``partition``.

    Args:
        records: gives the same rows each time.
        target: is checked.
        order: columns by which the records of a partition are sorted; the first one is a time in
            ms, by which large partitions are cut.

    Raises: as `import_parquet`.
    """
    topic, location = target.topic, target.shared_location
    agents = AgentImports(target.bootstrap_servers, target.client_config)
    begun = agents.begin(topic, target.partitions, target.configs)
    with Renewal(begun.grace, lambda: agents.renew(begun.topic_id)):
        is_publication_sent = False
        try:
            if "compact" in target.configs.get("cleanup.policy", agents.cleanup_policy):
                check_keys(records)
            _check_location(location, topic, begun.topic_id)
            importer = _Importer(target, begun, order)
            report = importer.write(records)
            importer.say("publishing the topic")
            is_publication_sent = True
            agents.publish(topic, begun.topic_id, importer.ends)
        except BaseException as error:
            what = agents.abandon(topic, begun.topic_id, is_publication_sent=is_publication_sent)
            if what and not isinstance(error, TopicExistsError):
                sys.stderr.write(f"import {begun.topic_id} of {topic}: {what}\n")
            raise
    importer.say(f"{report.records} records, {report.bytes} bytes in {report.segments} segments")
    return report


def _read(path: str) -> DataFrame:
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ValueError(f"there is no Spark session to read {path!r} with: make one first")
    return spark.read.parquet(path)


def _check_location(location: str, topic: str, topic_id: UUID) -> None:
    files = open_files(location)
    try:
        if files.read(layout.import_key(topic, topic_id)) is None:
            raise ImportTopicError(
                f"{location} is not where the agents store their objects: give the location "
                "that they have as --store (driftlog dev: the folder objects of --dir)"
            )
    finally:
        files.close()


def _placed(records: DataFrame, plan: ImportPlan, order: tuple[str, ...]) -> DataFrame:
    """The records, each with its piece and its task."""
    time_, columns = order[0], dict.fromkeys((*order, *_WRITTEN))
    if len(plan.pieces) == len(plan.lookups):  # a join would cost a tenth of the import
        tasks = ", ".join(str(piece.task) for piece in plan.pieces)
        piece, task = F.col("partition"), F.expr(f"array({tasks})[partition]")
        return records.select(piece.alias("piece"), task.alias("task"), *columns)
    lookups = records.sparkSession.createDataFrame(
        [
            (one.partition, one.least_ms, one.width_ms, list(one.pieces), list(one.tasks))
            for one in plan.lookups
        ],
        "partition int, least_ms long, width_ms long, pieces array<int>, tasks array<int>",
    )
    at = f"cast(greatest(least(({time_} - least_ms) div width_ms, size(pieces) - 1), 0) AS int)"
    return records.join(F.broadcast(lookups), "partition").select(
        F.expr(f"pieces[{at}]").alias("piece"), F.expr(f"tasks[{at}]").alias("task"), *columns
    )


def _collected(written: DataFrame) -> list[Row]:
    """The rows; raises ImportTopicError: a task's own error, without Spark's around it."""
    try:
        return written.collect()
    except PySparkException as error:
        found = _OWN_ERROR.search(str(error))
        if found is None:
            raise
        raise ImportTopicError(found[1]) from error


def _least(limit: str, records: int) -> str:
    """The smaller of the session's *limit*, which may be none (0), and *records*."""
    return str(min(records, int(limit)) if int(limit) > 0 else records)


class _Importer:
    """One import between its begin and its publication."""

    def __init__(self, target: ImportTarget, begun: BegunImport, order: tuple[str, ...]) -> None:
        self._location = target.shared_location
        self._topic = target.topic
        self._begun = begun
        self._order = order
        self._partitions = target.partitions
        self._segment_bytes = target.segment_bytes
        self._record_bytes = 0.0
        """Of one record, about."""
        self.ends: list[int] = []

    def say(self, what: str) -> None:
        """Show progress."""
        sys.stderr.write(f"import of {self._topic}: {what}\n")
        sys.stderr.flush()

    def write(self, records: DataFrame) -> ImportReport:
        """Write segments and manifests."""
        self.say("counting the records")
        counts = self._counts(records)
        total = sum(count.records for count in counts)
        plan = self._plan(records, counts, total) if total else None
        segments: dict[int, list[SegmentRef]] = {}
        if plan is not None:
            self.say(f"writing {total} records in {plan.tasks} tasks")
            segments = self._segments(records, plan)
        by_partition = {count.partition: count.records for count in counts}
        self.ends = [by_partition.get(number, 0) for number in range(self._partitions)]
        self._check_dense(segments)
        begun = self._begun
        self.say("writing manifests")
        write_manifests(
            self._location,
            self._topic,
            begun.topic_id,
            segments,
            leader_epoch=LEADER_EPOCH,
            author=begun.author,
            grace=begun.grace,
        )
        refs = [ref for of_partition in segments.values() for ref in of_partition]
        return ImportReport(
            topic=self._topic,
            topic_id=begun.topic_id,
            records=total,
            bytes=sum(ref.size_bytes for ref in refs),
            partitions=self._partitions,
            segments=len(refs),
        )

    def _counts(self, records: DataFrame) -> list[PartitionCount]:
        found = records.groupBy("partition").agg(
            F.count(F.lit(1)).alias("records"),
            F.count_if(F.col("ms") < _NO_TIMESTAMP_MS).alias("before_1970"),
            F.min(self._order[0]).alias("least"),
            F.max(self._order[0]).alias("greatest"),
        )
        rows = found.collect()
        counts = [
            PartitionCount(row["partition"], row["records"], row["least"], row["greatest"])
            for row in rows
        ]
        for count, row in zip(counts, rows, strict=True):
            if not 0 <= count.partition < self._partitions:
                raise ValueError(
                    f"{count.records} records are of partition {count.partition}, and the topic "
                    f"gets {self._partitions} partitions: give partitions="
                    f"{count.partition + 1 if count.partition > 0 else '…'}, or correct the column"
                )
            if row["before_1970"]:
                raise ValueError(
                    f"{row['before_1970']} records of partition {count.partition} have a timestamp "
                    "before 1970, which Kafka's clients do not allow: correct it, or leave them out"
                )
        return sorted(counts, key=lambda count: count.partition)

    def _plan(self, records: DataFrame, counts: Sequence[PartitionCount], total: int) -> ImportPlan:
        piece_records = self._piece_records(records, total)
        splits = split_large(counts, piece_records)
        slices: dict[tuple[int, int], int] = {}
        if splits:
            of_split = records.sparkSession.createDataFrame(
                [(split.partition, split.least_ms, split.width_ms) for split in splits],
                "partition int, least_ms long, width_ms long",
            )
            found = (
                records.join(F.broadcast(of_split), "partition")
                .groupBy(
                    "partition",
                    F.expr(f"({self._order[0]} - least_ms) div width_ms").alias("slice"),
                )
                .count()
            )
            slices = {(row["partition"], row["slice"]): row["count"] for row in found.collect()}
        try:
            return plan_import(self._partitions, counts, splits, slices, piece_records)
        except ValueError as error:
            raise ImportTopicError(
                f"the DataFrame has other rows each time ({error}): import df.persist(), or write "
                "it to Parquet first"
            ) from error

    def _piece_records(self, records: DataFrame, total: int) -> int:
        """As many as one segment has, by the size of the first records; fewer where that leaves
        executors without work."""
        sampled = records.limit(_SAMPLED_ROWS).select(
            F.avg(F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0)))
        )
        self._record_bytes = (sampled.collect()[0][0] or 0.0) + 16.0
        remote = is_remote()  # Spark Connect does not say how many cores there are
        tasks = _TASKS if remote else 2 * records.sparkSession.sparkContext.defaultParallelism
        by_size = int(self._segment_bytes / self._record_bytes)
        return max(min(by_size, -(-total // tasks)), min(by_size, _LEAST_RECORDS), 1)

    def _segments(self, records: DataFrame, plan: ImportPlan) -> dict[int, list[SegmentRef]]:
        placed = _placed(records, plan, self._order)
        task = SegmentTask(
            location=self._location,
            topic=self._topic,
            topic_id=self._begun.topic_id,
            segment_bytes=self._segment_bytes,
            pieces={piece.number: piece for piece in plan.pieces},
        )
        written = (
            placed.repartitionById(plan.tasks, F.col("task"))
            .select(*dict.fromkeys(("piece", *self._order, *_WRITTEN)))
            .sortWithinPartitions("piece", *self._order)
            .select("piece", *_WRITTEN)
            .mapInArrow(task, _REFERENCE_TYPE)
        )
        found: dict[int, list[SegmentRef]] = defaultdict(list)
        size = max(1, int(_BATCH_BYTES / self._record_bytes))
        # Spark takes this from the session only.
        with session_config(records.sparkSession, _BATCH, lambda limit: _least(limit, size)):
            rows = _collected(written)
        for row in rows:
            piece = plan.pieces[row["piece"]]
            found[piece.partition].append(segment_ref(row.asDict()))
        return {number: sorted(refs, key=lambda ref: ref.base) for number, refs in found.items()}

    def _check_dense(self, segments: Mapping[int, Sequence[SegmentRef]]) -> None:
        for partition, end in enumerate(self.ends):
            reached = 0
            for ref in segments.get(partition, ()):
                if ref.base != reached:
                    break
                reached = ref.end
            if reached != end:
                raise ImportTopicError(
                    f"partition {partition} has {end} records, and {reached} were written: the "
                    "DataFrame gives other rows each time.  Import df.persist(), or write it to "
                    "Parquet first"
                )
