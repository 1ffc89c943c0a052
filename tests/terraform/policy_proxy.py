"""An S3 server that allows only what a policy of IAM allows, in front of one that allows all.

    agent ──▶ PolicyProxy: which action, on which ARN? ──allowed──▶ moto
                              └──────────── not allowed ──▶ 403 AccessDenied

moto enforces policies, but takes the condition keys of no statement, and its key pairs are those of
users.  A request that stands for no known action is refused.

Shell.
"""

import asyncio
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, web

_MOST_BYTES = 256 << 20
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "expect", "content-length"}


def allowed(policy: Mapping[str, Any], action: str, arn: str) -> bool:
    """Whether a statement of *policy* allows *action* on *arn*; there is no Deny in it."""
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert "Condition" not in statement
        actions, arns = _list(statement["Action"]), _list(statement["Resource"])
        if action in actions and any(fnmatchcase(arn, pattern) for pattern in arns):
            return True
    return False


def asked(method: str, path: str, query: Mapping[str, str], body: bytes) -> list[tuple[str, str]]:
    """Actions and ARNs that a request to S3 stands for; none: it is no request that is known."""
    bucket, _, key = path.lstrip("/").partition("/")
    arn = f"arn:aws:s3:::{bucket}"
    if method == "POST" and not key and "delete" in query:
        keys = re.findall(rb"<Key>([^<]+)</Key>", body)
        return [("s3:DeleteObject", f"{arn}/{found.decode()}") for found in keys]
    if method == "GET" and not key and query.get("list-type") == "2":
        return [("s3:ListBucket", arn)]
    if key and not (query.keys() - {"x-id"}):
        name = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject"}.get(method)
        return [(f"s3:{name}", f"{arn}/{key}")] if name else []
    return []


class PolicyProxy:
    """A server on a free port of 127.0.0.1, in a thread.  A context manager."""

    def __init__(self, target: str, policy: Mapping[str, Any]) -> None:
        self._target = target
        self._policy = policy
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self.url = ""
        self.used: set[str] = set()
        """Actions that were allowed."""
        self.refused: list[str] = []
        """Requests that were not."""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        application = web.Application(client_max_size=_MOST_BYTES)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        jar, timeout = DummyCookieJar(), ClientTimeout(total=60)
        async with ClientSession(
            cookie_jar=jar, timeout=timeout, auto_decompress=False
        ) as self._session:
            self._started.set()
            await self._stopping.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        wanted = asked(request.method, request.path, request.query, body)
        if not wanted or not all(allowed(self._policy, *each) for each in wanted):
            self.refused.append(f"{request.method} {request.path_qs}")
            denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            return web.Response(status=403, text=denied, content_type="application/xml")
        self.used.update(action for action, _ in wanted)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        url = self._target + request.raw_path
        async with self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            content = await answer.read()
            kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP]
            if request.method == "HEAD" and "Content-Length" in answer.headers:
                kept.append(("Content-Length", answer.headers["Content-Length"]))
            return web.Response(status=answer.status, body=content, headers=_multi(kept))


def _multi(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    return dict(pairs)


def _list(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
