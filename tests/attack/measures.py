"""What is measured of an agent while it is attacked, from outside of it.

    Memory      a thread that reads the peak of resident bytes, and ends an agent that takes more
                than the machine can give
    Prober      a thread that asks ApiVersions on a quiet connection: how long the agent's event
                loop was busy with something else
    Control     a thread that does nothing but sleep: when it is late, the machine was, and not the
                agent

A wait for an answer counts as the agent's without what its threads waited for a core, and without
what the control thread was late meanwhile, by which also time that a hypervisor takes away shows.

Shell.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from tests.attack.wire import GONE, HEALTHY_ADDRESS, Connection
from tests.support.process_usage import reset_peak

GiB: Final = 1 << 30

_PROBE_EVERY_S: Final = 0.01
_PROBE_TIMEOUT_S: Final = 60.0
_CONTROL_EVERY_S: Final = 0.005
_CONTROL_KEPT_S: Final = 120.0
_SAMPLE_EVERY_S: Final = 0.05
_THREADS_EVERY_S: Final = 1.0

Span = tuple[float, float]
"""From, to: seconds of the monotonic clock."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that *share* of *values* do not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def stalled_s(wait: Span, waited_for_core_s: float, late: Sequence[Span]) -> float:
    """How much of *wait* is the agent's: see the module."""
    begun, ended = wait
    machine = sum(max(0.0, min(ended, end) - max(begun, start)) for start, end in late)
    return max(0.0, ended - begun - waited_for_core_s - machine)


class CoreWaits:
    """How long threads of *pid* could have run and had no core, all of them together.

    The kernel counts it (`/proc/PID/task/TID/schedstat`, the second number).  All, and not the main
    thread alone: it also waits for the interpreter's lock, which another thread may hold while that
    one has no core.  Threads that wait for a lock or for work add nothing.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: dict[str, int] = {}
        self._looked_at = float("-inf")

    def total_s(self) -> float:
        """Since the process began; less where threads have ended."""
        now = time.monotonic()
        if now - self._looked_at > _THREADS_EVERY_S:
            self._looked_at = now
            self._look()
        total = 0
        for thread, file in tuple(self._files.items()):
            try:
                total += int(os.pread(file, 128, 0).split()[1])
            except (OSError, IndexError, ValueError):
                os.close(self._files.pop(thread))
        return total / 1e9

    def close(self) -> None:
        """Forget all threads."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                if thread not in self._files:
                    with contextlib.suppress(OSError):
                        path = f"/proc/{self._pid}/task/{thread}/schedstat"
                        self._files[thread] = os.open(path, os.O_RDONLY)


def memory_bytes(pid: int, name: str) -> int:
    """`VmRSS` or `VmHWM` of *pid*; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class _Thread:
    """A thread that repeats `_once` until it is stopped."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_PROBE_TIMEOUT_S + 5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._once()

    def _once(self) -> None:
        raise NotImplementedError


class Control(_Thread):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._late: deque[Span] = deque()

    def late(self, since: float) -> list[Span]:
        """When it should have run and did not, from *since* on."""
        spans = tuple(self._late)  # the thread goes on adding
        return list(itertools.takewhile(lambda span: span[1] > since, reversed(spans)))

    def _once(self) -> None:
        due = time.monotonic() + _CONTROL_EVERY_S
        time.sleep(_CONTROL_EVERY_S)
        now = time.monotonic()
        if now - due > 0.001:
            self._late.append((due, now))
        while self._late and self._late[0][1] < now - _CONTROL_KEPT_S:
            self._late.popleft()


class Prober(_Thread):
    """See the module.  *port* and *pid* are the agent's."""

    def __init__(self, port: int, pid: int, control: Control) -> None:
        super().__init__()
        self._port, self._control = port, control
        self._waits = CoreWaits(pid)
        self._connection: Connection | None = None
        self.stalls: list[float] = []
        self.probes = 0

    def _once(self) -> None:
        try:
            if self._connection is None:
                self._connection = Connection(
                    self._port, address=HEALTHY_ADDRESS, timeout_s=_PROBE_TIMEOUT_S
                )
            self._probe(self._connection)
        except GONE:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._stopping.wait(0.1)
        self.probes += 1
        self._stopping.wait(_PROBE_EVERY_S)

    def _probe(self, connection: Connection) -> None:
        core, begun = self._waits.total_s(), time.monotonic()
        try:
            connection.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        except TimeoutError:
            self.stalls.append(time.monotonic() - begun)
            raise
        ended = time.monotonic()
        waited_s = max(0.0, self._waits.total_s() - core)
        self.stalls.append(stalled_s((begun, ended), waited_s, self._control.late(begun)))


class Memory(_Thread):
    """The peak of *pid*'s resident bytes from now on.

    Args:
        most_bytes: an agent that has more is killed, so that the machine goes on.
    """

    def __init__(self, pid: int, most_bytes: int = 3 * GiB) -> None:
        super().__init__()
        self._pid, self._most_bytes = pid, most_bytes
        reset_peak(pid)
        self.base_bytes = memory_bytes(pid, "VmRSS")
        self.peak_bytes = self.base_bytes
        self.killed = False

    def _once(self) -> None:
        self.look()
        self._stopping.wait(_SAMPLE_EVERY_S)

    def look(self) -> None:
        """Read it now."""
        self.peak_bytes = max(self.peak_bytes, memory_bytes(self._pid, "VmHWM"))
        if memory_bytes(self._pid, "VmRSS") > self._most_bytes and not self.killed:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.base_bytes
