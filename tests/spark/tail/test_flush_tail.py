"""A commit, a seal, a claim or a consolidation between two reads of the tail would change its rows.

The metadata store is the simulator's, and the bucket a directory: what happens beside a query
happens between any two of its requests.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_metadata.schema.codec import (
    encode_cluster,
    encode_flush_record,
    encode_partition_state,
    encode_topic,
)
from driftlog_metadata.schema.keys import CLUSTER_KEY, flush_key, partition_key, topic_key
from driftlog_metadata.schema.model import (
    Cluster,
    FlushRecord,
    PartitionState,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Delete, Operation, Put, TxnResult
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.local_files import LocalFiles
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    StorageError,
    TailUnavailableError,
)
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.options.source_options import parse_options
from driftlog_spark_reader.query.ranges import query_ranges
from driftlog_spark_reader.tail.flush_tail import FlushTail
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.formats import bucket_files, layout
from tests.spark.tail.flushes import TOPIC, flush_body
from tests.support.memory_store import MemoryMetadataStore
from tests.support.sealed_topics import SealedTopic

PARTITIONS: Final = 3
CLUSTER: Final = Cluster("a-cluster")
NOTHING: Final = LogEnds(0, 0)

T: Final = Topic(name="t", topic_id=TOPIC, partitions=PARTITIONS)

Batches = list[tuple[int, int]]
"""Base, number of records."""


@dataclass
class Flush:
    """A flush record, and what is in its object."""

    key: str
    record: FlushRecord
    batches: dict[int, Batches]


@dataclass
class World:
    """A cluster that commits, seals, consolidates and changes leaders, by transactions."""

    folder: Path
    rng: random.Random
    store: MemoryMetadataStore = field(default_factory=lambda: MemoryMetadataStore(lambda: 0))
    states: dict[int, PartitionState] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    leaders: dict[int, str] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    flushes: dict[str, list[Flush]] = field(default_factory=dict)
    objects: int = 0
    beside: int = 0
    """How many steps happen between two requests of a query."""

    def create(self) -> "World":
        """The cluster and the topic, in both stores."""
        body = bucket_files.encode_cluster(CLUSTER)
        (self.folder / layout.CLUSTER_KEY).write_bytes(body)
        puts = [Put(CLUSTER_KEY, encode_cluster(CLUSTER)), Put(topic_key("t"), encode_topic(T))]
        asyncio.run(self.store.txn([], puts))
        return self

    async def step(self) -> None:
        """One transaction of an agent."""
        step = self.rng.choice([self.flush] * 4 + [self.seal, self.consolidate, self.claim])
        await step()

    async def flush(self) -> None:
        led = [p for p in range(PARTITIONS) if p in self.leaders]
        if not led:
            return await self.claim()
        session = self.leaders[self.rng.choice(led)]
        batches: dict[int, Batches] = {}
        for partition in led:
            if self.leaders[partition] == session and self.rng.random() < 0.7:
                for _ in range(self.rng.randint(1, 2)):
                    count = self.rng.randint(1, 3)
                    batches.setdefault(partition, []).append((self.ends[partition], count))
                    self.ends[partition] += count
        if batches:
            seq = self.seqs[session] = self.seqs.get(session, 0) + 1
            flush = self._write(session, flush_key(session, seq), batches)
            self.flushes.setdefault(session, []).append(flush)
            await self.store.txn([], [Put(flush.key, encode_flush_record(flush.record))])
        return None

    async def claim(self) -> None:
        """A session leads a partition: it is in its list before its first flush."""
        partition = self.rng.randrange(PARTITIONS)
        session = f"s{self.rng.randrange(8)}"
        state = self.states.get(partition, PartitionState())
        sessions = (*(s for s in state.sessions if s != session), session)
        if session in state.sessions:
            sessions = state.sessions  # an earlier one claims again: the list need not change
        await self.put_state(partition, replace(state, sessions=sessions))
        self.leaders[partition] = session

    async def seal(self) -> None:
        """The sealed end moves to a batch's end; then records without unsealed batches go."""
        partition = self.rng.randrange(PARTITIONS)
        state = self.states.get(partition)
        if state is None:
            return
        bounds = [
            base + count
            for flushes in self.flushes.values()
            for flush in flushes
            for base, count in flush.batches.get(partition, [])
            if base + count > state.sealed_end
        ]
        if bounds:
            end = self.rng.choice(bounds)
            kept = tuple(
                s
                for s in state.sessions
                if s == self.leaders.get(partition) or self._last(s, partition) > end
            )
            await self.put_state(partition, replace(state, sealed_end=end, sessions=kept))
        for flushes in self.flushes.values():
            done = [flush for flush in flushes if self._is_sealed(flush)]
            if done:
                await self.store.txn([], [Delete(flush.key) for flush in done])
                flushes[:] = [flush for flush in flushes if flush not in done]

    async def consolidate(self) -> None:
        """The records of a session become one, without what is sealed."""
        sessions = [s for s, found in self.flushes.items() if found]
        if sessions:
            await self.rewrite(self.rng.choice(sessions))

    async def rewrite(self, session: str) -> None:
        old = self.flushes[session]
        batches: dict[int, Batches] = {}
        for flush in old:
            for partition, found in flush.batches.items():
                sealed = self.states[partition].sealed_end
                batches.setdefault(partition, []).extend(b for b in found if sum(b) > sealed)
        batches = {partition: found for partition, found in batches.items() if found}
        # A deleted key and a put one must differ: each rewrite has a level of its own.
        self.objects += 1
        key = flush_key(session, self.seqs[session], self.objects, 0)
        operations: list[Operation] = [Delete(flush.key) for flush in old]
        self.flushes[session] = []
        if batches:
            new = self._write(session, key, batches)
            self.flushes[session] = [new]
            operations.append(Put(key, encode_flush_record(new.record)))
        await self.store.txn([], operations)

    async def put_state(self, partition: int, state: PartitionState) -> None:
        self.states[partition] = state
        key = partition_key(TopicPartition(TOPIC, partition))
        await self.store.txn([], [Put(key, encode_partition_state(state))])

    def _last(self, session: str, partition: int) -> int:
        return max(
            (
                base + count
                for flush in self.flushes.get(session, [])
                for base, count in flush.batches.get(partition, [])
            ),
            default=0,
        )

    def _is_sealed(self, flush: Flush) -> bool:
        return all(
            base + count <= self.states[partition].sealed_end
            for partition, batches in flush.batches.items()
            for base, count in batches
        )

    def _write(self, session: str, key: str, batches: dict[int, Batches]) -> Flush:
        self.objects += 1
        object_key = f"flush/{session}/{self.objects}"
        body = flush_body(object_key, [(TOPIC, p, found) for p, found in batches.items()])
        path = self.folder / object_key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.data)
        record = FlushRecord(
            object_key=object_key, size_bytes=len(body.data), footer_start=body.footer_start
        )
        return Flush(key, record, batches)


