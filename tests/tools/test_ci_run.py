"""CI that passes with a failed test in it, runs less than everything, or hides a flaky test.

Shell.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CI's script is for Linux")

PROGRAMS = ("cc", "java", "mvn", "kcat", "apt-cache", "apt-get")
"""What `.ci/run` looks for and would install: nothing is installed here."""

COMPONENTS = {
    "check": ("kafka-jars", "etcd"),
    "test": (
        "kafka-applications",
        "schema-registry",
        "spark-jars",
        "spark-classes",
        "localstack",
        "kaskade",
        "prometheus",
    ),
}
"""What a suite needs, by the target beside which it is fetched."""

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
    with start(checkout, **changed) as process:
        output, _ = process.communicate(timeout=60)
    closing = output.rpartition("\n\n")[2]
    return process.returncode, re.sub(r"\b\d+ s$", "N s", closing, flags=re.MULTILINE).splitlines()


def start(checkout: Path, **changed: str) -> subprocess.Popen[str]:
    """The script, beside a Makefile with the recipes of *changed* in place of others."""
    fetched = dict.fromkeys((name for names in COMPONENTS.values() for name in names), "true")
    recipes = {**fetched, **TARGETS, **changed}
    lines = [f"{name}:\n\t@{recipe}\n" for name, recipe in recipes.items()]
    (checkout / "Makefile").write_text("".join(lines))
    return subprocess.Popen(
        ["bash", str(checkout / ".ci" / "run")],
        env={"PATH": f"{checkout / 'programs'}:/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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


@pytest.mark.verify  # seconds of waiting
def test_each_suite_finds_what_was_fetched_while_another_target_ran(checkout: Path) -> None:
    """
    All components that `make components` has: one that fails holds up neither the others nor CI.
    """
    makefile = (REPOSITORY / "Makefile").read_text()
    (listed,) = re.findall(r"^components: (.*)$", makefile, re.MULTILINE)
    recipes = {}
    for beside, names in COMPONENTS.items():
        begun = f"until [ -e {names[0]}.begun ]; do sleep 0.02; done"
        recipes[beside] = f"{begun}; touch ended-{beside}"
        wait = f"touch $@.begun; until [ -e ended-{beside} ]; do sleep 0.02; done"
        recipes |= dict.fromkeys(names, f"{wait}; touch $@; [ $@ != etcd ]")
        # The script looks once a second whether a target has ended.
        recipes[names[-1]] = f"sleep 2; {recipes[names[-1]]}"
    recipes["test"] = f"ls {' '.join(COMPONENTS['check'])} && {recipes['test']}"
    recipes["verify"] = f"ls {' '.join(COMPONENTS['test'])}"

    status, closing = run(checkout, **recipes)

    assert sorted(listed.split()) == sorted(name for names in COMPONENTS.values() for name in names)
    assert (0, "ci: all passed in N s") == (status, closing[-1])


def test_what_is_fetched_ends_with_the_script(checkout: Path) -> None:
    """
    A script that is ended leaves nothing that goes on beside the next run.
    """
    there = checkout / "there"
    with start(checkout, **{"kafka-jars": "echo $$PPID >there; sleep 60"}) as run:
        wait_until(lambda: there.exists() and there.read_text().endswith("\n"))
        run.terminate()
        run.communicate(timeout=30)

    wait_until(lambda: not Path("/proc", there.read_text().strip()).exists())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
