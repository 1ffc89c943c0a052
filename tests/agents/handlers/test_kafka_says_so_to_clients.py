"""Producers and consumers that send what hardly any client sends are answered as by Apache Kafka:
timestamps, timeouts, epochs and names that make little sense.

Skipped where there is no Java or no jars of Kafka.

Shell.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cgd
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_records as dr
from driftlog_agents.protocol.messages import fetch as fe
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import produce as pr
from driftlog_agents.protocol.types import NULL_UUID
from driftlog_tiering.batches.batch import NO_TIMESTAMP, parse_header
from driftlog_tiering.foundation.types import Buffer
from tests.agents.handlers.asking import new
from tests.agents.handlers.test_kafka_says_so import offsets
from tests.agents.handlers.test_offsets_api import batch
from tests.clients.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    COUNT,
    MAX_TIMESTAMP,
    good,
    with_field,
)
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.wire import ask

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_says_so_to_clients"),
]

LARGEST, EARLIEST, LATEST = -3, -2, -1
WAIT_MS: Final = 600


class Side:
    """Kafka, or an agent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._topics = 0

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The answer to any request."""
        return ask(self._port, key, version, request)

    def topic(self, *sent: Buffer, partitions: int = 1, **configs: str) -> str:
        """A topic with these batches in each of its partitions."""
        self._topics += 1
        name = f"t{self._topics}"
        made = ct.CreateTopicsRequest(topics=[new(name, partitions, 1, **configs)])
        ask(self._port, ApiKey.CREATE_TOPICS, 7, made)
        for partition in range(partitions):
            while self.offset(name, LATEST, partition)[0]:
                time.sleep(0.1)  # Kafka leads a new topic a moment after it was made
            for each in sent:
                assert self.produce(name, each, partition)[0] == 0
        return name

    def produce(
        self, topic: str, data: Buffer, partition: int = 0, timeout_ms: int = 20_000
    ) -> tuple[int, int, bool, list[int]]:
        """Error, base offset, whether there is an append time, and the records that are named."""
        part = pr.PartitionProduceData(index=partition, records=memoryview(bytearray(data)))
        named = pr.TopicProduceData(name=topic, partition_data=[part])
        request = pr.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[named])
        answer = ask(self._port, ApiKey.PRODUCE, 9, request)
        (told,) = answer.responses[0].partition_responses
        bad = [error.batch_index for error in told.record_errors]
        return told.error_code, told.base_offset, told.log_append_time_ms > 0, bad

    def offset(self, topic: str, time_ms: int, partition: int = 0) -> tuple[int, ...]:
        """Error, offset, timestamp and leader epoch."""
        request = offsets(time_ms, topic=topic, partition=partition)
        (told,) = ask(self._port, ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions
        return told.error_code, told.offset, told.timestamp, told.leader_epoch

    def delete(self, topic: str, partitions: int, timeout_ms: int) -> list[tuple[int, ...]]:
        """Delete all records: partition, error, low watermark."""
        asked = [dr.DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(partitions)]
        request = dr.DeleteRecordsRequest(
            topics=[dr.DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=timeout_ms
        )
        (told,) = ask(self._port, ApiKey.DELETE_RECORDS, 2, request).topics
        return sorted((p.partition_index, p.error_code, p.low_watermark) for p in told.partitions)

    def fetch(
        self, *topics: str | UUID, offset: int = 0, **asked: Any
    ) -> tuple[list[tuple[str, int, int]], bool]:
        """Topic, error and bytes of each partition; and whether the request waited."""
        version = 13 if any(isinstance(topic, UUID) for topic in topics) else 12
        request = fe.FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            topics=[
                fe.FetchTopic(
                    topic=topic if isinstance(topic, str) else "",
                    topic_id=topic if isinstance(topic, UUID) else NULL_UUID,
                    partitions=[fe.FetchPartition(fetch_offset=offset, **asked)],
                )
                for topic in topics
            ],
        )
        began_s = time.monotonic()
        told = ask(self._port, ApiKey.FETCH, version, request).responses
        waited = time.monotonic() - began_s >= WAIT_MS / 1000 * 0.9
        found = [(t.topic, p.error_code, len(p.records)) for t in told for p in t.partitions]
        return sorted(found), waited

    def told(self, topic: str, offset: int, level: int, version: int) -> tuple[Any, ...]:
        """Error, offsets and aborted transactions of a Fetch."""
        part = fe.FetchPartition(fetch_offset=offset, partition_max_bytes=1_000)
        named = fe.FetchTopic(topic=topic, partitions=[part])
        request = fe.FetchRequest(min_bytes=0, isolation_level=level, topics=[named])
        (told,) = ask(self._port, ApiKey.FETCH, version, request).responses[0].partitions
        offsets_told = told.high_watermark, told.last_stable_offset, told.log_start_offset
        return told.error_code, *offsets_told, told.aborted_transactions

    def refused(self, topic: str, data: Buffer) -> tuple[int, int, int]:
        """Error, base offset and log start of a Produce."""
        part = pr.PartitionProduceData(index=0, records=memoryview(bytearray(data)))
        named = pr.TopicProduceData(name=topic, partition_data=[part])
        request = pr.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[named])
        answer = ask(self._port, ApiKey.PRODUCE, 9, request)
        (told,) = answer.responses[0].partition_responses
        return told.error_code, told.base_offset, told.log_start_offset

    def header(self, topic: str) -> tuple[int, int]:
        """Attributes and max timestamp of the first batch, as a consumer gets it."""
        partition = fe.FetchPartition(fetch_offset=0)
        request = fe.FetchRequest(topics=[fe.FetchTopic(topic=topic, partitions=[partition])])
        (told,) = ask(self._port, ApiKey.FETCH, 12, request).responses[0].partitions
        header = parse_header(told.records)
        return header.attributes, header.max_timestamp


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Kafka, and an agent."""
    path = tmp_path_factory.mktemp("sides")
    with KafkaPeer(path) as kafka, DriftlogProcess(parent=path) as agent:
        yield Side(kafka.port), Side(agent.port)


