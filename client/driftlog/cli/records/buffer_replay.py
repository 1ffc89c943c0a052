"""Replay of an agent's kept directories: produces ``DIR/kept/{session_id}`` to its topics.

    leftovers.json ──▶ do the topics exist, with these ids? ──▶ file by file, batch by batch:
        decode ──▶ Python client ──▶ acknowledged ──▶ ``replayed.json``, once a second
                                          ╳ refused: printed, and left for the next run
        all records are acknowledged ──▶ the directory is deleted

Shell.
"""

import argparse
import base64
import signal
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import crc32c
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from driftlog.cli.common.errors import FAILED, INTERRUPTED, OK, CommandError
from driftlog.cli.common.output import Bad, Progress, complain, plural, print_table, size
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import properties, reason
from driftlog.cli.records.buffer_kept import KeptDirectory, find, locked
from driftlog.cli.records.produce import topic_batch_bytes
from driftlog.cli.records.record_writer import BROKER_DECIDES_BYTES, SAID_FAILURES
from driftlog.common.settings import ProducerSettings
from driftlog.errors import DeliveryError, DriftlogError, FlushTimeoutError
from driftlog.producer.producer import Producer
from driftlog_agents.log.local.buffer_format import Entry, PassedOver, whole_batches
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
)
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.batches.compression import decompress
from driftlog_tiering.batches.kernel_py import Record, iterate_records

_SAVE_S: Final = 1.0
"""Between two writes of ``replayed.json``.  Longer: after a kill the next run repeats more."""
_TIMED_OUT: Final = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE)
_SET_BY_US: Final = ("bootstrap.servers", "client.id", "log_level")


def replay(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    kept, refused = find(options.directory)
    for why in refused:
        complain(why)
    status = FAILED if refused else OK
    if not kept:
        if not refused:
            complain(f"nothing is set aside in {options.directory}")
        return status
    cluster = ClusterClient(options)
    deleted = _deleted(cluster, kept)
    if options.dry_run:
        _show(kept, deleted)
        return status
    if deleted and not options.skip_deleted:
        names = "; ".join(sorted({f"{topic} ({why})" for topic, why in deleted.values()}))
        raise CommandError(
            f"nothing is produced: {names}.  --skip-deleted produces the others, and leaves these "
            "records where they are"
        )
    interruption = _Interruption()
    replayer = _Replayer(options, cluster, deleted, interruption)
    for found in kept:
        with locked(found.path) as directory:
            if directory is not None and not replayer.replay(directory):
                status = FAILED
        if interruption.asked:
            return INTERRUPTED
    return status


class _Interruption:
    """The first Ctrl-C or SIGTERM ends a run between two batches, after the acknowledgements of the
    records in flight; the second one ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


# ── What there is ──


def _deleted(
    cluster: ClusterClient, kept: list[KeptDirectory]
) -> dict[TopicPartition, tuple[str, str]]:
    """Partitions whose topics are deleted: the topic's name, and the text of the reason.

    Raises:
        CommandError: the cluster does not describe a topic.
    """
    named = {tp: str(of.topic) for one in kept for tp, of in one.leftovers.partitions.items()}
    asked = cluster.admin.describe_topics(
        TopicCollection(sorted(set(named.values()))), request_timeout=cluster.timeout
    )
    ids: dict[str, UUID | None] = {}
    for topic, future in asked.items():
        try:
            ids[topic] = _uuid(str(future.result().topic_id))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise CommandError(f"{topic}: {reason(error)}") from error
            ids[topic] = None
    found = {}
    for tp, topic in named.items():
        if ids[topic] is None:
            found[tp] = topic, "deleted"
        elif ids[topic] != tp.topic_id:
            found[tp] = topic, "deleted; another topic has its name"
    return found


def _uuid(text: str) -> UUID:
    """The topic id in Kafka's 22 characters."""
    standard = text.replace("+", "-").replace("/", "_")
    return UUID(bytes=base64.urlsafe_b64decode(standard.rstrip("=") + "=="))


def _show(kept: list[KeptDirectory], deleted: Mapping[TopicPartition, tuple[str, str]]) -> None:
    for one in kept:
        at_ms = one.leftovers.set_aside_at_ms or 0
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))
        text = f", {one.done.records:,} are replayed" if one.done.records else ""
        complain(f"{one.path}: {plural(one.leftovers.records, 'record')}, set aside {at}{text}")
    rows = [
        (
            of.topic,
            tp.partition,
            of.records,
            size(of.size_bytes),
            Bad(deleted[tp][1]) if tp in deleted else "yes",
            of.reason,
        )
        for one in kept
        for tp, of in sorted(one.leftovers.partitions.items())
    ]
    print_table(("topic", "partition", "records", "size", "topic exists", "why"), rows)
    complain("nothing is produced: --dry-run")


