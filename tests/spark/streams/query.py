"""A query as Spark runs it, killed between any two steps, and its sink.

    latestOffset ──▶ offset log ──▶ partitions ──▶ read, task by task ──▶ sink ──▶ commit log ──┐
         ▲                  │                                                                   │
         └──────────────────┼───────────────────────────────────────────────────────────────────┘
              after a kill: └─ the batch that has no commit, once more

Offset log, commit log and sink survive a kill; the reader does not.  The sink takes a batch by its
number: one that is repeated replaces what it had.  Source:
org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution.
"""

import asyncio
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from driftlog_spark_reader.bucket.local_files import LocalFiles
from driftlog_spark_reader.common.errors import DataLossError, OffsetOutOfRangeError
from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.source.stream_position import decode
from driftlog_spark_reader.source.stream_reader import StreamReader
from tests.simulation.batches import is_tombstone
from tests.spark.streams.agents import World
from tests.spark.streams.log_oracle import NEVER, LogOf, Place

ETCD: Final = "http://127.0.0.1:2379"
_PAUSES_S: Final = (0.0, 0.0, 0.05, 0.3, 1.0)
_MOMENTS: Final = 0.04
"""Of the reader's looks into the bucket: how many last."""
_MOMENT_S: Final = 0.6
_SEALED_S: Final = 120.0
_TRIES: Final = 300


class Killed(Exception):
    """The query's process ends here."""


class Row(NamedTuple):
    """A record in the sink."""

    place: Place
    value: bytes | None


@dataclass(slots=True)
class Batch:
    """A micro-batch, as it came into the sink."""

    rows: list[Row]
    planned_s: float
    """When the plan of these rows was made."""
    may_lose: bool
    """It was planned with failOnDataLoss=false."""


