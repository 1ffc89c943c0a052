"""A time range of a topic as plain Parquet or JSON, day by day or hour by hour: `export_topic`.

    plan, once ──▶ for each unit that is not done:
        read its records ──▶ write to _driftlog/part ──▶ rename to date=… ──▶ mark it as done

A run that ends anywhere is run again: it deletes what is in the place of a unit that is not marked,
and does what is missing.  One run at a time writes to a target: a later one stops an earlier one
that still runs, and no unit is marked that is not what one run has written.

Root.
"""

import json
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader.bucket.hadoop_folders import HadoopFolders
from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.common.session_config import session_config
from driftlog_spark_reader.describe.describe import describe_topic
from driftlog_spark_reader.jobs.export_plan import (
    DONE_PREFIX,
    PART_PREFIX,
    PLAN_KEY,
    RUN_KEY,
    Plan,
    Request,
    Unit,
    check_same,
    decode_plan,
    encode_plan,
)
from driftlog_spark_reader.native.topic_reader import read_topic
from driftlog_spark_reader.options.time_range import Timestamp, timestamp_ms

FORMATS: Final = ("parquet", "json")
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"

Progress = Callable[[int, int, str], None]
"""Is called before each unit, with its number from 1 on, how many there are, and its name."""


@dataclass(frozen=True, slots=True)
class Export:
    """What the target has, and what this run did of it."""

    target: str
    topic: str
    units: int
    units_before: int
    """Done by runs before this one."""
    records: int
    """Written by this run."""
    offsets: Mapping[int, tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "target": self.target,
            "topic": self.topic,
            "units": self.units,
            "units_before": self.units_before,
            "records": self.records,
            "offsets": {str(p): list(ends) for p, ends in self.offsets.items()},
        }


