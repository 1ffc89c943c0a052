"""`read_topic` gives the records of real segments, from a directory and through S3A."""

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader import (
    KAFKA_SCHEMA,
    AmbiguousTopicError,
    DamagedTopicError,
    DataLossError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    StorageError,
    UnknownTopicError,
    read_topic,
)
from driftlog_spark_reader.bucket.catalog import find_topic
from driftlog_spark_reader.bucket.local_files import LocalFiles
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import SetLogStart
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.folder_markers import make_markers
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000
SOME_HEADERS = (("source", b"JFK"), ("empty", b""), ("null", None))


def message(partition: int, offset: int) -> Message:
    """A record that says where it is, with the corner cases in turn."""
    return Message(
        T0 + 1_000 * offset,
        key=(None, b"", f"k{offset}".encode())[offset % 3],
        value=None if offset % 5 == 4 else f"{partition}/{offset}".encode(),
        headers=SOME_HEADERS if offset % 2 else (),
    )


def flights(location: str, name: str = "flights") -> SealedTopic:
    """Three partitions: 30 records in three segments, 10 in one, none."""
    topic = SealedTopic(location, name, partitions=3).create()
    for base, codec in ((0, Codec.NONE), (10, Codec.ZSTD), (20, Codec.SNAPPY)):
        topic.seal(0, base, [message(0, base + i) for i in range(10)], codec=codec)
    topic.seal(1, 0, [message(1, i) for i in range(10)])
    return topic


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the topic; its name would be a pattern if it were taken for one."""
    root = str(tmp_path_factory.mktemp("a [b] {c}=d") / "objects")
    flights(root)
    return root


@pytest.mark.parametrize("kind", ["directory", "s3a"])
def test_folder_markers_and_strange_objects_hide_nothing(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """
    As S3 consoles, file gateways and people leave them, before topics, topic files and manifests.
    """
    location = str(tmp_path / "objects")
    if kind == "s3a":
        location = f"s3://{request.getfixturevalue('s3a').bucket}/some/prefix"
    topic = flights(location)

    async def disturb(store: ObjectStore) -> None:
        folders = [
            layout.TOPICS_PREFIX,
            layout.topic_name_prefix("flights"),
            layout.topic_file_prefix("flights", topic.topic_id),
            *(layout.manifest_prefix("flights", topic.tp(n)) for n in range(3)),
        ]
        await make_markers(store, "", *folders, f"{layout.TOPICS_PREFIX}-empty/")
        for folder in folders:
            await store.put(f"{folder}.DS_Store", [b"?"])
            await store.put(f"{folder}zz.txt", [b"?"])

    topic.with_store(disturb)

    assert {0: [*range(30)], 1: [*range(10)]} == offsets(read_topic(spark, location, "flights"))


def offsets(df: DataFrame) -> dict[int, list[int]]:
    """The offsets that are there, by partition."""
    found: dict[int, list[int]] = {}
    for row in df.select("partition", "offset").collect():
        found.setdefault(row[0], []).append(row[1])
    return {partition: sorted(values) for partition, values in sorted(found.items())}


def plan(df: DataFrame) -> str:
    """The physical plan."""
    jdf: Any = df._jdf  # noqa: SLF001  # pyspark shows plans nowhere else
    return str(jdf.queryExecution().executedPlan().toString())


def test_every_record_is_a_row_as_spark_s_kafka_source_has_it(
    spark: SparkSession, location: str
) -> None:
    """
    Keys, values, headers and timestamps; null and empty stay different; headers NULL, not empty.
    """
    expected = [
        (
            m.key,
            m.value,
            "flights",
            partition,
            offset,
            m.timestamp_ms * 1_000,
            0,
            [(k, v) for k, v in m.headers] or None,
        )
        for partition, count in ((0, 30), (1, 10))
        for offset in range(count)
        for m in [message(partition, offset)]
    ]

    df = read_topic(spark, location, "flights")
    found = df.withColumn("timestamp", F.unix_micros("timestamp")).orderBy("partition", "offset")

    assert KAFKA_SCHEMA == df.schema
    assert expected == [as_python(row) for row in found.collect()]


def as_python(row: Row) -> tuple[Any, ...]:
    """Bytes instead of bytearrays, tuples instead of rows."""
    key, value, *others, headers = row
    return (
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        *others,
        headers and [(k, None if v is None else bytes(v)) for k, v in headers],
    )


def test_the_files_are_scanned_by_spark_itself(spark: SparkSession, location: str) -> None:
    """
    One vectorized Parquet scan, without a filter and without Python.
    """
    text = plan(read_topic(spark, location, "flights"))

    assert 1 == text.count("FileScan parquet")
    assert "Batched: true" in text
    assert "Filter " not in text
    assert "DataFilters: []" in text
    assert "Python" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"partitions": [1]}, {1: range(10)}),
        ({"partitions": [2]}, {}),
        ({"partitions": []}, {}),
        ({"starting_offsets": {0: 10, 1: 9}}, {0: range(10, 30), 1: [9]}),
        ({"starting_offsets": {0: 13}}, {0: range(13, 30), 1: range(10)}),
        ({"ending_offsets": {0: 25, 1: 0}}, {0: range(25)}),
        (
            {
                "starting_offsets": '{"flights":{"0":8,"1":-2,"2":0}}',
                "ending_offsets": '{"flights":{"0":22,"1":3,"2":-1}}',
            },
            {0: range(8, 22), 1: range(3)},
        ),
        ({"starting_offsets": {"flights": {"0": 30, "1": 10}}}, {}),
        ({"since": T0 + 8_500}, {0: range(9, 30), 1: [9]}),
        ({"until": T0 + 9_000}, {0: range(9), 1: range(9)}),
        (
            {
                "since": datetime.fromtimestamp(T0 / 1_000, UTC) + timedelta(seconds=12),
                "until": datetime.fromtimestamp(T0 / 1_000, UTC) + timedelta(seconds=14),
            },
            {0: [12, 13]},
        ),
        (
            {"since": T0 + 5_000, "ending_offsets": {0: 11}, "partitions": {0}},
            {0: range(5, 11)},
        ),
    ],
)
def test_ranges(
    spark: SparkSession, location: str, arguments: dict[str, Any], expected: dict[int, Any]
) -> None:
    """
    Partitions, offsets in every form, times in both, and several together; ends are exclusive.
    """
    df = read_topic(spark, location, "flights", **arguments)

    assert KAFKA_SCHEMA == df.schema
    assert {p: list(o) for p, o in expected.items()} == offsets(df)


def test_only_border_files_are_filtered_and_the_filter_reaches_parquet(
    spark: SparkSession, location: str
) -> None:
    """
    Of three segments one is left out, one scanned whole, one with bounds that Parquet sees.
    """
    df = read_topic(spark, location, "flights", partitions=[0], starting_offsets={0: 13})
    text = plan(df)

    assert 2 == len(df.inputFiles())
    assert 2 == text.count("FileScan parquet")
    assert "GreaterThanOrEqual(offset,13)" in text
    assert "PushedFilters: []" in text


def test_a_time_range_reaches_parquet(spark: SparkSession, location: str) -> None:
    """
    Times are compared with the statistics of row groups, in UTC, whatever the session's zone.
    """
    df = read_topic(spark, location, "flights", since=T0 + 25_000)

    assert 1 == len(df.inputFiles())
    assert "GreaterThanOrEqual(timestamp," in plan(df)
    assert {0: list(range(25, 30))} == offsets(df)


def test_a_dataframe_may_be_used_twice(spark: SparkSession, location: str) -> None:
    """
    Filtering a DataFrame changes nothing for its next use.
    """
    df = read_topic(spark, location, "flights", starting_offsets={0: 13})

    few = df.where("offset = 14").count()

    assert (1, 1, 27) == (few, df.where("offset = 20").count(), df.count())


def test_an_empty_topic_is_an_empty_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    """
    A topic without segments has the right columns, and no rows.
    """
    SealedTopic(str(tmp_path), "empty").create()

    df = read_topic(spark, str(tmp_path), "empty")

    assert (KAFKA_SCHEMA, 0) == (df.schema, df.count())


def test_what_log_start_has_passed_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """
    Deleted records do not come back, though their file still holds them.
    """
    topic = flights(str(tmp_path))
    topic.edit(0, SetLogStart(13))

    df = read_topic(spark, str(tmp_path), "flights", partitions=[0])

    assert {0: list(range(13, 30))} == offsets(df)
    with pytest.raises(OffsetOutOfRangeError, match="starts at 13"):
        read_topic(spark, str(tmp_path), "flights", starting_offsets={0: 12})
    allowed = read_topic(
        spark, str(tmp_path), "flights", starting_offsets={0: 12}, fail_on_data_loss=False
    )
    assert list(range(13, 30)) == offsets(allowed)[0]


def test_an_end_that_is_not_sealed_is_refused(spark: SparkSession, location: str) -> None:
    """
    Less than was asked for is never answered silently.
    """
    with pytest.raises(OffsetOutOfRangeError, match="segments seal"):
        read_topic(spark, location, "flights", ending_offsets={0: 31})


def test_a_start_that_is_not_sealed_is_refused_or_has_no_rows(
    spark: SparkSession, location: str
) -> None:
    """
    The high watermark of an idle partition may be behind what is sealed: it stops no other one.
    """
    with pytest.raises(OffsetOutOfRangeError, match=r"flights-0: the start 31 .*segments seal"):
        read_topic(spark, location, "flights", starting_offsets={0: 31})
    found = read_topic(
        spark, location, "flights", starting_offsets={0: 31, 1: 8}, fail_on_data_loss=False
    )

    assert {1: [8, 9]} == offsets(found)


def test_offsets_without_records_are_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """
    Gaps within and between segments, and a segment without any record.
    """
    topic = SealedTopic(str(tmp_path), "gaps").create()
    topic.seal(0, 0, [message(0, 0), None, message(0, 2)])
    topic.seal(0, 3, [None, None])
    topic.seal(0, 5, [None, message(0, 6)])

    df = read_topic(spark, str(tmp_path), "gaps")

    assert {0: [0, 2, 6]} == offsets(df)


def test_undecodable_ranges_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """
    A raw object is a loss.  Without failOnDataLoss it is skipped, with a warning that says which
    offsets, and where they are.
    """
    topic = SealedTopic(str(tmp_path), "raw").create()
    topic.seal(0, 0, [message(0, 0)])
    raw = topic.seal_raw(0, 1, 4)
    topic.seal(0, 4, [message(0, 4)])

    with pytest.raises(DataLossError, match=r"raw-0: offsets 1 to 3 .*failOnDataLoss=false"):
        read_topic(spark, str(tmp_path), "raw")
    with pytest.warns(RawSegmentSkippedWarning) as caught:
        df = read_topic(spark, str(tmp_path), "raw", fail_on_data_loss=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_topic(spark, str(tmp_path), "raw", starting_offsets={0: 4})

    assert {0: [0, 4]} == offsets(df)
    assert [(True, True, True)] == [
        ("raw-0" in text, "offsets 1 to 3" in text, raw.key in text)
        for text in (str(warning.message) for warning in caught)
    ]


def test_the_tree_of_older_segments_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    """
    1,001 segments, 500 of them in a list; and Spark takes a thousand paths.
    """
    topic = SealedTopic(str(tmp_path), "many").create()
    topic.seal(0, 0, *([message(0, offset)] for offset in range(1_001)))

    df = read_topic(spark, str(tmp_path), "many")

    assert (1_001, 1_001) == tuple(df.agg(F.count("*"), F.countDistinct("offset")).collect()[0])
    assert {0: [3, 4]} == offsets(
        read_topic(spark, str(tmp_path), "many", starting_offsets={0: 3}, ending_offsets={0: 5})
    )


# ── What cannot be read ──


def test_an_unknown_topic_names_those_that_are_there(spark: SparkSession, location: str) -> None:
    """
    A typing error is found by reading the message.
    """
    with pytest.raises(UnknownTopicError, match=r"no topic fligths .* there are: flights"):
        read_topic(spark, location, "fligths")


def test_a_location_that_is_no_bucket_of_ours_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """
    A wrong prefix is not an empty cluster.
    """
    with pytest.raises(UnknownTopicError, match=r"no driftlog bucket: .*cluster\.json"):
        read_topic(spark, str(tmp_path / "elsewhere"), "flights")


def test_a_file_system_that_spark_does_not_know_is_told(spark: SparkSession) -> None:
    """
    The error says what is missing.
    """
    with pytest.raises(StorageError, match='No FileSystem for scheme "gopher"'):
        read_topic(spark, "gopher://bucket/prefix", "flights")


def test_a_deleted_topic_is_told_and_its_successor_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    A topic created again under a name is another one.
    """
    root = str(tmp_path)
    old = flights(root)
    old.delete()
    with pytest.raises(DeletedTopicError, match=str(old.topic_id)):
        read_topic(spark, root, "flights")

    new = SealedTopic(root, "flights").create()
    new.seal(0, 0, [message(0, 0)])

    assert {0: [0]} == offsets(read_topic(spark, root, "flights"))
    with pytest.raises(DeletedTopicError):
        read_topic(spark, root, "flights", topic_id=old.topic_id)


