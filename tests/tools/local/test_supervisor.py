"""`make local` heals whichever of its processes is killed, its own included, whenever that is.

Broken: a person's cluster would stand still after a kill, or the next start would not come up.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftlog.dev_cluster.local_etcd import LocalEtcd
from driftlog.dev_cluster.local_process import end_leftovers
from tests.support.components import REPOSITORY
from tests.support.process_usage import descendants
from tools.local import servers

pytestmark = [
    pytest.mark.skipif(
        not servers.LOCALSTACK_PYTHON.exists(), reason="LocalStack is missing: make localstack"
    ),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("make_local"),
]

_RECORDS = 100_000
_WAIT_S = 60.0
_ACKNOWLEDGED = "the first record is acknowledged"
_VERDICT = "records in through Kafka"


@contextlib.contextmanager
def local(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """As the Makefile has it, with a folder of its own; nothing outlives the block."""
    command = [sys.executable, "-m", "tools.local", "--dir", str(folder), *arguments]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """What it prints, up to the line with *words*."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return said
    raise AssertionError(f"no {words!r}: {said}")


def records(folder: Path) -> Path:
    """A file for the demo."""
    path = folder / "records.ndjson"
    path.write_text("\n".join(json.dumps({"id": i, "of": "x" * 100}) for i in range(_RECORDS)))
    return path


def started(process: subprocess.Popen[str], folder: Path, name: str) -> int:
    """The id of the process *name* of this start, as soon as there is one."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            pid = int((folder / "run" / f"{name}.pid").read_text())
            if pid in descendants(process.pid):
                return pid
        time.sleep(0.005)
    raise AssertionError(f"{name} was not started")


def kill(process: subprocess.Popen[str], folder: Path, name: str) -> list[str]:
    """Kill the process *name* as soon as it is there; what is said until that was seen."""
    os.kill(started(process, folder, name), signal.SIGKILL)
    seen = {"demo": "it begins again", "localstack": "all begins again"}
    return lines_until(process, seen.get(name, f"{name:<10}  was killed by SIGKILL"))


def running(pids: list[int]) -> list[int]:
    """Those of *pids* that run; one that nobody waits for has no command line."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_kill_of_any_process_at_any_time_heals(tmp_path: Path) -> None:
    """
    At the start of each process, while the demo produces, and of `make local` itself: the next
    start comes up.  The demo's records are in the bucket in the end, as they were acknowledged.

    LocalStack takes longest to start: it does so twice, and is killed or stopped early otherwise.
    """
    folder, file = tmp_path / "local", records(tmp_path)
    right = f"demo: {_RECORDS:,} {_VERDICT}, and in Parquet in {servers.LOCATION}: the same"
    with local(folder, "--input", str(file)) as process:
        started(process, folder, "localstack")

    with local(folder, "--input", str(file)) as process:
        for victim in ("agent-2", "demo"):  # at their start, as the two behind them
            kill(process, folder, victim)
        lines_until(process, _ACKNOWLEDGED)
        for victim in ("localstack", "etcd", "localstack"):
            kill(process, folder, victim)
        for victims in (["demo"], ["agent-2", "etcd"]):
            lines_until(process, _ACKNOWLEDGED)
            for victim in victims:
                kill(process, folder, victim)
        assert right in lines_until(process, _VERDICT)[-1]
        family = descendants(process.pid)
        process.kill()
        process.wait()
    assert len(family) >= 6, "it did not stay up"
    end = time.monotonic() + _WAIT_S
    while running(family):
        assert time.monotonic() < end, "they outlive it"
        time.sleep(0.02)

    with local(folder, "--input", str(file)) as process:
        lines_until(process, "etcd        ready")
        family = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(60)
    assert [] == running(family)
    assert [] == list((folder / "run").glob("*.pid"))


def test_what_a_kill_leaves_running_is_ended_by_the_next_start(tmp_path: Path) -> None:
    """
    Linux ends all with `make local`; other systems do not, and a demo that goes on would produce to
    the next cluster, on the same ports.
    """
    run = tmp_path / "run"
    run.mkdir()
    etcd = LocalEtcd(binary=Path("etcd"), directory=tmp_path / "etcd", client_port=1, peer_port=1)
    nowhere = ("127.0.0.1:1",)
    at = servers.Addresses(localstack_port=1, etcd=etcd, agents=nowhere, https=nowhere)
    commands = {
        "localstack": servers.localstack_command(tmp_path),
        "demo": servers.demo_command(at, tmp_path, "t", ["--started", "0"]),
        "agent-1": servers.agent_command(servers.write_settings(at, tmp_path, 1)),
    }
    left = {
        name: subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for name, command in commands.items()
    }
    try:
        for name, process in left.items():
            (run / f"{name}.pid").write_text(f"{process.pid}\n")
            # Linux sets the command line a moment after exec has closed what Popen waits for.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.01)

        said = end_leftovers(run, tmp_path)

        assert [-signal.SIGKILL] * len(left) == [process.wait(10) for process in left.values()]
        assert sorted(left) == [line.partition(" ")[0] for line in said]
    finally:
        for process in left.values():
            process.kill()
            process.wait()


def test_a_directory_in_use_or_of_others_is_left_alone(tmp_path: Path) -> None:
    """
    One line says which process has it, or to give another one; nothing there is changed.
    """
    folder = tmp_path / "local"
    (folder / "run").mkdir(parents=True)
    (folder / "made-by-make-local").touch()
    with (folder / "run" / "lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with local(folder) as other:
            assert "already (process 4711): stop it first" in lines_until(other, "make local")[-1]
            assert 1 == other.wait(20)
    with local(tmp_path) as foreign:
        assert "is not of `make local`" in lines_until(foreign, "make local")[-1]
        assert 1 == foreign.wait(20)
    assert [folder] == list(tmp_path.iterdir())
