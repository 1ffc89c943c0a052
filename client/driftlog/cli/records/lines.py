"""Standard input and files, cut into records, without blocking while there is no input.

Shell.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 18
_IDLE_S: Final = 0.1
MAX_RECORD_BYTES: Final = 256 << 20
"""No broker accepts a larger record: the delimiter is wrong."""


class TooLongError(Exception):
    """More bytes without a delimiter than any record may have."""


def split(
    fd: int, delimiter: bytes, idle: Callable[[], None], chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """The bytes between delimiters; the last record may lack its delimiter.

    *idle* is called ten times a second while there is no input.  *chunk_bytes*: of one read.

    Raises:
        TooLongError: a record is longer than `MAX_RECORD_BYTES`.
    """
    begun = bytearray()
    for chunk in _chunks(fd, idle, chunk_bytes):
        if begun:
            # A delimiter may lie across two reads.
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


def _chunks(fd: int, idle: Callable[[], None], chunk_bytes: int) -> Iterator[bytes]:
    while True:
        while not select.select([fd], [], [], _IDLE_S)[0]:
            idle()
        chunk = os.read(fd, chunk_bytes)
        if not chunk:
            return
        yield chunk
