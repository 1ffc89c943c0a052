"""A stream's offsets go on past what happens between two calls of Spark.

If it failed: a query would end with an error that nothing is lost for, or leave records out.
"""

from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.test_read_topic import message
from tests.support.sealed_topics import SealedTopic


def reader_of(topic: SealedTopic) -> StreamReader:
    """Of a query's start."""
    given = {"location": topic.location, "subscribe": topic.name, "startingOffsets": "earliest"}
    return StreamReader(topic.location, parse_options(given, streaming=True))


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Partition and offset of each record of a batch."""
    return sorted(
        (row["partition"], row["offset"])
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )


def test_a_partition_that_comes_while_an_available_now_query_starts_is_not_lost(
    tmp_path: Path,
) -> None:
    """
    Spark asks where such a query ends before it asks where it starts: the partition is in the
    start, and not in the end.  The next query reads it.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [message(0, n) for n in range(3)])
    reader = reader_of(topic)
    reader.prepareForTriggerAvailableNow()
    topic.partitions = 2
    topic.alter({})
    topic.seal(1, 0, [message(1, n) for n in range(2)])

    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    following = reader_of(topic).latestOffset(end, ReadAllAvailable())

    assert [(0, 0), (0, 1), (0, 2)] == rows(reader, start, end)
    assert [(1, 0), (1, 1)] == rows(reader, end, following)
