"""Consumers of sealed segments: one, ten, and twenty beside a producer.

    python -m benchmarks.cold_consumers [--mib 1024] [--seconds 20] [--payload json]

An agent with a directory store has a topic of twenty sealed partitions; a restart leaves no buffer
file of it.  The raw client reads one partition; then ten, each by a connection of its own.  Then a
producer with one request in flight and acks=all measures its latency alone, and while twenty
connections read all partitions from their starts again and again, in a process with `nice 19`.
Prints the rates, the agent's CPU for each GiB, its memory, and the latencies.

Shell.
"""

import argparse
import subprocess
import sys

from benchmarks.latency import LatencyResult, measure_latency
from benchmarks.load import make_batches
from benchmarks.peers import OURS, MiB, Options, brokers, costed, wait_idle
from benchmarks.rawclient import connected, produce
from benchmarks.rawfetch import FetchResult, fetch_all
from tests.support.driftlog_process import DriftlogProcess

_TOPIC, _PARTITIONS = "cold", range(20)


def _rates(agent: DriftlogProcess, partitions: range) -> None:
    def read() -> FetchResult:
        return fetch_all(
            agent.bootstrap, _TOPIC, partitions, verify=False, connections=len(partitions)
        )

    agent.terminate()
    agent.start()
    found = costed(agent, read)
    print(
        f"{len(partitions):2} consumers: {found.value:.0f} MB/s, "
        f"{found.cpu_seconds_per_gib:.2f} CPU s/GiB, peak {found.peak_rss_mib:.0f} MiB",
        flush=True,
    )


def _latency(agent: DriftlogProcess, topic: str, seconds: float) -> LatencyResult:
    with connected(agent.bootstrap) as connection:
        connection.create_topic(topic, 1)
    return measure_latency(agent.bootstrap, topic, pipelined=False, seconds=seconds)


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--payload", default="json")
    args = parser.parse_args()
    with brokers(Options(), [OURS]) as found:
        agent = found[OURS]
        assert isinstance(agent, DriftlogProcess)
        with connected(agent.bootstrap) as connection:
            connection.create_topic(_TOPIC, len(_PARTITIONS))
        batches = make_batches(args.payload, 1_000_000)
        produce(agent.bootstrap, _TOPIC, _PARTITIONS, batches, args.mib * MiB, acks=-1)
        agent.seal(_TOPIC)
        for partitions in (range(1), range(10)):
            _rates(agent, partitions)
        wait_idle(agent)
        alone = _latency(agent, "alone", args.seconds)
        command = ("nice", "-n", "19", sys.executable, "-m", "benchmarks.rawfetch")
        options = ("--bootstrap", agent.bootstrap, "--topic", _TOPIC)
        more = ("--times", "1000000", "--connections", str(len(_PARTITIONS)))
        with subprocess.Popen([*command, *options, *more], stdout=subprocess.DEVNULL) as readers:
            try:
                beside = _latency(agent, "beside", args.seconds)
            finally:
                readers.kill()
        ratio = beside.acknowledged.p99_ms / alone.acknowledged.p99_ms
        print(f"produce p50 / p99 ms, alone {alone.acknowledged}, beside {beside.acknowledged}: ")
        print(f"p99 {ratio:.2f} ×; agent's peak {agent.usage().peak_rss_bytes // MiB} MiB")


if __name__ == "__main__":
    main()
