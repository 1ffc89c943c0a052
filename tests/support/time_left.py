"""Whether a run of tests has time left.

.ci/run sets `TESTS_END_S`, in seconds since the epoch: agents refuse unknown `DRIFTLOG_` variables.
After it no seed of the simulation begins, of which there are always more; a quarter of an hour
later, no test: a slow machine then says which tests it had no time for, instead of being cut off
without a word.  The run counts them as skipped.  Without the variable all run.
"""

import os
import time
from typing import Final

import pytest

ALL_S: Final = 900.0
"""From the end of the seeds to the end of all tests."""


def skip_without_time(more: str, *, later_s: float = 0.0) -> None:
    """Skip the test when the time has been over for *later_s*; *more* is the command that runs
    it."""
    end_s = os.environ.get("TESTS_END_S")
    if end_s is not None and time.time() > float(end_s) + later_s:
        pytest.skip(f"the time of this run is over: {more}")
