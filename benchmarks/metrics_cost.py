"""What metrics cost on the produce path: CPU a request, of two checkouts that take turns.

    python -m benchmarks.metrics_cost --other OTHER_CHECKOUT          ten rounds of 200,000 requests

Requests of one record each, acks=1, two connections: the smallest, so that what is done for each
request weighs most.  Each round starts an agent of either checkout, on its own directory; CPU is
user and system of the agent, and the medians are printed.  The other checkout needs its kernel
compiled.

Root.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.load import make_batches
from benchmarks.rawclient import connected, produce_tiny
from tests.support.driftlog_process import DriftlogProcess

_PACKAGES: Final = ("metadata", "tiering", "agents", "spark_reader", "client", "")
_HERE: Final = Path(__file__).resolve().parents[1]
_WARM_UP: Final = 20_000
_VALUE_BYTES: Final = 100


def measure(checkout: Path, requests: int) -> float:
    """Microseconds of CPU a request."""
    path = ":".join(str(checkout / package) for package in _PACKAGES)
    with (
        tempfile.TemporaryDirectory(prefix="driftlog-cost-") as folder,
        DriftlogProcess(Path(folder) / "data", environment={"PYTHONPATH": path}) as agent,
    ):
        with connected(agent.bootstrap) as connection:
            connection.create_topic("t", 2)
        (batch,) = make_batches("random", 1, _VALUE_BYTES, count=1)
        produce_tiny(agent.bootstrap, "t", [0, 1], batch, _WARM_UP)
        before = agent.usage().cpu_seconds
        result = produce_tiny(agent.bootstrap, "t", [0, 1], batch, requests)
        return (agent.usage().cpu_seconds - before) / result.requests * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=200_000)
    options = parser.parse_args()
    checkouts = {"here": _HERE, "other": options.other}
    found: dict[str, list[float]] = {name: [] for name in checkouts}
    for number in range(options.rounds):
        order = sorted(checkouts, reverse=number % 2 == 1)
        for name in order:
            found[name].append(measure(checkouts[name], options.requests))
        print(f"{number + 1}: " + ", ".join(f"{name} {found[name][-1]:.2f}" for name in checkouts))
    here, other = (median(found[name]) for name in checkouts)
    print(f"median: here {here:.2f} µs, other {other:.2f} µs a request: {here / other - 1:+.1%}")
    print(f"least:  here {min(found['here']):.2f} µs, other {min(found['other']):.2f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
