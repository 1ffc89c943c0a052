"""The servers of `make local`: their command lines, their files, and whether they answer.

    DIR/localstack/  localstack.log     LocalStack: what it unpacks; it keeps no object on the disk
    DIR/etcd/  etcd.log                 etcd
    DIR/agent-N.toml  agent-N/  .log    an agent: its settings, its --dir, its output
    DIR/run/                            process ids

Shell.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from driftlog.cli.agents.start_settings import without_settings
from driftlog.dev_cluster import local_etcd
from driftlog.dev_cluster.local_etcd import LocalEtcd

AGENTS: Final = 3
BUCKET: Final = "driftlog-local"
LOCATION: Final = f"s3://{BUCKET}/log"

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
LOCALSTACK_PYTHON: Final = _REPOSITORY / ".venv-localstack" / "bin" / "python"
_HOST: Final = "127.0.0.1"
_REGION: Final = "us-east-1"
_PROBE_S: Final = 2.0
_PORTS: Final = {"localstack": 4566, "agent": 9092, "http": 9644}
"""The first choice of each; a port that is taken is replaced by a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything listens: on 127.0.0.1 alone."""

    localstack_port: int
    etcd: LocalEtcd
    agents: tuple[str, ...]
    https: tuple[str, ...]
    """Of the agents' HTTP ports."""

    @property
    def endpoint(self) -> str:
        """The URL of S3."""
        return f"http://{_HOST}:{self.localstack_port}"

    @property
    def bootstrap(self) -> str:
        """Of clients: all agents."""
        return ",".join(self.agents)


def choose(directory: Path) -> Addresses:
    """Free ports for all servers.

    Raises:
        OSError: there are not so many.
        NoEtcdError: there is no etcd to start.
    """
    taken: set[int] = set()

    def port(wanted: int) -> int:
        taken.add(found := local_etcd.free_port(wanted, frozenset(taken)))
        return found

    localstack_port = port(_PORTS["localstack"])
    agents = [f"{_HOST}:{port(_PORTS['agent'] + n)}" for n in range(AGENTS)]
    https = [f"{_HOST}:{port(_PORTS['http'] + n)}" for n in range(AGENTS)]
    return Addresses(
        localstack_port=localstack_port,
        etcd=local_etcd.settle(local_etcd.find_binary(), directory, frozenset(taken)),
        agents=tuple(agents),
        https=tuple(https),
    )


def aws_environment(at: Addresses) -> dict[str, str]:
    """What an AWS SDK reads to get to LocalStack; no file of the user's is read."""
    return {
        "AWS_ENDPOINT_URL": at.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": _REGION,
        "AWS_DEFAULT_REGION": _REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


# ── LocalStack ──


def localstack_command(directory: Path) -> list[str]:
    """LocalStack in host mode.  It reads no argument: a later start on *directory* knows it by its
    command line."""
    return [str(LOCALSTACK_PYTHON), "-m", "localstack.runtime.main", str(directory / "localstack")]


def localstack_environment(at: Addresses, directory: Path) -> dict[str, str]:
    """S3 alone, on 127.0.0.1, with all files below *directory*: by default it binds all addresses,
    and writes to folders of the system."""
    return {
        **os.environ,
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(directory / "localstack"),
        "GATEWAY_LISTEN": f"{_HOST}:{at.localstack_port}",
        "GATEWAY_SERVER": "hypercorn",
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
    }


def answers(url: str) -> bool:
    """Whether a server answers HTTP there, with whatever status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PROBE_S):
            return True
    except OSError as error:
        return hasattr(error, "code")


def make_bucket(at: Addresses) -> bool:
    """Make the bucket; False: S3 does not do it yet."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=at.endpoint,
        region_name=_REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(
            s3={"addressing_style": "path"},
            proxies={},
            connect_timeout=_PROBE_S,
            read_timeout=_PROBE_S,
            retries={"total_max_attempts": 1},
        ),
    )
    try:
        client.create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    return True


# ── Agents ──


def write_settings(at: Addresses, directory: Path, number: int) -> Path:
    """The file of settings of the *number*-th agent, from 1."""
    path = directory / f"agent-{number}.toml"
    settings: Mapping[str, Any] = {
        "dir": str(directory / f"agent-{number}"),
        "store": LOCATION,
        "etcd": [at.etcd.url],
        "listener": [f"PLAINTEXT://{at.agents[number - 1]}"],
        "http-listener": at.https[number - 1],
        "rack": f"zone-{'abc'[number - 1]}",
        "dev": True,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("# Written by `make local`.\n" + "\n".join(lines) + "\n")
    return path


def agent_command(settings: Path) -> list[str]:
    """`driftlog agent run` with a file of settings."""
    command = [sys.executable, "-P", "-m", "driftlog.cli", "agent", "run"]
    return [*command, "--config-file", str(settings)]


def agent_environment(at: Addresses) -> dict[str, str]:
    """That of this process, with the way to LocalStack and without settings of other agents."""
    return {**without_settings(os.environ), **aws_environment(at)}


def demo_command(at: Addresses, directory: Path, topic: str, arguments: Sequence[str]) -> list[str]:
    """The demo, in a process of its own."""
    module = [sys.executable, "-m", "tools.local.demo", "--run", str(directory / "run")]
    return [*module, "--bootstrap", at.bootstrap, "--store", LOCATION, "--topic", topic, *arguments]
