"""Clients of the HTTP port that are many, slow, or sent by a web page.

Shell.
"""

import contextlib
import http.client
import json
import resource
import select
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from benchmarks.batches import encode_batch
from driftlog_agents.configs.limits import Limits
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.segment_request import (
    MOST_CHUNK_BYTES,
    SegmentRequest,
    encode_request,
    frame,
)
from driftlog_agents.log.segments.write_turns import AT_ONCE
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.metadata import MetadataRequest
from driftlog_metadata.schema.model import TopicPartition
from tests.attack.attacks import Attack, Budget, Target
from tests.attack.state import VICTIM
from tests.attack.wire import GONE, HOSTILE_ADDRESS

_FILES: Final = 4_096
"""Of the agent: enough for it and some crowds, and not for all that come."""
_IDLE: Final = 2_000
_CLOSED_S: Final = 30.0
_HEADERS_S: Final = 120.0
"""Longer than any time-out of headers that makes sense."""
_SILENCE_S: Final = 10.0


def _address(target: Target) -> tuple[str, int]:
    url = urlsplit(target.agent.http)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def _opened(target: Target, size: int, say: bytes = b"") -> Iterator[socket.socket]:
    for _ in range(size):
        target.sent += 1
        try:
            one = socket.create_connection(_address(target), 2, (HOSTILE_ADDRESS, 0))
            if say:
                one.send(say)
        except OSError:
            return
        yield one


def _still_open(sockets: list[socket.socket]) -> int:
    """How many the agent has not closed: nothing can be read from those."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN | select.POLLHUP)
    return len(sockets) - len(poll.poll(0))


class HttpIdle(Attack):
    """2,000 idle connections to the HTTP port and 2,000 to Kafka's, of an agent that may have 4,096
    files."""

    name = "http-idle"
    item = "10"
    budget = Budget.CROWD
    prefix = ("sh", "-c", f'ulimit -n {_FILES}; exec "$@"', "sh")

    def run(self, target: Target) -> None:
        """The store, the disk and healthy clients must have files left."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(each) for each in _opened(target, _IDLE)]
            most = 2 * Limits().driftlog_http_max_connections
            until = time.monotonic() + _CLOSED_S
            while (still := _still_open(idle)) > most and time.monotonic() < until:
                time.sleep(0.1)
            if still > most:
                target.fail(f"{still:,} idle connections to the HTTP port are kept")
            stack.enter_context(target.crowd(_IDLE, timeout_s=2))
            time.sleep(max(_SILENCE_S, min(20.0, target.seconds)))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class HttpSlowHeaders(Attack):
    """As many connections to the HTTP port as it takes, which send a header a byte at a time."""

    name = "http-slow-headers"
    item = "10"

    def run(self, target: Target) -> None:
        """A supervisor that asks /healthz gets its answer before long."""
        size = Limits().driftlog_http_max_connections
        with contextlib.ExitStack() as stack:
            slow = [
                stack.enter_context(each)
                for each in _opened(target, size, b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            ]
            until = time.monotonic() + _HEADERS_S
            while time.monotonic() < until and target.agent.is_alive():
                for each in slow:
                    with contextlib.suppress(OSError):
                        each.send(b"x")
                if _status(target, "GET", "/healthz", {}) == 200:
                    return
                time.sleep(1)
        target.fail(f"/healthz did not answer for {_HEADERS_S:.0f} s")


class HttpForeign(Attack):
    """Requests that a web page makes a browser send: a foreign Origin, or a foreign Host that its
    DNS sends here."""

    name = "http-foreign"
    item = "10"

    def run(self, target: Target) -> None:
        """None of them may do or tell anything; a monitor may read under any name."""
        seal, ours = f"/topics/{VICTIM}/seal", {"X-Driftlog": "test"}
        foreign = {"Origin": "http://evil.example"}
        rebound = {"Host": "evil.example"}
        neighbour = {"Origin": "http://127.0.0.1:8000"}
        for method, path, headers in (
            ("POST", seal, foreign | ours),
            ("POST", seal, rebound | ours),
            ("POST", seal, neighbour),
            ("POST", seal, {"Content-Type": "application/x-www-form-urlencoded"}),
            ("GET", "/partitions/offline", rebound),
            ("GET", "/partitions/offline", foreign),
        ):
            target.sent += 1
            status = _status(target, method, path, headers)
            if status == 200:
                target.fail(f"{method} {path} with {headers} was answered")
        if _status(target, "GET", "/metrics", rebound) != 200:
            target.fail("/metrics is not answered to a monitor that has a name for the agent")


class HttpSegments(Attack):
    """Requests for segments by one who knows the cluster and the session, and not its secret:
    silent ones, frames of gigabytes, frames of small batches by the hundred thousand, batches of no
    range."""

    name = "http-segments"
    item = "10"

    def run(self, target: Target) -> None:
        """The agent seals its own partitions meanwhile, and looks at no batch of it."""
        head = _request_head(target)
        batch = _tiny_batch()
        many = b"".join(frame([batch * (MOST_CHUNK_BYTES // len(batch) + 2)]))
        until = target.deadline
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(_asking(target, head)) for _ in range(2 * AT_ONCE)]
            if _status(target, "POST", f"/topics/{VICTIM}/seal", {"X-Driftlog": "test"}) != 200:
                target.fail("the agent does not seal while it is asked for segments")
            for each in held:
                with contextlib.suppress(OSError):
                    each.sendall(_chunk(b"".join(frame([batch]))))
        while time.monotonic() < until:
            for body in (b"\xff\xff\xff\xff" + batch, many, many[: len(many) // 2], batch * 1_000):
                with contextlib.suppress(OSError), _asking(target, head) as one:
                    one.sendall(_chunk(body))
                    one.shutdown(socket.SHUT_WR)
                    answer = one.recv(4_096)
                    while one.recv(65_536):
                        pass
                    if answer and b" 403 " not in answer:
                        target.fail(f"a stranger got as far as {answer[:100]!r}")


def _asking(target: Target, head: bytes) -> socket.socket:
    """A connection with a request for a segment, whose batches are to come."""
    target.sent += 1
    one = socket.create_connection(_address(target), 10, (HOSTILE_ADDRESS, 0))
    host = "{}:{}".format(*_address(target))
    one.sendall(
        f"POST /segments HTTP/1.1\r\nHost: {host}\r\nX-Driftlog: test\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n".encode()
        + _chunk(head)
    )
    return one


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _tiny_batch() -> bytes:
    return bytes(encode_batch([b""], timestamp_ms=1).data)


def _request_head(target: Target) -> bytes:
    """As a leader's, of the longest range."""
    with target.connect() as connection:
        told = target.ask(connection, ApiKey.METADATA, 8, MetadataRequest(topics=[]))
    with urllib.request.urlopen(f"{target.agent.http}/readyz?json", timeout=10) as answer:
        session_id = json.load(answer)["session"]
    named = PartitionRange("t", TopicPartition(UUID(int=1, version=4), 0), 0, 2**62)
    request = SegmentRequest(told.cluster_id, session_id, named)
    return b"".join(frame([encode_request(request)]))


def _status(target: Target, method: str, path: str, headers: Mapping[str, str]) -> int:
    """Of the answer; 0: there is none."""
    host, port = _address(target)
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    except (*GONE, http.client.HTTPException):
        return 0
    finally:
        connection.close()


ATTACKS: Final = (HttpIdle, HttpSlowHeaders, HttpForeign, HttpSegments)