def test_of_several_live_topics_the_id_decides(spark: SparkSession, tmp_path: Path) -> None:
    """
    Where two have the name, none is guessed.
    """
    root = str(tmp_path)
    topics = [SealedTopic(root, "twice").create() for _ in range(2)]
    topics[1].seal(0, 0, [message(0, 0)])

    with pytest.raises(AmbiguousTopicError, match="topic_id:") as caught:
        read_topic(spark, root, "twice")

    assert all(str(topic.topic_id) in str(caught.value) for topic in topics)
    chosen = read_topic(spark, root, "twice", topic_id=str(topics[1].topic_id))
    assert {0: [0]} == offsets(chosen)


def test_objects_without_a_topic_s_file_are_no_topic_beside_one(tmp_path: Path) -> None:
    """
    One stray object would stop every job that reads the topic by its name.
    """
    topic = SealedTopic(str(tmp_path), "flights").create()
    tp = TopicPartition(UUID(int=99), 0)
    stray = tmp_path / layout.segment_key("flights", tp, 5, 6, "0" * 16)
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"stray")

    assert topic.topic_id == find_topic(LocalFiles(str(tmp_path)), "flights", None).topic_id


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("manifest", "cut"),  # One that is gone altogether only the metadata store knows of.
        ("topic", "cut"),
        ("topic", "gone"),
        ("segment", "cut"),
        ("segment", "gone"),
    ],
)
def test_damage_names_the_object(
    spark: SparkSession, tmp_path: Path, what: str, damage: str
) -> None:
    """
    A damaged or missing object is never skipped silently.
    """
    topic = SealedTopic(str(tmp_path), "hurt").create()
    (segment,) = topic.seal(0, 0, [message(0, 0)])
    key = {
        "manifest": layout.manifest_key("hurt", topic.tp(0), 1),
        "topic": layout.topic_key("hurt", topic.topic_id, 1),
        "segment": segment.key,
    }[what]
    path = tmp_path / key
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])

    name = path.name if (what, damage) != ("topic", "gone") else "topic"
    with pytest.raises(Exception, match=name) as caught:
        read_topic(spark, str(tmp_path), "hurt").collect()

    assert what == "segment" or isinstance(caught.value, DamagedTopicError)


