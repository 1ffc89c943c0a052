"""A cluster on this machine: one etcd and some agents, kept running until a signal stops it.

    start ──▶ etcd ──healthy──▶ agents ──ready──▶ the table ──▶ …
                                   SIGTERM, SIGINT, SIGHUP ──▶ agents end, all at once ──▶ etcd ends

    DIR/run/lock                        one cluster per directory; names the process that holds it
    DIR/run/etcd.pid  agent-N.pid       the process ids, for experiments with kill
    DIR/etcd/  etcd.json  etcd.log      etcd: its data, its ports, its output
    DIR/agent-N/  agent-N.log           an agent: its --dir, its output
    DIR/objects/                        the objects of all agents, without --store

A process that ends is started again.  The agents' output goes to standard error as it comes, each
line with the agent's name before it; messages of this command go to standard output.  Neither
blocks: a pipe without a reader, or a held terminal (Ctrl-S), delays no restart and no stop.
Shell.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driftlog.dev_cluster import local_etcd
from driftlog.dev_cluster.local_etcd import LocalEtcd
from driftlog.dev_cluster.local_output import Outputs, ours
from driftlog.dev_cluster.local_process import LocalProcess, end_leftovers

MOST_AGENTS: Final = 100
"""Each takes 100 MiB and its share of the cores: a larger number is a typing error."""

_FIRST_HTTP_PORT: Final = 9644
_TURN_S: Final = 0.1
_ETCD_START_S: Final = 60.0
_SLOW_S: Final = 30.0
_AGENTS_STOP_S: Final = 25.0  # an agent drains for 20 s at most
_ETCD_STOP_S: Final = 5.0
_TAIL_LINES: Final = 10
_LAST_WORDS_S: Final = 1.0
"""How long a slow reader of the output has for the kept lines at the end."""

_READY: Final = "driftlog is ready: "
_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ClusterError(Exception):
    """The cluster cannot be started; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """The addresses of one agent."""

    listeners: tuple[str, ...]
    """NAME://HOST:PORT each."""
    advertised: tuple[str, ...]
    """The address that clients of each listener connect to, likewise."""
    http_listener: str | None
    """None: 9644 or one of the next ports, or a free one where that is taken."""

    @property
    def listener(self) -> str:
        """HOST:PORT of the first listener."""
        return self.listeners[0].rpartition("://")[2]

    @property
    def bootstrap(self) -> str:
        """The address that clients of the first listener connect to."""
        return self.advertised[0].rpartition("://")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """One etcd and its agents.

    Args:
        directory: that of all processes; absolute.
        objects: where all agents put their objects.
        agent_command: `driftlog agent run`, and the options that are the same for all agents.
        agent_environment: the whole environment of each agent.
    """

    directory: Path
    objects: str
    etcd: LocalEtcd
    agents: tuple[AgentPlan, ...]
    agent_command: tuple[str, ...]
    agent_environment: Mapping[str, str]


