"""`driftlog dev --agents N`: one command starts a cluster, keeps it running, and ends all of it."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from os import environ
from pathlib import Path
from typing import Self

import confluent_kafka
import pytest

from driftlog.dev_cluster.local_etcd import BINARY_VARIABLE
from driftlog.dev_cluster.local_process import LocalProcess, end_leftovers
from tests.support import etcd_server
from tests.support.components import REPOSITORY
from tests.support.driftlog_process import driftlog_command
from tests.support.process_usage import free_port, wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("dev_agents")]

_START_S = 120.0
_SOON_S = 60.0


def until(true: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Return when it is *true*; *what* is not, where it does not become so."""
    deadline = time.monotonic() + _SOON_S
    while not true():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.05)


def living(directory: Path) -> dict[int, str]:
    """The processes whose command lines name something in *directory*, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"{directory}" in line:
            found[int(folder.name)] = line
    return found


class Cluster:
    """A running `driftlog dev --agents`; whatever becomes of it, nothing is left of it.

    Its HTTP ports are free ones, too, unless *default_http*: between its look at 9644 and its
    agent's, another test may take that, and who could not have it starts again, with a later id.
    """

    def __init__(
        self, directory: Path, agents: int, *arguments: str, default_http: bool = False
    ) -> None:
        self.directory = directory
        self.first_port = free_port(2 * agents)
        self._arguments = [
            *("dev", "--agents", str(agents), "--dir", str(directory)),
            *("--listener", f"127.0.0.1:{self.first_port}", *arguments),
        ]
        if not default_http:
            self._arguments += ["--http-listener", f"127.0.0.1:{self.first_port + agents}"]
        self._out, self._err = directory.with_suffix(".out"), directory.with_suffix(".err")
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, output: int | None = None) -> Self:
        """Start it, and wait for nothing; *output*: where all that it says goes instead."""
        version = etcd_server.newest_version()
        command = driftlog_command()
        assert command is not None
        etcd = REPOSITORY / ".cache" / "etcd" / version / "etcd"
        # As people run it: unbuffered, Python drops the rest of a write that a signal interrupts.
        variables = {BINARY_VARIABLE: str(etcd), "PYTHONUNBUFFERED": ""}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=out if output is None else output,
                stderr=err if output is None else output,
                env={**environ, **variables},
            )
        return self

    def start(self) -> Self:
        """As `launch`; return when it has said that it is ready."""
        self.launch()
        wait_until(lambda: self.ready_line() is not None, self.process, _START_S, self._err)
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def said(self) -> str:
        """On standard output, since it was started."""
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        """On standard error, since it was started."""
        return self._err.read_text(errors="replace")

    def ready_line(self) -> re.Match[str] | None:
        return re.search(
            r"^driftlog is ready: bootstrap (\S+), http (\S+), .*\n", self.said, re.MULTILINE
        )

    @property
    def bootstrap(self) -> str:
        """As one pastes it."""
        ready = self.ready_line()
        assert ready is not None, self.said
        return ready[1]

    def pid(self, name: str) -> int:
        """Of agent-N or etcd, out of its file; 0: there is none now."""
        try:
            text = (self.directory / "run" / f"{name}.pid").read_text()
        except FileNotFoundError:
            return 0
        assert re.fullmatch(r"[0-9]+\n", text)
        return int(text)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until it has said so."""
        until(
            lambda: re.search(pattern, self.said) is not None,
            lambda: f"{pattern}\n{self.said}\n{self.log}",
        )
        found = re.search(pattern, self.said)
        assert found is not None
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it; its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(_SOON_S)
        self._process = None
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in living(self.directory):
            os.kill(pid, signal.SIGKILL)


