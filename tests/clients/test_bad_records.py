"""A batch that is refused for some of its records says which, to an agent as to an Apache Kafka."""

import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import confluent_kafka
import pytest

from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import produce
from driftlog_tiering.batches.batch import Codec, build_batch
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.batches.kernel_py import Record, encode_record
from tests.clients import batches
from tests.clients.batches import good, with_field
from tests.clients.python_client import new_topic
from tests.clients.sockets import INVALID_RECORD, INVALID_TIMESTAMP, NONE, Raw
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("bad_records")

HOUR_MS: Final = 3_600_000
KEYED: Final = b"k"

_NOT_YET: Final = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}

COMPACT: Final = {"cleanup_policy": "compact"}
RECENT: Final = {"message_timestamp_before_max_ms": "1800000"}
STAMPED: Final = {"message_timestamp_type": "LogAppendTime"}


def batch(
    *records: tuple[bytes | None, int], codec: Codec = Codec.NONE, max_ahead_ms: int | None = None
) -> bytearray:
    """A batch of records, each with its key and how far from now its timestamp is; the header says
    that the largest is *max_ahead_ms*."""
    now_ms = time.time_ns() // 1_000_000
    base_ms = now_ms + records[0][1]
    plain = b"".join(
        encode_record(Record(now_ms + ahead_ms - base_ms, index, key, b"value", ()))
        for index, (key, ahead_ms) in enumerate(records)
    )
    most = max(ahead_ms for _, ahead_ms in records) if max_ahead_ms is None else max_ahead_ms
    return bytearray(
        build_batch(
            compress(codec, plain),
            base_offset=0,
            last_offset_delta=len(records) - 1,
            record_count=len(records),
            attributes=int(codec),
            base_timestamp=base_ms,
            max_timestamp=now_ms + most,
        )
    )


def produced(
    servers: str, topic: str, *data: bytes | bytearray
) -> list[produce.PartitionProduceResponse]:
    """The answer for each partition, of which each gets one batch.

    Kafka makes a topic some moments after it has said that it did.
    """
    deadline = time.monotonic() + 20
    with Raw(int(servers.rpartition(":")[2])) as raw:
        while True:
            raw.send_produce(topic, dict(enumerate(data)), version=8)
            frame = memoryview(raw.receive())[4:]
            (answer,) = produce.API.decode_response(8, frame)[1].responses
            answers = sorted(answer.partition_responses, key=lambda partition: partition.index)
            if (
                not any(each.error_code in _NOT_YET for each in answers)
                or time.monotonic() > deadline
            ):
                return answers
            time.sleep(0.05)


def asked(servers: str, topic: str, data: bytes | bytearray) -> tuple[int, dict[int, str | None]]:
    """Error code, and what is said of each record that is named."""
    (partition,) = produced(servers, topic, data)
    assert (partition.error_message is None) == (partition.error_code == NONE)
    named = {e.batch_index: e.batch_index_error_message for e in partition.record_errors}
    return partition.error_code, named


REFUSED: Final[dict[str, tuple[dict[str, str], int, list[int], Callable[[], bytearray]]]] = {
    "no key": (COMPACT, INVALID_RECORD, [1], partial(batch, (KEYED, 0), (None, 0), (KEYED, 0))),
    "no key, compressed": (
        COMPACT,
        INVALID_RECORD,
        [0, 2],
        partial(batch, (None, 0), (KEYED, 0), (None, 0), codec=Codec.ZSTD),
    ),
    "in the future": (
        {},
        INVALID_TIMESTAMP,
        [1],
        partial(batch, (None, 0), (None, 2 * HOUR_MS), (None, 0)),
    ),
    "several in the future, compressed": (
        {},
        INVALID_TIMESTAMP,
        [0, 2],
        partial(batch, (None, 2 * HOUR_MS), (None, 0), (None, 3 * HOUR_MS), codec=Codec.ZSTD),
    ),
    "old, between two that are not": (
        RECENT,
        INVALID_TIMESTAMP,
        [1],
        partial(batch, (None, 0), (None, -HOUR_MS), (None, 0)),
    ),
    "old, at the head": (
        RECENT,
        INVALID_TIMESTAMP,
        [0],
        partial(batch, (None, -HOUR_MS), (None, 0)),
    ),
    "no key, and in the future": (
        COMPACT,
        INVALID_TIMESTAMP,
        [0, 1, 2],
        partial(batch, (KEYED, 2 * HOUR_MS), (None, 0), (None, 2 * HOUR_MS)),
    ),
}
"""Configs, the error, which records, and what makes their batch, with times around that moment."""


