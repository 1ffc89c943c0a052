"""`make test` and `make verify`: pytest, then each failed test of real processes once more, alone.

A test that kills and freezes real processes can fail because the machine is busy.  After all other
tests it gets one more run, in one process.  The closing lines name it even if it then passes: it
depends on the moment, and needs a repair.  Every other failure stands.

    python -m tools.test_run NAME PYTEST-ARGUMENT…

    NAME: failed: tests/clients/test_groups.py::test_a
    NAME: failed, then passed: tests/clients/test_kills.py::test_b
    NAME: 1,204 passed, 31 skipped, 1 failed, 1 failed, then passed; 512 s, 801 s of CPU

Shell.
"""

import os
import re
import signal
import sys
import time
from typing import Final

import pytest

REPEATED: Final = "real_processes"
"""The marker of tests that may run once more: `tests/conftest.py` sets it."""

MOST_REPEATED: Final = 20
"""More failures than this have one cause, which a second run would not remove."""


class Outcomes:
    """A pytest plugin of the process that writes the report: counts passed and failed tests."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        """Node ids."""
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


def run(name: str, arguments: list[str]) -> int:
    """Run pytest, repeat what may be repeated, print the closing lines; returns the exit code."""
    started = time.monotonic()
    first = Outcomes()
    status = int(pytest.main(arguments, plugins=[first]))
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
        f"{len(first.passed):,} passed",
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
    sys.exit(run(sys.argv[1], sys.argv[2:]))
