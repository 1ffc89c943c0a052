"""What `df.write` and `df.writeStream` to ``driftlog`` put into topics, beside Spark's Kafka sink.

If it failed: a job that is moved over would write other records or other partitions, lose rows
when an agent restarts, or end as if rows had been written that were not.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from driftlog_spark_reader.common.errors import WriteTopicError
from driftlog_spark_reader.sink.rows_writer import (
    RowsWriter,
    RowsWritten,
    rows_writer,
)
from tests.spark.conftest import kafka_jars
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PARTITIONS = 3
HEADER = StructType().add("key", StringType()).add("value", BinaryType())
SINKS = ("driftlog", "kafka")


class Read(NamedTuple):
    """A record as a consumer gets it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    timestamp_type: int


@pytest.fixture(scope="module")
def sinks(spark: SparkSession) -> SparkSession:
    """A session that knows both formats."""
    if not kafka_jars():
        pytest.skip("the jars of Spark's Kafka sink are missing: run `make spark-jars`")
    return spark


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    with DriftlogProcess() as running:
        yield running


@pytest.fixture
def own_agent() -> Iterator[DriftlogProcess]:
    """An agent that the test kills."""
    with DriftlogProcess() as running:
        yield running


def create(agent: DriftlogProcess, *topics: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS, config=configs) for name in topics])
    for future in made.values():
        future.result(30)


def consume(agent: DriftlogProcess, topic: str) -> list[Read]:
    """All records, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    count = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    consumer.assign(places)
    found: list[Read] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None, message.error()
        partition, kind = message.partition(), message.timestamp()[0]
        assert partition is not None
        key: Any = message.key()
        value: Any = message.value()
        headers: Any = message.headers()
        # librdkafka's TIMESTAMP_CREATE_TIME is 1, and Kafka's is 0.
        found.append(Read(key, value, tuple(headers or ()), partition, kind - 1))
    consumer.close()
    return sorted(found, key=lambda record: record.partition)


def save(
    df: DataFrame, sink: str, agent: DriftlogProcess, topic: str | None, **options: str
) -> None:
    """Write with *sink*; an option ``a__b`` is ``kafka.a.b``."""
    writer = df.write.format(sink).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    given = {f"kafka.{name.replace('__', '.')}": value for name, value in options.items()}
    writer.options(**{"kafka.bootstrap.servers": agent.bootstrap, **given}).save()


# ── Beside Spark's Kafka sink ──

KEYS = ["", "k", "schlüssel", *(f"key {number}" for number in range(300)), "a" * 500]


def text(spark: SparkSession) -> DataFrame:
    """Strings, each key twice, and values that are NULL or empty."""
    rows = [(key, [None, "", f"value {i} €"][i % 3]) for i, key in enumerate(KEYS * 2)]
    return spark.createDataFrame(rows, "key string, value string")


def binary(spark: SparkSession) -> DataFrame:
    """Bytes of all kinds, headers of all kinds, and columns that no record has."""
    headers: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [],
        [("h", b"1")],
        [("h", b"1"), ("h", None), ("ü", b""), ("b", b"\xff\x00")],
    ]
    rows = [
        (i, bytes([i % 256, 0, 255]), None if i % 5 == 0 else bytes(range(i % 9)), headers[i % 4])
        for i in range(400)
    ]
    schema = (
        StructType()
        .add("timestamp", LongType())
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("headers", ArrayType(HEADER))
    )
    return spark.createDataFrame(rows, schema)


def placed(spark: SparkSession) -> DataFrame:
    """Explicit partitions against the key's, and by the key where NULL."""
    rows = [(f"k{i}", f"{i}", None if i % 4 == 3 else i % 3) for i in range(400)]
    schema = StructType().add("key", StringType()).add("value", StringType())
    return spark.createDataFrame(rows, schema.add("partition", IntegerType()))


@pytest.mark.parametrize("frame", [text, binary, placed])
def test_records_are_those_of_spark_s_kafka_sink(
    sinks: SparkSession, agent: DriftlogProcess, frame: Any
) -> None:
    """
    Each record equal, in the same partition and in the same order there.
    """
    df = frame(sinks).coalesce(1)
    topics = {sink: f"{frame.__name__}-{sink}" for sink in SINKS}
    create(agent, *topics.values())

    for sink, topic in topics.items():
        save(df, sink, agent, topic)

    ours, kafka = (consume(agent, topics[sink]) for sink in SINKS)
    assert df.count() == len(kafka)
    assert kafka == ours
    assert {0} == {record.timestamp_type for record in ours}


