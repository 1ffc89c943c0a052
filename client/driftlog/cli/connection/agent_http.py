"""Requests to the HTTP port of agents.

What answers need not be an agent: an answer has 16 MiB and one deadline at most, and text of it is
escaped before it is shown.

Shell.
"""

import http.client
import json
import socket
import threading
from contextlib import closing, suppress
from typing import Any, Final

from driftlog.cli.common.errors import CommandError
from driftlog_agents.process_log.escapes import OWN_CHARACTERS, escaped

_MOST_BYTES: Final = 16 * 1024**2
"""Of an answer; `/metrics` of many partitions is the largest."""

_FIRST_ERROR: Final = 300
"""Of the statuses; redirections are none of an agent."""

_CHANGE_HEADERS: Final = {"Content-Type": "application/json", "X-Driftlog": "cli"}
"""Headers of a POST: an agent refuses requests that a web page can send."""


class Refusal(CommandError):
    """An agent's error response.

    Attributes:
        code: the HTTP status.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def get(address: str, path: str, timeout_s: float) -> dict[str, Any]:
    """GET *path*.

    Raises:
        Refusal: the agent refuses.
        CommandError: the agent does not answer.
    """
    return _ask(address, path, None, timeout_s)


def get_text(address: str, path: str, timeout_s: float) -> str:
    """GET *path*, which is no JSON; raises as `get`."""
    return _answer(address, path, None, timeout_s).decode(errors="replace")


def post(address: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """POST *body* to *path*; raises as `get`."""
    return _ask(address, path, json.dumps(body).encode(), timeout_s)


def _ask(address: str, path: str, body: bytes | None, timeout_s: float) -> dict[str, Any]:
    answer = _answer(address, path, body, timeout_s)
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CommandError(f"{address}: the answer is no JSON object: is it an agent's HTTP port?")
    return found


def _answer(address: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
    late = threading.Event()
    try:
        with closing(http.client.HTTPConnection(address, timeout=timeout_s)) as connection:
            connection.connect()
            deadline = threading.Timer(timeout_s, _give_up, (connection.sock, late))
            deadline.start()
            try:
                method, headers = ("GET", {}) if body is None else ("POST", _CHANGE_HEADERS)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                answer = response.read(_MOST_BYTES + 1)
            finally:
                deadline.cancel()
        if late.is_set():
            raise TimeoutError
    except (OSError, http.client.HTTPException) as error:
        why = f"no answer in {timeout_s:g} s" if late.is_set() else str(error) or repr(error)
        why = escaped(why, OWN_CHARACTERS)
        raise CommandError(f"the agent does not answer at {address}: {why}") from error
    if len(answer) > _MOST_BYTES:
        raise CommandError(f"{address}: an answer of more than {_MOST_BYTES >> 20} MiB")
    if response.status < _FIRST_ERROR:
        return answer
    try:
        message = json.loads(answer)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        said = f"HTTP Error {response.status}: {response.reason}"
        message = f"{address}: {said} (an agent of an older version?)"
    raise Refusal(response.status, escaped(str(message), OWN_CHARACTERS))


def _give_up(connected: socket.socket, late: threading.Event) -> None:
    """Ends a read that waits, whatever the agent sends meanwhile."""
    late.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
