"""Agents on a real etcd, and queries of sealed rows and the tail, step by step.

Shell.
"""

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_spark_reader.bucket.catalog import find_topic, newest_manifest, segments
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.options.ranges import TimeRange
from driftlog_spark_reader.tail.open_tail import open_tail
from driftlog_spark_reader.tail.port import Tail, TailRange
from driftlog_tiering.formats.columns import SCHEMA
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster

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
                on_delivery=acknowledging(acknowledged, key, value, headers),
            )
            if number % count == count - 1:
                assert 0 == producer.flush(60)
        assert count * flushes == len(acknowledged)
        return acknowledged


def acknowledging(
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


@contextmanager
def running_cluster(folder: Path, agents: int) -> Iterator[Cluster]:
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
            end = ends[partition]
            for segment in segments(files, manifest, 0, end, TimeRange(None, None)):
                table = pq.read_table(Path(self.cluster.location) / segment.key)
                found += [row for row in rows_of(table) if row.offset < end]
            pieces += self.tail.plan(self.topic, partition, min(manifest.end, end), end)
        self._happens("plan")
        reader = pickle.loads(pickle.dumps(self.tail.reader()))
        for batch in reader.read(*pickle.loads(pickle.dumps(pieces))):
            assert SCHEMA == batch.schema
            found += rows_of(pa.Table.from_batches([batch]))
        return sorted(found, key=lambda row: row[:2])

    def _happens(self, step: str) -> None:
        self.between.get(step, lambda: None)()


def rows_of(table: pa.Table) -> Iterator[Row]:
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
    cluster: Cluster, adapter: str, topic: Topic, **between: Callable[[], object]
) -> list[Row]:
    """The rows of one query, with a tail of its own."""
    tail = cluster.tail(adapter)
    try:
        return Query(cluster, topic, tail, between).rows()
    finally:
        tail.close()


def read_pieces(tail: Tail, *pieces: TailRange) -> list[Row]:
    batches = tail.reader().read(*pieces)
    return [row for batch in batches for row in rows_of(pa.Table.from_batches([batch]))]
