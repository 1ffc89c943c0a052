"""Standard input and files, cut into records, without waiting longer than the world turns.

Shell.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 18
_IDLE_S: Final = 0.1
MAX_RECORD_BYTES: Final = 256 << 20
"""No broker takes so much: it is a wrong delimiter."""


class TooLongError(Exception):
    """No delimiter for longer than any record may be."""


def split(fd: int, delimiter: bytes, idle: Callable[[], None]) -> Iterator[bytes]:
    """What stands between delimiters, the last one with or without one behind it.

    *idle* is called while there is nothing to read, ten times a second.

    Raises:
        TooLongError: a record has no end.
    """
    begun = bytearray()
    for chunk in _chunks(fd, idle):
        if begun:
            # A delimiter may lie across the border.
            begun += chunk
            if begun.find(delimiter, max(0, len(begun) - len(chunk) - len(delimiter) + 1)) < 0:
                if len(begun) > MAX_RECORD_BYTES:
                    raise TooLongError
                continue
            chunk = bytes(begun)
            begun.clear()
        *records, rest = chunk.split(delimiter)
        yield from records
        begun += rest
    if begun:
        yield bytes(begun)


def _chunks(fd: int, idle: Callable[[], None]) -> Iterator[bytes]:
    while True:
        while not select.select([fd], [], [], _IDLE_S)[0]:
            idle()
        chunk = os.read(fd, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
