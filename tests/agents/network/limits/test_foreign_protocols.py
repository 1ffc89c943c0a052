"""A TLS or HTTP client at a Kafka listener is recognised, and costs few lines of the log."""

import struct

import pytest

from driftlog_agents.network.frames import FrameReader
from driftlog_agents.network.limits.foreign_protocols import (
    HTTP,
    TLS,
    ForeignClients,
    ForeignProtocolError,
    foreign_protocol,
)
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.limits.refused_connections import OTHERS
from driftlog_tiering.stores.buffer_pool import BufferPool

MiB = 1024 * 1024

FIRST_BYTES = {
    b"\x16\x03\x01\x00\xc8\x01": TLS,  # OpenSSL's ClientHello
    b"\x16\x03\x03\x02\x00\x01": TLS,
    b"GET / HTTP/1.1\r\n": HTTP,
    b"POST /topics/t/seal HTTP/1.1\r\n": HTTP,
    b"OPTIONS * HTTP/1.1\r\n": HTTP,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": HTTP,
}


def read(limit: int, *parts: bytes) -> list[bytes]:
    """The requests of a connection that brings *parts*."""
    reader = FrameReader(
        limit, memoryview(bytearray(64 * 1024)), BufferPool(MiB), MemoryBudget(256 * MiB)
    )
    frames: list[bytes] = []
    for part in parts:
        reader.buffer()[: len(part)] = part
        frames += [bytes(frame) for frame in reader.received(len(part))]
    return frames


@pytest.mark.parametrize("first", FIRST_BYTES)
@pytest.mark.parametrize("limit", [100 * MiB, 2**31 - 1])
def test_another_protocol_is_recognised_by_four_bytes(first: bytes, limit: int) -> None:
    """
    Also where `socket.request.max.bytes` would allow what they announce as a size, and however the
    bytes are cut.
    """
    for cut in range(1, len(first)):
        with pytest.raises(ForeignProtocolError) as raised:
            read(limit, first[:cut], first[cut:])

        assert FIRST_BYTES[first] == raised.value.protocol


def test_a_large_first_request_of_kafka_is_none() -> None:
    """
    Nor is any request behind the first one, whose size may begin with any bytes.
    """
    large = struct.pack(">i", 99 * MiB)
    frames = read(2**31 - 1, struct.pack(">ihhi", 8, 18, 0, 1) + b"\x16\x03\x01\x00" + b"\0" * 8)

    assert foreign_protocol(large) is None
    assert [struct.pack(">hhi", 18, 0, 1)] == frames


def test_a_client_that_comes_again_has_a_line_a_minute() -> None:
    """
    674 connections in ten seconds were 674 lines; the next line counts those between.
    """
    clients = ForeignClients()
    counts = [clients.count("10.0.0.1", TLS, n * 10_000 / 674) for n in range(674)]
    others = [clients.count("10.0.0.1", HTTP, 0.0), clients.count("10.0.0.2", TLS, 0.0)]
    later = clients.count("10.0.0.1", TLS, 60_000.0)

    assert [1, *[0] * 673] == counts
    assert [1, 1] == others
    assert later == 674


def test_addresses_without_end_share_a_line() -> None:
    """
    256 are remembered, until a minute after their line.
    """
    clients = ForeignClients()
    lines = sum(bool(clients.count(f"10.0.{n >> 8}.{n & 255}", TLS, 1.0)) for n in range(1_000))
    shared = clients.count(OTHERS, TLS, 60_001.0)
    anew = clients.count("10.9.9.9", TLS, 60_001.0)

    assert lines == 257
    assert shared == 744
    assert anew == 1
