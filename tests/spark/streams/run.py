"""Runs a seed: what is written, what happens to it, and how its query is set up.

Root.
"""

import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from driftlog_metadata.stores.etcd import etcd_store
from driftlog_spark_reader.bucket import locations
from driftlog_spark_reader.source import stream_log
from tests.simulation.runner import silence
from tests.spark.streams.agents import Log, World
from tests.spark.streams.query import Query, lasting_files, moments

_LIVES: Final = (2, 6)
_STEPS: Final = (1, 30)
_WARM_UP_S: Final = 3.0


@dataclass(slots=True)
class Result:
    """Of some seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Result") -> None:
        """Sum up."""
        self.counts.update(other.counts)
        self.failed.update(other.failed)


def log_of(rng: Random) -> Log:
    """Two or three topics: one that only grows, one that is compacted, one that expires."""
    configs = {
        "grows": {"retention.ms": "-1"},
        "keyed": {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "100",
        },
    }
    deletes = rng.random() < 0.5
    if deletes:
        configs["short"] = {"retention.ms": str(rng.randint(3_000, 30_000))}
    return Log(
        configs=configs,
        agents=rng.choice((1, 1, 2)),
        deletes=deletes,
        segment_ms=rng.choice((500, 2_000, 5_000)),
    )


def query_of(world: World, location: Path, rng: Random) -> Query:
    """A query with some of the options."""
    options = {
        "subscribe": ",".join(world.topics),
        "startingOffsets": rng.choice(("earliest", "earliest", "latest")),
    }
    if rng.random() < 0.6:
        options["maxOffsetsPerTrigger"] = rng.choice(("3", "10", "40"))
    if rng.random() < 0.2:
        options["minPartitions"] = "4"
    if rng.random() < 0.2:
        options["maxRecordsPerPartition"] = "5"
    return Query(
        world,
        str(location),
        options,
        has_tail=rng.random() < 0.6,
        is_lenient=rng.random() < 0.4,
        rng=rng,
    )


def run_seed(seed: int) -> Result:
    """One seed; a broken promise is in `Result.failed`."""
    silence()
    result = Result()
    with tempfile.TemporaryDirectory(prefix="driftlog-streams-") as folder:
        try:
            result.counts.update(_run(seed, Path(folder)))
        except Exception as error:  # noqa: BLE001  # any of them is a finding
            result.failed[seed] = _story(error)
    return result


def run_seeds(seeds: range) -> Result:
    """Several."""
    total = Result()
    for seed in seeds:
        total.add(run_seed(seed))
    return total


def _run(seed: int, location: Path) -> dict[str, int]:
    rng = Random(f"stream {seed}")
    world = World(seed, location, log_of(rng))
    with pytest.MonkeyPatch.context() as patch, world.running():
        # One thread of the reader at a time: a seed has one schedule.
        patch.setattr(stream_log, "THREADS", 1)
        pass_moment = moments(world, Random(f"moments {seed}"))
        patch.setattr(locations, "LocalFiles", lasting_files(pass_moment))
        patch.setattr(etcd_store, "EtcdMetadataStore", lambda _: world.metadata)
        query = query_of(world, location, rng)
        world.pass_time(_WARM_UP_S * rng.random())
        for _ in range(rng.randint(*_LIVES)):
            query.live(rng.randint(*_STEPS))
        world.settle()
        query.end()
        query.check()
    return world.counts


def _story(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"
