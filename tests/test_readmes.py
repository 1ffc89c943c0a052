"""The tables of the READMEs: complete, in order, and of files and folders that are there."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = {
    "metadata": "driftlog_metadata",
    "tiering": "driftlog_tiering",
}
_HEADING: Final = re.compile(r"## `(\w+)/`")
_ROW: Final = re.compile(r"\| `(\w+\.py)`")


def tables(folder: str) -> dict[str, list[str]]:
    """The files that the README of *folder* names, by the package's folder that they are in."""
    found: dict[str, list[str]] = {}
    within = ""
    for line in (REPOSITORY / folder / "README.md").read_text().splitlines():
        if line.startswith("## "):
            heading = _HEADING.match(line)
            within = heading[1] if heading else ""
        elif row := _ROW.match(line):
            found.setdefault(within, []).append(row[1])
    return found


@pytest.mark.parametrize("folder", PACKAGES)
def test_each_file_has_its_line(folder: str) -> None:
    """
    No module is left out, none is named that is gone, and each table is in alphabetical order.
    """
    package = REPOSITORY / folder / PACKAGES[folder]
    named = tables(folder)

    for within, files in named.items():
        there = {file.name for file in (package / within).glob("*.py")} - {"__init__.py"}
        assert sorted(there) == files


def test_each_folder_of_the_agents_has_its_line() -> None:
    """
    What a folder is for is said once, in its docstring: the README repeats it.
    """
    package = REPOSITORY / "agents" / "driftlog_agents"
    page = (REPOSITORY / "agents" / "README.md").read_text()
    rows = re.findall(r"^\| `([a-z_/]+)/` \| (.+) \|$", page, re.MULTILINE)

    folders = {str(file.parent.relative_to(package)): file for file in package.rglob("__init__.py")}
    del folders["."]
    assert {name: _first_sentence(file) for name, file in folders.items()} == dict(rows)


def _first_sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")
