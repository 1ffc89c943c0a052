"""`python -m tests.chaos.compacted`: latest values of keys, while agents are killed and cut off.

Root.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.chaos.__main__ import no_etcd, no_localstack
from tests.chaos.compacted.run import CompactedRun, Report

_SHOWN: Final = 8


def main() -> int:
    """Run, and print what came of it.  Returns 1 when a promise was broken, 2 when nothing ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.compacted")
    parser.add_argument("--seconds", type=float, default=60, help="of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rate", type=float, default=50, help="writes a second of each of three")
    parser.add_argument("--keep", action="store_true", help="data and logs, also where all is well")
    options = parser.parse_args()
    missing = [reason for reason in (no_etcd(), no_localstack()) if reason]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2

    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="driftlog-compacted-"))
    again = f"python -m tests.chaos.compacted --seed {options.seed} --seconds {options.seconds:g}"
    again += f" --agents {options.agents} --rate {options.rate:g}"
    try:
        report = CompactedRun(
            folder,
            seed=options.seed,
            seconds=options.seconds,
            agents=options.agents,
            rate=options.rate,
        ).run()
    except Exception:  # noqa: BLE001  # whatever it was: say where the logs are
        traceback.print_exc()
        print(f"logs and data: {folder}\nagain: {again}", file=sys.stderr)
        return 1
    print("\n".join(_lines(report)))
    if report.ok and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs and data: {folder}\nagain: {again}")
    return 0 if report.ok else 1


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"seed {report.seed}, {report.seconds:.0f} s of faults: {report.troubles.total()}"
    for kind, count in sorted(report.troubles.items()):
        yield f"  {kind}: {count}"
    yield f"acknowledged {verdict.acknowledged:,}, unknown {verdict.unknown:,}"
    for error, count in verdict.failed.most_common():
        yield f"  {error}: {count}"
    yield f"readings {verdict.readings:,}, records {verdict.records_read:,}"
    yield f"readings given up {report.given_up.total():,}"
    for reason, count in report.given_up.most_common():
        yield f"  {reason}: {count}"
    yield f"keys without a record, by an old tombstone {verdict.tombstones_gone:,}"
    for event, count in report.logged.most_common():
        yield f"  logged {event}: {count}"
    yield f"broken promises {len(verdict.violations)}"
    for line in (*verdict.violations[:_SHOWN], *report.failures):
        yield f"  {line}"


if __name__ == "__main__":
    sys.exit(main())
