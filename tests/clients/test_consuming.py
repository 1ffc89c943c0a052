"""Offsets, times, limits and waiting, as clients ask for them, in memory and in Parquet."""

import asyncio
import threading
import time
from typing import Final

import aiokafka
import confluent_kafka
import kafka
import pytest

from benchmarks.batches import HEADER_BYTES
from tests.clients.batches import good
from tests.clients.conftest import make_topic, seal
from tests.clients.peers import Aiokafka, Confluent, Java, KafkaPython, Kcat, Peer, run_java
from tests.clients.records import (
    CODECS,
    CORPUS,
    LOG_APPEND_TIME,
    Read,
    Record,
    at_offsets,
)
from tests.clients.sockets import OFFSET_OUT_OF_RANGE, Produced, Raw
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("consuming")]

T: Final = 1_700_000_000_000


# ── Times and ends ──


@pytest.fixture(scope="module", params=["recent", "sealed"])
def timed(request: pytest.FixtureRequest, agent: DriftlogProcess) -> str:
    """Records at T, T+10, …, but one of them late, in several compressed batches."""
    topic = make_topic(agent)
    for first in range(0, 30, 10):
        records = [Record(None, b"%d" % n, T + n * 10) for n in range(first, first + 10)]
        Confluent().produce_topic(agent.bootstrap, topic, "zstd", records)
    late = [Record(None, b"late", T + 5)]
    Confluent().produce_topic(agent.bootstrap, topic, "none", late)
    if request.param == "sealed":
        seal(agent, topic)
        agent.kill()
        agent.start()
    return topic


TIMES: Final = {0: 0, T: 0, T + 1: 1, T + 10: 1, T + 95: 10, T + 290: 29, T + 291: None}


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python"])
def test_the_first_record_at_or_after_a_time_is_found(
    agent: DriftlogProcess, timed: str, client: str
) -> None:
    """
    To the record, inside compressed batches, in every tier; nothing later: no offset.
    """
    assert {t: offset_for_time(client, agent.bootstrap, timed, t) for t in TIMES} == TIMES


def offset_for_time(client: str, bootstrap: str, topic: str, timestamp: int) -> int | None:
    """By that client; None: there is no such record."""
    if client == "aiokafka":
        return asyncio.run(_aiokafka_offset_for_time(bootstrap, topic, timestamp))
    if client == "kafka-python":
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
        try:
            partition = kafka.TopicPartition(topic, 0)
            found = consumer.offsets_for_times({partition: timestamp})[partition]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()
    with confluent_consumer(bootstrap) as librdkafka:
        asked = confluent_kafka.TopicPartition(topic, 0, timestamp)
        (answer,) = librdkafka.offsets_for_times([asked], 20)
        return None if answer.offset < 0 else int(answer.offset)


async def _aiokafka_offset_for_time(bootstrap: str, topic: str, timestamp: int) -> int | None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(topic, 0)
        found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
        return None if found is None else int(found.offset)
    finally:
        await consumer.stop()


class confluent_consumer:  # noqa: N801  # a context manager, used like a function
    """A librdkafka consumer that is closed at the end."""

    def __init__(self, bootstrap: str, **configs: object) -> None:
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "log_level": 2,
                **dotted,
            }
        )

    def __enter__(self) -> confluent_kafka.Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def test_watermarks_are_the_log_s_start_and_end(agent: DriftlogProcess, timed: str) -> None:
    """
    Earliest and latest, by confluent-kafka, Java's tool, and max-timestamp, which it alone asks.
    """
    with confluent_consumer(agent.bootstrap) as consumer:
        ends = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(timed, 0), 20)

    assert ends == (0, 31)


def test_kafka_s_own_tool_lists_offsets(agent: DriftlogProcess) -> None:
    """
    kafka-get-offsets: latest, and the offset of the record with the largest timestamp (−3).
    """
    topic = make_topic(agent)
    Java()
    records = [Record(None, b"1", T), Record(None, b"2", T + 99), Record(None, b"3", T + 1)]
    Confluent().produce_topic(agent.bootstrap, topic, "lz4", records)
    tool = "org.apache.kafka.tools.GetOffsetShell"
    where = ("--bootstrap-server", agent.bootstrap, "--topic", topic, "--time")

    printed = [run_java(tool, *where, at).strip() for at in ("latest", "max-timestamp")]

    assert printed == [f"{topic}:0:3", f"{topic}:0:1"]


