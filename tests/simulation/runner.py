"""Seeds, one after the other or over processes, with what they found."""

import logging
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

import structlog

from tests.simulation.world import BEGIN_S, World


@dataclass(slots=True)
class Result:
    """Of some seeds."""

    seeds: int = 0
    virtual_s: float = 0.0
    acknowledged: int = 0
    events: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Result") -> None:
        """Sum up."""
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.acknowledged += other.acknowledged
        self.events += other.events
        self.counts.update(other.counts)
        self.failed.update(other.failed)


def silence() -> None:
    """The agent's log would be most of what a simulation prints."""
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)  # killed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run_seed(seed: int) -> Result:
    """One seed; a broken promise is in `Result.failed`."""
    world = World(seed)
    result = Result(seeds=1)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  # any of them is a finding
        result.failed[seed] = _story(error)
    result.virtual_s = world.loop.now_s - BEGIN_S
    result.acknowledged = len(world.oracle.acked)
    result.events = world.events
    result.counts.update(world.counts)
    return result


def run_seeds(seeds: range) -> Result:
    """Several."""
    total = Result()
    for seed in seeds:
        total.add(run_seed(seed))
    return total


def _story(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"
