"""One agent that serves and seals, beside two agents of which each does one of it.

    python -m benchmarks.roles [--mb-per-second 60] [--seconds 40] [--rounds 3] [--put-ms 20]

A load of JSON (64 KiB batches, acks=1, eight partitions, segments of 32 MiB) goes on at a steady
rate, in a process of its own; meanwhile a producer with one request in flight and acks=all, 1,000
records/s, measures its latency.  Objects are in S3 whose PUTs take 20 ms; with `--put-ms 0` they
are in a directory, where an agent may flush 200 times a second.  Agents, etcd, the store, load and
producer share the cores.  The two set-ups take turns.  Prints the latencies, CPU seconds of each
agent, and what was sealed where.

Shell.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

from benchmarks.cluster import Bucket, Cluster, metric
from benchmarks.latency import Percentiles, measure_latency
from benchmarks.load import make_batches
from benchmarks.peers import Options, slow_s3
from benchmarks.rawclient import connected, produce
from tests.support.driftlog_process import DriftlogProcess

_MB: Final = 1_000_000
_PARTITIONS: Final = 8
_SEGMENT_BYTES: Final = 32 * 1024 * 1024
_SLICE_S: Final = 0.1
_WARM_UP_S: Final = 15.0
"""Before the measure: segments are sealed all the time by then."""

_SETUPS: Final = {"one agent": ("serve,seal",), "two agents": ("serve", "seal")}
_SEALED: Final = "driftlog_sealed_bytes_total"


def load(bootstrap: str, topic: str, mb_per_second: float) -> None:
    """Produce until this process is killed, at the rate or at the rate that is taken."""
    batches = make_batches("json", 65_536)
    due = time.monotonic()
    while True:
        size = int(mb_per_second * _SLICE_S * _MB)
        produce(bootstrap, topic, range(_PARTITIONS), batches, size, acks=1, connections=2)
        due = max(due + _SLICE_S, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def _loaded(bootstrap: str, mb_per_second: float) -> Iterator[None]:
    command = (sys.executable, "-m", "benchmarks.roles", "--load", bootstrap)
    process = subprocess.Popen([*command, "--mb-per-second", str(mb_per_second)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(
    roles: tuple[str, ...], mb_per_second: float, seconds: float, put_ms: float
) -> Percentiles:
    """The latency of the acknowledged records; prints what the agents took."""
    with ExitStack() as stack:
        bucket = None
        if put_ms:
            _, environment = stack.enter_context(slow_s3(Options(), put_ms))
            bucket = Bucket("s3://bench/roles", environment)
        cluster = Cluster(stack, bucket=bucket)
        agents = [cluster.add(arguments=("--roles", each)) for each in roles]
        first = agents[0]
        with connected(first.bootstrap) as connection:
            connection.create_topic("load", _PARTITIONS, {"segment.bytes": str(_SEGMENT_BYTES)})
            connection.create_topic("probe", 1)
            with _loaded(first.bootstrap, mb_per_second):
                time.sleep(_WARM_UP_S)
                before = [_facts(agent) for agent in agents]
                found = measure_latency(first.bootstrap, "probe", pipelined=False, seconds=seconds)
                after = [_facts(agent) for agent in agents]
            ends = connection.end_offsets("load", range(_PARTITIONS))
    for each, (cpu, sealed), (cpu_end, sealed_end) in zip(roles, before, after, strict=True):
        print(
            f"  --roles {each}: {cpu_end - cpu:.1f} CPU s, sealed "
            f"{(sealed_end - sealed) / _MB:.0f} MB in {seconds:.0f} s",
            flush=True,
        )
    print(f"  {sum(ends.values()):,} records of the load; p50 / p99 {found.acknowledged} ms")
    return found.acknowledged


def _facts(agent: DriftlogProcess) -> tuple[float, float]:
    return agent.usage().cpu_seconds, metric(agent, _SEALED)


def main() -> int:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb-per-second", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--put-ms", type=float, default=20.0)
    parser.add_argument("--load", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        load(options.load, "load", options.mb_per_second)
    found: dict[str, list[Percentiles]] = {name: [] for name in _SETUPS}
    for _ in range(options.rounds):
        for name, roles in _SETUPS.items():
            print(f"{name}:", flush=True)
            taken = measure(roles, options.mb_per_second, options.seconds, options.put_ms)
            found[name].append(taken)
    one, two = (median(each.p99_ms for each in found[name]) for name in _SETUPS)
    print(f"p99, median of {options.rounds}: one {one:.1f} ms, two {two:.1f} ms: {two / one:.2f} ×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
