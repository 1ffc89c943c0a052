"""The demo of `make local`, in a process of its own: Kafka clients in, sealed Parquet out of S3.

    data ──Kafka client──▶ agents ──▶ flush objects ──seal──▶ Parquet in LocalStack ──▶ counts, CRCs
      └────────────────── what the producer was acknowledged ──────────────▶ the same?

Exit status: 0 the records in the bucket are those that were acknowledged, 1 they are not.

Root.
"""

import argparse
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Final

from driftlog_spark_reader import read_arrow
from tools.demo.answers import DemoError, Input, Table
from tools.demo.flights import Flights
from tools.demo.kafka import Acknowledged, ConsumerThread, create_topic, produce
from tools.demo.ndjson import Lines
from tools.demo.terminal import terminal

_SEAL_S: Final = 120.0
"""How long sealing is tried again: an agent that was killed gives up its partitions after 6 s."""


def main() -> int:
    """Run the demo; returns its exit status."""
    options = _options()
    screen = terminal()
    try:
        data: Input = Flights() if options.input is None else Lines(options.input)
        screen.line(f"demo: {data.summary()}, topic {options.topic}")
        acknowledged = _produce(options, data)
        _seal(options)
        found = _in_the_bucket(options.store, options.topic)
    except DemoError as error:
        screen.verdict(str(error), good=False)
        return 1
    equal = found == acknowledged.table()
    screen.verdict(
        f"demo: {acknowledged.records:,} records in through Kafka, and in Parquet in "
        f"{options.store}: " + ("the same" if equal else "NOT the same"),
        good=equal,
    )
    return 0 if equal else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.local.demo")
    parser.add_argument(
        "--run", help="folder of the process's id: a later start knows the process by it"
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--started", type=float, required=True, help="monotonic seconds")
    parser.add_argument("--input", type=Path)
    return parser.parse_args()


def _produce(options: argparse.Namespace, data: Input) -> Acknowledged:
    create_topic(options.bootstrap, options.topic, data.partitions)
    screen, begin, told = terminal(), time.monotonic(), False
    reading = ConsumerThread(
        options.bootstrap, options.topic, data.partitions, data.count, data.describe
    )

    def tick(done: int) -> None:
        nonlocal told
        if done and not told:
            told = True
            seconds = time.monotonic() - options.started
            screen.line(f"demo: the first record is acknowledged after {seconds:.1f} s")

    with reading:
        acknowledged = produce(
            options.bootstrap, options.topic, data.partitions, data.records(), tick
        )
        reading.catch_up(data.count, lambda: None)
    seconds = time.monotonic() - begin
    screen.line(f"demo: {acknowledged.records:,} records produced and consumed in {seconds:.1f} s")
    return acknowledged


def _seal(options: argparse.Namespace) -> None:
    """
    Raises:
        DemoError: the topic cannot be sealed in time.
    """
    command = [sys.executable, "-P", "-m", "driftlog.cli", "segments", "seal", options.topic]
    command += ["--bootstrap-server", options.bootstrap]
    deadline = time.monotonic() + _SEAL_S
    while True:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise DemoError(f"the topic cannot be sealed: {done.stderr.strip()[-300:]}")
        time.sleep(0.5)


def _in_the_bucket(store: str, topic: str) -> Table:
    """Partition, records, bytes of values and the sum of their CRC-32s, of the sealed files."""
    tallies: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    found = read_arrow(store, topic, columns=["partition", "value"])
    for partition, value in zip(found["partition"], found["value"], strict=True):
        body = value.as_py() or b""
        tally = tallies[partition.as_py()]
        tally[0] += 1
        tally[1] += len(body)
        tally[2] += zlib.crc32(body)
    return [[partition, *tallies[partition]] for partition in sorted(tallies)]


if __name__ == "__main__":
    sys.exit(main())
