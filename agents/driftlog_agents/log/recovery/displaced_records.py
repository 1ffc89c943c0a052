"""Sets records aside on the agent's disk whose place in the log is taken.

    directory with such records, or with undecided ones
        ──▶ the committed log of their partitions (`Takeover.look`) ──▶ `verdict` of each batch
        ──▶ DIR/kept/{session_id}: buffer files with those batches, and `leftovers.json`
        ──▶ metric, log line ──▶ DIR/buffer/{session_id} is removed

acks=1 guarantees only that this disk has a record: if another agent leads before the disk is back,
the record is in no log, and the disk still has it.  The agent never produces such records by
itself.  An operator runs ``driftlog buffer replay DIR``, which produces them at new offsets.

Records of deleted topics are dropped, like the topics' other records.  Records below log start are
dropped as well if nothing tells whether the log had them (`Verdict.DELETED`); they are logged and
counted.  All other undecided records wait, and their directory stays in DIR/buffer.

**An agent never deletes records that are set aside**, and they do not count towards
`BufferSettings.disk_bytes`: that bounds committed files, and these are the only copies.
`driftlog_buffer_directories_set_aside` shows the number of directories; replay removes each one
that it has produced.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.buffer_format import encode_entry_header, encode_file_header, entries
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.verdict import BufferedBatch, CommittedLog, Verdict, judge
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import TOPICS_PREFIX, parse_topic_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, CorruptBatchError, check_batch

_PAUSE_S: Final = (0.5, 30.0)
"""First and longest wait before undecided directories are tried again."""
_SAID_S: Final = 60.0
"""Time between two log lines about undecided directories."""
_PATIENCE_S: Final = 10.0
"""Time before the first of these log lines."""
_BREATHE_BYTES: Final = 1024 * 1024
"""The event loop runs after so many bytes."""


@dataclass(slots=True, eq=False)
class Directory:
    """The directory of an old session; not all of its batches are in the log."""

    note: Leftovers
    changed: bool = False
    """The note differs from the one on the disk."""
    files: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Files with batches that were acknowledged with acks=1 and may have no place, and the
    partitions of these batches."""

    @property
    def session_id(self) -> str:
        return self.note.session_id

    @property
    def undecided(self) -> set[TopicPartition]:
        """Partitions with batches that are, or may have to be, set aside."""
        return {tp for tps in self.files.values() for tp in tps}

    def has_noted(self, tp: TopicPartition, batch: BufferedBatch) -> bool:
        """Whether the note excludes the batch from its old offset."""
        of = self.note.partitions.get(tp)
        return of is not None and of.covers(batch.leader_epoch, batch.base_offset)

    def note_down(self, tp: TopicPartition, batch: BufferedBatch, reason: str) -> None:
        """Excludes the batch and later ones of its leader epoch from their old offsets."""
        if not self.has_noted(tp, batch):
            of = self.note.partitions.setdefault(tp, PartitionLeftovers(reason))
            of.first_offsets[batch.leader_epoch] = batch.base_offset
            self.changed = True

    def drop(self, tps: set[TopicPartition]) -> None:
        """Excludes *tps* from what is set aside."""
        for number in list(self.files):
            self.files[number] -= tps
            if not self.files[number]:
                del self.files[number]


@dataclass(slots=True, eq=False)
class _Decision:
    """One attempt to decide about a directory."""

    logs: Mapping[TopicPartition, PartitionLog]
    kept: Leftovers
    """What is set aside."""
    learned: set[PartitionLog] = field(default_factory=set)
    """Logs whose manifests were read."""
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    """Numbers of records that are dropped as deleted."""


