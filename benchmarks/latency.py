"""Latency of records at a steady rate: until they are acknowledged, and until they are read.

A record is due every 1/rate seconds, independent of the broker, and its latency runs from its
due time: a producer that had to wait does not hide it ("coordinated omission").

    one in flight   each request carries all records that came due since the last one
    pipelined       a request as soon as a record is due, up to 1,000 unanswered

One partition, so that an offset tells when its record was due, and a consumer's times need
no decoding of records.  By hand:

    python -m benchmarks.latency --bootstrap 127.0.0.1:9092 --seconds 20 --acks -1

Shell.
"""

import argparse
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import wire
from benchmarks.batches import Growing
from benchmarks.load import TIMESTAMP_MS
from benchmarks.rawclient import Answers, connected, open_socket, parse_bootstrap, send_buffers
from benchmarks.rawfetch import Fetcher

_PIPELINED = 1000
_MOST_RECORDS = 5000


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    def __str__(self) -> str:
        return f"{self.p50_ms:.1f} / {self.p99_ms:.1f}"


def percentiles(seconds: list[float]) -> Percentiles:
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return Percentiles(
        len(ordered),
        ordered[round(last * 0.50)] * 1e3,
        ordered[round(last * 0.99)] * 1e3,
        ordered[last] * 1e3,
    )


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """From due to acknowledged, and from due to read by a consumer that polls without a pause."""

    acknowledged: Percentiles
    end_to_end: Percentiles
    requests: int


def measure_latency(
    bootstrap: str,
    topic: str,
    *,
    pipelined: bool,
    acks: int = -1,
    rate: int = 1000,
    seconds: float = 20.0,
    record_bytes: int = 1024,
    warmup_seconds: float = 2.0,
) -> LatencyResult:
    """Produce to partition 0 of *topic*, which must be empty, and read it back meanwhile.

    Raises:
        KafkaError: the broker answered an error.
        ConnectionError, BlockingIOError: the broker hung up or stalled.
    """
    run = _Run(bootstrap, topic, acks, rate, round(rate * seconds), record_bytes)
    errors: list[BaseException] = []
    consumer = _Checked(run.consume, errors)
    answers = _Checked(run.receive, errors)
    consumer.start()
    answers.start()
    try:
        run.send(_PIPELINED if pipelined else 1, errors)
        answers.join()
        consumer.join()
    finally:
        run.close()
    if errors:
        raise errors[0]
    skip = round(rate * warmup_seconds)
    return LatencyResult(
        percentiles(run.acknowledged[skip:]), percentiles(run.read[skip:]), run.requests
    )


class _Checked(threading.Thread):
    """A thread that keeps its error for its parent."""

    def __init__(self, work: Callable[[], None], errors: list[BaseException]) -> None:
        super().__init__(daemon=True)
        self._work, self._errors = work, errors

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  Raised again by the parent.
            self._errors.append(error)


class _Run:
    """One load: a thread sends, one takes answers, one reads."""

    def __init__(
        self, bootstrap: str, topic: str, acks: int, rate: int, records: int, record_bytes: int
    ) -> None:
        assert acks != 0, "nothing would be acknowledged"
        self.acknowledged: list[float] = []
        self.read: list[float] = []
        self.requests = 0
        self._rate, self._records = rate, records
        self._growing = Growing(b"x" * record_bytes, _MOST_RECORDS, TIMESTAMP_MS)
        self._topic, self._acks = topic.encode(), acks
        self._socket = open_socket(parse_bootstrap(bootstrap))
        self._fetcher = Fetcher(bootstrap, topic, {0: 0}, max_wait_ms=500)
        self._in_flight: deque[tuple[int, int]] = deque()
        self._answered = threading.Semaphore(0)
        self._began = time.perf_counter() + 0.2

    def send(self, window: int, errors: list[BaseException]) -> None:
        """Send every record when it is due, or as soon as the window allows."""
        sent, free = 0, window
        while sent < self._records and not errors:
            if free:
                free += self._answered.acquire(blocking=False)
            elif self._answered.acquire(timeout=1.0):
                free = 1
            else:
                continue
            ahead = self._due(sent) - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            due = int((time.perf_counter() - self._began) * self._rate) + 1
            count = min(due - sent, self._records - sent, self._growing.most)
            self._send(sent, max(count, 1))
            sent += max(count, 1)
            free -= 1

    def receive(self) -> None:
        """Receive acknowledgements, in order."""
        answers = Answers(self._socket, self._envelope(0))
        while len(self.acknowledged) < self._records:
            whole = answers.receive()
            now = time.perf_counter()
            for _ in range(whole):
                first, count = self._in_flight.popleft()
                self.acknowledged += [now - self._due(first + n) for n in range(count)]
                self._answered.release()

    def consume(self) -> None:
        """Fetch the partition's records as soon as they are visible."""
        while len(self.read) < self._records:
            first = self._fetcher.offsets[0]
            self._fetcher.fetch()
            now = time.perf_counter()
            self.read += [now - self._due(n) for n in range(first, self._fetcher.offsets[0])]

    def close(self) -> None:
        self._socket.close()
        self._fetcher.close()

    def _due(self, record: int) -> float:
        return self._began + record / self._rate

    def _envelope(self, records_bytes: int) -> wire.ProduceEnvelope:
        return wire.produce_envelope(7, self._topic, 0, self._acks, records_bytes)

    def _send(self, first: int, count: int) -> None:
        batch = self._growing.first(count)
        envelope = self._envelope(len(batch))
        self._in_flight.append((first, count))
        self.requests += 1
        send_buffers(self._socket, (envelope.head, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--acks", type=int, default=-1)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for pipelined in (False, True):
        topic = f"latency-{time.time_ns()}"
        with connected(options.bootstrap) as connection:
            connection.create_topic(topic, 1)
        result = measure_latency(
            options.bootstrap, topic, pipelined=pipelined,
            acks=options.acks, rate=options.rate, seconds=options.seconds,
        )  # fmt: skip
        print(
            f"{'pipelined' if pipelined else 'one in flight'}: p50 / p99 ms acknowledged "
            f"{result.acknowledged}, end to end {result.end_to_end}, {result.requests} requests"
        )


if __name__ == "__main__":
    main()
