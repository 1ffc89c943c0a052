"""What the demo asks of its data, twice: of the original here, and of the bucket in Spark.

An answer is a set of named tables.  A table is a list of rows in order of their keys, and a row is
a list of what JSON knows, so that an answer of another process compares with `==`.

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
    """The demo cannot go on; the message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is produced."""

    value: bytes
    key: bytes | None = None
    timestamp_ms: int | None = None
    """None: the time at which it is produced."""
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """How one table of an answer is shown: a title, its columns, and the rows worth a line."""

    table: str
    title: str
    columns: Sequence[str]
    largest_of_column: int | None = None
    """Show the rows with the largest values there; None: in the order of keys."""
    rows_shown: int = 20


class Input(Protocol):
    """Data that the demo can run on.  It is read once for `expected`, once for `records`."""

    name: str
    """Of the topic."""
    query: str
    """Which of Spark's queries answers the same question: a key of `tools.demo.spark.QUERIES`."""
    partitions: int
    count: int
    """Records."""
    size_bytes: int
    """Of the original, uncompressed."""
    path: Path
    """Where the original is."""
    sections: Sequence[Section]
    spark_code: str
    """The heart of that query, for a person to read and repeat."""

    def summary(self) -> str:
        """What it is, in a line."""

    def expected(self) -> Answer:
        """The answer from the original, in plain Python; without the partitions, which the
        original does not know."""

    def records(self) -> Iterator[Record]:
        """What is produced, in order."""

    def describe(self, record: Record) -> str:
        """A consumed record in a line."""


def different_rows(expected: Table, found: Table) -> int:
    """How many rows are in one table and not in the other."""
    return len(set(map(tuple, expected)) ^ set(map(tuple, found)))
