"""A query would miss an acknowledged record, or show one twice: with real agents and etcd."""

import contextlib
import itertools
import pickle
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import uuid4

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from benchmarks.batches import Codec
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_spark_reader.bucket.catalog import find_topic, newest_manifest, segments
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DataLossError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    StorageError,
    TailUnavailableError,
)
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.tail.agents_tail import AgentsSettings, AgentsTail
from driftlog_spark_reader.tail.open_tail import open_tail
from driftlog_spark_reader.tail.port import Tail, TailRange
from driftlog_tiering.segments.columns import SCHEMA
from tests.clients.batches import good, with_records, with_strange_header
from tests.clients.sockets import Raw
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster
from tests.support.process_usage import free_port
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("spark_tail")]

ADAPTERS: Final = ("agents", "etcd")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
T0: Final = 1_700_000_000_000
PARTITIONS: Final = 3
KEYS: Final = (None, b"", b"k", "schlüssel".encode(), bytes(range(256)))
VALUES: Final = (b"value " * 40, None, b"", b"\x00\xff" * 100)
HEADERS: Final[tuple[list[tuple[str, str | bytes | None]], ...]] = (
    [],
    [("source", b"JFK")],
    [("same", b"1"), ("same", b"2"), ("empty", b""), ("null", None)],
)


class Row(NamedTuple):
    """A record as a DataFrame has it; the timestamp in milliseconds."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    topic: str
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, str | bytes | None], ...] | None


@dataclass
class Cluster:
    """Agents on one etcd and one directory of objects."""

    folder: Path
    etcd: EtcdCluster
    agents: list[DriftlogProcess] = field(default_factory=list)
    store: str = ""

    @property
    def location(self) -> str:
        return self.store or str(self.folder / "objects")

    @property
    def servers(self) -> str:
        return ",".join(agent.bootstrap for agent in self.agents if agent.is_alive())

    def start_agent(self, *arguments: str) -> DriftlogProcess:
        agent = DriftlogProcess(
            self.folder / f"agent-{len(self.agents)}",
            (
                *("--etcd", ",".join(self.etcd.endpoints), "--store", self.location),
                *("--session-timeout-ms", "2000", *arguments),
            ),
            command=("agent", "run"),
        )
        self.agents.append(agent)
        return agent.start()

    def options(self, adapter: str) -> dict[str, str]:
        """Of a query with the tail."""
        if adapter == "etcd":
            return {"includeTail": "true", "etcd": ",".join(self.etcd.endpoints)}
        return {"includeTail": "true", "kafka.bootstrap.servers": self.servers}

    def tail(self, adapter: str, **options: str) -> Tail:
        tail = open_tail({**self.options(adapter), **options}, self.location)
        assert tail is not None
        return tail

    def topic(self, name: str, **configs: str) -> Topic:
        """A new topic, as the bucket has it."""
        new = NewTopic(name, PARTITIONS, config=configs)
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([new])[name].result(30)
        files = open_files(self.location)
        return find_topic(files, name, None)

    def produce(
        self, topic: Topic, count: int, codec: str = "none", *, flushes: int = 1
    ) -> list[Row]:
        """Acknowledged records: in *flushes* rounds, each of which is flushed by itself."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.servers,
                "compression.type": codec,
                "acks": "all",
                "linger.ms": 1,
            }
        )
        acknowledged: list[Row] = []
        kinds = list(itertools.product(KEYS, VALUES, HEADERS))
        for number in range(count * flushes):
            key, value, headers = kinds[number % len(kinds)]
            producer.produce(
                topic.name,
                value,
                key,
                number % PARTITIONS,
                timestamp=T0 + number,
                headers=headers,
                on_delivery=_acknowledged(acknowledged, key, value, headers),
            )
            if number % count == count - 1:
                assert 0 == producer.flush(60)
        assert count * flushes == len(acknowledged)
        return acknowledged


