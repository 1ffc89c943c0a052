"""The question of the demo, asked twice: of the original here, and of the bucket in Spark.

An answer is a set of named tables.  A table is a list of rows in order of their keys, and a row is
a list of JSON values, so that an answer of another process compares with `==`.

Shell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

Cell = str | int | float | None
Table = list[list[Cell]]
Answer = dict[str, Table]

PARTITIONS: Final = "partitions"
"""In every answer: partition, records, bytes of values, sum of the values' CRC-32s."""


class DemoError(Exception):
    """The demo cannot continue; the message is for its user."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to produce."""

    value: bytes
    key: bytes | None = None
    timestamp_ms: int | None = None
    """None: the time of the produce."""
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """How one table of an answer is shown: title, columns, and number of rows."""

    table: str
    title: str
    columns: Sequence[str]
    largest_of_column: int | None = None
    """Show the rows with the largest values in this column; None: in the order of keys."""
    rows_shown: int = 20


class Input(Protocol):
    """Data that the demo can run on.  It is read once for `expected`, once for `records`."""

    name: str
    """Name of the topic."""
    query: str
    """The query of Spark that answers the same question: a key of `tools.demo.spark.QUERIES`."""
    partitions: int
    count: int
    """Number of records."""
    size_bytes: int
    """Size of the original, uncompressed."""
    path: Path
    """Path of the original."""
    sections: Sequence[Section]
    spark_code: str
    """The main lines of that query, for a person to read and repeat."""

    def summary(self) -> str:
        """The data in one line."""

    def expected(self) -> Answer:
        """The answer from the original, in plain Python; without the table of partitions, which the
        original does not have."""

    def records(self) -> Iterator[Record]:
        """The records to produce, in order."""

    def describe(self, record: Record) -> str:
        """A consumed record in one line."""


def different_rows(expected: Table, found: Table) -> int:
    """How many rows are in one table and not in the other."""
    return len(set(map(tuple, expected)) ^ set(map(tuple, found)))
