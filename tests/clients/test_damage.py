"""Objects that are missing or damaged: reads of that partition fail and name them, others go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from tests.clients.batches import BASE_SEQUENCE, PRODUCER_EPOCH, PRODUCER_ID, good, with_field
from tests.clients.conftest import make_topic, metrics, seal
from tests.clients.peers import Confluent
from tests.clients.records import Record, at_offsets
from tests.clients.sockets import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    Produced,
    Raw,
)
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("damage")]

RECORDS: Final = [Record(b"k", b"%d" % n, 1_700_000_000_000) for n in range(100)]
SEALED, WHOLE = RECORDS[:60], RECORDS[60:]


@dataclass(frozen=True, slots=True)
class Topics:
    """One whose objects are hurt, and its neighbour; 60 records are sealed and 40 are not."""

    hurt: str
    neighbour: str


@pytest.fixture
def topics(agent: DriftlogProcess) -> Topics:
    made = Topics(make_topic(agent), make_topic(agent))
    for topic in (made.hurt, made.neighbour):
        Confluent().produce_topic(agent.bootstrap, topic, "none", SEALED)
        seal(agent, topic)
        Confluent().produce_topic(agent.bootstrap, topic, "zstd", WHOLE)
    return made


def objects(agent: DriftlogProcess, topic: str, pattern: str) -> list[Path]:
    """Files of a topic's objects."""
    found = sorted((agent.directory / "objects" / "topics" / topic).glob(f"*/00000/{pattern}"))
    assert found, pattern
    return found


def remove(file: Path) -> None:
    file.unlink()


def overwrite(file: Path) -> None:
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(b"\xa5" * size)


def flip(file: Path) -> None:
    """One bit among the records, which begin after four bytes."""
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.unlink()
    file.write_bytes(data)


