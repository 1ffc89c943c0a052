"""The processes that the demo starts; it ends each by its id, whatever happens.

Each runs in a session of its own: Ctrl-C reaches only the demo, which then stops them in its own
order, and an agent that is stopped drains its log.

Shell.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.demo.answers import DemoError

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S: Final = 60
_STOP_TIMEOUT_S: Final = 20
_COMMAND_TIMEOUT_S: Final = 600
_READY: Final = re.compile(r"^driftlog is ready: bootstrap (\S+), ", re.MULTILINE)


def driftlog_command() -> Path:
    """The `driftlog` command beside the Python that runs this.

    Raises:
        DemoError: the command is not installed.
    """
    command = Path(sys.executable).with_name("driftlog")
    if not command.exists():
        raise DemoError("there is no driftlog command in this environment: make setup")
    return command


@dataclass(frozen=True, slots=True)
class Agent:
    """A running `driftlog dev`."""

    process: subprocess.Popen[bytes]
    bootstrap: str
    log: Path

    def check(self) -> None:
        """
        Raises:
            DemoError: the agent has ended.
        """
        if self.process.poll() is not None:
            raise _ended(f"the agent ended with status {self.process.returncode}", self.log)


@contextlib.contextmanager
def agent(directory: Path, logs: Path) -> Iterator[Agent]:
    """`driftlog dev` on *directory* and a free port, until the end of the block.

    Raises:
        DemoError: the agent did not start.
    """
    out, log = logs / "agent.out", logs / "agent.log"
    command = [str(driftlog_command()), "dev", "--dir", str(directory)]
    with _running([*command, "--listener", "127.0.0.1:0"], out, log) as process:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (ready := _READY.search(out.read_text())) is None:
            if process.poll() is not None:
                raise _ended("the agent did not start", log)
            if time.monotonic() > deadline:
                raise _ended(f"the agent is not ready after {_START_TIMEOUT_S} s", log)
            time.sleep(0.02)
        yield Agent(process, ready[1], log)


def seal(bootstrap: str, topic: str, logs: Path, tick: Callable[[], None]) -> str:
    """Run `driftlog segments seal`; returns its output.

    Raises:
        DemoError: the command failed.
    """
    command = [str(driftlog_command()), "segments", "seal", topic, "--bootstrap-server", bootstrap]
    return _result(command, "the topic cannot be sealed", logs / "seal.log", tick)


def spark(
    location: str, topic: str, query: str, logs: Path, tick: Callable[[], None]
) -> dict[str, Any]:
    """Run `tools.demo.spark`; returns what it printed.

    Raises:
        DemoError: the command failed.
    """
    module = [sys.executable, "-m", "tools.demo.spark"]
    command = [*module, location, topic, query, str(logs / "spark-warehouse")]
    said = _result(command, "Spark failed", logs / "spark.log", tick)
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


def _result(command: list[str], failure: str, log: Path, tick: Callable[[], None]) -> str:
    out = log.with_suffix(".out")
    with _running(command, out, log) as process:
        deadline = time.monotonic() + _COMMAND_TIMEOUT_S
        while process.poll() is None:
            tick()
            time.sleep(0.05)
            if time.monotonic() > deadline:
                raise _ended(f"{failure}: no end after {_COMMAND_TIMEOUT_S} s", log)
        if process.returncode:
            raise _ended(failure, log)
    return out.read_text()


@contextlib.contextmanager
def _running(command: list[str], out: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with out.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=_REPOSITORY,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process, then to its group, where Spark's JVM is; at last SIGKILL."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while _signal_group(
        process.pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
    ):
        process.poll()
        time.sleep(0.05)


def _signal_group(group: int, number: signal.Signals) -> bool:
    """Signal a process group; False: no process is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS reports the latter for zombies.
        return False
    return True


def _ended(what: str, log: Path) -> DemoError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "File ", "Traceback"))]
    return DemoError(
        f"{what}\n{said[-1][:300] if said else 'It said nothing.'}\nAll it said: {log}"
    )