# ── Log append time ──


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_what_every_client_reads(agent: DriftlogProcess, codec: str) -> None:
    """
    One time for a batch, of the log's clock, before and after sealing, with its type; and the
    producer is told it.
    """
    topic = make_topic(agent, message_timestamp_type="LogAppendTime")
    began_ms = int(time.time() * 1000)
    records = [Record(b"k", b"%d" % n, T) for n in range(20)]
    one_batch = Confluent(**{"linger.ms": 5_000})  # which ends when there are no more
    one_batch.produce_topic(agent.bootstrap, topic, codec, records)
    ended_ms = int(time.time() * 1000)
    clients: list[Peer] = [Confluent(), Aiokafka(), KafkaPython()]

    recent = [c.consume(agent.bootstrap, {topic: 20})[topic] for c in clients]
    seal(agent, topic)
    agent.kill()
    agent.start()
    sealed = [c.consume(agent.bootstrap, {topic: 20})[topic] for c in clients]

    times = [read.record.timestamp_ms for read in recent[0]]
    assert times == sorted(times)
    assert began_ms <= times[0] <= times[-1] <= ended_ms
    assert len(set(times)) < len(times)  # on a busy machine the client may send two batches
    expected = [
        Read(n, Record(b"k", b"%d" % n, at_ms), LOG_APPEND_TIME) for n, at_ms in enumerate(times)
    ]
    assert [expected] * 6 == recent + sealed


# ── Waiting and limits ──


def test_an_empty_fetch_waits_as_long_as_it_may(agent: DriftlogProcess) -> None:
    """
    fetch.max.wait.ms, and not a busy answer before.
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw:
        began = time.monotonic()
        fetched = raw.fetch(topic, {0: 0}, max_wait_ms=700)
        waited_s = time.monotonic() - began

    assert (fetched[0].error_code, fetched[0].high_watermark, fetched[0].records) == (0, 0, b"")
    assert 0.65 <= waited_s


def test_a_waiting_fetch_is_woken_by_a_record(agent: DriftlogProcess) -> None:
    """
    Before its time is up, which is when nobody waits any more, by a producer on another connection.
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw, Raw(agent.port) as producer:
        producer.api_keys()
        timer = threading.Timer(0.2, lambda: producer.produce(topic, {0: good(b"news")}))
        timer.start()
        fetched = raw.fetch(topic, {0: 0}, max_wait_ms=3_600_000)
        timer.join()

    assert b"news" in fetched[0].records


def test_a_fetch_waits_for_min_bytes_over_all_partitions(agent: DriftlogProcess) -> None:
    """
    One partition alone has too little: the answer comes with the second, and has both.
    """
    topic = make_topic(agent, 2)
    batch = good(b"x" * 500)
    with Raw(agent.port) as raw, Raw(agent.port) as producer:
        producer.produce(topic, {0: batch})
        timer = threading.Timer(0.3, lambda: producer.produce(topic, {1: batch}))
        began = time.monotonic()
        timer.start()
        fetched = raw.fetch(topic, {0: 0, 1: 0}, max_wait_ms=15_000, min_bytes=2 * len(batch))
        waited_s = time.monotonic() - began
        timer.join()

    assert {p: len(f.records) for p, f in fetched.items()} == {0: len(batch), 1: len(batch)}
    assert 0.25 <= waited_s < 10


@pytest.fixture(scope="module", params=["recent", "sealed"])
def wide(request: pytest.FixtureRequest, agent: DriftlogProcess) -> str:
    """Two partitions with ten batches of about 10 kB each."""
    topic = make_topic(agent, 2)
    batch = good(b"x" * 10_000)
    with Raw(agent.port) as raw:
        for n in range(10):
            assert raw.produce(topic, {0: batch, 1: batch}) == {
                0: Produced(0, n),
                1: Produced(0, n),
            }
    if request.param == "sealed":
        seal(agent, topic)
        agent.kill()
        agent.start()
    return topic


def test_the_first_batch_comes_whatever_the_limits(agent: DriftlogProcess, wide: str) -> None:
    """
    A consumer whose limits are below the batch size gets on (KIP-74): one whole batch of the
    first partition, none of the second.
    """
    with Raw(agent.port) as raw:
        fetched = raw.fetch(wide, {0: 0, 1: 0}, max_bytes=100, partition_max_bytes=100)

    assert len(fetched[0].records) > 10_000
    assert fetched[1].records == b""