def test_records_without_a_key_are_spread(sinks: SparkSession, agent: DriftlogProcess) -> None:
    """
    Neither sink says where; no record is lost, and the topic's time type is the topic's.
    """
    df = sinks.range(2_000).selectExpr("cast(id as string) as value")
    topics = {sink: f"keyless-{sink}" for sink in SINKS}
    create(agent, *topics.values(), **{"message.timestamp.type": "LogAppendTime"})

    for sink, topic in topics.items():
        save(df, sink, agent, topic)

    ours, kafka = (
        sorted(record._replace(partition=0) for record in consume(agent, topics[sink]))
        for sink in SINKS
    )
    assert kafka == ours
    assert {1} == {record.timestamp_type for record in ours}


def test_the_option_wins_over_the_column(sinks: SparkSession, agent: DriftlogProcess) -> None:
    """
    Without the option each row goes to the topic of its column.
    """
    create(agent, *(f"{name}-{sink}" for sink in SINKS for name in ("a", "b", "all")))
    for sink in SINKS:
        df = sinks.range(90).selectExpr(
            f"if(id % 3 = 0, 'a-{sink}', 'b-{sink}') as topic",
            "cast(id as string) as key",
            "cast(id as string) as value",
        )
        save(df.coalesce(1), sink, agent, None)
        save(df.coalesce(1), sink, agent, f"all-{sink}")

    for name, count in {"a": 30, "b": 60, "all": 90}.items():
        ours, kafka = (consume(agent, f"{name}-{sink}") for sink in SINKS)
        assert count == len(kafka)
        assert kafka == ours


# ── Refusals ──


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (None, "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]"),
        ("errorifexists", "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]"),
        ("ignore", "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]"),
        ("overwrite", 'Allowed save mode is Append: use mode("append")'),
    ],
)
def test_the_save_mode_is_append(
    sinks: SparkSession, agent: DriftlogProcess, mode: str | None, message: str
) -> None:
    """
    Spark itself refuses the others for a Python source, its default among them, and names append.
    """
    writer = text(sinks).write.format("driftlog")
    if mode is not None:
        writer = writer.mode(mode)
    options = {"kafka.bootstrap.servers": agent.bootstrap, "topic": "modes"}

    with pytest.raises(AnalysisException) as raised:
        writer.options(**options).save()

    assert message in str(raised.value)
    assert "append" in str(raised.value).lower()


def test_columns_and_options_fail_before_a_task_runs(
    sinks: SparkSession, agent: DriftlogProcess
) -> None:
    """
    In the words of Spark's Kafka sink; a config that librdkafka refuses is named.
    """
    df = text(sinks)
    wrong: list[tuple[DataFrame, dict[str, str], str]] = [
        (df.selectExpr("1L as value"), {}, "value attribute unsupported type bigint."),
        (df.select("key"), {}, "Required attribute 'value' not found"),
        (df, {"key__serializer": "x"}, "Kafka option 'key.serializer' is not supported as keys"),
        (df, {"no__such": "1"}, "Kafka option 'no.such': librdkafka refuses it"),
        (df, {"linger__ms": "soon"}, "Kafka option 'linger.ms': librdkafka refuses it"),
        (df, {"linger__ms": "9000", "delivery__timeout__ms": "9"}, "that begin with kafka."),
    ]

    for given, options, message in wrong:
        with pytest.raises(AnalysisException) as raised:
            save(given, "driftlog", agent, "t", **options)
        assert message in str(raised.value)


def test_a_row_without_a_topic_fails_the_write(sinks: SparkSession, agent: DriftlogProcess) -> None:
    """
    With the message of Spark's Kafka sink.
    """
    df = sinks.sql("select cast(null as string) as topic, 'x' as value")

    for sink in SINKS:
        with pytest.raises(Exception, match="contains a null topic"):
            save(df, sink, agent, None)


# ── One task ──


