"""The envelope of driftlog's JSON objects: kind, format version, and a checksum of the bytes.

    {"format":"driftlog.manifest","format_version":1, … ,"crc32":"1c291ca3"}

``crc32`` (zlib's, eight lower-case hex digits) is the last member and covers every byte before
its comma.  It detects damage; it does not protect against a person who edits the file.
A reader ignores members that it does not know; one that may not be ignored needs a new version.

Pure.
"""

import json
import zlib
from typing import Any, Final

from driftlog_tiering.foundation.types import Buffer

_CRC: Final = b',"crc32":"'
_TRAILER_BYTES: Final = len(_CRC) + 8 + len(b'"}\n')


def encode_json(kind: str, format_version: int, fields: dict[str, Any]) -> bytes:
    """The stored bytes of *fields*."""
    head: dict[str, Any] = {"format": kind, "format_version": format_version}
    body = encode_value({**head, **fields})[:-1]
    return body + trailer(zlib.crc32(body))


def encode_value(value: object) -> bytes:
    """*value* as JSON, as `encode_json` writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def trailer(crc32: int) -> bytes:
    """The end of an object, whose bytes before it have *crc32*."""
    return _CRC + f'{crc32:08x}"}}\n'.encode()


def decode_json(kind: str, format_version: int, body: Buffer) -> dict[str, Any]:
    """Invert :func:`encode_json`.

    Raises:
        ValueError: damaged, of another kind, or of a newer format than *format_version*.
    """
    body = bytes(body)
    content, trailer = body[:-_TRAILER_BYTES], body[-_TRAILER_BYTES:]
    if not content or trailer[: len(_CRC)] != _CRC or trailer[-3:] != b'"}\n':
        raise ValueError("not an object of ours, or cut off: it does not end in a crc32")
    crc32 = f"{zlib.crc32(content):08x}"
    if trailer[len(_CRC) : -3] != crc32.encode():
        says = trailer[len(_CRC) : -3].decode(errors="replace")
        raise ValueError(f"damaged: its crc32 is {crc32}, and it says {says}")
    try:
        fields = json.loads(content + b"}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != kind:
        raise ValueError(f"not a {kind}")
    version = fields.get("format_version")
    if type(version) is not int or version < 1:
        raise ValueError(f"it has no format version: {version!r}")
    if version > format_version:
        raise ValueError(
            f"its format version is {version}, and this driftlog reads up to {format_version}: "
            "a newer one wrote it; upgrade this one"
        )
    return fields


def unedited(body: Buffer) -> bytes:
    """*body* as `encode_json` lays it out: without the whitespace that an editor added.

    Only for files that operators restore by hand: in all others different bytes are damage.  Bytes
    that are no JSON are returned as they are.
    """
    try:
        members = json.loads(bytes(body))
        return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except (ValueError, RecursionError):
        return bytes(body)


def integer(fields: dict[str, Any], name: str, least: int = 0) -> int:
    """The integer *name*, at least *least* and within int64.

    Raises:
        ValueError: not there, not an integer, or out of range.
    """
    value = fields.get(name)
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, not an integer from {least} on")
    return value


def string(fields: dict[str, Any], name: str) -> str:
    """The string *name*.

    Raises:
        ValueError: not there, or not a string.
    """
    value = fields.get(name)
    if type(value) is not str:
        raise ValueError(f"{name} is {value!r}, not a string")
    return value


def array(fields: dict[str, Any], name: str) -> list[Any]:
    """The array *name*.

    Raises:
        ValueError: not there, or not an array.
    """
    value = fields.get(name)
    if type(value) is not list:
        raise ValueError(f"{name} is {value!r}, not an array")
    return value


def members(value: object, what: str) -> dict[str, Any]:
    """*value* as an object.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not dict:
        raise ValueError(f"{what} is {value!r}, not an object")
    return value
