"""How the clients call serializers and deserializers: with a context, and never for null.

A callable with a `SerializationContext` costs one object per record; others cost none.
Shell.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from driftlog.common.records import UNREADABLE, Headers, Record
from driftlog.errors import DeserializationError, SerializationError
from driftlog.serializers import SerializationContext

T = TypeVar("T")

Serialized = bytes | str | None
"""What a serializer may return; text is sent in UTF-8, and None as null."""
Serializer = Callable[[T], Serialized] | Callable[[T, SerializationContext], Serialized]
Deserializer = Callable[[bytes], T] | Callable[[bytes, SerializationContext], T]
Field = Literal["key", "value"]
HeaderList = list[tuple[str, bytes | str | None]]

_CONTEXT_NAMES: Final = frozenset({"ctx", "context"})
_HELPERS: Final = {"key": "to_text", "value": "to_json"}


class Serializers:
    """The serializers of a producer's keys and values."""

    def __init__(self, key: Serializer[Any] | None, value: Serializer[Any] | None) -> None:
        self._key = None if key is None else _Codec(key)
        self._value = None if value is None else _Codec(value)

    def __call__(self, topic: str, key: Any, value: Any, headers: HeaderList) -> tuple[Any, Any]:
        """Key and value, serialized; a serializer may append to *headers*.

        Raises:
            SerializationError: one of the serializers failed.
        """
        if key is not None and self._key is not None:
            key = _serialized("key", self._key, topic, key, headers)
        if value is not None and self._value is not None:
            value = _serialized("value", self._value, topic, value, headers)
        return key, value

    def refuse(self, topic: str, key: Any, value: Any) -> None:
        """Raise for a key or value that librdkafka refused.

        Raises:
            SerializationError: the key or the value is neither bytes, nor str, nor None.
        """
        self._refuse("key", topic, key, self._key)
        self._refuse("value", topic, value, self._value)

    def _refuse(self, field: Field, topic: str, data: Any, serializer: object) -> None:
        if data is None or isinstance(data, bytes | str):
            return
        kind = type(data).__name__
        if serializer is not None:
            raise SerializationError(
                f"the {field}_serializer returned a value of type {kind} for a record of topic "
                f"{topic!r}. The record was not taken: return bytes from the serializer."
            )
        helper = _HELPERS[field]
        raise SerializationError(
            f"the {field} of a record of topic {topic!r} has type {kind}, and this producer has no "
            f"{field}_serializer. The record was not taken: produce bytes or str, or give the "
            f"producer a serializer, such as {field}_serializer=driftlog.serializers.{helper} "
            "(after `import driftlog.serializers`)."
        )


class Deserializers:
    """The deserializers of a consumer's keys and values."""

    def __init__(self, key: Deserializer[Any] | None, value: Deserializer[Any] | None) -> None:
        self._key = None if key is None else _Codec(key)
        self._value = None if value is None else _Codec(value)

    def __call__(self, record: Record[bytes, bytes]) -> Record[Any, Any]:
        """The record with its key and value deserialized.

        Raises:
            DeserializationError: one of the deserializers failed, or the headers cannot be read.
        """
        if record.headers is UNREADABLE:
            raise _failed(
                record, "confluent-kafka cannot read headers", "the key of one is not UTF-8"
            )
        if self._key is None and self._value is None:
            return record
        return record._replace(
            key=_deserialized("key", self._key, record.key, record),
            value=_deserialized("value", self._value, record.value, record),
        )


def takes_context(call: Callable[..., Any]) -> bool:
    """Whether *call* takes a `SerializationContext` as its second argument.

    Some callables of C have no signature; they get the value alone.
    """
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        return False
    second = positional[1]
    return second.default is second.empty or second.name in _CONTEXT_NAMES


class _Codec:
    """A serializer or a deserializer, given the context if it takes one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.takes_context = takes_context(call)

    def __call__(self, data: Any, topic: str, field: Field, headers: HeaderList | Headers) -> Any:
        if not self.takes_context:
            return self._call(data)
        given: HeaderList = headers if isinstance(headers, list) else [*headers]
        return self._call(data, SerializationContext(topic, field, given))


def _serialized(field: Field, codec: _Codec, topic: str, data: Any, headers: HeaderList) -> Any:
    try:
        return codec(data, topic, field, headers)
    except Exception as error:
        raise SerializationError(
            f"the {field}_serializer failed for a record of topic {topic!r}: {error!r}. The record "
            "was not taken: correct the record or the serializer."
        ) from error


def _deserialized(
    field: Field, codec: _Codec | None, data: bytes | None, record: Record[bytes, bytes]
) -> Any:
    if codec is None or data is None:
        return data
    try:
        return codec(data, record.topic, field, record.headers)
    except Exception as error:
        raise _failed(record, f"the {field}_deserializer failed", repr(error)) from error


def _failed(record: Record[bytes, bytes], what: str, why: str) -> DeserializationError:
    return DeserializationError(
        f"{what} for {record.topic}-{record.partition} at offset {record.offset}: {why}. The next "
        "read continues after this record.",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
    )
