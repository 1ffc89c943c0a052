"""A stream's batch waits for `minOffsetsPerTrigger`, for `maxTriggerDelay` at most, and has
`maxOffsetsPerTrigger` records at most.

If it failed: a stream would write many small batches, or would never write the last records.
"""

from pathlib import Path
from typing import Any

import pytest

from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source import stream_reader
from driftlog_spark_reader.source.stream_position import decode
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.spark.test_read_topic import message
from tests.support.sealed_topics import SealedTopic


class Stream:
    """A query's batches by Spark's protocol, on one partition and a clock of the test's."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
    ) -> None:
        self.topic = SealedTopic(str(folder), "t").create()
        given = {"location": str(folder), "subscribe": "t", "startingOffsets": "earliest"}
        self.reader = StreamReader(str(folder), parse_options({**given, **options}, streaming=True))
        self.now_s = 1_000.0
        self._at: dict[str, Any] = {}
        self._end = 0
        monkeypatch.setattr(stream_reader, "monotonic", lambda: self.now_s)

    def seal(self, count: int) -> None:
        self.topic.seal(0, self._end, [message(0, self._end + n) for n in range(count)])
        self._end += count

    def trigger(self) -> int | None:
        """The end of the next batch; None: the stream waits."""
        start = self._at or self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return None
        self._at = end
        (offset,) = decode(end).offsets.values()
        return offset


def test_a_batch_waits_for_its_minimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The first one waits for nothing, as with Spark's Kafka source.
    """
    stream = Stream(tmp_path, monkeypatch, {"minOffsetsPerTrigger": "5"})

    stream.seal(2)
    assert 2 == stream.trigger()
    stream.seal(4)
    assert stream.trigger() is None
    stream.seal(1)
    assert 7 == stream.trigger()
    stream.seal(4)
    assert stream.trigger() is None


def test_it_waits_no_longer_than_the_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The delay begins at the last batch that was made.
    """
    options = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "90s"}
    stream = Stream(tmp_path, monkeypatch, options)

    stream.seal(1)
    assert 1 == stream.trigger()
    stream.seal(1)
    stream.now_s += 89
    assert stream.trigger() is None
    stream.now_s += 1
    assert 2 == stream.trigger()
    stream.seal(1)
    stream.now_s += 89
    assert stream.trigger() is None


def test_the_delay_is_fifteen_minutes_unless_one_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As Spark's Kafka source has it.
    """
    stream = Stream(tmp_path, monkeypatch, {"minOffsetsPerTrigger": "5"})

    stream.seal(1)
    assert 1 == stream.trigger()
    stream.seal(1)
    stream.now_s += 15 * 60 - 1
    assert stream.trigger() is None
    stream.now_s += 1
    assert 2 == stream.trigger()


def test_minimum_and_maximum_hold_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Enough has come for several batches: they follow each other at once, each with the most.
    """
    options = {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "4"}
    stream = Stream(tmp_path, monkeypatch, options)

    stream.seal(1)
    assert 1 == stream.trigger()
    stream.seal(2)
    assert stream.trigger() is None
    for _ in range(9):
        stream.seal(1)
    assert [5, 9, 12, None] == [stream.trigger() for _ in range(4)]