def max_timestamp(side: Side, said: int) -> Any:
    topic = side.topic(with_field(batch(9_000, 5_000), MAX_TIMESTAMP, said), batch(6_000))
    found = [side.offset(topic, time_ms) for time_ms in (5_500, 8_500, 9_500, LARGEST)]
    return found, side.header(topic)


def append_time(side: Side, said: int, stamp: str) -> Any:
    stamped = with_field(with_field(batch(7, 3), ATTRIBUTES, 8), MAX_TIMESTAMP, said)
    topic = side.topic(message_timestamp_type=stamp)
    answer = side.produce(topic, stamped)
    return answer, side.header(topic) if not answer[0] else None


def deletion(side: Side, timeout_ms: int) -> Any:
    topic = side.topic(batch(1, 2), partitions=20)
    told = side.delete(topic, 20, timeout_ms)
    return told, [side.offset(topic, EARLIEST, partition) for partition in range(20)]


def timed(side: Side, timeout_ms: int) -> Any:
    return side.produce(side.topic(), batch(1), timeout_ms=timeout_ms)


def epoch(side: Side, field: str, value: int) -> Any:
    return side.fetch(side.topic(batch(1)), **{field: value})


def kept(side: Side) -> str:
    """A topic of three records, from offset 1 on."""
    topic = side.topic(batch(1, 2, 3), retention_ms="-1")
    request = dr.DeleteRecordsRequest(
        topics=[
            dr.DeleteRecordsTopic(
                name=topic, partitions=[dr.DeleteRecordsPartition(partition_index=0, offset=1)]
            )
        ],
        timeout_ms=20_000,
    )
    assert side.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0].error_code == 0
    return topic


def levels(side: Side) -> Any:
    topic = kept(side)
    return [
        side.told(name, offset, level, version)
        for version in (4, 6, 11, 12)
        for level in (0, 1)
        for name, offset in ((topic, 1), (topic, 3), (topic, 0), (topic, 99), ("nope", 0))
    ]


