"""Kafka Streams, Kafka Connect and a schema registry would not come back from compacted topics, or
the bucket would keep old values of their keys.
"""

import faulthandler
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

from tests.support.components import (
    REPOSITORY,
    java,
    kafka_application_jars,
)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("chaos")
def test_applications_come_back_from_compacted_topics(tmp_path: Path) -> None:
    """
    Each of them is killed, as is the agent, and each has its state again from its topics; in the
    end the bucket has one value of each key, and it is the newest.
    """
    java()
    kafka_application_jars()
    faulthandler.cancel_dump_traceback_later()  # of what takes a hundred seconds, as this does

    # A process of its own: what ends a client's process must not end the tests.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.long_topics", "--seconds", "20"],
        cwd=REPOSITORY,
        env={**environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )

    print(ended.stdout)
    assert 0 == ended.returncode, ended.stdout
    without = [line for line in ended.stdout.splitlines() if line.startswith("skipped: ")]
    if without:
        pytest.skip(f"the others are well; {', '.join(without)}")