# ── Producing ──


class _Place(NamedTuple):
    """A record: its place in its file, and its place in the log before."""

    file: str
    record: int
    partition: str
    offset: int


class _Replayer:
    """Produces directories, one after the other."""

    def __init__(
        self,
        options: argparse.Namespace,
        cluster: ClusterClient,
        deleted: Mapping[TopicPartition, tuple[str, str]],
        interruption: _Interruption,
    ) -> None:
        self._interruption = interruption
        self._cluster = cluster
        given = properties(options)
        self._servers = str(given["bootstrap.servers"])
        self._config = {k: v for k, v in given.items() if k not in _SET_BY_US}
        self._options = options
        self._deleted = deleted
        self._progress = Progress(quiet=options.quiet)

    def replay(self, kept: KeptDirectory) -> bool:
        """Produce one directory; True: every record is in the log, or skipped on request."""
        run = _Run(
            kept, self._deleted, self._progress, self._interruption, self._options.skip_damaged
        )
        partitions = kept.leftovers.partitions.items()
        topics = {str(of.topic) for tp, of in partitions if tp not in self._deleted}
        sizes = [topic_batch_bytes(self._cluster, topic) for topic in topics]
        settings = ProducerSettings(
            idempotence=True,
            # No batch exceeds its topic's limit: a record over the limit is refused alone.
            batch_bytes=min(filter(None, sizes), default=1),
            max_message_bytes=BROKER_DECIDES_BYTES,
            connect_timeout_ms=0,
        )
        try:
            with Producer(
                bootstrap_servers=self._servers, settings=settings, config=self._config
            ) as producer:
                run.produce_all(producer)
        except ValueError as error:
            raise CommandError(str(error)) from error
        except DriftlogError as error:
            run.fail(f"{kept.path}: {error}")
        finally:
            self._progress.clear()
            kept.done.save()
        self._summarize(run)
        if not (run.reasons or run.left or self._interruption.asked):
            kept.remove()
        return not run.reasons

    def _summarize(self, run: "_Run") -> None:
        path = run.kept.path
        more = len(run.reasons) - SAID_FAILURES
        if more > 0:
            complain(f"and {more:,} more")
        if run.untimed:
            complain(
                f"{plural(run.untimed, 'record')} had no timestamp, or 1970-01-01T00:00:00Z, "
                "which librdkafka cannot send: they got the current time"
            )
        text = f"{path}: {plural(run.written, 'record')} replayed"
        if run.before:
            text += f", {run.before:,} were before"
        if self._interruption.asked:
            text += "; interrupted: the same command continues with the others"
        if run.lost:
            text += (
                f"; {plural(run.lost, 'record')} given up: they are in no batch that can be read"
            )
        if run.left:
            topics = ", ".join(sorted({self._deleted[tp][0] for tp in run.left}))
            text += (
                f"; {plural(sum(run.left.values()), 'record')} of deleted topics ({topics}"
                ") stay in the directory: remove it when they are not needed"
            )
        if run.failed:
            text += (
                f"; {plural(run.failed, 'record')} not replayed: they stay in the "
                "directory.  Repair what the reasons name (such as the topic's "
                "max.message.bytes) and run the command again"
            )
        if run.reasons or not self._options.quiet:
            complain(text)


