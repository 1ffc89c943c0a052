"""Which column of a DataFrame becomes which field of a record.

    topic      string                                  needed without the option `topic`
    key        string | binary                         optional
    value      string | binary                         needed
    headers    array<struct<key:string,value:binary>>  optional
    partition  int                                     optional

The rules and the messages are those of Spark 4.2: names are case-sensitive, the first column of a
name counts, other columns are not written, and the option `topic` wins over the column.
Source: org.apache.spark.sql.kafka010.KafkaWriter#validateQuery.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_TEXT_OR_BYTES: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the DataFrame."""

    name: str
    type: str
    """As Spark's catalogs write it: ``bigint``, ``array<string>``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The index of the column of each field; None: the records have no such field."""

    topic: int | None
    key: int | None
    value: int
    headers: int | None
    partition: int | None


def record_columns(columns: Sequence[Column], topic: str | None) -> RecordColumns:
    """The columns of the fields.

    Args:
        topic: the option `topic`; None: it is not given, and the column `topic` is needed.

    Raises:
        ValueError: a needed column is missing, or a column has another type.
    """
    topic_column = None
    if topic is None:
        topic_column = _find(columns, "topic", ("string",))
        if topic_column is None:
            raise ValueError(
                "topic option required when no 'topic' attribute is present. Use the topic option "
                "for setting a topic."
            )
    key = _find(columns, "key", _TEXT_OR_BYTES)
    value = _find(columns, "value", _TEXT_OR_BYTES)
    if value is None:
        raise ValueError("Required attribute 'value' not found")
    return RecordColumns(
        topic=topic_column,
        key=key,
        value=value,
        headers=_find(columns, "headers", (_HEADERS,)),
        partition=_find(columns, "partition", ("int",)),
    )


def _find(columns: Sequence[Column], name: str, types: tuple[str, ...]) -> int | None:
    for index, column in enumerate(columns):
        if column.name == name:
            # The names of a header's fields differ at most in their case: Spark goes by place.
            if column.type.lower() not in types:
                raise ValueError(
                    f"{name} attribute unsupported type {column.type}. {name} must be a(n) "
                    f"{' or '.join(types)}"
                )
            return index
    return None
