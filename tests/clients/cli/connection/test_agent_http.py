"""What answers at an agent's address may be anything: the command ends, small and with one line."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from driftlog.cli.common.errors import CommandError
from driftlog.cli.connection import agent_http
from driftlog.cli.connection.agent_http import Refusal

Answer = Callable[[socket.socket], None]
"""What a server does with a connection after the request has come."""


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers each request so, until the client is gone."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client, suppress(OSError):
                    client.recv(65536)
                    answer(client)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def saying(status: str, body: bytes) -> Answer:
    """One answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def answer(client: socket.socket) -> None:
        client.sendall(head + body)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass

    return answer


def endless(head: bytes, rest: bytes, pause_s: float) -> Answer:
    """*head*, and *rest* again and again."""
    over = threading.Event()

    def answer(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(rest)
            over.wait(pause_s)

    return answer


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 503 No\r\n\r\n"],
    ids=("header", "body", "body of an error"),
)
def test_an_answer_that_drips_has_one_deadline(head: bytes) -> None:
    """
    Each byte came in time, so that the command waited for ever.
    """
    with (
        served(endless(head, b"[", 0.05)) as address,
        pytest.raises(CommandError, match=f"does not answer at {address}: no answer in 0.5 s"),
    ):
        agent_http.get(address, "/x", 0.5)


@pytest.mark.parametrize("status", ["200 OK", "503 No"])
def test_an_answer_that_does_not_end_is_not_kept(status: str) -> None:
    """
    Of more than 16 MiB the first are read.
    """
    head = f"HTTP/1.1 {status}\r\n\r\n".encode()
    with (
        served(endless(head, bytes(1024**2), 0.0)) as address,
        pytest.raises(CommandError, match="an answer of more than 16 MiB"),
    ):
        agent_http.get(address, "/x", 60.0)


@pytest.mark.parametrize("body", [b"[" * 200_000, b"\xff", b"[1]", b'"x"', b""], ids=range(5))
@pytest.mark.parametrize("status", ["200 OK", "503 No", "302 Found"])
def test_an_answer_that_is_no_json_object_fails_in_a_line(status: str, body: bytes) -> None:
    """
    Whatever it is.
    """
    with served(saying(status, body)) as address, pytest.raises(CommandError) as failed:
        agent_http.post(address, "/x", {}, 60.0)

    assert str(failed.value).startswith(address)
    assert status.startswith("200") != isinstance(failed.value, Refusal)


def test_an_answer_does_not_steer_the_terminal() -> None:
    """
    Nor does it forge a line.
    """
    body = b'{"error": "\\u001b[31mEVIL\\u001b]0;title\\u0007\\nok"}'
    with served(saying("503 No", body)) as address, pytest.raises(Refusal) as refused:
        agent_http.get(address, "/x", 60.0)
    answer: Answer = lambda client: client.sendall(b"\x1b[31m\r\n")  # noqa: E731
    with served(answer) as address, pytest.raises(CommandError) as failed:
        agent_http.get(address, "/x", 60.0)

    assert (503, r"\x1b[31mEVIL\x1b]0;title\x07\nok") == (refused.value.code, str(refused.value))
    assert str(failed.value).isprintable()


@pytest.mark.parametrize("address", ["localhost:http", "[::1", "127.0.0.1:1"])
def test_an_address_at_which_nobody_can_be_asked_is_named(address: str) -> None:
    """
    In a line.
    """
    with pytest.raises(CommandError, match="does not answer at"):
        agent_http.get_text(address, "/metrics", 20.0)
