"""TCP links between processes of one machine, each of which can be cut, stalled and healed.

    client ──▶ Link, a port of its own ──▶ server

    pass            bytes go through
    refuse          connections are reset, those that are open and those that come
    stall           they stay, and no byte arrives: a cable that was pulled
    stall_requests  no byte arrives at the server
    stall_answers   what the client asks happens, and nobody tells it

What was held is, when the link passes again, either delivered late, as TCP does it, or gone with
its connection.  The end of a connection is held as its bytes are.  All links of a `Network` share
one thread.
Shell.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

T = TypeVar("T")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LinkMode = Literal["pass", "refuse", "stall", "stall_requests", "stall_answers"]

_CHUNK_BYTES: Final = 256 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
_CALL_S: Final = 20.0


class LoopThread:
    """An event loop on a thread of its own, for as long as its block runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[Any]] = set()
        """Of connections: the loop itself does not hold a task whose client has gone, nor does
        what it waits for."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float = _CALL_S) -> T:
        """Run *coroutine* there; its result here."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def listen(self, serve: Serve, limit: int = _CHUNK_BYTES) -> int:
        """Serve connections to a free port, until the end; the port.  To be called on the loop."""

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            try:
                # Only the end cancels it, and would be told of that as of an error.
                with contextlib.suppress(asyncio.CancelledError):
                    await serve(reader, writer)
            finally:
                self._serving.discard(task)

        server = await asyncio.start_server(served, "127.0.0.1", 0, limit=limit)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.sleep(0.05)  # connections that were taken have their tasks by then
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close it with a reset and not with an end."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Network(LoopThread):
    """Makes links."""

    def link(self, port: int) -> "Link":
        """A link to *port* of 127.0.0.1, where nobody has to listen yet."""
        return self.call(_opened(port, self))


class Link:
    """See the module; `Network.link` makes it."""

    def __init__(self, behind: int, network: Network) -> None:
        self._behind = behind
        self._network = network
        self._mode: LinkMode = "pass"
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self._requests.set()
        self._answers.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.held_up = 0
        """Connections that were refused, and what was held, so often."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, mode: LinkMode, *, deliver_late: bool = True) -> None:
        """From now on, for connections that are open too.

        Args:
            deliver_late: what was held meanwhile arrives now; else its connections are reset.
        """
        self._network.call(self._set(mode, deliver_late))

    async def open(self) -> None:
        self.port = await self._network.listen(self._serve)

    async def _set(self, mode: LinkMode, deliver_late: bool) -> None:
        if mode == "refuse" or (mode == "pass" and not deliver_late):
            for writer in list(self._writers):
                reset(writer)
        self._mode = mode
        for gate, stalls in (
            (self._requests, ("stall", "stall_requests")),
            (self._answers, ("stall", "stall_answers")),
        ):
            if mode in stalls:
                gate.clear()
            else:
                gate.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError):
                await self._connection(reader, writer)
        finally:
            self._writers.discard(writer)
            reset(writer)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passed(self._requests)
        self.held_up += self._mode == "refuse"
        if self._mode == "refuse" or writer.is_closing():
            return
        behind_reader, behind = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers.add(behind)
        try:
            if writer.is_closing():  # cut meanwhile
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, behind, self._requests))
                tasks.create_task(self._copy(behind_reader, writer, self._answers))
        finally:
            self._writers.discard(behind)
            reset(behind)

    async def _passed(self, gate: asyncio.Event) -> None:
        self.held_up += not gate.is_set()
        await gate.wait()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        """Each direction ends by itself; a reset ends the other one at its next byte."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._passed(gate)
                writer.write(data)
                await writer.drain()
            await self._passed(gate)
            writer.write_eof()
            return
        await self._passed(gate)
        reset(writer)


async def _opened(port: int, network: Network) -> Link:
    link = Link(port, network)
    await link.open()
    return link