def _acknowledged(
    rows: list[Row],
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, str | bytes | None]],
) -> Callable[[confluent_kafka.KafkaError | None, Any], None]:
    def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is not None:
            return
        kind, ms = message.timestamp()
        rows.append(
            Row(
                message.partition(),
                message.offset(),
                key,
                value,
                message.topic(),
                ms,
                int(kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME),
                tuple(headers) or None,
            )
        )

    return delivered


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two agents, for tests that harm none."""
    with _cluster(tmp_path_factory.mktemp("shared"), 2) as cluster:
        yield cluster


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without agents, of one test."""
    with _cluster(tmp_path, 0) as cluster:
        yield cluster


@contextmanager
def _cluster(folder: Path, agents: int) -> Iterator[Cluster]:
    (folder / "etcd").mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder / "etcd") as etcd:
        cluster = Cluster(folder, etcd)
        try:
            for _ in range(agents):
                cluster.start_agent()
            yield cluster
        finally:
            for agent in cluster.agents:
                agent.kill()
                agent.close()


# ── A query, step by step ──


@dataclass
class Query:
    """What a reader of sealed rows and the tail does; something may happen between its steps."""

    cluster: Cluster
    topic: Topic
    tail: Tail
    between: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """All rows, partition by partition."""
        partitions = range(PARTITIONS)
        files = open_files(self.cluster.location)
        ends = self.tail.ends(self.topic, partitions)
        self._happens("ends")
        found: list[Row] = []
        pieces: list[TailRange] = []
        for partition in partitions:
            tp = TopicPartition(self.topic.topic_id, partition)
            manifest = newest_manifest(files, self.topic.name, tp)
            end = ends[partition].end
            for segment in segments(files, manifest, 0, end, TimeRange(None, None)):
                table = pq.read_table(Path(self.cluster.location) / segment.key)
                found += [row for row in _rows(table) if row.offset < end]
            pieces += self.tail.plan(self.topic, partition, min(manifest.end, end), end)
        self._happens("plan")
        reader = pickle.loads(pickle.dumps(self.tail.reader()))
        for batch in reader.read(*pickle.loads(pickle.dumps(pieces))):
            assert SCHEMA == batch.schema
            found += _rows(pa.Table.from_batches([batch]))
        return sorted(found, key=lambda row: row[:2])

    def _happens(self, step: str) -> None:
        self.between.get(step, lambda: None)()


def _rows(table: pa.Table) -> Iterator[Row]:
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    for row, us in zip(table.to_pylist(), times, strict=True):
        headers = row["headers"]
        yield Row(
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            row["topic"],
            us // 1000,
            row["timestampType"],
            None if headers is None else tuple((h["key"], h["value"]) for h in headers),
        )


def query(
    cluster: Cluster,
    adapter: str,
    topic: Topic,
    options: Mapping[str, str] = MappingProxyType({}),
    /,
    **between: Callable[[], object],
) -> list[Row]:
    """The rows of one query, with a tail of its own."""
    tail = cluster.tail(adapter, **options)
    try:
        return Query(cluster, topic, tail, between).rows()
    finally:
        tail.close()


# ── Everything acknowledged, once ──


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_sealed_rows_and_the_tail_are_all_that_was_acknowledged(shared: Cluster, kind: str) -> None:
    """
    Of all codecs, nulls, empty values and headers; the second half is sealed too, and nothing but
    the place of the rows changes.
    """
    topic = shared.topic(f"all-{kind}", **{"message.timestamp.type": kind})
    told: list[Row] = []
    for half in range(2):
        for codec in CODECS:
            told += shared.produce(topic, 120, codec)
        told.sort(key=lambda row: row[:2])

        for adapter in ADAPTERS:
            assert told == query(shared, adapter, topic), (half, adapter)
        shared.agents[0].seal(topic.name)
        for adapter in ADAPTERS:
            assert told == query(shared, adapter, topic), (half, adapter)
    assert {int(kind == "LogAppendTime")} == {row.timestamp_type for row in told}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("step", ["ends", "plan"])
def test_what_happens_between_two_steps_of_a_query_changes_no_row(
    shared: Cluster, adapter: str, step: str
) -> None:
    """
    Sealing, and more records: the query shows what was acknowledged when it began.
    """
    topic = shared.topic(f"beside-{adapter}-{step}")
    told = sorted(shared.produce(topic, 300, flushes=3), key=lambda row: row[:2])

    def happens() -> None:
        shared.produce(topic, 30)
        shared.agents[0].seal(topic.name)
        shared.produce(topic, 30)

    assert told == query(shared, adapter, topic, **{step: happens})


