"""Compacted topics as clients find them: one value of each key, also after a restart.

Shell.
"""

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(240)]

_WAIT_S: Final = 30.0
_COMPACTED_S: Final = 60.0
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0",
}
KEYS: Final = 50

Table = dict[bytes, bytes]


@pytest.fixture
def agent() -> Iterator[DriftlogProcess]:
    """One that compacts soon."""
    with DriftlogProcess(arguments=("--config", "log.cleaner.backoff.ms=100")) as process:
        yield process


def _topic(agent: DriftlogProcess) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=_CONFIGS)])[name].result(_WAIT_S)
    return name


class _Writer:
    """Writes random values and tombstones; knows what each key must have."""

    def __init__(self, agent: DriftlogProcess, topic: str) -> None:
        self._topic = topic
        self._rng = random.Random(topic)
        self._failed: list[Any] = []
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        """By key: the largest offset that was acknowledged, and the value there."""
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": agent.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "log_level": 2,
            }
        )

    def write(self, records: int) -> None:
        """Send *records*; each takes a moment."""
        for number in range(records):
            key = b"k%d" % self._rng.randrange(KEYS)
            value = None if self._rng.random() < 0.1 else b"%d/" % number + key * 20
            self._producer.produce(self._topic, value, key, partition=0, on_delivery=self._told)
            self._producer.poll(0)
            time.sleep(0.0005)

    def finish(self) -> None:
        """Wait for every acknowledgement."""
        assert 0 == self._producer.flush(60)
        assert [] == self._failed

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)
            return
        before = self.newest.get(message.key())
        if before is None or before[0] < message.offset():
            self.newest[message.key()] = message.offset(), message.value()

    @property
    def table(self) -> Table:
        """What a reader must end with."""
        return {key: value for key, (_, value) in self.newest.items() if value is not None}


def _read(agent: DriftlogProcess, topic: str) -> list[Any]:
    """All records, from the beginning to the end."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[Any] = []
    give_up = time.monotonic() + _WAIT_S
    try:
        while time.monotonic() < give_up:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert confluent_kafka.KafkaError._PARTITION_EOF == error.code(), error
                return found
            found.append(message)
    finally:
        consumer.close()
    raise AssertionError("the end was not reached")


def _table(records: list[Any]) -> Table:
    table: Table = {}
    for record in records:
        if record.value() is None:
            table.pop(record.key(), None)
        else:
            table[record.key()] = record.value()
    return table


def _until_compacted(agent: DriftlogProcess, topic: str) -> list[Any]:
    """The records, when there is one of each key."""
    give_up = time.monotonic() + _COMPACTED_S
    while True:
        records = _read(agent, topic)
        if max(Counter(record.key() for record in records).values()) == 1:
            return records
        assert time.monotonic() < give_up, f"{len(records)} records of {KEYS} keys"
        time.sleep(0.5)


def test_compaction_goes_on_after_a_restart(agent: DriftlogProcess) -> None:
    """
    What is written after the first compaction replaces what it kept; the agent restarts between.
    """
    topic = _topic(agent)
    writer = _Writer(agent, topic)
    writer.write(400)
    writer.finish()
    _until_compacted(agent, topic)
    assert 0 == agent.terminate()
    agent.start()

    writer.write(400)
    writer.finish()
    records = _until_compacted(agent, topic)

    assert writer.newest == {r.key(): (r.offset(), r.value()) for r in records}
    assert writer.table == _table(records)
