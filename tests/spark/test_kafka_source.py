"""A query written for Spark's Kafka source gives the same rows once its format is driftlog.

If it failed: a job that moves over would read other records, or run where it failed before.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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

T0 = 1_700_000_000_000
PARTITIONS = {"first": 3, "second": 1, "short": 2, "none": 1}
RECORDS = 60
"""Of each partition, a second apart; "none" has none."""


class Log(NamedTuple):
    """A cluster whose topics are sealed: both sources can read all of it."""

    bootstrap: str
    location: str


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
                if number in (19, 39):  # several segments
                    assert 0 == producer.flush(30)
                    agent.seal(topic)
        assert 0 == producer.flush(30)
        for topic in PARTITIONS:
            agent.seal(topic)
        deleted = admin.delete_records([TopicPartition("short", p, 20) for p in range(2)])
        for outcome in deleted.values():
            outcome.result(30)
        agent.seal("short")
        yield Log(agent.bootstrap, str(agent.directory / "objects"))


def _delivered(error: object, _: object) -> None:
    assert error is None, error


def batch(spark: SparkSession, source: str, log: Log, options: dict[str, str]) -> DataFrame:
    """The DataFrame of a source."""
    reader = spark.read.format(source).options(**options)
    reader = reader.option("kafka.bootstrap.servers", log.bootstrap)
    return (reader.option("location", log.location) if source == "driftlog" else reader).load()


def rows(df: DataFrame) -> list[Any]:
    """All columns of all rows, in order of topic, partition and offset."""
    found = df.withColumn("timestamp", F.unix_micros("timestamp")).collect()
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))


def every(topic: str, value: int) -> str:
    """JSON with one value for each partition of a topic."""
    inner = ",".join(f'"{p}":{value}' for p in range(PARTITIONS[topic]))
    return f'{{"{topic}":{{{inner}}}}}'


SAME: dict[str, dict[str, str]] = {
    "all of a topic": {"subscribe": "first"},
    "headers": {"subscribe": "first", "includeHeaders": "true"},
    "several topics": {"subscribe": "first, second,none"},
    "pattern": {"subscribePattern": "f.*|second"},
    "a pattern is found anywhere in a name": {"subscribePattern": "irs"},
    "assign": {"assign": '{"first":[0,2],"second":[0]}'},
    "no records": {"subscribe": "none"},
    "names of options in any case": {"SUBSCRIBE": "first", "STARTINGoffsets": " Earliest "},
    "offsets": {
        "subscribe": "first",
        "startingOffsets": '{"first":{"0":5,"1":-2,"2":40}}',
        "endingOffsets": '{"first":{"0":-1,"1":7,"2":41}}',
    },
    "offsets of assigned partitions": {
        "assign": '{"first":[1]}',
        "startingOffsets": '{"first":{"1":59}}',
    },
    "an empty range": {"subscribe": "second", "startingOffsets": '{"second":{"0":60}}'},
    "timestamp": {"subscribe": "first", "startingTimestamp": str(T0 + 30_001)},
    "timestamps": {
        "subscribe": "first,second",
        "startingTimestamp": str(T0 + 19_000),
        "endingTimestamp": f" {T0 + 40_000} ",
    },
    "a timestamp before all": {"subscribe": "first", "startingTimestamp": "0"},
    "an ending timestamp after all": {"subscribe": "first", "endingTimestamp": str(T0 * 2)},
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
    "fewer than there are": {"subscribe": "first", "minPartitions": "1"},
    "max records": {"subscribe": "first", "maxRecordsPerPartition": "7"},
    "both": {"subscribe": "first", "minPartitions": "5", "maxRecordsPerPartition": "13"},
    "lost records that may be lost": {
        "subscribe": "short",
        "startingOffsets": every("short", 3),
        "failOnDataLoss": "false",
    },
    "options of streams": {"subscribe": "second", "maxOffsetsPerTrigger": "3"},
    "options of the consumer": {"subscribe": "second", "kafka.max.poll.records": "11"},
    "options without a meaning": {"subscribe": "second", "groupIdPrefix": "g", "colour": "red"},
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
    """
    for source in ("kafka", "driftlog"):
        with pytest.raises(Exception):  # noqa: B017  # each source has errors of its own
            rows(batch(spark, source, log, REFUSED[case]))


def test_a_partition_that_is_not_there_is_an_error(spark: SparkSession, log: Log) -> None:
    """
    Spark's Kafka source reads nothing instead.
    """
    with pytest.raises(Exception, match="second has partitions 0 to 0, not 1"):
        rows(batch(spark, "driftlog", log, {"assign": '{"second":[1]}'}))


STREAMS: dict[str, dict[str, str]] = {
    "from the earliest": {"subscribe": "first,second", "startingOffsets": "earliest"},
    "from the latest": {"subscribe": "first"},
    "from offsets": {"subscribe": "first", "startingOffsets": '{"first":{"0":5,"1":-2,"2":-1}}'},
    "from a time": {"subscribe": "first", "startingTimestamp": str(T0 + 12_000)},
    "limited": {
        "subscribePattern": "f.*|se.*|none",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "50",
    },
    "with a minimum": {
        "assign": '{"first":[0]}',
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "10",
    },
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_has_the_same_rows(
    spark: SparkSession, log: Log, case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    With Trigger.AvailableNow: every row once, and both end at the same offsets.
    """
    found = {}
    for source in ("kafka", "driftlog"):
        reader = spark.readStream.format(source).options(**STREAMS[case])
        reader = reader.option("kafka.bootstrap.servers", log.bootstrap)
        if source == "driftlog":
            reader = reader.option("location", log.location)
        seen: list[Any] = []
        query = (
            reader.load()
            .writeStream.foreachBatch(_collector(seen))
            .option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        found[source] = sorted(seen)

    assert found["kafka"] == found["driftlog"]


def _collector(seen: list[Any]) -> Callable[[DataFrame, int], None]:
    def collect(df: DataFrame, _: int) -> None:
        seen.extend(
            (row.topic, row.partition, row.offset, bytes(row.value or b"")) for row in df.collect()
        )

    return collect
