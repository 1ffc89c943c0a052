"""A process that `driftlog dev --agents` keeps running: started, followed, and started again.

    start ──▶ running ──▶ ended ──▶ waits ──▶ start
                 │                  after 1 s if it was ready, or was killed from outside;
                 └ ready            the delay doubles, up to 30 s, while it ends before that

The process writes to a file and not to a pipe, so that a slow reader cannot block it; `new_lines`
follows the file.

The process does not outlive this one, even if this one is killed: on Linux the kernel kills it when
its parent ends (PR_SET_PDEATHSIG).  A killed agent loses nothing that it acknowledged.
Other systems have no such call: `end_leftovers` ends, at the next start, the processes that the
last start left.

This process has one thread, for two reasons: code runs between fork and exec, and the *parent* of
PR_SET_PDEATHSIG is a thread.
Shell.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None

_FIRST_DELAY_S: Final = 1.0
_LAST_DELAY_S: Final = 30.0
_LOG_BYTES: Final = 16 * 1024 * 1024
"""A longer log becomes LOG.1 at the start of its process."""
_READ_BYTES: Final = 256 * 1024
_LINE_BYTES: Final = 64 * 1024
"""A longer line is shown in pieces."""
_TAIL_BYTES: Final = 8 * 1024
_GONE_S: Final = 10.0

_FROM_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class LocalProcess:
    """One process, across its restarts.

    Args:
        name: for messages; names its pid file too.
        command: called at each start.
        environment: its whole environment.
        log: takes its output.
        run: the folder of pid files.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], list[str]],
        environment: Mapping[str, str],
        log: Path,
        run: Path,
    ) -> None:
        self.name = name
        self.log = log
        self.ready = False
        """Whether it has reported ready since its last start; the owner of this object sets it."""
        self.start_at: float | None = None
        """The next start (monotonic); None: it runs, or was never started."""
        self.ended = 0
        """The number of its ends."""
        self.last_end = ""
        self.was_killed = False
        """Whether a signal caused its last end."""
        self.refused = False
        """Whether it does not run because it ended with exit code 1 before it was ready."""
        self._command = command
        self._environment = dict(environment)
        self._pid_file = run / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self._delay_s = _FIRST_DELAY_S
        self._news = False
        self._reader = -1
        self._started_at_byte = 0
        self._partial = b""

    @property
    def pid(self) -> int | None:
        """The id of the running process; None: there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process.  A failed start counts as an end: see `reap`."""
        assert self._process is None, "it runs"
        self.start_at = None
        self.ready = self.refused = self.was_killed = False
        output = self._open_log()
        try:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches this process, which stops them in order
                preexec_fn=_die_with(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._has_ended(f"could not be started: {error}", from_outside=False)
        else:
            written = self._pid_file.with_suffix(".tmp")
            written.write_text(f"{self._process.pid}\n")
            written.replace(self._pid_file)
        finally:
            os.close(output)

    def reap(self) -> bool:
        """Whether the process has ended since the last call; see `last_end` and `start_at`."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self._pid_file.unlink(missing_ok=True)
            self.refused = code == 1 and not self.ready
            self.was_killed = code < 0
            self._has_ended(_how(code), from_outside=-code in _FROM_OUTSIDE)
        news, self._news = self._news, False
        return news

    def _has_ended(self, how: str, *, from_outside: bool) -> None:
        if self.ready or from_outside:
            self._delay_s = _FIRST_DELAY_S
        self.last_end = how
        self.ended += 1
        self._news = True
        self.start_at = time.monotonic() + self._delay_s
        self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL; return when the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.reap()

    def new_lines(self) -> list[str]:
        """The lines written since the last call; an incomplete line is kept for the next one."""
        if self._reader < 0:
            return []
        read = os.read(self._reader, _READ_BYTES)
        *lines, self._partial = (self._partial + read).split(b"\n")
        last_words = self._partial and self._process is None and not read
        if last_words or len(self._partial) > _LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        return [line.decode(errors="replace") for line in lines]

    def tail(self, count: int) -> list[str]:
        """The last *count* lines since the last start."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._started_at_byte, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
        return []

    def _open_log(self) -> int:
        """A descriptor for the process's output; `new_lines` begins at its position."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.replace(f"{self.log}.1")
        output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = os.open(self.log, os.O_RDONLY)
        self._started_at_byte = os.lseek(self._reader, 0, os.SEEK_END)
        self._partial = b""
        return output


def _die_with(parent: int) -> Callable[[], None] | None:
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def ask_the_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return ask_the_kernel


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"


def end_leftovers(run: Path, directory: Path) -> list[str]:
    """End processes that an earlier start on *directory* left running; returns lines to print.

    Linux kills them itself, but a moment after their parent.

    Raises:
        OSError: one of them does not end.
    """
    said = []
    for file in sorted(run.glob("*.pid")):
        pid = _read_pid(file)
        if pid is not None and _is_of(pid, directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _GONE_S
            while _is_of(pid, directory):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{file.stem} of an earlier start (pid {pid}) does not end after "
                        "SIGKILL: check its disk"
                    )
                time.sleep(0.02)
            said.append(f"{file.stem} of an earlier start still ran (pid {pid}): ended it")
        file.unlink(missing_ok=True)
    return said


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _is_of(pid: int, directory: Path) -> bool:
    """Whether *pid* is a process that works in *directory*; ids are used again."""
    return f"{directory}{os.sep}" in _command_line(pid)


def _command_line(pid: int) -> str:
    """The command line of a process; empty if there is no such process."""
    if sys.platform == "linux":
        try:
            return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            return ""
    return subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
