"""A compacted topic would lose the latest value of a key, or bring an older one back, while agents
are killed.
"""

from pathlib import Path

import pytest

from tests.support.components import localstack_python
from tests.support.etcd_server import newest_version
from tests.support.module_run import run_module

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

    run_module("tests.chaos.compacted", *_OPTIONS, folder=tmp_path, timeout_s=400)
