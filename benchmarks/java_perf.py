"""Java's own load tools, run from Kafka's jars, and their results.

ProducerPerformance with ``--record-size`` makes every byte of every record with a random
number generator, which halves its rate; with ``--payload-file`` it picks from lines that it
read before.  Both are used: "random" is the first, "json" the second.
ConsumerPerformance joins a group; for a broker without groups there is
`AssignedConsumer.java`, which does the same with assigned partitions.
Shell.
"""

import random
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.batches import json_values
from tests.support.kafka_peer import java_command

_TIMEOUT_SECONDS = 600
_JVM = ("-Xmx512m",)
_MiB = 1 << 20
_SUMMARY = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), "
    r"([\d.]+) ms avg latency, ([\d.]+) ms max latency, (\d+) ms 50th, (\d+) ms 95th, "
    r"(\d+) ms 99th",
    re.MULTILINE,
)
_COUNTED = re.compile(r"records=(\d+) bytes=(\d+) seconds=([\d.]+)")


class ToolFailedError(Exception):
    """A tool ended with an error or without its last line; the message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaResult:
    """One run; MB are 10^6 bytes of record values (the tools print MiB and call them MB)."""

    records: int
    mb_per_second: float
    p50_ms: float | None = None
    p99_ms: float | None = None


def producer_performance(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    batch_bytes: int,
    record_bytes: int = 1024,
    payload: str = "random",
    properties: Mapping[str, str] | None = None,
) -> JavaResult:
    """Run ProducerPerformance unthrottled; not idempotent unless *properties* say so.

    Raises:
        ToolFailedError: the tool printed an error for a record, or no summary.
    """
    settings = {
        "acks": "1",
        "enable.idempotence": "false",
        "batch.size": str(batch_bytes),
        "linger.ms": "20",
        "buffer.memory": str(64 * _MiB),
        **(properties or {}),
    }
    with tempfile.TemporaryDirectory(prefix="payload-") as folder:
        if payload == "random":
            source = ["--record-size", str(record_bytes)]
        else:
            lines = Path(folder) / "lines"
            lines.write_bytes(b"\n".join(json_values(random.Random(20), 10_000, record_bytes)))
            source = ["--payload-file", str(lines)]
        printed = _run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *("--num-records", str(records), "--throughput", "-1", *source),
            "--command-property",
            *(f"{name}={value}" for name, value in settings.items()),
        )
    found = _SUMMARY.findall(printed)
    if not found or "Exception" in printed:
        raise ToolFailedError(printed[-3000:])
    last = found[-1]
    if int(last[0]) != records:
        raise ToolFailedError(f"{last[0]} of {records} records: {printed[-3000:]}")
    return JavaResult(
        records=records,
        mb_per_second=float(last[2]) * _MiB / 1e6,
        p50_ms=float(last[5]),
        p99_ms=float(last[7]),
    )


def consumer_performance(bootstrap: str, topic: str, records: int) -> JavaResult:
    """Run ConsumerPerformance, with a group; the rate excludes the time of joining.

    Raises:
        ToolFailedError: it read fewer records.
    """
    printed = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--num-records", str(records), "--timeout", "30000", "--hide-header"),
    )
    rows = [line.split(", ") for line in printed.splitlines() if line.count(", ") == 9]
    if not rows or int(rows[-1][4]) < records:
        raise ToolFailedError(printed[-3000:])
    return JavaResult(records=int(rows[-1][4]), mb_per_second=float(rows[-1][8]) * _MiB / 1e6)


def assigned_consumer(bootstrap: str, topic: str, records: int) -> JavaResult:
    """Read *records* with Java's consumer on assigned partitions, from the start.

    Raises:
        ToolFailedError: it read fewer records.
    """
    source = Path(__file__).with_name("AssignedConsumer.java")
    printed = _run(str(source), bootstrap, topic, str(records))
    found = _COUNTED.search(printed)
    if not found or int(found[1]) < records:
        raise ToolFailedError(printed[-3000:])
    return JavaResult(records=int(found[1]), mb_per_second=int(found[2]) / float(found[3]) / 1e6)


def _run(main_class: str, *arguments: str) -> str:
    """Run a tool; returns standard output and error together, with few lines of slf4j-simple."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command: Sequence[str] = java_command(main_class, *arguments, jvm=(*_JVM, quiet))
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    printed = done.stdout.decode(errors="replace")
    if done.returncode:
        raise ToolFailedError(printed[-3000:])
    return printed
