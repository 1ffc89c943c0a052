"""Machines of a cluster as processes of this one, from nothing but what their user data says.

Paths, addresses and binaries are this machine's; command lines, scripts and configuration are the
machines' own.

Shell.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.components import REPOSITORY
from tests.support.driftlog_process import driftlog_command
from tests.support.etcd_server import newest_version
from tests.support.process_usage import free_port, stop_process, wait_until
from tests.terraform.machine_files import MachineFiles

_STOP_SECONDS: Final = 35.0
"""TimeoutStopSec of the agent's unit."""


class EtcdMembers:
    """Members of etcd on 127.0.0.1, .2 and .3, which `driftlog-etcd` starts.  A context manager."""

    def __init__(
        self, folder: Path, machines: Sequence[MachineFiles], account: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._client_port, self._peer_port = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self.script = folder / "driftlog-etcd"
        self.script.write_text(machines[0].contents["/usr/local/bin/driftlog-etcd"])
        binary = REPOSITORY / ".cache" / "etcd" / newest_version() / "etcd"
        own = [machine.variables("/etc/driftlog-etcd/member.env") for machine in machines]
        names = [variables["MEMBER"] for variables in own]
        addresses = {name: f"127.0.0.{number}" for number, name in enumerate(names, 1)}
        for name, variables in zip(names, own, strict=True):
            home = folder / name
            home.mkdir()
            self._environments[name] = {
                **os.environ,
                **variables,
                **account,
                "MEMBERS": ",".join(f"{n}={address}" for n, address in addresses.items()),
                "DATA": str(home / "data"),
                "CERTIFICATES": str(home / "certificates"),
                "ETCD": str(binary),
                "ETCDUTL": str(binary.with_name("etcdutl")),
                "CLIENT_PORT": str(self._client_port),
                "PEER_PORT": str(self._peer_port),
            }
        self.endpoints = [f"https://{a}:{self._client_port}" for a in addresses.values()]
        self.names = names

    def __enter__(self) -> "EtcdMembers":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.stop(name)

    def home(self, name: str) -> Path:
        return self._folder / name

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, **changed: str) -> None:
        """As its unit does, with *changed* variables, without a wait."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, str(self.script), "start"],
                env=self._environments[name] | changed,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait_until_healthy(self, name: str) -> None:
        """Return when the member has a quorum; it is started again when it ends, as by systemd.

        Raises:
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + 90
        while not self._health(name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not healthy: {self.log(name)[-3000:]}")
            if self._processes[name].poll() is not None:
                self.start(name)
            time.sleep(0.2)

    def ended(self, name: str) -> int:
        """How it ended by itself."""
        return self._processes.pop(name).wait(60)

    def stop(self, name: str) -> None:
        stop_process(self._processes.pop(name), 10)

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of `driftlog-etcd` on the machine of *name*."""
        return subprocess.run(
            [sys.executable, str(self.script), *arguments],
            env=self._environments[name],
            capture_output=True,
            text=True,
            check=False,
        )

    def answer(self, name: str, path: str, body: str = "{}") -> str:
        """What the member answers through its gateway, asked with its own certificate."""
        folder = self._folder / name / "certificates"
        code = (
            "import runpy,sys,os,json; s = runpy.run_path(sys.argv[1]);"
            "e = dict(os.environ); a = s['addresses_of'](e)[e['MEMBER']];"
            "print(s['ask'](e, a, sys.argv[2], json.loads(sys.argv[3])).read().decode())"
        )
        assert folder.is_dir(), "not started"
        return subprocess.run(
            [sys.executable, "-c", code, str(self.script), path, body],
            env=self._environments[name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def _health(self, name: str) -> bool:
        try:
            self.answer(name, "/v3/cluster/member/list", '{"linearizable": true}')
        except (AssertionError, subprocess.CalledProcessError):
            return False
        return True


class Agent:
    """An agent with the command line of its unit.  A context manager."""

    def __init__(
        self, folder: Path, machine: MachineFiles, environment: Mapping[str, str], zone: str
    ) -> None:
        folder.mkdir()
        self.listener = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        configuration = folder / "agent.toml"
        configuration.write_text(machine.contents["/etc/driftlog/agent.toml"])
        moved = {
            "/opt/driftlog/bin/driftlog": str(driftlog_command()),
            "/etc/driftlog/agent.toml": str(configuration),
        }
        self.command = [moved.get(word, word) for word in machine.exec_start("driftlog.service")]
        self._log = folder / "log"
        self._environment = {
            **os.environ,
            **environment,
            "DRIFTLOG_LISTENER": self.listener,
            "DRIFTLOG_HTTP_LISTENER": self.http,
            "DRIFTLOG_RACK": zone,
            "DRIFTLOG_DIR": str(folder / "data"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Agent":
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        ready = f"driftlog is ready: bootstrap {self.listener}"
        wait_until(lambda: ready in self.log, self._process, 60, self._log)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM, as systemd stops it; its exit status, or that of a kill after 35 s."""
        assert self._process is not None, "not started"
        return stop_process(self._process, _STOP_SECONDS)


def client_certificate(machine: MachineFiles, pem: str, folder: Path) -> None:
    """The three files of *pem*, written by the machine's own lines."""
    boot = machine.contents["/usr/local/sbin/driftlog-boot"]
    begin = boot.index("    awk -v dir=")
    lines = boot[begin : boot.index("\n", boot.index('<<<"$pem"', begin))]
    folder.mkdir()
    lines = lines.replace("/etc/driftlog/tls", shlex.quote(str(folder)))
    subprocess.run(["bash", "-euc", lines], env=os.environ | {"pem": pem}, check=True)
