"""The format driftlog in a session: SQL, views, locations, errors, damaged and vanished files.

If it failed: a query would not find the log, or would say nothing useful about what is wrong.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader import AmbiguousTopicError, DataLossError, read_topic, register
from driftlog_spark_reader.options.bounds import offsets_json
from driftlog_spark_reader.source.stream_position import decode
from driftlog_tiering.formats.manifest import ReplaceSegments, SetLogStart
from tests.spark.test_read_topic import flights, message, offsets, plan
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import SealedTopic

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ALL = {0: [*range(30)], 1: [*range(10)]}


def test_the_start_of_a_stream_imports_nothing_that_its_driver_does_not_use() -> None:
    """
    Spark starts a Python process for each stream, and the first batch waits for its imports.
    """
    unused = ["confluent_kafka", "pyarrow.parquet", "pyarrow.compute", "asyncio", "boto3"]
    program = (
        "import sys, pyspark.sql.streaming.python_streaming_source_runner; there = {*sys.modules}; "
        f"import pyspark_driftlog; print(sorted({{*{unused}}} & {{*sys.modules}} - there))"
    )

    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "[]" == found.stdout.strip()


@pytest.mark.parametrize("kind", ["directory", "url", "s3", "s3a"])
def test_the_format_reads_every_kind_of_location(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """
    Without a JVM's file system: with the agents' object store, found through the environment.
    """
    location = str(tmp_path / "a b")
    if kind in ("s3", "s3a"):
        server: S3Server = request.getfixturevalue("s3a")
        location = f"{kind}://{server.bucket}/some/prefix"
    flights(location)
    if kind == "url":
        location = f"file://{location.replace(' ', '%20')}"

    df = spark.read.format("driftlog").option("location", location).option("subscribe", "flights")

    assert ALL == offsets(df.load())
    assert ALL == offsets(df.option("includeHeaders", "true").load())


def test_a_view_in_sql_is_one_statement(spark: SparkSession, tmp_path: Path) -> None:
    """
    Options of SQL, and `path` for the location.
    """
    flights(str(tmp_path))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW some_flights USING driftlog "
        f"OPTIONS (path '{tmp_path}', subscribe 'flights', endingOffsets "
        '\'{"flights":{"0":3,"1":-1,"2":0}}\')'
    )

    assert {0: [0, 1, 2], 1: [*range(10)]} == offsets(spark.table("some_flights"))


def test_a_dataframe_shows_the_log_of_its_first_action(spark: SparkSession, tmp_path: Path) -> None:
    """
    Spark asks a Python source for tasks once for each load; a view is loaded once.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [message(0, 0)])
    reader = spark.read.format("driftlog").options(location=str(tmp_path), subscribe="t")
    df = reader.load()
    topic.seal(0, 1, [message(0, 1)])
    first = df.count()
    topic.seal(0, 2, [message(0, 2)])

    assert (2, 2, 3) == (first, df.count(), reader.load().count())


