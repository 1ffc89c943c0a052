"""Standard output and standard error of who must not wait for those who read them.

    lines ──▶ kept, up to a limit ──room──▶ the pipe, the terminal, the file
                  └ beyond it: the oldest are left out, and that is said

Shell.
"""

import contextlib
import os
import select
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TextIO

_UNREAD_BYTES: Final = 1024 * 1024
"""What an output keeps for who reads slowly: hours of restarts, and of agents' logs the last few
thousand lines."""


def ours(line: str) -> str:
    """As what we say begins."""
    return f"driftlog | {line}"


class _Output:
    """A stream that is not waited for: what it does not take yet is kept, and offered again.

    Beyond a limit the oldest lines are left out, first those that a log has, too; how many, is
    the next that it is told.

    Args:
        stream: where to write; None, or one that is no file, is as /dev/null.
        logs: what to call the logs.
    """

    def __init__(self, stream: TextIO | None, logs: str) -> None:
        self._descriptor = _that_does_not_wait(stream)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._logs = logs
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        """Ours, each with its number."""
        self._kept_logged: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._left_out = 0
        self._next = b""
        """Whole lines, or what is left of them; these are not left out any more."""

    def fileno(self) -> int:
        """For select."""
        return self._descriptor

    @property
    def is_behind(self) -> bool:
        """Whether something is kept."""
        return bool(self._next or self._kept or self._kept_logged)

    def write(self, lines: Iterable[str], *, logged: bool = False) -> None:
        """Each on a line of its own, after what is kept; *logged*: a log has them, too."""
        queue = self._kept_logged if logged else self._kept
        for line in lines:
            self._number += 1
            encoded = f"{line}\n".encode(self._encoding, "backslashreplace")
            queue.append((self._number, encoded))
            self._kept_bytes += len(encoded)
        self.flush()
        while self._kept_bytes > _UNREAD_BYTES:
            self._take(self._kept_logged or self._kept)
            self._left_out += 1

    def flush(self) -> bool:
        """Offer what is kept; whether some of it was taken.

        When select says so, a pipe takes PIPE_BUF bytes without waiting, and no more than that is
        promised.  Source: the documentation of `select.PIPE_BUF`.
        """
        some = False
        with contextlib.suppress(OSError):  # it is full, or nobody can read it: it may be again
            while self.is_behind and select.select([], [self], [], 0)[1]:
                self._next = self._next or self._next_lines()
                written = os.write(self._descriptor, self._next[: select.PIPE_BUF])
                self._next = self._next[written:]
                some = True
        return some

    def _next_lines(self) -> bytes:
        """One, and those after it that go with it into one write."""
        lines = bytearray()
        if self._left_out:
            said = f"{self._left_out} lines left out: nobody read; the agents' are in {self._logs}"
            lines += f"{ours(said)}\n".encode(self._encoding, "backslashreplace")
            self._left_out = 0
        while queues := [queue for queue in (self._kept, self._kept_logged) if queue]:
            oldest = min(queues, key=lambda queue: queue[0])
            if lines and len(lines) + len(oldest[0][1]) > select.PIPE_BUF:
                break
            lines += self._take(oldest)
        return bytes(lines)

    def _take(self, queue: deque[tuple[int, bytes]]) -> bytes:
        line = queue.popleft()[1]
        self._kept_bytes -= len(line)
        return line


class Outputs:
    """Standard output and standard error; one where both are the same, so that order stays."""

    def __init__(self, directory: Path) -> None:
        logs = f"{directory}/agent-*.log"
        self._out = self._err = _Output(sys.stdout, logs)
        err = _Output(sys.stderr, logs)
        if not os.path.sameopenfile(self._out.fileno(), err.fileno()):
            self._err = err

    def say(self, line: str) -> None:
        """What happens."""
        self.show([ours(line)])

    def show(self, lines: Sequence[str]) -> None:
        """As they are."""
        self._out.write(lines)

    def tell(self, lines: Iterable[str]) -> None:
        """Lines of the agents' logs."""
        self._err.write(lines, logged=True)

    def pass_on(self, seconds: float, woken: socket.socket | None = None) -> bool:
        """Offer what is kept for *seconds*, or until *woken* is, which it returns.

        Without a *woken*, no longer than something is kept.
        """
        wakes = [] if woken is None else [woken]
        behind = [output for output in (self._out, self._err) if output.is_behind]
        deadline = time.monotonic() + seconds
        while wakes or behind:
            left_s = max(0.0, deadline - time.monotonic())
            wake, room, _ = select.select(wakes, behind, [], left_s)
            behind = [output for output in behind if output not in room or output.flush()]
            if wake or left_s == 0:
                return bool(wake)
        return False


def _that_does_not_wait(stream: TextIO | None) -> int:
    """A descriptor of *stream* that refuses what there is no room for, where one can be had.

    Whether it waits is a matter of the open file, which we share with whoever started us.  So a
    pipe or a terminal is opened anew, as Linux does it for /dev/fd; where it must not be (it is
    another user's), the descriptor is the one that there is.
    """
    try:
        descriptor = -1 if stream is None else stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return os.open(os.devnull, os.O_WRONLY)
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"/dev/fd/{descriptor}", flags)
    return descriptor
