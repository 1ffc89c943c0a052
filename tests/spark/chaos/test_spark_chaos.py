"""A stream loses and doubles nothing while its agent and its own process are killed.

If it failed: a query that restarts would skip records, or write them twice.
"""

import shutil
from pathlib import Path

import pytest

from tests.spark.chaos.run import Run

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(500)]


def test_every_acknowledged_record_is_in_the_sink_once(tmp_path: Path) -> None:
    """
    The short version of `make spark-chaos`.
    """
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is none on PATH")

    report = Run(tmp_path, seed=7, seconds=40).run()

    assert [] == report.failures
    assert report.acknowledged > 1_000
    assert report.agent_kills > 0
    assert report.query_kills > 0
