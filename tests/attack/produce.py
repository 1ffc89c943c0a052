"""Batches sent and read back by whoever attacks, and whoever does not.

Shell.
"""

import struct
from typing import Final

from benchmarks.batches import HEADER_BYTES, encode_batch
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.attack.wire import Connection

PRODUCE_VERSION: Final = 7
FETCH_VERSION: Final = 11


def produce_request(
    topic: str, data: bytes | bytearray, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    """Of one batch."""
    of = PartitionProduceData(index=partition, records=memoryview(data))
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[of])]
    )


def sent(
    connection: Connection,
    topic: str,
    data: bytes | bytearray,
    *,
    partition: int = 0,
    acks: int = -1,
) -> tuple[int, int]:
    """One batch: the error code and the base offset."""
    request = produce_request(topic, data, partition=partition, acks=acks)
    answer = connection.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    of = answer.responses[0].partition_responses[0]
    return of.error_code, of.base_offset


def produced(connection: Connection, topic: str, value: bytes) -> tuple[int, int]:
    """One record with acks=all."""
    return sent(connection, topic, encode_batch([value], timestamp_ms=1).data)


def fetch_request(
    topic: str, offset: int, *, partitions: tuple[int, ...] = (0,), max_wait_ms: int = 0
) -> FetchRequest:
    """Up to 50 MiB from *offset* of each partition."""
    of = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=50 << 20)
        for partition in partitions
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=of)],
    )


def fetched(connection: Connection, topic: str, offset: int) -> tuple[int, dict[int, bytes]]:
    """The error code, and values by offset of plain batches with one record each."""
    answer = connection.ask(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, offset))
    of = answer.responses[0].partitions[0]
    return of.error_code, values(bytes(of.records or b""))


def values(data: bytes) -> dict[int, bytes]:
    """By offset, of plain batches with one record each and no key."""
    found: dict[int, bytes] = {}
    at = 0
    while at + HEADER_BYTES <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + 12 + length
        if end > len(data):
            break
        (count,) = struct.unpack_from(">i", data, at + HEADER_BYTES - 4)
        assert count == 1, "the healthy client sends one record in a batch"
        assert base not in found, f"offset {base} twice"
        found[base] = _value(data[at + HEADER_BYTES : end])
        at = end
    return found


def _value(record: bytes) -> bytes:
    """Of a record: length, attributes, timestamp, offset, key, value, headers (varints)."""
    _, at = _varint(record, 0)
    _, at = _varint(record, at + 1)
    _, at = _varint(record, at)
    key_bytes, at = _varint(record, at)
    at += max(0, key_bytes)
    size, at = _varint(record, at)
    return record[at : at + size]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
