"""``python -m tests.simulation --seeds 100000``: as many schedules as there is time for.

With ``--planted NAME``: which seeds notice a planted bug (`plants`); ``--planted all``: which bugs
their own seeds do not notice any more.
"""

import argparse
import itertools
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.plants import PLANTED, planted
from tests.simulation.runner import Result, run_seeds, silence

_CHUNK = 20


def main() -> int:
    """Run the seeds on every core; prints progress, and every seed that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--planted", metavar="NAME", help="a bug, to find seeds that notice it")
    options = parser.parse_args()
    if options.planted is not None:
        return _find(options.planted, options.start, options.seeds, options.processes)
    began = time.monotonic()
    total = Result()
    end = options.start + options.seeds
    chunks = [range(s, min(s + _CHUNK, end)) for s in range(options.start, end, _CHUNK)]
    with ProcessPoolExecutor(options.processes, initializer=silence) as pool:
        for result in pool.map(run_seeds, chunks):
            total.add(result)
            for seed, story in result.failed.items():
                print(f"\nseed {seed}: {story}")
                print(f"  again: python -m tests.simulation --start {seed} --seeds 1 --processes 1")
            print(
                f"\r{total.seeds:>7,} of {options.seeds:,} seeds, "
                f"{total.virtual_s / 3600:.1f} virtual hours, {len(total.failed)} failed",
                end="",
                flush=True,
            )
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(total.counts.items()))
    print(
        f"\n{total.seeds:,} seeds in {time.monotonic() - began:,.0f} s: "
        f"{total.virtual_s / 3600:.1f} virtual hours, {total.events:,} requests, "
        f"{total.acknowledged:,} records acknowledged\n"
        f"faults: {counts}\n{len(total.failed)} seeds failed"
    )
    return 1 if total.failed else 0


def _find(name: str, start: int, count: int, processes: int) -> int:
    """Print which of *count* seeds of its kind notice a bug; or which own seeds do not."""
    if name == "all":
        tries = [(bug.name, seed) for bug in PLANTED for seed in bug.seeds]
    else:
        seeds = itertools.islice(planted(name).others(start), count)
        tries = [(name, seed) for seed in seeds]
    noticed = 0
    with ProcessPoolExecutor(processes, initializer=silence) as pool:
        for (bug, seed), seconds in zip(tries, pool.map(_try, tries), strict=True):
            noticed += seconds is not None
            if seconds is None and name == "all":
                print(f"{bug}: not noticed by seed {seed}", flush=True)
            elif seconds is not None and name != "all":
                print(f"{bug}: noticed by seed {seed} in {seconds:.1f} s", flush=True)
    print(f"{noticed} of {len(tries)} seeds noticed what was planted")
    return 0 if noticed == len(tries) or (noticed and name != "all") else 1


def _try(bug_and_seed: tuple[str, int]) -> float | None:
    """CPU time, seconds; None: the seed does not notice the bug."""
    name, seed = bug_and_seed
    began = time.process_time()
    return time.process_time() - began if planted(name).noticed(seed) else None


if __name__ == "__main__":
    sys.exit(main())
