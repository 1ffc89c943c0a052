"""A stream that starts at the latest offset goes on there, also if it dies in its first batch; one
that starts behind it waits.

If it failed: such a query could not start again, or would skip what came meanwhile.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.test_read_topic import message
from tests.support.sealed_topics import SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def test_the_first_batch_runs_again_without_records(spark: SparkSession, tmp_path: Path) -> None:
    """
    Spark keeps where a batch ends, and asks the source again where the first one starts: the first
    batch of such a query is empty, so nothing hangs on the second answer.
    """
    topic = SealedTopic(str(tmp_path / "log"), "t", partitions=2).create()
    topic.seal(0, 0, [message(0, n) for n in range(5)])
    seen: dict[int, list[tuple[int, int]]] = {}

    def dies(_: DataFrame, batch: int) -> None:
        raise RuntimeError(f"batch {batch}")

    def collects(df: DataFrame, batch: int) -> None:
        seen[batch] = sorted((row.partition, row.offset) for row in df.collect())

    def run(into: Callable[[DataFrame, int], None]) -> None:
        reader = spark.readStream.format("driftlog").option("subscribe", "t")
        query = (
            reader.option("location", str(tmp_path / "log"))
            .load()
            .writeStream.foreachBatch(into)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="batch 0"):
        run(dies)
    topic.seal(0, 5, [message(0, n) for n in range(5, 8)])
    topic.seal(1, 0, [message(1, n) for n in range(2)])
    run(collects)
    run(collects)

    assert [] == seen[0]
    assert [(0, 5), (0, 6), (0, 7), (1, 0), (1, 1)] == sorted(
        row for rows in seen.values() for row in rows
    )


def test_a_stream_waits_for_an_offset_that_is_not_sealed_yet(tmp_path: Path) -> None:
    """
    It begins there, and not where the log ended when it was started.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [message(0, n) for n in range(5)])
    given = {"location": str(tmp_path), "subscribe": "t", "startingOffsets": '{"t":{"0":8}}'}
    reader = StreamReader(str(tmp_path), parse_options(given, streaming=True))

    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    waits = reader.latestOffset(start, reader.getDefaultReadLimit())
    topic.seal(0, 5, [message(0, n) for n in range(5, 11)])
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    offsets = [
        offset
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for offset in batch.column("offset").to_pylist()
    ]

    assert start == waits
    assert [8, 9, 10] == offsets
