"""Standard output and standard error, for a process that a slow reader must not block.

    lines ──▶ kept, up to a limit ──room──▶ the pipe, the terminal, the file
                  └ beyond it: the oldest are dropped, and a line counts them

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
"""Size of the lines kept for a slow reader: hours of restart messages, and the last few thousand
lines of the agents' logs."""


def ours(line: str) -> str:
    """The line with the mark of this command's own messages."""
    return f"driftlog | {line}"


class _Output:
    """A stream that never blocks this process: bytes that it does not take are kept for later.

    Beyond a limit the oldest lines are dropped, first those that a log has too; the next line
    that is written counts them.

    Args:
        stream: the stream to write to; None, or one that is no file, counts as /dev/null.
        logs: the name of the logs in messages.
    """

    def __init__(self, stream: TextIO | None, logs: str) -> None:
        self._descriptor = _nonblocking(stream)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._logs = logs
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        """This command's own lines, each with its number."""
        self._kept_logged: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._left_out = 0
        self._next = b""
        """Whole lines, or the rest of them; these are not dropped any more."""

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._descriptor

    @property
    def is_behind(self) -> bool:
        """Whether lines are kept."""
        return bool(self._next or self._kept or self._kept_logged)

    def write(self, lines: Iterable[str], *, logged: bool = False) -> None:
        """Write lines after the kept ones; *logged*: a log has them too."""
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
        """Write kept lines without blocking; returns whether the stream took some.

        A pipe that select reports as writable takes PIPE_BUF bytes without blocking, and perhaps
        no more.  Source: the documentation of `select.PIPE_BUF`.
        """
        some = False
        with contextlib.suppress(OSError):  # the stream is full, or has no reader at the moment
            while self.is_behind and select.select([], [self], [], 0)[1]:
                self._next = self._next or self._next_lines()
                written = os.write(self._descriptor, self._next[: select.PIPE_BUF])
                self._next = self._next[written:]
                some = True
        return some

    def _next_lines(self) -> bytes:
        """The next line, and those that fit into one write with it."""
        lines = bytearray()
        if self._left_out:
            said = f"{self._left_out} lines left out: not read in time; agents' logs: {self._logs}"
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
        """Write one message of this command."""
        self.show([ours(line)])

    def show(self, lines: Sequence[str]) -> None:
        """Write lines without the mark."""
        self._out.write(lines)

    def tell(self, lines: Iterable[str]) -> None:
        """Write lines of the agents' logs."""
        self._err.write(lines, logged=True)

    def pass_on(self, seconds: float, woken: socket.socket | None = None) -> bool:
        """Write kept lines for *seconds*, or until *woken* is readable; returns whether it is.

        Without *woken*, it returns as soon as no line is kept.
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


def _nonblocking(stream: TextIO | None) -> int:
    """A descriptor of *stream* that does not block, where the system gives one.

    O_NONBLOCK is a flag of the open file, which this process shares with its parent.  So a pipe or
    a terminal is opened anew through /dev/fd; where that is forbidden (another user's), the
    stream's own descriptor is used.
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
