"""One real `driftlog dev` process on a directory: started, measured, killed, started again.

Shell.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from os import environ
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.process_usage import (
    Usage,
    free_port,
    reset_peak,
    stop_process,
    usage,
    wait_until,
)

_START_TIMEOUT_SECONDS = 60.0
_LOG_LOOKS: Final = 60
_LOG_QUIET_LOOKS: Final = 4
_LOG_PAUSE_S: Final = 0.05
_DRAIN_TIMEOUT_SECONDS = 60.0
_CREATES: Final = "auto.create.topics.enable="
"""`driftlog dev` has it, and clients of tests expect it of agents."""


def driftlog_command() -> str | None:
    """The `driftlog` command of this environment, or None if the package is not installed."""
    beside = Path(sys.executable).with_name("driftlog")
    return str(beside) if beside.exists() else shutil.which("driftlog")


class DriftlogProcess:
    """An agent, with the embedded metadata store unless *arguments* say otherwise.

    Args:
        command: of `driftlog` that runs it.
        directory: given to ``--dir`` and kept; if None, a temporary one that `close` removes.
        arguments: more of the command, such as ``("--store", "s3://bucket/prefix")``.
        environment: set over this process's own, such as AWS_ENDPOINT_URL.
        prefix: a command that runs the agent, such as one that limits it; it must `exec`.
        parent: where a temporary directory is made.
    """

    def __init__(
        self,
        directory: Path | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        parent: Path | None = None,
        prefix: Sequence[str] = (),
        command: Sequence[str] = ("dev",),
    ) -> None:
        self._owned = None
        if directory is None:
            self._owned = Path(tempfile.mkdtemp(prefix="driftlog-", dir=parent))
            directory = self._owned / "data"
        self.directory = directory
        self.port = free_port()
        self._arguments = tuple(arguments)
        self._prefix = tuple(prefix)
        self._command = tuple(command)
        self._environment = {**environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        logs = Path(tempfile.mkdtemp(prefix="driftlog-log-", dir=parent))
        self._logs, self._out, self._err = logs, logs / "stdout", logs / "stderr"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        """The URL of its HTTP port, which it tells at its start."""
        found = re.search(r"http (\S+),", self._out.read_text())
        assert found is not None, "not ready"
        return f"http://{found[1]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself (below 0: by that signal); None: it runs."""
        assert self._process is not None, "not started"
        return self._process.poll()

    def is_alive(self) -> bool:
        """It was started, and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has logged (stderr) since its first start.

        A thread of the agent writes it, a moment after what it tells of.
        """
        seen, quiet = -1, 0
        for _ in range(_LOG_LOOKS if self.is_alive() else 1):
            size = self._err.stat().st_size
            quiet = quiet + 1 if size == seen else 0
            if quiet == _LOG_QUIET_LOOKS:
                break
            seen = size
            time.sleep(_LOG_PAUSE_S)
        return self._err.read_text(errors="replace")

    def usage(self) -> Usage:
        return usage(self.pid)

    def reset_peak(self) -> None:
        reset_peak(self.pid)

    def start(self) -> Self:
        """Start it, also again on the same directory and port; return at the ready line.

        Raises:
            FileNotFoundError: there is no `driftlog` command.
            RuntimeError: it ended instead; the message holds the end of its log.
            TimeoutError: it is not ready after 60 s.
        """
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def wait_until_ready(self) -> None:
        """Return at the ready line; raises as `start`."""
        assert self._process is not None, "not started"
        wait_until(self.is_ready, self._process, _START_TIMEOUT_SECONDS, self._err)

    def launch(self) -> None:
        """As `start`, and wait for nothing.

        Raises:
            FileNotFoundError: there is no `driftlog` command.
        """
        assert self._process is None, "started twice"
        command = driftlog_command()
        if command is None:
            raise FileNotFoundError("no driftlog command: make setup")
        line = [*self._prefix, command, *self._command, "--dir", str(self.directory)]
        given = any(argument.startswith(_CREATES) for argument in self._arguments)
        if self._command == ("agent", "run") and not given:
            line += ["--config", f"{_CREATES}true"]
        line += ["--listener", self.bootstrap, "--http-listener", "127.0.0.1:0"]
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [*line, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment,
            )

    def seal(self, topic: str) -> None:
        """`driftlog segments seal`: return when everything committed in *topic* is sealed.

        Raises:
            subprocess.CalledProcessError: it was refused.
        """
        command = driftlog_command()
        assert command is not None, "not started"
        line = [command, "segments", "seal", topic, "--bootstrap-server", self.bootstrap]
        subprocess.run(line, stdin=subprocess.DEVNULL, check=True, timeout=600)

    def terminate(self) -> int:
        """SIGTERM; wait until it has drained; its exit status."""
        assert self._process is not None, "not started"
        status = stop_process(self._process, _DRAIN_TIMEOUT_SECONDS)
        self._process = None
        return status

    def kill(self) -> None:
        """SIGKILL: nothing is drained."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: it holds its sockets and does nothing."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send it a signal, and wait for nothing."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def wait(self, timeout_seconds: float) -> int:
        """Wait until it has ended by itself; its exit status.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        assert self._process is not None, "not started"
        return self._process.wait(timeout_seconds)

    def resume(self) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it; remove its logs, and its directory if nobody gave one."""
        if self._process is not None:
            self.terminate()
        shutil.rmtree(self._logs, ignore_errors=True)
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def is_ready(self) -> bool:
        """It has said so since its last start."""
        return self.bootstrap in self._out.read_text(errors="replace")
