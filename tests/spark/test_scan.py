"""`scan` and `read_arrow` give the rows of `read_topic`, to every engine, without PySpark."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader import (
    DamagedTopicError,
    DataLossError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    StorageError,
    TopicScan,
    UnknownTopicError,
    read_arrow,
    read_topic,
    scan,
)
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_tiering.formats.manifest import SetLogStart
from driftlog_tiering.segments.columns import SCHEMA
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::driftlog_spark_reader.RawSegmentSkippedWarning"),
]

T0 = 1_700_000_000_000
Row = tuple[Any, ...]


def message(partition: int, offset: int) -> Message:
    """A record that says where it is, with the corner cases in turn."""
    return Message(
        T0 + 1_000 * offset,
        key=(None, b"", f"k{offset}".encode())[offset % 3],
        value=None if offset % 5 == 4 else f"{partition}/{offset}".encode(),
        headers=(("source", b"JFK"), ("empty", b""), ("null", None)) if offset % 2 else (),
    )


def flights(location: str, name: str = "flights") -> SealedTopic:
    """Log start in the middle of a file; a raw segment between two; gaps; an empty partition."""
    topic = SealedTopic(location, name, partitions=4).create()
    for base in (0, 10, 20):
        topic.seal(0, base, [message(0, base + i) for i in range(10)])
    topic.edit(0, SetLogStart(13))
    topic.seal(1, 0, [message(1, i) for i in range(10)])
    topic.seal_raw(1, 10, 14)
    topic.seal(1, 14, [message(1, 14 + i) for i in range(6)])
    topic.seal(2, 0, [message(2, 0), None, None, message(2, 3)], [None, None])
    topic.seal(2, 6, [None, message(2, 7)])
    return topic


@pytest.fixture(params=["directory", "s3"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A place without topics; the name of the directory looks like a pattern and a partition."""
    if request.param == "directory":
        return str(tmp_path / "a [b] {c}=d, *" / "objects")
    server: S3Server = request.getfixturevalue("moto_s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.bucket}/some/prefix"


def in_duckdb(found: TopicScan) -> pa.Table:
    """With a connection of its own; in no order."""
    duckdb = _optional("duckdb")
    return found.duckdb(duckdb.connect()).order('topic, partition, "offset"').to_arrow_table()


def in_polars(found: TopicScan) -> pa.Table:
    """In no order."""
    _optional("polars")
    frame: Any = found.polars()
    return frame.sort("topic", "partition", "offset").collect().to_arrow()


def _optional(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return importlib.import_module(name)


ENGINES: dict[str, Callable[[TopicScan], pa.Table]] = {
    "to_arrow": lambda found: found.to_arrow(),
    "dataset": lambda found: found.dataset().scanner(batch_size=7).to_table(),
    "duckdb": in_duckdb,
    "polars": in_polars,
}


def rows(table: pa.Table) -> list[Row]:
    """In the table's order; timestamps in milliseconds, headers as pairs."""
    micros = table["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return [
        (
            *(row[name] for name in ("key", "value", "topic", "partition", "offset")),
            at // 1_000,
            row["timestampType"],
            None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]],
        )
        for row, at in zip(table.to_pylist(), micros, strict=True)
    ]


def rows_of_spark(spark: SparkSession, location: str, **wanted: Any) -> list[Row]:
    """What `read_topic` says, by partition and offset."""
    found = (
        read_topic(spark, location, **wanted)
        .withColumn("timestamp", F.unix_millis("timestamp"))
        .orderBy("topic", "partition", "offset")
        .collect()
    )
    return [
        (
            *(None if v is None else bytes(v) for v in (row.key, row.value)),
            *(row.topic, row.partition, row.offset, row.timestamp, row.timestampType),
            None
            if row.headers is None
            else [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers],
        )
        for row in found
    ]


WANTED: list[dict[str, Any]] = [
    {},
    {"partitions": [1, 2]},
    {"partitions": [3]},
    {"starting_offsets": {0: 15, 1: 3}, "ending_offsets": {0: 27, 1: 15}},
    {"since": T0 + 8_500, "until": T0 + 17_000},
    {"since": T0 + 16_000, "starting_offsets": {0: 18}},
    {"starting_timestamp": T0 + 7_000, "partitions": [1, 2]},
    {"starting_offsets": {0: 5}, "fail_on_data_loss": False},
    {"topic": ["flights", "others"], "starting_offsets": {"flights": {0: 21}}},
]


