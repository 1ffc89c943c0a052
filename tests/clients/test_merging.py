"""Many small segments become few while clients write and read: each record once, at its offset.

Broken: a bucket with a file for each minute of a slow topic, or records that a merge lost, doubled
or moved; or a bucket that keeps what merges replaced.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import confluent_kafka
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from driftlog import segment_files
from tests.clients.conftest import make_topic, metrics, seal
from tests.support.driftlog_process import DriftlogProcess
from tests.support.live_objects import live_keys, stored_keys

pytestmark = [pytest.mark.timeout(240)]

_GRACE_MS: Final = 5_000
_ROUNDS: Final = 50
_RECORDS: Final = 20
_FACTOR: Final = 16
_WAIT_S: Final = 60.0


@pytest.fixture
def agent() -> Iterator[DriftlogProcess]:
    """One that merges soon, in a bucket with a short grace."""
    configs = ("log.cleaner.backoff.ms=100", "driftlog.max.topic.seals.per.minute=100000")
    arguments = ["--new-cluster-grace-ms", str(_GRACE_MS)]
    for config in configs:
        arguments += ["--config", config]
    with DriftlogProcess(arguments=arguments) as process:
        yield process


def test_many_small_segments_become_few_beside_readers_and_a_kill(agent: DriftlogProcess) -> None:
    """
    A consumer reads slowly from the beginning while segments are merged and collected under it and
    the agent is killed; then the bucket holds what the newest manifests name, and nothing else.
    """
    topic = make_topic(agent)
    writer = confluent_kafka.Producer(
        {
            "bootstrap.servers": agent.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "log_level": 2,
        }
    )
    reader = _consumer(agent, topic)
    told: dict[int, bytes] = {}
    read: list[tuple[int, bytes]] = []
    for n in range(_ROUNDS):
        _write(writer, topic, n * _RECORDS, told)
        if n == _ROUNDS // 2:
            agent.kill()
            agent.start()
        _wait(lambda: _seals(agent, topic))
        read += _read(reader, _RECORDS // 2)
    most = 2 * _FACTOR
    _wait(lambda: len(_files(agent, topic)) < most)
    counted = metrics(agent)
    read += _read(reader, len(told) - len(read))
    reader.close()
    objects = agent.directory / "objects"
    _wait(lambda: stored_keys(objects) == live_keys(objects))

    expected = sorted(told.items())
    assert [(n, b"%d" % n) for n in range(_ROUNDS * _RECORDS)] == expected
    assert expected == read
    rows = [row for path in _files(agent, topic) for row in pq.read_table(path).to_pylist()]
    assert expected == [(row["offset"], row["value"]) for row in rows]
    anew = _consumer(agent, topic)
    assert expected == _read(anew, len(expected))
    anew.close()
    assert counted["driftlog_merged_segments_total"] >= _FACTOR * counted["driftlog_merges_total"]
    assert counted["driftlog_merges_total"] >= 1


def test_merging_can_be_turned_off(tmp_path: Path) -> None:
    """
    An operator decides which agents do the work.
    """
    off = ("driftlog.segment.merge.enable=false", "log.cleaner.backoff.ms=100")
    arguments = [word for config in off for word in ("--config", config)]
    with DriftlogProcess(tmp_path / "data", arguments=arguments) as agent:
        topic = make_topic(agent)
        writer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap, "linger.ms": 1})
        for n in range(_FACTOR + 1):
            _write(writer, topic, n * _RECORDS, {})
            seal(agent, topic)
        assert 0 == agent.terminate()
        assert len(_files(agent, topic)) == _FACTOR + 1


def _seals(agent: DriftlogProcess, topic: str) -> bool:
    """Seal the topic; False: the agent has just started, and does not lead yet."""
    try:
        return bool(seal(agent, topic))
    except HTTPError as error:
        if error.code != 503:
            raise
        return False


def _write(
    writer: confluent_kafka.Producer, topic: str, first: int, told: dict[int, bytes]
) -> None:
    """Send records, and note the offset and the value of each when it is acknowledged."""

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        assert offset not in told
        told[offset] = value

    for number in range(first, first + _RECORDS):
        writer.produce(topic, b"%d" % number, b"k", partition=0, on_delivery=delivered)
    assert 0 == writer.flush(_WAIT_S)


def _consumer(agent: DriftlogProcess, topic: str) -> confluent_kafka.Consumer:
    """One that begins at offset 0, and fetches little at once."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "none",
            "log_level": 2,
            "auto.offset.reset": "error",
            "queued.min.messages": 1,
            "fetch.message.max.bytes": 1_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _read(consumer: confluent_kafka.Consumer, count: int) -> list[tuple[int, bytes]]:
    """The next *count* records: (offset, value)."""
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + _WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            assert error.retriable() or error.code() < 0, error  # the agent was killed
            continue
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        found.append((offset, value))
    return found


def _files(agent: DriftlogProcess, topic: str) -> list[str]:
    return [file.path for file in segment_files(str(agent.directory / "objects"), topic)]


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.3)
