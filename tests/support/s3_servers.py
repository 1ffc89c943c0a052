"""S3 servers for tests: moto's, and LocalStack from a virtual environment of its own.

    test worker ──┐  file lock, one server a session   ┌─▶ python -m moto.server
    test worker ──┴─▶ supervisor (this module) ────────┴─▶ python -m localstack.runtime.main

The workers of pytest-xdist share one server of each kind.  Each leaves a file with its pid;
the last one out stops the supervisor, and a supervisor whose users are all dead stops by
itself, so that a killed test run leaves nothing behind.  Both listen on 127.0.0.1.

What moto 5.2 does not do: conditional writes are not atomic above 5 MiB, it serves about 430
requests/s and 250 MB/s, and it forgets everything when it stops.
Shell.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from tests.support.process_usage import free_port, stop_process, wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
_LOCALSTACK_PYTHON = _REPOSITORY / ".venv-localstack" / "bin" / "python"
_START_TIMEOUT_SECONDS = 60.0
_STOP_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.2

REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server and a fresh bucket on it."""

    endpoint_url: str
    bucket: str

    @property
    def environment(self) -> Mapping[str, str]:
        """What an AWS SDK reads to get there; no file of the user's is read."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    @property
    def location(self) -> str:
        """For `driftlog_tiering.stores.locations.open_object_store`, within `environment`."""
        return f"s3://{self.bucket}"


@pytest.fixture(scope="session")
def moto_endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of moto's server, started at its first use in a session."""
    with running("moto", _session_folder(request, tmp_path_factory)) as endpoint_url:
        yield endpoint_url


@pytest.fixture(scope="session")
def localstack_endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of LocalStack, started at its first use in a session."""
    if not _LOCALSTACK_PYTHON.exists():
        pytest.skip("LocalStack is not installed in .venv-localstack: make localstack")
    with running("localstack", _session_folder(request, tmp_path_factory)) as endpoint_url:
        yield endpoint_url


@pytest.fixture
def moto_s3(moto_endpoint: str) -> S3Server:
    """moto's server with a bucket for this test."""
    return fresh_bucket(moto_endpoint)


@pytest.fixture
def localstack_s3(localstack_endpoint: str) -> S3Server:
    """LocalStack with a bucket for this test."""
    return fresh_bucket(localstack_endpoint)


def fresh_bucket(endpoint_url: str) -> S3Server:
    """Make a bucket under a new name."""
    server = S3Server(endpoint_url=endpoint_url, bucket=f"driftlog-{uuid.uuid4().hex[:16]}")
    _client(endpoint_url).create_bucket(Bucket=server.bucket)
    return server


@cache
def _client(endpoint_url: str) -> Any:
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[str]:
    """The one server of *kind* ("moto", "localstack") of all processes that name *folder*.

    Yields its endpoint URL; stops it when this is its last user.
    """
    folder = folder / kind
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    # One file a use: a process may use the server twice, and the first to leave must not take the
    # other's along.
    mine = users / f"{os.getpid()}.{uuid.uuid4().hex[:8]}"
    own: subprocess.Popen[bytes] | None = None
    with _locked(folder):
        mine.touch()
        state = _state(folder)
        if state is None or not _answers(state["url"]):
            own, state = _start(kind, folder)
    try:
        yield state["url"]
    finally:
        with _locked(folder):
            mine.unlink(missing_ok=True)
            if not any(map(_alive, _users(folder))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(state["pid"]), signal.SIGTERM)
                _wait_while(lambda: _answers(state["url"]))
                (folder / "state.json").unlink(missing_ok=True)
        if own is not None and not (folder / "state.json").exists():
            own.wait(_STOP_TIMEOUT_SECONDS)


def _session_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base


def _start(kind: str, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.s3_servers", kind, str(port), str(folder)],
            cwd=_REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests; they stop us.
        )
    try:
        wait_until(lambda: _answers(url), process, _START_TIMEOUT_SECONDS, log)
    except BaseException:
        stop_process(process, _STOP_TIMEOUT_SECONDS)
        raise
    state = {"pid": str(process.pid), "url": url}
    (folder / "state.json").write_text(json.dumps(state))
    return process, state


def _state(folder: Path) -> dict[str, str] | None:
    try:
        state: dict[str, str] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None
    return state


def _answers(url: str) -> bool:
    """Whether an S3 server is there: both list buckets for anyone."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError as error:
        return hasattr(error, "code")


def _wait_while(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
    while condition() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _users(folder: Path) -> list[int]:
    """Process ids of those who use the server."""
    return [int(user.name.partition(".")[0]) for user in (folder / "users").iterdir()]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ── The supervisor ──


def _command(kind: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    if kind == "moto":
        moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return moto, dict(os.environ)
    assert kind == "localstack", kind
    (folder / "files").mkdir(exist_ok=True)
    environment = {
        # The default server binds 0.0.0.0; without a root it writes to system folders.
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(folder / "files"),
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "GATEWAY_SERVER": "hypercorn",
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
    }
    command = [str(_LOCALSTACK_PYTHON), "-m", "localstack.runtime.main"]
    return command, {**os.environ, **environment}


def _supervise(kind: str, port: int, folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command, environment = _command(kind, port, folder)
    server = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True)
    try:
        while server.poll() is None:
            if not any(map(_alive, _users(folder))):
                return
            time.sleep(_POLL_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # They have nothing to save.
        server.wait()


if __name__ == "__main__":
    _supervise(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
