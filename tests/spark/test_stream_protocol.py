"""A stream has each record once, wherever its query is killed and whatever happens to the log.

The query here is Spark's protocol without Spark: offset log, tasks, sink by batch number, commit
log; it is killed between any two steps, and a new reader goes on from the two logs.  The log is a
real one in a directory: segments are sealed, merged, compacted, expire, and partitions are added,
between any two steps, too.

If it failed: a restarted query would lose or repeat records.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.common.errors import DataLossError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_position import decode
from driftlog_spark_reader.source.stream_reader import StreamReader
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import TopicFile, encode_topic
from driftlog_tiering.formats.manifest import ReplaceSegments, SegmentRef, SetLogStart
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.sealed_topics import Message, SealedTopic

T0: Final = 1_700_000_000_000
STEPS: Final = 40
"""Of one life of the query, at most."""
LIVES: Final = 5


class Killed(Exception):
    """The query's process ends here."""


Place = tuple[int, int]
"""Partition and offset of a record."""


@dataclass
class Log:
    """One topic, changed at random."""

    random: random.Random
    topic: SealedTopic
    partitions: int = 1
    version: int = 1
    segments: dict[int, list[SegmentRef]] = field(default_factory=lambda: {0: []})
    records: set[Place] = field(default_factory=set)
    """Those that were ever sealed."""
    removed: set[Place] = field(default_factory=set)
    """Those that compaction or retention removed."""
    log_starts: dict[int, int] = field(default_factory=dict)
    expires: bool = False

    def change(self) -> None:
        """Do one thing, or nothing."""
        kinds = [self._seal, self._seal, self._seal, self._merge, self._compact, self._add]
        if self.expires and self.random.random() < 0.04:
            self._expire()
        elif self.random.random() < 0.9:
            self.random.choice(kinds)()

    def _seal(self) -> None:
        partition = self.random.randrange(self.partitions)
        held = self.segments[partition]
        base = held[-1].end if held else 0
        for _ in range(self.random.randint(1, 2)):
            messages = [_message(partition, base + i) for i in range(self.random.randint(1, 6))]
            held += self.topic.seal(partition, base, messages)
            self.records |= {(partition, base + i) for i in range(len(messages))}
            base += len(messages)

    def _rewrite(self, *, at_least: int, drops: float) -> None:
        partition = self.random.randrange(self.partitions)
        start = self.log_starts.get(partition, 0)
        held = [ref for ref in self.segments[partition] if ref.base >= start]
        if len(held) < at_least:
            return
        first = self.random.randrange(len(held) - at_least + 1)
        chosen = held[first : first + self.random.randint(at_least, 3)]
        places = [(partition, offset) for offset in range(chosen[0].base, chosen[-1].end)]
        dropped = {place for place in places if self.random.random() < drops}
        kept = [
            _message(*place) if place not in self.removed | dropped else None for place in places
        ]
        (added,) = self.topic.put(partition, chosen[0].base, kept)
        self.topic.edit(partition, ReplaceSegments(replaced=tuple(chosen), added=(added,)))
        self.removed |= dropped
        whole = self.segments[partition]
        at = whole.index(chosen[0])
        whole[at : at + len(chosen)] = [added]

    def _merge(self) -> None:
        self._rewrite(at_least=2, drops=0)

    def _compact(self) -> None:
        self._rewrite(at_least=1, drops=0.4)

    def _expire(self) -> None:
        partition = self.random.randrange(self.partitions)
        held, start = self.segments[partition], self.log_starts.get(partition, 0)
        if not held or held[-1].end == start:
            return
        start = self.random.randint(start, held[-1].end)
        self.topic.edit(partition, SetLogStart(start))
        self.log_starts[partition] = start
        self.removed |= {
            place for place in self.records if place[0] == partition and place[1] < start
        }

    def _add(self) -> None:
        if self.partitions == 3:
            return
        self.partitions += 1
        self.version += 1
        self.segments[self.partitions - 1] = []
        topic = Topic(
            name=self.topic.name, topic_id=self.topic.topic_id, partitions=self.partitions
        )

        async def write(store: ObjectStore) -> None:
            key = layout.topic_key(topic.name, topic.topic_id, self.version)
            await store.create(key, [encode_topic(TopicFile(self.version, topic))])

        self.topic.with_store(write)


def _message(partition: int, offset: int) -> Message:
    return Message(T0 + offset, value=f"{partition}/{offset}".encode())