def cut(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[: len(data) // 2])


def idempotent(value: bytes) -> bytearray:
    """The first batch of a producer that nobody has heard of."""
    batch = good(value)
    for field, first in ((PRODUCER_ID, 9), (PRODUCER_EPOCH, 0), (BASE_SEQUENCE, 0)):
        batch = with_field(batch, field, first)
    return batch


@pytest.mark.parametrize("hurt", [overwrite, flip, cut])
def test_a_damaged_segment_fails_the_reads_that_need_it_and_no_other(
    agent: DriftlogProcess, topics: Topics, hurt: Callable[[Path], None]
) -> None:
    """
    A Kafka error for that partition and a log line that names the object, never records that
    are wrong or missing; its neighbour is read, and both are written.
    """
    agent.kill()
    (file,) = objects(agent, topics.hurt, "*.parquet")
    hurt(file)
    agent.start()

    with Raw(agent.port) as raw:
        failed = raw.fetch(topics.hurt, {0: 0})[0]
        again = raw.fetch(topics.hurt, {0: 59})[0]
        appended = raw.produce(topics.hurt, {0: good(b"more")})
    neighbour = Confluent().consume(agent.bootstrap, {topics.neighbour: 100})

    assert (failed.error_code, failed.records) == (CORRUPT_MESSAGE, b"")
    assert (again.error_code, again.records) == (CORRUPT_MESSAGE, b"")
    assert file.name in agent.log
    assert metrics(agent)["driftlog_damaged_reads_total"] >= 2
    assert neighbour == {topics.neighbour: at_offsets(RECORDS)}
    assert appended == {0: Produced(0, 100)}


def test_a_segment_that_is_missing_is_asked_for_again_until_it_is_back(
    agent: DriftlogProcess, topics: Topics
) -> None:
    """
    Clients retry the error; the log and a metric say it; no restart is needed.
    """
    agent.kill()
    (file,) = objects(agent, topics.hurt, "*.parquet")
    whole = file.read_bytes()
    remove(file)
    agent.start()

    with Raw(agent.port) as raw:
        failed = raw.fetch(topics.hurt, {0: 0})[0]
    said = metrics(agent)
    file.write_bytes(whole)
    read = Confluent().consume(agent.bootstrap, {topics.hurt: 100})

    assert (failed.error_code, failed.records) == (KAFKA_STORAGE_ERROR, b"")
    assert file.name in agent.log
    assert said["driftlog_damaged_reads_total"] >= 1
    assert read == {topics.hurt: at_offsets(RECORDS)}


@pytest.mark.parametrize("hurt", [remove, overwrite, flip, cut])
def test_a_damaged_manifest_fails_what_hangs_on_it_and_the_tail_goes_on(
    agent: DriftlogProcess, topics: Topics, hurt: Callable[[Path], None]
) -> None:
    """
    Sealed records, sealing, and producers whose state only the snapshot has get an error that
    clients retry, the log names the object, and a metric counts the partition; what is not
    sealed is read and written. An idempotent producer goes on when the object is back.
    """
    agent.kill()
    (file,) = objects(agent, topics.hurt, "manifest/*.json")
    whole = file.read_bytes()
    hurt(file)
    agent.start()

    with Raw(agent.port) as raw:
        appended = raw.produce(topics.hurt, {0: good(b"more")})
        refused = raw.produce(topics.hurt, {0: idempotent(b"id")})
        failed = raw.fetch(topics.hurt, {0: 0})[0]
        read = [raw.fetch(topics.hurt, {0: offset})[0] for offset in (60, 100, 200)]
    said = metrics(agent)
    neighbour = Confluent().consume(agent.bootstrap, {topics.neighbour: 100})
    agent.kill()
    file.unlink(missing_ok=True)
    file.write_bytes(whole)
    agent.start()
    with Raw(agent.port) as raw:
        taken = raw.produce(topics.hurt, {0: idempotent(b"id")})
    repaired = Confluent().consume(agent.bootstrap, {topics.hurt: 102})

    assert appended == {0: Produced(0, 100)}
    assert refused == {0: Produced(KAFKA_STORAGE_ERROR, -1)}
    assert taken == {0: Produced(0, 101)}
    missing = hurt is remove  # it may be a moment's
    assert failed.error_code == (KAFKA_STORAGE_ERROR if missing else CORRUPT_MESSAGE)
    assert failed.records == b""
    assert [f.error_code for f in read] == [0, 0, OFFSET_OUT_OF_RANGE]
    assert all(f.records for f in read[:2])
    assert file.name in agent.log
    assert said["driftlog_damaged_partitions"] == 1
    assert said["driftlog_offline_partitions"] == 0
    assert said["driftlog_damaged_reads_total"] >= 1
    assert neighbour == {topics.neighbour: at_offsets(RECORDS)}
    assert repaired[topics.hurt][:100] == at_offsets(RECORDS)


def test_what_is_not_sealed_is_read_past_a_missing_segment(
    agent: DriftlogProcess, topics: Topics
) -> None:
    """
    Offsets that the damage does not touch are served.
    """
    agent.kill()
    remove(objects(agent, topics.hurt, "*.parquet")[0])
    agent.start()
    with Raw(agent.port) as raw:
        fetched = raw.fetch(topics.hurt, {0: 60})[0]

    assert (fetched.error_code, fetched.high_watermark) == (0, 100)
    assert fetched.records


def test_a_consumer_is_told_of_the_damage(agent: DriftlogProcess, topics: Topics) -> None:
    """
    librdkafka hands the error to its user instead of waiting for ever or skipping: after half a
    minute, for a moment's absence is none.
    """
    agent.kill()
    remove(objects(agent, topics.hurt, "*.parquet")[0])
    agent.start()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topics.hurt, 0, 0)])
        deadline = time.monotonic() + 60
        message = None
        while message is None and time.monotonic() < deadline:
            message = consumer.poll(0.5)
    finally:
        consumer.close()

    assert message is not None
    assert message.error() is not None


def test_a_missing_flush_object_is_never_skipped_and_looked_for_again() -> None:
    """
    What its session led has no leader meanwhile, for its end is not known; the log names the
    object; what is made later is served.  When the object is back it is served too, without a
    restart.
    """
    with DriftlogProcess() as agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"lost")}) == {0: Produced(0, 0)}
        agent.kill()
        (file,) = (agent.directory / "objects" / "flush").glob("*/*.flush")
        whole = file.read_bytes()
        file.unlink()
        agent.start()

        with Raw(agent.port) as raw:
            written = raw.produce(topic, {0: good(b"more")})
            codes = [raw.fetch(topic, {0: offset})[0].error_code for offset in (0, 1, 2)]
            later = make_topic(agent)
            served = raw.produce(later, {0: good(b"new")})
        said, counted = agent.log, metrics(agent)
        file.write_bytes(whole)
        found = Confluent().consume(agent.bootstrap, {topic: 1})

    assert written == {0: Produced(NOT_LEADER_OR_FOLLOWER, -1)}
    assert codes == [NOT_LEADER_OR_FOLLOWER] * 3
    assert served == {0: Produced(0, 0)}
    assert file.name in said
    assert counted["driftlog_unavailable_partitions"] == 1
    assert [0] == [read.offset for read in found[topic]]
