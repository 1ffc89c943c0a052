"""Requests to the HTTP port of agents.

Shell.
"""

import json
import urllib.error
import urllib.request
from typing import Any, Final

from driftlog.cli.common.errors import CommandError

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
    return _answer(address, urllib.request.Request(f"http://{address}{path}"), timeout_s).decode()


def post(address: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """POST *body* to *path*; raises as `get`."""
    return _ask(address, path, json.dumps(body).encode(), timeout_s)


def _ask(address: str, path: str, body: bytes | None, timeout_s: float) -> dict[str, Any]:
    headers = {} if body is None else _CHANGE_HEADERS
    request = urllib.request.Request(f"http://{address}{path}", body, headers)
    found: dict[str, Any] = json.loads(_answer(address, request, timeout_s))
    return found


def _answer(address: str, request: urllib.request.Request, timeout_s: float) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        try:
            message = json.load(error).get("error", str(error))
        except ValueError:
            message = f"{address}: {error} (an agent of an older version?)"
        raise Refusal(error.code, message) from error
    except OSError as error:
        raise CommandError(f"the agent does not answer at {address}: {error}") from error
