"""Standard error that is full, closed or read by nobody, and clients that fill it."""

import os
import socket
import time
import urllib.request
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException

from tests.clients.batches import good
from tests.clients.conftest import make_topic, metrics
from tests.clients.sockets import Raw
from tests.support.driftlog_process import DriftlogProcess

STREAMS: Final = {
    "full": 'exec "$@" 2>/dev/full',
    "closed pipe": 'exec "$@" 2> >(exec true)',
    "pipe that nobody reads": 'exec "$@" 2> >(exec sleep 60 >/dev/null 2>&1)',
    "closed": 'exec "$@" 2>&-',
}
CLIENT_ID: Final = ("\x1b]0;x\x07\n\u202e" * 10_000).encode()[:32_000].decode(errors="ignore")


def rude(port: int, client_id: str = CLIENT_ID) -> None:
    """One request with that client id, and then bytes that are none: the agent says so."""
    name = client_id.encode()
    # Metadata, version 1, of no topic.
    request = b"\0\3\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\0"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(len(request).to_bytes(4, "big") + request)
        assert client.recv(4)
        client.sendall(b"\xff" * 8)
        while client.recv(65_536):
            pass


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return int(answer.status)


def dropped(agent: DriftlogProcess) -> float:
    """Lines of the log that were not written, for whatever reason."""
    said = metrics(agent).items()
    return sum(n for name, n in said if name.startswith("driftlog_log_lines_dropped_total{"))


@pytest.mark.parametrize("stream", STREAMS)
def test_the_agent_serves_whatever_becomes_of_its_log(stream: str) -> None:
    """
    Standard error fails or takes nothing while clients cause lines: records are produced and
    read, /healthz answers, what was not said is counted, and the agent drains when it is told to.
    """
    with DriftlogProcess(prefix=("bash", "-c", STREAMS[stream], "bash")) as agent:
        topic = make_topic(agent)
        deadline = time.monotonic() + 120
        while not dropped(agent):  # at the latest by the limit of lines a second
            assert time.monotonic() < deadline, "no line was left out"
            for _ in range(20):
                rude(agent.port)
        with Raw(agent.port) as raw:
            produced = raw.produce(topic, {0: good(b"said nothing")}, acks=-1)[0]
            read = raw.fetch(topic, {0: produced.base_offset})[0].records
        healthy = status(f"{agent.http}/healthz")
        code = agent.terminate()

    assert (0, 200, 0) == (produced.error_code, healthy, code)
    assert b"said nothing" in read


def test_clients_cannot_flood_the_log() -> None:
    """
    Requests with client ids of 32 KB, 200 and more: the lines are few for the time that they take,
    short, of visible characters, and say how many were left out.  `driftlog.log.lines.per.second`
    says how few, and counts the others.
    """
    most = ("--config", "driftlog.log.lines.per.second=3")
    with DriftlogProcess(arguments=most) as agent:
        before, begun = len(agent.log), time.monotonic()
        while "log_lines_left_out" not in agent.log:
            assert time.monotonic() < begun + 120, "no line was left out"
            for _ in range(200):
                rude(agent.port)
        said = agent.log[before:]
        seconds = time.monotonic() - begun
        counted = metrics(agent)['driftlog_refused_total{limit="driftlog.log.lines.per.second"}']

    assert counted > 0
    assert "frame_refused" in said
    assert "log_lines_left_out" in said
    assert said.count("frame_refused") <= 3 * (seconds + 1) + said.count("log_lines_left_out")
    assert max(map(len, said.splitlines())) < 2_000
    assert not set("\x1b\x07\u202e") & set(said)


def test_what_ends_the_agent_is_said_although_the_log_was_flooded(tmp_path: Path) -> None:
    """
    The reason of a start that is refused is on standard error when the process has ended.
    """
    data = tmp_path / "data"
    with DriftlogProcess(data) as agent:
        second = DriftlogProcess(data)
        second.launch()
        code = second.wait(30)
        said = second.log
        assert os.path.exists(f"/proc/{agent.pid}")
    second.close()

    assert code == 1
    assert "another agent runs on" in said


def test_a_pipe_of_the_ready_line_may_be_closed(tmp_path: Path) -> None:
    """
    Nobody reads standard output: the agent gets ready all the same.
    """
    script = 'exec "$@" > >(exec true)'
    agent = DriftlogProcess(tmp_path / "data", prefix=("bash", "-c", script, "bash"))
    agent.launch()
    try:
        with _connected(agent.port):
            pass
        topic = _made_topic(agent)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"a")}, acks=-1)[0].error_code == 0
    finally:
        code = agent.terminate()
        agent.close()
    assert code == 0


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _made_topic(agent: DriftlogProcess) -> str:
    """A topic, as soon as the agent is ready, which it cannot say here."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return make_topic(agent)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