def test_a_topic_that_is_altered_meanwhile_is_not_damaged(tmp_path: Path) -> None:
    """
    Agents write newer versions of its file, and delete old ones behind the listing.
    """
    topic = SealedTopic(str(tmp_path), "altered", partitions=3).create()
    listed = tmp_path / layout.topic_key("altered", topic.topic_id, 1)

    class Altered(LocalFiles):
        def read(self, key: str) -> bytes | None:
            if listed.exists() and listed.match(f"*/{key}"):
                listed.rename(tmp_path / layout.topic_key("altered", topic.topic_id, 2))
            return super().read(key)

    assert 3 == find_topic(Altered(str(tmp_path)), "altered", None).partitions
    assert not listed.exists()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_no_setting_of_the_session_hides_a_damaged_segment(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    """
    Sessions that ignore missing and corrupt files do so for plain Parquet only.
    """
    topic = SealedTopic(str(tmp_path), "hurt").create()
    (segment,) = topic.seal(0, 0, [message(0, 0)])
    path = tmp_path / segment.key
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    settings = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for setting in settings:
        spark.conf.set(setting, "true")
    try:
        with pytest.raises(Exception, match=path.name):
            read_topic(spark, str(tmp_path), "hurt").collect()
    finally:
        for setting in settings:
            spark.conf.unset(setting)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "a/b"}, "cannot be a topic's name"),
        ({"partitions": [3]}, "partitions 0 to 2"),
        ({"starting_offsets": {7: 0}}, "not read: flights-7"),
        ({"partitions": [7]}, "partitions 0 to 2"),
        ({"starting_offsets": "latest"}, "earliest"),
        ({"ending_offsets": "earliest"}, "latest"),
        ({"starting_offsets": {0: -1}}, "startingOffsets of flights-0 cannot be latest"),
        ({"ending_offsets": {0: -2}}, "endingOffsets of flights-0 cannot be earliest"),
        ({"starting_offsets": {0: 20}, "ending_offsets": {0: 10}}, "behind the end 10"),
        (
            {"starting_offsets": {0: 25}, "ending_timestamp": T0 + 20_000},
            "25 is behind the end 20",
        ),
        ({"starting_offsets": {0: "5"}}, "is no offset"),
        ({"starting_offsets": '{"other":{"0":5}}'}, "other"),
        ({"starting_offsets": "{"}, "expected e.g."),
        ({"starting_timestamp": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"starting_timestamp": "2024-01-01"}, "epoch milliseconds"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    spark: SparkSession, location: str, arguments: dict[str, Any], said: str
) -> None:
    """
    A ValueError says what is wrong, and what would be right.
    """
    with pytest.raises(ValueError, match=said):
        read_topic(spark, location, **{"topic": "flights", **arguments})


# ── S3 ──


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_bucket_is_read_through_s3a(spark: SparkSession, s3a: S3Server, scheme: str) -> None:
    """
    The same rows from a bucket's prefix, with the settings of the Spark session alone.
    """
    flights(f"s3://{s3a.bucket}/some/prefix")

    df = read_topic(
        spark, f"{scheme}://{s3a.bucket}/some/prefix", "flights", starting_offsets={0: 13}
    )

    assert {0: list(range(13, 30)), 1: list(range(10))} == offsets(df)
    assert [True] * 3 == [name.startswith("s3a://") for name in df.inputFiles()]


def test_a_bucket_that_is_not_there_is_told(spark: SparkSession, s3a: S3Server) -> None:
    """
    The store's own words reach the user.
    """
    missing = f"{s3a.bucket}-not"
    spark.conf.set(f"fs.s3a.bucket.{missing}.endpoint", s3a.endpoint_url)

    with pytest.raises((StorageError, UnknownTopicError), match=missing):
        read_topic(spark, f"s3://{missing}", "flights")