@dataclass
class Query:
    """What survives a kill: the offset log, the commit log, and the sink."""

    log: Log
    location: str
    options: dict[str, str]
    offsets: list[dict[str, Any]] = field(default_factory=list)
    """The end of each batch.  Spark logs no start: it asks for that of the first again."""
    commits: int = 0
    sink: dict[int, list[Place]] = field(default_factory=dict)
    """By number of the batch: one that is repeated replaces what it wrote."""
    batches: int = 0

    def run(self, steps: int, *, to_the_end: bool = False) -> None:
        """Until it is killed, or has nothing new (*to_the_end*)."""
        given = {"location": self.location, "subscribe": "t", **self.options}
        reader = StreamReader(self.location, parse_options(given, streaming=True))
        remaining = steps

        def step() -> None:
            nonlocal remaining
            if to_the_end:
                return
            self.log.change()
            remaining -= 1
            if remaining <= 0:
                raise Killed

        try:
            if len(self.offsets) > self.commits:
                self._batch(reader, step)
            while True:
                step()
                start = self._start(reader, len(self.offsets))
                step()
                limit: ReadLimit = reader.getDefaultReadLimit()
                end = reader.latestOffset(start, limit)
                if end == start:
                    if to_the_end:
                        return
                    continue
                step()
                self.offsets.append(end)
                self._batch(reader, step)
        except Killed:
            pass
        finally:
            reader.stop()

    def _batch(self, reader: StreamReader, step: Any) -> None:
        number = len(self.offsets) - 1
        start, end = self._start(reader, number), self.offsets[number]
        step()
        tasks = reader.partitions(start, end)
        step()
        rows: list[Place] = []
        for task in tasks:
            for found in reader.read(task):
                rows += zip(
                    found.column("partition").to_pylist(),
                    found.column("offset").to_pylist(),
                    strict=True,
                )
                values = found.column("value").to_pylist()
                assert [f"{p}/{o}".encode() for p, o in rows[-len(values) :]] == values
            step()
        self.sink[number] = rows
        self.batches += 1
        step()
        reader.commit(end)
        self.commits = number + 1
        step()

    def _start(self, reader: StreamReader, number: int) -> dict[str, Any]:
        return self.offsets[number - 1] if number else reader.initialOffset()

    def rows(self) -> list[Place]:
        """All that is in the sink."""
        return sorted(place for rows in self.sink.values() for place in rows)


def _run(seed: int, folder: Path, options: dict[str, str], *, expires: bool) -> Query:
    chance = random.Random(seed)
    location = str(folder / "objects")
    log = Log(chance, SealedTopic(location, "t").create(), expires=expires)
    query = Query(log, location, {"startingOffsets": "earliest", **options})
    for _ in range(LIVES):
        query.run(chance.randint(1, STEPS))
    query.run(0, to_the_end=True)
    return query


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", [None, 4])
def test_each_record_is_in_the_sink_once(seed: int, limit: int | None, tmp_path: Path) -> None:
    """
    Those that compaction removed before they were read may be missing; no other is.
    """
    options = {} if limit is None else {"maxOffsetsPerTrigger": str(limit)}

    query = _run(seed, tmp_path, options, expires=False)

    rows = query.rows()
    assert query.batches > 2
    assert len(rows) == len(set(rows))
    assert set(rows) <= query.log.records
    assert query.log.records - set(rows) <= query.log.removed


@pytest.mark.parametrize("seed", range(4))
def test_a_query_that_may_lose_records_has_the_others_once(seed: int, tmp_path: Path) -> None:
    """
    With failOnDataLoss=false, beside retention.
    """
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "7"}

    query = _run(seed, tmp_path, options, expires=True)

    rows = query.rows()
    assert len(rows) == len(set(rows))
    assert query.log.records - set(rows) <= query.log.removed


def test_a_query_that_must_lose_none_fails_where_it_would(tmp_path: Path) -> None:
    """
    It ends with the error, or has every record that retention did not remove after it was read.
    """
    ended = []
    for seed in range(10):
        try:
            query = _run(seed, tmp_path / str(seed), {}, expires=True)
        except DataLossError:
            ended.append(seed)
            continue
        rows = query.rows()
        assert len(rows) == len(set(rows))
        assert query.log.records - set(rows) <= query.log.removed

    assert 0 < len(ended) < 10


@pytest.mark.parametrize("seed", range(4))
def test_a_query_from_the_latest_offsets_has_what_comes_then(seed: int, tmp_path: Path) -> None:
    """
    Its first batch is repeated from where it began, and not from where the log ends by then.
    """
    options = {"startingOffsets": "latest"}

    query = _run(seed, tmp_path, options, expires=False)

    rows = query.rows()
    assert len(rows) == len(set(rows))
    start = decode(query.offsets[0])
    begun = start.offsets if start.start is None else start.start
    later = {
        place
        for place in query.log.records
        if place[1] >= begun.get(NamedPartition("t", place[0]), 0)
    }
    assert later - set(rows) <= query.log.removed
    assert set(rows) <= later
