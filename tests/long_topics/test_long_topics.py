"""Kafka Streams, Kafka Connect and a schema registry would not come back from compacted topics, or
the bucket would keep old values of their keys.
"""

from pathlib import Path

import pytest

from tests.support.components import (
    java,
    kafka_application_jars,
)
from tests.support.module_run import run_module


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("chaos")
def test_applications_come_back_from_compacted_topics(tmp_path: Path) -> None:
    """
    Each of them is killed, as is the agent, and each has its state again from its topics; in the
    end the bucket has one value of each key, and it is the newest.
    """
    java()
    kafka_application_jars()

    printed = run_module("tests.long_topics", "--seconds", "20", folder=tmp_path, timeout_s=580)
    without = [line for line in printed.splitlines() if line.startswith("skipped: ")]
    if without:
        pytest.skip(f"the others are well; {', '.join(without)}")