@pytest.mark.parametrize("step", ["ends", "plan"])
def test_flush_objects_that_are_consolidated_meanwhile_are_still_read(
    own: Cluster, step: str
) -> None:
    """
    More than a hundred flushes become one object; their own ones stay for the grace period.
    """
    own.start_agent()
    topic = own.topic("many")
    told = sorted(own.produce(topic, 9, flushes=60), key=lambda row: row[:2])
    assert 60 <= len(_flush_objects(own))

    def happens() -> None:
        own.produce(topic, 9, flushes=60)
        deadline = time.monotonic() + 60
        while not any("." in Path(name).name.partition("-")[0] for name in _flush_objects(own)):
            assert time.monotonic() < deadline, _flush_objects(own)
            time.sleep(0.05)

    assert told == query(own, "etcd", topic, **{step: happens})
    assert 2 * len(told) == len(query(own, "etcd", topic))
    assert query(own, "agents", topic) == query(own, "etcd", topic)


def _flush_objects(cluster: Cluster) -> list[str]:
    return [str(path) for path in (Path(cluster.location) / "flush").rglob("*.flush")]


def test_no_agent_needs_to_live(own: Cluster) -> None:
    """
    Partitions change their leaders, which are killed in the end: with etcd all that was
    acknowledged is there, once; the offsets that other records of the last second have follow.
    """
    first = own.start_agent()
    topic = own.topic("orphans")
    told = own.produce(topic, 90, flushes=3)
    second = own.start_agent()
    told += own.produce(topic, 90, flushes=3)
    assert 0 == first.terminate()
    told += own.produce(topic, 90, flushes=3)
    second.seal(topic.name)
    told += own.produce(topic, 90, flushes=3)
    late: list[Row] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": own.servers, "acks": "all"})
    for number in range(3_000):
        delivered = _acknowledged(late, None, b"%d" % number, [])
        producer.produce(topic.name, b"%d" % number, partition=number % 3, on_delivery=delivered)
        producer.poll(0)
        if len(late) > 100:
            break
        time.sleep(0.0005)
    second.kill()
    producer.purge()
    producer.flush(0)

    rows = query(own, "etcd", topic)

    by_place = {row[:2]: row for row in rows}
    assert len(by_place) == len(rows)
    for row in told:
        assert row == by_place[row[:2]]
    for row in late:
        assert row[:4] == by_place[row[:2]][:4]
    for partition in range(PARTITIONS):
        offsets = [row.offset for row in rows if row.partition == partition]
        assert list(range(len(offsets))) == offsets


def test_a_read_goes_on_at_the_next_leader(own: Cluster) -> None:
    """
    Its agent is killed in the middle; no row is missing and none is there twice.
    """
    for _ in range(2):
        own.start_agent()
    topic = own.topic("moves")
    producer = confluent_kafka.Producer({"bootstrap.servers": own.servers, "acks": "all"})
    for number in range(40_000):
        producer.produce(topic.name, b"%1000d" % number, partition=0)
        if number % 1_000 == 0:
            assert 0 == producer.flush(60)
    assert 0 == producer.flush(60)
    tail = own.tail("agents", **{"kafka.queued.max.messages.kbytes": "2048"})
    (piece,) = tail.plan(topic, 0, 0, tail.ends(topic, [0])[0].end)
    rows = tail.reader().read(piece)
    found = next(rows).column("offset").to_pylist()
    places = AdminClient({"bootstrap.servers": own.servers}).list_topics(topic.name, 30)
    leader = places.brokers[places.topics[topic.name].partitions[0].leader]
    (first,) = (agent for agent in own.agents if agent.port == leader.port)
    first.kill()

    found += [offset for batch in rows for offset in batch.column("offset").to_pylist()]

    assert list(range(40_000)) == found
    assert 40_000 == own.tail("agents").ends(topic, [0])[0].end
    tail.close()


