"""Buffer files: what the local disk keeps of accepted batches.

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

Files are recycled: a new one overwrites an old one in place, because fresh pages
cost more CPU than all the rest.  The salt, random per use of a file, tells its
entries from what an earlier use left behind.  A batch carries its own offset,
leader epoch and CRC-32C.

A file that was cut off by a crash is read up to its first entry that is not whole.  A file whose
header has another number than its name was recycled, and the loss of power undid its renaming:
nothing in it was synced.
A stored format: add a version, never edit one in place.
Pure.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import crc32c

from driftlog_metadata.errors import CorruptError

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


def entries(data: bytes | memoryview, number: int | None = None) -> Iterator[Entry]:
    """Every whole entry, in order; stops at the first that is not.

    Whether the batch inside is whole is for its own CRC to say.  *number*: the one that the file's
    name has; a file with another one in its header has no entries.

    Raises:
        CorruptError: as `decode_file_header`.
    """
    head = decode_file_header(data)
    if head is None or number not in (None, head[1]):
        return
    view = memoryview(data)
    at = FILE_HEADER_BYTES
    while at + ENTRY_HEADER_BYTES <= len(view):
        magic, checksum = _ENTRY_HEAD.unpack_from(view, at)
        if magic != _ENTRY_MAGIC:
            return
        rest = view[at + _ENTRY_HEAD.size : at + ENTRY_HEADER_BYTES]
        if crc32c.crc32c(rest) != checksum:
            return
        salt, length, flags, topic_id, partition, _ = _ENTRY.unpack(rest)
        start = at + ENTRY_HEADER_BYTES
        if salt != head[0] or start + length > len(view):
            return
        batch = view[start : start + length]
        yield Entry(UUID(bytes=topic_id), partition, bool(flags & ACKS_ONE), batch)
        at = start + length
