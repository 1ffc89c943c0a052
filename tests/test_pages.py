"""The first page and docs/: short, complete, reachable, and without a dead link."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from driftlog.cli import parser
from driftlog.cli.common.parsers import commands_of, in_our_order, parse
from tests.support.components import REPOSITORY
from tools import metrics_page

README: Final = REPOSITORY / "README.md"
PAGES: Final = sorted((REPOSITORY / "docs").glob("*.md"))
_OTHERS: Final = {".venv", ".cache", "node_modules", "demo-data", "local-data"}


def _pages() -> Iterator[Path]:
    """Of the repository; folders of others, to which CI may add just then, are not looked into."""
    for folder, below, names in os.walk(REPOSITORY):
        below[:] = [name for name in below if name not in _OTHERS and not name.startswith(".venv")]
        yield from (Path(folder, name) for name in names if name.endswith(".md"))


ALL: Final = sorted(_pages())
FOLDERS: Final = sorted(REPOSITORY.glob("*/README.md"))
_ROOTS: Final = [
    REPOSITORY,
    *(folder for folder in REPOSITORY.glob("*/driftlog*") if folder.is_dir()),
    *(REPOSITORY / folder for folder in ("tests", "tests/simulation", "tests/chaos")),
]
_CODE: Final = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_BAR: Final = re.compile(r"(?<!\\)\|")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


def _commands() -> list[str]:
    """Lines of indented blocks; what explains them is two spaces behind."""
    known = "|".join(commands_of(parser()))
    line = re.compile(rf"^ {{4,}}(?:\$ |/\S+/)?(driftlog (?:{known}) .*?)(?:  .*)?$", re.MULTILINE)
    texts = (re.sub(r" *\\\n *", " ", file.read_text()) for file in ALL)
    return sorted({found for text in texts for found in line.findall(text)})


_SHELL: Final = re.compile(
    r"^ {4,}(?:\$ )?(?:driftlog|make|export|cd|sudo|python3?|pip|git|terraform|docker|kubectl|aws|"
    r"curl|kcat|kafka-\S+|systemctl|/\S+/\w+) [^#\n]*?\S {2,}(?![#\\ ]).*",
    re.MULTILINE,
)
"""A line of a block that is a command, and words behind it."""


def test_what_explains_a_command_is_a_comment() -> None:
    """
    A block may be pasted as it stands.
    """
    assert [] == [(file.name, line) for file in ALL for line in _SHELL.findall(file.read_text())]


def test_the_first_page_is_short() -> None:
    """
    At most 120 lines; ``make demo`` and ``make test`` are in the first screen of 40.
    """
    lines = README.read_text().splitlines()
    screen = "\n".join(lines[:40])

    assert len(lines) <= 120
    assert "make demo" in screen
    assert "make test" in screen


def test_the_first_page_links_each_page_once() -> None:
    """
    The contents are complete, and nothing on the page repeats them.
    """
    linked = [link for link in _links(README) if link.startswith("docs/")]

    assert [f"docs/{page.name}" for page in PAGES] == sorted(linked)


@pytest.mark.parametrize("file", ALL, ids=lambda file: _name(file))
def test_each_relative_link_resolves(file: Path) -> None:
    """
    To a file of the repository, and to a heading of it.
    """
    dead = []
    for link in _links(file):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert [] == dead


@pytest.mark.parametrize("file", ALL, ids=lambda file: _name(file))
def test_each_row_of_a_table_has_its_columns(file: Path) -> None:
    """
    A cell with a bar that is not escaped would shift what is behind it.
    """
    lines = [f" {line}" if line.startswith("|") else "" for line in file.read_text().splitlines()]
    tables = "\n".join(lines).split("\n\n")
    columns = [{len(_BAR.split(row)) for row in table.split("\n") if row} for table in tables]

    assert [] == [found for found in columns if len(found) > 1]


@pytest.mark.parametrize("file", [*FOLDERS, *PAGES], ids=lambda file: _name(file))
def test_each_module_that_a_page_names_is_there(file: Path) -> None:
    """
    `folder/module.py`, from the repository, the folder's package, or a folder of tests.
    """
    named = re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", file.read_text())
    named += re.findall(
        r"`((?:log|groups|handlers|cluster|health|process)/[a-z_/]+)`", file.read_text()
    )

    assert [] == [
        path
        for path in named
        if not any((root / path).exists() or (root / f"{path}.py").exists() for root in _ROOTS)
    ]


def test_the_metrics_page_is_up_to_date() -> None:
    """
    Else: ``python -m tools.metrics_page``.
    """
    assert metrics_page.page() == metrics_page.PAGE.read_text()


def test_the_pages_name_metrics_that_exist() -> None:
    """
    Alerts and advice name a metric as an agent exports it.
    """
    exported = {metric.name for metric in metrics_page.described()}
    named = {
        (page.name, name)
        for page in [README, *PAGES]
        for name in re.findall(r"\bdriftlog_[a-z_]+[a-z]\b", page.read_text())
    }
    packages = {f"driftlog_{part}" for part in ("agents", "metadata", "tiering", "spark_reader")}

    assert set() == {(page, name) for page, name in named if name not in exported | packages}


@pytest.mark.parametrize("line", [pytest.param(line, id=line) for line in _commands()])
def test_driftlog_takes_each_command_of_the_pages(line: str) -> None:
    """
    Its words and options, also where no test runs it: what is not in an `sh` block.
    """
    ours = parser()

    options = parse(ours, parser(), in_our_order(ours, shlex.split(line)[1:]))

    assert callable(options.run)


def _name(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


def _links(file: Path) -> list[str]:
    return _LINK.findall(_CODE.sub("", file.read_text()))


def anchors(file: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}
