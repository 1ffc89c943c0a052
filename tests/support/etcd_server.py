"""Real etcd for tests: one member or several, killed, frozen and started again at will.

    start(version, directory, members=3) ──▶ EtcdCluster ──▶ member.kill(), start(), freeze(), …

The servers are those under ``.cache/etcd/{version}/``, where ``make etcd`` puts them.  Each
listens on free ports of 127.0.0.1, keeps its data below the directory it was given, and dies
with the process that started it: a shell waits for the end of a pipe and kills it.

What a test does to etcd beside the port (compact, users, alarms) goes through etcd's own
JSON gateway, not through the client that is tested.
Shell.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from driftlog_metadata.stores.store import MetadataStore, Put
from tests.support.components import REPOSITORY
from tests.support.process_usage import free_port

_START_SECONDS: Final = 60.0
NO_ETCD: Final = "no etcd in .cache/etcd: make etcd (it needs go, or apt-get and dpkg-deb)"

# `sh` is told the server's process id by `$!`, tells us, and ends it when we are gone.
_KEEPER: Final = 'log=$1; shift; "$@" >>"$log" 2>&1 & echo $!; read _; kill -9 $!; wait $!'


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


VERSIONS: Final = sorted(
    (path.parent.name for path in (REPOSITORY / ".cache" / "etcd").glob("*/etcd")), key=_number
)
"""What is there, oldest first."""

_OLDER: Final = [pytest.mark.real_processes, pytest.mark.verify]
EACH_VERSION: Final = [
    *(pytest.param(version, id=f"etcd-{version}", marks=_OLDER) for version in VERSIONS[:-1]),
    *(
        pytest.param(version, id=f"etcd-{version}", marks=pytest.mark.real_processes)
        for version in VERSIONS[-1:]
    ),
] or [pytest.param("", id="etcd", marks=pytest.mark.skip(reason=NO_ETCD))]
"""For ``parametrize``: every version, or one that skips and says why.

`make test` has the newest, `make verify` the others.
"""


_RESTORED_WITH: Final = (
    *("--data-dir", "--name", "--initial-cluster", "--initial-cluster-token"),
    "--initial-advertise-peer-urls",
)
"""Of the server's arguments, those that a restore wants as well."""


def newest_version() -> str:
    """The version for tests that need one only, or a skip that says how to get it."""
    if not VERSIONS:
        pytest.skip(NO_ETCD)
    return VERSIONS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Files for a cluster with TLS: each side shows *certificate_file*, signed by *ca_file*."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


