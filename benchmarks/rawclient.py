"""A Kafka client fast enough for any broker: prebuilt frames, answers counted by strided slices.

    produce        encoded batches, one partition a request, pipelined, one thread a connection
    produce_tiny   requests of one record each, a thousand of them in one write
    Connection     request and answer, for everything that is not measured

This client reads no record; the interpreter runs a few microseconds a request, or a few
nanoseconds where requests are written in blocks.  Against `benchmarks/sink.py` by hand:

    python -m benchmarks.sink --port 9099 &
    python -m benchmarks.rawclient --bootstrap 127.0.0.1:9099 --mib 4096 --batch-bytes 1000000
    python -m benchmarks.rawclient --bootstrap 127.0.0.1:9099 --tiny 2000000

Shell.
"""

import argparse
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import wire
from benchmarks.batches import Batch, set_producer
from benchmarks.load import make_batches

MiB = 1 << 20
_STALL_SECONDS = 60
"""A broker that takes and answers nothing for so long has failed the measurement."""
_NOT_READY = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
_NO_LEADER = (3, 5, 6, 9)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_ or REPLICA_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The amount sent or read, and the time from the first byte to the last answer."""

    requests: int
    records: int
    value_bytes: int
    seconds: float
    client_cpu_seconds: float

    @property
    def mb_per_second(self) -> float:
        """Record values, in 10^6 bytes a second."""
        return self.value_bytes / self.seconds / 1e6

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds


def parse_bootstrap(bootstrap: str) -> Address:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def open_socket(address: Address) -> socket.socket:
    """Blocking, without Nagle, with kernel deadlines: a stalled broker is a BlockingIOError."""
    sock = socket.create_connection(address, timeout=_STALL_SECONDS)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = struct.pack("ll", _STALL_SECONDS, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
    return sock


def send_buffers(sock: socket.socket, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Send all of *buffers*, in one system call or as many as needed."""
    sent = sock.sendmsg(buffers)
    for buffer in buffers:
        if sent >= len(buffer):
            sent -= len(buffer)
        else:
            sock.sendall(memoryview(buffer)[sent:])
            sent = 0


