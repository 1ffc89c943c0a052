"""Memory that groups take for what their clients send: one way to count, for every limit; and how
long a group's id may be.

Pure.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

ELEMENT_BYTES: Final = 64
"""Memory of a text without its characters, or of an element of a collection (measured: 50 to
90)."""


MAX_GROUP_ID_BYTES: Final = 1024
"""Longest id of a new group, in bytes of UTF-8.  The key of each of its pages of offsets has the
id, with three bytes for each one that is not a letter or digit."""


def group_id_fault(group_id: str) -> str | None:
    """Why no group of this id may come into being; None: it may."""
    size_bytes = len(group_id.encode())
    if size_bytes <= MAX_GROUP_ID_BYTES:
        return None
    return f"The id of a new group has at most {MAX_GROUP_ID_BYTES} bytes, and not {size_bytes}."


def text_bytes(text: str) -> int:
    """Memory of *text*, 0 if it is empty.  Python stores all characters of a text in four bytes if
    one of them needs as many, and in two or one otherwise."""
    if not text:
        return 0
    return ELEMENT_BYTES + len(text) * (1 if text.isascii() else 4)


def texts_bytes(texts: Iterable[str | None]) -> int:
    """Memory of *texts*; None takes none."""
    return sum(text_bytes(text) for text in texts if text is not None)


def count(counter: Counter[str], keys: Iterable[str], by: int) -> None:
    """Add *by* for each of *keys*; a counter keeps no key whose count is 0."""
    for key in keys:
        counter[key] += by
        if not counter[key]:
            del counter[key]