@pytest.mark.parametrize("place", ["directory", "s3"])
def test_rows_are_those_of_read_topic(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    """
    Every column, in each selection, by every engine that is installed.
    """
    at = str(tmp_path / "a [b] {c}=d")
    if place == "s3":
        at = f"s3://{request.getfixturevalue('s3a').bucket}/some/prefix"
    flights(at)
    SealedTopic(at, "others", partitions=2).create().seal(1, 0, [message(1, i) for i in range(3)])
    engines = {
        name: engine
        for name, engine in ENGINES.items()
        if name not in ("duckdb", "polars") or importlib.util.find_spec(name)
    }

    for wanted in WANTED:
        asked = {"topic": "flights", "fail_on_data_loss": False, **wanted}
        expected = rows_of_spark(spark, at, **asked)
        found = scan(at, **asked)
        for name, engine in engines.items():
            assert expected == rows(engine(found)), (name, asked)
        assert expected == rows(read_arrow(at, **asked)), asked


@pytest.mark.parametrize("engine", ENGINES)
def test_every_record_comes_once(location: str, engine: str) -> None:
    """
    None below log start, though its file holds it; none of a raw segment, none of a gap.
    """
    flights(location)

    table = ENGINES[engine](scan(location, "flights", fail_on_data_loss=False))

    offsets = {p: [r[4] for r in rows(table) if r[3] == p] for p in range(4)}
    assert {
        0: list(range(13, 30)),
        1: [*range(10), *range(14, 20)],
        2: [0, 3, 7],
        3: [],
    } == offsets
    assert SCHEMA.names == table.schema.names


@pytest.mark.parametrize("engine", ENGINES)
def test_more_cut_partitions_than_one_filter_serves(tmp_path: Path, engine: str) -> None:
    """
    Each partition has its own offsets, also where two topics have a partition of one number.
    """
    for name in ("a", "b"):
        topic = SealedTopic(str(tmp_path), name, partitions=70).create()
        for partition in range(70):
            topic.seal(partition, 0, [message(partition, i) for i in range(4)])
    starts = {"a": {p: p % 4 for p in range(70)}, "b": {0: 3}}

    found = rows(
        ENGINES[engine](scan(str(tmp_path), ["a", "b"], starting_offsets=starts, since=T0 + 1_000))
    )

    assert [
        (topic, partition, offset)
        for topic in ("a", "b")
        for partition in range(70)
        for offset in range(max(1, starts[topic].get(partition, 0)), 4)
    ] == [(row[2], row[3], row[4]) for row in found]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_topic_without_records_has_its_columns(location: str, engine: str) -> None:
    """
    As an empty DataFrame of Spark.
    """
    SealedTopic(location, "empty").create()

    table = ENGINES[engine](scan(location, "empty"))

    assert (SCHEMA.names, 0) == (table.schema.names, table.num_rows)


def test_a_scan_stays_with_its_manifest(location: str) -> None:
    """
    What is sealed later is in the next scan; files and offsets are named.
    """
    topic = flights(location)
    found = scan(location, "flights", partitions=[0, 3])
    topic.seal(0, 30, [message(0, 30)])

    assert 17 == found.to_arrow(["offset"]).num_rows
    assert 18 == read_arrow(location, "flights", partitions=[0]).num_rows
    named = [NamedPartition("flights", p) for p in (0, 3)]
    assert dict(zip(named, [(13, 30), (0, 0)], strict=True)) == dict(found.offsets)
    assert 2 == len(found.paths)
    assert all(path.startswith(f"{location}/topics/flights/") for path in found.paths)
    assert "2 files" in repr(found)


def test_columns_are_chosen(location: str) -> None:
    """
    Also where the filter needs others.
    """
    flights(location)

    table = read_arrow(location, "flights", columns=["value", "offset"], partitions=[0])

    assert ["value", "offset"] == table.schema.names
    assert list(range(13, 30)) == table["offset"].to_pylist()


def test_undecodable_ranges_are_named(tmp_path: Path) -> None:
    """
    A raw object is a loss.  Without fail_on_data_loss it is skipped, with a warning that says which
    offsets, and where they are.
    """
    flights(str(tmp_path))

    with pytest.raises(DataLossError, match=r"flights-1: offsets 10 to 13 .*\.raw"):
        scan(str(tmp_path), "flights")
    with pytest.warns(RawSegmentSkippedWarning, match=r"flights-1: offsets 10 to 13 .*\.raw"):
        found = scan(str(tmp_path), "flights", fail_on_data_loss=False)

    assert not any(path.endswith(".raw") for path in found.paths)


def test_a_missing_file_is_named(location: str) -> None:
    """
    Fewer records are never returned silently.
    """
    topic = flights(location)
    found = scan(location, "flights", partitions=[0])
    key = found.paths[1].removeprefix(f"{location}/")
    topic.with_store(lambda store: store.delete([key]))

    with pytest.raises(DamagedTopicError, match=key.rpartition("/")[2]):
        found.to_arrow()


def test_a_damaged_file_is_named(location: str) -> None:
    """
    As a file that was cut short: pyarrow must not take what its memory held before for the rest.
    """
    topic = flights(location)
    found = scan(location, "flights", partitions=[0])
    found.to_arrow()
    key = found.paths[1].removeprefix(f"{location}/")
    topic.with_store(lambda store: store.put(key, [b"?" * 100]))

    for _ in range(5):
        with pytest.raises(DamagedTopicError, match=key.rpartition("/")[2]):
            found.to_arrow()


def test_errors_are_those_of_read_topic(tmp_path: Path) -> None:
    """
    For topics, offsets and locations.
    """
    flights(str(tmp_path))
    with pytest.raises(UnknownTopicError, match="there are: flights"):
        scan(str(tmp_path), "fligths")
    with pytest.raises(OffsetOutOfRangeError, match="13"):
        scan(str(tmp_path), "flights", starting_offsets={0: 12})
    with pytest.raises(StorageError, match="does not exist"):
        scan(str(tmp_path / "elsewhere"), "flights")


WITHOUT = """
import sys
for name in ("pyspark", "py4j", "pandas", "duckdb", "polars", "confluent_kafka"):
    sys.modules[name] = None
from driftlog_spark_reader import read_arrow, scan
print(read_arrow(sys.argv[1], "flights", partitions=[0]).num_rows)
for make in (lambda found: found.duckdb(), lambda found: found.polars()):
    try:
        make(scan(sys.argv[1], "flights", partitions=[0]))
    except ImportError as error:
        print(error)
try:
    from driftlog_spark_reader import read_topic
except ImportError as error:
    print(error)
"""


def test_pyarrow_is_enough(tmp_path: Path) -> None:
    """
    Where PySpark, DuckDB or Polars is missing, what needs it says what to install.
    """
    flights(str(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert [
        "17",
        "TopicScan.duckdb needs DuckDB: pip install duckdb",
        "TopicScan.polars needs Polars: pip install polars",
        "driftlog_spark_reader.read_topic needs pyspark: pip install 'driftlog[spark]'",
    ] == done.stdout.splitlines()
