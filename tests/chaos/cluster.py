"""etcd, S3, agents, and every link between them through a proxy.

    clients ──Link──▶ agent n ──Link──▶ etcd member 0 … 2
                         └────Link──▶ S3Faults ──▶ LocalStack

An agent listens on its port and tells clients that of the link in front of it.  An agent that
ends although nobody ended it is started again after a second, and counted.
Shell.
"""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from unittest.mock import patch

from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_tiering.stores.locations import open_object_store
from tests.clients.command import run
from tests.support import etcd_server, s3_servers
from tests.support.bucket_account import Account, account
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster
from tests.support.links import Link, LinkMode, Network
from tests.support.s3_faults import S3Faults, S3Trouble

MEMBERS: Final = 3
_READY_S: Final = 60.0
_LOOK_S: Final = 0.1
_AGAIN_S: Final = 1.0


class Cluster:
    """See the module.  A context manager; within it, everything runs and is healthy.

    Args:
        folder: of all data and logs; it is kept.
        agents: how many.
        seed: of the dice of S3's troubles.
        note: is told, in a line, what happens.
        durable: etcd's members sync what they answer, so that a copy of their data is whole.
        configs: of each agent, as ``--config`` takes them.
        grace_s: of garbage; None: the default.
    """

    def __init__(
        self,
        folder: Path,
        agents: int,
        seed: int,
        note: Callable[[str], None],
        *,
        durable: bool = False,
        configs: Sequence[str] = (),
        grace_s: float | None = None,
    ) -> None:
        ms = None if grace_s is None else str(int(grace_s * 1000))
        self._grace = () if ms is None else ("--new-cluster-grace-ms", ms)
        self._configs = [word for config in configs for word in ("--config", config)]
        self._folder = folder
        self._count = agents
        self._seed = seed
        self._note = note
        self._durable = durable
        self._stack = ExitStack()
        self.etcd_folder = folder / "etcd"
        """Of its members' data, in folders m0, m1, …"""
        self.agents: list[ChaosAgent] = []
        self.location = ""
        """Of the objects."""
        self.environment: Mapping[str, str] = {}
        """In which they are found, past the proxies."""

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        endpoint = enter(s3_servers.running("localstack", self._folder))
        bucket = s3_servers.fresh_bucket(endpoint)
        self.location = f"{bucket.location}/chaos"
        self.environment = bucket.environment
        self.etcd_folder.mkdir()
        version = etcd_server.VERSIONS[-1]
        self.etcd = enter(
            etcd_server.start(version, self.etcd_folder, members=MEMBERS, durable=self._durable)
        )
        self.network = enter(Network())
        self.s3 = S3Faults(self.network, _port(endpoint), self._seed)
        # A child that asked for it is ended with the thread that started it: this one stays.
        launcher = enter(ThreadPoolExecutor(1, "launcher"))
        for number in range(self._count):
            etcd_links = [self.network.link(_port(url)) for url in self.etcd.endpoints]
            s3_link = self.network.link(self.s3.port)
            store = ("--store", self.location, *self._grace)
            agent = ChaosAgent(
                number,
                self._folder,
                network=self.network,
                etcd=etcd_links,
                s3=s3_link,
                arguments=(
                    "--etcd",
                    ",".join(link.url for link in etcd_links),
                    *store,
                    *self._configs,
                ),
                environment={**bucket.environment, "AWS_ENDPOINT_URL": s3_link.url},
                launcher=launcher,
                note=self._note,
            )
            self._stack.callback(agent.end)
            self.agents.append(agent)
            agent.start()
        for agent in self.agents:
            agent.wait_until_up(_READY_S)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{agent.clients.port}" for agent in self.agents)

    def account(self) -> Account:
        """What is in the bucket, judged by the metadata; past the proxies."""

        async def look() -> Account:
            metadata = EtcdMetadataStore(EtcdSettings(endpoints=self.etcd.endpoints))
            objects = open_object_store(self.location)
            try:
                return await account(metadata, objects)
            finally:
                await metadata.close()
                await objects.close()

        with patch.dict(os.environ, self.environment):
            return asyncio.run(look())

    def heal(self) -> None:
        """All links pass, S3 and etcd work, all agents run and are up.

        Raises:
            TimeoutError: an agent is not up after a minute; its log says why.
        """
        self.s3.set(S3Trouble())
        for member in self.etcd.members:
            member.thaw()
        self.etcd.wait_until_healthy()
        for agent in self.agents:
            agent.heal()
        for agent in self.agents:
            agent.wait_until_up(_READY_S)

    def ended_by_themselves(self) -> list[str]:
        return [line for agent in self.agents for line in agent.ended_by_itself]


