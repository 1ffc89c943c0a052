"""The C allocator's settings, for a process with a dozen threads and buffers of megabytes.

glibc gives each thread an arena of its own, and each arena keeps the memory that it once had:
threads that take turns with the same work hold a hundred unused megabytes.  Arrow's own pool does
the same beside it.  One arena for all threads costs no time here, because large buffers are made
only a few hundred times a second.

By default glibc also returns a buffer's pages to the system when the buffer is freed, and requests
fresh ones a moment later.  A fresh page costs more than filling it.

Shell.
"""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

import pyarrow as pa

from driftlog_tiering.foundation.types import MiB

_OPTIONS: Final = (
    ("MALLOC_ARENA_MAX", -8, 1),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 * MiB),  # the most that glibc takes
    ("MALLOC_TRIM_THRESHOLD_", -1, 64 * MiB),
)
"""Name in the environment, number in malloc.h, value here."""


def give_back() -> None:
    """Return free memory to the system: after large batches, which leave more than is worth
    keeping.  Some 10 ms; glibc only."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def use_memory_again() -> None:
    """Set the allocator's options; call it before threads start.  An option in the environment, and
    `ARROW_DEFAULT_MEMORY_POOL`, keep their values; C libraries other than glibc are not changed."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            for name, option, value in _OPTIONS:
                if name not in os.environ:
                    mallopt(option, value)
