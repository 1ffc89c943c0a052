"""A topic by key into a new one with another number of partitions: `repartition_topic`.

    sealed records of the source, at this moment ──▶ partition of the key ──▶ order ──▶ an import

The order in a new partition is (`at`, source partition, source offset).  `at` is a time that never
goes back in a source partition: the largest timestamp of its records up to there, in steps of some
offsets.

1. Records of one source partition keep their order.  So a key does, which a keyed producer has
   written to one partition.
2. Records of several source partitions are in about the order of their timestamps: retention and
   searches by time find them as in the source.  A sort by timestamp alone would turn records of a
   key around, where the clocks of producers went back.
3. A record without a key goes to a partition by a hash of its place in the source: the same one
   each time that Spark computes it.

Root.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # as everywhere

from driftlog_spark_reader.bucket.catalog import find_topic
from driftlog_spark_reader.bucket.session_files import session_files
from driftlog_spark_reader.bulk_import.columns import partition_of_key
from driftlog_spark_reader.bulk_import.importer import (
    SEGMENT_BYTES,
    ImportReport,
    ImportTarget,
    import_records,
)
from driftlog_spark_reader.describe.describe import describe_topic
from driftlog_spark_reader.native.topic_reader import read_topic

_LEAST_STEP: Final = 256
"""Offsets of a source partition with one `at`.  More: times in the new topic go back further."""

_MOST_STEPS: Final = 200_000
"""Which each task has in memory."""

_ORDER: Final = ("at", "source_partition", "source_offset")


@dataclass(frozen=True, slots=True)
class Repartition:
    """What was written; ``offsets``: of the source, ``[start, end)`` by partition."""

    source: str
    target: str
    partitions: int
    records: int
    bytes: int
    segments: int
    offsets: Mapping[int, tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "offsets": {str(p): list(ends) for p, ends in self.offsets.items()},
        }


def repartition_topic(
    spark: SparkSession,
    location: str,
    source: str,
    target: str,
    *,
    partitions: int,
    bootstrap_servers: str | Sequence[str] | None = None,
    configs: Mapping[str, str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    client_config: Mapping[str, Any] | None = None,
) -> Repartition:
    """Write the sealed records of *source* to the new topic *target*, by key.

    Each record goes where Kafka's default partitioner sends its key; keys, values, headers and
    timestamps stay, tombstones too.  Offsets are dense from 0.

    Args:
        spark: a classic session.
        location: where the agents store their objects; executors write to it.
        source: the topic; what is sealed now is copied.
        target: its name, which no topic has.
        partitions: as many as *target* gets.
        bootstrap_servers, client_config: as in `import_parquet`.
        configs: of *target*, over those that *source* has of its own.
        segment_bytes: as in `import_parquet`.

    Raises:
        ValueError: an argument is invalid.
        DataLossError: *source* has records that cannot be decoded.
        ImportTopicError: *target* exists, or the import failed.  Nothing exists of it then: run the
            job again.
        ReadTopicError: *source* cannot be read, as `read_topic` says.
    """
    described = describe_topic(spark, location, source)
    files = session_files(spark, location)
    try:
        own = find_topic(files, source, described.topic_id).configs
    finally:
        files.close()
    goal = ImportTarget(
        location=location,
        topic=target,
        partitions=partitions,
        bootstrap_servers=bootstrap_servers,
        configs={**own, **(configs or {})},
        segment_bytes=segment_bytes,
        client_config=client_config,
    )
    goal.check()
    offsets = {each.partition: (each.log_start, each.sealed_end) for each in described.partitions}
    rows = read_topic(
        spark,
        location,
        source,
        starting_offsets={p: start for p, (start, _) in offsets.items()},
        ending_offsets={p: end for p, (_, end) in offsets.items()},
        topic_id=described.topic_id,
    )
    most = max((end - start for start, end in offsets.values()), default=0)
    step = max(_LEAST_STEP, -(-most * len(offsets) // _MOST_STEPS))
    report = import_records(_records(rows, partitions, step), goal, _ORDER)
    return _repartition(source, report, offsets)


def _repartition(
    source: str, report: ImportReport, offsets: Mapping[int, tuple[int, int]]
) -> Repartition:
    return Repartition(
        source=source,
        target=report.topic,
        partitions=report.partitions,
        records=report.records,
        bytes=report.bytes,
        segments=report.segments,
        offsets=offsets,
    )


def _records(rows: DataFrame, partitions: int, step: int) -> DataFrame:
    """The records as `import_records` takes them, with the columns of `_ORDER`."""
    places = rows.select(
        F.col("partition").alias("source_partition"),
        F.expr(f"offset div {step}").alias("step"),
        F.unix_millis("timestamp").alias("ms"),
    )
    before = (
        Window.partitionBy("source_partition")
        .orderBy("step")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    times = (
        places.groupBy("source_partition", "step")
        .agg(F.max("ms").alias("newest"))
        .select("source_partition", "step", F.max("newest").over(before).alias("at"))
    )
    spread = F.expr(f"cast(pmod(xxhash64(source_partition, source_offset), {partitions}) AS int)")
    return (
        rows.select(
            "key",
            "value",
            F.when(F.size("headers") > 0, F.col("headers")).alias("headers"),
            F.unix_millis("timestamp").alias("ms"),
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            F.expr(f"offset div {step}").alias("step"),
        )
        .join(F.broadcast(times), ["source_partition", "step"])
        .drop("step")
        .withColumn("partition", F.coalesce(partition_of_key(partitions), spread))
    )