def test_register_makes_a_native_view_of_each_live_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    A deleted topic has none; filters of a view reach the Parquet scan; the format knows the
    location from then on.
    """
    location = str(tmp_path)
    flights(location)
    dashed = SealedTopic(location, "with-dash.dot").create()
    dashed.seal(0, 0, [message(0, 0)])
    SealedTopic(location, "gone").create().delete()

    views = register(spark, location, prefix="log_")

    assert ["log_flights", "log_with-dash.dot"] == views
    assert [(5,)] == [
        tuple(row)
        for row in spark.sql(
            "SELECT count(*) FROM log_flights WHERE partition = 0 AND offset < 5"
        ).collect()
    ]
    assert "PushedFilters: [IsNotNull(partition), IsNotNull(offset)" in plan(
        spark.sql("SELECT value FROM log_flights WHERE partition = 0 AND offset < 5")
    )
    assert {0: [0]} == offsets(spark.table("`log_with-dash.dot`"))
    assert ALL == offsets(spark.read.format("driftlog").option("subscribe", "flights").load())
    dashed.delete()
    assert ["log_flights"] == register(spark, location, prefix="log_")
    assert not spark.catalog.tableExists("`log_with-dash.dot`")
    SealedTopic(location, "flights").create()
    SealedTopic(location, "other").create().seal(0, 0, [message(0, 0)])
    with pytest.raises(AmbiguousTopicError, match="choose one with topic_id"):
        register(spark, location, prefix="all_")
    assert {0: [0]} == offsets(spark.table("all_other"))


def test_register_takes_the_session_s_location(spark: SparkSession, tmp_path: Path) -> None:
    """
    Also one that was set after the start of the session.
    """
    flights(str(tmp_path))
    spark.conf.set("spark.driftlog.location", str(tmp_path))
    try:
        assert ["flights"] == register(spark, topics=["flights"])
    finally:
        spark.conf.unset("spark.driftlog.location")
    with pytest.raises(ValueError, match=r"set spark\.driftlog\.location"):
        register(spark)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "flihts"}, "no topic flihts at .*; there are: flights"),
        ({"subscribe": "a/b"}, "'a/b' cannot be a topic's name"),
        ({"subscribe": "flights", "location": "/not/there"}, "directory /not/there does not exist"),
        ({"subscribe": "flights", "location": "ftp://x/y"}, "there is no store for ftp"),
        ({"subscribe": "flights", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "flights", "endingOffsets": '{"flights":{"0":31,"1":1,"2":0}}'}, "seal the"),
    ],
)
def test_an_error_says_what_to_do(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    """
    Spark wraps it, and shows it.
    """
    flights(str(tmp_path))
    reader = spark.read.format("driftlog").options(**{"location": str(tmp_path), **options})

    with pytest.raises(Exception, match=said):
        reader.load().collect()


def test_another_schema_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """
    The source has a fixed one, as Spark's Kafka source.
    """
    flights(str(tmp_path))
    reader = spark.read.format("driftlog").options(location=str(tmp_path), subscribe="flights")

    with pytest.raises(Exception, match="fixed schema"):
        reader.schema("key STRING, value STRING").load().collect()


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_a_damaged_segment_fails_the_query_with_its_path(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    """
    Damaged bytes are never read as records, and a lost file is no empty one.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    (ref,) = topic.seal(0, 0, [message(0, i) for i in range(100)])
    path = tmp_path / ref.key
    body = bytearray(path.read_bytes())
    path.unlink()
    if damage != "missing":
        body[200] ^= 0x55
        path.write_bytes(body[:-9] if damage == "cut" else body)
    reader = spark.read.format("driftlog").options(location=str(tmp_path), subscribe="t")

    advice = r"load\(\) again if the DataFrame" if damage == "missing" else "restore it from a copy"
    with pytest.raises(Exception, match=f"{ref.key}.*{advice}"):
        reader.load().collect()


