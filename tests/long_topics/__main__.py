"""`python -m tests.long_topics`: applications on compacted topics, and what the bucket has of them.

Root.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from tests.long_topics.run import Run


def main() -> int:
    """Run, and say what came of it.  Returns 1 when something failed, 2 when nothing could run."""
    parser = argparse.ArgumentParser(prog="python -m tests.long_topics")
    parser.add_argument("--seconds", type=float, default=60, help="of work")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="data and logs, also where all is well")
    options = parser.parse_args()

    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="driftlog-long-topics-"))
    try:
        report = Run(folder, seconds=options.seconds, seed=options.seed).run()
    except Exception:  # noqa: BLE001  # whatever it was: say where the logs are
        traceback.print_exc()
        print(f"logs and data: {folder}", file=sys.stderr)
        return 1
    for line in report.skipped:
        print(f"skipped: {line}")
    for line in report.failures:
        print(f"FAILED: {line}")
    if options.keep or report.failures:
        print(f"logs and data: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