@pytest.mark.parametrize("name", REFUSED)
def test_the_records_that_are_refused_are_named(servers: str, name: str) -> None:
    """
    Each with its index and a message of its own; nothing of the batch is in the log.
    """
    configs, code, indices, data = REFUSED[name]
    topic = new_topic(servers, 1, **configs)

    answer, named = asked(servers, topic, data())

    assert code == answer
    assert indices == list(named)
    assert all(named.values())
    with Raw(int(servers.rpartition(":")[2])) as raw:
        assert raw.offsets(topic, [0], -1) == {0: 0}


@pytest.mark.parametrize(
    "data",
    [
        with_field(good(), batches.COUNT, 2),
        with_field(good(), batches.ATTRIBUTES, 0x20),
        with_field(good(), batches.BASE_OFFSET, 17, crc=False),
    ],
    ids=["count", "control batch", "base offset"],
)
def test_a_batch_that_is_refused_as_a_whole_names_no_record(servers: str, data: bytearray) -> None:
    """
    A client would blame the first record for it, and call the others innocent.
    """
    (partition,) = produced(servers, new_topic(servers), data)

    assert partition.error_code == INVALID_RECORD
    assert partition.record_errors == []


def test_an_answer_names_a_thousand_records(agent: DriftlogProcess) -> None:
    """
    All partitions of a request share them: a small request has no answer of megabytes.
    """
    topic = new_topic(agent.bootstrap, 3, **COMPACT)
    bad = batch(*[(None, 0)] * 800)

    answers = produced(agent.bootstrap, topic, bad, bad, bad)

    assert [INVALID_RECORD] * 3 == [answer.error_code for answer in answers]
    assert sorted([800, 200, 0]) == sorted(len(answer.record_errors) for answer in answers)
    assert all("800 of 800 records" in (answer.error_message or "") for answer in answers)


def test_a_header_whose_largest_timestamp_no_record_has_is_corrected(servers: str) -> None:
    """
    Each record is looked at, and they are in time.
    """
    topic = new_topic(servers)

    answer = asked(servers, topic, batch((None, 0), (None, 0), max_ahead_ms=5 * HOUR_MS))
    with Raw(int(servers.rpartition(":")[2])) as raw:
        read = raw.fetch(topic, {0: 0})[0].records
    at, form = batches.MAX_TIMESTAMP
    (kept_ms,) = struct.unpack_from(form, read, at)

    assert (NONE, {}) == answer
    assert kept_ms <= time.time() * 1000


def test_records_without_a_timestamp_are_of_any_age(servers: str) -> None:
    """
    -1 is no timestamp, also where old ones are refused.
    """
    topic = new_topic(servers, 1, **RECENT)

    assert (NONE, {}) == asked(servers, topic, good(timestamp_ms=-1))


def test_a_producer_is_told_of_its_record_without_a_key(servers: str) -> None:
    """
    librdkafka's producer fails the records of that batch, and goes on.
    """
    topic = new_topic(servers, 1, **COMPACT)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 200})
    said: list[Any] = []
    for key in (KEYED, None, KEYED):
        producer.produce(topic, b"value", key, on_delivery=lambda error, _: said.append(error))
    producer.flush(30)
    producer.produce(topic, b"value", KEYED, on_delivery=lambda error, _: said.append(error))
    producer.flush(30)

    codes = [None if error is None else error.code() for error in said]
    assert [INVALID_RECORD] * 3 + [None] == codes
