"""A query written for Spark's Kafka source gives the same rows once its format is driftlog.

If it failed: a job that moves over would read other records, or run where it failed before.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from driftlog_spark_reader.common.errors import ReadTopicError
from driftlog_spark_reader.source.data_source import DriftlogSource
from tests.spark.conftest import kafka_jars
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not kafka_jars(),
        reason="Spark's Kafka source is not in .cache/spark-jars: run `make spark-jars`",
    ),
]

SOURCES: Final = ("kafka", "driftlog")
QUICK: Final = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "10"}
"""Of every query: what the Kafka source refuses after a look at the topics, it tries again."""

T0 = 1_700_000_000_000
PARTITIONS = {"first": 3, "second": 1, "short": 2, "none": 1}
RECORDS = 60
"""Of each partition, a second apart; "none" has none."""


class Log(NamedTuple):
    """A cluster whose topics are sealed: both sources can read all of it."""

    agent: DriftlogProcess

    def options(self, source: str, options: dict[str, str]) -> dict[str, str]:
        """Those of a job: for driftlog, with the location."""
        given = {**QUICK, "kafka.bootstrap.servers": self.agent.bootstrap, **options}
        return given if source == "kafka" else {**given, "location": self.location}

    @property
    def location(self) -> str:
        return str(self.agent.directory / "objects")


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    """Topics with keys, null values, headers; the first 20 records of "short" are deleted."""
    with DriftlogProcess() as agent:
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        kept = {"retention.ms": "-1"}  # the records are of 2023
        made = admin.create_topics(
            [NewTopic(name, count, config=kept) for name, count in PARTITIONS.items()]
        )
        for future in made.values():
            future.result(30)
        producer = Producer({"bootstrap.servers": agent.bootstrap, "compression.type": "lz4"})
        for topic, partitions in PARTITIONS.items():
            for number in range(RECORDS if topic != "none" else 0):
                for partition in range(partitions):
                    producer.produce(
                        topic,
                        None if number % 7 == 3 else f"{topic}/{partition}/{number}".encode(),
                        None if number % 3 == 0 else f"k{number}".encode(),
                        partition=partition,
                        timestamp=T0 + 1_000 * number + 7 * partition,
                        headers=[("n", str(number).encode())] if number % 2 else None,
                        on_delivery=_delivered,
                    )
                if topic == "first" and number in (19, 39):  # several segments
                    assert 0 == producer.flush(30)
                    agent.seal(topic)
        assert 0 == producer.flush(30)
        for topic in PARTITIONS:
            agent.seal(topic)
        deleted = admin.delete_records([TopicPartition("short", p, 20) for p in range(2)])
        for outcome in deleted.values():
            outcome.result(30)
        agent.seal("short")
        yield Log(agent)


def _delivered(error: object, _: object) -> None:
    assert error is None, error


def batch(spark: SparkSession, source: str, log: Log, options: dict[str, str]) -> DataFrame:
    """The DataFrame of a source."""
    return spark.read.format(source).options(**log.options(source, options)).load()


def rows(df: DataFrame) -> list[Any]:
    """All columns of all rows, in order of topic, partition and offset."""
    found = df.withColumn("timestamp", F.unix_micros("timestamp")).collect()
    return sorted(found, key=_place)


def _place(row: Any) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


def every(topic: str, value: int) -> str:
    """JSON with one value for each partition of a topic."""
    inner = ",".join(f'"{p}":{value}' for p in range(PARTITIONS[topic]))
    return f'{{"{topic}":{{{inner}}}}}'


SAME: dict[str, dict[str, str]] = {
    "headers": {"subscribe": "first", "includeHeaders": "true"},
    "several topics": {"subscribe": "first, second,none"},
    "pattern": {"subscribePattern": "f.*|second"},
    "a pattern is found anywhere in a name": {"subscribePattern": "irs"},
    "no records": {"subscribe": "none"},
    "names of options in any case": {"SUBSCRIBE": "first", "STARTINGoffsets": " Earliest "},
    "offsets": {
        "subscribe": "first",
        "startingOffsets": '{"first":{"0":5,"1":-2,"2":40}}',
        "endingOffsets": '{"first":{"0":-1,"1":7,"2":41}}',
    },
    "offsets of assigned partitions": {
        "assign": '{"first":[0,2],"second":[0]}',
        "startingOffsets": '{"first":{"0":0,"2":59},"second":{"0":-2}}',
    },
    "an empty range": {"subscribe": "second", "startingOffsets": '{"second":{"0":60}}'},
    "timestamps": {
        "subscribe": "first,second",
        "startingTimestamp": str(T0 + 19_000),
        "endingTimestamp": f" {T0 + 40_000} ",
    },
    "timestamps around all": {
        "subscribe": "first",
        "startingTimestamp": "0",
        "endingTimestamp": str(T0 * 2),
    },
    "timestamp wins over offsets": {
        "subscribe": "second",
        "startingTimestamp": str(T0 + 50_000),
        "startingOffsetsByTimestamp": every("second", T0),
        "startingOffsets": "earliest",
    },
    "timestamps by partition": {
        "subscribe": "first",
        "startingOffsetsByTimestamp": f'{{"first":{{"0":{T0},"1":{T0 + 9_000},"2":{T0 + 9_014}}}}}',
        "endingOffsetsByTimestamp": every("first", T0 + 55_000),
    },
    "no such time, latest": {
        "subscribe": "first",
        "startingTimestamp": str(T0 * 2),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times in a partition that lost its first records": {
        "subscribe": "short",
        "startingTimestamp": str(T0 + 3_000),
    },
    "min partitions": {"subscribe": "first", "minPartitions": "10"},
    "min partitions and max records": {
        "subscribe": "first",
        "minPartitions": "5",
        "maxRecordsPerPartition": "13",
    },
    "lost records that may be lost": {
        "subscribe": "short",
        "startingOffsets": every("short", 3),
        "failOnDataLoss": "false",
    },
    "options without a meaning here": {
        "subscribe": "second",
        "maxOffsetsPerTrigger": "3",
        "minOffsetsPerTrigger": "2",
        "maxTriggerDelay": "1s",
        "groupIdPrefix": "g",
        "kafka.group.id": "g",
        "kafka.max.poll.records": "11",
        "kafkaConsumer.pollTimeoutMs": "60000",
        "topic": "of the sink",
        "colour": "red",
    },
}


@pytest.mark.parametrize("case", SAME)
def test_the_rows_are_the_same(spark: SparkSession, log: Log, case: str) -> None:
    """
    Every column, of every row, and the schema.
    """
    ours = batch(spark, "driftlog", log, SAME[case])
    theirs = batch(spark, "kafka", log, SAME[case])

    assert theirs.schema == ours.schema
    assert rows(theirs) == rows(ours)


REFUSED: dict[str, dict[str, str]] = {
    "no topics": {},
    "two ways to say topics": {"subscribe": "first", "assign": '{"first":[0]}'},
    "an empty list of topics": {"subscribe": " , "},
    "an empty pattern": {"subscribePattern": " "},
    "assign is no JSON": {"assign": "first"},
    "no such topic": {"subscribe": "third"},
    "start at the latest": {"subscribe": "first", "startingOffsets": "latest"},
    "start of a partition at the latest": {
        "subscribe": "second",
        "startingOffsets": every("second", -1),
    },
    "end at the earliest": {"subscribe": "first", "endingOffsets": "earliest"},
    "end of a partition at the earliest": {
        "subscribe": "second",
        "endingOffsets": every("second", -2),
    },
    "a partition is missing": {"subscribe": "first", "startingOffsets": '{"first":{"0":5}}'},
    "a partition too many": {"subscribe": "second", "startingOffsets": every("first", 1)},
    "offsets are no JSON": {"subscribe": "second", "startingOffsets": "5"},
    "an offset is no number": {"subscribe": "second", "startingOffsets": '{"second":{"0":"x"}}'},
    "the start is behind the end": {
        "subscribe": "second",
        "startingOffsets": every("second", 9),
        "endingOffsets": every("second", 8),
    },
    "the start is behind the log": {"subscribe": "second", "startingOffsets": every("second", 61)},
    "start and end name different partitions": {
        "subscribe": "second",
        "startingOffsets": every("second", 1),
        "endingOffsets": every("first", 1),
    },
    "a timestamp is no number": {"subscribe": "second", "startingTimestamp": "today"},
    "no such time": {"subscribe": "second", "startingTimestamp": str(T0 * 2)},
    "no such strategy": {
        "subscribe": "second",
        "startingTimestamp": str(T0),
        "startingOffsetsByTimestampStrategy": "earliest",
    },
    "no partitions": {"subscribe": "second", "minPartitions": "0"},
    "no records a partition": {"subscribe": "second", "maxRecordsPerPartition": "0"},
    "a flag that is none": {"subscribe": "second", "failOnDataLoss": "perhaps"},
    "lost records": {"subscribe": "short", "startingOffsets": every("short", 3)},
    "fewer than more": {
        "subscribe": "second",
        "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "4",
    },
    "an offset reset": {"subscribe": "second", "kafka.auto.offset.reset": "latest"},
    "a deserializer": {"subscribe": "second", "kafka.value.deserializer": "x.Y"},
    "auto commit": {"subscribe": "second", "kafka.enable.auto.commit": "true"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_one_source_refuses_the_other_refuses(
    spark: SparkSession, log: Log, case: str
) -> None:
    """
    Wrong options fail, instead of giving some rows.

    Ours is planned here, as Spark plans it in a process of its own.
    """
    source = DriftlogSource(log.options("driftlog", REFUSED[case]))

    with pytest.raises(Exception):  # noqa: B017  # the Kafka source has many
        rows(batch(spark, "kafka", log, REFUSED[case]))
    with pytest.raises((ValueError, ReadTopicError)):
        source.reader(source.schema()).partitions()


def test_a_partition_that_is_not_there_is_an_error(spark: SparkSession, log: Log) -> None:
    """
    Spark's Kafka source reads nothing instead.
    """
    with pytest.raises(Exception, match="second has partitions 0 to 0, not 1"):
        rows(batch(spark, "driftlog", log, {"assign": '{"second":[1]}'}))


@dataclass
class Stream:
    """A query on one source, and the rows of its batches."""

    query: StreamingQuery
    batches: list[list[Any]]

    @property
    def rows(self) -> list[Any]:
        return sorted((row for found in self.batches for row in found), key=_place)


def streams(
    spark: SparkSession, log: Log, folder: Path, options: dict[str, str], **trigger: Any
) -> list[Stream]:
    """A query on each source, side by side; their checkpoints are in *folder*.

    Args:
        trigger: of the queries; as default, Trigger.AvailableNow.
    """
    found = []
    for source in SOURCES:
        seen: list[list[Any]] = []
        query = (
            spark.readStream.format(source)
            .options(**log.options(source, options))
            .load()
            .writeStream.foreachBatch(_collector(seen))
            .option("checkpointLocation", str(folder / source))
            .trigger(**trigger or {"availableNow": True})
            .start()
        )
        found.append(Stream(query, seen))
    return found


def ended(
    spark: SparkSession, log: Log, folder: Path, options: dict[str, str]
) -> tuple[list[Any], list[Any]]:
    """The rows of Spark's Kafka source and of ours, once both have read all there is."""
    kafka, driftlog = streams(spark, log, folder, options)
    for stream in (kafka, driftlog):
        assert stream.query.awaitTermination(120)
    return kafka.rows, driftlog.rows


