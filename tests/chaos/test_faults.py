"""Links and S3's troubles do what their names say, between real sockets."""

import asyncio
import gc
import http.client
import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from tests.support.links import Link, Network
from tests.support.s3_faults import S3Faults, S3Trouble

SOON_S = 0.2
"""What does not come within this time does not come; a busy machine makes no test fail by it."""


@pytest.fixture
def network() -> Iterator[Network]:
    """A thread for proxies."""
    with Network() as running:
        yield running


# ── Links ──


class Ends:
    """A link, and what has a socket on both of its ends."""

    def __init__(self, network: Network) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.link: Link = network.link(self._listening.getsockname()[1])
        self.client = socket.create_connection(("127.0.0.1", self.link.port), 10)
        self.server = self._listening.accept()[0]
        for end in (self.client, self.server):
            end.settimeout(10)

    def close(self) -> None:
        for end in (self.client, self.server, self._listening):
            end.close()


@pytest.fixture
def ends(network: Network) -> Iterator[Ends]:
    """A connection through a link that passes."""
    made = Ends(network)
    yield made
    made.close()


def arrives(there: socket.socket) -> bytes:
    """What comes soon; nothing if nothing does."""
    there.settimeout(SOON_S)
    try:
        return there.recv(100)
    except TimeoutError:
        return b""
    finally:
        there.settimeout(10)


def test_a_link_passes_bytes_both_ways_and_the_end(ends: Ends) -> None:
    """
    As if it were not there.
    """
    ends.client.sendall(b"question")
    assert b"question" == ends.server.recv(100)
    ends.server.sendall(b"answer")
    assert b"answer" == ends.client.recv(100)
    ends.client.shutdown(socket.SHUT_WR)
    assert b"" == ends.server.recv(100)
    ends.server.sendall(b"more")
    assert b"more" == ends.client.recv(100)


def test_a_link_that_refuses_resets_what_is_open_and_what_comes(ends: Ends) -> None:
    """
    Both ends are told.
    """
    ends.link.set("refuse")

    with pytest.raises(ConnectionResetError):
        ends.client.recv(100)
    with pytest.raises(ConnectionResetError):
        ends.server.recv(100)
    with pytest.raises(ConnectionResetError):
        socket.create_connection(("127.0.0.1", ends.link.port), 10).recv(100)


def test_a_stall_of_requests_lets_answers_through(ends: Ends) -> None:
    """
    And what was asked arrives, whole, when it is over.
    """
    ends.link.set("stall_requests")
    ends.client.sendall(b"question")
    ends.server.sendall(b"answer")

    assert b"answer" == ends.client.recv(100)
    assert b"" == arrives(ends.server)
    ends.link.set("pass")
    assert b"question" == ends.server.recv(100)


def test_a_stall_of_answers_lets_requests_through(ends: Ends) -> None:
    """
    What is asked happens; here nobody ever learns what came of it.
    """
    ends.link.set("stall_answers")
    ends.client.sendall(b"question")
    ends.server.sendall(b"answer")

    assert b"question" == ends.server.recv(100)
    assert b"" == arrives(ends.client)
    ends.link.set("pass", deliver_late=False)
    with pytest.raises(ConnectionResetError):
        ends.client.recv(100)


def test_a_stall_holds_the_end_of_a_connection_too(ends: Ends) -> None:
    """
    Neither side learns that the other one has gone.
    """
    ends.link.set("stall")
    ends.client.close()
    ends.server.settimeout(SOON_S)
    with pytest.raises(TimeoutError):
        ends.server.recv(100)
    ends.server.settimeout(10)

    ends.link.set("pass")

    assert b"" == ends.server.recv(100)


# ── S3 ──


class Counting(http.server.BaseHTTPRequestHandler):
    """A server that remembers the bodies that it was given, and answers with its own."""

    protocol_version = "HTTP/1.1"
    acted: ClassVar[list[bytes]]

    def do_PUT(self) -> None:
        self.acted.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")

    def do_GET(self) -> None:
        self.acted.append(b"")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # its name
        """It says nothing."""


