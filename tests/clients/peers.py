"""Unmodified Kafka clients behind one shape: write these records, read those topics.

What a client cannot write is left out of what it is given, by name and with its reason; what
is there, every client reads.
Shell.
"""

import asyncio
import subprocess
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.clients.records import CORPUS, Headers, Read, Record
from tests.support.components import java, kafka_jars, kcat
from tests.support.kafka_peer import java_command

DEADLINE_S: Final = 60.0
_JAVA_SOURCE: Final = Path(__file__).with_name("JavaClient.java")
_FETCH_BYTES: Final = 4 << 20


class ReadTimeoutError(Exception):
    """A consumer did not get what is there."""


class Peer(Protocol):
    """A client.  Topics have one partition here."""

    name: str

    @property
    def corpus(self) -> list[Record]:
        """What of the corpus it can write."""

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        """Write *records* to each topic with its codec, acks=all; return when acknowledged."""

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        """Read each topic from offset 0 until its count is there.

        Raises:
            ReadTimeoutError: it was not, within a minute.
        """


def writable(unless: Callable[[Record], bool]) -> list[Record]:
    """The corpus without what a client cannot write."""
    return [record for record in CORPUS if not unless(record)]


def _all_null(record: Record) -> bool:
    return record.key is None and record.value is None


def _null_header(record: Record) -> bool:
    return any(value is None for _, value in record.headers)


