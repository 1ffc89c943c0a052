"""`make bench`: the table of docs/benchmarks.md, driftlog's figures beside Apache Kafka's.

    python -m benchmarks.run                       everything (hours; 80 GB of disk help)
    python -m benchmarks.run --quick               the same rows in minutes, not to be quoted
    python -m benchmarks.run --only burst,fetch    some rows
    python -m benchmarks.run --peers kafka         one broker alone

Both brokers start side by side for each row, runs alternate, medians are printed; brokers and
clients share all cores.  MB are 10^6 bytes of record values (of batches for fetches), CPU is
the broker's, user and system, per GiB of the same; RSS is the peak.  Each row deletes its
temporary directories.
Root.
"""

import argparse
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    measure_fetch,
    measure_memory,
    measure_produce,
    measure_spark,
    measure_store,
)
from benchmarks.peers import KAFKA, OURS, Options, disk_mb_per_second
from benchmarks.table import Row, render

MEASURES: dict[str, Callable[[Options], list[Row]]] = {
    "burst": measure_produce.bursts,
    "java": measure_produce.java_bursts,
    "sustained": measure_produce.sustained,
    "acks_all": measure_produce.acks_all,
    "tiny": measure_produce.tiny,
    "fetch": measure_fetch.recent,
    "idle_fetch": measure_fetch.idle,
    "java_fetch": measure_fetch.java_recent,
    "sealed": measure_fetch.sealed,
    "idempotent": measure_store.idempotent,
    "latency": measure_store.latency,
    "puts": measure_store.put_counts,
    "memory": measure_memory.memory,
    "spark": measure_spark.scans,
}
PRINTED = {
    "sealing": "benchmarks.sealing",
    "spark_scan": "benchmarks.spark_scan",
    "spark_sink": "benchmarks.spark_sink",
    "compaction": "benchmarks.compaction",
    "merging": "benchmarks.merging",
    "cold_read": "benchmarks.cold_read",
    "cold_consumers": "benchmarks.cold_consumers",
    "many_segments": "benchmarks.many_segments",
}
"""Programs with tables of their own, printed unchanged below the table."""
_PRINTED_TIMEOUT_SECONDS = 1800


def main() -> int:
    options, only = _arguments()
    # SIGTERM unwinds as Ctrl-C does, so that no broker and no directory is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in (OURS, KAFKA):
        if name in options.names and not options.wants(name):
            options.progress(f"{name} is not here and is left out")
    rows: list[Row] = []
    failed = 0
    began = time.monotonic()
    for name, measure in MEASURES.items():
        if name not in only:
            continue
        options.progress(f"{name} ({time.monotonic() - began:.0f} s)")
        try:
            rows += measure(options)
        except Exception as error:  # noqa: BLE001  A row that fails must not cost the others.
            traceback.print_exc()
            failed += 1
            rows.append(_failure(name, error))
    print(_machine(options))
    print(render(rows))
    for name, module in PRINTED.items():
        if name in only and OURS in options.names:
            print(f"\n{name}:", flush=True)
            failed += not _run_printed(module)
    return 1 if failed else 0


def _arguments() -> tuple[Options, set[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*MEASURES, *PRINTED]
    parser.add_argument("--only", help=f"comma-separated: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small volumes, one round")
    parser.add_argument("--rounds", type=int, help="runs of each broker; 3, quick: 1")
    parser.add_argument("--peers", default=f"{OURS},{KAFKA}")
    parser.add_argument("--payloads", default="random,json")
    parser.add_argument("--dir", type=Path, help="where temporary directories are made")
    parser.add_argument(
        "--driftlog-argument", action="append", default=[], help="one more for `driftlog dev`"
    )
    given = parser.parse_args()
    only = set(given.only.split(",")) if given.only else set(names)
    if unknown := only - set(names):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return Options(
        names=tuple(given.peers.split(",")),
        quick=given.quick,
        rounds=given.rounds or (1 if given.quick else 3),
        directory=given.dir,
        payloads=tuple(given.payloads.split(",")),
        driftlog_arguments=tuple(given.driftlog_argument),
    ), only


def _machine(options: Options) -> str:
    disk = disk_mb_per_second(options.directory)
    volumes = "quick (not to be quoted)" if options.quick else "full volumes"
    return (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}, disk {disk:.0f} MB/s, "
        f"{volumes}, {options.rounds} round(s)\n"
    )


def _failure(name: str, error: Exception) -> Row:
    text = f"{type(error).__name__}: {error}".replace("|", "/").replace("\n", " ")
    return Row(
        measure=name, unit="", ours=None, kafka=None, goal="runs", reached=False, note=text[:120]
    )


def _run_printed(module: str) -> bool:
    """Run another benchmark; False if it is missing or fails."""
    if importlib.util.find_spec(module) is None:
        print(f"{module} does not exist yet")
        return False
    done = subprocess.run(
        [sys.executable, "-m", module], check=False, timeout=_PRINTED_TIMEOUT_SECONDS
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
