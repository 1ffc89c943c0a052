"""A TCP proxy in front of an HTTP server, which can be told to fail as servers and networks do.

    pass      bytes go through
    refuse    connections are reset, old ones and new ones: the server is down
    hang      connections are taken and nothing is ever answered: the network is cut
    throttle  every request is answered 503 SlowDown, as S3 does it

It runs on a thread of its own and ends with its block.
Shell.
"""

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import urlsplit

Mode = Literal["pass", "refuse", "hang", "throttle"]

_SLOW_DOWN: Final = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_CHUNK_BYTES: Final = 256 * 1024


class FaultProxy:
    """See the module.

    Args:
        url: of the server behind it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._mode: Mode = "pass"
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.url = ""
        self.refused = 0
        """Connections and requests that it has made fail."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_mode(self, mode: Mode) -> None:
        """From now on, for connections that are open too."""
        self._call(self._set_mode(mode))

    def _call(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._abort_all()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode != "hang":
            self._abort_all()

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._connection(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match self._mode:
            case "refuse":
                self.refused += 1
            case "hang":
                self.refused += 1
                await asyncio.Event().wait()
            case "throttle":
                await self._throttle(reader, writer)
            case "pass":
                behind_reader, behind = await asyncio.open_connection(self._host, self._port)
                self._writers.add(behind)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._copy(reader, behind))
                        tasks.create_task(self._copy(behind_reader, writer))
                except* OSError:
                    pass
                finally:
                    self._writers.discard(behind)
                    behind.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._mode == "hang":
                self.refused += 1
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side is done")

    async def _throttle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.refused += 1
        lines = head.lower().split(b"\r\n")
        size = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        if b"expect: 100-continue" not in lines:
            await reader.readexactly(size)
        writer.write(
            b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(_SLOW_DOWN), _SLOW_DOWN)
        )
        await writer.drain()
        writer.write_eof()
        await asyncio.sleep(0.05)
