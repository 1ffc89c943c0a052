"""What a client's settings do where an acknowledgement takes a PUT: the README's table.

    python -m benchmarks.client_tuning [--put-delay-ms 60]

confluent-kafka, 1 KiB random values from one Python loop, which alone makes about 100 MB/s at
most: what comes near that is the loop and not the agent.  Agent, store and client share the cores.

Shell.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.support.driftlog_process import DriftlogProcess
from tests.support.process_usage import free_port, stop_process

Setting = str | int | float | bool

_ROUNDS: Final = 3
_BIG: Final[Mapping[str, Setting]] = {
    "batch.size": 8_000_000,
    "batch.num.messages": 100_000,
    "message.max.bytes": 16_000_000,
    "linger.ms": 100,
}
_CASES: Final[tuple[tuple[str, int, int, Mapping[str, Setting]], ...]] = (
    ("defaults (not idempotent)", 1, 100, {}),
    ("`linger.ms=100`", 1, 100, {"linger.ms": 100}),
    ("`max.in.flight=1`", 1, 30, {"max.in.flight": 1}),
    ("`enable.idempotence`", 1, 30, {"enable.idempotence": True}),
    ("`enable.idempotence`", 6, 60, {"enable.idempotence": True}),
    ("`enable.idempotence`, 8 MB batches", 1, 100, {"enable.idempotence": True, **_BIG}),
)


@contextmanager
def _slow_s3(delay_ms: float) -> Iterator[Mapping[str, str]]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.slow_s3", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--put-delay-ms", str(delay_ms)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"s3 "), "the store did not start"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
        }
    finally:
        stop_process(server, 10)


def _megabytes_per_second(
    agent: DriftlogProcess, topic: str, megabytes: int, settings: Mapping[str, Setting]
) -> float:
    producer = Producer(
        {
            "bootstrap.servers": agent.bootstrap,
            "queue.buffering.max.kbytes": 262_144,
            "queue.buffering.max.messages": 400_000,
            **settings,
        }
    )
    producer.list_topics(topic, 10)
    value = os.urandom(1_024)
    begin = time.monotonic()
    for number in range(megabytes * 1_000_000 // len(value)):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 100 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0, "not everything was acknowledged"
    return megabytes / (time.monotonic() - begin)


def _one_at_a_time_ms(agent: DriftlogProcess, topic: str, acks: str) -> float:
    """Median time of one record, from `produce` to its acknowledgement."""
    producer = Producer({"bootstrap.servers": agent.bootstrap, "acks": acks, "linger.ms": 0})
    times = []
    for _ in range(41):
        begin = time.monotonic()
        producer.produce(topic, b"x")
        assert producer.flush(30) == 0
        times.append(time.monotonic() - begin)
    return 1_000 * sorted(times)[20]


def main() -> int:
    """Print the table: medians of three rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_tuning")
    parser.add_argument("--put-delay-ms", type=float, default=60.0)
    options = parser.parse_args()
    with (
        _slow_s3(options.put_delay_ms) as environment,
        DriftlogProcess(arguments=("--store", "s3://bench/log"), environment=environment) as agent,
    ):
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        large = {"max.message.bytes": "16777216"}
        topics = {n: NewTopic(f"p{n}", n, config=large) for n in (1, 6)}
        for future in admin.create_topics(list(topics.values())).values():
            future.result(30)
        print("| settings | partitions | MB/s |")
        print("|---|---|---|")
        for name, partitions, megabytes, settings in _CASES:
            rates = sorted(
                _megabytes_per_second(agent, f"p{partitions}", megabytes, settings)
                for _ in range(_ROUNDS)
            )
            print(f"| {name} | {partitions} | {rates[_ROUNDS // 2]:.0f} |", flush=True)
        print()
        for acks in ("1", "all"):
            print(
                f"one record at a time, acks={acks}: {_one_at_a_time_ms(agent, 'p1', acks):.1f} ms"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