class Asked:
    """A server behind the faults."""

    def __init__(self, network: Network) -> None:
        class Handler(Counting):
            acted: ClassVar[list[bytes]] = []

        self.acted = Handler.acted
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.faults = S3Faults(network, self.server.server_address[1], seed=1)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.faults.port, timeout=10)

    def put(self) -> tuple[int, bytes]:
        self.connection.request("PUT", "/bucket/key", b"body")
        answer = self.connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def asked(network: Network) -> Iterator[Asked]:
    """A server, behind faults that are not set yet."""
    made = Asked(network)
    yield made
    made.connection.close()
    made.server.shutdown()
    made.server.server_close()


def test_requests_pass_one_after_the_other_on_one_connection(asked: Asked) -> None:
    """
    With bodies of a length, and in chunks.
    """
    assert [(200, b"done")] * 2 == [asked.put(), asked.put()]
    asked.connection.request("GET", "/bucket/key")
    assert b"abcde" == asked.connection.getresponse().read()
    assert [b"body", b"body", b""] == asked.acted


def test_a_throttled_request_does_not_act_and_the_next_one_does(asked: Asked) -> None:
    """
    503 SlowDown, as S3 says it, and the connection stays.
    """
    asked.faults.set(S3Trouble(throttle=1))
    status, body = asked.put()
    asked.faults.set(S3Trouble())

    assert 503 == status
    assert b"<Code>SlowDown</Code>" in body
    assert [] == asked.acted
    assert (200, b"done") == asked.put()


@pytest.mark.parametrize(
    "trouble, acted",
    [
        pytest.param(S3Trouble(reset_before=1), [], id="before"),
        pytest.param(S3Trouble(reset_after=1), [b"body"], id="after"),
    ],
)
def test_a_reset_comes_before_or_after_the_request_acted(
    asked: Asked, trouble: S3Trouble, acted: list[bytes]
) -> None:
    """
    The client cannot tell which.
    """
    asked.faults.set(trouble)

    with pytest.raises(ConnectionResetError):
        asked.put()

    assert acted == asked.acted


def test_a_lost_answer_is_of_a_request_that_acted(asked: Asked) -> None:
    """
    Nothing comes; the client gives up.
    """
    asked.faults.set(S3Trouble(lose_answer=1))
    asked.connection.timeout = 1

    with pytest.raises(TimeoutError):
        asked.put()

    assert [b"body"] == asked.acted


def test_a_slow_request_waits_and_is_answered(asked: Asked) -> None:
    """
    As long as was said.
    """
    asked.faults.set(S3Trouble(delay_ms=(200, 201)))
    began = time.monotonic()

    assert (200, b"done") == asked.put()
    assert time.monotonic() - began >= 0.2
    assert {"passed": 1} == asked.faults.done


def test_a_request_goes_on_when_its_client_has_gone(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Whatever the garbage collector thinks of who waits for the server and has nobody to tell.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        faults = S3Faults(network, listening.getsockname()[1], seed=1)
        gc.collect()  # what other tests have lost is told now
        caplog.clear()
        client = socket.create_connection(("127.0.0.1", faults.port), 10)
        client.sendall(b"PUT /bucket/key HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
        server = listening.accept()[0]
        server.settimeout(10)
        taken = b""
        while not taken.endswith(b"\r\n\r\nbody"):
            taken += server.recv(1000)
        reset_now(client)
        time.sleep(SOON_S)
        for _ in range(3):
            network.call(collect())
        server.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert b"" == server.recv(100)  # it was read, and hung up on
        server.close()

    assert [] == caplog.messages
    assert {"passed": 1} == faults.done


def test_the_end_of_a_network_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """
    What is still served then is nobody's error.
    """
    with Network() as network, socket.create_server(("127.0.0.1", 0)) as listening:
        link = network.link(listening.getsockname()[1])
        client = socket.create_connection(("127.0.0.1", link.port), 10)
        server = listening.accept()[0]

    client.close()
    server.close()
    assert [] == caplog.messages


def reset_now(client: socket.socket) -> None:
    """Close it with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def collect() -> None:
    """The garbage, on the loop's thread."""
    gc.collect()
    await asyncio.sleep(0.01)
