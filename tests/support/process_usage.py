"""What a process and its children cost, read from /proc.

CPU is user and system time of all threads of the process, of its living
descendants, and of those that ended and were waited for, in seconds at the
kernel's tick (10 ms).  Memory is resident bytes; the peak is the kernel's own
high-water mark, which `reset_peak` starts anew.  Linux only.
Source: proc(5), `/proc/PID/stat`, `/proc/PID/status`, `/proc/PID/io`.
Shell.
"""

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_PORTS = range(10_000, 20_000)
"""Below those of the product's own etcd (`dev_cluster/local_etcd`), and far below those that
systems give to who connects."""

_given: set[int] = set()
"""Of `_PORTS`: whoever has one may be away for a while, to be started on it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A reading.  The difference of two says what happened between them."""

    cpu_seconds: float
    rss_bytes: int
    peak_rss_bytes: int
    written_bytes: int
    """Bytes that the process caused to be sent to a disk, when they became dirty."""
    read_bytes: int
    """Bytes that came from a disk: what the page cache served is not in it."""


def descendants(pid: int) -> list[int]:
    """*pid* and every living process below it."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except FileNotFoundError:
            continue
        for task in tasks:
            try:
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
            except FileNotFoundError:
                continue
            found += [int(child) for child in children.split()]
    return found


def usage(pid: int) -> Usage:
    """Read the whole family of *pid*; a member that ends meanwhile counts as nothing."""
    cpu, rss, peak, written, read = 0.0, 0, 0, 0, 0
    for member in descendants(pid):
        try:
            # The name in parentheses may hold anything: fields count from the last one.
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            status = _colon_fields(f"/proc/{member}/status")
            io = _colon_fields(f"/proc/{member}/io")
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
        rss += _kib(status.get("VmRSS"))
        peak += _kib(status.get("VmHWM"))
        written += int(io["write_bytes"])
        read += int(io["read_bytes"])
    return Usage(
        cpu_seconds=cpu,
        rss_bytes=rss,
        peak_rss_bytes=peak,
        written_bytes=written,
        read_bytes=read,
    )


def reset_peak(pid: int) -> None:
    """Let the peak of every member start again at what is resident now."""
    for member in descendants(pid):
        Path(f"/proc/{member}/clear_refs").write_text("5")


def free_port(in_a_row: int = 1) -> int:
    """A port that nobody listens on, nor will be given by us again; the first of so many.

    Each of pytest's workers has ports of its own.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    mine = _PORTS[len(_PORTS) * worker // workers : len(_PORTS) * (worker + 1) // workers]
    starts = mine[: len(mine) - in_a_row + 1]
    for first in random.sample(starts, len(starts)):
        ports = range(first, first + in_a_row)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first
    raise OSError("there is no free port on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], timeout_seconds: float, log: Path
) -> None:
    """Return when *ready* says so.

    Raises:
        RuntimeError: the process ended first; the end of its log is in the message.
        TimeoutError: it took too long; the same.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}: {_tail(log)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {timeout_seconds} s: {_tail(log)}")
        time.sleep(0.02)


def stop_process(process: subprocess.Popen[bytes], timeout_seconds: float) -> int:
    """SIGTERM, then SIGKILL when that was not heard in time; the exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def _colon_fields(path: str) -> dict[str, str]:
    lines = Path(path).read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _kib(value: str | None) -> int:
    return 0 if value is None else int(value.split()[0]) * 1024


def _tail(log: Path, size: int = 3000) -> str:
    return log.read_text(errors="replace")[-size:] if log.exists() else "(no log)"
