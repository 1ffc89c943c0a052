"""Many requests, many connections, and clients that do not listen.

Shell.
"""

import contextlib
import struct
import time
from typing import ClassVar, Final

from benchmarks import wire
from benchmarks.batches import encode_batch
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from driftlog_agents.protocol.requests.registry import API
from tests.attack.attacks import Attack, Budget, MiB, Target
from tests.attack.families.batches import seal
from tests.attack.produce import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    fetch_request,
    produce_request,
    sent,
)
from tests.attack.state import VICTIM, make_topic
from tests.attack.wire import GONE, pour

_SMALL_BUFFER: Final = 4_096


def waiting_fetch(topic: str) -> bytes:
    """Fetch 11 of one partition, at its end: it waits for a minute."""
    return wire.fetch_request(
        topic.encode(),
        {0: 0},
        1,
        max_wait_ms=60_000,
        min_bytes=1 << 30,
        max_bytes=50 * MiB,
        partition_max_bytes=MiB,
    )


class PipelinedFetches(Attack):
    """238 MiB of Fetches, 2 MiB each, pipelined behind one that waits."""

    name = "pipelined-fetches"
    item = "6"

    def run(self, target: Target) -> None:
        """Decoded, each would be many times as large."""
        partitions = b"".join(struct.pack(">iiqqi", n, -1, 0, -1, 1) for n in range(70_000))
        body = struct.pack(">iiiibii", -1, 60_000, 1 << 30, 50 << 20, 0, 0, -1)
        body += struct.pack(">i", 1) + wire.string(VICTIM.encode())
        body += struct.pack(">i", 70_000) + partitions + struct.pack(">i", 0) + wire.string(b"")
        large = wire.request(wire.FETCH, 11, 2, body)
        with target.connect() as connection:
            connection.send(waiting_fetch(VICTIM))
            target.sent += 1 + pour([connection], large, 119, target.seconds)
            time.sleep(2)


class LargeJoins(Attack):
    """25 JoinGroups of 90 MB, all into one group."""

    name = "large-joins"
    item = "6"
    budget = Budget.CROWD

    def run(self, target: Target) -> None:
        """Groups must not keep it, and frames must not pile up."""
        join = JoinGroupRequest(
            group_id="large",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(90_000_000))],
        )
        frame = API[ApiKey.JOIN_GROUP].encode_request(3, 1, "attack", join)
        with target.crowd(25, timeout_s=10) as crowd:
            target.sent += pour(crowd, frame, 1, target.seconds + 5)
            time.sleep(2)


class UnreadAnswers(Attack):
    """60 connections that fetch 40 MB of sealed data each, again and again, and read nothing."""

    name = "unread-answers"
    item = "7"
    budget = Budget.CROWD

    def prepare(self, target: Target) -> None:
        """40 MB of data."""
        with target.connect() as connection:
            make_topic(connection, "large")
            batch = encode_batch([b"x" * 1_000] * 950, timestamp_ms=1).data
            for _ in range(42):
                code, _ = sent(connection, "large", batch)
                assert code == 0, f"the data: error {code}"
        assert seal(target.agent, "large") == 200, "the data are not sealed"
        target.agent.kill()
        target.agent.start()

    def run(self, target: Target) -> None:
        """Five fetches on each connection."""
        fetch = API[ApiKey.FETCH].encode_request(11, 1, "attack", fetch_request("large", 0))
        with target.crowd(60, receive_buffer_bytes=_SMALL_BUFFER) as crowd:
            target.sent += pour(crowd, fetch, 5, min(5.0, target.seconds))
            time.sleep(max(5.0, target.seconds / 2))


class Crowd(UnreadAnswers):
    """1,000 connections that pipeline fetches of 40 MB, metadata and joins, and read nothing."""

    name = "crowd"
    item = "7"
    counted_by_agent = True
    legal_clients = 1_000

    def run(self, target: Target) -> None:
        """As much as is taken."""
        fetch = API[ApiKey.FETCH].encode_request(11, 1, "attack", fetch_request("large", 0))
        join = JoinGroupRequest(
            group_id="crowd",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(100_000))],
        )
        mixed = fetch + wire.metadata_request(None, 1) * 50
        mixed += API[ApiKey.JOIN_GROUP].encode_request(3, 1, "attack", join)
        with target.crowd(1_000, receive_buffer_bytes=_SMALL_BUFFER) as crowd:
            target.sent += pour(crowd, mixed, 20, max(5.0, target.seconds))


