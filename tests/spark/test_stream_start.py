"""A stream that starts at the latest offset goes on there, also if it dies in its first batch.

If it failed: such a query could not start again, or would skip what came meanwhile.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

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