@pytest.mark.timeout(600)
def test_queries_beside_kills_and_seals_miss_and_double_nothing(own: Cluster) -> None:
    """
    Agents are killed and drained, and the topic is sealed, at any step of queries by both ways;
    each shows what was acknowledged when it began, without a gap and without a repeat.
    """
    rng = random.Random(7)
    for _ in range(2):
        own.start_agent()
    topic = own.topic("trouble")
    tails = {adapter: own.tail(adapter) for adapter in ADAPTERS}
    with ThreadPoolExecutor(2) as threads, _Producing(own, topic) as producing:
        stop = Event()
        trouble = threads.submit(_trouble, own, topic, stop, rng.randrange(2**32))
        try:
            until = time.monotonic() + 45
            while time.monotonic() < until:
                before = producing.acknowledged()
                adapter = rng.choice(ADAPTERS)
                waits = {
                    step: partial(time.sleep, rng.choice([0, 0, 1.5])) for step in ("ends", "plan")
                }
                rows = Query(own, topic, tails[adapter], waits).rows()
                found = {row[:2]: row.value for row in rows}
                assert len(found) == len(rows)
                assert before.items() <= found.items()
                for partition in range(PARTITIONS):
                    offsets = [offset for of, offset in found if of == partition]
                    assert list(range(len(offsets))) == sorted(offsets)
        finally:
            stop.set()
            trouble.result()
    for tail in tails.values():
        tail.close()


def _trouble(cluster: Cluster, topic: Topic, stop: Event, seed: int) -> None:
    rng = random.Random(seed)
    while not stop.wait(rng.uniform(0.5, 2)):
        agent = rng.choice(cluster.agents)
        match rng.choice(["seal", "seal", "kill", "drain"]):
            case "seal":
                with contextlib.suppress(subprocess.CalledProcessError):  # no leader at the moment
                    agent.seal(topic.name)
                continue
            case "kill":
                agent.kill()
            case _:
                agent.terminate()
        stop.wait(rng.uniform(0, 4))
        agent.start()