def test_partition_limits_hold(agent: DriftlogProcess, wide: str) -> None:
    """
    max.partition.fetch.bytes for each partition, after the first batch.
    """
    with Raw(agent.port) as raw:
        fetched = raw.fetch(wide, {0: 0, 1: 0}, partition_max_bytes=35_000)

    assert 0 < len(fetched[0].records) <= 35_000
    assert len(fetched[1].records) <= 35_000


def test_fetch_max_bytes_holds_over_all_partitions(agent: DriftlogProcess, wide: str) -> None:
    """
    fetch.max.bytes bounds the whole answer.
    """
    with Raw(agent.port) as raw:
        fetched = raw.fetch(wide, {0: 0, 1: 0}, max_bytes=45_000)

    assert 0 < sum(len(f.records) for f in fetched.values()) <= 45_000


def test_small_limits_still_read_everything(agent: DriftlogProcess, wide: str) -> None:
    """
    librdkafka with 1,000-byte limits walks through batches that are ten times larger.
    """
    with confluent_consumer(
        agent.bootstrap,
        fetch_message_max_bytes=1_000,
        fetch_max_bytes=1_000,
        message_max_bytes=1_000,
        receive_message_max_bytes=2_000_000,
    ) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(wide, p, 0) for p in (0, 1)])
        got = read(consumer, 20)

    assert sorted((m.partition(), m.offset()) for m in got) == [
        (p, n) for p in (0, 1) for n in range(10)
    ]


def read(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    """So many messages, within 30 s."""
    got: list[confluent_kafka.Message] = []
    deadline = time.monotonic() + 30
    while len(got) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(message)
    return got


@pytest.mark.parametrize("offset", [1, 37, 99])
def test_a_fetch_in_the_middle_of_a_batch_gets_the_batch(
    agent: DriftlogProcess, offset: int
) -> None:
    """
    The whole batch that holds the offset; the client leaves out what is before it.
    """
    topic = make_topic(agent)
    batch = good(*(b"%d" % n for n in range(100)))
    with Raw(agent.port) as raw:
        raw.produce(topic, {0: batch})
        fetched = raw.fetch(topic, {0: offset})[0].records
    with confluent_consumer(agent.bootstrap) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        first = read(consumer, 1)[0]

    assert fetched[HEADER_BYTES:] == batch[HEADER_BYTES:]
    assert (first.offset(), first.value()) == (offset, b"%d" % offset)


# ── Out of range ──


@pytest.mark.parametrize("offset", [32, 1_000_000, 2**62])
def test_an_offset_beyond_the_end_is_out_of_range(
    agent: DriftlogProcess, timed: str, offset: int
) -> None:
    """
    OFFSET_OUT_OF_RANGE, at once.
    """
    with Raw(agent.port) as raw:
        fetched = raw.fetch(timed, {0: offset}, max_wait_ms=15_000)

    assert (fetched[0].error_code, fetched[0].records) == (OFFSET_OUT_OF_RANGE, b"")


def test_a_reset_to_earliest_begins_at_the_start(agent: DriftlogProcess, timed: str) -> None:
    """
    auto.offset.reset=earliest behind an offset that is not there.
    """
    with confluent_consumer(agent.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([confluent_kafka.TopicPartition(timed, 0, 999)])

        assert [m.offset() for m in read(consumer, 31)] == list(range(31))


def test_a_reset_to_latest_gets_what_comes(agent: DriftlogProcess) -> None:
    """
    auto.offset.reset=latest behind an offset that is not there; the next record is the first.
    """
    topic = make_topic(agent)
    records = [Record(None, b"old", T)]
    Confluent().produce_topic(agent.bootstrap, topic, "none", records)
    with confluent_consumer(
        agent.bootstrap, auto_offset_reset="latest", enable_partition_eof=True
    ) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 999)])
        reset = consumer.poll(30)
        assert reset is not None
        error = reset.error()
        assert error is not None
        assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
        Confluent().produce_topic(agent.bootstrap, topic, "none", [Record(None, b"new", T)])

        (message,) = read(consumer, 1)

    assert (message.offset(), message.value()) == (1, b"new")