def task(agent: DriftlogProcess, **options: str) -> RowsWriter:
    """The writer that a task of a DataFrame with value and partition runs."""
    schema = StructType().add("value", StringType()).add("partition", IntegerType())
    given = {f"kafka.{name.replace('__', '.')}": value for name, value in options.items()}
    return rows_writer(
        {"kafka.bootstrap.servers": agent.bootstrap, "topic": "task", **given}, schema, False
    )


def rows(values: list[str], partition: int | None = None) -> Any:
    partitions = pa.array([partition] * len(values), pa.int32())
    return pa.record_batch([pa.array(values), partitions], names=["value", "partition"])


def test_a_task_without_rows_connects_to_nothing(agent: DriftlogProcess) -> None:
    """
    Micro-batches have many such tasks.
    """
    writer = task(agent, bootstrap__servers="127.0.0.1:1")

    assert RowsWritten(0) == writer.write(iter([rows([])]))


def test_a_task_waits_for_an_agent_for_max_block_ms(agent: DriftlogProcess) -> None:
    """
    Then it fails, and names the option.
    """
    writer = task(agent, bootstrap__servers="127.0.0.1:1", max__block__ms="1200")

    with pytest.raises(WriteTopicError, match=r"no agent answered at 127.0.0.1:1 within kafka.max"):
        writer.write(iter([rows(["x"])]))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows(["x"], 77), "topic 'task', partition 77: .*no such partition"),
        (rows(["x" * 2_000_000]), "topic 'task': .*2,000,000 bytes.*kafka.max.request.size"),
    ],
)
def test_a_record_that_the_topic_does_not_take_fails_the_task(
    agent: DriftlogProcess, batch: Any, message: str
) -> None:
    """
    Within seconds, with the topic, the cause and what to do.
    """
    with pytest.raises(WriteTopicError, match=message):
        task(agent).write(iter([rows(["a"] * 10), batch]))


def test_a_record_larger_than_the_topic_allows_fails_the_task(agent: DriftlogProcess) -> None:
    """
    The agent refuses its batch, and the task says where and why.
    """
    create(agent, "narrow", **{"max.message.bytes": "1000"})
    writer = rows_writer(
        {
            "kafka.bootstrap.servers": agent.bootstrap,
            "topic": "narrow",
            "kafka.compression.type": "none",
        },
        StructType().add("value", StringType()),
        False,
    )

    with pytest.raises(WriteTopicError) as raised:
        writer.write(iter([pa.record_batch([pa.array(["x" * 5_000])], names=["value"])]))

    message = str(raised.value)
    assert message.startswith("topic 'narrow', partition ")
    assert "was not written" in message
    assert "raise the topic's max.message.bytes" in message
    assert "kafka.max.request.size" in message


def test_records_that_are_not_acknowledged_fail_the_task(own_agent: DriftlogProcess) -> None:
    """
    After delivery.timeout.ms, while the agent holds its connections and does not answer.
    """
    create(own_agent, "task")

    def batches() -> Iterator[Any]:
        yield rows(["before"])
        own_agent.pause()
        yield rows(["after"] * 100)

    try:
        with pytest.raises(WriteTopicError) as raised:
            task(own_agent, delivery__timeout__ms="3000").write(batches())
    finally:
        own_agent.resume()

    message = str(raised.value)
    assert message.startswith("topic 'task', partition ")
    assert "kafka.delivery.timeout.ms" in message
    assert "more records failed" in message


def test_a_full_queue_waits(agent: DriftlogProcess) -> None:
    """
    Forty times the memory that the queue may take, and every record is there.
    """
    create(agent, "full")
    schema = StructType().add("value", StringType())
    options = {
        "kafka.bootstrap.servers": agent.bootstrap,
        "topic": "full",
        "kafka.buffer.memory": "1000000",
    }
    values = [f"{number:08}" + "x" * 10_000 for number in range(4_000)]
    batches = (
        pa.record_batch([pa.array(values[at : at + 500])], names=["value"])
        for at in range(0, len(values), 500)
    )

    written = rows_writer(options, schema, False).write(batches)

    assert RowsWritten(4_000) == written
    assert sorted(values) == sorted(
        (record.value or b"").decode() for record in consume(agent, "full")
    )


# ── Agents that restart ──


