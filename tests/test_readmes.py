"""The file tables of the READMEs: complete, in order, and of files that are there."""

import re
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = {
    "agents": "driftlog_agents",
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
