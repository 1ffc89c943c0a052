"""`python -m tests.fuzz`: all targets, as many frames as you like, on all cores.

Root.
"""

import argparse
import concurrent.futures
import os
import sys
import time

from tests.fuzz.runner import CHUNK_FRAMES, Chunk, FuzzError, run_chunk
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Parse arguments, run, report.  Returns 1 when a target broke its promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--frames", type=int, default=100_000, help="over all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--chunk", type=int, help="only this chunk of --target")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()

    names = [arguments.target] if arguments.target else sorted(TARGETS)
    per_target = -(-arguments.frames // (CHUNK_FRAMES * len(names)))
    numbers = range(per_target) if arguments.chunk is None else [arguments.chunk]
    chunks = [Chunk(name, arguments.seed, number) for number in numbers for name in names]

    began = time.monotonic()
    fed = done = 0
    with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
        try:
            for size in pool.map(run_chunk, chunks):
                fed += size
                done += 1
                if done % 100 == 0:
                    print(f"{done * CHUNK_FRAMES:,} frames", flush=True)
        except FuzzError as error:
            pool.shutdown(cancel_futures=True)
            print(error, file=sys.stderr)
            return 1
    seconds = time.monotonic() - began
    print(
        f"{done * CHUNK_FRAMES:,} frames, {fed / 1e6:,.0f} MB, {len(names)} targets: nothing broke"
        f" ({seconds:.0f} s, {arguments.processes} processes)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
