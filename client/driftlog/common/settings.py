"""The clients' defaults, and the effect of larger and smaller values.

An acknowledgement from a bucket takes a PUT, 60 to 250 ms, and not a millisecond: the bytes that
may be in flight meanwhile bound the throughput.  `benchmarks/client_tuning.py` measures the effect
of each setting.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Config = bool | int | float | str
"""A config's value in librdkafka."""

KiB: Final = 1024
MiB: Final = 1024 * KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How records become batches, how many wait, and for how long."""

    acks: Literal["all", 0, 1] = "all"
    """``"all"``: answered when the bytes are in the bucket.  1: on one agent's disk, in less than a
    millisecond, and lost with that disk.  0: the broker does not answer; losses are not noticed."""

    idempotence: bool = False
    """True: a batch that is sent again after a lost answer is written once, and in its order.
    librdkafka then has one batch per partition in flight: MB/s per partition is `batch_bytes` by
    the time of a PUT.  Give such topics partitions, or larger batches."""

    linger_ms: float = 50
    """How long a batch waits to be filled; `flush` does not wait for it.  More: fewer, larger
    batches, which cost less; it adds little to the time of a PUT."""

    batch_bytes: int = 1_000_000
    """A batch is sent at this size, before compression.  More helps `idempotence` with few
    partitions; the topic's `max.message.bytes` must allow it."""

    max_message_bytes: int = 1_048_588
    """The largest record, before compression: the default of a topic's `max.message.bytes`.
    `produce` refuses records above it."""

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """Of whole batches; kept on the wire and in the bucket.  zstd is smaller, and costs more."""

    queue_max_bytes: int = 256 * MiB
    """The bytes that may wait for acknowledgement; beyond it `produce` waits.  It should hold the
    records of some PUTs: 100 MB/s for half a second are 50 MB."""

    queue_max_records: int = 1_000_000
    """The same in records.  librdkafka's own 100,000 are a tenth of a second of small ones."""

    max_block_ms: int = 60_000
    """How long `produce` waits for room before it raises `QueueFullError`."""

    delivery_timeout_ms: int = 120_000
    """A record that is not acknowledged by then has failed.  It covers the takeover of a failed
    agent's partitions, and short outages of the bucket."""

    partitioner: Literal["murmur2_random", "consistent_random"] = "murmur2_random"
    """Which partition a key goes to.  Java's clients use murmur2: the same key is in the same
    partition from both; librdkafka's own default is the other one (CRC-32)."""

    connect_timeout_ms: int = 10_000
    """The first `produce` requests its topic's metadata, and raises `UnreachableError` after this;
    within two seconds where all addresses refuse connections.  0: no such request, and records for
    unreachable brokers fail after `delivery_timeout_ms`."""

    def configs(self) -> dict[str, Config]:
        """The settings as configs of librdkafka."""
        return {
            "acks": self.acks,
            "enable.idempotence": self.idempotence,
            "linger.ms": self.linger_ms,
            "batch.size": self.batch_bytes,
            # The limit of the whole request: the record, and the bytes around it.
            "message.max.bytes": self.max_message_bytes,
            "compression.type": self.compression,
            "queue.buffering.max.kbytes": max(1, self.queue_max_bytes // KiB),
            "queue.buffering.max.messages": self.queue_max_records,
            "delivery.timeout.ms": self.delivery_timeout_ms,
            # CreateTopics answers when all agents know the topic: 5 s are enough, in place of 30.
            "topic.metadata.propagation.max.ms": 5_000,
            "partitioner": self.partitioner,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How much a consumer fetches ahead, and how it behaves as a member of a group."""

    commit_interval_ms: int = 5_000
    """How often offsets of processed records are committed.  Less: the group reads fewer records
    again after a crash, and commits more often."""

    commit_timeout_ms: int = 30_000
    """How long `commit` retries before it raises `CommitError`."""

    max_poll_interval_ms: int = 300_000
    """A member that does not read for so long counts as stuck, and loses its partitions.  It must
    be longer than the processing of one record, or of the records of one `read`."""

    session_timeout_ms: int = 45_000
    """A member whose heartbeats are missing for so long counts as dead, and loses its partitions.
    Shorter: others take over sooner, and a shorter pause of the process costs the partitions."""

    fetch_wait_max_ms: int = 500
    """How long the broker waits for records before it answers a fetch with none."""

    queued_max_bytes: int = 64 * MiB
    """The bytes that are fetched ahead, over all partitions.  More: fewer pauses for large
    records."""

    read_committed: bool = True
    """True: records of aborted and of open transactions are left out."""

    request_timeout_ms: int = 10_000
    """How long the start requests topics and offsets before it raises `UnreachableError`."""

    metadata_max_age_ms: int = 60_000
    """How often the consumer checks for new partitions, and new topics that match a pattern."""

    def configs(self) -> dict[str, Config]:
        """The settings as configs of librdkafka."""
        return {
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "session.timeout.ms": self.session_timeout_ms,
            "fetch.wait.max.ms": self.fetch_wait_max_ms,
            "queued.max.messages.kbytes": max(1, self.queued_max_bytes // KiB),
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "topic.metadata.refresh.interval.ms": self.metadata_max_age_ms,
            # librdkafka's default is a second's wait before it fetches again for a full queue.
            "fetch.queue.backoff.ms": 10,
        }


RESERVED: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap_servers=…",
    "group.id": "group=…",
    "auto.offset.reset": "from_beginning=True",
    "enable.auto.commit": "auto_commit=False, and commit()",
    "enable.auto.offset.store": "auto_commit=False, and commit()",
    "enable.partition.eof": "end_of_topic=True",
    "on_delivery": "on_delivery=… of produce()",
    "delivery.report.only.error": "on_delivery=… of produce()",
    "dr_cb": "on_delivery=… of produce()",
    "transactional.id": "confluent_kafka.Producer: this Producer has no transactions",
}
"""librdkafka's configs that the client sets itself, and the argument to use instead."""
