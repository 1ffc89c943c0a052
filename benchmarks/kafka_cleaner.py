"""The cost of compacting one partition in Apache Kafka: one pass of its log cleaner.

    produced with cleanup.policy=delete ──▶ the last segment is rolled ──▶ cleanup.policy=compact
        ──▶ the cleaner's own line in the broker's log: records before and after, seconds

CPU is the broker's, all threads, from the change of the policy to that line.  Segments have
128 MiB, as driftlog's; the cleaner has its defaults (one thread, 128 MiB for its map), and looks
every second.

Shell.
"""

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.kafka_peer import KafkaPeer

MiB: Final = 1 << 20
SEGMENT_BYTES: Final = 128 * MiB
_TOPIC: Final = "bench"
_PROPERTIES: Final = {"log.cleaner.backoff.ms": "1000"}
_CONFIGS: Final = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
_ROLLED_MS: Final = 1_000
_LIMIT_S: Final = 900.0
_DONE: Final = re.compile(
    r"cleaned log bench-0 \(dirty section = \[\d+, (?P<end>\d+)\]\)\s+"
    r"(?P<read>[\d,.]+) MB of log processed in (?P<seconds>[\d,.]+) seconds.*?"
    r"Start size: (?P<before>[\d,.]+) MB \((?P<records>[\d,]+) messages\)\s+"
    r"End size: (?P<after>[\d,.]+) MB \((?P<left>[\d,]+) messages\)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Cleaning:
    """One pass of the cleaner."""

    records: int
    left: int
    log_bytes: int
    seconds: float
    cpu_s: float
    rss_before_bytes: int
    rss_peak_bytes: int


def measure(records: int, keys: int, value_bytes: int, parent: Path | None) -> Cleaning:
    """Fill a partition of a new broker with *records* of random *keys*, and compact it.

    Raises:
        TimeoutError: the cleaner was not done in a quarter of an hour.
    """
    with KafkaPeer(parent, _PROPERTIES, jvm=()) as peer:
        admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 2})
        for future in admin.create_topics([NewTopic(_TOPIC, 1, 1, config=_CONFIGS)]).values():
            future.result(30)
        _fill(peer.bootstrap, records, keys, value_bytes)
        _alter(admin, {"segment.ms": str(_ROLLED_MS)})
        time.sleep(2 * _ROLLED_MS / 1000)  # a segment is rolled by the record after its age
        _fill(peer.bootstrap, 1, keys, value_bytes)
        peer.reset_peak()
        before = peer.usage()
        _alter(
            admin,
            {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        )
        found = _wait(peer.directory / "server.log")
        after = peer.usage()
        return Cleaning(
            records=_whole(found["records"]),
            left=_whole(found["left"]),
            log_bytes=round(_decimal(found["before"]) * MiB),
            seconds=_decimal(found["seconds"]),
            cpu_s=after.cpu_seconds - before.cpu_seconds,
            rss_before_bytes=before.rss_bytes,
            rss_peak_bytes=after.peak_rss_bytes,
        )


def _fill(bootstrap: str, records: int, keys: int, value_bytes: int) -> None:
    rng, value = random.Random(1), random.Random(2).randbytes(value_bytes)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "log_level": 2,
            "linger.ms": 20,
            "batch.num.messages": 1_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for _ in range(records):
        key = b"key-%012d" % rng.randrange(keys)
        while True:
            try:
                producer.produce(_TOPIC, value, key, partition=0)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    if left := producer.flush(120):
        raise RuntimeError(f"{left} records are not acknowledged")


def _alter(admin: Any, configs: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _wait(log: Path) -> re.Match[str]:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        if found := _DONE.search(log.read_text(errors="replace")):
            return found
        time.sleep(0.2)
    raise TimeoutError("Kafka's log cleaner has not finished")


def _decimal(text: str) -> float:
    return float(text.replace(",", ""))


def _whole(text: str) -> int:
    return int(text.replace(",", ""))
