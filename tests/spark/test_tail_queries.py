"""A query with includeTail sees every acknowledged record once, sealed or not.

If it failed: a report would miss the newest records, or count them twice.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.sql import DataFrame, SparkSession

from driftlog_spark_reader import read_topic
from tests.support.driftlog_process import DriftlogProcess

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    """One for all tests, each with a topic of its own."""
    with DriftlogProcess() as running:
        yield running


class Topic:
    """Records that say where they are: the n-th of a partition has value ``n``."""

    def __init__(self, agent: DriftlogProcess, name: str) -> None:
        self.agent, self.name, self.count = agent, name, 0
        self.location = str(agent.directory / "objects")
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        topic = NewTopic(name, PARTITIONS, config={"retention.ms": "-1"})  # records are of 2023
        admin.create_topics([topic])[name].result(30)
        self._producer = Producer({"bootstrap.servers": agent.bootstrap, "linger.ms": 5})

    def produce(self, count: int) -> None:
        """*count* records into each partition, acknowledged when this returns."""
        for number in range(self.count, self.count + count):
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self.name,
                    str(number).encode(),
                    partition=partition,
                    timestamp=T0 + 1_000 * number,
                    headers=[("n", str(number))],
                    on_delivery=_delivered,
                )
        assert 0 == self._producer.flush(60)
        self.count += count

    def options(self, **more: str) -> dict[str, str]:
        """Of the format."""
        return {
            "location": self.location,
            "subscribe": self.name,
            "includeTail": "true",
            "kafka.bootstrap.servers": self.agent.bootstrap,
            **more,
        }

    def expected(self, start: int = 0) -> list[tuple[int, int, bytes]]:
        """All rows from an offset on."""
        return [
            (p, n, str(n).encode()) for p in range(PARTITIONS) for n in range(start, self.count)
        ]


def _delivered(error: object, _: object) -> None:
    assert error is None, error


def rows(df: DataFrame) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of each row, in order."""
    found = df.select("partition", "offset", "value").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in found)


@pytest.mark.parametrize("how", ["native", "format"])
def test_a_query_sees_what_was_acknowledged(
    spark: SparkSession, agent: DriftlogProcess, how: str
) -> None:
    """
    Nothing sealed, some sealed, all sealed; offsets, times and headers as in sealed rows.
    """
    topic = Topic(agent, f"acknowledged-{how}")

    def query(**options: str) -> DataFrame:
        if how == "format":
            return spark.read.format("driftlog").options(**topic.options(**options)).load()
        python = {
            {"startingTimestamp": "starting_timestamp", "startingOffsets": "starting_offsets"}[k]: (
                int(v) if k == "startingTimestamp" else v
            )
            for k, v in options.items()
        }
        kafka = {"kafka.bootstrap.servers": agent.bootstrap}
        arguments: dict[str, Any] = {"include_tail": True, "options": kafka, **python}
        return read_topic(spark, topic.location, topic.name, **arguments)

    assert [] == rows(query())
    topic.produce(20)
    assert topic.expected() == rows(query())
    agent.seal(topic.name)
    assert topic.expected() == rows(query())
    topic.produce(10)
    assert topic.expected() == rows(query())
    assert topic.expected(25) == rows(query(startingTimestamp=str(T0 + 24_001)))
    inner = ",".join(f'"{p}":22' for p in range(PARTITIONS))
    assert topic.expected(22) == rows(query(startingOffsets=f'{{"{topic.name}":{{{inner}}}}}'))


@pytest.mark.parametrize("how", ["native", "format"])
def test_a_query_is_one_state_however_often_it_is_sealed(
    spark: SparkSession, agent: DriftlogProcess, how: str
) -> None:
    """
    Records are produced and sealed while queries are planned and read: each query has a run of
    offsets from 0 on without a gap, at least to what was acknowledged when it began.
    """
    topic = Topic(agent, f"moving-{how}")
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            topic.produce(5)
            agent.seal(topic.name)

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        for _ in range(3):
            acknowledged = topic.count
            if how == "format":
                df = spark.read.format("driftlog").options(**topic.options()).load()
            else:
                kafka = {"kafka.bootstrap.servers": agent.bootstrap}
                df = read_topic(spark, topic.location, topic.name, include_tail=True, options=kafka)
            found = rows(df)
            for partition in range(PARTITIONS):
                offsets = [row[1] for row in found if row[0] == partition]
                assert [*range(len(offsets))] == offsets
                assert acknowledged <= len(offsets)
    finally:
        stop.set()
        writer.join()


def test_a_stream_backfills_and_then_follows(
    spark: SparkSession, agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    From sealed segments first, from the tail later, through seals and a restart of the query:
    every row once.
    """
    topic = Topic(agent, "followed")
    topic.produce(30)
    agent.seal(topic.name)
    seen: list[tuple[int, int, bytes]] = []

    def start() -> Any:
        reader = spark.readStream.format("driftlog")
        reader = reader.options(**topic.options(startingOffsets="earliest"))
        return (
            reader.load()
            .writeStream.foreachBatch(lambda df, _: seen.extend(rows(df)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    query = start()
    try:
        for step in range(4):
            topic.produce(10)
            query.processAllAvailable()
            assert topic.expected() == sorted(seen)
            if step == 1:
                agent.seal(topic.name)
            if step == 2:
                query.stop()
                topic.produce(5)
                query = start()
    finally:
        query.stop()
