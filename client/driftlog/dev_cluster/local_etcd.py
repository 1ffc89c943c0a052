"""The etcd of `driftlog dev --agents`: its binary, its ports, and its health.

One member on 127.0.0.1, its data in DIR/etcd.  Its ports are any free ones, kept in
DIR/etcd.json, so that they are the same after a restart.
Shell.
"""

import itertools
import json
import os
import random
import re
import shutil
import socket
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BINARY_VARIABLE: Final = "DRIFTLOG_ETCD_BINARY"
_QUOTA_BYTES: Final = 8 * 1024**3  # etcd's own advice for the largest
_CHECKOUT: Final = Path(__file__).resolve().parents[3]
_PROBE_S: Final = 0.5
_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_768)
"""Below the ports of outgoing connections (Linux from 32768, macOS and RFC 6335 from 49152): a
client that connects to a free port of those again and again may get it as its own port."""

_GET_ONE: Final = (
    "Get one with `make etcd` in a checkout of driftlog, with `apt-get install etcd-server`, or "
    "from https://github.com/etcd-io/etcd/releases (3.4 or newer); driftlog looks for it in "
    f"{BINARY_VARIABLE}, then on PATH, then in the checkout's .cache/etcd"
)


class NoEtcdError(Exception):
    """There is no etcd to start; the message says how to get one."""


def find_binary() -> Path:
    """The etcd to start.

    Raises:
        NoEtcdError: there is none.
    """
    if named := os.environ.get(BINARY_VARIABLE):
        found = shutil.which(named)
        if found is None:
            raise NoEtcdError(f"{BINARY_VARIABLE}={named} is no program.  {_GET_ONE}")
        return Path(found).absolute()
    if found := shutil.which("etcd"):
        return Path(found).absolute()
    fetched = [path for path in _CHECKOUT.glob(".cache/etcd/*/etcd") if os.access(path, os.X_OK)]
    if not fetched:
        raise NoEtcdError(f"no etcd binary is found.  {_GET_ONE}")
    return max(fetched, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEtcd:
    """The addresses and the directory of the one member."""

    binary: Path
    directory: Path
    client_port: int
    peer_port: int

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{_HOST}:{self.client_port}"

    @property
    def url(self) -> str:
        """The URL for agents."""
        return f"http://{self.address}"

    def command(self) -> list[str]:
        """Its command line.  On existing data etcd ignores the names of the first start."""
        peer_url = f"http://{_HOST}:{self.peer_port}"
        return [
            *(str(self.binary), "--name", "driftlog-dev", "--data-dir", str(self.directory)),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"driftlog-dev={peer_url}"),
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m"),
            *("--quota-backend-bytes", str(_QUOTA_BYTES)),
        ]

    def is_healthy(self) -> bool:
        """Whether etcd answers, and can write or has only reached its quota."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health?exclude=NOSPACE", timeout=_PROBE_S) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False


def environment() -> dict[str, str]:
    """This process's environment, without the variables of another etcd."""
    kept = "ETCD_UNSUPPORTED_ARCH"
    return {k: v for k, v in os.environ.items() if k == kept or not k.startswith("ETCD_")}


def settle(binary: Path, directory: Path, taken: frozenset[int]) -> LocalEtcd:
    """The etcd of *directory*, on its last ports where these are free; none of *taken*."""
    file = directory / "etcd.json"
    ports = _read(file)
    client_port = free_port(ports.get("client_port", 0), taken)
    peer_port = free_port(ports.get("peer_port", 0), taken | {client_port})
    ports = {"client_port": client_port, "peer_port": peer_port}
    written = file.with_suffix(".tmp")
    written.write_text(json.dumps(ports) + "\n")
    written.replace(file)
    return LocalEtcd(binary=binary, directory=directory / "etcd", **ports)


def url_of(directory: Path) -> str | None:
    """The last URL of the etcd in *directory* of `driftlog dev --agents`; None: it had none."""
    port = _read(directory / "etcd.json").get("client_port")
    return None if port is None else f"http://{_HOST}:{port}"


def _read(file: Path) -> dict[str, int]:
    try:
        found = json.loads(file.read_text())
        return {name: int(found[name]) for name in ("client_port", "peer_port")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def free_port(wanted: int, taken: frozenset[int]) -> int:
    """*wanted* on 127.0.0.1 where it is free, or another free port; none of *taken*."""
    others = random.sample(_PORTS, len(_PORTS))
    for port in itertools.chain([wanted] if wanted else [], others):
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except (OSError, OverflowError):
                continue
        return port
    raise OSError("there is no free port on 127.0.0.1")