def test_an_agent_that_is_killed_under_a_task_costs_and_doubles_nothing(
    own_agent: DriftlogProcess,
) -> None:
    """
    The task waits for it, and its batches that are sent again are written once, in their order.
    """
    create(own_agent, "task")
    values = [f"{number:08}" for number in range(3_000)]

    def batches() -> Iterator[Any]:
        for at in range(0, 3_000, 100):
            if at == 1_000:
                own_agent.kill()
            if at == 2_000:
                own_agent.start()
            yield rows(values[at : at + 100], 1)

    written = task(own_agent, linger__ms="0").write(batches())

    assert RowsWritten(3_000) == written
    assert values == [(record.value or b"").decode() for record in consume(own_agent, "task")]


def test_an_agent_that_is_killed_under_a_write_loses_no_row(
    sinks: SparkSession, own_agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    The write ends well, and every row is in the topic.
    """
    create(own_agent, "write")
    killed = tmp_path / "killed"

    def gate(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            while number >= 3 and not killed.exists():
                time.sleep(0.01)  # in a worker of Spark, which can wait for nothing else
            yield batch

    df = sinks.range(0, 120_000, 1, 2).mapInArrow(gate, "id long")
    df = df.selectExpr("cast(id as string) as key", "concat(id, repeat('-', 200)) as value")

    def restart() -> None:
        try:
            while not end_offset(own_agent, "write"):
                pass
            own_agent.kill()
        finally:
            killed.touch()
        own_agent.start()

    with ThreadPoolExecutor() as pool:
        restarted = pool.submit(restart)
        # Spark finds no Python source from a thread without an active session: this one has it.
        save(df, "driftlog", own_agent, "write")
        restarted.result()

    keys = {record.key for record in consume(own_agent, "write")}
    assert {str(number).encode() for number in range(120_000)} == keys


def end_offset(agent: DriftlogProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
    consumer.close()
    return sum(ends)


# ── Streams ──


def run(
    df: DataFrame, agent: DriftlogProcess, topic: str, checkpoint: Path, mode: str = "append"
) -> None:
    """A query that processes what there is, and ends."""
    query = (
        df.writeStream.format("driftlog")
        .outputMode(mode)
        .option("kafka.bootstrap.servers", agent.bootstrap)
        .option("kafka.max.block.ms", "1000")
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def lines(folder: Path, name: str, values: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(values))


def test_a_stream_goes_on_where_its_checkpoint_ends(
    sinks: SparkSession, own_agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    A restart writes new rows alone; a batch that failed is written after the restart.
    """
    create(own_agent, "stream")
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    lines(source, "1", ["a", "b", "c"])
    df = sinks.readStream.text(str(source)).selectExpr("value as key", "value")

    run(df, own_agent, "stream", checkpoint)
    lines(source, "2", ["d"])
    own_agent.kill()
    with pytest.raises(StreamingQueryException, match="no agent answered"):
        run(df, own_agent, "stream", checkpoint)
    own_agent.start()
    lines(source, "3", ["e"])
    run(df, own_agent, "stream", checkpoint)
    run(df, own_agent, "stream", checkpoint)

    values = sorted(record.value or b"" for record in consume(own_agent, "stream"))
    assert [b"a", b"b", b"c", b"d", b"e"] == values


def test_output_modes(sinks: SparkSession, agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    Complete appends the whole result of each batch, as with Spark's Kafka sink; Spark refuses
    update for a Python source.
    """
    create(agent, "counts")
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    lines(source, "1", ["a", "a", "b"])
    counts = (
        sinks.readStream.text(str(source))
        .groupBy("value")
        .count()
        .selectExpr("value as key", "cast(count as string) as value")
    )

    run(counts, agent, "counts", checkpoint, "complete")
    lines(source, "2", ["b"])
    run(counts, agent, "counts", checkpoint, "complete")

    found: dict[bytes, list[bytes]] = defaultdict(list)
    for record in consume(agent, "counts"):
        found[record.key or b""].append(record.value or b"")
    assert {b"a": [b"2", b"2"], b"b": [b"1", b"2"]} == found
    with pytest.raises(StreamingQueryException, match=r"(?i)update"):
        run(counts, agent, "counts", tmp_path / "other", "update")
