"""The TOML file of an agent's settings: every value with its name and its line.

    log.retention.ms = 1         log.retention.ms   dotted, quoted or below a [table]: the same name
    "log.retention.ms" = 1
    [log.retention]
    ms = 1

`tomllib` reads the file, and keeps no line: a second look cuts the text into statements, the
shortest pieces that are TOML by themselves.

Pure.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

LARGEST_BYTES: Final = 256 * 1024
"""Larger is no file of settings: it has some hundred lines."""

_WRITTEN_OVER: Final = "overwrite"
"""What `tomllib` says of ``max.connections = 5`` beside ``max.connections.per.ip = 1``."""


class SettingsFileError(ValueError):
    """The file cannot be used; the message names the line where there is one."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """One value; several if it is a TOML list; None: an empty table."""

    name: str
    value: str | tuple[str, ...] | None
    line: int


def read_settings(text: str) -> list[FileValue]:
    """The values of the file, in its order.

    Raises:
        SettingsFileError: *text* is not TOML, names a setting twice, or has a value of a type that
            no setting has.
    """
    if len(text) > LARGEST_BYTES:
        raise SettingsFileError(f"larger than {LARGEST_BYTES} bytes: not a file of settings")
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = ""
        if _WRITTEN_OVER in str(error):
            hint = (
                '; where the name of one setting begins that of another, put both in quotes: "'
                'max.connections" = 5'
            )
        raise SettingsFileError(f"not TOML: {error}{hint}") from error
    found: dict[str, FileValue] = {}
    tables: list[FileValue] = []
    for name, value, line in _values(text):
        if value is None:
            tables.append(FileValue(name, None, line))
            continue
        if name in found:
            raise SettingsFileError(f"line {line}: {name} is in line {found[name].line}, too")
        found[name] = FileValue(name, value, line)
    empty = [t for t in tables if not any(name.startswith(f"{t.name}.") for name in found)]
    return [*found.values(), *empty]


def _values(text: str) -> Iterator[tuple[str, str | tuple[str, ...] | None, int]]:
    """Names, values and lines; a table's header has no value."""
    table = ""
    for line, statement in _statements(text):
        for name, value in _flat(tomllib.loads(statement)):
            if value is _TABLE and statement.lstrip().startswith("["):
                table = f"{name}."
                yield name, None, line
            else:
                yield table + name, _texts(value, line), line


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a valid file, each with the number of its first line."""
    lines: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        lines.append(line)
        statement = "\n".join(lines)
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # a list or a text goes on in the next line
        yield number - len(lines) + 1, statement
        lines.clear()


_TABLE: Final = object()


def _flat(statement: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The value of a statement with its dotted name; `_TABLE`: an empty table, as of a header."""
    for key, value in statement.items():
        match value:
            case dict() if value:
                for name, inner in _flat(value):
                    yield f"{key}.{name}", inner
            case dict():
                yield key, _TABLE
            case _:
                yield key, value


def _texts(value: Any, line: int) -> str | tuple[str, ...]:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list() if all(type(part) in (str, int) for part in value):
            return tuple(str(part) for part in value)
        case _:
            raise SettingsFileError(
                f"line {line}: a setting is a text, a number, true, false, or a list of texts"
            )
