"""An export has every record of its range once, however often it is begun.

If it failed: files beside the log would lack records, or have them twice.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader.common.errors import (
    DataLossError,
    JobError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
)
from driftlog_spark_reader.jobs.export import export_topic
from driftlog_tiering.formats.manifest import SetLogStart
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
HOUR = 3_600_000


def flights(location: str) -> SealedTopic:
    """Two partitions; 40 records each, a quarter of an hour apart: 2023-11-14 22:13 to 08:00."""
    topic = SealedTopic(location, "flights", partitions=2).create()
    for partition in range(2):
        topic.seal(partition, 0, *([message(n) for n in range(b, b + 10)] for b in (0, 10, 20, 30)))
    return topic


def message(number: int) -> Message:
    """A record with a header, and every third without a value."""
    value = None if number % 3 == 0 else f"v{number}".encode()
    return Message(T0 + number * HOUR // 4, b"k", value, (("h", b"x"),))


def everything(first: int = 0, last: int = 39) -> list[tuple[int, int]]:
    """Partition and offset of records."""
    return [(p, offset) for p in range(2) for offset in range(first, last + 1)]


def written(spark: SparkSession, target: Path | str, kind: str = "parquet") -> list[Any]:
    """Partition and offset of all rows at the target, as Spark finds them."""
    rows = spark.read.format(kind).load(str(target)).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def files(target: Path) -> dict[str, int]:
    """Of the export's data, with the times of their last change."""
    found = [p for p in target.glob("date=*/**/part-*") if not p.name.endswith(".crc")]
    return {str(path.relative_to(target)): path.stat().st_mtime_ns for path in found}


def test_days_are_folders_of_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """
    Readable without Spark; timestamps are Parquet's own type, with time zone.  What the session
    says of them is as before.
    """
    flights(str(tmp_path / "log"))
    target = tmp_path / "target"
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    settings = session.conf.getAll

    found = export_topic(session, str(tmp_path / "log"), "flights", str(target))

    assert settings == session.conf.getAll
    assert (2, 0, 80) == (found.units, found.units_before, found.records)
    assert everything() == written(spark, target)
    assert {"date=2023-11-14", "date=2023-11-15"} == {p.name for p in target.glob("date=*")}
    (one,) = (target / "date=2023-11-14" / "partition=0").glob("part-*.parquet")
    table = pq.ParquetFile(one).read()
    assert "timestamp[us, tz=UTC]" == str(table.schema.field("timestamp").type)
    assert [None, b"v1", b"v2"] == table["value"].to_pylist()[:3]


def test_a_range_of_hours_as_json_of_text(spark: SparkSession, tmp_path: Path) -> None:
    """
    Nulls are there, times are UTC; records outside of the range are not.
    """
    flights(str(tmp_path / "log"))
    target = tmp_path / "target"

    export_topic(
        spark,
        str(tmp_path / "log"),
        "flights",
        str(target),
        format="json",
        unit="hour",
        since=T0 + HOUR,
        until=T0 + 3 * HOUR,
        partitions=[1],
        text=True,
    )

    assert [(1, offset) for offset in range(4, 12)] == written(spark, target, "json")
    assert ["date=2023-11-14/hour=23", "date=2023-11-15/hour=00"] == (
        sorted(str(path.relative_to(target)) for path in target.glob("date=*/hour=*"))
    )
    texts = [p.read_text() for p in target.glob("date=2023-11-15/hour=00/partition=1/part-*")]
    rows = sorted(
        (json.loads(line) for line in "".join(texts).splitlines()), key=lambda r: r["offset"]
    )
    assert "2023-11-15T00:13:20.000Z" in [row["timestamp"] for row in rows]
    assert ["v8", None, "v10", "v11"] == [row["value"] for row in rows]


