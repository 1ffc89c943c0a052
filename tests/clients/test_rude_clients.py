"""Clients that never read, say nothing or come by the thousand leave the agent serving others."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from typing import Final

import pytest

from benchmarks import wire
from benchmarks.batches import Growing
from tests.clients.batches import good
from tests.clients.conftest import make_topic, metrics
from tests.clients.sockets import Produced, Raw
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("rude_clients")

MIB: Final = 1 << 20


@pytest.fixture(scope="module")
def large(agent: DriftlogProcess) -> str:
    """A topic of 8 MB, whose fetches cost the agent nothing to promise and much to hold."""
    topic = make_topic(agent)
    batch = Growing(b"x" * 1_000, 900, 1).first(900)
    with Raw(agent.port) as raw:
        for _ in range(9):
            assert raw.produce(topic, {0: batch})[0].error_code == 0
    return topic


def test_a_client_that_never_reads_its_answers_is_not_read_either(
    agent: DriftlogProcess, large: str
) -> None:
    """
    A thousand fetches of 8 MB, and not one answer taken: the agent holds a few, not 8 GB, and
    serves others.
    """
    fetch = wire.fetch_request(
        large.encode(),
        {0: 0},
        1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 * MIB,
        partition_max_bytes=50 * MIB,
    )
    agent.reset_peak()
    before = agent.usage().rss_bytes
    with Raw(agent.port) as deaf, Raw(agent.port) as other:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send_as_it_goes(deaf, fetch, 1_000, seconds=2.0)
        answer = other.produce(make_topic(agent), {0: good()})
        settle(agent)
        grown = agent.usage().peak_rss_bytes - before

    assert answer == {0: Produced(0, 0)}
    assert grown < 128 * MIB, f"{grown // MIB} MiB"


def test_a_client_that_asks_small_things_and_never_listens_is_bounded(
    agent: DriftlogProcess,
) -> None:
    """
    A hundred thousand metadata requests, and not one answer taken: they are not worked
    off ahead of it, and others do not wait for them.
    """
    make_topic(agent, 500)
    ask = wire.metadata_request(None, 1)
    agent.reset_peak()
    before = agent.usage().rss_bytes
    with Raw(agent.port) as deaf, Raw(agent.port) as other:
        send_as_it_goes(deaf, ask * 100, 1_000, seconds=3.0)
        began = time.monotonic()
        other.api_keys()
        waited_s = time.monotonic() - began
        settle(agent)
        grown = agent.usage().peak_rss_bytes - before

    assert waited_s < 5
    assert "session_lost" not in agent.log
    assert grown < 128 * MIB, f"{grown // MIB} MiB"


def settle(agent: DriftlogProcess) -> None:
    """Until the agent uses next to no CPU, within ten seconds."""
    deadline = time.monotonic() + 10
    used = agent.usage().cpu_seconds
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = agent.usage().cpu_seconds
        if now - used < 0.05:
            return
        used = now


def send_as_it_goes(raw: Raw, data: bytes, times: int, *, seconds: float) -> int:
    """Send while the agent takes it, for so long; returns how many went out whole."""
    raw.socket.setblocking(False)
    deadline = time.monotonic() + seconds
    for done in range(times):
        view = memoryview(data)
        while view:
            try:
                view = view[raw.socket.send(view) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return done
                time.sleep(0.01)
    return times


def test_ten_thousand_unanswered_fetches_of_one_connection_are_kept_short(
    agent: DriftlogProcess,
) -> None:
    """
    Long polls that pile up behind one another hold little, and go with their connection.
    """
    topic = make_topic(agent)
    fetch = wire.fetch_request(
        topic.encode(),
        {0: 0},
        1,
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=MIB,
        partition_max_bytes=MIB,
    )
    agent.reset_peak()
    before = agent.usage().rss_bytes
    with Raw(agent.port) as waiting:
        send_as_it_goes(waiting, fetch * 100, 300, seconds=3.0)
        with Raw(agent.port) as other:
            other.api_keys()
        settle(agent)
    grown = agent.usage().peak_rss_bytes - before
    with Raw(agent.port) as raw:
        answer = raw.produce(topic, {0: good()})

    assert answer == {0: Produced(0, 0)}
    assert grown < 128 * MIB, f"{grown // MIB} MiB"


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for a thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_000 if hard == resource.RLIM_INFINITY else min(4_000, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_cost_little(
    agent: DriftlogProcess, many_files: None, record_property: object
) -> None:
    """
    All are answered; together they take a few MiB and no CPU while they are silent.
    """
    before = agent.usage()
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Raw(agent.port)) for _ in range(990)]
        for raw in idle:
            raw.api_keys()
        counted = metrics(agent)["driftlog_connections"]
        there = agent.usage()
        time.sleep(2)
        later = agent.usage()
        for raw in idle[::100]:
            raw.api_keys()

    assert counted >= 990
    assert there.rss_bytes - before.rss_bytes < 64 * MIB
    assert later.cpu_seconds - there.cpu_seconds < 0.6


def test_connections_that_come_and_go_leave_nothing(agent: DriftlogProcess) -> None:
    """
    Three thousand of them, closed at different points of a request.
    """
    ask = wire.request(wire.API_VERSIONS, 0, 1, b"")
    for n in range(3_000):
        with Raw(agent.port) as raw:
            raw.send(ask[: n % (len(ask) + 1)])
    with Raw(agent.port) as raw:
        raw.api_keys()
        deadline = time.monotonic() + 10
        while metrics(agent)["driftlog_connections"] > 1 and time.monotonic() < deadline:
            time.sleep(0.1)

        assert metrics(agent)["driftlog_connections"] == 1
