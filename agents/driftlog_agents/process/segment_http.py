"""The HTTP side of `segment_service`: batches come in, segments go to the bucket.

    POST /segments    frames of a `segment_request`; JSON: the references of its segments
                      429 before any batch is sent: the agent writes as many segments as it can

The agent gives up when the leader is silent.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import ClientError, StreamReader, web

from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.sealing.remote_segments import BusyError, RemoteError
from driftlog_agents.log.sealing.segment_request import (
    LENGTH_BYTES,
    SegmentRequest,
    batches_from,
    decode_request,
)
from driftlog_metadata.stores.errors import CorruptError, StoreError, UnavailableError
from driftlog_tiering.batches.batch import Buffer

PATH: Final = "/segments"

SILENT_S: Final = 60.0
"""How long either side waits for the other.  A range's batches may have to come from the bucket; a
segment that waits for its turn waits for another's compression."""

_HEAD_BYTES: Final = 4096


class SegmentHttp:
    """See the module.

    Args:
        engine: the present session's; None: between two.
        frame_bytes: most bytes of one frame of batches.
    """

    def __init__(self, engine: Callable[[], Engine | None], frame_bytes: int) -> None:
        self._engine = engine
        self._frame_bytes = frame_bytes

    def route(self) -> web.RouteDef:
        """Of the HTTP port."""
        return web.post(PATH, self._write, expect_handler=self._expect)

    async def _expect(self, request: web.Request) -> web.Response | None:
        """Asks for the batches, or answers without them."""
        engine = self._engine()
        if engine is not None and engine.segment_service.is_full:
            return _answer(429, "the agent writes as many segments as it can")
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    async def _write(self, request: web.Request) -> web.Response:
        engine = self._engine()
        if engine is None:
            return _answer(503, "the agent is between two sessions")
        body = request.content
        try:
            asked = decode_request(await _frame(body, _HEAD_BYTES))
            chunks = self._chunks(body, asked)
            written = await engine.segment_service.write(asked, chunks)
        except BusyError:
            return _answer(429, "the agent writes as many segments as it can")
        except RemoteError as error:
            return _answer(409, str(error))
        except CorruptError as error:
            return _answer(400, str(error))
        except (StoreError, TimeoutError) as error:
            return _answer(503, str(error) or "a request took too long")
        return web.Response(body=written, content_type="application/json")

    async def _chunks(
        self, body: StreamReader, asked: SegmentRequest
    ) -> AsyncIterator[list[Buffer]]:
        """The batches that come, up to the empty frame."""
        next_offset = asked.named.base
        while content := await _frame(body, self._frame_bytes):
            batches, next_offset = batches_from(content, asked.named, next_offset)
            yield batches


async def _frame(body: StreamReader, most_bytes: int) -> bytes:
    """The content of the next frame.

    Raises:
        CorruptError: it is larger than *most_bytes*.
        UnavailableError, TimeoutError: the leader is gone, or silent.
    """
    try:
        async with asyncio.timeout(SILENT_S):
            size = int.from_bytes(await body.readexactly(LENGTH_BYTES), "big")
            if size > most_bytes:
                raise CorruptError(f"a frame of {size} bytes; at most {most_bytes} are read")
            return await body.readexactly(size)
    except (EOFError, ConnectionError, ClientError) as error:
        raise UnavailableError(f"the leader sent no more: {error or repr(error)}") from error


def _answer(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