class Reader:
    """Of a pipe or a terminal into which a cluster says everything; it reads when it is told to.

    Args:
        ends: the one to read from, the one to write to.
    """

    def __init__(self, ends: tuple[int, int]) -> None:
        self._read, self.output = ends
        self._said = b""

    def read_until(self, *patterns: str) -> None:
        """Until each was said since it was read last; not a byte is read after that."""
        self._said = b""
        until(
            lambda: all(re.search(pattern.encode(), self._next()) for pattern in patterns),
            lambda: f"{patterns}\n{self._said[-3000:]!r}",
        )

    def _next(self) -> bytes:
        if select.select([self._read], [], [], 0.05)[0]:
            self._said += os.read(self._read, 65_536)
        return self._said

    def fill(self, log: Path, size: int) -> None:
        """Have so many bytes told of *log*; return when not one more fits."""
        with log.open("ab") as file:
            file.write(b"%099d\n" % 0 * (size // 100) + b"the last\n")
        until(lambda: not select.select([], [self.output], [], 0)[1], "there is room")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._read, self.output):
            os.close(end)


def produce(bootstrap: str, values: range) -> None:
    """Each to partition 0 of `greetings`; returns when all are acknowledged."""
    errors: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
    )
    for n in values:
        producer.produce(
            "greetings",
            b"%d" % n,
            partition=0,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert 0 == producer.flush(90)
    assert [] == errors


def consume(bootstrap: str) -> list[int]:
    """All of partition 0 of `greetings`."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("greetings", 0, 0)])
    values: list[int] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"only {len(values)} records"
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            values.append(int(message.value() or b""))
    finally:
        consumer.close()


def refused(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Start one that shall end by itself; what it said."""
    command = driftlog_command()
    assert command is not None
    done = subprocess.run(
        [command, "dev", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
        env={**environ, **(environment or {})},
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "ready" not in done.stdout
    return done.stderr


# ── Running ──


def test_one_command_starts_a_cluster_shows_it_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """
    Three agents on the next ports; a client needs the line that it prints; SIGTERM ends everything
    in a few seconds; started again, the records and etcd's address are what they were.
    """
    with Cluster(tmp_path / "log", 3) as cluster:
        cluster.start()
        ports = range(cluster.first_port, cluster.first_port + 3)
        assert ",".join(f"127.0.0.1:{port}" for port in ports) == cluster.bootstrap
        rows = [line.split() for line in cluster.said.splitlines() if line.startswith("agent-")]
        for number, (port, row) in enumerate(zip(ports, rows, strict=True), 1):
            name = f"agent-{number}"
            directory = cluster.directory / name
            shown = [name, str(number), f"127.0.0.1:{port}", row[3], str(cluster.pid(name))]
            assert [*shown, str(directory)] == row
            assert "agent run" in living(directory)[cluster.pid(name)]
            with urllib.request.urlopen(f"http://{row[3]}/healthz", timeout=10) as answer:
                assert 200 == answer.status
        assert 3 == len({row[3] for row in rows})
        assert cluster.pid("etcd") in living(cluster.directory / "etcd")
        produce(cluster.bootstrap, range(100))
        assert list(range(100)) == consume(cluster.bootstrap)
        etcd = re.search(r"^etcd +(\S+)", cluster.said, re.MULTILINE)

        started = time.monotonic()
        assert 0 == cluster.end()
        assert time.monotonic() - started < 15
        assert {} == living(cluster.directory)
        assert [] == list((cluster.directory / "run").glob("*.pid"))

        cluster.start()
        again = re.search(r"^etcd +(\S+)", cluster.said, re.MULTILINE)
        assert etcd is not None
        assert again is not None
        assert etcd[1] == again[1]
        produce(cluster.bootstrap, range(100, 150))
        assert list(range(150)) == consume(cluster.bootstrap)
        assert 0 == cluster.end(signal.SIGINT)


def test_who_is_killed_is_started_again_after_a_second(tmp_path: Path) -> None:
    """
    Each agent, and etcd: a line says who, of what, and that it runs again; the pid file names the
    new one; what was acknowledged is there.  Meanwhile nobody else may start on the directory.
    """
    with Cluster(tmp_path / "log", 2) as cluster:
        cluster.start()
        produce(cluster.bootstrap, range(100))
        assert "another `driftlog dev --agents` runs on" in refused(
            "--agents", "2", "--dir", str(cluster.directory)
        )
        for name in ("agent-1", "agent-2", "etcd"):
            pid = cluster.pid(name)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            line = cluster.wait_for(rf"{name} was killed by SIGKILL: started again \(pid (\d+)\)")
            took_s = time.monotonic() - killed
            assert pid not in living(cluster.directory)
            assert cluster.pid(name) == int(line[1]) != pid
            assert int(line[1]) in living(cluster.directory)
            assert 0.9 < took_s < 15
        cluster.wait_for("etcd answers again")
        cluster.wait_for("agent-2 is ready")
        os.kill(cluster.pid("agent-2"), signal.SIGTERM)
        cluster.wait_for(r"agent-2 ended with exit code 0: started again")
        produce(cluster.bootstrap, range(100, 200))
        assert list(range(200)) == consume(cluster.bootstrap)
        assert 0 == cluster.end()


def test_an_agent_that_ends_at_once_is_started_less_and_less_often(tmp_path: Path) -> None:
    """
    What it says is shown, the others serve, and it is there once it can be.
    """
    directory = tmp_path / "log"
    damaged = directory / "agent-2" / "node_id.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("nonsense")
    with Cluster(directory, 2) as cluster:
        cluster.launch()
        for delay_s in (1, 2, 4):
            cluster.wait_for(
                rf"agent-2 ended with exit code 1 before it was ready; .* again in {delay_s} s"
            )
        assert "agent-2 | driftlog: node_id.json in the data directory is damaged" in cluster.log
        produce(f"127.0.0.1:{cluster.first_port}", range(10))
        assert cluster.ready_line() is None
        damaged.unlink()
        cluster.wait_for("driftlog is ready: bootstrap")
        assert list(range(10)) == consume(cluster.bootstrap)


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """
    SIGKILL: agents and etcd end at once, by themselves; the next start finds all as it was.
    """
    with Cluster(tmp_path / "log", 2, default_http=True) as cluster:
        cluster.start()
        produce(cluster.bootstrap, range(100))
        assert 4 == len(living(cluster.directory))

        cluster.end(signal.SIGKILL)

        until(lambda: {} == living(cluster.directory), "something runs on")
        assert 0 != cluster.pid("agent-1")
        cluster.start()
        assert list(range(100)) == consume(cluster.bootstrap)


@pytest.mark.parametrize("ends", [os.pipe, os.openpty], ids=["pipe", "terminal"])
def test_nobody_has_to_read_what_it_says(
    tmp_path: Path, ends: Callable[[], tuple[int, int]]
) -> None:
    """
    Full is its output, and an agent that is killed is started again, and SIGTERM ends everything.
    """
    with Reader(ends()) as reader, Cluster(tmp_path / "log", 1) as cluster:
        cluster.launch(reader.output)
        reader.read_until(r"driftlog is ready: bootstrap .*\n")
        reader.fill(cluster.directory / "agent-1.log", 200_000)
        pid = cluster.pid("agent-1")
        os.kill(pid, signal.SIGKILL)
        until(lambda: cluster.pid("agent-1") not in (0, pid), "it is not started again")
        assert cluster.pid("agent-1") in living(cluster.directory)
        assert os.get_blocking(reader.output), "it is not only ours"

        told = time.monotonic()
        assert 0 == cluster.end()

        assert time.monotonic() - told < 15
        assert {} == living(cluster.directory)


def test_who_reads_late_misses_nothing_but_lines_of_logs(tmp_path: Path) -> None:
    """
    The oldest of them; a line says how many, and where they are.
    """
    with Reader(os.pipe()) as reader, Cluster(tmp_path / "log", 1) as cluster:
        cluster.launch(reader.output)
        reader.read_until(r"driftlog is ready: bootstrap .*\n")
        log = cluster.directory / "agent-1.log"
        reader.fill(log, 2_000_000)
        pid = cluster.pid("agent-1")
        os.kill(pid, signal.SIGKILL)
        until(lambda: cluster.pid("agent-1") not in (0, pid), "it is not started again")

        reader.read_until(
            rf"\ndriftlog \| \d+ lines left out: .* {log.parent}/agent-\*\.log\n",
            r"\nagent-1 \| the last\n",
            rf"\ndriftlog \| .* SIGKILL: started again \(pid {cluster.pid('agent-1')}\)\n",
            r"\ndriftlog \| agent-1 is ready\n",
        )
        assert 0 == cluster.end()


def test_who_does_not_stop_is_killed_when_told_twice(tmp_path: Path) -> None:
    """
    A suspended agent hears nothing: a line names it, and the exit status is not 0.
    """
    with Cluster(tmp_path / "log", 1) as cluster:
        cluster.start()
        os.kill(cluster.pid("agent-1"), signal.SIGSTOP)
        cluster.process.send_signal(signal.SIGTERM)
        cluster.wait_for("stopping")

        told = time.monotonic()
        assert 1 == cluster.end()

        assert time.monotonic() - told < 15
        assert re.search(r"agent-1 \(pid \d+\) has not ended: killed", cluster.said)
        assert {} == living(cluster.directory)


def test_what_an_earlier_start_left_running_is_ended_and_nobody_else(tmp_path: Path) -> None:
    """
    Where no kernel ends them.  An id that another process has by now is that one's.
    """
    run, directory = tmp_path / "run", tmp_path / "log"
    run.mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with ExitStack() as stack:
        ours = stack.enter_context(subprocess.Popen([*sleep, str(directory / "agent-1")]))
        stack.callback(ours.kill)
        other = stack.enter_context(subprocess.Popen(sleep))
        stack.callback(other.kill)
        until(lambda: ours.pid in living(directory), "not started")
        (run / "agent-1.pid").write_text(f"{ours.pid}\n")
        (run / "agent-2.pid").write_text(f"{other.pid}\n")
        (run / "etcd.pid").write_text("")

        said = end_leftovers(run, directory)

        assert [f"agent-1 of an earlier start still ran (pid {ours.pid}): ended it"] == said
        assert -signal.SIGKILL == ours.wait(10)
        assert other.poll() is None
        assert [] == list(run.iterdir())


# ── Refused ──


def test_a_port_that_is_taken_is_named_with_whose_it_is(tmp_path: Path) -> None:
    """
    Before there is anything on the disk; and so is one that there is not.
    """
    first = free_port(3)

    def refused_at(port: int) -> str:
        return refused(
            *("--agents", "3", "--dir", str(tmp_path / "log")),
            *("--listener", f"127.0.0.1:{port}"),
            environment={BINARY_VARIABLE: sys.executable},
        )

    with socket.create_server(("127.0.0.1", first + 1)):
        said = refused_at(first)
    assert "the largest port is 65535" in refused_at(65534)

    assert f"--listener 127.0.0.1:{first + 1} is in use" in said
    assert "agent-2" in said
    assert not (tmp_path / "log").exists()


def test_a_missing_etcd_is_told_with_how_to_get_one(tmp_path: Path) -> None:
    """
    Where there is none on PATH and no checkout, and where the variable names none.
    """
    shutil.copytree(REPOSITORY / "client" / "driftlog", tmp_path / "client" / "driftlog")
    line = [sys.executable, "-P", "-m", "driftlog.cli", "dev", "--agents", "3"]
    installed = {**environ, "PYTHONPATH": str(tmp_path / "client"), "PATH": str(tmp_path)}
    installed.pop(BINARY_VARIABLE, None)
    for variables in (installed, {**installed, BINARY_VARIABLE: str(tmp_path / "none")}):
        done = subprocess.run(
            [*line, "--dir", str(tmp_path / "log")],
            capture_output=True,
            check=False,
            timeout=60,
            text=True,
            env=variables,
        )

        assert 1 == done.returncode
        for advice in ("make etcd", "apt-get install etcd-server", "etcd/releases"):
            assert advice in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "log").exists()
    assert f"{BINARY_VARIABLE}={tmp_path / 'none'} is no program" in done.stderr


def test_agents_that_are_all_refused_end_the_command(tmp_path: Path) -> None:
    """
    With what they say: here, that the objects are another cluster's.
    """
    directory, objects = tmp_path / "log", tmp_path / "objects"
    objects.mkdir()
    (objects / "cluster.json").write_text("of nobody we know")

    with Cluster(directory, 2, "--store", str(objects)) as cluster:
        cluster.launch()
        code = cluster.process.wait(_SOON_S)

        assert 1 == code
        assert "driftlog: " in cluster.log
        cluster.wait_for("no agent starts; their lines above give the reason")
    assert {} == living(directory)


def test_who_runs_again_is_refused_no_more(tmp_path: Path) -> None:
    """
    Else another one that is refused meanwhile would end them all.
    """
    commands = [["false"], ["sleep", "60"]]
    process = LocalProcess("agent-1", lambda: commands.pop(0), environ, tmp_path / "log", tmp_path)
    process.start()
    until(process.reap, "it does not end")
    assert process.refused

    process.start()
    try:
        assert not process.refused
    finally:
        process.kill()
    assert not process.refused


def test_an_etcd_that_does_not_start_ends_the_command(tmp_path: Path) -> None:
    """
    With what it said last.
    """
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho I am broken\nexit 3\n")
    broken.chmod(0o755)

    said = refused(
        *("--agents", "1", "--dir", str(tmp_path / "log"), "--listener", "127.0.0.1:0"),
        environment={BINARY_VARIABLE: str(broken)},
    )

    assert "etcd ended with exit code 3" in said
    assert "I am broken" in said
    assert "etcd.log" in said


def test_a_directory_of_one_agent_is_none_of_a_cluster_nor_the_other_way_round(
    tmp_path: Path,
) -> None:
    """
    Each says how it is started instead.
    """
    (tmp_path / "metadata.db").touch()
    assert "without --agents" in refused("--agents", "2", "--dir", str(tmp_path))
    (tmp_path / "metadata.db").unlink()
    (tmp_path / "etcd.json").touch()
    assert "--agents N" in refused("--dir", str(tmp_path), "--listener", "127.0.0.1:0")
