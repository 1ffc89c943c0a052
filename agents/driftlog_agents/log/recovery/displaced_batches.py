"""Selects the batches of a directory that are set aside: what `DIR/kept/{session_id}` will contain.

    whole entries that were acknowledged with acks=1, of partitions in `Directory.files`
        ──▶ SET_ASIDE: into a buffer file of the same number, and counted in the note
        ──▶ DELETED: counted ──▶ IN_LOG: no action

Pure.
"""

from collections.abc import Iterator, Mapping

from driftlog_agents.log.local.buffer_format import (
    Entry,
    encode_entry_header,
    encode_file_header,
    whole_batches,
)
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.leftover_batches import LED_ELSEWHERE, Directory
from driftlog_agents.log.recovery.verdict import BufferedBatch, CommittedLog, Verdict, judge
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import BatchHeader


class DisplacedBatches:
    """See the module; one attempt to decide about a directory.

    Args:
        logs: what is committed of the directory's undecided partitions.
    """

    def __init__(self, directory: Directory, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._directory = directory
        self._logs = logs
        self._learned: set[PartitionLog] = set()
        """Logs whose manifests were read."""
        self._salt = int(directory.session_id[:16], 16)
        self.kept = Leftovers(directory.session_id)
        """What is set aside."""
        self.deleted: dict[TopicPartition, int] = {}
        """Numbers of records that are dropped as deleted."""

    def promised(self, number: int, data: bytes) -> Iterator[tuple[Entry, BatchHeader]]:
        """The batches of a file about which this decides; *data*: the content of the file."""
        wanted = self._directory.files[number]
        for entry, header in whole_batches(data, number):  # `recovery` logs the others
            if entry.acks_one and TopicPartition(entry.topic_id, entry.partition) in wanted:
                yield entry, header

    def needs_epochs(self, entry: Entry, header: BatchHeader) -> PartitionLog | None:
        """The log whose manifest must be read before the batch is decided; it is asked for once."""
        log = self._logs[TopicPartition(entry.topic_id, entry.partition)]
        tail_tells = header.base_offset >= log.sealed_end or (
            log.epochs and log.epochs[0][0] <= header.partition_leader_epoch
        )
        if tail_tells or log in self._learned:
            return None
        self._learned.add(log)
        return log

    def decide(self, entry: Entry, header: BatchHeader) -> list[bytes | memoryview]:
        """The parts of the entry in the file that is set aside; empty: it is not."""
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._logs[tp]
        batch = BufferedBatch(header.partition_leader_epoch, header.base_offset, acks_one=True)
        committed = CommittedLog(log.epochs, log.log_start, log.log_end)
        match judge(batch, committed, continues=False):
            case Verdict.SET_ASIDE:
                self._count(tp, header, log.topic)
                size = len(entry.batch)
                head = encode_entry_header(self._salt, tp.topic_id.bytes, tp.partition, size, True)
                return [head, entry.batch]
            case Verdict.DELETED:
                self.deleted[tp] = self.deleted.get(tp, 0) + header.record_count
            case _:
                pass
        return []

    def file_header(self, number: int) -> bytes:
        """The begin of file *number* that is set aside."""
        return encode_file_header(self._salt, number)

    @property
    def deleted_names(self) -> list[str]:
        """The partitions with deleted records, in order."""
        return sorted(f"{self._logs[tp].topic}-{tp.partition}" for tp in self.deleted)

    def _count(self, tp: TopicPartition, header: BatchHeader, topic: str) -> None:
        of = self.kept.partitions.get(tp)
        if of is None:
            noted = self._directory.note.partitions.get(tp)
            reason = LED_ELSEWHERE if noted is None else noted.reason
            of = self.kept.partitions[tp] = PartitionLeftovers(reason, topic)
        of.first_offsets.setdefault(header.partition_leader_epoch, header.base_offset)
        of.batches += 1
        of.records += header.record_count
        of.size_bytes += header.size_bytes
