"""A stream has each record once, wherever its query is killed and whatever happens to the log.

Produce, seal, merge, compact, expire, DeleteRecords, new partitions, kills of agents, and kills of
the query between any two steps, from one seed.

If it failed: a restarted query would lose or repeat records.
"""

import time
from typing import Final

import pytest

from tests.spark.streams.planted import PLANTED, SEEN_AT, Plant, noticed
from tests.spark.streams.run import Result, run_seed

_SECONDS: Final = 15.0
"""Of seeds; `make spark-streams SEEDS=n` runs as many as you like."""
_LEAST: Final = 8
_TRIED: Final = 12
"""Seeds of which one has to notice a planted bug where its own do not."""


@pytest.mark.timeout(200)
def test_the_sink_has_every_row_once() -> None:
    """
    Those that were compacted or had expired before they were read may be missing, expired ones
    with failOnDataLoss=false alone; no other is, and none is there twice.
    """
    total, until_s, seed = Result(), time.monotonic() + _SECONDS, 0
    while seed < _LEAST or time.monotonic() < until_s:
        total.add(run_seed(seed))
        seed += 1

    assert {} == total.failed
    assert total.counts["agents killed"] > 0
    assert total.counts["queries killed"] > 0
    assert total.counts["partitions added"] > 0
    assert total.counts["rows that were compacted before they were read"] > 0
    assert total.counts["rows that expired before they were read"] > 0


@pytest.mark.timeout(100)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_noticed(plant: Plant) -> None:
    """
    By one of its own seeds, or of the first.
    """
    seeds = (*SEEN_AT[plant.__name__], *range(_TRIED))

    assert any(noticed(plant, seed) for seed in seeds), plant.__doc__
