"""A stream moves from Spark's Kafka source to the format driftlog on its converted checkpoint.

If it failed: a job that moves over would skip records, or write a batch twice.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driftlog_spark_reader.common.errors import DataLossError, JobError
from driftlog_spark_reader.jobs.convert_checkpoint import convert_checkpoint, starting_offsets
from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.conftest import kafka_jars
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not kafka_jars(),
        reason="Spark's Kafka source is not in .cache/spark-jars: run `make spark-jars`",
    ),
]

Sink = dict[int, list[tuple[str, int, int]]]
"""Records by batch id: a sink that is written once for each."""


class Cluster:
    """An agent, and what is in its log."""

    def __init__(self, agent: DriftlogProcess) -> None:
        self.bootstrap = agent.bootstrap
        self.location = str(agent.directory / "objects")
        self._agent = agent
        self._producer = Producer({"bootstrap.servers": agent.bootstrap})
        self._sent: dict[str, int] = {}

    def create(self, topic: str, partitions: int = 2) -> None:
        """Make a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(topic, partitions)]).values():
            future.result(30)
        self._sent[topic] = 0

    def produce(self, topic: str, count: int, *, seal: bool = True) -> None:
        """Append *count* records to each of the two partitions."""
        for number in range(self._sent[topic], self._sent[topic] + count):
            for partition in range(2):
                self._producer.produce(topic, f"{number}", f"k{number % 5}", partition=partition)
        self._sent[topic] += count
        assert 0 == self._producer.flush(30)
        if seal:
            self._agent.seal(topic)

    def everything(self, topic: str) -> list[tuple[str, int, int]]:
        """The names of all records."""
        return [(topic, p, offset) for p in range(2) for offset in range(self._sent[topic])]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One agent for all tests here."""
    with DriftlogProcess() as agent:
        yield Cluster(agent)


def stream(spark: SparkSession, source: str, cluster: Cluster, **options: str) -> DataFrame:
    """The stream of a source; five records a trigger."""
    reader = spark.readStream.format(source).option("maxOffsetsPerTrigger", "5").options(**options)
    reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap)
    return (reader.option("location", cluster.location) if source == "driftlog" else reader).load()


def run(df: DataFrame, checkpoint: str, into: Callable[[DataFrame, int], None]) -> str | None:
    """Run a query to the end of the log; returns what it failed with."""
    query = (
        df.writeStream.foreachBatch(into)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    except StreamingQueryException as error:
        return str(error)
    return None


def sink(found: Sink, *, dies_at: int | None = None, writes: bool = True) -> Any:
    """Writes each batch under its id; at batch *dies_at* it fails, before or after it writes."""

    def write(df: DataFrame, batch: int) -> None:
        if batch == dies_at and not writes:
            raise RuntimeError("the sink died")
        rows = sorted((row.topic, row.partition, row.offset) for row in df.collect())
        assert rows == found.setdefault(batch, rows), "a batch runs again with other records"
        if batch == dies_at:
            raise RuntimeError("the sink died")

    return write


def records(found: Sink) -> list[tuple[str, int, int]]:
    """All records, as often as they are in the sink."""
    return sorted(row for batch in found.values() for row in batch)


STOPS: dict[str, dict[str, Any]] = {
    "at the end": {},
    "before the first batch is written": {"dies_at": 0, "writes": False},
    "before the first batch is committed": {"dies_at": 0},
    "before a batch is written": {"dies_at": 2, "writes": False},
    "before a batch is committed": {"dies_at": 2},
}


@pytest.mark.parametrize("stop", STOPS)
def test_every_record_is_in_the_sink_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, stop: str
) -> None:
    """
    Spark's Kafka source is stopped between any two steps of a batch; records follow; the format
    driftlog goes on with the same ids, and with the same records of a batch that runs again.
    """
    topic = f"moves-{list(STOPS).index(stop)}"
    cluster.create(topic)
    cluster.produce(topic, 12)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    found: Sink = {}
    started = {"subscribe": topic, "startingOffsets": "earliest"}
    failed = run(stream(spark, "kafka", cluster, **started), old, sink(found, **STOPS[stop]))
    assert (failed is not None) == ("dies_at" in STOPS[stop])
    cluster.produce(topic, 7)

    conversion = convert_checkpoint(spark, old, new, location=cluster.location)

    wanted = starting_offsets(conversion.moves[0])
    assert (wanted is not None) == (STOPS[stop].get("dies_at") == 0)
    given = {} if wanted is None else {"startingOffsets": wanted}
    ours = stream(spark, "driftlog", cluster, subscribe=topic, **given)
    assert run(ours, new, sink(found)) is None
    assert cluster.everything(topic) == records(found)
    assert [*range(len(found))] == sorted(found)


def test_a_checkpoint_before_its_first_batch_goes_on_where_the_query_began(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """
    Killed between sources/0/0 and offsets/0, of a query that started at the latest offset.
    """
    topic = "not-begun"
    cluster.create(topic)
    cluster.produce(topic, 3)
    old, new = tmp_path / "old", str(tmp_path / "new")
    assert run(stream(spark, "kafka", cluster, subscribe=topic), str(old), sink({})) is None
    for log in ("offsets", "commits"):
        shutil.rmtree(old / log)
        (old / log).mkdir()
    cluster.produce(topic, 4)

    conversion = convert_checkpoint(spark, str(old), new, location=cluster.location)

    wanted = starting_offsets(conversion.moves[0])
    assert wanted is not None
    assert {topic: {"0": 3, "1": 3}} == json.loads(wanted)
    found: Sink = {}
    ours = stream(spark, "driftlog", cluster, subscribe=topic, startingOffsets=wanted)
    assert run(ours, new, sink(found)) is None
    assert [row for row in cluster.everything(topic) if row[2] >= 3] == records(found)


def test_a_query_with_two_sources_and_state_moves_whole(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """
    The counts of an aggregation go on from the state store.
    """
    for topic in ("left", "right"):
        cluster.create(topic)
        cluster.produce(topic, 10)
    counts: dict[bytes, int] = {}

    def counted(df: DataFrame, _: int) -> None:
        counts.update({bytes(row.key): row["count"] for row in df.collect()})

    def both(source: str, **options: str) -> DataFrame:
        parts = [
            stream(spark, source, cluster, subscribe=topic, **options)
            for topic in ("left", "right")
        ]
        return parts[0].union(parts[1]).groupBy("key").count()

    old, new = str(tmp_path / "old"), str(tmp_path / "new")

    def update(df: DataFrame, checkpoint: str) -> None:
        query = (
            df.writeStream.foreachBatch(counted)
            .outputMode("update")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    update(both("kafka", startingOffsets="earliest"), old)
    cluster.produce("left", 5)
    conversion = convert_checkpoint(spark, old, new, location=cluster.location)
    update(both("driftlog"), new)

    assert [0, 1] == [move.source for move in conversion.moves]
    assert {f"k{n}".encode(): 10 for n in range(5)} == counts


def test_what_is_not_sealed_is_refused_unless_the_tail_is_read(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """
    And nothing is left at the target.  With includeTail the query goes on.
    """
    topic = "unsealed"
    cluster.create(topic)
    cluster.produce(topic, 4)
    cluster.produce(topic, 3, seal=False)
    old, new = str(tmp_path / "old"), tmp_path / "new"
    found: Sink = {}
    started = {"subscribe": topic, "startingOffsets": "earliest"}
    assert run(stream(spark, "kafka", cluster, **started), old, sink(found)) is None

    with pytest.raises(JobError, match="driftlog segments seal unsealed"):
        convert_checkpoint(spark, old, str(new), location=cluster.location)
    assert ["old"] == sorted(path.name for path in tmp_path.iterdir())

    convert_checkpoint(spark, old, str(new), location=cluster.location, include_tail=True)
    newest = max(int(p.name) for p in (new / "offsets").iterdir() if p.name.isdecimal())
    position = json.loads((new / f"offsets/{newest}").read_text().splitlines()[2])
    assert {topic: {"0": 4, "1": 4}} == position["/ids"]["/sealed"]
    assert [topic, "/sealed"] == [*position["/ids"]]
    cluster.produce(topic, 2, seal=False)
    ours = stream(spark, "driftlog", cluster, subscribe=topic, includeTail="true")
    assert run(ours, str(new), sink(found)) is None
    assert cluster.everything(topic) == records(found)


def test_a_log_that_ends_before_what_the_old_query_read_is_a_loss(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """
    An older copy of the log was put back.  A query that waited for its own offset would pass over
    what is written up to there.  Spark's Kafka source fails on the old checkpoint, too: "offset was
    changed from 9 to 4".
    """
    topic = "put-back"
    cluster.create(topic)
    cluster.produce(topic, 4)
    old = checkpoint(tmp_path / "old", json.dumps({topic: {"0": 9, "1": 4}}))
    convert_checkpoint(
        spark, old, str(tmp_path / "new"), location=cluster.location, include_tail=True
    )
    at = json.loads((tmp_path / "new/offsets/0").read_text().splitlines()[2])
    tail = {"includeTail": "true", "kafka.bootstrap.servers": cluster.bootstrap}
    options = {"location": cluster.location, "subscribe": topic, **tail}
    reader = StreamReader(cluster.location, parse_options(options, streaming=True))

    with pytest.raises(DataLossError, match="put-back-0: ends at 4, and was at 9"):
        reader.latestOffset(at, ReadAllAvailable())
    reader.stop()


def files(root: Path) -> dict[str, bytes]:
    """All files below, by name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*")}


