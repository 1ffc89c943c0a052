"""`python -m tests.spark.streams`: as many seeds as asked for, or those that notice a planted bug.

Root.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.spark.streams.planted import PLANTED, noticed
from tests.spark.streams.run import Result, run_seed


def main() -> int:
    """Run, and print what was found.  Returns 1 when a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.streams")
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--planted",
        choices=[plant.__name__ for plant in PLANTED],
        help="print which of the seeds notice this bug",
    )
    given = parser.parse_args()
    seeds = range(given.start, given.start + given.seeds)
    with ProcessPoolExecutor(given.processes) as pool:
        if given.planted is not None:
            names = [given.planted] * len(seeds)
            found = [
                s
                for s, is_seen in zip(seeds, pool.map(_noticed, names, seeds), strict=True)
                if is_seen
            ]
            print(f"{given.planted}: noticed by {len(found)} of {len(seeds)} seeds: {found[:20]}")
            return 0 if found else 1
        total, began = Result(), time.monotonic()
        for number, result in enumerate(pool.map(run_seed, seeds), start=1):
            total.add(result)
            print(f"\r{number:,} of {len(seeds):,} seeds", end="", file=sys.stderr, flush=True)
            for seed, story in result.failed.items():
                print(f"\nseed {seed}: {story}", flush=True)
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(total.counts.items()))
    print(f"{len(seeds):,} seeds in {time.monotonic() - began:,.0f} s: {counts}")
    print(f"{len(total.failed)} seeds failed; one alone: --start SEED --seeds 1")
    return 1 if total.failed else 0


def _noticed(name: str, seed: int) -> bool:
    return noticed(next(plant for plant in PLANTED if plant.__name__ == name), seed)


if __name__ == "__main__":
    sys.exit(main())
