"""The entries of the range cache: their names, their bytes, and which of them go first.

    name    SHA-256 of the object's key: 16 hex digits │ of key, start and end: 32
    entry   magic 8 │ CRC-32C of what follows 4 │ start, end 8 each │ key size 4 │ key │ bytes

1. An entry counts only if its key, its range and its checksum are right.
2. All entries take at most the budget.  The entry that was not read for longest goes first.

Pure.
"""

import hashlib
import struct
from collections import OrderedDict
from typing import Final

from driftlog_tiering.batches import kernel
from driftlog_tiering.foundation.types import Buffer

WHOLE: Final = 0
"""As the end of a range: to the end of the object."""

_MAGIC: Final = b"DRIFTRG1"
_CHECKED: Final = struct.Struct(">qqI")
_CRC: Final = struct.Struct(">I")


class CachedRanges:
    """The entries of one cache, by their names."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Least recently read first."""
        self.used_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def add(self, name: str, size_bytes: int) -> None:
        """The entry is stored; it counts as the one that was read last."""
        self._sizes[name] = size_bytes
        self.used_bytes += size_bytes

    def was_read(self, name: str) -> None:
        """All other entries go before this one."""
        self._sizes.move_to_end(name)

    def forget(self, name: str) -> None:
        """The entry is deleted."""
        self.used_bytes -= self._sizes.pop(name)

    def of_object(self, key: str) -> list[str]:
        """The entries of the object *key*."""
        return [name for name in self._sizes if name.startswith(_object(key))]

    def fits(self, name: str, size_bytes: int) -> bool:
        """Whether the entry is not there, and the budget has room for it without the others."""
        return name not in self._sizes and size_bytes <= self._budget_bytes

    def to_delete(self, size_bytes: int) -> str | None:
        """The entry to delete next to make room for *size_bytes*; None: there is room."""
        if self.used_bytes + size_bytes <= self._budget_bytes:
            return None
        return next(iter(self._sizes), None)


def name_of(key: str, start: int, end: int) -> str:
    """The name of the entry of the bytes ``[start, end)`` of the object *key*."""
    return _object(key) + hashlib.sha256(f"{key}\0{start}\0{end}".encode()).hexdigest()[:32]


def _object(key: str) -> str:
    """What the names of all entries of an object begin with."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def encode_entry(key: str, start: int, end: int, body: Buffer) -> list[Buffer]:
    """The entry of the bytes ``[start, end)`` of the object *key*, in parts."""
    name = key.encode()
    checked = _CHECKED.pack(start, end, len(name)) + name
    crc = kernel.crc32c(body, kernel.crc32c(checked))
    return [_MAGIC, _CRC.pack(crc), checked, body]


def decode_entry(stored: bytes, key: str, start: int, end: int) -> bytes | None:
    """The body; None: the entry is damaged, or of another range."""
    name = key.encode()
    checked = _CHECKED.pack(start, end, len(name)) + name
    at = len(_MAGIC) + _CRC.size
    if not stored.startswith(_MAGIC) or len(stored) < at:
        return None
    if end != WHOLE and len(stored) != at + len(checked) + end - start:
        return None
    (crc,) = _CRC.unpack_from(stored, len(_MAGIC))
    if stored[at : at + len(checked)] != checked or kernel.crc32c(memoryview(stored)[at:]) != crc:
        return None
    return stored[at + len(checked) :]