class Connection:
    """One request at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._socket = open_socket(parse_bootstrap(bootstrap))
        self._correlation_id = 0

    def ask(self, encode: Callable[[int], bytes]) -> bytes:
        """Send the request that *encode* makes for a new correlation id; returns the framed answer.

        Raises:
            CorruptAnswerError: the answer is to another request.
            ConnectionError: the broker hung up.
        """
        self._correlation_id += 1
        self._socket.sendall(encode(self._correlation_id))
        head = self._receive(4)
        frame = head + self._receive(wire.FRAME_SIZE.unpack(head)[0])
        if wire.FRAME_SIZE.unpack_from(frame, 4)[0] != self._correlation_id:
            raise wire.CorruptAnswerError("correlation id of another request")
        return frame

    def create_topic(
        self, topic: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create the topic and wait until every partition has a leader.

        Raises:
            KafkaError: the broker refused.
            TimeoutError: no leaders after a minute.
        """
        name = topic.encode()
        answer = self.ask(
            lambda id_: wire.create_topic_request(name, partitions, configs or {}, id_)
        )
        if code := wire.create_topic_error(answer):
            raise wire.KafkaError(f"CreateTopics {topic}", code)
        deadline = time.monotonic() + _STALL_SECONDS
        while not self._serves(topic, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} has no leaders")
            time.sleep(0.05)

    def _serves(self, topic: str, partitions: int) -> bool:
        """Whether every partition answers: Metadata names an agent before it leads."""
        if len(self.led(topic)) < partitions:
            return False
        try:
            return len(self.end_offsets(topic, range(partitions))) == partitions
        except wire.KafkaError as error:
            if error.code not in _NO_LEADER:
                raise
            return False

    def delete_topic(self, topic: str) -> None:
        self.ask(lambda id_: wire.delete_topic_request(topic.encode(), id_))

    def led(self, topic: str) -> list[int]:
        """The partitions of *topic* that have a leader."""
        name = topic.encode()
        answer = self.ask(lambda id_: wire.metadata_request([name], id_))
        return wire.led_partitions(answer).get(name, [])

    def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The high watermark of each partition."""
        return self._offsets(topic, partitions, -1)

    def start_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return self._offsets(topic, partitions, -2)

    def init_producer_id(self) -> tuple[int, int]:
        """A producer id and its epoch; waits while a new broker has none.

        Raises:
            KafkaError: the broker refused, or is not ready after a minute.
        """
        deadline = time.monotonic() + _STALL_SECONDS
        while True:
            try:
                return wire.init_producer_id_answer(self.ask(wire.init_producer_id_request))
            except wire.KafkaError as error:
                if error.code not in _NOT_READY or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        self._socket.close()

    def _offsets(self, topic: str, partitions: Sequence[int], timestamp: int) -> dict[int, int]:
        name = topic.encode()
        return wire.list_offsets_answer(
            self.ask(lambda id_: wire.list_offsets_request(name, partitions, timestamp, id_))
        )

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        receive_exactly(self._socket, memoryview(data))
        return bytes(data)


@contextlib.contextmanager
def connected(bootstrap: str) -> Iterator[Connection]:
    connection = Connection(bootstrap)
    try:
        yield connection
    finally:
        connection.close()


def receive_exactly(sock: socket.socket, view: memoryview) -> None:
    """Fill *view*.

    Raises:
        ConnectionError: the broker hung up before.
    """
    while view:
        received = sock.recv_into(view)
        if not received:
            raise ConnectionError("the broker closed the connection")
        view = view[received:]


class Answers:
    """Answers that all have one length, counted and checked without a loop over them."""

    def __init__(self, sock: socket.socket, envelope: wire.ProduceEnvelope) -> None:
        self._socket, self._envelope = sock, envelope
        self._size = wire.FRAME_SIZE.pack(envelope.answer_bytes - 4)
        self._buffer = bytearray(1 << 18)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.last_base_offset = -1

    def receive(self) -> int:
        """Wait for bytes; returns how many whole answers they complete, perhaps none.

        Raises:
            KafkaError: one of them carries an error.
            ConnectionError: the broker hung up.
        """
        received = self._socket.recv_into(self._view[self._filled :])
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._filled += received
        stride = self._envelope.answer_bytes
        whole = self._filled // stride
        if not whole:
            return 0
        end = whole * stride
        self._check(end, stride, whole)
        last = end - stride + self._envelope.error_at + 2
        self.last_base_offset = int.from_bytes(self._buffer[last : last + 8], "big")
        self._buffer[: self._filled - end] = self._buffer[end : self._filled]
        self._filled -= end
        return whole

    def _check(self, end: int, stride: int, whole: int) -> None:
        expected = [(at, byte) for at, byte in enumerate(self._size)]
        expected += [(self._envelope.error_at, 0), (self._envelope.error_at + 1, 0)]
        if all(self._buffer[at:end:stride].count(byte) == whole for at, byte in expected):
            return
        for at in range(self._envelope.error_at, end, stride):
            if code := int.from_bytes(self._buffer[at : at + 2], "big", signed=True):
                raise wire.KafkaError("Produce", code)
        raise wire.CorruptAnswerError("a Produce answer of another length")


# ── Batches ──


def produce(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    batches: Sequence[Batch],
    value_bytes: int,
    *,
    acks: int = 1,
    connections: int = 4,
    window: int = 8,
    version: int = 7,
    idempotent: bool = False,
) -> LoadResult:
    """Send *value_bytes* of record values in *batches*, over and over.

    The partitions are dealt to *connections*, which each keep *window* requests in flight
    (idempotent producers may have 5 a partition) and send to their partitions in turn.

    Raises:
        KafkaError: the broker answered an error.
        ConnectionError, BlockingIOError: it hung up or stalled.
    """
    groups = [list(partitions[n::connections]) for n in range(connections)]
    groups = [group for group in groups if group]
    producer_id = (-1, -1)
    if idempotent:
        with connected(bootstrap) as connection:
            producer_id = connection.init_producer_id()
    share = value_bytes // len(groups)

    def load(number: int, start: threading.Barrier) -> tuple[int, int, int]:
        sender = _Sender(bootstrap, topic, groups[number], acks, version, producer_id)
        start.wait()
        return sender.send(_rotated(batches, number), share, window)

    return _run(load, len(groups))


class _Sender:
    """One connection of `produce`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Sequence[int],
        acks: int,
        version: int,
        producer_id: tuple[int, int],
    ) -> None:
        self._socket = open_socket(parse_bootstrap(bootstrap))
        self._topic, self._partitions = topic.encode(), partitions
        self._acks, self._version, self._producer_id = acks, version, producer_id
        self._sequences = dict.fromkeys(partitions, 0)
        self._envelopes: dict[tuple[int, int], wire.ProduceEnvelope] = {}
        self._answers = Answers(self._socket, self._envelope(partitions[0], 0))

    def send(self, batches: Sequence[Batch], value_bytes: int, window: int) -> tuple[int, int, int]:
        """Send until *value_bytes* are acknowledged; returns requests, records, bytes."""
        sent = records = in_flight = sent_bytes = 0
        if self._producer_id[0] >= 0:
            batches = [Batch(bytearray(b.data), b.records, b.value_bytes) for b in batches]
        with self._socket:
            while sent_bytes < value_bytes or in_flight:
                if sent_bytes < value_bytes and in_flight < window:
                    turn, lane = divmod(sent, len(self._partitions))
                    batch = batches[(turn + lane) % len(batches)]
                    self._send(sent, self._partitions[lane], batch)
                    sent += 1
                    records += batch.records
                    sent_bytes += batch.value_bytes
                    in_flight += self._acks != 0
                else:
                    in_flight -= self._answers.receive()
        return sent, records, sent_bytes

    def _send(self, correlation_id: int, partition: int, batch: Batch) -> None:
        envelope = self._envelope(partition, len(batch.data))
        wire.FRAME_SIZE.pack_into(envelope.head, wire.CORRELATION_AT, correlation_id)
        if self._producer_id[0] >= 0:
            sequence = self._sequences[partition]
            set_producer(batch.data, *self._producer_id, sequence)
            self._sequences[partition] = (sequence + batch.records) & 0x7FFFFFFF
        send_buffers(self._socket, (envelope.head, batch.data, envelope.tail))

    def _envelope(self, partition: int, records_bytes: int) -> wire.ProduceEnvelope:
        if (partition, records_bytes) not in self._envelopes:
            self._envelopes[partition, records_bytes] = wire.produce_envelope(
                self._version, self._topic, partition, self._acks, records_bytes
            )
        return self._envelopes[partition, records_bytes]


