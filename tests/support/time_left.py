"""Whether a run of tests has time left, for tests of which there are always more: seeds.

.ci/run sets `TESTS_END_S`, in seconds since the epoch: agents refuse unknown `DRIFTLOG_` variables.
A slow machine then has fewer seeds, which the run counts as skipped; without the variable all run.
"""

import os
import time

import pytest


def skip_without_time(more: str) -> None:
    """Skip the test when the time is over; *more* is the command that runs it."""
    end_s = os.environ.get("TESTS_END_S")
    if end_s is not None and time.time() > float(end_s):
        pytest.skip(f"the time of this run is over: {more}")
