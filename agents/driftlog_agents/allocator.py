"""The C allocator's settings, for a process with a dozen threads and buffers of megabytes.

glibc gives each thread an arena of its own, and each keeps what it once had: threads that
take turns with the same work hold a hundred megabytes that nobody uses.  Arrow's own pool
does the same beside it.  One arena for all costs no time here, for large buffers are made
a few hundred times a second.

Shell.
"""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

import pyarrow as pa

_M_ARENA_MAX: Final = -8
"""Of malloc.h."""


def share_one_arena() -> None:
    """Call it before threads start.  What `MALLOC_ARENA_MAX` and `ARROW_DEFAULT_MEMORY_POOL`
    say in the environment stands; other C libraries than glibc are left alone."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
