"""An imported topic has other records than the DataFrame, or producers cannot go on behind them.

A real agent serves it to an unmodified client.
"""

import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from driftlog_spark_reader import ImportTopicError, import_parquet, read_topic
from tests.support.driftlog_process import DriftlogProcess, driftlog_command

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

PARTITIONS = 3
T0 = datetime(2020, 1, 1, tzinfo=UTC)
T0_MS = int(T0.timestamp() * 1000)
COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "timestamp timestamp, more string"
)
WAIT_S = 60.0

Headers = list[tuple[str, bytes | None]] | None


class Record(NamedTuple):
    """A record as a client sees it; the timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp: int


def history(count: int) -> list[Record]:
    """Records in no order of time, of every kind."""
    return [
        Record(
            key=None if n % 7 == 0 else b"key-%d" % (n % 50),
            value=None if n % 11 == 0 else b"value %d" % n,
            headers=(("h", b"%d" % n), ("null", None)) if n % 5 == 0 else None,
            timestamp=T0_MS + n * 7919 % 1_000_003,
        )
        for n in range(count)
    ]


def frame(spark: SparkSession, records: list[Record]) -> DataFrame:
    rows = [
        (
            *(one.key, one.value, one.headers and list(one.headers)),
            *(T0 + timedelta(milliseconds=one.timestamp - T0_MS), "not of the record"),
        )
        for one in records
    ]
    return spark.createDataFrame(rows, COLUMNS)


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    with DriftlogProcess() as running:
        yield running


def location(agent: DriftlogProcess) -> str:
    return str(agent.directory / "objects")


def consumed(
    agent: DriftlogProcess, topic: str, partitions: int = PARTITIONS
) -> list[list[Record]]:
    """All records of each partition, whose offsets are dense from 0."""
    consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
    ends = []
    for number in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT_S)
        assert 0 == low
        ends.append(high)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[list[Record]] = [[] for _ in ends]
    while sum(map(len, found)) < sum(ends):
        message = consumer.poll(WAIT_S)
        assert message is not None, "a record is missing"
        assert message.error() is None
        of_partition = found[message.partition() or 0]
        assert len(of_partition) == message.offset()
        headers: Any = message.headers()
        of_partition.append(
            Record(
                message.key(),
                message.value(),
                None if headers is None else tuple(headers),
                message.timestamp()[1],
            )
        )
    consumer.close()
    return found


def topics_of(agent: DriftlogProcess) -> set[str]:
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    return set(admin.list_topics(timeout=WAIT_S).topics)


def test_history_is_served_and_producers_go_on_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    By keys as Kafka's clients choose partitions, in the order of time; also after a restart; and
    the bucket is sound.
    """
    records = history(3_000)
    settings = spark.conf.getAll
    with DriftlogProcess(tmp_path / "data") as agent:
        report = import_parquet(
            frame(spark, records),
            location(agent),
            "t",
            partitions=PARTITIONS,
            bootstrap_servers=agent.bootstrap,
            segment_bytes=20_000,
        )
        assert settings == spark.conf.getAll
        assert (3_000, PARTITIONS) == (report.records, report.partitions)
        assert report.segments > PARTITIONS
        found = consumed(agent, "t")
        for number, of_partition in enumerate(found):
            times = [one.timestamp for one in of_partition]
            assert sorted(times) == times
            assert {number} == {
                confluent_kafka.murmur2(one.key, PARTITIONS)
                for one in of_partition
                if one.key is not None
            }
            assert any(one.key is None for one in of_partition)
        assert sorted(records, key=repr) == sorted((r for of in found for r in of), key=repr)

        consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
        middle = found[0][len(found[0]) // 2].timestamp
        (by_time,) = consumer.offsets_for_times([TopicPartition("t", 0, middle)], WAIT_S)
        first = next(n for n, one in enumerate(found[0]) if one.timestamp >= middle)
        assert first == by_time.offset
        consumer.close()

        delivered: list[tuple[int | None, int | None]] = []
        producer = Producer({"bootstrap.servers": agent.bootstrap, "partitioner": "murmur2_random"})
        key = next(one.key for one in found[1] if one.key is not None)
        producer.produce(
            "t", b"new", key, on_delivery=lambda _, m: delivered.append((m.partition(), m.offset()))
        )
        assert 0 == producer.flush(WAIT_S)
        assert [(1, len(found[1]))] == delivered

        rows = read_topic(spark, location(agent), "t").orderBy("partition", "offset").collect()
        assert [
            (number, offset, one.key, one.value, one.timestamp)
            for number, of_partition in enumerate(found)
            for offset, one in enumerate(of_partition)
        ] == [
            (row.partition, row.offset, _bytes(row.key), _bytes(row.value), _ms(row.timestamp))
            for row in rows
        ]
        agent.seal("t")
        agent.terminate()
        agent.start()
        again = consumed(agent, "t")
        assert found[0] == again[0]
        assert found[1] == again[1][:-1]
        assert (b"new", key) == (again[1][-1].value, again[1][-1].key)
    command = driftlog_command()
    assert command is not None
    line = [command, "verify", "t", "--deep", "--dir", str(tmp_path / "data")]
    verified = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == verified.returncode, verified.stdout + verified.stderr


def _bytes(found: bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)


def _ms(found: datetime) -> int:
    return round(found.astimezone(UTC).timestamp() * 1000)


def test_a_column_names_the_partition_and_what_is_missing_is_filled_in(
    spark: SparkSession, agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    Of Parquet files, by their path: strings, no keys, no time, a partition that gets nothing.
    """
    path = str(tmp_path / "rows.parquet")
    rows = spark.range(100).select(
        F.concat(F.lit("v"), F.col("id")).alias("value"),
        (F.col("id") % 2).cast("int").alias("partition"),
    )
    rows.write.parquet(path)
    began_ms = round(datetime.now(UTC).timestamp() * 1000)

    import_parquet(path, location(agent), "named", partitions=3, bootstrap_servers=agent.bootstrap)

    found = consumed(agent, "named")
    assert [50, 50, 0] == [len(of_partition) for of_partition in found]
    assert {b"v%d" % n for n in range(1, 100, 2)} == {one.value for one in found[1]}
    assert {(None, None)} == {(one.key, one.headers) for one in found[0]}
    assert all(one.timestamp >= began_ms for one in found[0])
    producer = Producer({"bootstrap.servers": agent.bootstrap})
    producer.produce("named", b"x", partition=2)
    assert 0 == producer.flush(WAIT_S)


def test_nothing_becomes_an_empty_topic(spark: SparkSession, agent: DriftlogProcess) -> None:
    """
    With the configs that were asked for; history is kept unless they say otherwise.
    """
    report = import_parquet(
        frame(spark, []),
        location(agent),
        "empty",
        partitions=PARTITIONS,
        bootstrap_servers=agent.bootstrap,
        configs={"segment.ms": "1000000"},
    )

    assert (0, 0) == (report.records, report.segments)
    assert [[], [], []] == consumed(agent, "empty")
    command = driftlog_command()
    assert command is not None
    line = [command, "topics", "describe", "empty", "--bootstrap-server", agent.bootstrap]
    told = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "retention.ms" in told
    assert "segment.ms" in told


def by_chance(rows: DataFrame) -> DataFrame:
    """Each record in another partition each time."""
    chosen: Any = F.udf(lambda: Random().randrange(3), "int").asNondeterministic()
    return rows.withColumn("partition", chosen())


WRONG: dict[str, tuple[type[Exception], str, Callable[[DataFrame], DataFrame]]] = {
    "no value": (ValueError, "no column value", lambda df: df.drop("value")),
    "type": (
        ValueError,
        "the column key is bigint",
        lambda df: df.withColumn("key", F.lit(1).cast("long")),
    ),
    "headers": (
        ValueError,
        "the column headers is",
        lambda df: df.withColumn("headers", F.array(F.lit("x"))),
    ),
    "partition": (
        ValueError,
        "partitions=8",
        lambda df: df.withColumn("partition", F.lit(7)),
    ),
    "time": (
        ValueError,
        "before 1970",
        lambda df: df.withColumn("timestamp", F.timestamp_millis(F.lit(-5))),
    ),
    "other rows each time": (
        ImportTopicError,
        r"^partition \d has other records.*persist\(\)",
        by_chance,
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_imported_leaves_no_topic(
    spark: SparkSession, agent: DriftlogProcess, wrong: str
) -> None:
    """
    The error says what to do, and the name is free for the corrected DataFrame.
    """
    kind, says, spoil = WRONG[wrong]
    rows = spoil(frame(spark, history(500)))

    with pytest.raises(kind, match=says):
        import_parquet(
            rows, location(agent), "wrong", partitions=3, bootstrap_servers=agent.bootstrap
        )

    assert "wrong" not in topics_of(agent)


def test_a_compacted_topic_takes_no_records_without_keys(
    spark: SparkSession, agent: DriftlogProcess
) -> None:
    """
    Compaction would delete them; a producer is refused, too.  The policy may be the brokers' own.
    """
    records = history(100)
    compacted = {"cleanup.policy": "compact"}
    alter = [driftlog_command() or "driftlog", "configs", "alter", "--all-brokers"]
    alter += ["-b", agent.bootstrap]

    def make(some: list[Record], configs: dict[str, str]) -> None:
        import_parquet(
            frame(spark, some),
            location(agent),
            "compacted",
            partitions=1,
            bootstrap_servers=agent.bootstrap,
            configs=configs,
        )

    subprocess.run([*alter, "--add-config", "log.cleanup.policy=compact"], check=True)
    try:
        for configs in (compacted, {}):
            with pytest.raises(ValueError, match="records have no key"):
                make(records, configs)
    finally:
        subprocess.run([*alter, "--delete-config", "log.cleanup.policy"], check=True)
    keyed = [one for one in records if one.key is not None]
    make(keyed, compacted)

    assert len(keyed) == len(consumed(agent, "compacted", 1)[0])


def test_records_without_a_timestamp_stay_without_one(
    spark: SparkSession, agent: DriftlogProcess
) -> None:
    """
    Kafka's are -1, and a topic of such records may be repartitioned.
    """
    rows = frame(spark, history(20)).withColumn("timestamp", F.timestamp_millis(F.lit(-1)))
    import_parquet(
        rows, location(agent), "untimed", partitions=1, bootstrap_servers=agent.bootstrap
    )

    assert {-1} == {one.timestamp for one in consumed(agent, "untimed", 1)[0]}


def test_a_name_that_is_taken_is_told(spark: SparkSession, agent: DriftlogProcess) -> None:
    """
    Before a record is read; the topic stays as it is.
    """
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    admin.create_topics([NewTopic("taken", 2)])["taken"].result(WAIT_S)

    with pytest.raises(ImportTopicError, match=r"'taken' already exists.*choose another name"):
        import_parquet(
            frame(spark, []),
            location(agent),
            "taken",
            partitions=1,
            bootstrap_servers=agent.bootstrap,
        )

    assert [[], []] == consumed(agent, "taken", 2)


def test_another_location_than_that_of_the_agents_is_refused(
    spark: SparkSession, agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    Terabytes would be written where no agent finds them.
    """
    (tmp_path / "other").mkdir()

    with pytest.raises(ImportTopicError, match="is not where the agents store"):
        import_parquet(
            frame(spark, history(10)),
            str(tmp_path / "other"),
            "elsewhere",
            partitions=1,
            bootstrap_servers=agent.bootstrap,
        )

    assert "elsewhere" not in topics_of(agent)
    assert not list((tmp_path / "other").rglob("*.parquet"))
