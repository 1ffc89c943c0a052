"""What makes garbage: topics that expire, are compacted, are trimmed, and come and go.

    kept        retention.bytes          trimmed      DeleteRecords
    aged        retention.ms             churn-N      made, written, and deleted
    compacted   the same keys again

Each thread goes on whatever happens; what a client is told that must not be is a failure.

Shell.
"""

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

_SMALL: Final = {"segment.bytes": "1048576", "segment.ms": "3000"}
TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "kept": (3, {"retention.bytes": "1500000", **_SMALL}),
    "aged": (2, {"retention.ms": "20000", **_SMALL}),
    "compacted": (
        2,
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", **_SMALL},
    ),
    "trimmed": (2, _SMALL),
}
"""Partitions and configs."""

_KEYS: Final = 400
_RECORD_BYTES: Final = 1_000
_TRIM_S: Final = 5.0
_TRIMMED_TO: Final = 1_500
_TOPIC_S: Final = 4.0
_TOPICS_AT_ONCE: Final = 3
_TOPIC_RECORDS: Final = 150
_REQUEST_S: Final = 20.0
_OPEN: Final = 5_000


class Workload:
    """See the module.

    Args:
        rate: records a second of all topics together.
        fail: told what must not be.
    """

    def __init__(
        self, bootstrap: str, *, rate: float, seed: int, fail: Callable[[str], None]
    ) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        self._dice = random.Random(seed)
        self._fail = fail
        self._stopped = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "log_level": 2,
            }
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._counts: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.topics_deleted = 0
        self.trims = 0
        self.records_read = 0
        self.latest: dict[bytes, int] = {}
        """By key of `compacted`: the largest number that was acknowledged."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True)
            for loop in (self._produce, self._trim, self._churn, self._consume)
        ]

    def start(self) -> None:
        """Make the topics, and go on until `stop`."""
        new = [NewTopic(name, n, 1, config=configs) for name, (n, configs) in TOPICS.items()]
        for made in self._admin.create_topics(new, operation_timeout=30).values():
            made.result(_REQUEST_S)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; every record is acknowledged, and every topic that comes and goes has gone."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        left = self._producer.flush(60)
        if left:
            self._fail(f"{left} records were not acknowledged")

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # noqa: BLE001  # a thread of ours: the run fails
            self._fail(f"{loop.__name__}: {error!r}")

    # ── Threads ──

    def _produce(self) -> None:
        names = [(name, p) for name, (n, _) in TOPICS.items() for p in range(n)]
        began, sent = time.monotonic(), 0
        while not self._stopped.is_set():
            due = (time.monotonic() - began) * self._rate - sent
            for _ in range(min(int(due), 200)):
                name, partition = self._dice.choice(names)
                self._send(name, partition)
                sent += 1
            self._producer.poll(0.02)
            while len(self._producer) > _OPEN and not self._stopped.is_set():
                self._producer.poll(0.1)

    def _send(self, name: str, partition: int) -> None:
        number = self._counts[name, partition]
        self._counts[name, partition] += 1
        key = b"%d-%d" % (partition, self._dice.randrange(_KEYS))
        value = b"%d|" % number + self._dice.randbytes(_RECORD_BYTES)

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self._fail(f"{name}-{partition} #{number} was not written: {error}")
                return
            with self._lock:
                self.acknowledged += 1
                if name == "compacted":
                    self.latest[key] = max(number, self.latest.get(key, -1))

        self._producer.produce(name, value, key, partition=partition, on_delivery=told)

    def _trim(self) -> None:
        while not self._stopped.wait(_TRIM_S):
            for partition in range(TOPICS["trimmed"][0]):
                at = TopicPartition("trimmed", partition)
                _, end = self._watermarks(at)
                if end <= _TRIMMED_TO:
                    continue
                wanted = TopicPartition("trimmed", partition, end - _TRIMMED_TO)
                (told,) = self._admin.delete_records([wanted]).values()
                if self._answered(told):
                    self.trims += 1

    def _churn(self) -> None:
        names: deque[str] = deque()
        number = 0
        while not self._stopped.wait(_TOPIC_S):
            name = f"churn-{number}"
            number += 1
            made = self._admin.create_topics([NewTopic(name, 1, 1, config=_SMALL)])[name]
            if not self._answered(made, KafkaError.TOPIC_ALREADY_EXISTS):
                continue
            names.append(name)
            for n in range(_TOPIC_RECORDS):
                value = self._dice.randbytes(_RECORD_BYTES)
                self._producer.produce(name, value, b"%d" % n, partition=0)
            if len(names) > _TOPICS_AT_ONCE:
                self._remove(names.popleft())
        self._producer.flush(30)
        while names:
            self._remove(names.popleft())

    def _remove(self, name: str) -> None:
        for _ in range(10):
            told = self._admin.delete_topics([name])[name]
            if self._answered(told, KafkaError.UNKNOWN_TOPIC_OR_PART):
                self.topics_deleted += 1
                return
            time.sleep(1)
        self._fail(f"topic {name} could not be deleted")

    def _answered(self, told: Any, also: int | None = None) -> bool:
        """Whether it was done; an agent that was killed answers nothing."""
        try:
            told.result(_REQUEST_S)
        except TimeoutError:  # A busy machine: it may be done, and the caller goes on.
            return False
        except KafkaException as error:
            return bool(also is not None and error.args[0].code() == also)
        return True

    def _watermarks(self, at: TopicPartition) -> tuple[int, int]:
        consumer = self._reader()
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(at, timeout=_REQUEST_S)
        except KafkaException:
            return 0, 0
        finally:
            consumer.close()
        return found

    def _reader(self) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )

    def _consume(self) -> None:
        """Read the topics from their starts again and again."""
        while not self._stopped.is_set():
            for name, (partitions, _) in TOPICS.items():
                for partition in range(partitions):
                    if self._stopped.is_set():
                        return
                    self.read(name, partition, wanted=self._stopped.is_set)

    def read(
        self, name: str, partition: int, wanted: Callable[[], bool] = lambda: False
    ) -> list[tuple[bytes, int]]:
        """Keys and numbers of the partition from its start to the end that it has now; *wanted*
        ends it early."""
        at = TopicPartition(name, partition)
        found: list[tuple[bytes, int]] = []
        consumer = self._reader()
        try:
            low, end = self._watermarks(at)
            consumer.assign([TopicPartition(name, partition, low)])
            deadline = time.monotonic() + 4 * _REQUEST_S
            while low < end and not wanted():
                for message in consumer.consume(500, 0.5):
                    error = message.error()
                    if error is not None:
                        if not error.retriable() and error.code() != KafkaError._PARTITION_EOF:
                            self._fail(f"{name}-{partition}: {error}")
                            return found
                        continue
                    self._check(name, partition, low, message)
                    low = message.offset() + 1
                    found.append((message.key(), int(message.value().partition(b"|")[0])))
                low = max(low, *(p.offset for p in consumer.position([at])))
                if time.monotonic() > deadline:
                    self._fail(f"{name}-{partition} could not be read from {low} to {end}")
                    break
        finally:
            consumer.close()
        self.records_read += len(found)
        return found

    def _check(self, name: str, partition: int, expected: int, message: Any) -> None:
        """Offsets have no hole, but where log start has moved over one, and in `compacted`."""
        if name == "compacted" or message.offset() == expected:
            return
        start, _ = self._watermarks(TopicPartition(name, partition))
        if message.offset() > start or message.offset() < expected:
            self._fail(
                f"{name}-{partition}: offset {message.offset()} follows {expected - 1}; log start "
                f"is {start}"
            )
