"""``python -m tests.simulation --seeds 100000``: as many schedules as there is time for."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.runner import Result, run_seeds, silence

_CHUNK = 20


def main() -> int:
    """Run the seeds on every core; prints progress, and every seed that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
