"""A flaky test that stays unnamed, or a real failure that a second run hides, would show here.

Shell.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

INI = """
[pytest]
addopts = --strict-markers
markers = real_processes:
    xdist_group:
"""

TESTS = '''
import os, signal, time
from pathlib import Path
import pytest

def first_time(name):
    """Whether this is the first run of a test."""
    seen = Path(__file__).with_name(name)
    there = seen.exists()
    seen.touch()
    return not there

def test_good(): pass

def test_skipped(): pytest.skip("what it needs is not here")

@pytest.mark.real_processes
@pytest.mark.xdist_group("a-group")
@pytest.mark.parametrize("text", ["x@y", "z"])
def test_flaky(text): assert not first_time(f"flaky-{text}")

@pytest.mark.real_processes
def test_broken(): assert False

@pytest.mark.real_processes
def test_later_than_all():
    if not first_time("late"):
        pytest.skip("the time of this run is over")
    assert False

def test_flaky_unit(): assert not first_time("unit")

@pytest.fixture
def server(): assert not first_time("server"), "does not start"

@pytest.mark.real_processes
def test_flaky_fixture(server): pass

@pytest.mark.real_processes
@pytest.mark.parametrize("number", range(21))
def test_one_cause(number): assert not first_time(f"cause-{number}")

@pytest.mark.real_processes
def test_of_a_worker_that_dies(): os.kill(os.getpid(), signal.SIGKILL)

def test_endless():
    Path(__file__).with_name("endless").touch()
    time.sleep(600)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tests of every kind, with settings of their own."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


def start(folder: Path, chosen: str, *arguments: str) -> subprocess.Popen[str]:
    """The command as the Makefile has it, for the tests that *chosen* names."""
    return subprocess.Popen(
        [sys.executable, "-m", "tools.test_run", "verify", *arguments, "-k", chosen],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, chosen: str, *arguments: str) -> tuple[int, list[str]]:
    """Its exit status, and its closing lines without the times."""
    with start(folder, chosen, *arguments) as process:
        output, _ = process.communicate(timeout=100)
    said = re.sub(r"; \d+ s, \d+ s of CPU$", "", output, flags=re.MULTILINE).splitlines()
    assert process.returncode in (0, 1), output
    return process.returncode, [
        line for line in said if line.startswith("verify: ") and "once more" not in line
    ]


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["0", "2"])
def test_what_passes_the_second_time_is_named_and_no_failure(
    folder: Path, workers: tuple[str, ...]
) -> None:
    """
    By the test or by its fixture, in whichever process it ran first.
    """
    ended = run(folder, "good or skipped or flaky and not unit", *workers)

    assert ended == (
        0,
        [
            "verify: failed, then passed: test_some.py::test_flaky[x@y]",
            "verify: failed, then passed: test_some.py::test_flaky[z]",
            "verify: failed, then passed: test_some.py::test_flaky_fixture",
            "verify: 1 passed, 1 skipped, 0 failed, 3 failed, then passed",
        ],
    )


def test_what_fails_twice_has_failed(folder: Path) -> None:
    """
    Beside a test that passed the second time.
    """
    assert run(folder, "good or broken or flaky_fixture") == (
        1,
        [
            "verify: failed: test_some.py::test_broken",
            "verify: failed, then passed: test_some.py::test_flaky_fixture",
            "verify: 1 passed, 0 skipped, 1 failed, 1 failed, then passed",
        ],
    )


def test_what_is_skipped_the_second_time_has_failed(folder: Path) -> None:
    """
    The run's time is over by then, or what the test needs is gone.
    """
    assert run(folder, "later_than_all") == (
        1,
        [
            "verify: failed: test_some.py::test_later_than_all",
            "verify: 0 passed, 0 skipped, 1 failed",
        ],
    )


def test_a_test_without_processes_has_one_run(folder: Path) -> None:
    """
    Although a second one would pass.
    """
    assert run(folder, "flaky_unit") == (
        1,
        ["verify: failed: test_some.py::test_flaky_unit", "verify: 0 passed, 0 skipped, 1 failed"],
    )


def test_many_failures_have_one_cause_and_no_second_run(folder: Path) -> None:
    """
    More than twenty: a second run would take as long, and hide what is wrong.
    """
    status, lines = run(folder, "one_cause")

    assert (1, 21) == (status, sum("verify: failed: " in line for line in lines))


def test_a_file_that_cannot_be_imported_has_failed(folder: Path) -> None:
    """
    pytest reports it before any test.
    """
    (folder / "test_some.py").write_text("import nothing_of_that_name")
    with start(folder, "good") as process:
        output, _ = process.communicate(timeout=100)

    assert process.returncode not in (0, None)
    assert "verify: failed: test_some.py\n" in output


def test_the_test_of_a_worker_that_died_has_failed(folder: Path) -> None:
    """
    No second run: the crash may be of the product's own kernel.
    """
    status, lines = run(folder, "dies or good", "-n", "1")

    assert (1, "verify: failed: test_some.py::test_of_a_worker_that_dies") == (status, lines[0])


def test_a_run_that_is_cut_names_what_had_failed(folder: Path) -> None:
    """
    SIGTERM, as `.ci/run` sends it when the time is over.
    """
    with start(folder, "flaky_unit or endless") as process:
        deadline = time.monotonic() + 60
        while not (folder / "endless").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)

    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "verify: failed: test_some.py::test_flaky_unit\n" in output
