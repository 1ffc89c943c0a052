"""The effect of each default of `driftlog.Producer` if an acknowledgement takes a PUT.

    python -m benchmarks.client_tuning [--put-delay-ms 60] [--rounds 3] [--only TEXT]
    python -m benchmarks.client_tuning --million [--put-delay-ms 60]

Each row changes one default, mostly back to librdkafka's own.  Agent, store and client share the
cores of this machine; CPU is the client's.  With ``--put-delay-ms 0`` the objects are in a
directory, otherwise in an S3 server whose PUTs take that long.  ``--million``: the five lines of
docs/clients.md, verbatim.

Shell.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from driftlog import Admin, Producer, ProducerSettings
from tests.support.driftlog_process import DriftlogProcess
from tests.support.process_usage import free_port, stop_process

_LARGE: Final = 16 << 20
_DEFAULTS: Final = ProducerSettings(connect_timeout_ms=0)
_EIGHT_MB: Final = replace(
    _DEFAULTS, idempotence=True, batch_bytes=8_000_000, max_message_bytes=16_000_000, linger_ms=100
)
_PACED_RATE: Final = 2_000
_PACED_S: Final = 5
# A record as a service logs it; one in a hundred differs from the last in every field.
_JSON: Final = [
    json.dumps(
        {
            "id": 7_919 * number,
            "user": f"user-{number % 97}",
            "path": f"/orders/{number % 31}/items/{number % 13}",
            "status": 200 if number % 11 else 404,
            "ms": number * 37 % 251,
            "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
        }
    ).encode()
    for number in range(1_000)
]


@dataclass(frozen=True, slots=True)
class Case:
    """A row: the records, and the settings of the producer."""

    name: str
    settings: ProducerSettings
    partitions: int = 1
    megabytes: int = 100
    kind: str = "random"
    config: Mapping[str, int] = field(default_factory=dict)


def _with(**changes: object) -> ProducerSettings:
    return replace(_DEFAULTS, **changes)  # type: ignore[arg-type]


_CASES: Final = (
    Case("the defaults", _DEFAULTS),
    Case("the defaults", _DEFAULTS, partitions=6),
    Case("`linger_ms=5`", _with(linger_ms=5)),
    Case("`linger_ms=5`", _with(linger_ms=5), partitions=6),
    Case("`linger_ms=250`", _with(linger_ms=250), partitions=6),
    Case("`batch_bytes=100_000`", _with(batch_bytes=100_000)),
    Case("`queue_max_bytes=4 MiB`", _with(queue_max_bytes=4 << 20)),
    Case("config `max.in.flight=1`", _DEFAULTS, megabytes=30, config={"max.in.flight": 1}),
    Case("`acks=1`", _with(acks=1)),
    Case("`idempotence=True`", _with(idempotence=True), megabytes=30),
    Case("`idempotence=True`", _with(idempotence=True), partitions=6, megabytes=60),
    Case("`idempotence=True`, 8 MB batches", _EIGHT_MB),
    Case("the defaults", _DEFAULTS, kind="100 bytes"),
    Case("`queue_max_records=100_000`", _with(queue_max_records=100_000), kind="100 bytes"),
    Case("the defaults", _DEFAULTS, kind="JSON"),
    Case('`compression="none"`', _with(compression="none"), kind="JSON"),
    Case('`compression="zstd"`', _with(compression="zstd"), kind="JSON"),
)


@contextmanager
def _agent(put_delay_ms: float) -> Iterator[DriftlogProcess]:
    if put_delay_ms <= 0:
        with DriftlogProcess() as agent:
            yield agent
        return
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.slow_s3", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--put-delay-ms", str(put_delay_ms)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
    }
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"s3 "), "the store did not start"
        store = ("--store", "s3://bench/log")
        with DriftlogProcess(arguments=store, environment=environment) as agent:
            yield agent
    finally:
        stop_process(server, 10)


def _values(kind: str) -> list[bytes]:
    match kind:
        case "JSON":
            return _JSON
        case "random":
            return [os.urandom(1_024) for _ in range(1_000)]
        case _:
            size = int(kind.removesuffix(" bytes"))
            return [os.urandom(size) for _ in range(1_000)]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _measure(agent: DriftlogProcess, case: Case) -> tuple[float, float]:
    """MB/s, and the client's CPU s/GiB."""
    values = _values(case.kind)
    count = case.megabytes * 1_000_000 * len(values) // sum(map(len, values)) // len(values)
    topic = f"p{case.partitions}"
    with Producer(
        bootstrap_servers=agent.bootstrap, settings=case.settings, config=case.config
    ) as producer:
        producer.produce(topic, b"warm")
        producer.flush()
        begin, cpu_s = time.monotonic(), _cpu_s()
        for _ in range(count):
            for value in values:
                producer.produce(topic, value)
        producer.flush()
        took_s, cpu_s = time.monotonic() - begin, _cpu_s() - cpu_s
    written = count * sum(map(len, values))
    return written / 1e6 / took_s, cpu_s / written * 2**30


