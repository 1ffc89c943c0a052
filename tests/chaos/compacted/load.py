"""Writers of random keys, and readers that read everything again and again.

Shell.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka

from tests.chaos.compacted.oracle import Reading, Record, TableOracle
from tests.chaos.records import Origin, TopicPartition

KEYS: Final = 40
"""Of each partition."""

_TOMBSTONES: Final = 0.15
_HEADER: Final = "origin"
_TICK_S: Final = 0.02
_OPEN: Final = 2_000
_READ_S: Final = 60.0
"""A reading that takes longer is given up: the agents are away."""

_WRITERS: Final[dict[str, dict[str, Any]]] = {
    "writer-1": {"enable.idempotence": True, "linger.ms": 5},
    "writer-2": {"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 50},
    "writer-impatient": {
        "enable.idempotence": False,
        "retries": 0,
        "compression.type": "lz4",
        "message.timeout.ms": 6_000,
    },
}
"""None writes a record twice: that would be an older value with a larger offset.  An idempotent
producer that gives a record up does: librdkafka begins a new epoch then, and sends again what may
be in the log already (confluentinc/librdkafka#4953).  So the one that gives up never sends again.
"""

_READERS: Final = ("reader-1", "reader-2")


class Load:
    """Starts them and stops them.

    Args:
        now: the run's clock.
        rate: writes a second of each writer.
    """

    def __init__(
        self,
        bootstrap: str,
        oracle: TableOracle,
        *,
        now: Callable[[], float],
        rate: float,
        seed: int,
    ) -> None:
        self._bootstrap = bootstrap
        self._oracle = oracle
        self._now = now
        self._writing, self._reading = threading.Event(), threading.Event()
        self.given_up: Counter[str] = Counter()
        """Readings, by reason."""
        dice = random.Random(seed)
        self._writers = [
            _Writer(bootstrap, name, oracle, now, rate, random.Random(dice.random()), settings)
            for name, settings in _WRITERS.items()
        ]
        self._threads = [threading.Thread(target=self._write, daemon=True)]
        for name in _READERS:
            arguments = (name, random.Random(dice.random()))
            self._threads.append(threading.Thread(target=self._read, args=arguments, daemon=True))

    def start(self) -> None:
        self._writing.set()
        self._reading.set()
        for thread in self._threads:
            thread.start()

    def stop(self, flush_s: float) -> None:
        """Nothing new; open writes have *flush_s* seconds; then readers end too."""
        self._writing.clear()
        deadline = time.monotonic() + flush_s
        while self._oracle.open_writes and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        self._reading.clear()
        for thread in self._threads:
            thread.join(_READ_S + 10)

    def _write(self) -> None:
        while self._reading.is_set():
            for writer in self._writers:
                writer.work(new=self._writing.is_set())
            time.sleep(_TICK_S)

    def _read(self, name: str, dice: random.Random) -> None:
        while self._reading.is_set():
            at = dice.choice(self._oracle.partitions)
            reading = read_partition(self._bootstrap, name, at, self._now)
            if isinstance(reading, Reading):
                self._oracle.read(reading)
            else:
                self.given_up[reading] += 1


class _Writer:
    """A producer of confluent-kafka."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        oracle: TableOracle,
        now: Callable[[], float],
        rate: float,
        dice: random.Random,
        settings: dict[str, Any],
    ) -> None:
        configs = {"bootstrap.servers": bootstrap, "client.id": name, "log_level": 2}
        self._producer = confluent_kafka.Producer({**configs, "acks": "all", **settings})
        self._name = name
        self._oracle = oracle
        self._now = now
        self._rate = rate
        self._dice = dice
        self._due_s: float | None = None

    def work(self, *, new: bool) -> None:
        """Write what is due, and hear of what was written."""
        now_s = self._now()
        self._due_s = now_s if self._due_s is None else self._due_s
        while new and self._due_s < now_s:
            self._due_s += 1 / self._rate
            if len(self._producer) < _OPEN:
                self._write(now_s)
        self._producer.poll(0)

    def _write(self, now_s: float) -> None:
        at = self._dice.choice(self._oracle.partitions)
        key = b"key-%d" % self._dice.randrange(KEYS)
        tombstone = self._dice.random() < _TOMBSTONES
        value = None if tombstone else self._dice.randbytes(self._dice.randrange(20, 400))
        origin = self._oracle.sent(at, self._name, key, value, now_s)

        def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
            if error is None:
                self._oracle.acknowledged(at, origin, message.offset())
            else:
                self._oracle.failed(origin, error.name())

        self._producer.produce(
            at.topic,
            value,
            key,
            at.partition,
            headers=[(_HEADER, f"{origin.producer} {origin.n}".encode())],
            on_delivery=delivered,
        )


def read_partition(
    bootstrap: str, reader: str, at: TopicPartition, now: Callable[[], float]
) -> Reading | str:
    """All of it, or why it was given up."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": reader,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 2,
        }
    )
    give_up = time.monotonic() + _READ_S
    began_s = now()
    partition = confluent_kafka.TopicPartition(at.topic, at.partition)
    records: list[Record] = []
    try:
        low, high = consumer.get_watermark_offsets(partition, timeout=_READ_S)
        partition.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([partition])
        while time.monotonic() < give_up:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                end = message.offset()
                assert end is not None
                return Reading(
                    reader=reader,
                    at=at,
                    began_s=began_s,
                    ended_s=now(),
                    low=low,
                    high=high,
                    end=end,
                    records=tuple(records),
                )
    except confluent_kafka.KafkaException as error:
        return f"watermarks: {error.args[0].name()}"
    finally:
        consumer.close()
    return f"no end within {_READ_S:.0f} s"


def _record(message: confluent_kafka.Message) -> Record:
    headers: dict[str, Any] = dict(message.headers() or ())
    name, _, number = headers.get(_HEADER, b"").decode().partition(" ")
    offset, key, value = message.offset(), message.key(), message.value()
    assert offset is not None
    assert isinstance(key, bytes)
    assert not isinstance(value, str)
    origin = Origin(name, int(number)) if number.isdigit() else None
    return Record(offset=offset, key=key, value=value, origin=origin)
