"""The READMEs' tables list every folder, in its own words."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = {
    "metadata": "driftlog_metadata",
    "tiering": "driftlog_tiering",
    "agents": "driftlog_agents",
    "client": "driftlog",
}


@pytest.mark.parametrize("part", PACKAGES)
def test_each_folder_has_its_line(part: str) -> None:
    """
    What a folder is for is said once, in its docstring: the README repeats it.
    """
    package = REPOSITORY / part / PACKAGES[part]
    page = (REPOSITORY / part / "README.md").read_text()
    rows = re.findall(r"^\| `([a-z_/]+)/` \| (.+) \|$", page, re.MULTILINE)

    folders = {str(file.parent.relative_to(package)): file for file in package.rglob("__init__.py")}
    del folders["."]
    assert {name: _first_sentence(file) for name, file in folders.items()} == dict(rows)


def _first_sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")