def _produce_requests(agent: DriftlogProcess) -> float:
    with urllib.request.urlopen(f"{agent.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(r'^driftlog_requests_total\{api="[Pp]roduce"\} (\S+)', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _paced(agent: DriftlogProcess, linger_ms: float) -> tuple[float, float, float]:
    """A steady load: Produce requests a second, the agent's CPU, the delay of a record in ms."""
    settings = replace(_DEFAULTS, linger_ms=linger_ms)
    value = os.urandom(1_024)
    with Producer(bootstrap_servers=agent.bootstrap, settings=settings) as producer:
        producer.send("p6", value).result(60)
        requests, cpu_s = _produce_requests(agent), agent.usage().cpu_seconds
        delays: list[float] = []
        begin = time.monotonic()
        for number in range(_PACED_RATE * _PACED_S):
            while (early_s := begin + number / _PACED_RATE - time.monotonic()) > 0:
                time.sleep(min(early_s, 0.01))
            if number % 100:
                producer.produce("p6", value, key=b"%d" % number)
            else:
                at = time.monotonic()
                producer.produce(
                    "p6", value, on_delivery=lambda *_, at=at: delays.append(time.monotonic() - at)
                )
        took_s = time.monotonic() - begin
        cpu_s = agent.usage().cpu_seconds - cpu_s
        requests = _produce_requests(agent) - requests
    return requests / took_s, cpu_s / took_s, 1_000 * sorted(delays)[len(delays) // 2]


def _one_at_a_time_ms(agent: DriftlogProcess, acks: str) -> float:
    """Median time of one record, from `produce` to its acknowledgement."""
    settings = replace(_DEFAULTS, acks="all" if acks == "all" else 1)
    times = []
    with Producer(bootstrap_servers=agent.bootstrap, settings=settings) as producer:
        for _ in range(41):
            begin = time.monotonic()
            producer.produce("p1", b"x")
            producer.flush()
            times.append(time.monotonic() - begin)
    return 1_000 * sorted(times)[20]


def _million(agent: DriftlogProcess) -> None:
    os.environ["DRIFTLOG_BOOTSTRAP_SERVERS"] = agent.bootstrap
    value = os.urandom(1_024)
    begin, cpu_s = time.monotonic(), _cpu_s()

    with Producer() as producer:
        for _ in range(1_000_000):
            producer.produce("million", value)

    took_s, cpu_s = time.monotonic() - begin, _cpu_s() - cpu_s
    with Admin() as admin:
        # Made by the first record, with the default of one partition.
        assert {0: 1_000_000} == admin.topics.offsets("million")
    print(
        f"1,000,000 records of 1 KiB: {took_s:.1f} s, {1_024 / took_s:.0f} MB/s, "
        f"{cpu_s / 1_024_000_000 * 2**30:.1f} CPU s/GiB of the client"
    )


def main() -> int:
    """Print the table: medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_tuning")
    parser.add_argument("--put-delay-ms", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument(
        "--million", action="store_true", help="the first program of docs/clients.md"
    )
    options = parser.parse_args()
    with _agent(options.put_delay_ms) as agent:
        if options.million:
            _million(agent)
            return 0
        with Admin(bootstrap_servers=agent.bootstrap) as admin:
            for partitions in sorted({case.partitions for case in _CASES}):
                configs = {"max.message.bytes": _LARGE}
                admin.topics.create(f"p{partitions}", partitions, configs=configs)
        print("| settings | values | partitions | MB/s | client CPU s/GiB |")
        print("|---|---|---|---|---|")
        for case in _CASES:
            if options.only not in case.name:
                continue
            rounds = sorted(_measure(agent, case) for _ in range(options.rounds))
            rate, cpu_s = rounds[len(rounds) // 2]
            kind = {"random": "1 KiB", "JSON": "JSON of 170 bytes"}.get(case.kind, case.kind)
            print(
                f"| {case.name} | {kind} | {case.partitions} | {rate:.0f} | {cpu_s:.1f} |",
                flush=True,
            )
        print()
        print(f"{_PACED_RATE} records of 1 KiB a second with keys, 6 partitions:")
        print("| `linger_ms` | Produce requests/s | agent's CPU | a record's median delay, ms |")
        print("|---|---|---|---|")
        for linger_ms in (0, 5, 20, 50, 100, 250):
            rate, cpu, delay_ms = _paced(agent, linger_ms)
            print(f"| {linger_ms} | {rate:.0f} | {100 * cpu:.0f} % | {delay_ms:.0f} |", flush=True)
        print()
        for acks in ("1", "all"):
            print(f"one record at a time, acks={acks}: {_one_at_a_time_ms(agent, acks):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
