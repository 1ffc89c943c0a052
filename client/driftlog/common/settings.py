"""What the clients' defaults are, and what more and less of them does.

An acknowledgement of a bucket takes a PUT, 60 to 250 ms, and not a millisecond: what may be in
flight meanwhile decides how much gets through.  `benchmarks/client_tuning.py` measures what each
of these is worth.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Config = bool | int | float | str
"""A value of librdkafka's."""

KiB: Final = 1024
MiB: Final = 1024 * KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How records become batches, how many wait, and for how long."""

    acks: Literal["all", 0, 1] = "all"
    """``"all"``: answered when the bytes are in the bucket.  1: on one agent's disk, in less than a
    millisecond, and lost with that disk.  0: nobody answers, and nobody knows."""

    idempotence: bool = False
    """True: a batch that is sent again after a lost answer is not there twice, and never out of
    turn.  librdkafka then has one batch per partition in flight: MB/s per partition is
    `batch_bytes` by the time of a PUT.  Give such topics partitions, or larger batches."""

    linger_ms: float = 50
    """How long a batch waits to be filled; `flush` does not wait for it.  More: fewer, larger
    batches, which cost everybody less; it adds little to what a PUT takes."""

    batch_bytes: int = 1_000_000
    """A batch goes at this size, before compression.  More helps `idempotence` with few
    partitions; the topic's `max.message.bytes` must allow it."""

    max_message_bytes: int = 1_048_588
    """The largest record, before compression: what topics take unless their `max.message.bytes`
    says otherwise.  Records above it are refused at `produce`."""

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """Of whole batches; kept on the wire and in the bucket.  zstd is smaller, and costs more."""

    queue_max_bytes: int = 256 * MiB
    """So much may wait for acknowledgement; then `produce` waits.  It should hold what is produced
    during some PUTs: 100 MB/s for half a second are 50 MB."""

    queue_max_records: int = 1_000_000
    """The same in records.  librdkafka's own 100,000 are a tenth of a second of small ones."""

    max_block_ms: int = 60_000
    """How long `produce` waits for room before it raises `QueueFullError`."""

    delivery_timeout_ms: int = 120_000
    """A record that is not acknowledged by then has failed.  It covers what agents need to replace
    one of them, and short outages of the bucket."""

    partitioner: Literal["murmur2_random", "consistent_random"] = "murmur2_random"
    """Where a key goes.  Java's clients use murmur2, so that the same key is in the same partition
    whoever writes it; librdkafka's own default is the other one (CRC-32)."""

    connect_timeout_ms: int = 10_000
    """The first `produce` asks the cluster for its topic, and raises `UnreachableError` after this.
    0: nothing is asked; unreachable brokers show after `delivery_timeout_ms`."""

    def configs(self) -> dict[str, Config]:
        """As librdkafka calls them."""
        return {
            "acks": self.acks,
            "enable.idempotence": self.idempotence,
            "linger.ms": self.linger_ms,
            "batch.size": self.batch_bytes,
            # Of the whole request: the record, and what is around it.
            "message.max.bytes": self.max_message_bytes,
            "compression.type": self.compression,
            "queue.buffering.max.kbytes": max(1, self.queue_max_bytes // KiB),
            "queue.buffering.max.messages": self.queue_max_records,
            "delivery.timeout.ms": self.delivery_timeout_ms,
            # A topic is told of when all agents know it: 30 s are not needed to say that it is not.
            "topic.metadata.propagation.max.ms": 5_000,
            "partitioner": self.partitioner,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How much is fetched ahead, and how a member of a group behaves."""

    commit_interval_ms: int = 5_000
    """How often offsets of processed records are committed.  Less: fewer records come again after
    a crash, and more commits."""

    commit_timeout_ms: int = 30_000
    """How long a commit that is waited for is tried again before it raises `CommitError`."""

    max_poll_interval_ms: int = 300_000
    """A member that does not ask for records for so long is taken for stuck, and loses its
    partitions.  It must be more than the processing of one record takes."""

    session_timeout_ms: int = 45_000
    """A member that is not heard of for so long is taken for dead."""

    fetch_wait_max_ms: int = 500
    """How long the broker waits for records where there are none."""

    queued_max_bytes: int = 64 * MiB
    """So much is fetched ahead, over all partitions.  More: fewer pauses for large records."""

    read_committed: bool = True
    """Records of transactions that were aborted, or are still open, are left out."""

    request_timeout_ms: int = 10_000
    """How long the start may take: topics, offsets.  Then `UnreachableError`."""

    metadata_max_age_ms: int = 60_000
    """How often new partitions, and new topics that match a pattern, are looked for."""

    def configs(self) -> dict[str, Config]:
        """As librdkafka calls them."""
        return {
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "session.timeout.ms": self.session_timeout_ms,
            "fetch.wait.max.ms": self.fetch_wait_max_ms,
            "queued.max.messages.kbytes": max(1, self.queued_max_bytes // KiB),
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "topic.metadata.refresh.interval.ms": self.metadata_max_age_ms,
            # librdkafka waits a second before it fetches again for a queue that was full.
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
    "transactional.id": "confluent_kafka.Producer: driftlog's has no transactions",
}
"""librdkafka's configs that the client sets itself, and what to say instead."""
