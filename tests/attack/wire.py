"""A connection that says anything, well-formed or not, and does not have to listen.

Messages are made with the agent's own codec: what is attacked is what lies behind it, and what
the codec cannot say is sent as bytes.
Shell.
"""

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.requests.registry import API

HEALTHY_ADDRESS: Final = "127.0.0.1"
HOSTILE_ADDRESS: Final = "127.0.0.2"
"""Hostile clients come from an address of their own, as they do outside: limits of an address hit
them and not the healthy client."""

TIMEOUT_S: Final = 20.0

GONE: Final = (OSError, TimeoutError)
"""What a client of an agent must expect: refused, closed, reset, or no answer in time."""


class Connection:
    """One connection from *address*."""

    def __init__(
        self,
        port: int,
        *,
        address: str = HOSTILE_ADDRESS,
        timeout_s: float = TIMEOUT_S,
        receive_buffer_bytes: int | None = None,
        client_id: str = "attack",
    ) -> None:
        self.socket = socket.socket()
        self._client_id = client_id
        self._ids = itertools.count(1)
        try:
            if receive_buffer_bytes is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.settimeout(timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.bind((address, 0))
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def frame(self, key: ApiKey, version: int, request: Any) -> bytes:
        return API[key].encode_request(version, next(self._ids), self._client_id, request)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        self.socket.sendall(data)

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The decoded answer.

        Raises:
            OSError: closed, reset, or no answer in time.
        """
        self.send(self.frame(key, version, request))
        return API[key].decode_response(version, self.receive())[1]

    def receive(self) -> bytes:
        """What follows the size of the next frame."""
        return self._exactly(self.receive_size())

    def receive_size(self) -> int:
        """The next frame's size alone."""
        size: int = struct.unpack(">i", self._exactly(4))[0]
        return size

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(min(1 << 20, size - len(data)))
            if not chunk:
                raise ConnectionError("closed by the agent")
            data += chunk
        return bytes(data)

    def discard(self, seconds: float) -> int:
        """Read and forget until the end of the stream or for so long; the bytes that came."""
        got, until = 0, time.monotonic() + seconds
        with contextlib.suppress(*GONE):
            while (left := until - time.monotonic()) > 0:
                self.socket.settimeout(max(0.01, left))
                chunk = self.socket.recv(1 << 18)
                if not chunk:
                    break
                got += len(chunk)
        return got


def pour(connections: Sequence[Connection], data: bytes, times: int, seconds: float) -> int:
    """Send *data* so many times on each, as fast as it is taken and for so long.

    Returns how many went out whole.  Nothing is read.  A connection that is closed is left out.
    """
    view = memoryview(data)
    left = {each.socket: (times, 0) for each in connections}
    for each in connections:
        each.socket.setblocking(False)
    whole, until = 0, time.monotonic() + seconds
    poll = select.poll()
    by_number = {each.socket.fileno(): each.socket for each in connections}
    for number in by_number:
        poll.register(number, select.POLLOUT)
    while left and time.monotonic() < until:
        for number, _ in poll.poll(100):
            sock = by_number[number]
            count, at = left[sock]
            try:
                at += sock.send(view[at : at + (1 << 20)])
            except BlockingIOError:
                continue
            except OSError:
                count = 0
            if at >= len(view):
                count, at, whole = count - 1, 0, whole + 1
            if count > 0:
                left[sock] = count, at
            else:
                del left[sock]
                poll.unregister(number)
    return whole