class _Producing:
    """Produces to all partitions until the block ends; no record is given up."""

    def __init__(self, cluster: Cluster, topic: Topic) -> None:
        self._topic = topic.name
        self._told: list[tuple[tuple[int, int], bytes]] = []
        self._stop = Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "_Producing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert 0 == self._producer.flush(120)

    def acknowledged(self) -> dict[tuple[int, int], bytes]:
        """Value by partition and offset, as of now."""
        return dict(self._told[:])

    def _run(self) -> None:
        for number in itertools.count():
            value = b"%d" % number
            self._producer.produce(
                self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            if self._stop.wait(0.002):
                return

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is None:
            self._told.append(((message.partition(), message.offset()), message.value()))


def test_a_tail_in_a_bucket_is_read_as_in_a_directory(
    own: Cluster, moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Footers by the driver and batches by executors, which find the bucket by the AWS_ variables.
    """
    for name, value in moto_s3.environment.items():
        monkeypatch.setenv(name, value)
    own.store = f"{moto_s3.location}/a/prefix"
    agent = own.start_agent()
    topic = own.topic("s3")
    told = sorted(own.produce(topic, 90, "lz4", flushes=12), key=lambda row: row[:2])
    agent.kill()
    tail = own.tail("etcd")

    ends = tail.ends(topic, range(PARTITIONS))

    pieces = [p for n in range(PARTITIONS) for p in tail.plan(topic, n, 0, ends[n].end)]
    assert max(len(piece.spans) for piece in pieces) >= 12
    assert told == [row for piece in pieces for row in _read(tail, piece)]
    tail.close()


# ── Offsets of times, log start ──


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_offsets_of_times_are_those_that_agents_list(
    shared: Cluster, adapter: str, kind: str
) -> None:
    """
    To the record, and none behind the last one; the sealed part is searched by others.
    """
    topic = shared.topic(f"times-{adapter}-{kind}", **{"message.timestamp.type": kind})
    told = shared.produce(topic, 90, "zstd", flushes=2)
    times = sorted({row.timestamp for row in told})
    tail = shared.tail(adapter)
    tail.ends(topic, range(PARTITIONS))
    shared.produce(topic, 30)

    def expected(partition: int, ms: int) -> tuple[int, int] | None:
        found = [r for r in told if r.partition == partition and r.timestamp >= ms]
        first = min(found, key=lambda row: row.offset, default=None)
        return None if first is None else (first.offset, first.timestamp)

    asked = [times[0] - 1, times[0], times[len(times) // 2], times[-1], times[-1] + 100_000_000]
    for partition, ms in itertools.product(range(PARTITIONS), asked):
        assert expected(partition, ms) == tail.offset_at(topic, partition, ms), (partition, ms)
    tail.close()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_records_below_log_start_are_in_no_piece(shared: Cluster, adapter: str) -> None:
    """
    DeleteRecords moves it in the middle of a batch.  A piece that was planned before is refused by
    agents, unless losses are accepted; flush objects still have it.
    """
    topic = shared.topic(f"deleted-{adapter}")
    told = [row for row in shared.produce(topic, 90) if row.partition == 0]
    tail = shared.tail(adapter)
    end = tail.ends(topic, [0])[0].end
    (before,) = tail.plan(topic, 0, 0, end)
    tp = confluent_kafka.TopicPartition(topic.name, 0, 7)
    admin = AdminClient({"bootstrap.servers": shared.servers})
    admin.delete_records([tp])[tp].result(30)
    tail.close()
    tail = shared.tail(adapter)

    assert {0: LogEnds(7, end)} == tail.ends(topic, [0])
    (piece,) = tail.plan(topic, 0, 0, end)

    assert told[7:] == _read(tail, piece)
    if adapter == "etcd":
        assert told == _read(tail, before)
    else:
        with pytest.raises(OffsetOutOfRangeError, match="0 to 6 were deleted"):
            _read(tail, before)
        assert told[7:] == _read(shared.tail(adapter, failOnDataLoss="false"), before)
    tail.close()


def _read(tail: Tail, *pieces: TailRange) -> list[Row]:
    batches = tail.reader().read(*pieces)
    return [row for batch in batches for row in _rows(pa.Table.from_batches([batch]))]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_plan_is_of_the_log_as_far_as_it_reaches(shared: Cluster, adapter: str) -> None:
    """
    A part of a batch, nothing, and more than there is.
    """
    topic = shared.topic(f"parts-{adapter}")
    told = [row for row in shared.produce(topic, 90) if row.partition == 1]
    tail = shared.tail(adapter)

    (piece,) = tail.plan(topic, 1, 3, 11)

    assert told[3:11] == _read(tail, piece)
    (first,), (last,) = tail.plan(topic, 1, 0, 3), tail.plan(topic, 1, 11, 20)
    assert told[:20] == _read(tail, first, piece, last)
    assert [] == tail.plan(topic, 1, 5, 5)
    with pytest.raises(OffsetOutOfRangeError, match="31 is above the high watermark, 30"):
        tail.plan(topic, 1, 0, 31)
    told += [row for row in shared.produce(topic, 90) if row.partition == 1]
    (piece,) = tail.plan(topic, 1, 29, 31)
    assert told[29:31] == _read(tail, piece)
    tail.close()


def test_offsets_without_a_record_are_read_past(own: Cluster) -> None:
    """
    A range whose last records were compacted ends where a later record shows it; one that is not
    there yet ends in an error, and with the record that comes.
    """
    own.start_agent("--config", "log.cleaner.backoff.ms=100")
    configs = {"min.cleanable.dirty.ratio": "0", "segment.ms": "1000"}
    topic = own.topic("compacted", **{"cleanup.policy": "compact", **configs})
    producer = confluent_kafka.Producer({"bootstrap.servers": own.servers})
    for number in range(10):
        producer.produce(topic.name, b"%d" % number, b"k", 0)
        producer.flush(60)
    tail = own.tail("agents", **{"kafkaConsumer.pollTimeoutMs": "4000"})
    (piece,) = tail.plan(topic, 0, 0, tail.ends(topic, [0])[0].end)
    own.agents[0].seal(topic.name)
    deadline = time.monotonic() + 60
    while [9] != [row.offset for row in _read(tail, piece)]:
        assert time.monotonic() < deadline, own.agents[0].log[-2000:]
        time.sleep(0.2)

    assert [] == _read(tail, replace(piece, end=7))
    assert [9] == [row.offset for row in _read(tail, replace(piece, start=5))]
    with pytest.raises(TailUnavailableError, match="no record behind offset 10 for 4 s"):
        _read(tail, replace(piece, end=12))
    for number in range(3):
        producer.produce(topic.name, b"%d" % number, b"k", 0)
    producer.flush(60)
    assert [9, 10, 11] == [row.offset for row in _read(tail, replace(piece, end=12))]
    tail.close()


# ── What goes wrong ──


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_topic_that_is_deleted_and_created_again_is_another_one(
    shared: Cluster, adapter: str
) -> None:
    """
    Its offsets start again: rows of it in the place of the old ones would be wrong.
    """
    name = f"again-{adapter}"
    old = shared.topic(name)
    shared.produce(old, 30)
    tail = shared.tail(adapter)
    (piece,) = tail.plan(old, 0, 0, tail.ends(old, [0])[0].end)
    admin = AdminClient({"bootstrap.servers": shared.servers})
    admin.delete_topics([name])[name].result(30)

    with pytest.raises(DeletedTopicError, match="deleted"):
        tail.ends(old, [0])
    new = NewTopic(name, PARTITIONS)
    deadline = time.monotonic() + 30
    while (error := admin.create_topics([new])[name].exception(30)) is not None:
        assert time.monotonic() < deadline, error
        time.sleep(0.1)
    shared.produce(Topic(name=name, topic_id=old.topic_id, partitions=PARTITIONS), 60)

    with pytest.raises(DeletedTopicError, match=str(old.topic_id)):
        tail.ends(old, [0])
    if adapter == "agents":
        with pytest.raises(DeletedTopicError, match="created again"):
            _read(tail, piece)
    tail.close()


def test_addresses_of_another_cluster_are_noticed(shared: Cluster, own: Cluster) -> None:
    """
    Its etcd has another cluster id, and its agents have another topic of that name.
    """
    mine = shared.topic("both")
    own.start_agent()
    tail = own.tail("etcd")
    with pytest.raises(DeletedTopicError):
        tail.ends(mine, [0])
    tail.close()
    own.topic("both")
    tail = own.tail("agents")
    with pytest.raises(DeletedTopicError, match="another cluster's address"):
        tail.ends(mine, [0])
    tail.close()
    opened = open_tail(own.options("etcd"), shared.location)
    assert opened is not None
    with pytest.raises(StorageError, match="another cluster's address"):
        opened.ends(mine, [0])
    opened.close()


def test_agents_that_are_away_end_a_read_with_what_to_do(own: Cluster) -> None:
    """
    And not never: it names the partition, the offset and the options.
    """
    agent = own.start_agent()
    topic = own.topic("away")
    own.produce(topic, 30)
    tail = own.tail("agents", **{"kafkaConsumer.pollTimeoutMs": "5000"})
    (piece,) = tail.plan(topic, 2, 0, tail.ends(topic, [2])[2].end)
    agent.kill()

    with pytest.raises(TailUnavailableError, match=r"away-2: .*offset 0 .*pollTimeoutMs.*etcd"):
        _read(tail, piece)
    with pytest.raises(TailUnavailableError, match=r"kafka\.bootstrap\.servers"):
        tail.ends(topic, [2])
    tail.close()


def test_an_etcd_that_is_away_ends_a_query_with_what_to_do(own: Cluster) -> None:
    """
    Pieces that were planned before need it no more.
    """
    own.start_agent()
    topic = own.topic("away")
    told = [row for row in own.produce(topic, 30) if row.partition == 2]
    tail = own.tail("etcd")
    (piece,) = tail.plan(topic, 2, 0, tail.ends(topic, [2])[2].end)
    own.etcd.stop()

    with pytest.raises(TailUnavailableError, match="option etcd"):
        tail.ends(topic, [2])
    assert told == _read(tail, piece)
    tail.close()


def test_a_user_of_etcd_that_may_only_read_is_enough(own: Cluster) -> None:
    """
    A job changes nothing; without a user, etcd's own words say what is missing.
    """
    own.start_agent()
    topic = own.topic("read-only")
    told = own.produce(topic, 30)
    own.etcd.enable_auth("reader", "p w", "/driftlog/v1/", "READ")
    tail = own.tail("etcd", **{"etcd.user": "reader", "etcd.password": "p w"})

    assert len(told) == sum(log.end for log in tail.ends(topic, range(PARTITIONS)).values())
    tail.close()
    tail = own.tail("etcd")
    with pytest.raises(TailUnavailableError, match="etcd wants a user and a password"):
        tail.ends(topic, [0])
    tail.close()


def test_a_missing_or_damaged_flush_object_is_named(own: Cluster) -> None:
    """
    Its path and what to do; no row is left out silently.
    """
    own.start_agent()
    topic = own.topic("damaged")
    own.produce(topic, 30)
    tail = own.tail("etcd")
    pieces = [p for n in range(3) for p in tail.plan(topic, n, 0, tail.ends(topic, [n])[n].end)]
    key = pieces[0].spans[0].key
    path = Path(own.location) / key
    body = bytearray(path.read_bytes())
    body[pieces[0].spans[0].position + 70] ^= 1
    path.unlink()

    with pytest.raises(DamagedTopicError, match=f"{key}.*missing.*12 h"):
        _read(tail, pieces[0])
    tail.close()
    tail = own.tail("etcd")
    with pytest.raises(DamagedTopicError, match=f"{key}.*missing"):
        tail.ends(topic, [0])
    path.write_bytes(body)
    with pytest.raises(DamagedTopicError, match=f"{key}.*CRC"):
        _read(tail, pieces[0])
    tail.close()


def test_headers_count_in_the_bytes_of_rows_from_agents(shared: Cluster) -> None:
    """
    10,000 records with 100 KB of headers each are not one batch of Arrow.
    """
    topic = shared.topic("heavy")
    producer = confluent_kafka.Producer({"bootstrap.servers": shared.servers})
    for _ in range(3):
        producer.produce(topic.name, b"", partition=0, headers=[("h", bytes(1_000))])
    assert 0 == producer.flush(60)
    tail = AgentsTail(AgentsSettings({"bootstrap.servers": shared.servers}, rows_bytes=1_000))

    batches = [*tail.reader().read(*tail.plan(topic, 0, 0, 3))]

    tail.close()
    assert [1, 1, 1] == [batch.num_rows for batch in batches]


@pytest.mark.filterwarnings("ignore::driftlog_spark_reader.RawSegmentSkippedWarning")
def test_a_batch_that_cannot_be_decoded_ends_the_read_or_is_left_out_loudly(own: Cluster) -> None:
    """
    A valid CRC around garbage is taken, as Kafka takes it.  With failOnDataLoss=false its
    neighbours are rows from etcd; librdkafka does not get past it.
    """
    agent = own.start_agent()
    topic = own.topic("garbage")
    garbage = with_records(good(b"xyz" * 99, codec=Codec.ZSTD), lambda r: r[:-6])
    with Raw(agent.port) as raw:
        for batch in (good(b"one", b"two"), garbage, good(b"three")):
            assert 0 == raw.produce(topic.name, {0: batch})[0].error_code

    with pytest.raises(DataLossError, match=r"garbage-0: offsets 2 to 2 .*failOnDataLoss=false"):
        query(own, "etcd", topic)
    with pytest.warns(RawSegmentSkippedWarning, match="garbage-0: offsets 2 to 2 are not in"):
        left = query(own, "etcd", topic, {"failOnDataLoss": "false"})
    assert [0, 1, 3] == [row.offset for row in left]
    with pytest.raises(DamagedTopicError, match=r"garbage-0: .* cannot be decoded .*option etcd"):
        query(own, "agents", topic)

    strange = own.topic("strange")
    with Raw(agent.port) as raw:
        assert 0 == raw.produce(strange.name, {0: with_strange_header(b"v")})[0].error_code
    with pytest.raises(DamagedTopicError, match=r"strange-0: .* cannot be decoded .*option etcd"):
        query(own, "agents", strange)


def test_an_address_where_no_etcd_is_ends_a_query(tmp_path: Path) -> None:
    """
    As one that is away.
    """
    topic = Topic(name="t", topic_id=uuid4(), partitions=1)
    tail = open_tail(
        {"includeTail": "true", "etcd": f"http://127.0.0.1:{free_port()}"}, str(tmp_path)
    )
    assert tail is not None
    with pytest.raises(TailUnavailableError, match="option etcd"):
        tail.ends(topic, [0])
    tail.close()
