"""A test that belongs to no suite, or to both, is a test that CI does not run, or runs twice.

Shell.
"""

import ast
import re
from pathlib import Path

from tests.support.suites import (
    ORDER,
    REAL_PROCESSES,
    SUITES,
    TESTS,
    entry_of,
    may_have_tests_of,
    suite_of,
)

FILES = sorted(TESTS.rglob("test_*.py"))


def test_each_file_is_in_a_suite() -> None:
    """
    Each file with tests is under an entry of the table.
    """
    assert [] == [path for path in FILES if entry_of(path) is None]


def test_make_runs_each_suite_and_no_test_twice() -> None:
    """
    `make test` selects what has no mark, `make verify` what has it: together every test, once.
    """
    makefile = (TESTS.parent / "Makefile").read_text()
    recipes = re.findall(r"-m tools\.test_run (\w+) .*-m ('[\w ]+'|\w+)", makefile)

    assert [("test", "'not verify'"), ("verify", "verify")] == recipes


def test_the_table_has_no_entry_without_a_use() -> None:
    """
    Each entry names what is there, has files of its own, and says what its folder does not.
    """
    used = {entry_of(path) for path in FILES}
    repeated = {entry for entry in SUITES if SUITES.get(entry.rpartition("/")[0]) == SUITES[entry]}
    named = {*REAL_PROCESSES, *ORDER}
    missing = {entry for entry in named if not (TESTS / entry).exists()}

    assert (set(), set(), set()) == (set(SUITES) - used, repeated, missing)


def test_a_run_leaves_out_no_file_with_tests_of_its_suite() -> None:
    """
    `make test` imports the files of its suite only; `make verify` its own, those with the mark,
    and those that run on older etcds.  (`conftest.py` refuses a mark that a file does not show.)
    """
    of_test, of_verify = (
        {path for path in FILES if may_have_tests_of(path, suite)} for suite in ("test", "verify")
    )
    both = {path.relative_to(TESTS).as_posix() for path in of_test & of_verify}

    assert set(FILES) == of_test | of_verify
    assert {path for path in FILES if suite_of(path) == "test"} == of_test
    assert {"simulation/test_simulation.py", "contract/test_metadata_store.py"} <= both
    assert "tiering/formats/test_layout.py" not in both


def test_each_file_says_what_breaks_if_it_fails() -> None:
    """
    The first paragraph of each test file is a sentence: the promise that its tests hold.
    """
    assert [] == [path for path in FILES if not re.fullmatch(r"(\S+ ){4,}\S+\.", _promise(path))]


def _promise(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())
