"""Whether the sealed records of a topic are whole, and those of another cluster: `audit_topic`.

    manifests ──▶ log start, sealed end, records     one scan ──▶ blocks ──▶ sums, gaps, duplicates
    another cluster's topic, the same offsets        one scan ──▶ blocks ──▶ sums, differences

Offsets without a record are no fault of a compacted topic, nor of transactions; they are named.
Batches that cannot be decoded are a fault, and the audit goes on without them.

Root.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from driftlog import Admin
from driftlog_spark_reader.bucket.session_files import session_files
from driftlog_spark_reader.common.errors import JobError, OffsetOutOfRangeError
from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_spark_reader.describe.describe import describe_topic
from driftlog_spark_reader.describe.topic_description import PartitionDescription
from driftlog_spark_reader.jobs.offset_blocks import (
    blocks_of,
    blocks_with_duplicates,
    blocks_with_gaps,
    differing_blocks,
    partitions_of,
)
from driftlog_spark_reader.jobs.offset_gaps import BITS, Block, Gap, gaps
from driftlog_spark_reader.native.topic_reader import scan_ranges
from driftlog_spark_reader.options.arguments import batch_options
from driftlog_spark_reader.query.ranges import query_ranges
from driftlog_spark_reader.query.wanted_files import PartitionRange, undecodable
from driftlog_spark_reader.tail.kafka_properties import librdkafka_properties

MOST_BLOCKS: Final = 4096
"""Whose gaps are named: 4 KiB each go to the driver.  More: gaps of larger topics are all named."""

_LOOKS: Final = 2
"""At a topic whose files do not have the records that its manifests say: agents may have compacted
or deleted records between the looks at manifests and files."""

_MOST_NAMED: Final = 20
"""Of places that differ, are there twice, or cannot be decoded.  More: longer messages."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One partition, from ``start`` to ``end``; the digest is hexadecimal."""

    partition: int
    start: int
    end: int
    records: int
    digest: str
    gaps: tuple[Gap, ...]
    missing: int
    """Offsets without a record, or with one that cannot be decoded."""
    gaps_are_all: bool
    """False: there are more than are named."""
    faults: tuple[str, ...]

    @property
    def is_dense(self) -> bool:
        """Every offset has a record."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """What `audit_topic` has found."""

    topic: str
    partitions: tuple[PartitionAudit, ...]
    compared_with: str | None

    @property
    def faults(self) -> list[str]:
        """Of all partitions; empty: the topic is whole."""
        return [fault for each in self.partitions for fault in each.faults]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "faults": self.faults}


def audit_topic(
    spark: SparkSession,
    location: str,
    topic: str,
    *,
    partitions: Collection[int] | None = None,
    compare: Mapping[str, str] | None = None,
    compare_topic: str | None = None,
    require_dense: bool = False,
) -> TopicAudit:
    """Read every sealed record of *topic*, and say what is wrong.

    Args:
        spark: a classic session; to compare, with Spark's Kafka source.
        location: a directory, or ``s3://bucket/prefix``.
        topic: its name.
        partitions: only these.
        compare: options ``kafka.*`` of Spark's Kafka source: the cluster whose topic must have the
            same records at the same offsets.
        compare_topic: that topic's name, if it is another.
        require_dense: an offset without a record is a fault.

    Raises:
        JobError: the topic has no such partition, or Spark has no Kafka source.
        ReadTopicError: the topic cannot be read, as `query_ranges` says.
        DriftlogError: the other cluster does not answer, or does not know the topic.
    """
    for _ in range(_LOOKS - 1):
        try:
            found = _look(
                spark, location, topic, partitions, compare, compare_topic or topic, require_dense
            )
        except OffsetOutOfRangeError:
            continue  # The log start moved.
        if not found.faults:
            return found
    return _look(spark, location, topic, partitions, compare, compare_topic or topic, require_dense)


def _look(
    spark: SparkSession,
    location: str,
    topic: str,
    partitions: Collection[int] | None,
    compare: Mapping[str, str] | None,
    other: str,
    require_dense: bool,  # handed on
) -> TopicAudit:
    described = describe_topic(spark, location, topic)
    wanted = {
        each.partition: each
        for each in described.partitions
        if partitions is None or each.partition in set(partitions)
    }
    if partitions is not None and len(wanted) != len(set(partitions)):
        raise JobError(f"topic {topic} has partitions 0 to {len(described.partitions) - 1}")
    options, _ = batch_options(
        location,
        topic,
        partitions=partitions,
        starting_offsets={each.partition: each.log_start for each in wanted.values()},
        ending_offsets={each.partition: each.sealed_end for each in wanted.values()},
        topic_id=described.topic_id,
    )
    with closing(session_files(spark, location)) as files:
        ranges = query_ranges(files, options)
        rows = scan_ranges(spark, files, ranges)
    faults = {each.named.partition: _undecodable(each) for each in ranges}
    blocks = blocks_of(rows, topic).persist()
    try:
        sums = {row.partition: row for row in partitions_of(blocks).collect()}
        _check_sums(topic, wanted, sums, faults)
        for row in blocks_with_duplicates(blocks, _MOST_NAMED).collect():
            faults.setdefault(row.partition, []).append(
                f"{topic}-{row.partition}: {_range(row.block)} have an offset twice"
            )
        incomplete = blocks_with_gaps(blocks, MOST_BLOCKS + 1).collect()
        if compare is not None:
            theirs = _theirs(spark, compare, other, wanted, faults)
            if theirs is not None:
                _compare(topic, blocks, blocks_of(theirs, other), faults)
    finally:
        blocks.unpersist()
    cut = incomplete[MOST_BLOCKS] if len(incomplete) > MOST_BLOCKS else None
    return TopicAudit(
        topic,
        tuple(
            _partition(
                topic,
                each,
                sums.get(each.partition),
                [
                    Block(row.block, row.previous, bytes(row.bitmap))
                    for row in incomplete[:MOST_BLOCKS]
                    if row.partition == each.partition
                ],
                faults[each.partition],
                gaps_are_all=cut is None or each.partition < cut.partition,
                require_dense=require_dense,
            )
            for each in wanted.values()
        ),
        None if compare is None else compare.get("kafka.bootstrap.servers"),
    )


def _undecodable(wanted: PartitionRange) -> list[str]:
    found = [
        (max(segment.base, wanted.start), min(segment.end, wanted.end))
        for _, segment in undecodable([wanted])
    ]
    if not found:
        return []
    named = ", ".join(f"{start} to {end - 1}" for start, end in found[:_MOST_NAMED])
    more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    offsets = sum(end - start for start, end in found)
    return [
        f"{wanted.named}: {offsets} offsets are of batches that cannot be decoded: {named}{more}"
    ]


def _range(block: int) -> str:
    return f"offsets {block * BITS} to {(block + 1) * BITS - 1}"


def _check_sums(
    topic: str,
    wanted: Mapping[int, PartitionDescription],
    sums: Mapping[int, Any],
    faults: dict[int, list[str]],
) -> None:
    """Compare what was read with what the manifests say."""
    if strange := sorted(sums.keys() - wanted.keys()):
        first = min(faults)
        faults[first].append(f"{topic}: files have records of partition {strange[0]}")
    for partition, each in wanted.items():
        found = sums.get(partition)
        records = 0 if found is None else found.records
        name = f"{topic}-{partition}"
        is_wrong = records != each.records if each.records_are_exact else records > each.records
        if is_wrong:
            about = "" if each.records_are_exact else "at most "
            faults[partition].append(
                f"{name}: the files have {records} records, and the manifest {about}{each.records}"
            )
        if found is None:
            continue
        if found.unknown_keys:
            faults[partition].append(f"{name}: {found.unknown_keys} records name another topic")
        if found.first < each.log_start or found.last >= each.sealed_end:
            faults[partition].append(
                f"{name}: records are outside of the log, at {found.first} or {found.last}"
            )


def _theirs(
    spark: SparkSession,
    compare: Mapping[str, str],
    topic: str,
    wanted: Mapping[int, PartitionDescription],
    faults: dict[int, list[str]],
) -> DataFrame | None:
    """The same offsets of the other cluster; None: it has none of them."""
    configs = librdkafka_properties(compare)
    address = configs.pop("bootstrap.servers", None)
    if not address:
        raise ValueError("compare has no kafka.bootstrap.servers")
    with Admin(bootstrap_servers=address, config=configs) as admin:
        starts = admin.topics.offsets(topic, "beginning")
        ends = admin.topics.offsets(topic)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for partition, each in wanted.items():
        if each.log_start == each.sealed_end:
            continue
        start, end = starts.get(partition, 0), ends.get(partition, 0)
        if start > each.log_start or end < each.sealed_end:
            faults[partition].append(
                f"{topic}-{partition}: {address} has offsets {start} to {end}, and here are "
                f"{each.log_start} to {each.sealed_end}"
            )
        low, high = max(start, each.log_start), min(end, each.sealed_end)
        if low < high:
            first[str(partition)], last[str(partition)] = low, high
    if not first:
        return None
    reader = spark.read.format("kafka").options(**compare).option("includeHeaders", "true")
    reader = reader.option("assign", json.dumps({topic: [int(p) for p in first]}))
    reader = reader.option("startingOffsets", json.dumps({topic: first}))
    reader = reader.option("endingOffsets", json.dumps({topic: last}))
    try:
        return reader.load().select(*KAFKA_SCHEMA.fieldNames())
    except AnalysisException as error:
        if "kafka" not in str(error).lower() or "Failed to find data source" not in str(error):
            raise
        raise JobError(
            "this Spark has no Kafka source: give --conf spark.jars.packages=org.apache.spark:"
            f"spark-sql-kafka-0-10_2.13:{spark.version}, or its jars with --jars"
        ) from error


def _compare(topic: str, ours: DataFrame, theirs: DataFrame, faults: dict[int, list[str]]) -> None:
    for row in differing_blocks(ours, theirs, _MOST_NAMED).collect():
        faults.setdefault(row.partition, []).append(
            f"{topic}-{row.partition}: {_range(row.block)} differ from the other cluster's"
        )


def _partition(
    topic: str,
    each: PartitionDescription,
    found: Any,
    blocks: list[Block],
    faults: list[str],
    *,
    gaps_are_all: bool,
    require_dense: bool,
) -> PartitionAudit:
    first, last = (None, None) if found is None else (found.first, found.last)
    missing = each.sealed_end - each.log_start - (0 if found is None else found.offsets)
    named = gaps(each.log_start, each.sealed_end, first, last, blocks)
    if require_dense and missing:
        faults = [*faults, f"{topic}-{each.partition}: offsets without a record: {missing}"]
    either, upper = (0, 0) if found is None else (found.either, int(found.upper))
    return PartitionAudit(
        partition=each.partition,
        start=each.log_start,
        end=each.sealed_end,
        records=0 if found is None else found.records,
        digest=f"{either % 2**64:016x}{upper % 2**64:016x}",
        gaps=tuple(named),
        missing=missing,
        gaps_are_all=gaps_are_all,
        faults=tuple(faults),
    )
