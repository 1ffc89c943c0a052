"""`make test` and `make verify`: pytest, then each failed test of real processes once more, alone.

    python -m tools.test_run NAME [--beside FOLDER] PYTEST-ARGUMENT…

             ┌─ pytest --ignore=FOLDER ─────────┐
    start ───┤                                  ├─▶ once more, alone ─▶ closing lines
             └─ pytest -n 2 FOLDER, when idle ──┘

A test that kills and freezes real processes can fail because the machine is busy.  After all other
tests it gets one more run, in one process.  The closing lines name it even if it then passes: it
depends on the moment, and needs a repair.  Every other failure stands.

    NAME: failed: tests/clients/test_groups.py::test_a
    NAME: failed, then passed: tests/clients/test_kills.py::test_b
    NAME: 1,204 passed, 31 skipped, 1 failed, 1 failed, then passed; 512 s, 801 s of CPU

Tests of real processes wait for a third of their time.  Those of FOLDER only compute: a process of
their own, at idle priority, gives them what the others leave.  It runs this module, writes to
`.cache/NAME-beside.log`, and ends with the run, which prints its output and adds its counts.

Shell.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

REPEATED: Final = "real_processes"
"""The marker of tests that may run once more: `tests/conftest.py` sets it."""

MOST_REPEATED: Final = 20
"""More failures than this have one cause, which a second run would not remove."""

_REPORT_S: Final = 10.0
"""In which tests that are cut short say what has failed; .ci/run kills after 30."""


class Outcomes:
    """A pytest plugin of the process that writes the report: counts passed and failed tests."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        """Node ids."""
        self.passed_beside = 0
        self.skipped = 0
        self.failed: dict[str, bool] = {}
        """By node id: whether the test may be run once more."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test.  Reports of a worker that died have no keywords (xdist)."""
        if report.failed:
            self.failed[_without_group(report.nodeid)] = REPEATED in report.keywords
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed.add(_without_group(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported has failed."""
        if report.failed:
            self.failed[report.nodeid] = False


def _without_group(node_id: str) -> str:
    """xdist appends the name of a test's `xdist_group`: ``test_a[x]@group``."""
    return re.sub(r"@[^\]]*$", "", node_id)


class Beside:
    """The tests of *folder* in a process of their own, at idle priority."""

    def __init__(self, name: str, folder: str, arguments: list[str]) -> None:
        self._name = name
        self._folder = folder
        self._log = Path(".cache", f"{name}-beside.log")
        self._log.parent.mkdir(exist_ok=True)
        # The files that pytest writes are the other run's.
        own = ["-n", "2", "-p", "no:cacheprovider", "--junitxml=", folder]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.test_run", name, *arguments, *own],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_become_idle,
            )

    def end(self, outcomes: Outcomes, *, at_once: bool) -> int:
        """Wait for its end, add what it counted to *outcomes*, and print its output.

        *at_once*, and after SIGTERM, it reports what it has so far.  Returns pytest's exit code.
        """
        try:
            if not at_once:
                self._process.wait()
        except KeyboardInterrupt:
            at_once = True
        if at_once:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_REPORT_S)
        self.kill()

        said = self._log.read_text(errors="replace")
        closing = re.findall(rf"^{self._name}: (.*)$", said, re.MULTILINE)
        print(f"\n── {self._folder}, which ran beside it ──")
        print(re.sub(rf"^{self._name}: .*\n", "", said, flags=re.MULTILINE))
        for line in closing:
            if line.startswith("failed: "):
                outcomes.failed[line.removeprefix("failed: ")] = False
        counts = re.match(r"([\d,]+) passed, ([\d,]+) skipped, ", closing[-1] if closing else "")
        ended = self._process.returncode
        if counts is not None:
            outcomes.passed_beside = int(counts[1].replace(",", ""))
            outcomes.skipped += int(counts[2].replace(",", ""))
        named = any(line.startswith("failed: ") for line in closing)
        # It may die behind its closing lines.
        if counts is None or (ended != 0 and not named and not at_once):
            outcomes.failed[f"{self._folder} ended with {ended}"] = False
        if at_once:
            return int(pytest.ExitCode.INTERRUPTED)
        return ended if ended >= 0 and counts is not None else int(pytest.ExitCode.TESTS_FAILED)

    def kill(self) -> None:
        """End it and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _become_idle() -> None:
    """Run when no other process wants to.

    Where sessions share the cores (autogroups: sched(7)), its own has to give way, too.
    """
    os.nice(19)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with contextlib.suppress(OSError):  # there are none
            Path("/proc/self/autogroup").write_text("19")


def run(name: str, arguments: list[str], folder: str | None = None) -> int:
    """Run pytest, the tests of *folder* beside it, repeat what may be repeated, and print the
    closing lines; returns the exit code."""
    started = time.monotonic()
    first = Outcomes()
    if folder is None:
        status = int(pytest.main(arguments, plugins=[first]))
    else:
        beside = Beside(name, folder, arguments)
        try:
            status = int(pytest.main([*arguments, f"--ignore={folder}"], plugins=[first]))
            at_once = status == pytest.ExitCode.INTERRUPTED
            status = max(status, beside.end(first, at_once=at_once))
        finally:
            beside.kill()
    failed, passed_later = sorted(first.failed), []

    repeated = [test for test in failed if first.failed[test]]
    if status == pytest.ExitCode.TESTS_FAILED and 0 < len(repeated) <= MOST_REPEATED:
        print(f"\n{name}: once more, alone: {len(repeated)} failed tests of real processes")
        os.environ.pop("TESTS_END_S", None)  # few tests, and what they say is what counts
        second = Outcomes()
        ended = pytest.main([*repeated], plugins=[second])
        if ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            passed_later = [
                test for test in repeated if test in second.passed - second.failed.keys()
            ]
            failed = [test for test in failed if test not in passed_later]
        if not failed:
            status = int(pytest.ExitCode.OK)

    print()
    for test in failed:
        print(f"{name}: failed: {test}")
    for test in passed_later:
        print(f"{name}: failed, then passed: {test}")
    counts = [
        f"{len(first.passed) + first.passed_beside:,} passed",
        f"{first.skipped:,} skipped",
        f"{len(failed)} failed",
    ]
    counts += [f"{len(passed_later)} failed, then passed"] if passed_later else []
    used = sum(os.times()[:4])
    print(f"{name}: {', '.join(counts)}; {time.monotonic() - started:.0f} s, {used:.0f} s of CPU")
    return status


if __name__ == "__main__":
    # pytest then ends as after Ctrl-C: with a report of the failures so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name, *arguments = sys.argv[1:]
    if arguments[:1] == ["--beside"]:
        sys.exit(run(name, arguments[2:], arguments[1]))
    sys.exit(run(name, arguments))