class ChaosAgent:
    """One agent, its disk, and the links around it.  One thread at a time does things to it."""

    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        network: Network,
        etcd: list[Link],
        s3: Link,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        launcher: ThreadPoolExecutor,
        note: Callable[[str], None],
    ) -> None:
        self.number = number
        self.etcd, self.s3 = etcd, s3
        self.folder = folder / f"agent-{number}"
        self.folder.mkdir()
        self._disks = 0
        self._launcher = launcher
        self._note = note
        self._process = _Process(self._next_disk(), arguments, environment, self.folder)
        self.clients = network.link(self._process.port)
        self._process.advertise(self.clients.port)
        self.turn = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._monitor = threading.Thread(target=self._watch, daemon=True)
        self._state = threading.Lock()
        self._log_at_start = 0
        self.ended_by_itself: list[str] = []
        self.refused_starts = 0

    @property
    def links(self) -> list[Link]:
        return [*self.etcd, self.s3, self.clients]

    @property
    def log(self) -> str:
        return self._process.log

    @property
    def http(self) -> str:
        return self._process.http

    def node_id(self) -> int | None:
        """Of the agent on this disk; None if it never had one."""
        try:
            found: int = json.loads((self._process.directory / "node_id.json").read_text())[
                "node_id"
            ]
        except (FileNotFoundError, ValueError):
            return None
        return found

    def has_leftovers(self) -> bool:
        """Whether buffers of earlier sessions are on its disk beside the present one's."""
        return len(list((self._process.directory / "buffer").iterdir())) > 1

    def replay(self, bootstrap: str) -> tuple[int, str]:
        """`driftlog buffer replay` of its disk: exit status, and what it said."""
        done = run("buffer", "replay", str(self._process.directory), bootstrap=bootstrap)
        return done.returncode, done.stderr.decode().strip()

    def start(self) -> None:
        with self._state:
            self._wanted = True
            self._launch()
        if not self._monitor.is_alive():
            self._monitor.start()

    def kill(self) -> None:
        """SIGKILL."""
        with self._state:
            self._wanted = False
            self._process.kill()

    def empty(self) -> None:
        """It goes on with an empty disk when it starts; the old one stays for who looks."""
        assert not self._wanted, "it runs"
        self._process.directory = self._next_disk()

    def stop(self) -> tuple[float, int]:
        """SIGTERM; how long it took, in seconds, and its exit status."""
        with self._state:
            self._wanted = False
            began = time.monotonic()
            status = self._process.terminate() if self._process.ended() is None else 0
            return time.monotonic() - began, status

    def freeze(self) -> bool:
        """SIGSTOP; whether it runs at all."""
        with self._state:
            running = self._wanted and self._process.ended() is None
            if running:
                self._process.pause()
            return running

    def thaw(self) -> None:
        with self._state:
            if self._wanted and self._process.ended() is None:
                self._process.resume()

    def cut(self, links: list[Link], mode: LinkMode) -> None:
        for link in links:
            link.set(mode)

    def mend(self, links: list[Link], *, deliver_late: bool) -> None:
        for link in links:
            link.set("pass", deliver_late=deliver_late)

    def heal(self) -> None:
        self.mend(self.links, deliver_late=True)
        self.thaw()
        if not self._wanted:
            self.start()

    def is_up(self) -> bool:
        """It is ready, or stands by for another one that serves."""
        since = self._process.log[self._log_at_start :]
        return self._process.is_ready() or "standing_by" in since

    def wait_until_up(self, seconds: float) -> None:
        """
        Raises:
            TimeoutError: it is not.
        """
        deadline = time.monotonic() + seconds
        while not self.is_up():
            if time.monotonic() > deadline:
                raise TimeoutError(f"agent {self.number} is not up: {self.log[-3000:]}")
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """The run is over."""
        self._closed.set()
        if self._monitor.is_alive():
            self._monitor.join()
        self.kill()

    def _next_disk(self) -> Path:
        self._disks += 1
        return self.folder / f"disk-{self._disks}"

    def _launch(self) -> None:
        self._log_at_start = len(self._process.log)
        self._launcher.submit(self._process.launch).result()

    def _watch(self) -> None:
        """Start it again where it ended and nobody wanted that."""
        while not self._closed.wait(_LOOK_S):
            with self._state:
                status = self._process.ended() if self._wanted else None
                if status is None:
                    continue
                was_up = self.is_up()
                self._process.kill()
            if was_up:
                line = f"agent {self.number} ended by itself with {status}"
                self.ended_by_itself.append(line)
                self._note(line)
            else:
                self.refused_starts += 1
                self._note(f"agent {self.number} did not start: exit status {status}")
            if self._closed.wait(_AGAIN_S):
                return
            with self._state:
                if self._wanted and not self._process.started:
                    self._launch()


class _Process(DriftlogProcess):
    """A process that may end when it likes, and ends with this one."""

    def __init__(
        self, directory: Path, arguments: tuple[str, ...], environment: Mapping[str, str], at: Path
    ) -> None:
        keeper = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        super().__init__(
            directory, arguments, environment, at, prefix=keeper, command=("agent", "run")
        )

    def advertise(self, port: int) -> None:
        self._arguments += ("--advertised-listener", f"127.0.0.1:{port}")

    @property
    def log(self) -> str:
        return super().log if self._err.exists() else ""

    def is_ready(self) -> bool:
        """It has said so since its last start, and names what it advertises."""
        return "driftlog is ready" in self._out.read_text(errors="replace")

    @property
    def started(self) -> bool:
        return self._process is not None

    def ended(self) -> int | None:
        """Its exit status; None if it runs, or does not by our doing."""
        return None if self._process is None else self._process.poll()

    def terminate(self) -> int:
        if self._process is None:
            return 0
        try:
            return super().terminate()
        except subprocess.TimeoutExpired:
            self.kill()
            return -9


def keys_under(etcd: EtcdCluster, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Keys and values in etcd, past our own client of it; nothing if no member answers."""
    start = prefix.encode()
    end = start[:-1] + bytes([start[-1] + 1])
    body = {"key": b64encode(start).decode(), "range_end": b64encode(end).decode()}
    for member in etcd.members:
        try:
            answer = member.post("/v3/kv/range", body, timeout=0.5)
        except OSError:
            continue
        for kv in answer.get("kvs", []):
            yield b64decode(kv["key"]).decode(), b64decode(kv["value"])
        return


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