# ── Tiny requests ──


def produce_tiny(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    batch: Batch,
    requests: int,
    *,
    acks: int = 1,
    connections: int = 2,
    block: int = 500,
    window_blocks: int = 4,
    version: int = 7,
) -> LoadResult:
    """Send *batch*, which holds one small record, in *requests* requests of its own.

    A block of requests is one prebuilt buffer and one write, so that the client's cost a
    request is that of its bytes; up to *window_blocks* blocks are unanswered.
    """
    assert acks != 0, "nothing would be counted"

    def load(number: int, start: threading.Barrier) -> tuple[int, int, int]:
        partition = partitions[number % len(partitions)]
        envelope = wire.produce_envelope(version, topic.encode(), partition, acks, len(batch.data))
        frames = bytearray()
        for correlation_id in range(block):
            wire.FRAME_SIZE.pack_into(envelope.head, wire.CORRELATION_AT, correlation_id)
            frames += envelope.head + batch.data + envelope.tail
        blocks = max(1, requests // connections // block)
        with open_socket(parse_bootstrap(bootstrap)) as sock:
            answers = Answers(sock, envelope)
            start.wait()
            sent = in_flight = 0
            while sent < blocks or in_flight:
                if sent < blocks and in_flight <= (window_blocks - 1) * block:
                    sock.sendall(frames)
                    sent += 1
                    in_flight += block
                else:
                    in_flight -= answers.receive()
        return sent * block, sent * block * batch.records, sent * block * batch.value_bytes

    return _run(load, connections)


# ── Threads ──


def run_together(
    body: Callable[[int, threading.Barrier], None], threads: int
) -> tuple[float, float]:
    """Run *body* in *threads* threads, each of which waits at the barrier when it is ready.

    Returns seconds and this process's CPU seconds from the barrier to the last thread's
    end.  The first error of a thread is raised here.
    """
    errors: list[BaseException] = []
    start = threading.Barrier(threads + 1, timeout=_STALL_SECONDS)

    def guarded(number: int) -> None:
        try:
            body(number, start)
        except BaseException as error:  # noqa: BLE001  Raised again in the caller's thread.
            errors.append(error)
            start.abort()

    workers = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        start.wait()
    began, cpu_began = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.join()
    if errors:
        causes = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        raise (causes or errors)[0]
    return time.perf_counter() - began, time.process_time() - cpu_began


def _run(
    load: Callable[[int, threading.Barrier], tuple[int, int, int]], threads: int
) -> LoadResult:
    """Sum what *load* returns in *threads* threads: requests, records, bytes."""
    results: list[tuple[int, int, int]] = []
    seconds, cpu = run_together(lambda number, start: results.append(load(number, start)), threads)
    requests, records, value_bytes = map(sum, zip(*results, strict=True))
    return LoadResult(
        requests=requests,
        records=records,
        value_bytes=value_bytes,
        seconds=seconds,
        client_cpu_seconds=cpu,
    )


def _rotated(batches: Sequence[Batch], by: int) -> list[Batch]:
    by %= len(batches)
    return [*batches[by:], *batches[:by]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", help="an existing one; by default a new one is made")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of record values")
    parser.add_argument("--batch-bytes", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--payload", choices=("random", "json"), default="random")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--version", type=int, default=7)
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--tiny", type=int, default=0, help="one-record requests instead")
    options = parser.parse_args()

    topic = options.topic or f"raw-{time.time_ns()}"
    if not options.topic:
        with connected(options.bootstrap) as connection:
            connection.create_topic(topic, options.partitions)
    partitions = range(options.partitions)
    if options.tiny:
        (batch,) = make_batches("random", 1, 100, count=1)
        result = produce_tiny(
            options.bootstrap, topic, partitions, batch, options.tiny,
            acks=options.acks, version=options.version,
        )  # fmt: skip
    else:
        batches = make_batches(
            options.payload, options.batch_bytes, options.record_bytes, codec=options.codec
        )
        result = produce(
            options.bootstrap, topic, partitions, batches, options.mib * MiB,
            acks=options.acks, connections=options.connections, window=options.window,
            version=options.version, idempotent=options.idempotent,
        )  # fmt: skip
    print(
        f"{topic}: {result.requests} requests, {result.records} records in "
        f"{result.seconds:.2f} s: {result.mb_per_second:.0f} MB/s, "
        f"{result.requests_per_second:,.0f} requests/s, "
        f"client CPU {result.client_cpu_seconds:.2f} s"
    )


if __name__ == "__main__":
    main()