class DisplacedRecords:
    """See the module."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        session: Session,
        takeover: Takeover,
        loader: MetadataLoader,
        strangers: UnknownKeys,
        counters: LogCounters,
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._session = session
        self._takeover = takeover
        self._loader = loader
        self._strangers = strangers
        self._counters = counters
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._log = structlog.get_logger()
        self._said_ms = 0.0

    async def set_aside(self, directories: Sequence[Directory]) -> AsyncIterator[Directory]:
        """Decides about *directories*; yields each one when its displaced records are set aside on
        the disk.

        Raises:
            FencedError: the session ended first.
        """
        waiting = list(directories)
        self._said_ms = self._now_ms() - (_SAID_S - _PATIENCE_S) * 1000
        pause_s, longest_s = _PAUSE_S
        while waiting:
            reasons: dict[str, str] = {}
            for directory in list(waiting):
                reason = await self._try(directory)
                if reason:
                    reasons[directory.session_id] = reason
                else:
                    waiting.remove(directory)
                    yield directory
            if waiting:
                self._say(waiting, reasons)
                await asyncio.sleep(pause_s)
                pause_s = min(longest_s, pause_s * 2)

    def _say(self, waiting: list[Directory], reasons: Mapping[str, str]) -> None:
        now_ms = self._now_ms()
        if now_ms - self._said_ms < _SAID_S * 1000:
            return
        self._said_ms = now_ms
        for directory in waiting:
            self._log.warning(
                "leftovers_delayed",
                session=directory.session_id,
                partitions=len(directory.undecided),
                reason=reasons[directory.session_id],
                advice="retrying; it is not known yet whether the log has these records: they stay "
                "in DIR/buffer",
            )

    async def _try(self, directory: Directory) -> str:
        """Tries once to decide; returns why the directory waits; empty: it is decided."""
        try:
            logs, unknown = await self._takeover.look(directory.undecided, self._now_ms())
            if unknown:
                gone = await self._gone(unknown)
                self._drop(directory, gone)
                waits = {tp: why for tp, why in unknown.items() if tp not in gone}
                if waits:
                    tp = min(waits)
                    return f"{tp}: {waits[tp]}"
            await self._keep(directory, logs)
        except (UnavailableError, CorruptError, ObjectUnavailableError) as error:
            return str(error)
        return ""

    async def _gone(self, unknown: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """Partitions whose topics were deleted: their topics are absent from a read that begins
        now.

        Raises:
            CorruptError: a topic's key cannot be read, and may be that of any of them.
        """
        kvs = await self._session.read_prefix(TOPICS_PREFIX)
        topics = self._strangers.decoded(kvs, decode_topic, parse_topic_key)
        there = {topic.topic_id for topic in topics}
        return {tp for tp in unknown if tp.topic_id not in there}

    def _drop(self, directory: Directory, gone: set[TopicPartition]) -> None:
        directory.drop(gone)
        for topic_id in sorted({tp.topic_id for tp in gone}):
            self._log.info(
                "leftovers_dropped",
                session=directory.session_id,
                topic_id=str(topic_id),
                partitions=sum(tp.topic_id == topic_id for tp in gone),
                reason="the topic was deleted",
            )

    # ── Setting records aside ──

    async def _keep(
        self, directory: Directory, logs: Mapping[TopicPartition, PartitionLog]
    ) -> None:
        session_id = directory.session_id
        kept = Leftovers(session_id)
        decision = _Decision(logs, kept)
        for number in sorted(directory.files):
            data = await self._disk.read_file(session_id, number)
            buffers = await self._select(directory, number, data, decision)
            if not buffers:
                continue
            if kept.set_aside_at_ms is None:
                kept.set_aside_at_ms = self._wall_ms()
                await self._disk.create_kept(session_id)
            await self._disk.write_kept(session_id, number, b"".join(buffers))
        if kept.set_aside_at_ms is not None:
            where = await self._disk.finish_kept(session_id, kept.encode())
            self._say_set_aside(kept, where)
        if decision.deleted:
            self._say_deleted(session_id, decision)

    def _say_set_aside(self, kept: Leftovers, where: str) -> None:
        self._counters.buffer_set_aside_records += kept.records
        self._counters.buffer_set_aside_bytes += kept.size_bytes
        names = sorted(f"{of.topic}-{tp.partition}" for tp, of in kept.partitions.items())
        self._log.warning(
            "records_set_aside",
            session=kept.session_id,
            records=kept.records,
            size_bytes=kept.size_bytes,
            partitions=len(names),
            first=names[0],
            reasons=sorted({of.reason for of in kept.partitions.values()}),
            directory=where,
            advice="this agent acknowledged these records with acks=1, but no log has them: "
            f"`driftlog buffer replay {where}` produces them at new offsets",
        )

    def _say_deleted(self, session_id: str, decision: _Decision) -> None:
        records = sum(decision.deleted.values())
        self._counters.buffer_deleted_records += records
        names = sorted(f"{decision.logs[tp].topic}-{tp.partition}" for tp in decision.deleted)
        self._log.warning(
            "leftovers_deleted",
            session=session_id,
            records=records,
            partitions=len(names),
            first=names[0],
            reason="the records are below log start, and the log no longer has the leader epochs "
            "that tell whether it had them before",
            advice="no action needed; this agent acknowledged them with acks=1 and drops them, as "
            "all other records at their offsets are deleted",
        )

    async def _select(
        self,
        directory: Directory,
        number: int,
        data: bytes,
        decision: _Decision,
    ) -> list[bytes | memoryview]:
        """The content of a buffer file with the displaced batches of one file; empty: there are
        none."""
        salt = int(directory.session_id[:16], 16)
        buffers: list[bytes | memoryview] = []
        since = 0
        for entry in entries(data, number):
            tp = TopicPartition(entry.topic_id, entry.partition)
            if not entry.acks_one or tp not in directory.files[number]:
                continue
            try:
                header = check_batch(entry.batch, from_client=False)
            except CorruptBatchError:
                continue  # torn or damaged: `recovery` logs it
            log = decision.logs[tp]
            verdict = await self._judge(header, log, decision.learned)
            if verdict is Verdict.SET_ASIDE:
                if not buffers:
                    buffers.append(encode_file_header(salt, number))
                topic_id = tp.topic_id.bytes
                buffers.append(
                    encode_entry_header(salt, topic_id, tp.partition, len(entry.batch), True)
                )
                buffers.append(entry.batch)
                self._count(directory, decision.kept, tp, header, log.topic)
            elif verdict is Verdict.DELETED:
                deleted = decision.deleted.get(tp, 0)
                decision.deleted[tp] = deleted + header.record_count
            since += len(entry.batch)
            if since >= _BREATHE_BYTES:
                since = 0
                await asyncio.sleep(0)
        return buffers

    async def _judge(
        self, header: BatchHeader, log: PartitionLog, learned: set[PartitionLog]
    ) -> Verdict:
        epoch, offset = header.partition_leader_epoch, header.base_offset
        tail_tells = offset >= log.sealed_end or (log.epochs and log.epochs[0][0] <= epoch)
        if not tail_tells and log not in learned:
            await self._loader.learn_epochs(log)
            learned.add(log)
        batch = BufferedBatch(epoch, offset, acks_one=True)
        committed = CommittedLog(log.epochs, log.log_start, log.log_end)
        return judge(batch, committed, continues=False)

    def _count(
        self,
        directory: Directory,
        kept: Leftovers,
        tp: TopicPartition,
        header: BatchHeader,
        topic: str,
    ) -> None:
        of = kept.partitions.get(tp)
        if of is None:
            reason = directory.note.partitions[tp].reason
            of = kept.partitions[tp] = PartitionLeftovers(reason, topic)
        of.first_offsets.setdefault(header.partition_leader_epoch, header.base_offset)
        of.batches += 1
        of.records += header.record_count
        of.size_bytes += header.size_bytes
