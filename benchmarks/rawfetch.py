"""A Fetch client that reads and counts: batch headers are walked, records never.

One thread a connection, one fetch in flight each (only the last answer says where the next
fetch starts).  Bytes are counted as in the log; with *verify* every
batch's CRC is checked as well.  By hand:

    python -m benchmarks.rawfetch --bootstrap 127.0.0.1:9092 --topic T [--verify]

Shell.
"""

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks import wire
from benchmarks.batches import walk
from benchmarks.rawclient import (
    connected,
    open_socket,
    parse_bootstrap,
    receive_exactly,
    run_together,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """The amount read.  ``log_bytes`` are bytes of batches, headers included."""

    requests: int
    batches: int
    records: int
    log_bytes: int
    seconds: float
    client_cpu_seconds: float

    @property
    def mb_per_second(self) -> float:
        """Batches as received, in 10^6 bytes a second."""
        return self.log_bytes / self.seconds / 1e6


class Fetcher:
    """One connection that fetches some partitions of one topic."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 1 << 20,
        verify: bool = False,
    ) -> None:
        self.offsets = dict(offsets)
        self.requests = self.batches = self.records = self.log_bytes = 0
        self.high_watermarks = dict.fromkeys(offsets, -1)
        self._socket = open_socket(parse_bootstrap(bootstrap))
        self._topic, self._verify = topic.encode(), verify
        self._max_wait_ms, self._min_bytes = max_wait_ms, min_bytes
        self._max_bytes, self._partition_max_bytes = max_bytes, partition_max_bytes
        self._buffer = bytearray(1 << 16)

    def fetch(self) -> int:
        """Send one request for all partitions; returns the number of records received.

        Raises:
            KafkaError: for the request or one of its partitions.
            CorruptBatchError: not a batch, or, with *verify*, a wrong CRC.
            ConnectionError: the broker hung up.
        """
        self.requests += 1
        self._socket.sendall(
            wire.fetch_request(
                self._topic,
                self.offsets,
                self.requests,
                max_wait_ms=self._max_wait_ms,
                min_bytes=self._min_bytes,
                max_bytes=self._max_bytes,
                partition_max_bytes=self._partition_max_bytes,
            )
        )
        answer = self._receive()
        before = self.records
        for found in wire.fetch_answer(answer):
            if found.error_code:
                raise wire.KafkaError(f"Fetch {found.partition}", found.error_code)
            self.high_watermarks[found.partition] = found.high_watermark
            view = answer[found.start : found.end]
            batches, records, next_offset = walk(view, verify=self._verify)
            if batches:
                self.offsets[found.partition] = next_offset
            self.batches += batches
            self.records += records
            self.log_bytes += len(view)
        return self.records - before

    def poll(self, session: tuple[int, int], *, everything: bool) -> tuple[int, int]:
        """Send one request of a fetch *session* (id, epoch): *everything*: all partitions, else
        none; returns the session's id and the number of partitions in the answer.

        Raises: as `fetch`.
        """
        self.requests += 1
        self._socket.sendall(
            wire.fetch_request(
                self._topic,
                self.offsets if everything else {},
                self.requests,
                max_wait_ms=self._max_wait_ms,
                min_bytes=self._min_bytes,
                max_bytes=self._max_bytes,
                partition_max_bytes=self._partition_max_bytes,
                session=session,
            )
        )
        answer = self._receive()
        return wire.fetch_session(answer), len(wire.fetch_answer(answer))

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> memoryview:
        head = memoryview(self._buffer)[:4]
        receive_exactly(self._socket, head)
        size = 4 + wire.FRAME_SIZE.unpack(head)[0]
        if size > len(self._buffer):
            self._buffer = bytearray(wire.FRAME_SIZE.pack(size - 4) + bytes(size + size // 4))
        whole = memoryview(self._buffer)[:size]
        receive_exactly(self._socket, whole[4:])
        if wire.FRAME_SIZE.unpack_from(whole, 4)[0] != self.requests:
            raise wire.CorruptAnswerError("correlation id of another request")
        return whole


def fetch(
    bootstrap: str,
    topic: str,
    offsets: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    connections: int = 2,
    verify: bool = False,
    partition_max_bytes: int = 1 << 20,
) -> FetchResult:
    """Read every partition of *offsets* from there to its offset in *ends*.

    Raises:
        KafkaError, CorruptBatchError, ConnectionError: as `Fetcher.fetch`.
    """
    groups = [list(offsets)[n::connections] for n in range(min(connections, len(offsets)))]
    totals: list[tuple[int, int, int, int]] = []

    def read(number: int, start: threading.Barrier) -> None:
        fetcher = Fetcher(
            bootstrap,
            topic,
            {partition: offsets[partition] for partition in groups[number]},
            verify=verify,
            partition_max_bytes=partition_max_bytes,
        )
        start.wait()
        while fetcher.offsets:
            fetcher.fetch()
            for partition in [p for p, offset in fetcher.offsets.items() if offset >= ends[p]]:
                del fetcher.offsets[partition]
        fetcher.close()
        totals.append((fetcher.requests, fetcher.batches, fetcher.records, fetcher.log_bytes))

    seconds, cpu = run_together(read, len(groups))
    requests, batches, records, log_bytes = map(sum, zip(*totals, strict=True))
    return FetchResult(
        requests=requests,
        batches=batches,
        records=records,
        log_bytes=log_bytes,
        seconds=seconds,
        client_cpu_seconds=cpu,
    )


def fetch_all(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    *,
    verify: bool = False,
    connections: int = 2,
) -> FetchResult:
    """Read the log of *partitions* from its start to the current high watermark."""
    with connected(bootstrap) as connection:
        offsets = connection.start_offsets(topic, partitions)
        ends = connection.end_offsets(topic, partitions)
    wanted = {
        partition: offset for partition, offset in offsets.items() if offset < ends[partition]
    }
    return fetch(bootstrap, topic, wanted, ends, verify=verify, connections=connections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--verify", action="store_true", help="check every batch's CRC")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--connections", type=int, default=2)
    options = parser.parse_args()
    with connected(options.bootstrap) as connection:
        partitions = sorted(connection.led(options.topic))
    for _ in range(options.times):
        began = time.perf_counter()
        result = fetch_all(
            options.bootstrap,
            options.topic,
            partitions,
            verify=options.verify,
            connections=options.connections,
        )
        print(
            f"{result.records} records in {result.batches} batches, {result.requests} requests, "
            f"{time.perf_counter() - began:.2f} s: {result.mb_per_second:.0f} MB/s, "
            f"client CPU {result.client_cpu_seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
