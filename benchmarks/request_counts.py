"""Requests that one agent sends to S3 and to etcd, counted by both, phase by phase.

    python -m benchmarks.request_counts [--seconds 60] [--partitions 6]

The S3 server is `benchmarks.slow_s3` with PUTs of 60 ms; etcd is one member.  Producers are
confluent-kafka with its defaults and acks=all.  The output is the table of docs/cost.md.

Shell.
"""

import argparse
import contextlib
import json
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from benchmarks.peers import Options, slow_s3
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess

_S3: Final = ("PUT", "GET", "LIST", "HEAD", "DELETE_OBJECTS")
_ETCD: Final = ("Txn", "Range", "LeaseKeepAlive", "LeaseGrant", "Status")
_HANDLED: Final = re.compile(r'^grpc_server_handled_total\{.*grpc_method="(\w+)".*\} (\S+)$', re.M)
_TOPIC: Final = "counted"


@dataclass(frozen=True, slots=True)
class Phase:
    """The requests of one phase."""

    name: str
    seconds: float
    requests: Mapping[str, int]

    def row(self) -> str:
        """The phase as a row of the table."""
        counts = " | ".join(str(self.requests[name]) for name in (*_S3, *_ETCD))
        return f"| {self.name} | {self.seconds:.0f} s | {counts} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row a phase."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--partitions", type=int, default=6)
    options = parser.parse_args(arguments)
    print("| phase | lasted | " + " | ".join((*_S3, *_ETCD)) + " |")
    print("|---" * (2 + len(_S3) + len(_ETCD)) + "|")
    with (
        tempfile.TemporaryDirectory() as folder,
        etcd_server.start(etcd_server.newest_version(), Path(folder)) as etcd,
        slow_s3(Options(), 60.0) as (address, environment),
    ):
        store = ("--store", "s3://bench/counts", "--etcd", etcd.endpoints[0])
        agent = DriftlogProcess(arguments=store, environment=environment, command=("agent", "run"))

        def phase(name: str, body: Callable[[], object]) -> None:
            before, started = _counts(address, etcd), time.monotonic()
            body()
            lasted, asked = time.monotonic() - started, _counts(address, etcd)
            asked.subtract(before)
            print(Phase(name, lasted, asked).row(), flush=True)

        with contextlib.closing(agent):
            phase("start on an empty bucket and etcd, and 10 s", lambda: _start(agent))
            phase("idle", lambda: time.sleep(options.seconds))
            phase(
                f"a topic of {options.partitions} partitions is created",
                lambda: _create(agent, options.partitions),
            )
            for rate in (1, 1_000):
                phase(
                    f"{rate:,} records/s of 100 bytes",
                    lambda rate=rate: _produce(agent, rate, options.seconds),  # type: ignore[misc]
                )
            phase("the topic is sealed", lambda: agent.seal(_TOPIC))
            phase("all of it is consumed, from memory", lambda: _consume(agent, options.partitions))
            phase("SIGTERM", agent.terminate)
            phase("start on the same directory", agent.start)
            phase("all of it is consumed, from S3", lambda: _consume(agent, options.partitions))


def _counts(address: str, etcd: etcd_server.EtcdCluster) -> Counter[str]:
    with urllib.request.urlopen(f"{address}/_stats", timeout=10) as answer:
        found: Counter[str] = Counter(json.load(answer))
    for method, count in _HANDLED.findall(etcd.members[0].metrics()):
        found[method] += int(float(count))
    return found


def _start(agent: DriftlogProcess) -> None:
    agent.start()
    time.sleep(10)


def _create(agent: DriftlogProcess, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    for future in admin.create_topics([NewTopic(_TOPIC, partitions)]).values():
        future.result(30)


def _produce(agent: DriftlogProcess, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": agent.bootstrap})
    for number in range(int(rate * seconds)):
        producer.produce(_TOPIC, b"%100d" % number, key=b"%d" % number)
        producer.poll(0)
        time.sleep(1 / rate)
    assert producer.flush(60) == 0


def _consume(agent: DriftlogProcess, partitions: int) -> None:
    settings = {"bootstrap.servers": agent.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    places = [TopicPartition(_TOPIC, number, 0) for number in range(partitions)]
    left = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    consumer.assign(places)
    while left:
        left -= len(consumer.consume(10_000, timeout=1.0))
    consumer.close()


if __name__ == "__main__":
    main()
