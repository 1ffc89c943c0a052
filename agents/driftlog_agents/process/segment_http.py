"""The HTTP side of `segment_service`: batches come in, a segment goes to the bucket.

    POST /segments    frames of a `segment_request`; JSON: the reference of the segment
                      403: it lacks the session's secret: a stranger's, or an older build's
                      429 before any batch is sent: the agent writes as many segments as it can
                      503 before any batch is sent: its threads hang, so none of them will end
                      422: a batch cannot be decoded

Frames of several batches have 8 MiB at most.  A larger one is a single batch, of up to 100 MiB: one
of those is read at a time, and held until its batch is decoded.

The agent gives up when the leader is silent or sends too slowly, and at the size that no segment
has.

Shell.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from typing import Final

from aiohttp import ClientError, StreamReader, web
from aiohttp.http import HttpProcessingError

from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.segments.segment_request import (
    LENGTH_BYTES,
    MOST_CHUNK_BYTES,
    BusyError,
    RangeBudget,
    RemoteError,
    SegmentRequest,
    StrangerError,
    UndecodableError,
    batches_from,
    decode_request,
)
from driftlog_agents.process.http_guard import makes_room
from driftlog_metadata.schema.model import Role
from driftlog_metadata.stores.errors import CorruptError, StoreError, UnavailableError
from driftlog_tiering.foundation.types import Buffer, Offload

PATH: Final = "/segments"

SILENT_S: Final = 60.0
"""How long either side waits for the other.  A range's batches may have to come from the bucket."""

_HEAD_S: Final = 10.0
_HEAD_BYTES: Final = 4096

_FULL: Final = "the agent writes as many segments as it can"
_HANGS: Final = "a thread of this agent has waited for its disk for a minute: look at /readyz"


class SegmentHttp:
    """See the module.

    Args:
        engine: the present session's; None: between two.
        frame_bytes: most bytes of one frame: of the largest batch.
        hangs: whether the threads that write segments do not return.
        silent_s: how long the agent waits for the leader.
        large_bytes: larger frames are held one at a time.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        frame_bytes: int,
        hangs: Callable[[], bool],
        *,
        silent_s: float = SILENT_S,
        large_bytes: int = MOST_CHUNK_BYTES,
    ) -> None:
        self._silent_s = silent_s
        self._large_bytes = large_bytes
        self._engine = engine
        self._frame_bytes = frame_bytes
        self._large = asyncio.Lock()
        self._hangs = hangs

    def route(self) -> web.RouteDef:
        """Of the HTTP port."""
        return web.post(PATH, self._write, expect_handler=self._expect)

    async def _expect(self, request: web.Request) -> web.Response | None:
        """Asks for the batches, or answers without them."""
        engine = self._engine()
        refused = self._refusal(engine)
        if refused is not None:
            return refused
        assert engine is not None
        try:
            engine.segment_service.turns.check()
        except BusyError as error:
            return _refused(error)
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    def _refusal(self, engine: Engine | None) -> web.Response | None:
        """The answer of an agent that writes no segments for others now."""
        if engine is None:
            return _answer(503, "the agent is between two sessions")
        if Role.SEAL not in engine.agent.roles:
            return _answer(409, "the agent lacks the role seal")
        if self._hangs():
            return _answer(503, _HANGS)  # not 429: leaders leave it alone, and wait for full ones
        return None

    async def _write(self, request: web.Request) -> web.Response:
        engine = self._engine()
        refused = self._refusal(engine)
        if refused is not None:
            return refused
        assert engine is not None
        try:
            async with asyncio.timeout(_HEAD_S):
                with makes_room(request):
                    size = await self._length(request.content, _HEAD_BYTES)
                    head = await self._content(request.content, size)
            asked = decode_request(head)
            async with aclosing(
                self._chunks(request.content, asked, engine.ports.offload)
            ) as chunks:
                written = await engine.segment_service.write(asked, chunks)
        except (
            *(BusyError, UndecodableError, RemoteError),
            *(CorruptError, StoreError, TimeoutError),
        ) as error:
            _forget_frames(error)
            return _refused(error)
        return web.Response(body=written, content_type="application/json")

    async def _chunks(
        self, body: StreamReader, asked: SegmentRequest, offload: Offload
    ) -> AsyncGenerator[list[Buffer]]:
        """The batches that come, up to the empty frame.

        Raises:
            CorruptError: they are not the range, or too many.
            UnavailableError, TimeoutError: the leader is gone, silent or slow.
        """
        next_offset = asked.named.base
        now_s, budget = asyncio.get_running_loop().time, RangeBudget(self._silent_s)
        while True:
            began_s = now_s()
            async with asyncio.timeout(budget.left_s):
                size = await self._length(body, self._frame_bytes)
            took_s = now_s() - began_s
            if not size:
                if next_offset != asked.named.end:
                    raise CorruptError(f"the range ends at {next_offset}")
                return
            async with self._large if size > self._large_bytes else nullcontext():
                began_s = now_s() - took_s
                async with asyncio.timeout(budget.left_s - took_s):
                    content = await self._content(body, size)
                budget.add(size, now_s() - began_s)
                batches, next_offset = await offload(
                    batches_from, content, asked.named, next_offset
                )
                yield batches
                del content, batches

    async def _length(self, body: StreamReader, most_bytes: int) -> int:
        """The bytes of the next frame's content.

        Raises:
            CorruptError: it is larger than *most_bytes*.
            UnavailableError, TimeoutError: the leader is gone, or silent.
        """
        size = int.from_bytes(await self._content(body, LENGTH_BYTES), "big")
        if size > most_bytes:
            raise CorruptError(f"a frame of {size} bytes; at most {most_bytes} are read")
        return size

    async def _content(self, body: StreamReader, size: int) -> bytearray:
        """The next *size* bytes; `readexactly` would hold a large frame twice.

        Raises:
            UnavailableError, TimeoutError: the leader is gone, or silent.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(self._silent_s):
                while len(content) < size:
                    part = await body.read(size - len(content))
                    if not part:
                        raise EOFError(f"{len(content)} of {size} bytes came")
                    content += part
        except (EOFError, ConnectionError, ClientError, HttpProcessingError) as error:
            raise UnavailableError(f"the leader sent no more: {error or repr(error)}") from error
        return content


def _refused(error: Exception) -> web.Response:
    match error:
        case BusyError():
            return _answer(429, _FULL)
        case UndecodableError():
            return _answer(422, "a batch cannot be decoded")
        case StrangerError():
            return _answer(403, str(error))
        case RemoteError():
            return _answer(409, str(error))
        case CorruptError():
            return _answer(400, str(error))
        case _:
            return _answer(503, str(error) or "a request took too long")


def _forget_frames(error: BaseException | None) -> None:
    """Frees what the frames of *error* hold, which are frames of batches.  The body of the request
    and the futures of threads keep their errors, so that only the garbage collector, which runs
    rarely here, would free them."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _answer(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
