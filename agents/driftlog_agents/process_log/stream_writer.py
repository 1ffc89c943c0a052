"""Writes lines to a stream that may be full, closed or unread.

    put ──▶ queue, bounded by bytes ──▶ one thread: write(2) ──▶ the stream
              ╳ no room: dropped           ╳ it fails: dropped
              └──────── counted ───────────┘

`put` neither waits nor raises, whatever the stream does: only the thread waits for it.  Ordinary
lines leave room for important ones.

Shell.
"""

import contextlib
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

_QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Room for ordinary lines.  More: a reader may pause longer before lines are dropped."""

_IMPORTANT_BYTES: Final = 1024 * 1024
"""Additional room for important lines."""

_LINE_BYTES: Final = 200
"""Memory of a line beside its text."""

_WRITE_BYTES: Final = 64 * 1024
_IDLE_S: Final = 1.0
_POLL_S: Final = 0.1


class StreamWriter:
    """See the module.

    Args:
        descriptor: of the stream; None: there is none, and every line is dropped.
        tick: called by the thread about once a second, and before the last lines (True).
    """

    def __init__(self, descriptor: int | None, name: str, tick: Callable[[bool], None]) -> None:
        self.dropped: Counter[str] = Counter()
        """By reason: ``queue`` (the stream is not read) and ``write`` (it is closed, or full)."""
        self._descriptor = descriptor
        self._tick = tick
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._queued_bytes = 0
        self._waiting = threading.Condition()
        self._closing = False
        self._torn = False
        """Whether the last write ended within a line."""
        self.works = descriptor is not None
        """Whether the last write succeeded."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, important: bool = False) -> None:
        """Queue *line*, which ends with a newline, or drop it."""
        cost = len(line) + _LINE_BYTES
        with self._waiting:
            room = _QUEUE_BYTES + (_IMPORTANT_BYTES if important else 0)
            if self._descriptor is None:
                self.dropped["write"] += 1
            elif self._queued_bytes + cost > room or not self._thread.is_alive():
                self.dropped["queue"] += 1
            else:
                self._queue.append((line, important))
                self._queued_bytes += cost
                self._waiting.notify()

    def close(self, seconds: float) -> None:
        """Write the queued lines, for at most *seconds*.  A repeat is harmless."""
        with self._waiting:
            self._closing = True
            self._waiting.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    # ── The thread ──

    def _run(self) -> None:
        ticked = time.monotonic()
        while True:
            with self._waiting:
                if not self._queue and not self._closing:
                    self._waiting.wait(_IDLE_S)
                closing = self._closing
            if closing or time.monotonic() - ticked >= _IDLE_S:
                ticked = time.monotonic()
                with contextlib.suppress(Exception):  # an error in the summary must not end the log
                    self._tick(closing)
            lines = self._take()
            if lines:
                self._write(lines)
            elif closing:
                return

    def _take(self) -> list[bytes]:
        lines: list[bytes] = []
        taken_bytes = 0
        with self._waiting:
            while self._queue and taken_bytes < _WRITE_BYTES:
                line = self._queue.popleft()[0]
                self._queued_bytes -= len(line) + _LINE_BYTES
                taken_bytes += len(line)
                lines.append(line)
        return lines

    def _write(self, lines: list[bytes]) -> None:
        """Write the lines, or as many as the stream takes; those that it refuses are dropped."""
        assert self._descriptor is not None
        for at in range(0, len(lines), 100):
            some = lines[at : at + 100]
            if self._torn:
                some.insert(0, b"\n")
            try:
                self._write_all(b"".join(some))
                self._torn = False
                self.works = True
            except OSError:
                self.works = False
                self.dropped["write"] += len(some) - (some[0] == b"\n")

    def _write_all(self, data: bytes) -> None:
        assert self._descriptor is not None
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._descriptor, rest)
            except BlockingIOError:  # another user of the stream may have made it non-blocking
                select.select([], [self._descriptor], [], _POLL_S)
                continue
            rest = rest[written:]
            self._torn = rest.nbytes > 0
