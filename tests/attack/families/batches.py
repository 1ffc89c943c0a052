"""Batches that cost more than they weigh.

Shell.
"""

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
from typing import ClassVar, Final

import zstandard

from benchmarks.batches import Codec
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.produce import PartitionProduceData, TopicProduceData
from tests.attack.attacks import Attack, MiB, Target
from tests.attack.produce import (
    PRODUCE_VERSION,
    fetch_request,
    produce_request,
    sent,
)
from tests.attack.state import make_topic
from tests.attack.wire import GONE, Connection
from tests.clients import batches
from tests.clients.batches import good, with_field, with_records
from tests.support.driftlog_process import DriftlogProcess

_HEADERS: Final = 127_000_000
_SEAL_S: Final = 60.0
_FETCH_S: Final = 60.0
_GARBAGE: Final = 3_000
_MOST_RECORDS: Final = 2_000_000
"""Of a batch."""
_BLOCKS: Final = 88
"""Of 512 KiB: a little less than a batch may come to, so that it is rewritten."""
_LATE_S: Final = 10.0
"""Longer, and producers give up."""


def zigzag(value: int) -> bytes:
    """A record's varint."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header_bomb(headers: int = _HEADERS) -> bytearray:
    """One record with so many empty headers, 2 bytes each, in a zstd batch of some KB."""
    head = b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(-1) + zigzag(headers)
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    packed = compressor.compress(zigzag(len(head) + 2 * headers) + head)
    left = headers
    while left > 0:
        packed += compressor.compress(bytes(2 * min(left, 4 * MiB)))
        left -= 4 * MiB
    packed += compressor.flush()
    return with_records(good(codec=Codec.ZSTD), lambda _: packed)


def seal(agent: DriftlogProcess, topic: str) -> int:
    """Ask for it over HTTP; the status, 0 where there is no answer."""
    url, headers = f"{agent.http}/topics/{topic}/seal", {"X-Driftlog": "test"}
    request = urllib.request.Request(url, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_SEAL_S) as answer:
            json.load(answer)
            return 200
    except urllib.error.HTTPError as error:
        return error.code
    except (*GONE, urllib.error.URLError, http.client.HTTPException):
        return 0


class HeaderBomb(Attack):
    """A zstd batch of some KB with one record of 127 million empty headers: produced, sealed, and
    fetched when the agent has started again."""

    name = "header-bomb"
    item = "2"

    def prepare(self, target: Target) -> None:
        """The topic, and the batch."""
        self._bomb = header_bomb()
        with target.connect() as connection:
            make_topic(connection, "bomb")

    def run(self, target: Target) -> None:
        """Produce and seal."""
        with target.connect(timeout_s=_SEAL_S) as connection:
            target.ask(
                connection, ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("bomb", self._bomb)
            )
        target.sent += 1
        seal(target.agent, "bomb")

    def again(self, target: Target) -> None:
        """A cold fetch."""
        with target.connect(timeout_s=_FETCH_S) as connection:
            target.ask(connection, ApiKey.FETCH, 11, fetch_request("bomb", 0))


class EmptyFrames(Attack):
    """A zstd batch of an empty frame and one of 32 MiB of zeros, whose largest timestamp is not
    set, so that it is decoded at once; then a seal."""

    name = "empty-frames"

    def prepare(self, target: Target) -> None:
        """The topic, and the batch."""
        head = b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(32 * MiB)
        record = head + bytes(32 * MiB) + zigzag(0)
        whole = zstandard.compress(zigzag(len(record)) + record)
        packed = zstandard.compress(b"") + whole
        self._batch = with_field(
            with_records(good(codec=Codec.ZSTD), lambda _: packed), batches.MAX_TIMESTAMP, -1
        )
        with target.connect() as connection:
            make_topic(connection, "frames")

    def run(self, target: Target) -> None:
        """It is a batch as any other."""
        with target.connect(timeout_s=_SEAL_S) as connection:
            target.sent += 1
            code, _ = sent(connection, "frames", self._batch)
        if code:
            target.fail(f"the batch was refused with {code}")
        seal(target.agent, "frames")


class SmallParts(Attack):
    """Produce requests of 32 MiB, of which 256 KiB are for a topic that is there, and a read of 200
    KB with one batch of 80 bytes, again and again."""

    name = "small-parts"

    def prepare(self, target: Target) -> None:
        """The topic."""
        with target.connect() as connection:
            make_topic(connection, "parts")

    def run(self, target: Target) -> None:
        """Some 1.2 GB, of which 10 MB are in the log."""
        part, rest = good(bytes(256 << 10)), memoryview(bytes(31 * MiB))
        request = produce_request("parts", part)
        unknown = PartitionProduceData(index=0, records=rest)
        request.topic_data.append(TopicProduceData(name="nowhere", partition_data=[unknown]))
        little = produce_request("parts", good())
        until = target.deadline
        with target.connect(timeout_s=_FETCH_S) as connection:
            large = connection.frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)
            for _ in range(20):
                target.sent += 1
                connection.send(large)
                connection.receive()
            refused = produce_request("nowhere", bytes(100 << 10))
            frames = connection.frame(ApiKey.PRODUCE, PRODUCE_VERSION, little)
            frames += connection.frame(ApiKey.PRODUCE, PRODUCE_VERSION, refused)
            while target.sent < 12_000 and time.monotonic() < until:
                target.sent += 100
                connection.send(frames * 50)
                for _ in range(100):
                    connection.receive()


class GarbageBatches(Attack):
    """3,000 batches of noise with a valid checksum, then a seal."""

    name = "garbage-batches"
    item = "13"

    def prepare(self, target: Target) -> None:
        """The topic."""
        with target.connect() as connection:
            make_topic(connection, "garbage")

    def run(self, target: Target) -> None:
        """Pipelined, in front of a reader that keeps up."""
        until = target.deadline + 20
        with target.connect(timeout_s=_SEAL_S) as connection:
            for _ in range(_GARBAGE // 50):
                frames = b"".join(_garbage(target, connection) for _ in range(50))
                connection.send(frames)
                for _ in range(50):
                    connection.receive()
                target.sent += 50
                if time.monotonic() > until:
                    break
        logged = len(target.agent.log)
        seal(target.agent, "garbage")
        objects = sum(1 for _ in (target.agent.directory / "objects").rglob("*.raw"))
        if objects > target.sent // 10:
            target.fail(f"{objects:,} .raw objects of {target.sent:,} batches")
        if (lines := target.agent.log[logged:].count("\n")) > target.sent // 10:
            target.fail(f"{lines:,} lines of log for {target.sent:,} batches")


def _garbage(target: Target, connection: Connection) -> bytes:
    data = with_records(good(b"x" * 40), lambda records: target.rng.randbytes(len(records)))
    return connection.frame(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("garbage", data))


class LyingCounts(Attack):
    """Batches of one record whose header says that there are 2,147,483,647."""

    name = "lying-counts"
    item = "13"

    def run(self, target: Target) -> None:
        """Offsets are what they cost."""
        with target.connect() as connection:
            make_topic(connection, "lies")
            liar = with_field(good(), batches.COUNT, 2**31 - 1)
            liar = with_field(liar, batches.LAST_OFFSET_DELTA, 2**31 - 2)
            for _ in range(20):
                target.sent += 1
                sent(connection, "lies", liar)
            _, offset = sent(connection, "lies", good())
        if offset > 20 * _MOST_RECORDS:
            target.fail(f"20 records took {offset:,} offsets")


class HeavyRewrites(Attack):
    """Eight zstd batches, of 44 MiB each when unpacked, for a topic compressed with gzip, and
    a small one behind them."""

    name = "heavy-rewrites"
    item = "14"
    heavy: ClassVar[int] = 8
    compression_type: ClassVar[str] = "gzip"

    def bomb(self, target: Target) -> bytes | bytearray:
        """zstd sees that it repeats itself, and gzip, with its window of 32 KB, does not."""
        block = bytes(target.rng.choices(b"abcdefghijklmnop ", k=512 << 10))
        head = b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(len(block) * _BLOCKS)
        record = head + block * _BLOCKS + zigzag(0)
        packed = zstandard.compress(zigzag(len(record)) + record, 3)
        return with_records(good(codec=Codec.ZSTD), lambda _: packed)

    def prepare(self, target: Target) -> None:
        """The topic, and the batch."""
        self._batch = self.bomb(target)
        with target.connect() as connection:
            make_topic(
                connection, "rewritten", self.heavy + 1, compression_type=self.compression_type
            )

    def run(self, target: Target) -> None:
        """The small one is on a connection of its own."""
        with target.crowd(self.heavy, timeout_s=60) as crowd:
            for partition, connection in enumerate(crowd):
                target.sent += 1
                request = produce_request("rewritten", self._batch, partition=partition)
                connection.send(connection.frame(ApiKey.PRODUCE, PRODUCE_VERSION, request))
            begun = time.monotonic()
            with target.connect(timeout_s=90) as connection:
                batch = good(codec=Codec.ZSTD)
                request = produce_request("rewritten", batch, partition=self.heavy)
                answer = target.ask(connection, ApiKey.PRODUCE, PRODUCE_VERSION, request)
            waited_s = time.monotonic() - begun
            if answer is None or waited_s > _LATE_S:
                target.fail(f"a small batch behind them waited {waited_s:.0f} s")


class GzipMembers(HeavyRewrites):
    """The same with gzip of 40,000 members, of which only the last one has something in it, for a
    topic that is compressed with zstd."""

    name = "gzip-members"
    heavy = 4
    compression_type = "zstd"

    def bomb(self, target: Target) -> bytearray:
        empty = gzip.compress(b"", mtime=0)
        return with_records(good(codec=Codec.GZIP), lambda records: empty * 40_000 + bytes(records))


ATTACKS: Final = (
    HeaderBomb,
    EmptyFrames,
    SmallParts,
    GarbageBatches,
    LyingCounts,
    HeavyRewrites,
    GzipMembers,
)
