"""An HTTP proxy in front of an S3 server that fails single requests as S3 and networks do.

    agent ──▶ S3Faults ──▶ S3 server

Each request is taken whole, given to the server on a connection of its own, and its answer
passed on whole, so that it is known of each whether it acted:

    delay_ms      waits, half before it acts and half after
    throttle      503 SlowDown; it did not act
    reset_before  the connection is reset; it did not act
    reset_after   it acted, and then the connection is reset
    lose_answer   it acted, and nothing comes, until the client gives up

Shell.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tests.support.links import Network, reset

_SLOW_DOWN: Final = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_THROTTLED: Final = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_SLOW_DOWN), _SLOW_DOWN)
)
_HEAD_BYTES: Final = 256 * 1024
_HOLD_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Trouble:
    """What happens to requests from now on; the last four are probabilities, of each request."""

    delay_ms: tuple[int, int] = (0, 0)
    throttle: float = 0.0
    reset_before: float = 0.0
    reset_after: float = 0.0
    lose_answer: float = 0.0


class S3Faults:
    """See the module.

    Args:
        network: whose thread it runs on.
        port: of the server behind it.
        seed: of its dice.
    """

    def __init__(self, network: Network, port: int, seed: int) -> None:
        self._behind = port
        self._dice = random.Random(seed)
        self._trouble = S3Trouble()
        self.done: Counter[str] = Counter()
        """Requests by what became of them."""
        self.port = network.call(network.listen(self._serve, _HEAD_BYTES))

    def set(self, trouble: S3Trouble) -> None:
        """For requests that come from now on."""
        self._trouble = trouble

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._request(reader, writer):
                    pass
        finally:
            reset(writer)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        if b"expect: 100-continue" in lines:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _without(head, b"expect:")
        body = await _body(reader, lines)
        trouble, dice = self._trouble, self._dice.random()
        delay_s = self._dice.uniform(*trouble.delay_ms) / 2000
        if delay_s:
            await asyncio.sleep(delay_s)
        fate = _fate(trouble, dice)
        self.done[fate] += 1
        if fate == "reset before it acted":
            return False
        if fate == "503 SlowDown":
            answer = _THROTTLED
        else:
            answer = await self._ask(head, body)
        if fate == "reset after it acted":
            return False
        if fate == "answer lost":
            await asyncio.wait_for(reader.read(1), _HOLD_S)
            return False
        if delay_s:
            await asyncio.sleep(delay_s)
        writer.write(answer)
        await writer.drain()
        return True

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        """The server's whole answer."""
        behind_reader, behind = await asyncio.open_connection(
            "127.0.0.1", self._behind, limit=_HEAD_BYTES
        )
        try:
            behind.write(head)
            behind.write(body)
            await behind.drain()
            answered = await behind_reader.readuntil(b"\r\n\r\n")
            lines = answered.lower().split(b"\r\n")
            if head.startswith(b"HEAD ") or lines[0].split()[1] in (b"204", b"304"):
                return answered
            return answered + await _body(behind_reader, lines)
        finally:
            behind.close()


def _fate(trouble: S3Trouble, dice: float) -> str:
    for fate, share in (
        ("503 SlowDown", trouble.throttle),
        ("reset before it acted", trouble.reset_before),
        ("reset after it acted", trouble.reset_after),
        ("answer lost", trouble.lose_answer),
    ):
        if dice < share:
            return fate
        dice -= share
    return "passed"


def _without(head: bytes, name: bytes) -> bytes:
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(name)]
    return b"\r\n".join(lines)


async def _body(reader: asyncio.StreamReader, lines: list[bytes]) -> bytes:
    """The body that the head *lines* (in lower case) announce, as it is on the wire."""
    for line in lines:
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2]))
        if line.startswith(b"transfer-encoding:") and b"chunked" in line:
            return await _chunks(reader)
    return b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while True:
        size = await reader.readuntil(b"\r\n")
        parts += size
        count = int(size.partition(b";")[0], 16)
        parts += await reader.readexactly(count) if count else b""
        end = await reader.readuntil(b"\r\n")
        while not count and end != b"\r\n":  # trailers
            parts += end
            end = await reader.readuntil(b"\r\n")
        parts += end
        if not count:
            return bytes(parts)