def test_a_run_that_died_anywhere_is_run_again(spark: SparkSession, tmp_path: Path) -> None:
    """
    Before a unit; while it was written; between its rename and its mark.  Done units stay as they
    are, and records that came since the first run are not in the export.
    """
    log, target = str(tmp_path / "log"), tmp_path / "target"
    topic = flights(log)

    def die(number: int, _: int, __: str) -> None:
        if number == 4:
            raise RuntimeError("killed")

    def run(progress: Any = None) -> Any:
        return export_topic(spark, log, "flights", str(target), unit="hour", progress=progress)

    with pytest.raises(RuntimeError, match="killed"):
        run(die)
    done = files(target)
    assert 3 == len(list((target / "_driftlog" / "done").glob("*.json")))
    topic.seal(0, 40, [message(n) for n in range(10)])
    half = target / "_driftlog" / "part" / "of-a-run" / "2023-11-15T01"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"half")

    with pytest.raises(RuntimeError, match="killed"):
        run(die)
    second = run()

    assert (10, 3) == (second.units, second.units_before)
    assert everything() == written(spark, target)
    assert done.items() <= files(target).items()
    (target / "_driftlog/done/2023-11-15T05.json").unlink()
    third = run()
    assert (9, 8) == (third.units_before, third.records)
    assert everything() == written(spark, target)
    assert (10, 0) == ((last := run()).units_before, last.records)


def test_a_second_run_stops_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """
    A cluster's driver that lost its client goes on: what the second run has marked stays whole.
    """
    log, target = str(tmp_path / "log"), tmp_path / "target"
    flights(log)

    def run(progress: Any = None) -> Any:
        return export_topic(spark, log, "flights", str(target), unit="hour", progress=progress)

    def overtake(number: int, _: int, __: str) -> None:
        if number == 4:
            assert (10, 3) == ((other := run()).units, other.units_before)

    with pytest.raises(JobError, match="another run of the export"):
        run(overtake)

    assert everything() == written(spark, target)
    assert not run().records
    assert everything() == written(spark, target)


def test_a_plan_that_is_not_whole_is_made_again(spark: SparkSession, tmp_path: Path) -> None:
    """
    A run that was killed while it wrote the plan has exported nothing.
    """
    flights(str(tmp_path / "log"))
    target = tmp_path / "target"
    (target / "_driftlog").mkdir(parents=True)
    (target / "_driftlog/export.json").write_text('{"version": 1, "requ')

    export_topic(spark, str(tmp_path / "log"), "flights", str(target))

    assert everything() == written(spark, target)


def test_records_that_expired_since_are_an_error_or_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Of a run that goes on later.
    """
    log, target = str(tmp_path / "log"), tmp_path / "target"
    topic = flights(log)

    def die(number: int, _: int, __: str) -> None:
        if number == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        export_topic(spark, log, "flights", str(target), progress=die)
    topic.edit(0, SetLogStart(log_start=20))

    with pytest.raises(OffsetOutOfRangeError):
        export_topic(spark, log, "flights", str(target))
    export_topic(spark, log, "flights", str(target), skip_expired=True)

    gone = {(0, offset) for offset in range(8, 20)}  # of 2023-11-15
    assert [row for row in everything() if row not in gone] == written(spark, target)


def test_records_that_cannot_be_decoded_are_an_error_or_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Before anything of the target is there.
    """
    log, target = str(tmp_path / "log"), tmp_path / "target"
    flights(log).seal_raw(0, 40, 43)

    with pytest.raises(DataLossError, match="cannot be decoded"):
        export_topic(spark, log, "flights", str(target))
    with pytest.warns(RawSegmentSkippedWarning):
        export_topic(spark, log, "flights", str(target), skip_expired=True)

    assert everything() == written(spark, target)


def test_a_target_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """
    Of another export, or with other files.
    """
    log, target = str(tmp_path / "log"), tmp_path / "target"
    flights(log)
    export_topic(spark, log, "flights", str(target), until=T0 + HOUR)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()

    with pytest.raises(JobError, match="of an export with unit 'day', not 'hour'"):
        export_topic(spark, log, "flights", str(target), until=T0 + HOUR, unit="hour")
    with pytest.raises(JobError, match="has other files"):
        export_topic(spark, log, "flights", str(tmp_path / "taken"))
    with pytest.raises(JobError, match="partitions 0 to 1"):
        export_topic(spark, log, "flights", str(tmp_path / "new"), partitions=[2])
    with pytest.raises(ValueError, match="parquet or json"):
        export_topic(spark, log, "flights", str(tmp_path / "new"), format="csv")


def test_an_export_to_a_bucket(spark: SparkSession, s3a: S3Server, tmp_path: Path) -> None:
    """
    Through S3A, from a bucket.
    """
    log, target = (f"s3a://{s3a.bucket}/{name}" for name in ("log", "target"))
    flights(log)

    export_topic(spark, log, "flights", target)
    again = export_topic(spark, log, "flights", target)

    assert (2, 0) == (again.units_before, again.records)
    assert everything() == written(spark, target)
