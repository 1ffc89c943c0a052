r"""Records as text: kcat's formats, its JSON envelope, and records from JSON.

    %s %S  value, its length (-1: null)     %t %p %o  topic, partition, offset
    %k %K  key, its length (-1: null)       %T        timestamp, milliseconds
    %h     headers, name=value,…            %R        as %S, four bytes, big-endian
    %%     a percent sign                   \n \r \t \0 \xHH \\

Null and empty look the same in %s and %k: with kcat's -Z its text stands for both, as in kcat.
A value in JSON that is not UTF-8 is in ``payload_base64``.  A formatter that prints headers raises
UnicodeError where `headers_of` does.
Source: kcat 1.7.1, which is the oracle in tests.
Pure.
"""

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from driftlog.common.records import Message, headers_of

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_TIMESTAMP_TYPES: Final = {1: "create", 2: "logappend"}
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-9]{1,3}|.)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


Formatter: TypeAlias = Callable[[Message], bytes]


def unescape(text: str) -> bytes:
    r"""The bytes of *text* with its escapes: ``\n``, ``\t``, ``\0``, ``\x1e``, ``\\``."""

    def one(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape[:1] == b"x" and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape.isdigit():
            octal = escape[:1] == b"0" and not set(escape) & set(b"89")
            return bytes([int(escape, 8 if octal else 10) & 0xFF])
        return _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(one, text.encode(errors="surrogateescape"))


def compile_format(text: str, null: bytes = b"") -> Formatter:
    """A formatter that prints a record in the format *text*.

    Raises:
        ValueError: there is no such token.
    """
    parts: list[Formatter] = []
    for literal, token in re.findall(r"([^%]*)(%.?|$)", text, re.DOTALL):
        if literal:
            parts.append(_literal(unescape(literal)))
        if token:
            parts.append(_token(token, null))

    def formatted(message: Message) -> bytes:
        return b"".join([part(message) for part in parts])

    return formatted


def _literal(text: bytes) -> Formatter:
    return lambda _: text


def _token(token: str, null: bytes) -> Formatter:
    match token:
        case "%s":
            return lambda m: m.value() or null
        case "%k":
            return lambda m: m.key() or null
        case "%S":
            return lambda m: b"%d" % _length(m.value())
        case "%K":
            return lambda m: b"%d" % _length(m.key())
        case "%R":
            return lambda m: _length(m.value()).to_bytes(4, "big", signed=True)
        case "%T":
            return lambda m: b"%d" % m.timestamp()[1]
        case "%t":
            return lambda m: (m.topic() or "").encode()
        case "%p":
            return lambda m: b"%d" % (m.partition() or 0)
        case "%o":
            return lambda m: b"%d" % (m.offset() or 0)
        case "%h":
            return lambda m: format_headers(headers_of(m))
        case "%%":
            return _literal(b"%")
        case "%":
            raise ValueError("a percent sign at the end: write %%")
        case _:
            raise ValueError(f"unknown token {token}: use %s %k %S %K %R %T %t %p %o %h or %%")


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def format_headers(headers: Headers) -> bytes:
    """``name=value,…``; null is NULL."""
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in headers
    )


# ── JSON ──


def to_json(message: Message) -> bytes:
    """kcat's envelope, on one line, without the line's end."""
    kind, timestamp = message.timestamp()
    envelope: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
    }
    if kind in _TIMESTAMP_TYPES:
        envelope |= {"tstype": _TIMESTAMP_TYPES[kind], "ts": timestamp}
    headers = headers_of(message)
    if headers:
        envelope |= _json_headers(headers)
    envelope |= _json_bytes("key", message.key())
    envelope |= _json_bytes("payload", message.value())
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()


def _json_headers(headers: Headers) -> dict[str, Any]:
    """The envelope's flat list: name, value, name, value, …"""
    flat: list[str | None] = []
    try:
        for name, value in headers:
            flat += [name, None if value is None else value.decode()]
    except UnicodeDecodeError:
        values = [None if v is None else b64encode(v).decode() for _, v in headers]
        pairs = zip((name for name, _ in headers), values, strict=True)
        return {"headers_base64": [text for pair in pairs for text in pair]}
    return {"headers": flat}


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data or b"").decode()}


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to produce; None: the value of the command line."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


_FIELDS: Final = frozenset(
    "key key_base64 value value_base64 payload payload_base64 headers headers_base64 partition "
    "timestamp ts".split()
)
_TOLD: Final = frozenset("topic offset tstype broker".split())
"""Fields of an envelope that a new record cannot set."""


def from_json(line: bytes) -> NewRecord:
    """A record from ``{"key": …, "value": …, "headers": {…}, "partition": 0, "timestamp": ms}``.

    Texts are UTF-8; a key or value that is no text is written as JSON.  An envelope of `to_json`
    is accepted as well; the partitioner chooses its partition.

    Raises:
        ValueError: the line is no such object.
    """
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    unknown = sorted(fields.keys() - _FIELDS - _TOLD)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: use {', '.join(sorted(_FIELDS))}")
    return NewRecord(
        key=_bytes_of(fields, "key"),
        value=_bytes_of(fields, "value", "payload"),
        headers=_headers_of(fields),
        partition=None if "offset" in fields else _number_of(fields, "partition"),
        timestamp_ms=_number_of(fields, "timestamp", "ts"),
    )


def _bytes_of(fields: dict[str, Any], *names: str) -> bytes | None:
    for name in names:
        if f"{name}_base64" in fields:
            return _base64(fields[f"{name}_base64"], name)
        if name in fields:
            return _encoded(fields[name])
    return None


def _encoded(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _base64(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"{name} is not base64: {error}") from error


def _number_of(fields: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is not a number: {value!r}")
            return value
    return None


def _headers_of(fields: dict[str, Any]) -> Headers:
    """An object, pairs, or kcat's flat list."""
    coded = "headers_base64" in fields
    given = fields.get("headers_base64") if coded else fields.get("headers")
    match given:
        case None:
            return ()
        case dict():
            pairs = list(given.items())
        case list() if all(isinstance(p, list) and len(p) == 2 for p in given):
            pairs = [(name, value) for name, value in given]
        case list() if len(given) % 2 == 0:
            pairs = list(zip(given[::2], given[1::2], strict=True))
        case _:
            raise ValueError("headers are an object, or a list of names and values")
    if not all(isinstance(name, str) for name, _ in pairs):
        raise ValueError("a header's name is a text")
    return [(n, _base64(v, "a header") if coded else _encoded(v)) for n, v in pairs]
