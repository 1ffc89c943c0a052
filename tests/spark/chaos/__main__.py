"""`python -m tests.spark.chaos`: a stream of Spark, and everything around it killed at random.

Root.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.spark.chaos.run import Run


def main() -> int:
    """Run, and print what was found.  Returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="driftlog-spark-chaos-"))
    report = Run(folder, seed=given.seed, seconds=given.seconds).run()
    print(
        f"{report.acknowledged} records acknowledged, {report.rows} rows in {report.batches} "
        f"batches; the agent was killed {report.agent_kills} times, the query "
        f"{report.query_kills} times"
    )
    for failure in report.failures:
        print(f"FAILED: {failure}")
    if report.failures:
        print(f"logs and data: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
