"""The keys that an object may have: those that every store behind the port can hold.

S3 takes 1,024 bytes of UTF-8 with the prefix; a file name takes 255; XML, in which
S3 lists and deletes, has no control characters.  All adapters refuse the same keys,
so that an agent that runs on a directory runs on S3.

Pure.
"""

from collections.abc import Sequence
from typing import Final

MAX_KEY_BYTES: Final = 900
"""S3's limit is 1,024 with the store's prefix, which may take the rest."""

MAX_PREFIX_BYTES: Final = 1024 - MAX_KEY_BYTES - 1

MAX_COMPONENT_BYTES: Final = 255
"""NAME_MAX of every file system in use.  Kafka's topic names end at 249."""

MAX_PAGE_SIZE: Final = 1000
"""S3 answers at most so many keys a page, and deletes at most so many a request."""

TEMPORARY: Final = ".tmp"
"""The first component that is not for keys: the directory store writes there."""

_UNFIT: Final = frozenset([*map(chr, range(0x20)), "\x7f", "\ufffe", "\uffff"])


def is_key(key: str) -> bool:
    """Whether *key* may name an object (the port's first paragraph, and the limits above)."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:  # A lone surrogate.
        return False
    components = encoded.split(b"/")
    return (
        len(encoded) <= MAX_KEY_BYTES
        and all(c not in (b"", b".", b"..") for c in components)
        and all(len(c) <= MAX_COMPONENT_BYTES for c in components)
        and components[0].lower() != TEMPORARY.encode()  # macOS ignores case.
        and _UNFIT.isdisjoint(key)
    )


def check_key(key: str) -> None:
    """
    Raises:
        ValueError: no store can hold an object under *key*: the caller's mistake.
    """
    if not is_key(key):
        raise ValueError(f"not an object key: {key!r}")


def check_range(start: int, end: int | None) -> None:
    """
    Raises:
        ValueError: ``[start, end)`` is not a range of bytes.
    """
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"not a range of bytes: [{start}, {end})")


def check_page_size(page_size: int) -> None:
    """
    Raises:
        ValueError: S3 has no such page.
    """
    if not 1 <= page_size <= MAX_PAGE_SIZE:
        raise ValueError(f"a page has 1 to {MAX_PAGE_SIZE} keys, not {page_size}")


def body_bytes(body: Sequence[bytes | bytearray | memoryview]) -> int:
    """Size of the object that *body* makes, in bytes."""
    return sum(b.nbytes if isinstance(b, memoryview) else len(b) for b in body)