class DirectoryLock:
    """One cluster per directory; held until this process ends, also by a kill."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1

    @property
    def run(self) -> Path:
        """The folder of the lock and the pid files."""
        return self._directory / "run"

    def take(self) -> None:
        """Take the lock, and end processes that the last holder left.  Harmless when repeated.

        Raises:
            ClusterError: another process holds it.
            OSError: the directory cannot be written, or a process that was left does not end.
        """
        if self._descriptor >= 0:
            return
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another user's, such as a mounted volume
            self._directory.chmod(0o700)
        descriptor = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 64).decode(errors="replace").strip()
            os.close(descriptor)
            raise ClusterError(
                f"another `driftlog dev --agents` runs on {self._directory} (process {holder}): "
                f"stop it, or choose another --dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        for line in end_leftovers(self.run, self._directory):
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                print(ours(line), flush=True)  # no process runs yet: this may block

    def take_if_it_was(self) -> None:
        """`take`, if the directory had a cluster before; otherwise leave the disk unchanged.

        Raises:
            ClusterError: another process holds it.
        """
        if (self.run / "lock").exists():
            self.take()


@dataclass(slots=True, kw_only=True)
class _Agent:
    plan: AgentPlan
    directory: Path
    process: LocalProcess
    http_address: str = ""

    @property
    def node_id(self) -> int | None:
        """The agent's node id, from its disk; None: it has none yet."""
        try:
            return int(json.loads((self.directory / "node_id.json").read_bytes())["node_id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def run(plan: ClusterPlan, lock: DirectoryLock) -> int:
    """Start the cluster, keep it running, and stop it at a signal; returns the exit code.

    Raises:
        ClusterError: etcd does not start, or another process holds the lock.
        OSError: the directory cannot be written.
    """
    lock.take()
    outputs = Outputs(plan.directory)
    for line in _left_out(plan):
        outputs.say(line)
    return _Cluster(plan, lock.run, outputs).run()


class _Cluster:
    def __init__(self, plan: ClusterPlan, run: Path, outputs: Outputs) -> None:
        self._plan = plan
        self._say = outputs.say
        self._outputs = outputs
        self._etcd = LocalProcess(
            "etcd", plan.etcd.command, local_etcd.environment(), plan.directory / "etcd.log", run
        )
        self._agents = [
            self._agent(number, agent, run) for number, agent in enumerate(plan.agents, 1)
        ]
        self._processes = [self._etcd, *(agent.process for agent in self._agents)]
        self._announced = False
        self._any_ready = False
        """Whether an agent was ready since the start of this command."""
        self._stops = 0
        """The number of signals that request the stop."""
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)

    def _agent(self, number: int, plan: AgentPlan, run: Path) -> _Agent:
        name = f"agent-{number}"
        directory = self._plan.directory / name
        process = LocalProcess(
            name,
            lambda: self._agent_command(number),
            self._plan.agent_environment,
            self._plan.directory / f"{name}.log",
            run,
        )
        return _Agent(plan=plan, directory=directory, process=process)

    def _agent_command(self, number: int) -> list[str]:
        agent = self._agents[number - 1]
        agent.http_address = agent.plan.http_listener or self._http_address(number)
        listeners = [text for at in agent.plan.listeners for text in ("--listener", at)]
        told = [text for at in agent.plan.advertised for text in ("--advertised-listener", at)]
        return [
            *self._plan.agent_command,
            *("--dir", str(agent.directory), "--store", self._plan.objects),
            *("--etcd", self._plan.etcd.url, "--http-listener", agent.http_address),
            *(*listeners, *told),
        ]

    def _http_address(self, number: int) -> str:
        """The last address, or the agent's own port from 9644 on, or a free one."""
        before = self._agents[number - 1].http_address.rpartition(":")[2]
        wanted = int(before or _FIRST_HTTP_PORT + number - 1)
        others = {
            int(agent.http_address.rpartition(":")[2])
            for n, agent in enumerate(self._agents, 1)
            if agent.http_address and n != number
        }
        taken = ports(self._plan.agents) | others
        return f"127.0.0.1:{local_etcd.free_port(wanted, taken)}"

    # ── Running ──

    def run(self) -> int:
        with self._signals():
            try:
                self._wait_for_etcd()
                started = time.monotonic()
                slow_at: float | None = started + _SLOW_S
                while not self._stops:
                    self._turn()
                    if self._refused():
                        self._say("no agent starts; their lines above give the reason")
                        self._stop()
                        return 1
                    self._announce_once()
                    if slow_at is not None and time.monotonic() > slow_at:
                        slow_at = None
                        self._name_the_slow()
                return self._stop()
            finally:
                for process in reversed(self._processes):
                    process.kill()
                self._outputs.pass_on(_LAST_WORDS_S)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals end a wait; those that request the stop are counted.  An ignored SIGHUP (nohup)
        stays ignored."""

        def stop(*_: object) -> None:
            self._stops += 1

        handled = [n for n in _STOPS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, stop) for number in handled}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait(self, seconds: float) -> None:
        if self._outputs.pass_on(seconds, self._woken):
            self._woken.recv(4096)

    def _wait_for_etcd(self) -> None:
        """
        Raises:
            ClusterError: etcd does not start.
        """
        self._etcd.start()
        deadline = time.monotonic() + _ETCD_START_S
        while not self._stops and not self._plan.etcd.is_healthy():
            if self._etcd.reap():
                raise ClusterError(f"etcd {self._etcd.last_end}:{self._etcd_said()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"etcd is not healthy in {_ETCD_START_S} s:{self._etcd_said()}")
            self._wait(_TURN_S)
        self._etcd.ready = True

    def _etcd_said(self) -> str:
        lines = "".join(f"\n    {line}" for line in self._etcd.tail(_TAIL_LINES))
        return f"{lines}\n    its whole log is {self._etcd.log}"

    def _turn(self) -> None:
        self._tell()
        for process in self._processes:
            if process.reap():
                self._report_end(process)
        if not self._etcd.ready and self._etcd.pid is not None and self._plan.etcd.is_healthy():
            self._etcd.ready = True
            self._say("etcd answers again")
        if self._is_due(self._etcd):
            self._start(self._etcd)
        for agent in self._agents:
            if self._is_due(agent.process):
                self._start(agent.process)
            if not self._announced and agent.node_id is None and agent.process.ended == 0:
                break  # new agents start one by one, so that node ids follow their order
        self._wait(_TURN_S)

    def _refused(self) -> bool:
        """Whether all agents ended with a reason, and none was ever ready."""
        agents = [agent.process for agent in self._agents]
        self._any_ready |= any(process.ready for process in agents)
        return not self._any_ready and all(process.refused for process in agents)

    def _is_due(self, process: LocalProcess) -> bool:
        if process.start_at is None:
            return process.pid is None
        return time.monotonic() >= process.start_at

    def _start(self, process: LocalProcess) -> None:
        process.start()
        if process.ended and process.pid is not None:
            self._say(f"{process.name} {process.last_end}: started again (pid {process.pid})")

    def _report_end(self, process: LocalProcess) -> None:
        self._tell()
        assert process.start_at is not None
        early = "" if process.ready else " before it was ready"
        again_s = max(1, round(process.start_at - time.monotonic()))
        self._say(f"{process.name} {process.last_end}{early}; it is started again in {again_s} s")
        # An agent's output was shown already; a killed etcd has logged nothing about it.
        if process is self._etcd and not process.was_killed:
            self._say(f"its last lines:{self._etcd_said()}")

    # ── Output ──

    def _tell(self) -> None:
        """Pass on the agents' new lines."""
        for agent in self._agents:
            while lines := agent.process.new_lines():
                for line in lines:
                    self._note_ready(agent, line)
                self._outputs.tell(f"{agent.process.name} | {line}" for line in lines)
        self._etcd.new_lines()

    def _note_ready(self, agent: _Agent, line: str) -> None:
        if line.startswith(_READY):
            agent.process.ready = True
            if self._announced:
                self._say(f"{agent.process.name} is ready")

    def _announce_once(self) -> None:
        if self._announced or not all(agent.process.ready for agent in self._agents):
            return
        self._announced = True
        rows = [
            ("", "node", "listener", "http", "pid", "directory"),
            *(
                (
                    agent.process.name,
                    str(agent.node_id),
                    agent.plan.listener,
                    agent.http_address,
                    str(agent.process.pid),
                    str(agent.directory),
                )
                for agent in self._agents
            ),
        ]
        etcd = self._plan.etcd
        rows.append(("etcd", "", etcd.address, "", str(self._etcd.pid), str(etcd.directory)))
        self._outputs.show([*_table(rows), self._ready_line()])

    def _ready_line(self) -> str:
        """The ready line of one agent, with the addresses of all."""
        bootstrap = ",".join(agent.plan.bootstrap for agent in self._agents)
        http = ",".join(agent.http_address for agent in self._agents)
        return f"{_READY}bootstrap {bootstrap}, http {http}, objects in {self._plan.objects}"

    def _name_the_slow(self) -> None:
        for agent in self._agents:
            if not self._announced and not agent.process.ready:
                self._say(
                    f"{agent.process.name} is not ready after {_SLOW_S:.0f} s: {agent.process.log}"
                )

    # ── Stopping ──

    def _stop(self) -> int:
        """Stop the agents first: they need etcd to release their partitions.  A second signal kills
        all processes."""
        self._say("stopping: the agents first, then etcd; a second signal stops all at once")
        agents = [agent.process for agent in self._agents]
        in_time = self._end(agents, _AGENTS_STOP_S)
        in_time &= self._end([self._etcd], _ETCD_STOP_S)
        self._say("stopped")
        return 0 if in_time else 1

    def _end(self, processes: Sequence[LocalProcess], seconds: float) -> bool:
        for process in processes:
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while running := [process for process in processes if process.pid is not None]:
            if time.monotonic() > deadline or self._stops > 1:
                for process in running:
                    self._say(f"{process.name} (pid {process.pid}) has not ended: killed")
                    process.kill()
                self._tell()
                return False
            self._wait(_TURN_S)
            self._tell()
            for process in running:
                process.reap()
        self._tell()
        return True


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def ports(agents: Sequence[AgentPlan]) -> frozenset[int]:
    """The ports of the agents' listeners, as far as they are chosen."""
    addresses = [text for a in agents for text in (*a.listeners, a.http_listener or "")]
    return frozenset(int(text.rpartition(":")[2]) for text in addresses if text)


def is_cluster(directory: Path) -> bool:
    """Whether *directory* holds a cluster."""
    return (directory / "etcd.json").exists()


def refuse_single(directory: Path) -> None:
    """
    Raises:
        ClusterError: *directory* holds one agent with the embedded metadata store.
    """
    if (directory / "metadata.db").exists():
        raise ClusterError(
            f"{directory} is the directory of one agent, with its metadata in metadata.db: start "
            "it without --agents, or choose another --dir for a cluster"
        )


def _left_out(plan: ClusterPlan) -> list[str]:
    """Lines about agents that an earlier start had and this one has not."""
    number = len(plan.agents) + 1
    said = []
    while (plan.directory / f"agent-{number}").exists():
        said.append(
            f"agent-{number} ran here before and is not started: records that it acknowledged "
            f"with acks=1 may be on its disk only; --agents {number} starts it"
        )
        number += 1
    return said