class _Progress:
    """Reads of several topics, until each has its count."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.reads: dict[str, list[Read]] = {topic: [] for topic in counts}
        self._counts = dict(counts)
        self._deadline = time.monotonic() + DEADLINE_S

    @property
    def open(self) -> bool:
        missing = {t: n for t, n in self._counts.items() if len(self.reads[t]) < n}
        if missing and time.monotonic() > self._deadline:
            got = {topic: len(self.reads[topic]) for topic in missing}
            raise ReadTimeoutError(f"got {got} of {missing}")
        return bool(missing)


# ── librdkafka through Python ──


class Confluent:
    """confluent-kafka."""

    name = "confluent"

    def __init__(self, **configs: Any) -> None:
        self._configs = configs

    @property
    def corpus(self) -> list[Record]:
        return CORPUS

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        for topic, codec in topics.items():
            self.produce_topic(bootstrap, topic, codec, records)

    def produce_topic(
        self, bootstrap: str, topic: str, codec: str, records: list[Record]
    ) -> list[int]:
        """Write to one topic; returns the offset of each record.

        Raises:
            KafkaException: one was refused.
        """
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                "message.max.bytes": 1_048_588,
                "log_level": 2,
                **self._configs,
            }
        )
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                raise confluent_kafka.KafkaException(error)
            offsets.append(message.offset())

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                on_delivery=delivered,
            )
        left = producer.flush(DEADLINE_S)
        assert left == 0, f"{left} records are not acknowledged"
        return offsets

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused: partitions are assigned",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                "log_level": 2,
            }
        )
        progress = _Progress(counts)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0) for topic in counts])
            while progress.open:
                message: Any
                for message in consumer.consume(1_000, 0.2):
                    error = message.error()
                    if error is not None:
                        raise confluent_kafka.KafkaException(error)
                    kind, timestamp = message.timestamp()
                    headers: Headers = tuple((n, _bytes(v)) for n, v in message.headers() or ())
                    read = Read(
                        message.offset(),
                        Record(message.key(), message.value(), timestamp, headers),
                        kind - confluent_kafka.TIMESTAMP_CREATE_TIME,
                    )
                    progress.reads[message.topic()].append(read)
        finally:
            consumer.close()
        return progress.reads


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


# ── aiokafka ──


class Aiokafka:
    """aiokafka; it writes no record that is null all over."""

    name = "aiokafka"

    @property
    def corpus(self) -> list[Record]:
        return writable(_all_null)

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        asyncio.run(self._produce(bootstrap, topics, records))

    async def _produce(
        self, bootstrap: str, topics: Mapping[str, str], records: list[Record]
    ) -> None:
        for topic, codec in topics.items():
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic, r.value, r.key, 0, r.timestamp_ms, list(r.headers) or None
                    )
                    for r in records
                ]
                await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
            finally:
                await producer.stop()

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        return asyncio.run(self._consume(bootstrap, counts, isolation))

    async def _consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str
    ) -> dict[str, list[Read]]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            isolation_level=isolation,
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=100,
        )
        progress = _Progress(counts)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic, 0) for topic in counts]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while progress.open:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for m in messages:
                        progress.reads[m.topic].append(_python_read(m))
        finally:
            await consumer.stop()
        return progress.reads


def _python_read(message: Any) -> Read:
    """aiokafka's and kafka-python's records have the same fields."""
    record = Record(message.key, message.value, message.timestamp, tuple(message.headers))
    return Read(message.offset, record, message.timestamp_type)


# ── kafka-python ──


class KafkaPython:
    """kafka-python; it measures header values before it writes them, so none may be null.

    Args:
        api_version: of the broker that it shall believe to talk to; None: it asks.
    """

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        self.name = "kafka-python"
        self._configs: dict[str, Any] = {} if api_version is None else {"api_version": api_version}

    @property
    def corpus(self) -> list[Record]:
        return writable(lambda record: _all_null(record) or _null_header(record))

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        for topic, codec in topics.items():
            producer = kafka.KafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                enable_idempotence=False,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                **self._configs,
            )
            try:
                sent = [
                    producer.send(topic, r.value, r.key, list(r.headers), 0, r.timestamp_ms)
                    for r in records
                ]
                for future in sent:
                    future.get(DEADLINE_S)
            finally:
                producer.close()

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        if "api_version" in self._configs and self._configs["api_version"] < (0, 11):
            raise AssertionError("such a client knows no record batches")
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            isolation_level=isolation,
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=100,
            **self._configs,
        )
        progress = _Progress(counts)
        try:
            partitions = [kafka.TopicPartition(topic, 0) for topic in counts]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while progress.open:
                for messages in consumer.poll(timeout_ms=200).values():
                    for message in messages:
                        progress.reads[message.topic].append(_python_read(message))
        finally:
            consumer.close()
        return progress.reads


# ── Java ──


class Java:
    """The Java client, through a program that is compiled as it starts."""

    name = "java"

    def __init__(self) -> None:
        java()
        kafka_jars()

    @property
    def corpus(self) -> list[Record]:
        return CORPUS

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        lines = [f"topic\t{topic}\t{codec}" for topic, codec in topics.items()]
        lines += ["record\t" + _to_line(record) for record in records]
        self._run("produce", bootstrap, lines)

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        lines = [f"topic\t{topic}\t{count}" for topic, count in counts.items()]
        reads: dict[str, list[Read]] = {topic: [] for topic in counts}
        for line in self._run("consume", bootstrap, lines, isolation).splitlines():
            topic, offset, kind, *fields = line.split("\t")
            reads[topic].append(Read(int(offset), _from_fields(fields), int(kind)))
        missing = {t: n for t, n in counts.items() if len(reads[t]) < n}
        if missing:
            raise ReadTimeoutError(f"got { ({t: len(reads[t]) for t in missing}) } of {missing}")
        return reads

    def _run(self, what: str, bootstrap: str, lines: list[str], *more: str) -> str:
        with tempfile.NamedTemporaryFile("w", prefix="java-client-") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            return run_java(str(_JAVA_SOURCE), what, bootstrap, file.name, *more)


def run_java(
    main_class: str,
    *arguments: str,
    stdin: bytes | None = None,
    timeout_s: float = DEADLINE_S * 2,
) -> str:
    """Standard output of a class from Kafka's jars.

    Raises:
        AssertionError: it failed; with what it said.
    """
    jvm = (
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    )
    done = subprocess.run(
        java_command(main_class, *arguments, jvm=jvm),
        input=b"" if stdin is None else stdin,
        capture_output=True,
        check=False,
        timeout=timeout_s,
    )
    said = done.stderr.decode(errors="replace")[-3000:]
    assert done.returncode == 0, said
    return done.stdout.decode()


def _to_line(record: Record) -> str:
    headers = ",".join(f"{_b64(n.encode())}:{_b64(v)}" for n, v in record.headers)
    return "\t".join(
        (str(record.timestamp_ms), _b64(record.key), _b64(record.value), headers or "-")
    )


def _from_fields(fields: list[str]) -> Record:
    timestamp, key, value, headers = fields
    pairs = () if headers == "-" else tuple(pair.split(":") for pair in headers.split(","))
    return Record(
        _unb64(key),
        _unb64(value),
        int(timestamp),
        tuple(((_unb64(n) or b"").decode(), _unb64(v)) for n, v in pairs),
    )


def _b64(data: bytes | None) -> str:
    return "!" if data is None else b64encode(data).decode()


def _unb64(text: str) -> bytes | None:
    return None if text == "!" else b64decode(text)


# ── kcat ──


class Kcat:
    """Debian's kcat, an old librdkafka.

    It gives every record of a run one set of headers and no timestamp, so its corpus is keys and
    values; it prints headers without lengths, so they are read as text.
    """

    name = "kcat"

    def __init__(self) -> None:
        self._program = str(kcat())

    @property
    def corpus(self) -> list[Record]:
        return [Record(b"key-%d" % n, b"value %d from kcat" % n, -1) for n in range(100)]

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        text = b"".join(b"%b\t%b\n" % (r.key or b"", r.value or b"") for r in records)
        for topic, codec in topics.items():
            self._run(
                [*("-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", "\t"), "-z", codec], text
            )

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        reads: dict[str, list[Read]] = {}
        for topic, count in counts.items():
            where = ("-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "0", "-c", str(count))
            limits = ("-X", "fetch.wait.max.ms=100", "-X", f"isolation.level={isolation}")
            printed = self._run([*where, *limits, "-u", "-q", "-f", "%o %T %K %S|%k%s|%h\x1e"])
            reads[topic] = list(_from_kcat(printed))
        return reads

    def _run(self, arguments: list[str], stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            [self._program, *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


def _from_kcat(printed: bytes) -> list[Read]:
    """``offset timestamp key-length value-length|key value|headers RS``; -1: null."""
    reads, at = [], 0
    while at < len(printed):
        bar = printed.index(b"|", at)
        offset, timestamp, key_size, value_size = map(int, printed[at:bar].split())
        at = bar + 1
        key = None if key_size < 0 else printed[at : at + key_size]
        at += max(0, key_size)
        value = None if value_size < 0 else printed[at : at + value_size]
        at += max(0, value_size) + 1
        end = printed.index(b"\x1e", at)
        reads.append(Read(offset, Record(key, value, timestamp, _kcat_headers(printed[at:end]))))
        at = end + 1
    return reads


def _kcat_headers(text: bytes) -> Headers:
    if not text:
        return ()
    pairs = (part.partition(b"=") for part in text.split(b","))
    return tuple((n.decode(), None if v == b"NULL" else v) for n, _, v in pairs)
