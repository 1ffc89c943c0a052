"""The stock Kafka client: a producer, and a consumer that reads at the same time.

Nothing here uses driftlog's code: any Kafka cluster answers the same.

Shell.
"""

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tools.demo.answers import DemoError, Record, Table

_TIMEOUT_S: Final = 30
_STALLED_S: Final = 30
_SAMPLES: Final = 5
_TICK_RECORDS: Final = 2_000

_SILENT: Final = logging.getLogger("driftlog.demo.librdkafka")
"""A logger without output: librdkafka's lines would disturb the user, and failures are raised."""

_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

Describe = Callable[[Record], str]


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic that keeps records of any age: the flights are of 2013.

    Raises:
        DemoError: the topic was refused.
    """
    admin = AdminClient(_settings(bootstrap), logger=_SILENT)
    new = NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1"})
    for future in admin.create_topics([new]).values():
        try:
            future.result(timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise DemoError(f"cannot create the topic {topic}: {error.args[0].str()}") from error


@dataclass(slots=True)
class Tally:
    """The acknowledged records of one partition."""

    records: int = 0
    value_bytes: int = 0
    crc_sum: int = 0


@dataclass(slots=True)
class Acknowledged:
    """The sums of all delivery reports."""

    partitions: list[Tally]
    records: int = 0
    failed: int = 0
    error: str = ""

    def report(self, error: object, message: Message) -> None:
        """Count one delivery report."""
        if error is not None:
            self.failed += 1
            self.error = str(error)
            return
        value = message.value() or b""
        assert isinstance(value, bytes)
        tally = self.partitions[message.partition() or 0]
        tally.records += 1
        tally.value_bytes += len(value)
        tally.crc_sum += zlib.crc32(value)
        self.records += 1

    def table(self) -> Table:
        """The table as Spark answers it: without partitions that have no record."""
        return [
            [partition, tally.records, tally.value_bytes, tally.crc_sum]
            for partition, tally in enumerate(self.partitions)
            if tally.records
        ]


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: Iterable[Record],
    tick: Callable[[int], None],
) -> Acknowledged:
    """Produce all records; return when all are acknowledged.

    Args:
        tick: called regularly with the number of records acknowledged so far; may raise.

    Raises:
        DemoError: a record was refused.
    """
    # A batch that is sent again, because an agent was killed before it answered, is taken once.
    producer = Producer({**_settings(bootstrap), "enable.idempotence": True}, logger=_SILENT)
    acknowledged = Acknowledged([Tally() for _ in range(partitions)])
    try:
        for number, record in enumerate(records):
            _send(producer, topic, record, acknowledged)
            if number % _TICK_RECORDS == 0:
                producer.poll(0)
                tick(acknowledged.records)
                _check(acknowledged)
        while producer.flush(0.2):
            tick(acknowledged.records)
            _check(acknowledged)
    except BaseException:
        producer.purge()
        raise
    tick(acknowledged.records)
    _check(acknowledged)
    return acknowledged


def _send(producer: Producer, topic: str, record: Record, acknowledged: Acknowledged) -> None:
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                on_delivery=acknowledged.report,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        except BufferError:  # The client's queue is full: let it send.
            producer.poll(0.1)
            _check(acknowledged)
        except KafkaException as error:
            raise DemoError(f"the client refuses a record: {error.args[0].str()}") from error
        else:
            return


def _check(acknowledged: Acknowledged) -> None:
    if acknowledged.failed:
        raise DemoError(f"{acknowledged.failed:,} records were refused: {acknowledged.error}")


@dataclass(slots=True)
class Seen:
    """What the consumer has read."""

    records: int = 0
    samples: list[str] = field(default_factory=list)
    error: str = ""


class ConsumerThread:
    """A consumer in a thread of its own: assigned to every partition from its first offset.

    Args:
        count: number of expected records; some of them are kept, evenly spaced.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, count: int, describe: Describe
    ) -> None:
        self.seen = Seen()
        self._sample_every = max(1, count // _SAMPLES)
        self._describe = describe
        self._stop = threading.Event()
        # Assigned partitions need no group, but librdkafka requires a group's name.
        self._consumer = Consumer(
            {**_settings(bootstrap), "group.id": "driftlog-demo", "enable.auto.commit": False},
            logger=_SILENT,
        )
        self._next = dict.fromkeys(range(partitions), 0)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def catch_up(self, records: int, tick: Callable[[], None]) -> None:
        """Return when *records* have been read.

        Raises:
            DemoError: no record came for 30 s, or a record has not the next offset.
        """
        last, since = self.seen.records, time.monotonic()
        while self.seen.records < records and not self.seen.error:
            tick()
            self._stop.wait(0.05)
            if self.seen.records != last:
                last, since = self.seen.records, time.monotonic()
            if time.monotonic() - since > _STALLED_S:
                raise DemoError(f"the consumer got {last:,} of {records:,} records, then nothing")
        if self.seen.error or self.seen.records > records:
            raise DemoError(self.seen.error or f"the consumer got more than {records:,} records")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.seen.error:
            for message in self._consumer.consume(1_000, 0.1):
                self._take(message)

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            self.seen.error = f"the consumer got an error: {message.error()}"
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        if offset != self._next[partition]:
            self.seen.error = (
                f"the consumer got offset {offset} of partition {partition}, "
                f"and {self._next[partition]} is next"
            )
            return
        self._next[partition] = offset + 1
        self.seen.records += 1
        if (self.seen.records - 1) % self._sample_every == 0 and len(self.seen.samples) < _SAMPLES:
            text = self._describe(_record(message))
            self.seen.samples.append(f"partition {partition}  offset {offset:<7} {text}")


def _record(message: Message) -> Record:
    headers: Any = message.headers() or []  # a list of pairs, not the dict of its type
    return Record(
        _bytes(message.value()) or b"",
        key=_bytes(message.key()),
        headers=[(name, _bytes(value) or b"") for name, value in headers],
    )


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """The bootstrap address; all other settings are defaults."""
    return {"bootstrap.servers": bootstrap}
