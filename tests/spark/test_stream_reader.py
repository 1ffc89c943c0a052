"""A stream's offsets go on past what happens between two calls of Spark.

If it failed: a query would end with an error that nothing is lost for, or leave records out.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driftlog_spark_reader.common.errors import DataLossError, RawSegmentSkippedWarning
from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_position import decode
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.test_read_topic import T0, message
from tests.support.sealed_topics import SealedTopic


def reader_of(topic: SealedTopic, **options: str) -> StreamReader:
    """Of a query's start."""
    given = {"location": topic.location, "subscribe": topic.name, "startingOffsets": "earliest"}
    given |= options
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


def test_a_log_that_is_shorter_than_it_was_is_a_loss(tmp_path: Path) -> None:
    """
    An older copy of the bucket is put back under a stream, and beside one that starts again.  What
    producers write behind its end has offsets that the stream has read: they are other records.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [message(0, n) for n in range(6)])
    topic.seal(0, 6, [message(0, n) for n in range(6, 10)])
    newest = topic.manifest(0).key
    reader, lenient = reader_of(topic), reader_of(topic, failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    topic.with_store(lambda store: store.delete([newest]))

    for one in (reader, reader_of(topic)):
        with pytest.raises(DataLossError, match="t-0: ends at 6, and was at 10"):
            one.latestOffset(end, ReadAllAvailable())
    repeated = rows(lenient, lenient.initialOffset(), end)  # The batch was not committed.
    goes_on = lenient.latestOffset(end, ReadAllAvailable())
    topic.seal(0, 6, [message(0, n) for n in range(6, 13)])
    following = lenient.latestOffset(goes_on, ReadAllAvailable())

    assert [(0, n) for n in range(6)] == repeated
    assert [] == rows(lenient, end, goes_on)
    assert [(0, n) for n in range(6, 13)] == rows(lenient, goes_on, following)


def test_a_topic_that_is_made_again_after_a_batch_without_records_is_read_from_its_start(
    tmp_path: Path,
) -> None:
    """
    The query began at the end of the topic that is gone.
    """
    before = SealedTopic(str(tmp_path), "t").create()
    before.seal(0, 0, [message(0, n) for n in range(5)])
    begins = {"startingOffsets": "latest", "failOnDataLoss": "false"}
    reader = reader_of(before, **begins)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    before.delete()
    after = SealedTopic(str(tmp_path), "t").create()
    after.seal(0, 0, [message(0, n) for n in range(8)])
    reader = reader_of(after, **begins)
    end = reader.latestOffset(at, ReadAllAvailable())

    assert [(0, n) for n in range(8)] == rows(reader, at, end)
    strict = reader_of(after, startingOffsets="latest")
    with pytest.raises(DataLossError, match="made again"):
        strict.partitions(at, strict.latestOffset(at, ReadAllAvailable()))


def test_a_start_that_the_log_has_not_reached_is_no_loss(tmp_path: Path) -> None:
    """
    It waits over batches of other partitions, and over a restart.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    topic.seal(0, 0, [message(0, n) for n in range(3)])
    topic.seal(1, 0, [message(1, n) for n in range(3)])
    starts = {"startingOffsets": '{"t":{"0":0,"1":5}}'}
    at = reader_of(topic, **starts).initialOffset()
    ends = []
    for base in (3, 4, 5):
        at = reader_of(topic, **starts).latestOffset(at, ReadAllAvailable())
        ends.append([*decode(at).offsets.values()])
        topic.seal(0, base, [message(0, base)])
    topic.seal(1, 3, [message(1, n) for n in range(3, 7)])

    last = reader_of(topic).latestOffset(at, ReadAllAvailable())

    assert [[3, 5], [4, 5], [5, 5]] == ends
    assert [(0, 5), (1, 5), (1, 6)] == rows(reader_of(topic), at, last)


def test_records_that_cannot_be_decoded_end_a_stream_that_may_lose_none(tmp_path: Path) -> None:
    """
    They are no rows, and the stream would go past them.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [message(0, 0)])
    topic.seal_raw(0, 1, 3)
    topic.seal(0, 3, [message(0, 3)])
    reader, lenient = reader_of(topic), reader_of(topic, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())

    with pytest.raises(DataLossError, match="t-0: offsets 1 to 2 have batches that cannot be"):
        reader.partitions(start, end)
    with pytest.warns(RawSegmentSkippedWarning, match="t-0: offsets 1 to 2 are left out"):
        assert [(0, 0), (0, 3)] == rows(lenient, start, end)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t":{"0":1,"1":0}}'},
        {"startingTimestamp": str(T0 + 1_000)},
    ],
)
def test_a_first_batch_is_repeated_where_its_start_has_no_answer_any_more(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """
    A partition is added that the start does not name, or that has no record of its time.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    topic.seal(0, 0, [message(0, n) for n in range(3)])
    topic.seal(1, 0, [message(1, n) for n in range(3)])
    reader = reader_of(topic, **options)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    expected = rows(reader, reader.initialOffset(), end)
    topic.partitions = 3
    topic.alter({})

    again = reader_of(topic, **options)

    assert (0, 1) in expected
    assert (0, 0) not in expected
    assert expected == rows(again, again.initialOffset(), end)
    following = again.latestOffset(end, ReadAllAvailable())
    assert [0] == [at for named, at in decode(following).offsets.items() if named.partition == 2]


def test_a_start_that_does_not_fit_is_told_before_the_first_batch(tmp_path: Path) -> None:
    """
    A query without a batch has nothing else to begin at.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    reader = reader_of(topic, startingOffsets='{"t":{"0":1}}')

    with pytest.raises(ValueError, match="it lacks t-1"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_stream_of_named_partitions_goes_on_where_its_topic_has_fewer(tmp_path: Path) -> None:
    """
    The topic was deleted and made again: with failOnDataLoss=false what is there is read from its
    first record.  A query without a batch names them by mistake.
    """
    topic = SealedTopic(str(tmp_path), "t", partitions=2).create()
    for partition in range(2):
        topic.seal(partition, 0, [message(partition, n) for n in range(3)])
    given = {"location": str(tmp_path), "assign": '{"t":[0,1]}', "startingOffsets": "earliest"}
    given |= {"failOnDataLoss": "false"}
    reader = StreamReader(str(tmp_path), parse_options(given, streaming=True))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    topic.delete()
    SealedTopic(str(tmp_path), "t").create().seal(0, 0, [message(0, 0)])

    following = reader.latestOffset(end, ReadAllAvailable())

    assert [(0, 0)] == rows(reader, end, following)
    with pytest.raises(ValueError, match="t has partitions 0 to 0, not 1"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