def refusal(side: Side, data: Buffer) -> Any:
    topic = kept(side)
    side.refused(topic, batch(1, producer_id=10, producer_epoch=3, base_sequence=0))
    return side.refused(topic, data)


def groups(side: Side, *names: str) -> list[tuple[str, int]]:
    """The answers of ConsumerGroupDescribe, when there is a coordinator."""
    find = fc.FindCoordinatorRequest(coordinator_keys=list(names))
    describe = cgd.ConsumerGroupDescribeRequest(group_ids=list(names))
    while True:
        side.ask(ApiKey.FIND_COORDINATOR, 4, find)  # Kafka makes the topic of its groups
        told = side.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe).groups
        if not {group.error_code for group in told} & _NOT_YET:
            return sorted((group.group_id, group.error_code) for group in told)
        time.sleep(0.1)


_NOT_YET: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


BAD: Final[dict[str, Buffer]] = {
    "a gap": batch(1, producer_id=10, producer_epoch=3, base_sequence=9),
    "an old epoch": batch(1, producer_id=10, producer_epoch=1, base_sequence=1),
    "a wrong count": with_field(batch(1), COUNT, 5),
    "a wrong CRC": with_field(batch(1), COUNT, 5, crc=False),
    "the control bit": with_field(batch(1), ATTRIBUTES, 0x20),
    "a base offset": with_field(batch(1), BASE_OFFSET, 5),
    "too much": good(b"x" * 2_000_000),
}


CASES: Final[dict[str, Callable[[Side], Any]]] = {
    **{f"max timestamp {n}": partial(max_timestamp, said=n) for n in (5_000, 0, -1)},
    "no timestamps": lambda side: side.offset(side.topic(batch(-1, -1)), LARGEST),
    "append times of the broker": partial(append_time, said=7, stamp="LogAppendTime"),
    "append times of a producer": partial(append_time, said=7, stamp="CreateTime"),
    "append times that are none": partial(append_time, said=NO_TIMESTAMP, stamp="CreateTime"),
    **{f"produce within {n}": partial(timed, timeout_ms=n) for n in (0, -5)},
    **{f"delete within {n}": partial(deletion, timeout_ms=n) for n in (0, -1, 20_000)},
    **{
        f"{field} {n}": partial(epoch, field=field, value=n)
        for field, n in (
            ("current_leader_epoch", -5),
            ("current_leader_epoch", 0),
            ("current_leader_epoch", 5),
            ("last_fetched_epoch", -2),
            ("last_fetched_epoch", 0),
        )
    },
    "offsets and aborted transactions": levels,
    **{f"log start with {what}": partial(refusal, data=data) for what, data in BAD.items()},
    "a consumer group twice": lambda side: groups(side, "none", "other", "none"),
    "half a batch": lambda side: side.refused(side.topic(), batch(1)[:90])[:2],
    "half a header": lambda side: side.refused(side.topic(), batch(1)[:30])[:2],
    "the zero id": lambda side: side.fetch(NULL_UUID),
    "a strange id": lambda side: side.fetch(UUID(int=7)),
    "an unknown topic": lambda side: side.fetch("nope"),
    "an unknown topic, and the end": lambda side: side.fetch("nope", side.topic()),
    "an unknown topic, and records": lambda side: side.fetch("nope", side.topic(batch(1))),
    "an unknown partition": lambda side: side.fetch(side.topic(), partition=3),
    "out of range": lambda side: side.fetch(side.topic(), side.topic(batch(1)), offset=1),
}


@pytest.mark.parametrize("case", CASES)
def test_clients_are_told_what_kafka_tells_them(sides: tuple[Side, Side], case: str) -> None:
    """
    Codes, offsets, timestamps, named records, and whether the answer comes at once.
    """
    kafka, ours = map(CASES[case], sides)

    assert kafka == ours
