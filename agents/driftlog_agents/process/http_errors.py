"""What the HTTP port does with headers and errors that aiohttp would tell in a traceback.

    Expect: 100-continue ──▶ 100; the handler works
    Expect: other        ──▶ 417
    error in a handler   ──▶ 500; a line of the log that names the client, and of each type of
                             error one traceback a minute

Shell.
"""

import logging
from collections.abc import Callable
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.http import HttpProcessingError

from driftlog_agents.process.http_bodies import error_answer

LOGGER: Final = "aiohttp.server"

_TRACEBACK_MS: Final = 60_000.0

_HANDLING: Final = "Error handling request from %s"
"""aiohttp's message, with the client's address (RequestHandler#handle_error)."""


async def expected(request: web.Request) -> web.Response | None:
    """Answer the header ``Expect``; None: the handler of *request* goes on.

    aiohttp's own repeats the header in its answer, and fails where that is not UTF-8.
    """
    if request.version != HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        return error_answer(417, "this port knows Expect: 100-continue, and no other")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


class ServerErrors(logging.Filter):
    """Filters what aiohttp's server logs.

    It drops the traceback of each client that does not speak HTTP/1, such as etcd's.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._told_ms: dict[type, float] = {}
        """When the last traceback of a type of error was logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* is logged; it gets the client's address, and may lose its traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            return False
        if record.msg != _HANDLING or not isinstance(record.args, tuple) or error is None:
            return True
        (record.client,) = record.args
        record.msg, record.args = f"{_HANDLING}: %r", (*record.args, error)
        now_ms, kind = self._now_ms(), type(error)
        if now_ms - self._told_ms.get(kind, -_TRACEBACK_MS) < _TRACEBACK_MS:
            record.exc_info = None
        else:
            self._told_ms[kind] = now_ms
        return True
