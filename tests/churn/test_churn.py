"""Garbage of every kind goes while agents are killed, and no memory, file or key of it stays.

Broken: a bucket, an etcd or an agent that grows for as long as a cluster runs.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY
from tests.support.etcd_server import newest_version

_OPTIONS = ("--seconds", "60", "--grace", "15", "--kill-every", "12", "--agents", "2")


@pytest.mark.timeout(400)
@pytest.mark.xdist_group("churn")
def test_two_minutes_of_churn_leave_nothing_but_live_data(tmp_path: Path) -> None:
    """
    Topics come and go, records expire, are compacted and deleted, agents are killed: consumers see
    every record that they are entitled to, and some graces later the bucket is the live data.
    """
    newest_version()
    faulthandler.cancel_dump_traceback_later()  # of what takes a hundred seconds, as this does

    # A process of its own: what ends a client's process must not end the tests.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.churn", *_OPTIONS],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=380,
        check=False,
    )

    print(ended.stdout)
    assert 0 == ended.returncode, ended.stdout
