"""Bytes that are no request close their connection, with one log line, and disturb no other."""

import contextlib
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import wire
from benchmarks.batches import encode_batch
from tests.clients.conftest import make_topic, metrics
from tests.clients.sockets import UNSUPPORTED_VERSION, Produced, Raw, api_versions_answer
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("bad_frames")

METADATA_WITH_A_MILLION_TOPICS = wire.request(wire.METADATA, 4, 1, struct.pack(">i", 1_000_000))

TLS_CLIENT_HELLO = bytes.fromhex(
    "16030100c8010000c40303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

BAD = {
    "a size of zero": struct.pack(">i", 0),
    "a size too small for a header": struct.pack(">i", 7) + b"\0" * 7,
    "a negative size": struct.pack(">i", -1),
    "the most negative size": struct.pack(">i", -(2**31)),
    "a size over socket.request.max.bytes": struct.pack(">i", 100 * 1024 * 1024 + 1),
    "the largest size": struct.pack(">i", 2**31 - 1),
    "an unknown api key": wire.request(9_999, 0, 1, b""),
    "a negative api key": wire.request(-1, 0, 1, b""),
    "a version of Metadata that is not there yet": wire.request(wire.METADATA, 99, 1, b""),
    "a negative version": wire.request(wire.METADATA, -1, 1, b""),
    "Produce 2, which is advertised and not served": wire.request(wire.PRODUCE, 2, 1, b"\0" * 40),
    "Fetch 3": wire.request(wire.FETCH, 3, 1, b"\0" * 40),
    "a body that ends early": wire.request(wire.METADATA, 4, 1, b"\0"),
    "more elements than bytes": METADATA_WITH_A_MILLION_TOPICS,
    "a client id longer than the request": struct.pack(">ihhih", 12, 3, 4, 1, 30_000) + b"ab",
    "a client id that is no UTF-8": struct.pack(">ihhih", 13, 3, 4, 1, 2) + b"\xff\xfe\0",
}


@pytest.fixture(scope="module")
def healthy(agent: DriftlogProcess) -> Iterator[Raw]:
    """A connection that was there before, and must be there after everything."""
    with Raw(agent.port) as raw:
        yield raw


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_closes_its_connection_and_no_other(
    agent: DriftlogProcess, healthy: Raw, name: str
) -> None:
    """
    No answer, the stream ends, one line in the log; other connections go on.
    """
    lines_before = len(agent.log.splitlines())

    with Raw(agent.port) as raw:
        raw.send(BAD[name])
        closed = raw.is_closed()

    assert closed
    assert wire.PRODUCE in healthy.api_keys()
    said = agent.log.splitlines()[lines_before:]
    assert len(said) == 1, said
    assert "frame_refused" in said[0]


@pytest.mark.parametrize(
    ("protocol", "first"),
    [("TLS", TLS_CLIENT_HELLO), ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")],
)
def test_a_client_of_another_protocol_is_named_in_one_line(
    agent: DriftlogProcess, healthy: Raw, protocol: str, first: bytes
) -> None:
    """
    However often it comes again in a minute; a TLS client that tried for ten seconds wrote 674.
    """
    lines_before = len(agent.log.splitlines())

    for _ in range(30):
        with Raw(agent.port) as raw:
            raw.send(first)
            assert raw.is_closed()

    assert wire.PRODUCE in healthy.api_keys()
    (said,) = agent.log.splitlines()[lines_before:]
    assert "foreign_protocol_refused" in said
    assert f"protocol={protocol}" in said
    assert "advice=" in said


def test_an_oversized_frame_is_refused_before_it_is_buffered(agent: DriftlogProcess) -> None:
    """
    A hundred connections that each announce 2 GiB cost the agent no memory.
    """
    agent.reset_peak()
    before = agent.usage().rss_bytes

    for _ in range(100):
        with Raw(agent.port) as raw:
            raw.send(struct.pack(">i", 2**31 - 1) + b"\0" * 1_000)
            assert raw.is_closed()

    assert agent.usage().peak_rss_bytes - before < 16 << 20


def test_frames_that_are_announced_and_never_sent_hold_little_memory(
    agent: DriftlogProcess,
) -> None:
    """
    Fifty connections that announce 100 MiB, the most there may be, and send 64 KiB of it: they
    get 2 MiB each, and more when they have sent that.
    """
    agent.reset_peak()
    before = agent.usage().rss_bytes
    waiting = [Raw(agent.port) for _ in range(50)]
    try:
        for raw in waiting:
            raw.send(struct.pack(">ihhi", 100 * 1024 * 1024, 0, 7, 1) + b"\0" * 65_536)
        with Raw(agent.port) as raw:
            raw.api_keys()
        grown = agent.usage().peak_rss_bytes - before
    finally:
        for raw in waiting:
            raw.socket.close()

    assert grown < 128 << 20


def test_frames_that_are_begun_and_not_ended_hold_bounded_memory(agent: DriftlogProcess) -> None:
    """
    Eighty connections that announce 100 MiB and send 3 MiB of it: each could claim 8 MiB, and
    together they get half of what incomplete frames may hold, and one frame's next step.  Others
    are served, and when the crowd is gone so is what it held.
    """
    topic = make_topic(agent)
    agent.reset_peak()
    before = agent.usage().rss_bytes
    crowd = [Raw(agent.port) for _ in range(80)]
    try:
        part = struct.pack(">ihhi", 100 * 1024 * 1024, 0, 7, 1) + b"\0" * (3 << 20)
        deadline = time.monotonic() + 3
        left = {raw: memoryview(part) for raw in crowd}
        while left and time.monotonic() < deadline:
            for raw, view in list(left.items()):
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    raw.socket.setblocking(False)
                    left[raw] = view[raw.socket.send(view) :]
                if not left[raw]:
                    del left[raw]
        with Raw(agent.port) as raw:
            answer = raw.produce(topic, {0: encode_batch([b"small"], timestamp_ms=1).data})
        grown = agent.usage().peak_rss_bytes - before
        during = metrics(agent)
    finally:
        for raw in crowd:
            raw.socket.close()
    deadline = time.monotonic() + 20
    while (still := held(agent)) != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert answer == {0: Produced(0, 0)}
    assert grown < 200 << 20, f"{grown >> 20} MiB"
    assert during["driftlog_incomplete_request_bytes"] > 64 << 20
    assert during["driftlog_connections_waiting"] > 10
    assert still == (0, 0)


def held(agent: DriftlogProcess) -> tuple[float, float]:
    """Memory of incomplete requests, and how many connections wait for some."""
    said = metrics(agent)
    return said["driftlog_incomplete_request_bytes"], said["driftlog_connections_waiting"]


def test_a_request_of_many_megabytes_is_taken_whole(agent: DriftlogProcess) -> None:
    """
    30 batches of 1 MB in one request: larger than any buffer that an announcement alone gets.
    """
    topic = make_topic(agent, 30)
    records = [bytes([n]) * 1_000_000 for n in range(30)]
    with Raw(agent.port) as raw:
        answer = raw.produce(
            topic,
            {n: encode_batch([value], timestamp_ms=1).data for n, value in enumerate(records)},
        )
        fetched = [raw.fetch(topic, {n: 0})[n].records for n in range(30)]

    assert answer == dict.fromkeys(range(30), Produced(0, 0))
    assert all(value in read for value, read in zip(records, fetched, strict=True))


def test_garbage_ends_connections_and_nothing_else(agent: DriftlogProcess, healthy: Raw) -> None:
    """
    A thousand connections of random bytes, some behind a size that fits them.
    """
    rng = random.Random(11)
    for _ in range(1_000):
        garbage = rng.randbytes(rng.randint(1, 300))
        if rng.random() < 0.7:
            key = rng.choice((0, 1, 2, 3, 18, 19, 20, 22, 32))
            garbage = struct.pack(">ihh", len(garbage) + 4, key, rng.randint(0, 13)) + garbage
        with Raw(agent.port) as raw:
            raw.send(garbage)

    assert wire.PRODUCE in healthy.api_keys()
    assert "handler_bug" not in agent.log
    assert "connection_bug" not in agent.log


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    agent: DriftlogProcess, version: int
) -> None:
    """
    Error 35 and the range of key 18 alone, so that a newer client can ask again (KIP-511);
    the connection goes on.
    """
    with Raw(agent.port) as raw:
        raw.send(wire.request(wire.API_VERSIONS, version, 7, b"\x01\x01\x00"))
        answer = raw.receive()
        again = raw.api_keys()

    assert answer[4:8] == struct.pack(">i", 7)
    assert api_versions_answer(answer) == (UNSUPPORTED_VERSION, {18: again[18]})


def test_requests_before_a_bad_one_are_answered_or_at_least_kept(agent: DriftlogProcess) -> None:
    """
    What was acknowledged before the garbage stays; what comes behind it on the same connection
    is not looked at.
    """
    topic = make_topic(agent)
    batch = encode_batch([b"first"], timestamp_ms=1).data
    with Raw(agent.port) as raw:
        first = raw.produce(topic, {0: batch})
        raw.send(struct.pack(">i", -5))
        assert raw.is_closed()
    with Raw(agent.port) as raw:
        second = raw.produce(topic, {0: batch})

    assert (first, second) == ({0: Produced(0, 0)}, {0: Produced(0, 1)})


def test_a_real_tls_client_is_refused_at_once(agent: DriftlogProcess) -> None:
    """
    OpenSSL on the plaintext port gets an error, not a hang.
    """
    script = (
        "import socket, ssl, sys\n"
        f"s = socket.create_connection(('127.0.0.1', {agent.port}), 10)\n"
        "c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = 0\n"
        "try:\n    c.wrap_socket(s)\n"
        "except (ssl.SSLError, ConnectionError) as e:\n    sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=20, check=False)

    assert done.returncode == 3


def test_a_connection_that_is_cut_inside_a_frame_is_forgotten(agent: DriftlogProcess) -> None:
    """
    Half a request and a reset leave nothing behind.
    """
    before = open_sockets(agent.pid)
    for size in (1, 3, 4, 9, 40_000):
        raw = Raw(agent.port)
        raw.send((struct.pack(">ihhi", 60_000, 0, 7, 1) + b"\0" * 40_000)[:size])
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.socket.close()
    with Raw(agent.port) as raw:
        raw.api_keys()
        after = open_sockets(agent.pid)

    assert after <= before + 1


def open_sockets(pid: int) -> int:
    """How many sockets a process holds."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links)
