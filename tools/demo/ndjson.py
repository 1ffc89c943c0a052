"""A file of the user: each line is a JSON text and becomes a record, byte for byte.

Shell.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from tools.demo.answers import Answer, DemoError, Record, Section

MAX_LINE_BYTES: Final = 1_000_000
"""`message.max.bytes` of a client with default settings."""

_PREVIEW_CHARS: Final = 60


class Lines:
    """An ndjson file, read line by line.

    Raises:
        DemoError: the file is missing or empty, or a line is not JSON.
    """

    query = "ndjson"
    partitions = 4
    spark_code = (
        'field = explode(array_distinct(json_object_keys(col("value").cast("string"))))\n'
        'records.select(field.alias("field")).groupBy("field").count()'
    )
    sections: Sequence[Section] = (
        Section(
            table="fields",
            title="Fields, and how many records have each",
            columns=("field", "records"),
            largest_of_column=1,
            rows_shown=12,
        ),
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = re.sub(r"[^a-zA-Z0-9._-]+", "-", path.stem).strip(".")[:100] or "records"
        self.count = 0
        self.size_bytes = 0
        self._fields: Counter[str] = Counter()
        for number, line in self._lines():
            self.count += 1
            self._fields.update(_fields(path, number, line))
        if self.count == 0:
            raise DemoError(f"{path} has no lines: nothing to produce")
        self.size_bytes = path.stat().st_size

    def summary(self) -> str:
        return f"{self.count:,} {'record' if self.count == 1 else 'records'}, one a line"

    def expected(self) -> Answer:
        return {"fields": [[field, n] for field, n in sorted(self._fields.items())]}

    def records(self) -> Iterator[Record]:
        for _, line in self._lines():
            yield Record(line)

    def describe(self, record: Record) -> str:
        text = re.sub(r"\s+", " ", record.value.decode())
        return text if len(text) <= _PREVIEW_CHARS else f"{text[: _PREVIEW_CHARS - 1]}…"

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, without their line ends, and their numbers from 1."""
        try:
            if not self.path.is_file():
                what = "is not a file" if self.path.exists() else "is not there"
                raise DemoError(f"{self.path} {what}")
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    stripped = line.strip(b" \t\r\n")
                    if stripped:
                        yield number, stripped
        except OSError as error:
            raise DemoError(f"{self.path} cannot be read: {error.strerror}") from error


def _fields(path: Path, number: int, line: bytes) -> set[str]:
    """The field names of a JSON object; empty for any other JSON text."""
    where = f"{path}, line {number}"
    if len(line) > MAX_LINE_BYTES:
        raise DemoError(
            f"{where}: {len(line):,} bytes; a Kafka client with default settings sends records "
            f"of up to {MAX_LINE_BYTES:,}"
        )
    try:
        parsed = json.loads(line.decode(), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DemoError(
            f"{where}: not JSON: {error.msg} at character {error.pos + 1}\n"
            "The demo takes newline-delimited JSON: one JSON text a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DemoError(f"{where}: not JSON: {error}") from error
    return set(parsed) if isinstance(parsed, dict) else set()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