def checkpoint(root: Path, offsets: str, *, version: str = "v1") -> str:
    """A small checkpoint: one committed batch."""
    for folder in ("offsets", "commits", "sources"):
        (root / folder).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"2f8b2cb2-9c4b-4ad4-9d04-6c0c0ee36ff6"}')
    (root / "offsets" / "0").write_text(f"{version}\n{{}}\n{offsets}")
    (root / "commits" / "0").write_text("v1\n{}")
    return str(root)


@pytest.mark.parametrize(
    ("offsets", "version", "said"),
    [
        ('{"logOffset":3}', "v1", "source 0 in offsets/0 is not of Spark's Kafka source"),
        ("17", "v1", "is not of Spark's Kafka source"),
        ('{"t":{"0":1}}\n7', "v1", "source 1 .*name them with --source"),
        ('{"t":{"0":-2}}', "v1", "has no offset of t-0"),
        ('{"t":{"0":1}}', "v2", "offsets/0 is of version 'v2'"),
        ('{"gone":{"0":1}}', "v1", "no topic gone"),
    ],
)
def test_a_checkpoint_that_cannot_move_is_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, offsets: str, version: str, said: str
) -> None:
    """
    Nothing is written.
    """
    cluster_topics = checkpoint(tmp_path / "old", offsets, version=version)

    with pytest.raises(Exception, match=said):
        convert_checkpoint(spark, cluster_topics, str(tmp_path / "new"), location=cluster.location)

    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.part").exists()


