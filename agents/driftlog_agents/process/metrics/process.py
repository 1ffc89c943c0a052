"""Metrics of the process: its release, its time, its memory and its event loop.

Shell.
"""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from prometheus_client.core import InfoMetricFamily, Metric

from driftlog_agents.process.metrics.families import counter, gauge, histogram
from driftlog_agents.process.metrics.observed import Observed

_VERSION: Final = metadata.version("driftlog")


def collect(observed: Observed) -> Iterable[Metric]:
    """This process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    yield counter(
        "process_cpu_seconds", "User and system CPU time", usage.ru_utime + usage.ru_stime
    )
    yield gauge(
        "process_max_resident_memory_bytes", "Largest resident size", usage.ru_maxrss * unit
    )
    yield from _of_proc()
    yield InfoMetricFamily(
        "driftlog_build",
        "Always 1; the labels say which release runs, on which Python",
        value={"version": _VERSION, "python": platform.python_version()},
    )
    yield gauge(
        "driftlog_event_loop_longest_stall_seconds",
        "Longest time in the last one to two minutes that the event loop was busy or had no core",
        observed.loop_watch.longest_stall_s,
    )
    yield histogram(
        "driftlog_event_loop_delay_seconds",
        "How late the event loop runs a task that is due fifty times a second",
        observed.loop_watch.delays,
    )
    started = observed.agent.broker.agent.started_at_ms / 1000
    yield gauge("process_start_time_seconds", "Since 1970", started)
    yield gauge(
        "driftlog_uptime_seconds", "Time since the start of the process", time.time() - started
    )


def _of_proc() -> Iterable[Metric]:
    """Metrics that only Linux has, under the names of Prometheus' own clients."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        open_files = len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
    except OSError:
        return
    yield gauge(
        "process_resident_memory_bytes", "Resident size", pages * os.sysconf("SC_PAGE_SIZE")
    )
    yield gauge("process_open_fds", "Open file descriptors", open_files)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield gauge("process_max_fds", "Largest number of open file descriptors", most)