def export_topic(
    spark: SparkSession,
    location: str,
    topic: str,
    target: str,
    *,
    format: str = "parquet",  # noqa: A002  # Spark's word
    unit: str = "day",
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    partitions: Collection[int] | None = None,
    text: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
    skip_expired: bool = False,
    progress: Progress | None = None,
) -> Export:
    """Write the sealed records of *topic* to *target*, each once.

    Args:
        spark: a classic session; its Hadoop settings reach both locations.
        location: a directory, or ``s3://bucket/prefix``.
        topic: its name.
        target: a folder that does not exist, or that the same export has begun.
        format: ``"parquet"`` or ``"json"``, whose keys and values are base64 unless *text*.
        unit: ``"day"`` or ``"hour"``, of UTC.
        since, until: records with timestamps in ``[since, until)``.
        partitions: only these.
        text: key and value are strings (UTF-8).
        options: of Spark's writer, such as ``compression``.
        skip_expired: go on without records that retention removed since the export began, and
            without those that cannot be decoded.
        progress: is told of each unit.

    Raises:
        ValueError: an argument is invalid.
        JobError: the target has other files, or is of another export.
        OffsetOutOfRangeError: records of the export are gone; see *skip_expired*.
        DataLossError: records cannot be decoded; see *skip_expired*.
        StorageError: the target cannot be written.
        ReadTopicError: the topic cannot be read, as `read_topic` says.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; it can be parquet or json")
    if unit not in tuple(Unit):
        raise ValueError(f"unit is {unit!r}; it can be day or hour")
    request = Request(
        location=location,
        topic=topic,
        format=format,
        unit=Unit(unit),
        since_ms=timestamp_ms("since", since),
        until_ms=timestamp_ms("until", until),
        partitions=None if partitions is None else tuple(sorted(set(partitions))),
        text=text,
        options=dict(options),
    )
    folders, run = HadoopFolders(spark, target), uuid.uuid4().hex
    plan = _plan(folders, request)
    if plan is None or _left(folders, plan):
        folders.write(RUN_KEY, run.encode())
        plan = _plan(folders, request)  # another run may have made it
        if plan is None:
            plan = _new_plan(spark, request, skip_expired=skip_expired)
            _check_run(folders, run)
            folders.write(PLAN_KEY, encode_plan(plan))
        _check_run(folders, run)
        folders.delete(PART_PREFIX)
    left, records = _left(folders, plan), 0
    for number, unit_ in enumerate(left, 1 + len(plan.units) - len(left)):
        if progress is not None:
            progress(number, len(plan.units), plan.name(unit_))
        rows = _rows(spark, plan, plan.times(unit_), skip_expired=skip_expired)
        records += _write(rows, folders, plan, unit_, run)
    if left:
        _check_run(folders, run)
    return Export(
        folders.root, topic, len(plan.units), len(plan.units) - len(left), records, plan.offsets
    )


def _left(folders: HadoopFolders, plan: Plan) -> list[int]:
    """The units that are not marked as done."""
    done = set(folders.files.names(DONE_PREFIX))
    return [unit for unit in sorted(plan.units) if f"{plan.name(unit)}.json" not in done]


def _plan(folders: HadoopFolders, request: Request) -> Plan | None:
    """The plan at the target, if there is one."""
    body = folders.files.read(PLAN_KEY)
    plan = None if body is None else decode_plan(body)
    if plan is not None:
        check_same(request, plan.request)
        return plan
    if folders.files.names(DONE_PREFIX):
        raise JobError(f"{folders.files.path(PLAN_KEY)} is damaged: give another target")
    if others := sorted(set(folders.files.names("")) - {"_driftlog"}):
        raise JobError(f"{folders.root} has other files ({others[0]}): give another target")
    return None


def _new_plan(spark: SparkSession, request: Request, *, skip_expired: bool) -> Plan:
    described = describe_topic(spark, request.location, request.topic)
    offsets = {
        each.partition: (each.log_start, each.sealed_end)
        for each in described.partitions
        if request.partitions is None or each.partition in request.partitions
    }
    if request.partitions is not None and len(offsets) != len(request.partitions):
        raise JobError(f"topic {request.topic} has partitions 0 to {len(described.partitions) - 1}")
    without_units = Plan(request, described.topic_id, offsets, {})
    times = request.since_ms, request.until_ms
    rows = _rows(spark, without_units, times, skip_expired=skip_expired)
    unit = F.floor(F.unix_millis("timestamp") / F.lit(request.unit.ms)).cast("bigint")
    counts = {row.unit: row["count"] for row in rows.groupBy(unit.alias("unit")).count().collect()}
    plan = Plan(request, described.topic_id, offsets, dict(sorted(counts.items())))
    for unit_ in plan.units:
        try:
            plan.folder(unit_)
        except OverflowError:
            raise JobError(
                f"{plan.units[unit_]} records have a timestamp that is in no calendar "
                f"({unit_ * request.unit.ms} ms): leave them out with since and until"
            ) from None
    return plan


def _rows(
    spark: SparkSession, plan: Plan, times: tuple[int | None, int | None], *, skip_expired: bool
) -> DataFrame:
    return read_topic(
        spark,
        plan.request.location,
        plan.request.topic,
        partitions=plan.offsets.keys(),
        starting_offsets={p: start for p, (start, _) in plan.offsets.items()},
        ending_offsets={p: end for p, (_, end) in plan.offsets.items()},
        since=times[0],
        until=times[1],
        topic_id=plan.topic_id,
        fail_on_data_loss=not skip_expired,
    )


def _write(rows: DataFrame, folders: HadoopFolders, plan: Plan, unit: int, run: str) -> int:
    spark = rows.sparkSession
    if plan.request.text:
        rows = rows.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})
    written = Observation("unit")
    part = HadoopFolders(spark, f"{folders.root}/{plan.part(unit, run)}")
    writer = rows.observe(written, F.count(F.lit(1)).alias("records")).write
    writer = writer.options(timeZone="UTC", ignoreNullFields="false").options(
        **plan.request.options
    )
    with session_config(spark, _TIMESTAMPS, _timestamps_of_parquet):
        writer.partitionBy("partition").format(plan.request.format).save(part.root)
    records: int = written.get["records"]
    size = part.size()
    _check_run(folders, run)
    folders.delete(plan.done_key(unit))  # of an earlier run, which this one has stopped
    folders.delete(plan.folder(unit))
    folders.rename_here(part, plan.folder(unit))
    _check_run(folders, run)
    if folders.size(plan.folder(unit)) != size:
        raise JobError(
            f"{folders.root}/{plan.folder(unit)} has other files than this run has written: does "
            "another one write there?  Run the export again when it has ended"
        )
    folders.write(plan.done_key(unit), json.dumps({"records": records}).encode())
    return records


def _check_run(folders: HadoopFolders, run: str) -> None:
    if folders.files.read(RUN_KEY) != run.encode():
        raise JobError(
            f"another run of the export to {folders.root} began after this one, and goes on: let "
            "it end, then run the export again if it failed"
        )


def _timestamps_of_parquet(now: str) -> str:
    """Parquet's own type, unless the user has chosen another.

    Spark's default is INT96, which other readers call deprecated, and the writer has no option.
    """
    return "TIMESTAMP_MICROS" if now == "INT96" else now
