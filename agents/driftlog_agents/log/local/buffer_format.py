"""Buffer files: the format of accepted batches on the local disk.

    ┌────────┬───────┬───────┬─ … ─┐
    │ header │ entry │ entry │     │       entries in the order of admission
    └────────┴───────┴───────┴─ … ─┘

    file header, 32 bytes            entry header, 48 bytes, then the batch
    0   4  magic "DLBF"              0   4  magic "DLBE"
    4   2  version (1)               4   4  CRC-32C of bytes 8 to 48
    6   2  reserved                  8   8  the file's salt
    8   8  salt                      16  4  length of the batch, bytes
    16  8  file number               20  1  flags: 1 = answered to acks=1 after a sync
    24  4  CRC-32C of bytes 0 to 24  21  3  reserved
    28  4  reserved                  24  16 topic id
                                     40  4  partition
                                     44  4  reserved

Files are recycled: a new one overwrites an old one in place, because fresh pages cost more CPU than
everything else.  The salt, random per use of a file, tells its entries from what an earlier use
left behind.  A batch carries its own offset, leader epoch and CRC-32C.

A file that was cut off by a crash ends with its last whole entry: the bytes after it have another
salt, or none.  Where a whole entry follows a damaged one, the disk has damaged the file, or the
power failed before the last sync ended: the kernel does not write pages in the order of the file,
so an unsynced page may be on the disk without an earlier one.  The reader cannot tell the two
apart: it skips the damaged entry and reads the rest, which may have been acknowledged.  It finds
the next entry by the length of the one before it, and where that cannot be trusted, by the next
header whose magic, salt and CRC are right.  A batch that a client made cannot pass for an entry:
the salt is secret.  A skipped entry leaves a gap in the offsets of its partition, and entries after
a gap are never appended at their old offsets (`recovery`).
A file whose header has another number than its name was recycled, and a power failure undid its
renaming: nothing in it was synced.
A stored format: add a version, never edit one in place.
Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import crc32c

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import BatchHeader, CorruptBatchError, check_batch

VERSION: Final = 1
FILE_HEADER_BYTES: Final = 32
ENTRY_HEADER_BYTES: Final = 48
ACKS_ONE: Final = 1

_FILE: Final = Struct(">4sHHQQ")
_ENTRY: Final = Struct(">QIB3x16siI")
_ENTRY_HEAD: Final = Struct(">4sI")
_U32: Final = Struct(">I")
_FILE_MAGIC: Final = b"DLBF"
_ENTRY_MAGIC: Final = b"DLBE"
_pack: Final = _ENTRY.pack
_crc: Final = crc32c.crc32c
assert _ENTRY_HEAD.size + _ENTRY.size == ENTRY_HEADER_BYTES


class Entry(NamedTuple):
    """One accepted batch; *batch* is a view of the bytes that were read."""

    topic_id: UUID
    partition: int
    acks_one: bool
    batch: memoryview


@dataclass(slots=True)
class PassedOver:
    """The entries of a file that are not whole.

    The end of a file may be torn; a part before a whole entry is damaged, or was not synced.
    """

    entries: int = 0
    """Entries before a whole one, at least: damaged headers do not tell their number."""
    size_bytes: int = 0
    torn: int = 0
    """Entries that no whole one follows so far."""
    torn_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one more entry that is not whole."""
        self.torn += 1
        self.torn_bytes += size_bytes

    def followed(self) -> None:
        """A whole entry follows: the torn ones before it count as damaged."""
        self.entries += self.torn
        self.size_bytes += self.torn_bytes
        self.torn = self.torn_bytes = 0


def encode_file_header(salt: int, number: int) -> bytes:
    """The first 32 bytes of a file."""
    head = _FILE.pack(_FILE_MAGIC, VERSION, 0, salt, number)
    return head + _U32.pack(crc32c.crc32c(head)) + b"\0\0\0\0"


def encode_entry_header(
    salt: int, topic_id: bytes, partition: int, length: int, acks_one: bool
) -> bytes:
    """The 48 bytes before a batch of *length* bytes; *topic_id* as its 16 bytes."""
    rest = _pack(salt, length, ACKS_ONE if acks_one else 0, topic_id, partition, 0)
    return b"%b%b%b" % (_ENTRY_MAGIC, _crc(rest).to_bytes(4, "big"), rest)


