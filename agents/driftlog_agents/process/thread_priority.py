"""Lowers the scheduling priority of worker threads whose work may wait, below that of serving.

    threads            nice      work
    event loop, reads  +0        requests of clients
    seal               +2        sealing, consolidation: producers wait when it falls behind
    upkeep             +5        compaction, merging, collecting, verification

On Linux each thread has a nice value of its own, and a larger one gives other threads more of a
core that both want: with 5 a thread gets a quarter of it.  A thread that has a core for itself is
as fast as before.  Elsewhere nice values are of whole processes, and nothing is changed.

A thread that is preempted may hold the interpreter's lock, and the event loop waits for it: the
lower its priority, the longer.  So the values are small.

Source: sched(7), "The nice value"; setpriority(2), "C library/kernel differences".

Shell.
"""

import contextlib
import os
import sys
import threading
from typing import Final

SEAL_NICE: Final = 2
"""More: serving is disturbed less, and producers wait earlier while the machine is full."""

UPKEEP_NICE: Final = 5
"""More: a preempted thread holds the interpreter's lock for longer."""

_LOWEST: Final = 19


def lower_priority(by: int) -> None:
    """Raise the nice value of the calling thread by *by*; other threads keep theirs."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox may refuse it: the work is done all the same
        nice = os.getpriority(os.PRIO_PROCESS, thread) + by
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, _LOWEST))
