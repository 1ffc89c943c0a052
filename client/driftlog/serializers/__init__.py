"""Serializers make bytes of keys and values; deserializers make values of bytes.

Any callable can be one.  It takes the value alone, or the value and a `SerializationContext`, as
confluent-kafka's serializers do:

    def to_avro(value: Flight, ctx: SerializationContext) -> bytes:
        return encode(schemas[ctx.topic, ctx.field], value)

    Producer(value_serializer=to_avro)

A second parameter is the context if it is required, or is named ``ctx`` or ``context``; other
optional parameters keep their defaults.

The clients never call them with None: a null key or value is written, and read, as null.  Hence
`to_json` writes None as a record without a value, and not as the text ``null``.
Pure.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class SerializationContext:
    """The facts about the record for a serializer or a deserializer."""

    topic: str
    field: Literal["key", "value"]
    """Equal to confluent-kafka's ``MessageField.KEY`` and ``MessageField.VALUE``."""
    headers: list[tuple[str, bytes | str | None]]
    """In their order.  The producer sends what a serializer appends here; the key comes first."""


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8; ``to_json({"n": 1})`` is ``b'{"n":1}'``.

    Raises:
        TypeError: the value has a type that JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; ``from_json(b'{"n":1}')`` is ``{"n": 1}``.

    Raises:
        ValueError: the bytes are not JSON.
    """
    return json.loads(data)


def to_text(value: str) -> bytes:
    """The text in UTF-8; ``to_text("é")`` is ``b"\\xc3\\xa9"``."""
    return value.encode()


def from_text(data: bytes) -> str:
    """The text of bytes in UTF-8; ``from_text(b"\\xc3\\xa9")`` is ``"é"``.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    return data.decode()