def decode_file_header(data: bytes | memoryview) -> tuple[int, int] | None:
    """(salt, number); None: the file was created and not yet written.

    Raises:
        CorruptError: a header of a version that this release does not read.
    """
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, _, salt, number = _FILE.unpack_from(data)
    (checksum,) = _U32.unpack_from(data, 24)
    if magic != _FILE_MAGIC or checksum != crc32c.crc32c(memoryview(data)[:24]):
        return None
    if version != VERSION:
        raise CorruptError(
            f"buffer file of version {version}; this release reads {VERSION}: start the release "
            f"that wrote it, and stop it with SIGTERM, before this one"
        )
    return salt, number


def entries(
    data: bytes | memoryview, number: int | None = None, passed_over: PassedOver | None = None
) -> Iterator[Entry]:
    """Every entry whose header is whole, in order; damaged bytes between them are skipped.

    The batch's own CRC says whether the batch is whole.  *number*: from the file's name; a file
    with another number in its header has no entries.

    Raises:
        CorruptError: as `decode_file_header`.
    """
    view = memoryview(data)
    passed_over = passed_over or PassedOver()
    head = decode_file_header(data)
    if head is not None:
        salt = head[0]
        if number not in (None, head[1]):
            return
    elif (first := _header_at(view, FILE_HEADER_BYTES)) is not None:
        # Both headers are in one sector: only damage separates them, a crash does not.
        salt = first[0]
        passed_over.add(FILE_HEADER_BYTES)
    else:
        return
    at: int | None = FILE_HEADER_BYTES
    while at is not None:
        header = _header_at(view, at)
        if header is None or header[0] != salt:
            damaged, at = at, _next_header(data, at + 1, salt)
            if at is not None:
                passed_over.add(at - damaged)
            continue
        _, length, flags, topic_id, partition = header
        start = at + ENTRY_HEADER_BYTES
        if start + length > len(view):
            passed_over.add(len(view) - at)
            return
        batch = view[start : start + length]
        yield Entry(UUID(bytes=topic_id), partition, bool(flags & ACKS_ONE), batch)
        at = start + length


def whole_batches(
    data: bytes | memoryview, number: int | None = None, passed_over: PassedOver | None = None
) -> Iterator[tuple[Entry, BatchHeader]]:
    """Every entry whose batch is whole, with the header of the batch; otherwise as `entries`."""
    passed_over = passed_over or PassedOver()
    for entry in entries(data, number, passed_over):
        try:
            header = check_batch(entry.batch, from_client=False)
        except CorruptBatchError:
            passed_over.add(len(entry.batch))
            continue
        passed_over.followed()
        yield entry, header


def _header_at(view: memoryview, at: int) -> tuple[int, int, int, bytes, int] | None:
    """Salt, length, flags, topic id and partition; None: there is no whole header."""
    if at + ENTRY_HEADER_BYTES > len(view):
        return None
    magic, checksum = _ENTRY_HEAD.unpack_from(view, at)
    rest = view[at + _ENTRY_HEAD.size : at + ENTRY_HEADER_BYTES]
    if magic != _ENTRY_MAGIC or crc32c.crc32c(rest) != checksum:
        return None
    salt, length, flags, topic_id, partition, _ = _ENTRY.unpack(rest)
    return salt, length, flags, topic_id, partition


def _next_header(data: bytes | memoryview, at: int, salt: int) -> int | None:
    """Where the next whole header with that salt begins, from *at* on."""
    whole = data if isinstance(data, bytes) else bytes(data)
    view = memoryview(whole)
    # (By the salt, at the speed of memory: a file may consist of magics only.)
    salted = salt.to_bytes(8, "big")
    found = whole.find(salted, at + _ENTRY_HEAD.size)
    while found >= 0:
        begin = found - _ENTRY_HEAD.size
        header = _header_at(view, begin)
        if header is not None and header[0] == salt:
            return begin
        found = whole.find(salted, found + 1)
    return None