def _is_running(stat: Path) -> bool:
    """Whether the thread of a /proc/PID/task/TID/stat is not stopped; one that is gone is not."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "TtXZ"
    except (FileNotFoundError, ProcessLookupError):
        return False


class EtcdMember:
    """One server process, and the files that survive it."""

    def __init__(self, command: list[str], log: Path, url: str, tls: Certificates | None) -> None:
        self.url = url
        self._command = command
        self._log = log
        self._tls = tls
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Start it on its data and its ports; `wait_until_healthy` says when it is there."""
        assert self._keeper is None, "it runs"
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", str(self._log), *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # "Killed"
            start_new_session=True,  # Ctrl-C is for the tests; they stop us.
        )
        assert self._keeper.stdout is not None
        self._pid = int(self._keeper.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, frozen or not; return when it is gone.  A repeat is harmless."""
        if self._keeper is not None:
            self._keeper.communicate()  # closes its stdin, waits for its end
            self._keeper = None

    def freeze(self) -> None:
        """SIGSTOP, to the last thread: its connections stay, and nobody answers."""
        os.kill(self._pid, signal.SIGSTOP)
        while any(_is_running(thread) for thread in Path(f"/proc/{self._pid}/task").glob("*/stat")):
            time.sleep(0.001)  # a busy machine stops one thread and answers from another

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)

    def is_healthy(self) -> bool:
        """Whether it answers, and its cluster has a leader; it may be full."""
        try:
            with self._open("/health?exclude=NOSPACE", None, timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, HTTPException, ValueError):  # it may end in the middle of an answer
            return False

    def post(
        self, path: str, body: dict[str, Any], token: str | None = None, timeout: float = 10
    ) -> dict[str, Any]:
        """Ask its JSON gateway; an `OSError` is its refusal."""
        with self._open(path, json.dumps(body).encode(), timeout=timeout, token=token) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def snapshot(self, file: Path) -> None:
        """As ``etcdctl snapshot save``."""
        with self._open("/v3/maintenance/snapshot", b"{}", timeout=30) as answer:
            file.write_bytes(
                b"".join(base64.b64decode(json.loads(line)["result"]["blob"]) for line in answer)
            )

    def etcdutl(self) -> Path:
        """The tool that is beside the server, or a skip that says how to get it."""
        tool = Path(self._command[0]).with_name("etcdutl")
        if not tool.exists():
            pytest.skip(f"no {tool.relative_to(REPOSITORY)}: make etcd (it needs go)")
        return tool

    def restore(self, snapshot: Path, bump_revision: int) -> None:
        """As etcd's manual advises for clients that watch; it does not run, and starts on that.

        Name, addresses and token are the same, and so are the ids of cluster and member.
        """
        shutil.rmtree(self._option("--data-dir"))
        subprocess.run(
            [
                *(self.etcdutl(), "snapshot", "restore", snapshot),
                *("--bump-revision", str(bump_revision), "--mark-compacted"),
                *(word for name in _RESTORED_WITH for word in (name, self._option(name))),
            ],
            check=True,
            capture_output=True,
        )

    def _option(self, name: str) -> str:
        return self._command[self._command.index(name) + 1]

    def metrics(self) -> str:
        """What Prometheus would read."""
        with self._open("/metrics", None, timeout=5) as answer:
            return str(answer.read(), "utf-8")

    def log(self, size: int = 3000) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-size:] if self._log.exists() else "(no log)"

    def _open(
        self, path: str, body: bytes | None, *, timeout: float, token: str | None = None
    ) -> Any:
        headers = {"Authorization": token} if token else {}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_ssl_context(self._tls)))
        request = urllib.request.Request(self.url + path, body, headers)
        return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


class EtcdCluster:
    """Members of one cluster.  A context manager: its end is theirs."""

    def __init__(self, members: Sequence[EtcdMember]) -> None:
        self.members = list(members)

    def __enter__(self) -> "EtcdCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all of it.  A repeat is harmless."""
        for member in self.members:
            member.kill()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Of all members, in their order."""
        return tuple(member.url for member in self.members)

    def wait_until_healthy(self, members: Sequence[EtcdMember] | None = None) -> None:
        """Return when *members* (all) answer and know a leader.

        Raises:
            TimeoutError: it took too long; the end of a log is in the message.
        """
        deadline = time.monotonic() + _START_SECONDS
        for member in self.members if members is None else members:
            while not member.is_healthy():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{member.url} is not healthy: {member.log()}")
                time.sleep(0.01)

    def leader(self, members: Sequence[EtcdMember] | None = None) -> EtcdMember:
        """Who of *members* (all) leads; asks those that answer, until they have elected one.

        Raises:
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            ids = {}
            leader = "0"
            for member in self.members if members is None else members:
                if member.is_healthy():
                    status = member.post("/v3/maintenance/status", {})
                    ids[status["header"]["member_id"]] = member
                    leader = status.get("leader", "0")
            if leader in ids:
                return ids[leader]
            time.sleep(0.01)
        raise TimeoutError("there is no leader")

    def compact(self, revision: int) -> None:
        """Forget the history before *revision*, at every member; the last one is asked."""
        self.members[-1].post("/v3/kv/compaction", {"revision": revision, "physical": True})

    def make_room(self, revision: int) -> None:
        """What a full etcd needs: compaction, defragmentation of all, and its alarms disarmed."""
        self.compact(revision)
        for member in self.members:
            member.post("/v3/maintenance/defragment", {})
        ask = self.members[-1].post
        for alarm in ask("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", []):
            ask("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def enable_auth(
        self, user: str, password: str, prefix: str, permission: str = "READWRITE"
    ) -> None:
        """Users from now on: root, and *user*, who has *permission* for everything under
        *prefix*."""
        ask = self.members[-1].post
        end = prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
        granted = {"permType": permission, "key": _b64(prefix.encode()), "range_end": _b64(end)}
        ask("/v3/auth/user/add", {"name": "root", "password": "root"})
        ask("/v3/auth/role/add", {"name": "root"})
        ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        ask("/v3/auth/user/add", {"name": user, "password": password})
        ask("/v3/auth/role/add", {"name": "agent"})
        ask("/v3/auth/role/grant", {"name": "agent", "perm": granted})
        ask("/v3/auth/user/grant", {"user": user, "role": "agent"})
        ask("/v3/auth/enable", {})


def start(
    version: str,
    directory: Path,
    *,
    members: int = 1,
    arguments: Sequence[str] = (),
    tls: Certificates | None = None,
    durable: bool = False,
) -> EtcdCluster:
    """Start a new cluster below *directory*; return when all of it is healthy.

    *durable*: it syncs what it answers, as in production; tests need no disk for that.
    *arguments*: more of etcd's, and others than those here.
    """
    binary = REPOSITORY / ".cache" / "etcd" / version / "etcd"
    scheme = "http" if tls is None else "https"
    peers = {f"m{number}": f"http://127.0.0.1:{free_port()}" for number in range(members)}
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    fast = ["--unsafe-no-fsync"] if not durable and "--unsafe-no-fsync" in _help(binary) else []
    # Several elect another leader when theirs stands still for a moment; one alone does not.
    heartbeat_ms = 10 if members == 1 else 30
    made = []
    for name, peer_url in peers.items():
        url = f"{scheme}://127.0.0.1:{free_port()}"
        command = [
            *(str(binary), "--name", name, "--data-dir", str(directory / name)),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", cluster, "--initial-cluster-token", str(directory)),
            *("--heartbeat-interval", str(heartbeat_ms)),
            *("--election-timeout", str(10 * heartbeat_ms), *fast),
            *([] if tls is None else _tls_arguments(tls)),
            *arguments,
        ]
        made.append(EtcdMember(command, directory / f"{name}.log", url, tls))
    started = EtcdCluster(made)
    try:
        for member in made:
            member.start()
        started.wait_until_healthy()
    except BaseException:
        started.stop()
        raise
    return started


async def fill(store: MetadataStore) -> None:
    """
    Write history until something is raised, for a minute at most.

    etcd compares its quota with a size that its backend tells at each of its own commits, every
    0.1 s or later: a fixed number of puts may all be through before it.
    """
    until = time.monotonic() + 60
    while time.monotonic() < until:
        await store.txn([], [Put("/k", bytes(100_000))])
        await asyncio.sleep(0.01)


def _tls_arguments(tls: Certificates) -> list[str]:
    return [
        *("--cert-file", str(tls.certificate_file), "--key-file", str(tls.key_file)),
        *("--client-cert-auth", "--trusted-ca-file", str(tls.ca_file)),
    ]


def _ssl_context(tls: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca_file))
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


@cache
def _help(binary: Path) -> str:
    return subprocess.run([binary, "--help"], capture_output=True, text=True, check=False).stdout


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