class Beside:
    """The store as a query sees it: before and behind each of its requests, something happens."""

    def __init__(self, world: World, failures: int = 0) -> None:
        self._world = world
        self.failures = failures

    async def txn(self, *request: Any) -> TxnResult:
        await self._happens()
        answer = await self._world.store.txn(*request)
        await self._happens()
        if self.failures > 0:
            self.failures -= 1
            raise UnavailableError("an election")
        return answer

    async def _happens(self) -> None:
        for _ in range(self._world.rng.randint(0, self._world.beside)):
            await self._world.step()

    async def close(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, random.Random(1)).create()


def open_tail(world: World, files: Files | None = None, failures: int = 0) -> FlushTail:
    beside: Any = Beside(world, failures)
    return FlushTail(files or LocalFiles(str(world.folder)), lambda: beside)


def steps(world: World, count: int) -> None:
    async def run() -> None:
        for _ in range(count):
            await world.step()

    asyncio.run(run())


def offsets(tail: FlushTail, partition: int, start: int, end: int) -> list[int]:
    """Of the rows of all pieces; the value of each row is its offset."""
    return [row["offset"] for row in rows_of(tail, tail.plan(T, partition, start, end))]


def rows_of(tail: FlushTail, pieces: Sequence[TailRange]) -> Iterator[dict[str, Any]]:
    for rows in tail.reader().read(*pieces):
        for row in rows.to_pylist():
            assert b"%d" % row["offset"] == row["value"]
            yield row


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32))
def test_a_query_sees_what_was_committed_when_it_began(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """
    Under every schedule that a seed can make: each partition's end is not below what was
    acknowledged before, and rows from any later sealed end to it are there, once.
    """
    folder = tmp_path_factory.mktemp("world")
    world = World(folder, random.Random(seed)).create()
    steps(world, world.rng.randint(0, 40))
    tail = open_tail(world)
    for _ in range(3):
        acknowledged = dict(world.ends)
        world.beside = world.rng.choice([0, 2, 6])

        ends = {p: log.end for p, log in tail.ends(T, range(PARTITIONS)).items()}

        world.beside = 0
        assert all(acknowledged[p] <= ends[p] <= world.ends[p] for p in range(PARTITIONS))
        sealed = {p: world.states.get(p, PartitionState()).sealed_end for p in range(PARTITIONS)}
        steps(world, world.rng.randint(0, 10))
        pieces = []
        for p in range(PARTITIONS):
            start = min(sealed[p], ends[p])
            assert list(range(start, ends[p])) == offsets(tail, p, start, ends[p])
            pieces += tail.plan(T, p, start, ends[p])
        together = [(row["partition"], row["offset"]) for row in rows_of(tail, pieces)]
        assert together == [
            (p, n) for p in range(PARTITIONS) for n in range(min(sealed[p], ends[p]), ends[p])
        ]
    tail.close()


def test_a_cut_of_many_sessions_is_read_in_parts(world: World) -> None:
    """
    More than one transaction has operations for, in a partition and in all of them.
    """

    async def flush_by_many() -> None:
        for number in range(130):
            for partition in range(2):
                session = f"many-{number}-{partition}"
                state = world.states.get(partition, PartitionState())
                sessions = (*state.sessions, session)
                await world.put_state(partition, replace(state, sessions=sessions))
                world.leaders = {partition: session}
                while world.seqs.get(session) is None:
                    await world.flush()
        state = world.states[1]
        half = replace(state, sealed_end=world.ends[1] // 2, sessions=state.sessions[60:])
        await world.put_state(1, half)

    asyncio.run(flush_by_many())
    tail = open_tail(world)

    ends = {p: log.end for p, log in tail.ends(T, [0, 1]).items()}

    assert {0: world.ends[0], 1: world.ends[1]} == ends
    assert list(range(ends[0])) == offsets(tail, 0, 0, ends[0])
    half = world.states[1].sealed_end
    assert list(range(half, ends[1])) == offsets(tail, 1, half, ends[1])
    tail.close()


def test_a_partition_that_has_had_no_leader_is_empty(world: World) -> None:
    """
    It has no key yet.
    """
    tail = open_tail(world)

    assert {0: NOTHING, 2: NOTHING} == tail.ends(T, [0, 2])
    assert [] == tail.plan(T, 0, 0, 0)
    assert tail.offset_at(T, 0, 0) is None
    tail.close()


def test_records_that_are_deleted_of_the_tail_alone_are_lost_to_a_query_that_wants_them(
    world: World,
) -> None:
    """
    The manifest has the new log start later: it says nothing of them.
    """
    SealedTopic(str(world.folder), "t", PARTITIONS, TOPIC).create()
    while world.ends[0] < 3:
        steps(world, 1)
    state = replace(world.states[0], log_start=world.ends[0] - 1)
    asyncio.run(world.put_state(0, state))
    given = {"assign": '{"t":[0]}', "startingOffsets": '{"t":{"0":0}}', "location": "-"}
    files, tail = LocalFiles(str(world.folder)), open_tail(world)

    with pytest.raises(OffsetOutOfRangeError, match=f"the log starts at {state.log_start}"):
        query_ranges(files, parse_options(given, streaming=False), tail=tail)
    given["failOnDataLoss"] = "false"
    (wanted,) = query_ranges(files, parse_options(given, streaming=False), tail=tail)

    assert (world.ends[0] - 1, world.ends[0]) == (wanted.start, wanted.end)
    tail.close()


def test_only_new_footers_are_read(world: World) -> None:
    """
    A stream asks each second: what it has read stays known, for other topics too.
    """
    steps(world, 30)
    files = Counted(str(world.folder))
    tail = open_tail(world, files)
    tail.ends(T, range(PARTITIONS))
    before = len(files.read_keys)
    assert before > 0

    tail.ends(T, range(PARTITIONS))
    assert before == len(files.read_keys)
    other = Topic(name="o", topic_id=UUID(int=6), partitions=1)
    asyncio.run(world.store.txn([], [Put(topic_key("o"), encode_topic(other))]))
    tail.ends(other, [0])
    assert before == len(files.read_keys)

    asyncio.run(world.flush())
    tail.ends(T, range(PARTITIONS))
    assert before < len(files.read_keys) <= before + 1
    tail.close()


class Counted(LocalFiles):
    """Notes which ranges are read."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.read_keys: list[str] = []

    def read_range(self, key: str, start: int, end: int) -> bytes | None:
        self.read_keys.append(key)
        return super().read_range(key, start, end)


def test_an_object_that_is_gone_by_now_is_looked_for_in_newer_records(world: World) -> None:
    """
    A grace period may pass between the transaction and the footers; what is missing then is damage.
    """
    steps(world, 60)
    partition = max(world.states, key=lambda p: world.ends[p] - world.states[p].sealed_end)
    once = Lock()
    gone: list[str] = []

    class Consolidated(LocalFiles):
        def read_range(self, key: str, start: int, end: int) -> bytes | None:
            with once:
                if not gone:
                    for session, flushes in list(world.flushes.items()):
                        gone.extend(flush.record.object_key for flush in flushes)
                        if flushes:
                            asyncio.run(world.rewrite(session))
                    for name in gone:
                        (world.folder / name).unlink()
            return super().read_range(key, start, end)

    tail = open_tail(world, Consolidated(str(world.folder)))
    end = tail.ends(T, range(PARTITIONS))[partition].end

    start = world.states[partition].sealed_end
    assert gone
    assert list(range(start, world.ends[partition])) == offsets(tail, partition, start, end)
    for path in (world.folder / "flush").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(DamagedTopicError, match="missing, and a flush record names it"):
        open_tail(world).ends(T, [partition])
    tail.close()


def test_a_deleted_topic_and_another_cluster_are_told(world: World) -> None:
    """
    And a store that is none, or of a newer driftlog.
    """
    tail = open_tail(world)
    changes: list[tuple[Operation, type[Exception], str]] = [
        (Delete(topic_key("t")), DeletedTopicError, "is deleted"),
        (
            Put(topic_key("t"), encode_topic(replace(T, topic_id=UUID(int=7)))),
            DeletedTopicError,
            "is deleted",
        ),
        (Put(topic_key("t"), b"{}"), DamagedTopicError, "etcd: .*/topics/t"),
        (
            Put(CLUSTER_KEY, encode_cluster(Cluster("another"))),
            StorageError,
            "another cluster's address",
        ),
        (
            Put(CLUSTER_KEY, encode_cluster(Cluster("a-cluster", 9, "9.0.0"))),
            StorageError,
            "needs driftlog 9",
        ),
        (Delete(CLUSTER_KEY), StorageError, "no driftlog cluster"),
    ]
    for change, error, said in changes:
        asyncio.run(world.store.txn([], [change]))
        with pytest.raises(error, match=said):
            tail.ends(T, [0])
    tail.close()


def test_the_newest_cluster_file_says_whose_bucket_it_is(world: World) -> None:
    """
    After a restore the bucket has several.
    """
    path = world.folder / layout.cluster_key(1)
    path.parent.mkdir()
    path.write_bytes(bucket_files.encode_cluster(Cluster("restored")))
    tail = open_tail(world)
    with pytest.raises(StorageError, match="of restored"):
        tail.ends(T, [0])

    asyncio.run(world.store.txn([], [Put(CLUSTER_KEY, encode_cluster(Cluster("restored")))]))

    assert {0: NOTHING} == tail.ends(T, [0])
    tail.close()


def test_a_store_that_fails_a_few_times_is_asked_again(world: World) -> None:
    """
    An election takes a second; a store that stays away ends the query.
    """
    tail = open_tail(world, failures=4)
    assert {0: NOTHING} == tail.ends(T, [0])
    tail.close()
    tail = open_tail(world, failures=99)
    with pytest.raises(TailUnavailableError, match="option etcd"):
        tail.ends(T, [0])
    tail.close()
