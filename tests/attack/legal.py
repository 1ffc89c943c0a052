"""Clients that do nothing wrong, as many as a crowd: what waits beside a crowd, waits beside these.

Each has one request in flight, and sends the next when it has the answer: ApiVersions, Metadata,
Produce with acks=all, Fetch.  They are in a process of their own.

Shell.
"""

import contextlib
import multiprocessing
import select
import struct
from multiprocessing.connection import Connection as Pipe
from typing import Final

from benchmarks import wire
from benchmarks.batches import encode_batch
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.requests.registry import API
from tests.attack.produce import PRODUCE_VERSION, produce_request
from tests.attack.wire import GONE, Connection

LEGAL_ADDRESS: Final = "127.0.0.3"
_START_S: Final = 60.0
_FETCH_BYTES: Final = 64 * 1024


class Legal:
    """So many clients of an agent, at work until the end of a block.

    Raises:
        RuntimeError: they do not come to work.
    """

    def __init__(self, port: int, topic: str, clients: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(port, topic, clients, theirs))

    def __enter__(self) -> None:
        self._process.start()
        if not self._ours.poll(_START_S):
            raise RuntimeError("the legal clients do not come to work")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _work(port: int, topic: str, clients: int, harness: Pipe) -> None:
    requests = _requests(topic)
    poll = select.poll()
    at_work: dict[int, _Client] = {}
    for number in range(clients):
        with contextlib.suppress(*GONE):
            client = _Client(Connection(port, address=LEGAL_ADDRESS), requests, number)
            at_work[client.connection.socket.fileno()] = client
    for file, client in at_work.items():
        poll.register(file, select.POLLIN)
        client.ask()
    harness.send(len(at_work))
    while True:
        for file, _ in poll.poll():
            if not at_work[file].goes_on():
                poll.unregister(file)


def _requests(topic: str) -> list[bytes]:
    batch = encode_batch([b"x" * 100], timestamp_ms=1).data
    produce = produce_request(topic, batch)
    return [
        wire.request(wire.API_VERSIONS, 0, 1, b""),
        wire.metadata_request([topic.encode()], 1),
        API[ApiKey.PRODUCE].encode_request(PRODUCE_VERSION, 1, "legal", produce),
        wire.fetch_request(
            topic.encode(),
            {0: 0},
            1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            partition_max_bytes=_FETCH_BYTES,
        ),
    ]


class _Client:
    """One of them."""

    def __init__(self, connection: Connection, requests: list[bytes], number: int) -> None:
        self.connection = connection
        self._requests = requests
        self._next = number
        self._answer = bytearray()

    def ask(self) -> None:
        self.connection.send(self._requests[self._next % len(self._requests)])
        self._next += 1

    def goes_on(self) -> bool:
        """Read what is there, and ask again behind an answer; False: it is closed."""
        try:
            chunk = self.connection.socket.recv(1 << 18)
            self._answer += chunk
            if len(self._answer) >= 4:
                (size,) = struct.unpack_from(">i", self._answer)
                if len(self._answer) >= 4 + size:
                    self._answer.clear()
                    self.ask()
        except GONE:
            return False
        return bool(chunk)
