"""`python -m tests.chaos`: real processes killed, frozen and cut off, and what became of records.

Root.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from tests.chaos.report import table
from tests.chaos.run import Run
from tests.support import etcd_server
from tests.support.components import REPOSITORY


def main() -> int:
    """Run, and print the table.  Returns 1 when a promise was broken, 2 when nothing could run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=150, help="of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument(
        "--rate", type=float, default=20, help="records a second of each of eight producers"
    )
    parser.add_argument(
        "--stores",
        action="store_true",
        help="etcd is also restored from an older copy, and wiped, and gets its data back",
    )
    parser.add_argument("--keep", action="store_true", help="data and logs, also where all is well")
    options = parser.parse_args()
    missing = [reason for reason in (no_etcd(), no_localstack()) if reason]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2

    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="driftlog-chaos-"))
    again = f"python -m tests.chaos --seed {options.seed} --seconds {options.seconds:g}"
    again += f" --agents {options.agents} --rate {options.rate:g}"
    again += " --stores" if options.stores else ""
    try:
        report = Run(
            folder,
            seed=options.seed,
            seconds=options.seconds,
            agents=options.agents,
            rate=options.rate,
            stores=options.stores,
        ).run()
    except Exception:  # noqa: BLE001  # whatever it was: say where the logs are
        traceback.print_exc()
        print(f"logs and data: {folder}\nagain: {again}", file=sys.stderr)
        return 1
    print(table(report))
    if report.ok and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs and data: {folder}\nagain: {again}")
    return 0 if report.ok else 1


def no_etcd() -> str:
    return "" if etcd_server.VERSIONS else etcd_server.NO_ETCD


def no_localstack() -> str:
    there = (REPOSITORY / ".venv-localstack" / "bin" / "python").exists()
    return "" if there else "no LocalStack: make localstack"


if __name__ == "__main__":
    sys.exit(main())
