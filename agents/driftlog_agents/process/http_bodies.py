"""JSON bodies of requests to the HTTP port, and the port's error answers.

    body ──▶ over 1 MiB, or not here in 10 s ──▶ 413, 408; its connection makes room meanwhile
         ──▶ waits for a slice of the event loop: one body in an iteration
         ──▶ over 30,000 values ──▶ 400; else it is parsed

JSON is parsed on the event loop, as Python's parser does not let other threads run.  Its time grows
with the values, and with the digits of a number, hence both are limited: the slowest body takes
8 ms, where a MiB of small values took 130.  The largest bodies of clients are the ends of 10,000
partitions (215 KB), and the loss of a partition's segments (five values and 300 bytes for each).

The bytes are UTF-8, whatever ``Content-Type`` says: some of Python's codecs take minutes for a MiB.

Shell.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import ClientError, web
from aiohttp.http import HttpProcessingError

from driftlog_agents.foundation.loop_slices import time_to_work
from driftlog_agents.process.http_guard import makes_room
from driftlog_agents.process_log.escapes import OWN_CHARACTERS, escaped

MOST_BYTES: Final = 1024**2
"""Of a body."""

MOST_VALUES: Final = 30_000
"""Of a body, counted as the characters that begin or separate them."""

_SEPARATORS: Final = (b"[", b"{", b",", b":")

_DIGITS: Final = 20
"""Of an int64 with its sign."""

_BODY_S: Final = 10.0


async def json_object(request: web.Request) -> dict[str, Any] | web.Response:
    """The JSON object that a client sent, or the answer to it."""
    try:
        async with asyncio.timeout(_BODY_S):
            with makes_room(request):
                body = await request.read()
    except TimeoutError:
        return error_answer(408, "the body did not come")
    except web.HTTPRequestEntityTooLarge:
        return error_answer(413, f"the body has more than {MOST_BYTES} bytes")
    except (ConnectionError, ClientError, HttpProcessingError, web.RequestPayloadError):
        return error_answer(400, "the body ended early")
    await time_to_work()
    if sum(map(body.count, _SEPARATORS)) > MOST_VALUES:
        return error_answer(400, f"the body has more than {MOST_VALUES} values")
    try:
        found = json.loads(body.decode(), parse_int=_integer, parse_float=_fraction)
    except ValueError:
        return error_answer(400, "the body is not JSON in UTF-8, of numbers of 64 bits")
    except RecursionError:
        return error_answer(400, "the body is nested too deeply")
    return found if isinstance(found, dict) else error_answer(400, "the body is no JSON object")


def error_answer(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """The answer to a request that fails; *message* may contain what the client sent."""
    text = escaped(message, OWN_CHARACTERS)
    return web.json_response({"error": text}, status=status, headers=headers)


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError("a long number")
    return int(digits)


def _fraction(_: str) -> float:
    raise ValueError("no body has a fraction")
