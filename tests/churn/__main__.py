"""`python -m tests.churn`: garbage made and collected under kills, and what is left of it.

Root.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.churn.run import Run
from tests.support import etcd_server


def main() -> int:
    """Run, and print what was found.  Returns 1 when something failed, 2 when nothing could run."""
    parser = argparse.ArgumentParser(prog="python -m tests.churn")
    parser.add_argument("--seconds", type=float, default=3600, help="of churn")
    parser.add_argument("--grace", type=float, default=60, metavar="S", help="in the cluster file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rate", type=float, default=300, help="records of 1 KB a second")
    parser.add_argument("--kill-every", type=float, default=25, metavar="S")
    parser.add_argument("--keep", action="store_true", help="data and logs, also where all is well")
    options = parser.parse_args()
    if not etcd_server.VERSIONS:
        print(etcd_server.NO_ETCD, file=sys.stderr)
        return 2
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="driftlog-churn-"))
    report = Run(
        folder,
        seed=options.seed,
        seconds=options.seconds,
        grace_s=options.grace,
        rate=options.rate,
        kill_s=options.kill_every,
        agents=options.agents,
    ).run()
    for name, fact in report.facts.items():
        print(f"{name:20} {fact}")
    for failure in report.failures:
        print(f"FAILED: {failure}")
    if report.ok and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs and data: {folder}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