def _collector(seen: list[list[Any]]) -> Callable[[DataFrame, int], None]:
    def collect(df: DataFrame, _: int) -> None:
        seen.append(rows(df))

    return collect


STREAMS: dict[str, dict[str, str]] = {
    "from the earliest, with headers": {
        "subscribe": "first,second",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    },
    "from offsets": {"subscribe": "first", "startingOffsets": '{"first":{"0":5,"1":-2,"2":-1}}'},
    "from a time": {"subscribe": "first", "startingTimestamp": str(T0 + 12_000)},
    "from times by partition, or the end": {
        "subscribe": "first",
        "startingOffsetsByTimestamp": f'{{"first":{{"0":{T0 + 9_001},"1":{T0 * 2},"2":{T0}}}}}',
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "limited": {
        "subscribePattern": "f.*|se.*|none",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
    },
    "lost records that may be lost": {
        "subscribe": "short",
        "startingOffsets": every("short", 3),
        "failOnDataLoss": "false",
    },
    "options without a meaning here": {
        "assign": '{"first":[0]}',
        "startingOffsets": "earliest",
        "endingTimestamp": str(T0 + 5_000),
        "minPartitions": "3",
        "maxRecordsPerPartition": "7",
        "groupIdPrefix": "g",
        "kafka.group.id": "g",
        "kafka.max.poll.records": "11",
        "kafkaConsumer.pollTimeoutMs": "60000",
    },
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_has_the_same_rows(
    spark: SparkSession, log: Log, case: str, tmp_path: Path
) -> None:
    """
    With Trigger.AvailableNow: every column of every row, once.
    """
    kafka, driftlog = ended(spark, log, tmp_path, STREAMS[case])

    assert len(kafka) > 0
    assert kafka == driftlog


ERRORS: dict[str, tuple[dict[str, str], str, str]] = {
    "lost records": (
        {"subscribe": "short", "startingOffsets": every("short", 3)},
        r"Could not read records in offset \[3",
        "short-0: offsets 3 to 19 are gone",
    ),
    "no such time": (
        {
            "subscribe": "second",
            "startingOffsetsByTimestamp": every("second", T0 * 2),
            "startingOffsetsByTimestampStrategy": "error",
        },
        f"No offset matched .* {T0 * 2}",
        f"no record has timestamp {T0 * 2}",
    ),
}
"""Options, and what the error of each source says."""


@pytest.mark.parametrize("case", ERRORS)
def test_a_stream_that_fails_on_one_source_fails_on_the_other(
    spark: SparkSession, log: Log, case: str, tmp_path: Path
) -> None:
    """
    With an error that says the same.
    """
    options, *said = ERRORS[case]

    for stream, words in zip(streams(spark, log, tmp_path, options), said, strict=True):
        with pytest.raises(StreamingQueryException, match=words):
            stream.query.awaitTermination(120)


def test_a_topic_that_appears_later_is_read_from_its_first_record(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """
    By a stream that began at the latest offsets, when it is started again.
    """
    options = {"subscribePattern": "second|later"}
    producer = Producer({"bootstrap.servers": log.agent.bootstrap})

    before = ended(spark, log, tmp_path, options)
    for number in range(3):
        producer.produce("later", f"{number}", on_delivery=_delivered)
    assert 0 == producer.flush(30)
    log.agent.seal("later")
    kafka, driftlog = ended(spark, log, tmp_path, options)

    assert ([], []) == before
    assert [("later", 0, 0), ("later", 0, 1), ("later", 0, 2)] == list(map(_place, kafka))
    assert kafka == driftlog


WAITS: Final = {
    "assign": '{"first":[0]}',
    "startingOffsets": "earliest",
    "minOffsetsPerTrigger": "25",
    "maxOffsetsPerTrigger": "25",
}


def test_what_is_less_than_the_minimum_comes_after_the_delay(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """
    In batches of at most the maximum; ours end where segments end.
    """
    kafka, driftlog = streams(
        spark, log, tmp_path, {**WAITS, "maxTriggerDelay": "1s"}, processingTime="0 seconds"
    )
    try:
        until = time.monotonic() + 120
        while min(len(kafka.rows), len(driftlog.rows)) < RECORDS:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        kafka.query.stop()
        driftlog.query.stop()

    assert kafka.rows == driftlog.rows
    assert [25, 25, 10] == list(map(len, kafka.batches))
    assert [20, 20, 20] == list(map(len, driftlog.batches))


def test_available_now_reads_to_the_end_where_batches_have_a_minimum(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """
    As Spark asks of Python sources; its Kafka source leaves the rest for the next run.
    """
    kafka, driftlog = ended(spark, log, tmp_path, WAITS)

    assert RECORDS == len(driftlog)
    assert kafka == driftlog[:50]
