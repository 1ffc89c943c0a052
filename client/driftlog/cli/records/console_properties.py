"""Properties of Kafka's console consumer and producer: what they print and how they read.

    CreateTime:1700000000000 | Partition:0 | Offset:1 | name:value,… | key | value

The requested columns in this order, with ``key.separator`` between them.
Source: org.apache.kafka.tools.consumer.DefaultMessageFormatter, org.apache.kafka.tools
.LineMessageReader; the tools themselves are the oracle in tests.
Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from driftlog.cli.records.formats import Formatter, Headers
from driftlog.common.records import Message, headers_of
from driftlog.common.similar_names import similar

_TIMESTAMP_TYPES: Final = {1: b"CreateTime", 2: b"LogAppendTime"}
_SEPARATORS: Final = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_COLUMNS: Final = ("timestamp", "partition", "offset", "headers", "key", "value")


def console_formatter(properties: Mapping[str, str]) -> Formatter:
    """A formatter that prints a record as the console consumer does with these ``--property``.

    Raises:
        ValueError: there is no such property.
    """
    known = {f"print.{column}" for column in _COLUMNS} | set(_SEPARATORS)
    _refuse_unknown(properties, known)
    texts = {n: properties.get(n, default).encode() for n, default in _SEPARATORS.items()}
    null = texts["null.literal"]

    def or_null(data: bytes | None) -> bytes:
        return null if data is None else data

    def headers(found: Headers) -> bytes:
        pairs = (name.encode() + b":" + or_null(value) for name, value in found)
        return texts["headers.separator"].join(pairs) or b"NO_HEADERS"

    columns: dict[str, Callable[[Message], bytes]] = {
        "timestamp": _timestamp,
        "partition": lambda m: b"Partition:%d" % (m.partition() or 0),
        "offset": lambda m: b"Offset:%d" % (m.offset() or 0),
        "headers": lambda m: headers(headers_of(m)),
        "key": lambda m: or_null(m.key()),
        "value": lambda m: or_null(m.value()),
    }
    shown = [
        columns[column]
        for column in _COLUMNS
        if _is_true(properties.get(f"print.{column}", "true" if column == "value" else "false"))
    ]
    between, end = texts["key.separator"], texts["line.separator"]
    return lambda m: between.join([column(m) for column in shown]) + end if shown else b""


def _timestamp(message: Message) -> bytes:
    kind, timestamp = message.timestamp()
    name = _TIMESTAMP_TYPES.get(kind)
    return b"NO_TIMESTAMP" if name is None else b"%b:%d" % (name, timestamp)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record; None: lines have no key, and no text means null."""

    key_separator: bytes | None
    null: bytes | None


def console_line_format(properties: Mapping[str, str]) -> LineFormat:
    """The line format of the console producer with these ``--property``.

    Raises:
        ValueError: there is no such property, or driftlog does not support it.
    """
    _refuse_unknown(properties, {"parse.key", "key.separator", "null.marker"})
    has_key = _is_true(properties.get("parse.key", "false"))
    null = properties.get("null.marker")
    return LineFormat(
        key_separator=properties.get("key.separator", "\t").encode() if has_key else None,
        null=None if null is None else null.encode(),
    )


def _refuse_unknown(properties: Mapping[str, str], known: set[str]) -> None:
    unknown = sorted(set(properties) - known)
    if unknown:
        hint = similar(unknown[0], known)
        raise ValueError(
            f"unknown property {unknown[0]!r}{hint or ': ' + ', '.join(sorted(known))}"
        )


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"
