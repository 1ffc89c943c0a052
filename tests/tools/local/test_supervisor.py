"""`make local` heals whichever of its processes is killed, and its demo is right in the end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY
from tests.support.process_usage import descendants
from tools.local import servers

pytestmark = [
    pytest.mark.skipif(
        not servers.LOCALSTACK_PYTHON.exists(), reason="LocalStack is missing: make localstack"
    ),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("make_local"),
]


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


def records(folder: Path, count: int) -> Path:
    """A file for the demo."""
    path = folder / "records.ndjson"
    path.write_text("\n".join(json.dumps({"id": i, "of": "x" * 100}) for i in range(count)))
    return path


@pytest.mark.parametrize("victim", ["agent-2", "etcd", "demo", "localstack"])
def test_a_kill_of_any_process_heals(tmp_path: Path, victim: str) -> None:
    """
    While the demo produces; all its records are in the bucket, as they were acknowledged.
    """
    folder, file = tmp_path / "local", records(tmp_path, 150_000)
    with local(folder, "--demo-only", "--input", str(file)) as process:
        lines_until(process, "the first record is acknowledged")
        os.kill(int((folder / "run" / f"{victim}.pid").read_text()), signal.SIGKILL)
        assert process.stdout is not None
        said = process.stdout.read()
        status = process.wait(20)

    assert (0, True) == (status, "150,000 records in through Kafka" in said), said
    assert "was killed by SIGKILL" in said
    assert [] == list((folder / "run").glob("*.pid"))


def test_it_stays_up_until_a_signal_and_leaves_no_process(tmp_path: Path) -> None:
    """
    A second one on the same directory is refused meanwhile, and another's directory is not touched.
    """
    folder, file = tmp_path / "local", records(tmp_path, 100)
    with local(folder, "--input", str(file)) as process:
        lines_until(process, "records in through Kafka")
        with local(folder) as other:
            assert "runs on" in "".join(lines_until(other, "runs on"))
            assert 1 == other.wait(20)
        children = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(60)

    assert len(children) >= 5
    assert [] == [pid for pid in children if Path(f"/proc/{pid}").exists()]
    with local(tmp_path) as foreign:
        assert "is not of `make local`" in "".join(lines_until(foreign, "make local"))
        assert 1 == foreign.wait(20)
    assert file.exists()
