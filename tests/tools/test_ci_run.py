"""CI that passes with a failed test in it, runs less than everything, or hides a flaky test.

Shell.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CI's script is for Linux")

PROGRAMS = ("cc", "java", "mvn", "kcat", "apt-cache", "apt-get")
"""What `.ci/run` looks for and would install: nothing is installed here."""

TARGETS = {
    "setup": "true",
    "check": "true",
    "test": "echo 'test: 7,005 passed, 2 skipped, 0 failed; 400 s, 700 s of CPU'",
    "verify": "echo 'verify: 900 passed, 0 skipped, 0 failed; 1800 s, 2000 s of CPU'",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """`.ci/run` of this repository in a folder whose Makefile a test writes."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((REPOSITORY / ".ci" / "run").read_bytes())
    (tmp_path / "programs").mkdir()
    for name in PROGRAMS:
        program = tmp_path / "programs" / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    return tmp_path


def run(checkout: Path, **changed: str) -> tuple[int, list[str]]:
    """Its exit status, and its closing lines without the times."""
    recipes = [f"{name}:\n\t@{recipe}\n" for name, recipe in {**TARGETS, **changed}.items()]
    (checkout / "Makefile").write_text("".join(recipes))
    ended = subprocess.run(
        ["bash", str(checkout / ".ci" / "run")],
        env={"PATH": f"{checkout / 'programs'}:/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    closing = ended.stdout.rpartition("\n\n")[2]
    return ended.returncode, re.sub(r"\b\d+ s$", "N s", closing, flags=re.MULTILINE).splitlines()


def test_it_says_how_long_each_took(checkout: Path) -> None:
    """
    All passed: four targets, each once, and what the two suites counted.
    """
    assert run(checkout) == (
        0,
        [
            "test: 7,005 passed, 2 skipped, 0 failed; 400 s, 700 s of CPU",
            "verify: 900 passed, 0 skipped, 0 failed; 1800 s, 2000 s of CPU",
            "ci: make setup: passed, N s",
            "ci: make check: passed, N s",
            "ci: make test: passed, N s",
            "ci: make verify: passed, N s",
            "ci: all passed in N s",
        ],
    )


def test_the_last_lines_name_each_failed_test_and_everything_has_run(checkout: Path) -> None:
    """
    Whatever fails, the rest runs; a test that passed the second time only is named too.
    """
    status, closing = run(
        checkout,
        check="echo 'make check: failed: ruff:check' >&2; exit 1",
        test="echo 'test: failed: tests/a.py::test_a'; exit 1",
        verify="echo 'verify: failed, then passed: tests/b.py::test_b'",
    )

    assert (1, closing) == (
        status,
        [
            "make check: failed: ruff:check",
            "test: failed: tests/a.py::test_a",
            "verify: failed, then passed: tests/b.py::test_b",
            "ci: make setup: passed, N s",
            "ci: make check: failed, N s",
            "ci: make test: failed, N s",
            "ci: make verify: passed, N s",
            "ci: FAILED in N s",
        ],
    )


def test_without_set_up_nothing_is_tested(checkout: Path) -> None:
    """
    Each test would fail for the same reason.
    """
    status, closing = run(checkout, setup="exit 1")

    assert (1, ["ci: make setup: failed, N s", "ci: FAILED in N s"]) == (status, closing)
