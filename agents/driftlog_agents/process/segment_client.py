"""A leader's requests for segments to agents with the role ``seal``, over HTTP.

    POST /segments, Expect: 100-continue ──▶ 429: it has enough to do, and nothing is sent
    frames of batches, as they are read  ──▶ the reference of the segment

The client gives up when the other agent is silent; a connection serves one request.

Shell.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web

from driftlog_agents.log.segments.remote_segments import ended
from driftlog_agents.log.segments.segment_request import (
    END,
    BusyError,
    RemoteError,
    SegmentRequest,
    UndecodableError,
    encode_request,
    frame,
)
from driftlog_agents.process.http_guard import CHANGE_HEADER
from driftlog_agents.process.segment_http import PATH, SILENT_S
from driftlog_metadata.schema.model import Agent
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.transfer_time import transfer_s

_CONNECT_S: Final = 3.0
_ANSWER_BYTES: Final = 64 * 1024


class HttpSegmentTransport:
    """A `SegmentTransport` to the HTTP ports of other agents.

    Args:
        silent_s: how long the leader waits for the other agent.
    """

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s

    async def write(
        self, agent: Agent, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]
    ) -> Buffer:
        """As `SegmentTransport.write`."""
        ahead: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        try:
            async with asyncio.timeout(None) as deadline:
                reading = asyncio.create_task(self._read(request, chunks, ahead, deadline))
                try:
                    return await _post(f"http://{agent.http_address}{PATH}", ahead)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    if reading.done() and (failure := reading.exception()) is not None:
                        raise failure from None
                    raise RemoteError(str(error) or repr(error)) from error
                finally:
                    await ended(reading)
        except TimeoutError as error:
            if not deadline.expired():
                raise  # of the chunks
            raise RemoteError("it is silent") from error

    async def _read(
        self,
        request: SegmentRequest,
        chunks: AsyncIterator[list[Buffer]],
        ahead: asyncio.Queue[bytes | None],
        deadline: asyncio.Timeout,
    ) -> None:
        """Puts the frames of a request into *ahead*; None: the chunks failed.  The *deadline* is
        that of the frame that is sent."""
        now_s = asyncio.get_running_loop().time

        async def send(content: bytes | None) -> None:
            deadline.reschedule(now_s() + self._silent_s)
            await ahead.put(content)

        await send(b"".join(frame([encode_request(request)])))
        sent_bytes = 0
        try:
            deadline.reschedule(None)  # while the leader reads, it waits for itself
            async for batches in chunks:
                content = b"".join(frame(batches))
                await send(content)
                sent_bytes += len(content)
                deadline.reschedule(None)
        except Exception:
            await send(None)
            raise
        await send(END)
        # The other agent uploads the segment (`range_segments`).
        deadline.reschedule(now_s() + self._silent_s + transfer_s(sent_bytes))


async def _post(url: str, ahead: asyncio.Queue[bytes | None]) -> bytes:
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)
    headers = {CHANGE_HEADER: "segments", "Content-Type": "application/octet-stream"}
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), timeout=timeout, headers=headers
        ) as session,
        session.post(url, data=_frames(ahead), expect100=True) as response,
    ):
        answer = bytearray()
        async for part in response.content.iter_any():
            answer += part
            if len(answer) > _ANSWER_BYTES:
                raise RemoteError(f"{response.status}: more than {_ANSWER_BYTES} bytes")
        if response.status == web.HTTPTooManyRequests.status_code:
            raise BusyError
        if response.status == web.HTTPUnprocessableEntity.status_code:
            raise UndecodableError
        if response.status != web.HTTPOk.status_code:
            raise RemoteError(f"{response.status}: {answer[:500].decode(errors='replace')}")
        return bytes(answer)


async def _frames(ahead: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
    """The request's body."""
    while (content := await ahead.get()) != END:
        if content is None:
            raise ValueError("the range cannot be read")
        yield content
    yield END