def test_targets_that_are_taken_and_sources_that_are_no_checkpoint_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    The original stays as it is.
    """
    old = checkpoint(tmp_path / "old", '{"t":{"0":1}}')
    (tmp_path / "taken").mkdir()
    (tmp_path / "empty").mkdir()
    before = files(tmp_path / "old")

    with pytest.raises(JobError, match="exists"):
        convert_checkpoint(spark, old, str(tmp_path / "taken"))
    with pytest.raises(JobError, match="outside of it"):
        convert_checkpoint(spark, old, str(tmp_path / "old" / "new"))
    with pytest.raises(JobError, match="no checkpoint"):
        convert_checkpoint(spark, str(tmp_path / "empty"), str(tmp_path / "new"))

    assert before == files(tmp_path / "old")


def test_one_source_of_several_moves_and_the_others_are_copied(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    A query may read a table beside the topic.
    """
    old = checkpoint(tmp_path / "old", '{"t":{"0":1}}\n7')

    conversion = convert_checkpoint(spark, old, str(tmp_path / "new"), sources=[0])

    assert [0] == [move.source for move in conversion.moves]
    assert (tmp_path / "old/offsets/0").read_text() == (tmp_path / "new/offsets/0").read_text()


def test_a_checkpoint_in_a_bucket_is_converted_there(
    spark: SparkSession, s3a: S3Server, tmp_path: Path
) -> None:
    """
    From a directory to S3, and within S3.
    """
    old = checkpoint(tmp_path / "old", '{"t":{"0":1}}')
    first, second = (f"s3a://{s3a.bucket}/{name}" for name in ("first", "second"))

    convert_checkpoint(spark, old, first)
    conversion = convert_checkpoint(spark, first, second)

    assert 3 == conversion.files
    assert [("v1",), ("{}",), ('{"t":{"0":1}}',)] == [
        tuple(row) for row in spark.read.text(f"{second}/offsets/0").collect()
    ]
    with pytest.raises(JobError, match="exists"):
        convert_checkpoint(spark, old, second)


def test_the_state_of_a_batch_is_told_by_the_names(spark: SparkSession, tmp_path: Path) -> None:
    """
    A batch that is not committed runs again between the offsets before and its own.
    """
    old = checkpoint(tmp_path / "old", '{"t":{"0":1}}')
    (tmp_path / "old/offsets/1").write_text('v1\n{}\n{"t":{"0":9,"1":4}}')

    conversion = convert_checkpoint(spark, old, str(tmp_path / "new"))

    assert (1, "0", "1") == (
        conversion.restart.batch,
        conversion.restart.before,
        conversion.restart.planned,
    )
    assert "the query goes on with batch 1, which runs again" in conversion.lines()
    assert {"t": {"0": 1}} == conversion.to_dict()["sources"][0]["next_offsets"]