def test_a_consumer_that_may_not_reset_is_told(agent: DriftlogProcess, timed: str) -> None:
    """
    auto.offset.reset=error.
    """
    with confluent_consumer(agent.bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([confluent_kafka.TopicPartition(timed, 0, 999)])
        message = consumer.poll(20)

    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET


# ── Isolation, old clients, kcat, Java's tools ──


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python", "java", "kcat"])
def test_read_committed_consumers_read_it_all(agent: DriftlogProcess, client: str) -> None:
    """
    Without transactions the last stable offset is the high watermark.
    """
    peers = {
        "confluent": Confluent,
        "aiokafka": Aiokafka,
        "kafka-python": KafkaPython,
        "java": Java,
        "kcat": Kcat,
    }
    topic = make_topic(agent)
    records = [Record(b"k", b"%d" % n, T + n) for n in range(50)]
    Confluent().produce_topic(agent.bootstrap, topic, "snappy", records)

    reads = peers[client]().consume(agent.bootstrap, {topic: 50}, "read_committed")

    assert reads[topic] == at_offsets(records)


@pytest.mark.parametrize(
    "api_version",
    [(0, 11), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3), (2, 5), (2, 8), (3, 5), (4, 0)],
    ids=lambda version: ".".join(map(str, version)),
)
def test_a_client_that_believes_to_speak_to_an_old_kafka_is_served(
    agent: DriftlogProcess, api_version: tuple[int, ...]
) -> None:
    """
    kafka-python held to each generation's request versions: it writes and reads the corpus.
    """
    topic = make_topic(agent)
    client = KafkaPython(api_version)
    codec = "zstd" if api_version >= (2, 1) else "lz4"

    client.produce(agent.bootstrap, {topic: codec}, client.corpus)
    reads = client.consume(agent.bootstrap, {topic: len(client.corpus)})

    assert reads[topic] == at_offsets(client.corpus)


def test_a_client_older_than_record_batches_is_refused(agent: DriftlogProcess) -> None:
    """
    Kafka 0.10's Produce 2 closes the connection, as Kafka 4 does it: nothing is taken.
    """
    topic = make_topic(agent)
    producer = kafka.KafkaProducer(
        bootstrap_servers=agent.bootstrap,
        api_version=(0, 10, 0),
        enable_idempotence=False,
        retries=0,
        request_timeout_ms=3_000,
        delivery_timeout_ms=4_000,
    )
    try:
        future = producer.send(topic, b"magic 1", partition=0)
        with pytest.raises(kafka.errors.KafkaError):
            future.get(20)
    finally:
        producer.close(timeout=1)
    with Raw(agent.port) as raw:
        assert raw.offsets(topic, [0], -1) == {0: 0}


def test_java_s_console_tools_write_and_read_without_a_group(agent: DriftlogProcess) -> None:
    """
    kafka-console-producer and kafka-console-consumer --partition 0, keys and headers too.
    """
    topic = make_topic(agent)
    Java()
    lines = [f"h{n}:v{n}\tkey-{n}\tvalue {n}" for n in range(200)]
    parsing = ("parse.key=true", "parse.headers=true")
    run_java(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", agent.bootstrap, "--topic", topic, "--compression-codec", "zstd"),
        *(part for name in parsing for part in ("--reader-property", name)),
        stdin="".join(f"{line}\n" for line in lines).encode(),
    )
    printing = ("print.key=true", "print.headers=true", "print.offset=true")
    printed = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", agent.bootstrap, "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", "200"),
        *(part for name in printing for part in ("--formatter-property", name)),
    )

    assert printed.splitlines() == [f"Offset:{n}\t{line}" for n, line in enumerate(lines)]


def test_java_s_producer_performance_writes_what_it_says(agent: DriftlogProcess) -> None:
    """
    20,000 records of 1 KiB, idempotent, acks=all: as many are there.
    """
    topic = make_topic(agent, 2)
    Java()
    printed = run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", agent.bootstrap, "--topic", topic),
        *("--num-records", "20000", "--record-size", "1024", "--throughput", "-1"),
        *("--command-property", "acks=all", "compression.type=lz4"),
    )
    with Raw(agent.port) as raw:
        ends = raw.offsets(topic, [0, 1], -1)

    assert "20000 records sent" in printed
    assert sum(ends.values()) == 20_000


def test_acks_0_is_written(agent: DriftlogProcess) -> None:
    """
    No answer comes, and the records are there, in order.
    """
    topic = make_topic(agent)
    client = Confluent(acks=0)
    records = CORPUS[:100]

    client.produce(agent.bootstrap, {topic: "gzip"}, records)

    assert client.consume(agent.bootstrap, {topic: 100})[topic] == at_offsets(records)