@dataclass(slots=True)
class Query:
    """See the module.

    Args:
        options: those of every life.
        has_tail: a life reads the tail, with few exceptions.
    """

    world: World
    location: str
    options: dict[str, str]
    has_tail: bool
    is_lenient: bool
    """It has failOnDataLoss=false; else it gets that for a batch that fails without."""
    rng: Random
    offset_log: list[str] = field(default_factory=list)
    """The end of each batch, as text.  Spark logs no start."""
    commits: int = 0
    sink: dict[int, Batch] = field(default_factory=dict)
    may_lose: bool = False
    left: int = 0
    """Steps until this life is killed; 0: it is not."""

    # ── Lives ──

    def live(self, steps: int) -> None:
        """Run until killed, *steps* from now, or until it fails as it is documented."""
        self.left = steps
        if len(self.offset_log) == self.commits:
            self.may_lose = self.is_lenient
        tail = self.has_tail and self.rng.random() < 0.9
        available_now = self.rng.random() < 0.2
        try:
            self._run(tail=tail, available_now=available_now)
        except Killed:
            self.world.count("queries killed")
        except OffsetOutOfRangeError:
            self.world.expect(self.has_tail and not tail, "the log is shorter than it was")
            self.world.count("batches with a tail, repeated without")

    def end(self) -> None:
        """Run until the sink has all."""
        self.left = 0
        if not self.has_tail:
            self.world.wait_for("sealed", self.world.is_sealed, _SEALED_S)
        for _ in range(_TRIES):
            if self._run(tail=self.has_tail, available_now=False):
                break

    def _run(self, *, tail: bool, available_now: bool) -> bool:
        """Whether it came to the end of the log, and did not fail for what expired."""
        reader = self._reader(tail=tail)
        try:
            if len(self.offset_log) > self.commits:
                self._batch(reader)
            if available_now:
                reader.prepareForTriggerAvailableNow()
            while True:
                self.step()
                start = self._start(reader, len(self.offset_log))
                self.step()
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    if available_now or not self.left:
                        return True
                    continue
                self.step()
                self.offset_log.append(json.dumps(end))
                self._batch(reader)
        except DataLossError as error:
            self._failed(error)
            return False
        finally:
            reader.stop()

    def _batch(self, reader: StreamReader) -> None:
        number = len(self.offset_log) - 1
        self.step()
        start = self._start(reader, number)
        tasks = reader.partitions(start, json.loads(self.offset_log[number]))
        planned_s = self.world.loop.now_s
        rows: list[Row] = []
        for task in tasks:
            self.step()
            rows += self._rows(reader, task)
        self.step()
        self.write(number, Batch(rows, planned_s, self.may_lose))
        self.step()
        self.commit(number)
        reader.commit(json.loads(self.offset_log[number]))

    def write(self, number: int, batch: Batch) -> None:
        """Into the sink."""
        self.sink[number] = batch

    def commit(self, number: int) -> None:
        """Into the commit log."""
        self.commits = number + 1

    def _start(self, reader: StreamReader, number: int) -> dict[str, Any]:
        if not number:
            return reader.initialOffset()
        found: dict[str, Any] = json.loads(self.offset_log[number - 1])
        return found

    def _rows(self, reader: StreamReader, task: InputPartition) -> list[Row]:
        """Of a task, on an executor."""
        executor, sent = pickle.loads(pickle.dumps((reader, task)))
        rows: list[Row] = []
        for found in executor.read(sent):
            names = ("topic", "partition", "offset", "value")
            columns = [found.column(name).to_pylist() for name in names]
            rows += [
                Row(Place(LogOf(topic, partition), offset), value)
                for topic, partition, offset, value in zip(*columns, strict=True)
            ]
        return rows

    def step(self) -> None:
        """The world goes on, and the query may be killed."""
        if self.left:
            self.world.pass_time(self.rng.choice(_PAUSES_S))
            self.left -= 1
            if not self.left:
                raise Killed

    def _reader(self, *, tail: bool) -> StreamReader:
        given = {"location": self.location, **self.options}
        given["failOnDataLoss"] = str(not self.may_lose).lower()
        if tail:
            given |= {"includeTail": "true", "etcd": ETCD}
        return StreamReader(self.location, parse_options(given, streaming=True))

    def _failed(self, error: DataLossError) -> None:
        """Its user looks why, and lets it go on with what is left."""
        number = self.commits
        begun = decode(json.loads(self.offset_log[number])).start
        if begun is None:
            begun = decode(json.loads(self.offset_log[number - 1])).offsets
        starts = {LogOf(named.topic, named.partition): at for named, at in begun.items()}
        oracle = self.world.oracle
        lost = [log for log in self.world.logs() if oracle.start(log) > starts.get(log, 0)]
        self.world.expect(bool(lost) and not self.may_lose, f"nothing had expired: {error}")
        self.world.count("queries that failed for what expired")
        self.may_lose = True

    # ── What must be in the sink ──

    def check(self) -> None:
        """Whether the sink has each record once, but for those that were gone when its batch was
        planned."""
        world, oracle = self.world, self.world.oracle
        if not self.offset_log:
            return  # it was to begin at the end
        ends = [decode(json.loads(text)) for text in self.offset_log]
        offsets = [
            {LogOf(named.topic, named.partition): at for named, at in end.offsets.items()}
            for end in ends
        ]
        first = ends[0].start if ends[0].start is not None else ends[0].offsets
        starts = {LogOf(named.topic, named.partition): at for named, at in first.items()}
        found: dict[Place, bytes | None] = {}
        for number, batch in sorted(self.sink.items()):
            for row in batch.rows:
                world.expect(row.place not in found, f"{row} is there again in batch {number}")
                found[row.place] = row.value
        for log in world.logs():
            position, end = offsets[-1].get(log, 0), oracle.end(log)
            world.expect(position == end, f"the query ends at {position} of {log}, of {end}")
            for offset, value in oracle.rows[log].items():
                place = Place(log, offset)
                if offset < starts.get(log, 0):
                    world.expect(place not in found, f"{place} is before the start")
                elif place in found:
                    written = (
                        None if log.topic in world.log.compacted and is_tombstone(value) else value
                    )
                    got = found.pop(place)
                    world.expect(got == written, f"{place} is {got!r}, not {written!r}")
                else:
                    number = next(n for n, at in enumerate(offsets) if at.get(log, 0) > offset)
                    self._excuse(place, value, number)
        world.expect(not found, f"there are rows that nobody wrote: {list(found.items())[:3]}")
        world.counts["batches"] = len(self.sink)
        world.counts["rows"] = sum(len(batch.rows) for batch in self.sink.values())

    def _excuse(self, place: Place, value: bytes, number: int) -> None:
        """Whether it may be missing in the batch *number*."""
        self.world.expect(number in self.sink, f"batch {number} is committed and not in the sink")
        batch, oracle = self.sink[number], self.world.oracle
        expired_s, removed_s = oracle.expired_s(place), oracle.removed_s(place)
        if batch.may_lose and expired_s <= batch.planned_s:
            self.world.count("rows that expired before they were read")
            return
        if removed_s <= batch.planned_s:
            self.world.count("rows that were compacted before they were read")
            return
        gone = {"expired": expired_s, "compacted": removed_s}
        gone = {how: at_s - batch.planned_s for how, at_s in gone.items() if at_s != NEVER}
        self.world.expect(
            False,
            f"{value!r} at {place} is not in batch {number}, planned with failOnDataLoss="
            f"{not batch.may_lose}; seconds from its plan: {gone}",
        )


def lasting_files(pass_moment: Callable[[], None]) -> type[LocalFiles]:
    """Files whose reader is overtaken by the world: names and small files take a moment."""

    class LastingFiles(LocalFiles):
        def names(self, prefix: str) -> list[str]:
            pass_moment()
            return super().names(prefix)

        def read(self, key: str) -> bytes | None:
            pass_moment()
            return super().read(key)

    return LastingFiles


def moments(world: World, rng: Random) -> Callable[[], None]:
    """Lets time pass in some of the reader's looks."""

    def pass_moment() -> None:
        if rng.random() < _MOMENTS and not _is_in_a_loop():
            world.pass_time(rng.uniform(0, _MOMENT_S))

    return pass_moment


def _is_in_a_loop() -> bool:
    """Whether this thread runs one, in which the world's cannot run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
