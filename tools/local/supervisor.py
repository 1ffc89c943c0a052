"""Keeps LocalStack, etcd, three agents and the demo running, and starts again what dies.

    LocalStack ──answers──▶ bucket ──┐
    etcd ────────────────healthy─────┴──▶ agents ──ready──▶ demo ──▶ stays up until a signal

    an agent, etcd or the demo ends ──▶ it is started again
    LocalStack ends ──▶ all end, their files go, and all begin again: it keeps objects in memory
    this process is killed ──▶ all end with it; the next start begins again, empty

This process has one thread: see `local_process`.

Shell.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from driftlog.dev_cluster import local_etcd
from driftlog.dev_cluster.local_process import LocalProcess, end_leftovers
from tools.local import servers
from tools.local.servers import Addresses

_TURN_S: Final = 0.1
_STOP_S: Final = 25.0
_READY: Final = "driftlog is ready: "
_DEMOS: Final = 5
"""Most runs of the demo: one that fails again and again has another reason than a kill."""

_MARK: Final = "made-by-make-local"
"""A file of the directory: without it nothing there is removed."""


class LocalError(Exception):
    """The cluster cannot be started; the message says what to do."""


class Supervisor:
    """See the module.

    Args:
        directory: of all files; absolute.
        demo: arguments of the demo.
        only: end after the demo.
        say: prints a line.
    """

    def __init__(
        self, directory: Path, demo: Sequence[str], *, only: bool, say: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._demo_arguments = list(demo)
        self._only = only
        self._say = say
        self._started = time.monotonic()
        self._stops = 0
        self._lives = 0
        self._demos = 0
        self._run = directory / "run"

    def run(self) -> int:
        """Run until a signal, or with *only* until the demo has ended; returns the exit status.

        Raises:
            LocalError: another one runs, or the directory is not of `make local`.
            NoEtcdError, OSError: etcd or a port is missing.
        """
        with self._locked(), self._signals():
            while True:
                self._lives += 1
                self._wipe()
                life = _Life(self._directory, self._run, servers.choose(self._directory))
                try:
                    status = self._live(life)
                finally:
                    life.end(self._say)
                if status is not None:
                    return status
                self._say("LocalStack has ended, and its objects with it: all begins again, empty")

    def _live(self, life: "_Life") -> int | None:
        """One life of LocalStack; None: it has ended."""
        while not self._stops:
            for process in life.processes:
                if process.reap():
                    self._say(_status(process, life.address(process)))
                    if process is life.localstack:
                        return None
            status = self._turn(life)
            if status is not None and self._only:
                return status
            time.sleep(_TURN_S)
        return 0

    def _turn(self, life: "_Life") -> int | None:
        """Start what is due, and look what is ready; the demo's status, when it has ended."""
        for process in life.due():
            process.start()
        for process in life.newly_ready():
            self._say(_status(process, life.address(process)))
        if not life.is_ready:
            return None
        return self._turn_demo(life)

    def _turn_demo(self, life: "_Life") -> int | None:
        demo = life.demo
        if demo is None:
            self._demos += 1
            topic = "flights" if self._demos == 1 else f"flights-{self._demos}"
            started = ("--started", repr(self._started))
            life.begin_demo(topic, [*started, *self._demo_arguments])
            self._say(f"clients: bootstrap.servers={life.at.bootstrap}; S3: {life.at.endpoint}")
            return None
        for line in demo.new_lines():
            self._say(line)
        if not demo.reap():
            return None
        for line in demo.new_lines():
            self._say(line)
        if demo.was_killed and self._demos < _DEMOS:
            self._say(f"the demo {demo.last_end}: it begins again")
            life.demo = None
            return None
        return 0 if demo.last_end == "ended with exit code 0" else 1

    # ── The directory ──

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        mark = self._directory / _MARK
        if self._directory.exists() and any(self._directory.iterdir()) and not mark.exists():
            raise LocalError(f"{self._directory} is not of `make local`: give another --dir")
        self._directory.mkdir(parents=True, exist_ok=True)
        mark.touch()  # first: after a kill at any moment the next start knows the directory
        self._run.mkdir(exist_ok=True)
        with (self._run / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise LocalError(
                    f"`make local` runs on {self._directory} already (process "
                    f"{lock.read().strip()}): stop it first"
                ) from error
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            for line in end_leftovers(self._run, self._directory):
                self._say(line)
            yield

    def _wipe(self) -> None:
        """Remove what belongs to objects that are gone."""
        for path in self._directory.iterdir():
            if path.name in ("run", _MARK) or path.suffix == ".log":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (self._directory / "localstack").mkdir()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self._stops += 1

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Life:
    """The processes from one start of LocalStack to its end."""

    def __init__(self, directory: Path, run: Path, at: Addresses) -> None:
        self.at = at
        self._directory, self._run = directory, run
        self.localstack = self._process(
            "localstack",
            servers.localstack_command(directory),
            servers.localstack_environment(at, directory),
        )
        self.etcd = self._process("etcd", at.etcd.command(), local_etcd.environment())
        self.agents = [self._agent(number) for number in range(1, servers.AGENTS + 1)]
        self.demo: LocalProcess | None = None
        self._has_bucket = False

    @property
    def processes(self) -> list[LocalProcess]:
        """All but the demo."""
        return [self.localstack, self.etcd, *self.agents]

    @property
    def is_ready(self) -> bool:
        """Whether every agent has been ready."""
        return all(agent.ready or agent.ended for agent in self.agents)

    def address(self, process: LocalProcess) -> str:
        """Where a process listens."""
        if process is self.localstack:
            return self.at.endpoint
        if process is self.etcd:
            return self.at.etcd.url
        number = self.agents.index(process)
        return f"{self.at.agents[number]}, http://{self.at.https[number]}/metrics"

    def due(self) -> Iterator[LocalProcess]:
        """Processes to start now; agents follow the bucket and etcd."""
        wanted = [self.localstack, self.etcd]
        if self._has_bucket and self.etcd.ready:
            wanted += self.agents
        for process in wanted:
            never = process.pid is None and process.start_at is None
            if never or (process.start_at is not None and time.monotonic() >= process.start_at):
                yield process

    def newly_ready(self) -> Iterator[LocalProcess]:
        """Processes that answer since the last call."""
        for process in self.processes:
            if process.pid is not None and not process.ready and self._answers(process):
                process.ready = True
                yield process

    def _answers(self, process: LocalProcess) -> bool:
        if process is self.localstack:
            if not self._has_bucket and servers.answers(self.at.endpoint):
                self._has_bucket = servers.make_bucket(self.at)
            return self._has_bucket
        if process is self.etcd:
            return self.at.etcd.is_healthy()
        return any(line.startswith(_READY) for line in process.new_lines())

    def begin_demo(self, topic: str, arguments: Sequence[str]) -> None:
        """Start the demo."""
        command = servers.demo_command(self.at, self._directory, topic, arguments)
        environment = {**os.environ, **servers.aws_environment(self.at)}
        self.demo = self._process("demo", command, environment)
        self.demo.start()

    def end(self, say: Callable[[str], None]) -> None:
        """End all: the demo, then agents, then what they need."""
        if self.demo is not None:
            self.demo.kill()
        gone = self.localstack.pid is None  # agents could flush nothing
        for agent in self.agents:
            agent.kill() if gone else agent.send(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        while any(agent.pid is not None for agent in self.agents):
            for agent in self.agents:
                agent.reap()
            if time.monotonic() > deadline:
                say("an agent has not ended in time: killed")
                for agent in self.agents:
                    agent.kill()
            time.sleep(_TURN_S)
        self.etcd.kill()
        self.localstack.kill()

    def _agent(self, number: int) -> LocalProcess:
        settings = servers.write_settings(self.at, self._directory, number)
        environment = servers.agent_environment(self.at)
        return self._process(f"agent-{number}", servers.agent_command(settings), environment)

    def _process(
        self, name: str, command: Sequence[str], environment: dict[str, str]
    ) -> LocalProcess:
        log = self._directory / f"{name}.log"
        return LocalProcess(name, lambda: list(command), environment, log, self._run)


def _status(process: LocalProcess, address: str) -> str:
    """One line about a process."""
    if process.pid is None:
        how = f"{process.last_end}; it is started again"
    else:
        again = f", started again {process.ended} times" if process.ended else ""
        how = f"ready at {address} (pid {process.pid}){again}"
    return f"{process.name:<10}  {how}"