class CrowdOfAll(UnreadAnswers):
    """1,000 connections that fill every budget at once: fetches of 40 MB that nobody reads, Produce
    requests and JoinGroups of which the last byte is missing, and pipelined requests."""

    name = "crowd-all"
    item = "7"
    counted_by_agent = True
    legal_clients = 1_000

    def run(self, target: Target) -> None:
        """The clients are trusted: each has sent a large request before."""
        fetch = API[ApiKey.FETCH].encode_request(11, 1, "attack", fetch_request("large", 0))
        good = encode_batch([b"x" * 1_000] * 40, timestamp_ms=1).data
        large = encode_batch([b"x" * 1_000] * 1_000, timestamp_ms=1).data
        known, begun = (
            API[ApiKey.PRODUCE].encode_request(
                PRODUCE_VERSION, 1, "attack", produce_request(VICTIM, batch)
            )
            for batch in (good, large)
        )
        join = JoinGroupRequest(
            group_id="crowd",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(8 * MiB))],
        )
        joins = API[ApiKey.JOIN_GROUP].encode_request(3, 1, "attack", join)
        mixed = fetch + wire.metadata_request(None, 1) * 50
        with target.crowd(1_000, receive_buffer_bytes=_SMALL_BUFFER) as crowd:
            most = max(2.0, target.seconds / 4)
            target.sent += pour(crowd[:600], known, 1, most)
            target.sent += pour(crowd[:400], begun[:-1], 1, most)
            target.sent += pour(crowd[400:600], joins[:-1], 1, most)
            target.sent += pour(crowd[600:], mixed, 20, most)
            time.sleep(2)


class Pipelines(Attack):
    """1,000 connections that pipeline one kind of request and read nothing."""

    budget = Budget.CROWD
    counted_by_agent = True
    legal_clients = 1_000
    times: ClassVar[int]
    """Of `requests`, on each connection, where so many are taken."""

    def requests(self) -> bytes:
        """What each connection sends."""
        raise NotImplementedError

    def run(self, target: Target) -> None:
        """As much as is taken."""
        requests = self.requests()
        with target.crowd(1_000, receive_buffer_bytes=_SMALL_BUFFER) as crowd:
            target.sent += pour(crowd, requests, self.times, max(5.0, target.seconds))


class CrowdOfProducers(Pipelines):
    """1,000 connections that pipeline Produce requests of one small record, acks=all."""

    name = "crowd-produce"
    times = 500

    def requests(self) -> bytes:
        """Twenty."""
        batch = encode_batch([b"x" * 100], timestamp_ms=1).data
        request = produce_request(VICTIM, batch)
        return API[ApiKey.PRODUCE].encode_request(PRODUCE_VERSION, 1, "attack", request) * 20


class CrowdOfConsumers(Pipelines):
    """1,000 connections that pipeline fetches of 1,000 partitions, which wait for 0.1 s."""

    name = "crowd-fetch"
    times = 50

    def prepare(self, target: Target) -> None:
        """A topic with so many."""
        with target.connect() as connection:
            make_topic(connection, "wide", 1_000)

    def requests(self) -> bytes:
        """Five."""
        wide = fetch_request("wide", 0, partitions=tuple(range(1_000)), max_wait_ms=100)
        return API[ApiKey.FETCH].encode_request(FETCH_VERSION, 1, "attack", wide) * 5


class CrowdOfReaders(Pipelines):
    """1,000 connections that pipeline ApiVersions and Metadata of all topics."""

    name = "crowd-metadata"
    times = 200

    def requests(self) -> bytes:
        """A hundred small ones, and a large one."""
        return wire.request(wire.API_VERSIONS, 0, 1, b"") * 100 + wire.metadata_request(None, 1)


class Churn(Attack):
    """Connections that come and go as fast as they can, at different points of a request."""

    name = "churn"
    budget = Budget.CROWD

    def run(self, target: Target) -> None:
        """From one thread: some thousands a second."""
        ask = wire.request(wire.API_VERSIONS, 0, 1, b"")
        until = target.deadline
        while time.monotonic() < until and target.agent.is_alive():
            target.sent += 1
            with contextlib.suppress(*GONE), target.connect(timeout_s=2) as connection:
                connection.send(ask[: target.sent % (len(ask) + 1)])


class SilentPeers(Attack):
    """500 connections: silent, with half a size, half a header, or a frame of 100 MB of which a
    byte comes now and then."""

    name = "silent-peers"
    budget = Budget.CROWD

    def run(self, target: Target) -> None:
        """They stay until the time is up."""
        begins = (b"", b"\0\0", b"\0\0\0\x20\0\x03", struct.pack(">ihhi", 100 * MiB, 0, 7, 1))
        until = target.deadline
        with target.crowd(500) as crowd:
            for number, connection in enumerate(crowd):
                target.sent += 1
                with contextlib.suppress(*GONE):
                    connection.send(begins[number % len(begins)])
            while time.monotonic() < until and target.agent.is_alive():
                for connection in crowd[3::4]:
                    with contextlib.suppress(*GONE):
                        connection.send(b"\0")
                time.sleep(0.2)


ATTACKS: Final = (
    PipelinedFetches,
    LargeJoins,
    UnreadAnswers,
    Crowd,
    CrowdOfAll,
    CrowdOfProducers,
    CrowdOfConsumers,
    CrowdOfReaders,
    Churn,
    SilentPeers,
)
