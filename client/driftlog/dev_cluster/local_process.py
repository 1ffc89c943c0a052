"""A process that `driftlog dev --agents` keeps running: started, followed, and started again.

    start ──▶ running ──▶ ended ──▶ waits ──▶ start
                 │                  1 s where it had been ready or somebody killed it;
                 └ ready            doubled up to 30 s where it ended before, again and again

Its output goes to a file and not through a pipe, so that it waits for nobody who does not read;
`new_lines` follows the file.

It does not outlive us, not even where we are killed: on Linux the kernel is asked to kill it when
its parent ends (PR_SET_PDEATHSIG: nothing has to run beside it for that, nor to notice).  What is
killed loses nothing that it acknowledged.  Elsewhere nobody does that: `end_leftovers` ends at the
next start what the last one left.

Everything is done by the one thread that there is: code between fork and exec may run, and the
kernel's *parent* is a thread.
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
"""A log that is longer when its process is started becomes LOG.1."""
_READ_BYTES: Final = 256 * 1024
_LINE_BYTES: Final = 64 * 1024
"""A longer line is told in pieces."""
_TAIL_BYTES: Final = 8 * 1024
_GONE_S: Final = 10.0

_BY_SOMEBODY: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class LocalProcess:
    """One process, however often it is started.

    Args:
        name: what a person calls it; its pid file is called so too.
        command: asked for at each start.
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
        """It has said so since its last start; whoever owns it sets this."""
        self.start_at: float | None = None
        """When it is due again (monotonic); None: it runs, or was never started."""
        self.ended = 0
        """How often it has ended."""
        self.last_end = ""
        self.was_killed = False
        """It was a signal that ended it last."""
        self.refused = False
        """It does not run: it ended by itself, as a program that says why it does not start."""
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
        """Of the running process; None: there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it.  One that cannot be started has ended: `reap` tells."""
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
                start_new_session=True,  # Ctrl-C is for us: we stop them in their order
                preexec_fn=_die_with(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._has_ended(f"could not be started: {error}", by_somebody=False)
        else:
            written = self._pid_file.with_suffix(".tmp")
            written.write_text(f"{self._process.pid}\n")
            written.replace(self._pid_file)
        finally:
            os.close(output)

    def reap(self) -> bool:
        """Whether it has ended since the last time; `last_end` says how, `start_at` what next."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self._pid_file.unlink(missing_ok=True)
            self.refused = code == 1 and not self.ready
            self.was_killed = code < 0
            self._has_ended(_how(code), by_somebody=-code in _BY_SOMEBODY)
        news, self._news = self._news, False
        return news

    def _has_ended(self, how: str, *, by_somebody: bool) -> None:
        if self.ready or by_somebody:
            self._delay_s = _FIRST_DELAY_S
        self.last_end = how
        self.ended += 1
        self._news = True
        self.start_at = time.monotonic() + self._delay_s
        self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S)

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; return when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.reap()

    def new_lines(self) -> list[str]:
        """What it has written since the last time; a line that is not whole waits for its end."""
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
        """Its last lines since its last start."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._started_at_byte, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
        return []

    def _open_log(self) -> int:
        """A descriptor to write to; reading begins where it does."""
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
        if os.getppid() != parent:  # it ended before we could ask
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
    """End what an earlier start on *directory* left running; what to say of it.

    Linux ends them itself, but a moment after us.

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
                        f"{file.stem} of an earlier start (pid {pid}) does not end, though it was "
                        f"killed: is its disk stuck?"
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
    """Of a living process; empty where there is none."""
    if sys.platform == "linux":
        try:
            return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            return ""
    return subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
