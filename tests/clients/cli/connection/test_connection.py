"""`driftlog` at listeners of another protocol, and at agents that do not answer.

Broken: a command waits for half a minute, or for two, and then says something that does not help.
"""

import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from driftlog.common.connection import bootstrap
from tests.clients.command import run
from tests.clients.conftest import make_topic
from tests.support.certificates import make_certificates
from tests.support.driftlog_process import DriftlogProcess, driftlog_command

pytestmark = pytest.mark.xdist_group("command")

SOON_S = 12
"""A command on a busy machine, without any of librdkafka's time-outs of half a minute."""


@pytest.fixture(scope="module")
def tls_listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TLS server: it ends a handshake with a client that trusts no certificate of its."""
    files = make_certificates(tmp_path_factory.mktemp("tls"), "unknown")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate_file, files.key_file)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.settimeout(5)
            with suppress(OSError), closing(context.wrap_socket(connection, server_side=True)) as s:
                s.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("kafka", "SSL", "speaks no TLS"),
        ("kafka", "SASL_SSL", "speaks no TLS"),
        ("http", "PLAINTEXT", "speaks HTTP and not Kafka"),
        ("http", "SSL", "speaks no TLS"),
        ("tls", "PLAINTEXT", "speaks TLS: give -X security.protocol=SSL"),
        ("tls", "SSL", "certificate verify failed"),
    ],
)
@pytest.mark.parametrize("line", ["topics list", "produce t", "consume t -e", "segments seal t"])
def test_another_protocol_is_named_at_once(
    agent: DriftlogProcess, tls_listener: str, line: str, listener: str, protocol: str, said: str
) -> None:
    """
    In both directions; a record that could not be sent is not said to be perhaps written.
    """
    address = {
        "kafka": agent.bootstrap,
        "http": agent.http.removeprefix("http://"),
        "tls": tls_listener,
    }[listener]
    began = time.monotonic()
    properties = ("-X", f"security.protocol={protocol}", "-X", "sasl.mechanism=PLAIN")
    sasl = ("-X", "sasl.username=u", "-X", "sasl.password=p")
    done = run(*line.split(), *properties, *sasl, bootstrap=address, stdin=b"a\n")
    took_s = time.monotonic() - began

    assert (1, True) == (done.returncode, took_s < SOON_S)
    assert said in done.stderr.decode()


def test_both_variables_are_read_by_the_command_and_by_python(
    agent: DriftlogProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The long one wins where both are set, and an option over both.
    """
    both = {"DRIFTLOG_BOOTSTRAP": "short:1", "DRIFTLOG_BOOTSTRAP_SERVERS": agent.bootstrap}
    for environment in ({"DRIFTLOG_BOOTSTRAP_SERVERS": agent.bootstrap}, both):
        assert run("cluster", "info", environment=environment).returncode == 0
    wrong = {"DRIFTLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    assert run("cluster", "info", "-b", agent.bootstrap, environment=wrong).returncode == 0

    for name in both:
        monkeypatch.delenv(name, raising=False)
    assert bootstrap(None) == "127.0.0.1:9092"
    monkeypatch.setenv("DRIFTLOG_BOOTSTRAP", "short:1")
    assert bootstrap(None) == "short:1"
    monkeypatch.setenv("DRIFTLOG_BOOTSTRAP_SERVERS", "long:1")
    assert bootstrap(None) == "long:1"
    assert bootstrap("argument:1") == "argument:1"


# ── Agents that do not answer ──


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DriftlogProcess, str]]:
    """An agent that can write neither flush objects nor topic files, and a topic."""
    folder = tmp_path_factory.mktemp("away")
    with DriftlogProcess(folder / "data") as agent:
        topic = make_topic(agent)
        assert run("produce", topic, bootstrap=agent.bootstrap, stdin=b"a\n").returncode == 0
        for name in ("flush", "topics"):
            objects = agent.directory / "objects" / name
            objects.rename(folder / name)
            objects.write_bytes(b"no folder")
        yield agent, topic
        agent.kill()


@pytest.mark.parametrize(
    ("line", "reason"), [("produce", b"nothing was committed for"), ("topics delete", b"")]
)
def test_a_command_that_waits_says_what_readyz_says(
    away: tuple[DriftlogProcess, str], line: str, reason: bytes
) -> None:
    """
    After five seconds, while it goes on waiting.
    """
    agent, topic = away
    command = driftlog_command()
    assert command is not None
    began = time.monotonic()
    waiting = subprocess.Popen(
        [command, *line.split(), topic, "-b", agent.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert waiting.stdin is not None
        waiting.stdin.write(b"b\n")
        waiting.stdin.close()
        assert waiting.stderr is not None
        said = b""
        while not (b"/readyz: " in said and reason in said) and time.monotonic() - began < 60:
            said += os.read(waiting.stderr.fileno(), 1 << 16)
        goes_on = waiting.poll() is None
    finally:
        waiting.kill()
        waiting.wait()

    text = said.decode()
    assert re.match(
        r"driftlog: no answer for [5-9] s, still waiting; agent 1 says at http://", text
    )
    assert "/readyz: " in text
    assert goes_on


def test_an_answer_that_is_lost_has_an_exit_status_of_its_own(
    away: tuple[DriftlogProcess, str],
) -> None:
    """
    In --timeout seconds; the topic may be created once the bucket is back.
    """
    agent, _ = away
    began = time.monotonic()
    done = run("topics", "create", "later", "--timeout", "7", bootstrap=agent.bootstrap)
    took_s = time.monotonic() - began

    assert (3, True) == (done.returncode, 6 < took_s < 7 + SOON_S)
    assert "unknown: may have been created" in done.stderr.decode()


def test_a_stopped_agent_is_said_to_be_silent_and_timeout_counts(tmp_path: Path) -> None:
    """
    The kernel takes its connections; nothing answers on them.
    """
    lines = ["topics list", "consume t", "segments seal t", "cluster brokers"]
    with DriftlogProcess(tmp_path / "data") as agent:

        def ended(line: str) -> tuple[str, int, bool, bool]:
            began = time.monotonic()
            done = run(*line.split(), "--timeout", "10", bootstrap=agent.bootstrap)
            took_s = time.monotonic() - began
            silent = f"no broker at {agent.bootstrap} answers" in done.stderr.decode()
            return line, done.returncode, silent, 8 < took_s < 10 + SOON_S

        agent.pause()
        try:
            with ThreadPoolExecutor(len(lines)) as threads:
                found = list(threads.map(ended, lines))
        finally:
            agent.resume()

    assert [(line, 1, True, True) for line in lines] == found