class _Run:
    """The replay of one directory."""

    def __init__(
        self,
        kept: KeptDirectory,
        deleted: Mapping[TopicPartition, tuple[str, str]],
        progress: Progress,
        interruption: _Interruption,
        skip_damaged: bool,
    ) -> None:
        self._interruption = interruption
        self._skip_damaged = skip_damaged
        self.kept = kept
        self.written = 0
        self.before = 0
        """Records that an earlier run has replayed."""
        self.failed = 0
        self.lost = 0
        """Records that are in no whole batch that can be decoded, with --skip-damaged."""
        self.untimed = 0
        self.reasons: list[str] = []
        self.left: Counter[TopicPartition] = Counter()
        """Records of deleted topics."""
        self._deleted = deleted
        self._progress = progress
        self._saved = time.monotonic()
        self._timed_out = False
        """The cluster accepts no records: the rest is left for the next run."""

    def produce_all(self, producer: "Producer[Any, Any]") -> None:
        """Every file; returns when each record is acknowledged or has failed."""
        for path in sorted(self.kept.path.glob("*.buf")):
            data = path.read_bytes()
            passed_over = PassedOver()
            batches = list(whole_batches(data, int(path.stem), passed_over))
            is_damaged = not batches or passed_over.entries or passed_over.torn
            if is_damaged and not self._skip_damaged:
                self.fail(
                    f"{path} is damaged: nothing of it is produced.  Restore it; or give "
                    "--skip-damaged, which produces its whole batches and gives up the others",
                    0,
                )
                continue
            file, first = f"{path.name} {crc32c.crc32c(data):08x}", 0
            for entry, header in batches:
                if self._stops:
                    break
                first += self._produce(producer, file, first, entry, header)
            self._flush(producer)
            if self._stops:
                return
        self._account()

    @property
    def _stops(self) -> bool:
        return self._timed_out or self._interruption.asked

    def _flush(self, producer: "Producer[Any, Any]") -> None:
        """Wait for each acknowledgement, and note those that come meanwhile."""
        waits = True
        while waits:
            try:
                producer.flush(_SAVE_S)
                waits = False
            except FlushTimeoutError:
                pass
            self._save()

    def _account(self) -> None:
        """Compare what the files had with what the agent has set aside."""
        all_records = self.kept.leftovers.records
        found = self.written + self.before + self.failed + self.left.total()
        lost = max(0, all_records - found)
        if self._skip_damaged:
            self.lost = lost
        elif lost:
            self.fail(
                f"{self.kept.path}: {lost:,} of {plural(all_records, 'record')} are in no whole "
                "file.  Restore the files; or give --skip-damaged, which gives up what is missing",
                lost,
            )

    def _produce(
        self,
        producer: "Producer[Any, Any]",
        file: str,
        first: int,
        entry: Entry,
        header: BatchHeader,
    ) -> int:
        """Produce one batch, whose records are the file's from *first* on; returns their number."""
        tp = TopicPartition(entry.topic_id, entry.partition)
        of = self.kept.leftovers.partitions[tp]
        count = header.record_count
        if tp in self._deleted:
            self.left[tp] += count
            return count
        name = f"{of.topic}-{tp.partition}"
        try:
            records = _records(entry, header)
        except CorruptError as error:
            why = f"{name}, offset {header.base_offset}: {error}"
            if self._skip_damaged:
                self._say(f"{why}; {plural(count, 'record')} given up")
            else:
                self.fail(f"{why}.  --skip-damaged gives this batch up", count)
            return count
        for n, record in enumerate(records, first):
            if self.kept.done.has(file, n):
                self.before += 1
                continue
            timestamp = _timestamp(header, record)
            self.untimed += timestamp is None
            place = _Place(file, n, name, header.base_offset + record.offset_delta)
            producer.produce(
                str(of.topic),
                record.value,
                record.key,
                partition=tp.partition,
                timestamp=timestamp,
                headers=record.headers or None,
                on_delivery=partial(self._delivered, place),
            )
        if self._progress.due():
            total = self.kept.leftovers.records
            self._progress.show(
                f"{self.written + self.before:,} of {plural(total, 'record')} replayed"
            )
        return count

    def _delivered(self, place: _Place, error: DeliveryError | None, _: object) -> None:
        if error is None:
            self.written += 1
            self.kept.done.add(place.file, place.record)
            if time.monotonic() - self._saved >= _SAVE_S:
                self._save()
            return
        (failure,) = error.failures
        self._timed_out |= failure.code in _TIMED_OUT
        unknown = ", but may have been written" if failure.outcome_unknown else ""
        self.fail(
            f"{place.partition}, offset {place.offset}: not acknowledged{unknown}: "
            f"{failure.reason}.  {failure.advice}"
        )

    def fail(self, why: str, count: int = 1) -> None:
        """Say why *count* records are not replayed."""
        self.failed += count
        self.reasons.append(why)
        if len(self.reasons) <= SAID_FAILURES:
            self._say(why)

    def _say(self, why: str) -> None:
        self._progress.clear()
        complain(why)

    def _save(self) -> None:
        self.kept.done.save()
        self._saved = time.monotonic()


def _records(entry: Entry, header: BatchHeader) -> list[Record]:
    """
    Raises:
        CorruptRecordsError: the batch cannot be decoded.
    """
    section = decompress(header.codec, entry.batch[HEADER_BYTES:], BatchLimits().decompressed_bytes)
    return list(iterate_records(section, header.record_count))


def _timestamp(header: BatchHeader, record: Record) -> int | None:
    """The record's timestamp in ms; None: it has none that can be sent."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    else:
        timestamp = header.base_timestamp + record.timestamp_delta
    return timestamp if timestamp > 0 else None
