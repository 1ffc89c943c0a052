"""A compacted topic would lose the latest value of a key, or bring an older one back, while agents
are killed.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY, localstack_python
from tests.support.etcd_server import newest_version

_OPTIONS = ("--seed", "1", "--seconds", "10", "--agents", "2", "--rate", "20")


@pytest.mark.timeout(420)
@pytest.mark.xdist_group("chaos")
def test_readers_of_compacted_topics_end_with_the_latest_values(tmp_path: Path) -> None:
    """
    Agents are killed, etcd and S3 fail: every reader from the beginning ends with the newest
    acknowledged write of each key, and in the end each key has one record.
    """
    newest_version()
    localstack_python()
    faulthandler.cancel_dump_traceback_later()  # of what may take a hundred seconds, as this does

    # A process of its own: what ends a client's process must not end the tests.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos.compacted", *_OPTIONS],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )

    print(ended.stdout)
    assert 0 == ended.returncode, ended.stdout
