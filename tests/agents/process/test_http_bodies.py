"""No body that a client sends to the HTTP port keeps the event loop from others."""

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientSession

from driftlog_agents.foundation.loop_slices import measure_by
from driftlog_agents.network.listeners import take
from driftlog_agents.process import http_bodies
from driftlog_agents.process.http_api import HttpApi
from tests.agents.network.serving import Serving

NOT_OURS = "the request is none of this release"
"""What a JSON object that has nothing of an import is answered."""


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """An agent's HTTP port."""
    async with Serving(tmp_path) as agent:
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        yield sockets[0].getsockname()[1]
        await http.stop()


async def posted(port: int, body: bytes, path: str = "/imports", **headers: str) -> tuple[int, str]:
    """The status and the text of the answer to *body*."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        ClientSession(headers={"X-Driftlog": "test", **named}) as session,
        session.post(f"http://127.0.0.1:{port}{path}", data=body) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize("charset", ["utf-8", "no-such", "zlib", "punycode", "utf-32", "undefined"])
async def test_a_body_is_utf_8_whatever_its_header_says(
    port: int, charset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The client chose the codec: punycode took 50 s for a MB, and an unknown one was a bug.
    """
    content_type = f"application/json; charset={charset}"

    status, text = await posted(port, '{"é": 1}'.encode(), Content_Type=content_type)
    bad, said = await posted(port, b'{"\xe9": 1}', Content_Type=content_type)

    assert (400, True) == (status, NOT_OURS in text)
    assert (400, True) == (bad, "not JSON in UTF-8" in said)
    assert [] == [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("path", ["/imports", "/segments", "/topics/t/seal", "/nothing"])
async def test_a_compressed_body_is_refused_unread(port: int, path: str) -> None:
    """
    A MB of gzip became a GiB, on the event loop.
    """
    body = gzip.compress(bytes(1024))

    answered = [
        await posted(port, body, path, Content_Encoding=encoding)
        for encoding in ("gzip", "DEFLATE", "zstd", "no-such")
    ]

    assert [(415, True)] * 4 == [(status, "compressed" in text) for status, text in answered]


async def test_a_body_has_as_many_values_as_the_largest_import(port: int) -> None:
    """
    The ends of 10,000 partitions are read; three times as many values are not.
    """
    publish = f"/imports/{uuid4()}/publish"
    largest = json.dumps({"topic": "t" * 249, "ends": [2**63 - 1] * 10_000}).encode()
    larger = json.dumps({"topic": "t", "ends": [1] * http_bodies.MOST_VALUES}).encode()

    assert (404, True) == _in(await posted(port, largest, publish), "there is no import")
    assert (400, True) == _in(await posted(port, larger, publish), "30000 values")
    assert (413, True) == _in(await posted(port, b" " * (1024**2 + 1)), "1048576 bytes")


@pytest.mark.parametrize("number", ["9" * 21, "1.5", "1e9", "-" + "9" * 4_000])
async def test_a_body_has_no_numbers_that_take_long(port: int, number: str) -> None:
    """
    Those that are longer than 64 bits, and fractions, are in no request.
    """
    answered = await posted(port, f'{{"topic": "t", "ends": [{number}]}}'.encode())

    assert (400, True) == _in(answered, "not JSON")


async def test_one_body_is_parsed_in_an_iteration(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Sixty at once kept the event loop for the sum of their times.
    """
    loop, turns, parsed = asyncio.get_running_loop(), itertools.count(), list[int]()
    clock_s = itertools.count()
    measure_by(loop, lambda: float(next(clock_s)))  # each slice is used up at once
    now, loads = 0, json.loads

    def turn() -> None:
        nonlocal now
        now = next(turns)
        loop.call_soon(turn)

    def seen(*args: Any, **options: Any) -> Any:
        parsed.append(now)
        return loads(*args, **options)

    monkeypatch.setattr(json, "loads", seen)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _, writer in clients:
        writer.write(
            b"POST /imports HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Driftlog: 1\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
    loop.call_soon(turn)
    for reader, writer in clients:
        assert b"HTTP/1.1 400 Bad Request\r\n" == await reader.readline()
        writer.close()

    assert 20 == len(set(parsed))


async def test_a_long_name_is_not_repeated_in_full(port: int) -> None:
    """
    A name of a MiB was an answer of a MiB.
    """
    body = json.dumps({"topic": "\x1b" * 100_000, "partitions": 1, "configs": {}}).encode()

    status, text = await posted(port, body)

    assert (400, True) == (status, len(text) < 3_000)
    assert "\x1b" not in json.loads(text)["error"]


async def test_a_client_that_hangs_up_is_no_error(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Each one was logged with a traceback.
    """
    for path in ("/imports", "/topics/t/0/loss"):
        for length in ("Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Driftlog: 1\r\n{length}"
            writer.write(head.encode())
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.transport.abort()
    assert (400, True) == _in(await posted(port, b"{}"), NOT_OURS)

    assert [] == [record for record in caplog.records if record.exc_info]


def _in(answered: tuple[int, str], said: str) -> tuple[int, bool]:
    return answered[0], said in answered[1]
