"""From values to bytes, and back; any callable of the same shape will do.

None is never given to them: a null key or value is written, and read, as null.  Hence `to_json`
writes a record without a value for None, and not the text ``null``.
Pure.
"""

import json
from typing import Any


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    """What the JSON says."""
    return json.loads(data)


def to_text(value: str) -> bytes:
    """UTF-8."""
    return value.encode()


def from_text(data: bytes) -> str:
    """UTF-8; other bytes are refused."""
    return data.decode()
