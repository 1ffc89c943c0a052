"""A client's headers cost no traceback in the log, and an error of the agent's is told once."""

import asyncio
import logging
from pathlib import Path

import pytest

from driftlog_agents.process.http_errors import LOGGER, ServerErrors
from tests.agents.network.serving import Serving
from tests.agents.process.test_http_api import http_of


async def said(http: str, request: bytes) -> bytes:
    """The port's first bytes to *request*."""
    host, _, port = http.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(10):
        answer = await reader.read(1_000)
        if answer == b"HTTP/1.1 100 Continue\r\n\r\n":
            answer += await reader.read(1_000)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nExpect: 100-c\x8cntinue\r\n\r\n", b"HTTP/1.1 417 "),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", b"HTTP/1.1 417 "),
        (b"GET /healthz HTTP/1.0\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", b"HTTP/1.0 200 "),
        (
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ",
        ),
    ],
    ids=("not UTF-8", "unknown", "HTTP/1.0", "continue"),
)
async def test_what_a_client_expects_is_answered_without_a_traceback(
    tmp_path: Path, request_: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """
    aiohttp repeats the header; where it is not UTF-8 that failed, with twenty lines of log.
    """
    async with Serving(tmp_path) as agent, http_of(agent) as http:
        assert answer == (await said(http, request_))[: len(answer)]
    assert [] == [record for record in caplog.records if record.name == LOGGER]


async def test_what_fails_before_a_handler_names_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    aiohttp itself answers an unknown path.
    """
    request = b"GET /nothing HTTP/1.1\r\nHost: a\r\nExpect: 100-c\x8cntinue\r\n\r\n"
    async with Serving(tmp_path) as agent, http_of(agent) as http:
        for _ in range(3):
            assert (await said(http, request)).startswith(b"HTTP/1.1 500 ")
    records = [record for record in caplog.records if record.name == LOGGER]
    assert ["127.0.0.1"] * 3 == [record.__dict__["client"] for record in records]
    assert [True, False, False] == [bool(record.exc_info) for record in records]
    assert "UnicodeEncodeError" in records[2].getMessage()


def test_an_error_keeps_one_traceback_a_minute_of_its_type() -> None:
    """
    So that one that a client provokes hides no other.
    """
    now_ms = 0.0
    errors = ServerErrors(lambda: now_ms)

    def told(error: Exception) -> bool:
        record = logging.LogRecord(
            LOGGER,
            logging.ERROR,
            __file__,
            1,
            "Error handling request from %s",
            ("10.0.0.1",),
            (type(error), error, None),
        )
        assert errors.filter(record)
        assert f"Error handling request from 10.0.0.1: {error!r}" == record.getMessage()
        return bool(record.exc_info)

    found = [told(KeyError(1)), told(KeyError(2)), told(ValueError(3))]
    now_ms = 59_999.0
    found.append(told(KeyError(4)))
    now_ms = 60_000.0
    found.append(told(KeyError(5)))
    assert [True, False, True, False, True] == found
