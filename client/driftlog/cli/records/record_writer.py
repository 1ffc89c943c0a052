"""The producer of `driftlog produce`, which accounts for every record.

    librdkafka ──▶ acknowledged
         └───────▶ failed, or unknown: its answer was lost; both printed with their line

Shell.
"""

import argparse
import sys
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from driftlog.cli.common.output import Progress, complain, plural, size
from driftlog.cli.connection.connection import new_client, properties, reason
from driftlog.cli.records.formats import NewRecord
from driftlog.errors import advice, outcome_unknown

SAID_FAILURES: Final = 10
"""Failures that are printed one by one; the others are counted."""

_POLL_RECORDS: Final = 100
"""Deliveries are counted after so many records, and while there is no input."""

_QUEUE_KBYTES: Final = 256 << 10
BROKER_DECIDES_BYTES: Final = 100_000_000


class RecordWriter:
    """A producer that counts the outcome of each record.

    Args:
        is_new: the topic does not exist yet; the broker may create it.
        interactive: a person types the records: a progress line would be in the way.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        topic: str,
        batch_bytes: int,
        delivery_s: float,
        *,
        is_new: bool,
        interactive: bool,
    ) -> None:
        self.taken = 0
        self.written = 0
        self.written_bytes = 0
        self.failed = 0
        self.unknown = 0
        self.unknown_topic = False
        self._complaints = 0
        self._options = options
        self._topic = topic
        self._headers = options.header or []
        self._is_new = is_new
        self._progress = Progress(quiet=options.quiet or interactive)
        settings = properties(
            options,
            acks=options.acks,
            enable_idempotence=options.acks in ("all", "-1"),
            compression_type=options.compression,
            linger_ms=20,
            # One request of a partition is in flight: small records fill a batch as well.
            batch_num_messages=100_000,
            batch_size=batch_bytes,
            queue_buffering_max_kbytes=_QUEUE_KBYTES,
            queue_buffering_max_messages=1_000_000,
            # The broker refuses records that are too large: limits differ by topic.
            message_max_bytes=BROKER_DECIDES_BYTES,
            message_timeout_ms=round(delivery_s * 1000),
            # CreateTopics answers when all agents know the topic.  librdkafka would wait for 30 s.
            topic_metadata_propagation_max_ms=5_000,
        )
        self._producer = new_client(Producer, settings)

    def poll(self) -> None:
        """Count deliveries."""
        self._producer.poll(0)
        self._show()

    def write(self, where: str, record: NewRecord) -> None:
        """Pass the record to the producer, when there is room."""
        self.taken += 1
        headers = [*self._headers, *record.headers]
        partition = self._options.partition if record.partition is None else record.partition
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        delivered = partial(self._delivered, where)
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, partition, on_delivery=delivered, **more
                )
            except BufferError:
                self._producer.poll(0.1)
                self._show()
            except (KafkaException, ValueError, TypeError, OverflowError) as error:
                self._fail(
                    where, reason(error) if isinstance(error, KafkaException) else str(error)
                )
                break
            else:
                break
        if self._options.tee:
            sys.stdout.buffer.write((record.value or b"") + self._options.delimiter)
        if self.taken % _POLL_RECORDS == 0:
            self.poll()

    def finish(self) -> bool:
        """Wait until all records are acknowledged or failed; a second Ctrl-C ends the wait."""
        try:
            while self._producer.flush(0.2):
                self._show()
        except KeyboardInterrupt:
            self.unknown += len(self._producer)
            return False
        else:
            return True
        finally:
            self._progress.clear()
            if self._complaints > SAID_FAILURES:
                complain(f"and {self._complaints - SAID_FAILURES:,} more")

    def _delivered(self, where: str, error: KafkaError | None, message: Message) -> None:
        self._options.notice.rests()
        if error is None:
            if self._is_new:
                self._is_new = False
                if not self._options.quiet:
                    complain(
                        f"topic {self._topic} was created, with the cluster's defaults: it did not "
                        f"exist (auto.create.topics.enable)"
                    )
            self.written += 1
            self.written_bytes += len(message.value() or b"") + len(message.key() or b"")
            return
        if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
            self.unknown_topic = True
        if outcome_unknown(error.code()):
            self.unknown += 1
            self._complain(where, f"unknown: may have been written: {reason(error)}")
        elif error.code() == KafkaError._UNKNOWN_PARTITION:
            self._fail(where, f"{self._topic} has no partition {message.partition()}")
        elif error.code() == KafkaError.INVALID_RECORD and message.key() is None:
            # librdkafka drops the broker's message for each record, which says the same.
            self._fail(
                where,
                f"{self._topic} takes no record without a key, as its cleanup.policy has compact: "
                "give keys with -K DELIM or -k KEY",
            )
        else:
            self._fail(where, f"{reason(error)}. {advice(error.code())}")

    def _fail(self, where: str, why: str) -> None:
        self.failed += 1
        self._complain(where, f"not written: {why}")

    def _complain(self, where: str, what: str) -> None:
        self._complaints += 1
        if self._complaints <= SAID_FAILURES:
            complain(f"{where}: {what}")

    def _show(self) -> None:
        if len(self._producer):
            self._options.notice.waits_still()
        if self._progress.due():
            rate = self.written_bytes / self._progress.seconds
            self._progress.show(
                f"{plural(self.written, 'record')} written, {len(self._producer):,} on the way, "
                f"{size(self.written_bytes)}, {size(rate)}/s"
            )
