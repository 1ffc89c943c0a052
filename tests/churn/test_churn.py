"""Garbage of every kind goes while agents are killed, and no memory, file or key of it stays.

Broken: a bucket, an etcd or an agent that grows for as long as a cluster runs.
"""

from pathlib import Path

import pytest

from tests.support.etcd_server import newest_version
from tests.support.module_run import run_module

_OPTIONS = ("--seconds", "60", "--grace", "15", "--kill-every", "12", "--agents", "2")


@pytest.mark.timeout(400)
@pytest.mark.xdist_group("churn")
def test_two_minutes_of_churn_leave_nothing_but_live_data(tmp_path: Path) -> None:
    """
    Topics come and go, records expire, are compacted and deleted, agents are killed: consumers see
    every record that they are entitled to, and some graces later the bucket is the live data.
    """
    newest_version()

    run_module("tests.churn", *_OPTIONS, folder=tmp_path, timeout_s=380)
