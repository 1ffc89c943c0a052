"""The `driftlog` command, as a person types it, with their mistakes."""

import contextlib
import re
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.process_usage import free_port, stop_process, wait_until

pytestmark = pytest.mark.xdist_group("command")


def driftlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = driftlog_command()
    assert command is not None
    done = subprocess.run(
        [command, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_it_says_which_version_it_is() -> None:
    """
    The distribution's.
    """
    done = driftlog("--version")

    assert (done.returncode, done.stdout) == (0, f"driftlog {metadata.version('driftlog')}\n")


@pytest.mark.parametrize(
    ("line", "prog"),
    [
        ("--bogus", "driftlog"),
        ("dev --bogus", "driftlog dev"),
        ("dev --dir /tmp/unused --bogus", "driftlog dev"),
        ("agent run --bogus", "driftlog agent run"),
        ("segments --bogus", "driftlog segments"),
        ("segments seal --bogus", "driftlog segments seal"),
    ],
)
def test_an_option_that_there_is_not_is_named(line: str, prog: str) -> None:
    """
    And not something else that is missing; with the help that lists those that there are.
    """
    done = driftlog(*line.split())

    assert done.returncode == 2
    assert done.stderr == f"{prog}: unknown: --bogus; `{prog} --help` says what there is\n"


@pytest.mark.parametrize("line", ["", "agent", "segments"])
def test_a_command_without_what_it_needs_shows_what_there_is(line: str) -> None:
    """
    With an error's status, for scripts.
    """
    done = driftlog(*line.split())

    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_what_must_be_given_is_named() -> None:
    """
    An agent has no directory by default.
    """
    done = driftlog("dev")

    assert done.returncode == 2
    assert "--dir" in done.stderr.splitlines()[-1]


# ── The HTTP port ──


def ready_line(folder: Path) -> tuple[str, str]:
    """Start `driftlog dev` as a new user does, stop it; its ready line and its log."""
    command, out, err = driftlog_command(), folder / "out", folder / "err"
    assert command is not None
    listener = f"127.0.0.1:{free_port()}"
    with out.open("wb") as said, err.open("wb") as logged:
        agent = subprocess.Popen(
            [command, "dev", "--dir", str(folder / "data"), "--listener", listener],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=logged,
        )
        try:
            wait_until(lambda: b"\n" in out.read_bytes(), agent, 60, err)
        finally:
            stop_process(agent, 60)
    (line,) = out.read_text().splitlines()
    assert line.startswith(f"driftlog is ready: bootstrap {listener}, http ")
    return line, err.read_text()


def test_the_http_port_of_dev_is_where_one_looks_for_it(tmp_path: Path) -> None:
    """
    9644, as that of `agent run`; unless somebody else has it.
    """
    line, log = ready_line(tmp_path)

    assert "http 127.0.0.1:9644," in line or log.count("http_port_taken") == 1


def test_a_second_dev_takes_another_http_port_and_says_so(tmp_path: Path) -> None:
    """
    Nobody asked for 9644, so that it is taken stops nobody; the log says it once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody has it already: all the better
            stack.enter_context(socket.create_server(("127.0.0.1", 9644)))
        line, log = ready_line(tmp_path)

    found = re.search(r"http 127\.0\.0\.1:(\d+),", line)
    assert found is not None
    assert found[1] != "9644"
    assert log.count("http_port_taken") == 1
    assert f"127.0.0.1:{found[1]}" in log


# ── `segments seal` ──


@pytest.mark.parametrize(
    ("bootstrap", "said"),
    [
        ("127.0.0.1:1", "nobody answers at 127.0.0.1:1: Connection refused"),
        ("nosuchhost.invalid:9092", "nobody answers at nosuchhost.invalid:9092"),
        ("no..host:9092", "nobody answers at no..host:9092"),
        ("nonsense", "'nonsense' is not HOST:PORT"),
        ("127.0.0.1:99999", "nobody answers at 127.0.0.1:99999"),
    ],
)
def test_sealing_where_nobody_is_says_so(bootstrap: str, said: str) -> None:
    """
    At once, in words, and where to look for the right address.
    """
    done = driftlog("segments", "seal", "t", "-b", bootstrap)

    assert done.returncode == 1
    assert said in done.stderr
    assert "--bootstrap-server" in done.stderr
    assert "KafkaError" not in done.stderr


def test_sealing_at_the_wrong_port_of_an_agent_says_so(agent: DriftlogProcess) -> None:
    """
    The HTTP port is no bootstrap address.
    """
    done = driftlog("segments", "seal", "t", "-b", agent.http.removeprefix("http://"))

    assert done.returncode == 1
    assert "does not answer as a Kafka broker does" in done.stderr
    assert "--bootstrap-server" in done.stderr
    assert "KafkaError" not in done.stderr


@pytest.mark.parametrize("topic", ["no-such-topic", "no such topic/é"])
def test_sealing_a_topic_that_is_not_there_says_so(agent: DriftlogProcess, topic: str) -> None:
    """
    Whatever it is called.
    """
    done = driftlog("segments", "seal", topic, "-b", agent.bootstrap)

    assert done.returncode == 1
    assert f"there is no topic {topic!r}" in done.stderr