class Stream:
    """A query with a checkpoint that is run to the end of the log, again and again."""

    def __init__(self, spark: SparkSession, folder: Path, location: str, **options: str) -> None:
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self._options = {
            "location": location,
            "subscribe": "t",
            "startingOffsets": "earliest",
            **options,
        }
        self.batches: list[list[tuple[int, int]]] = []

    def run(self) -> list[tuple[int, int]]:
        """(partition, offset) of the records of a run; `batches` has them by batch."""

        def collect(df: Any, _: int) -> None:
            rows = df.select("partition", "offset").collect()
            if rows:
                self.batches.append(sorted((row[0], row[1]) for row in rows))

        self.batches = []
        query = (
            self._spark.readStream.format("driftlog")
            .options(**self._options)
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        if error := query.exception():
            raise error
        return sorted(place for batch in self.batches for place in batch)

    def offset(self) -> Any:
        """The offset of the last batch, as the checkpoint has it."""
        files = [f for f in (self._checkpoint / "offsets").iterdir() if f.name.isdecimal()]
        newest = max(files, key=lambda file: int(file.name))
        return offsets_json(decode(json.loads(newest.read_text().splitlines()[-1])).offsets)


def places(partition: int, *of: int) -> list[tuple[int, int]]:
    """Offsets of a partition."""
    return [(partition, offset) for offset in of]


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """
    New segments, a compacted one in place of those that were read, a new partition, and a log
    start inside of what was read: each record once.
    """
    location = str(tmp_path / "objects")
    topic = SealedTopic(location, "t", partitions=2).create()
    first = topic.seal(0, 0, [message(0, i) for i in range(5)], [message(0, i) for i in (5, 6, 7)])
    stream = Stream(spark, tmp_path, location)

    assert places(0, *range(8)) == stream.run()
    assert {"t": {"0": 8, "1": 0}} == stream.offset()
    assert [] == stream.run()

    (merged,) = topic.put(0, 0, [message(0, 0), None, None, *(message(0, i) for i in range(3, 8))])
    topic.edit(0, ReplaceSegments(replaced=first, added=(merged,)))
    topic.edit(0, SetLogStart(4))
    topic.seal(0, 8, [message(0, 8)])
    topic.seal(1, 0, [message(1, 0)])

    assert [(0, 8), (1, 0)] == stream.run()


def test_limited_batches_end_with_segments(spark: SparkSession, tmp_path: Path) -> None:
    """
    Each is at most the limit; a segment that is larger than it is cut.
    """
    location = str(tmp_path / "objects")
    topic = SealedTopic(location, "t").create()
    for base, count in ((0, 4), (4, 4), (8, 20), (28, 2)):
        topic.seal(0, base, [message(0, base + i) for i in range(count)])
    stream = Stream(spark, tmp_path, location, maxOffsetsPerTrigger="10")

    assert places(0, *range(30)) == stream.run()
    assert [8, 10, 10, 2] == [len(batch) for batch in stream.batches]


def test_expired_history_fails_the_stream_unless_it_may_lose_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    The error says which offsets are gone; failOnDataLoss=false goes on with what is left.
    """
    location = str(tmp_path / "objects")
    topic = SealedTopic(location, "t").create()
    topic.seal(0, 0, [message(0, i) for i in range(5)])
    Stream(spark, tmp_path, location).run()
    topic.seal(0, 5, [message(0, i) for i in range(5, 20)])
    topic.edit(0, SetLogStart(10))

    with pytest.raises(Exception, match="t-0: offsets 5 to 9 are gone") as caught:
        Stream(spark, tmp_path, location).run()

    assert DataLossError.__name__ in str(caught.value)
    kept = Stream(spark, tmp_path, location, failOnDataLoss="false").run()
    assert places(0, *range(10, 20)) == kept


def test_a_topic_that_is_made_again_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """
    However many records it has; a stream that may lose records reads it from its first one.
    """
    location = str(tmp_path / "objects")
    topic = SealedTopic(location, "t").create()
    topic.seal(0, 0, [message(0, i) for i in range(3)])
    assert places(0, 0, 1, 2) == Stream(spark, tmp_path, location).run()
    topic.delete()
    again = SealedTopic(location, "t").create()
    again.seal(0, 0, [message(0, i) for i in range(8)])

    with pytest.raises(Exception, match="t-0: the topic was deleted and made again"):
        Stream(spark, tmp_path, location).run()

    kept = Stream(spark, tmp_path, location, failOnDataLoss="false").run()
    assert places(0, *range(8)) == kept


def test_names_of_views_that_differ_in_case_only_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    One view would hide the other.
    """
    flights(str(tmp_path))
    SealedTopic(str(tmp_path), "Flights").create()

    with pytest.raises(ValueError, match="Flights, flights differ in case only"):
        register(spark, str(tmp_path))


def test_read_topic_takes_several_topics(spark: SparkSession, tmp_path: Path) -> None:
    """
    Offsets of both, and a cut in one of them, which is none in the other.
    """
    location = str(tmp_path)
    flights(location)
    SealedTopic(location, "other").create().seal(0, 0, [message(0, i) for i in range(10)])

    df = read_topic(
        spark, location, ["flights", "other"], starting_offsets={"flights": {0: 5, 1: 8}}
    )

    assert {"flights": 27, "other": 10} == {
        row[0]: row[1] for row in df.groupBy("topic").count().collect()
    }
