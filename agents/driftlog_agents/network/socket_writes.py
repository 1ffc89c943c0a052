"""Writes large answers to a socket without the interpreter's lock.

The kernel takes 1 to 2 ms to copy an answer of 2 MiB.  uvloop's transports hold the interpreter's
lock meanwhile, and each thread of the agent that needs it waits: those that read objects, decode
row groups and store flushes.  Python's own calls release it.

Shell.
"""

import os
from collections.abc import Sequence
from typing import Final

from driftlog_tiering.foundation.types import Buffer

_MOST_BUFFERS: Final = min(1024, os.sysconf("SC_IOV_MAX"))


def write_to_socket(file: int, buffers: Sequence[Buffer]) -> tuple[int, int]:
    """Write as much of *buffers* as the socket takes at once.

    Returns: the number of buffers that it took completely, and the bytes of the next one.  An error
    of the socket ends the write: the transport, which writes the rest, meets it again and closes.

    Args:
        file: the file descriptor of a socket that does not block.
    """
    whole = 0
    while whole < len(buffers):
        some = buffers[whole : whole + _MOST_BUFFERS]
        try:
            sent_bytes = os.writev(file, some)
        except OSError:
            return whole, 0
        for buffer in some:
            if sent_bytes < len(buffer):
                return whole, sent_bytes
            sent_bytes -= len(buffer)
            whole += 1
    return whole, 0
