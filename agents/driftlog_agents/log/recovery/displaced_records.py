"""Records whose place in the log is taken, set aside on the agent's disk.

    directory with such records, or records of which nobody here can tell
        ──▶ what is committed of their partitions (`Takeover.look`) ──▶ `verdict` of each batch
        ──▶ DIR/kept/{session_id}: buffer files with those batches, and `leftovers.json`
        ──▶ metric, log line ──▶ DIR/buffer/{session_id} goes

acks=1 says that this disk has a record, and no more: where another agent leads before the disk is
back, the record is in no log, and the disk still has it.  The agent produces nothing by itself.
``driftlog buffer replay DIR`` produces what is set aside, at new offsets, when an operator says so.

Records of topics that were deleted are dropped, as the topics' others were.  Everything else that
is not decided waits, and its directory stays in DIR/buffer.

**Nothing that is set aside is ever deleted by an agent**, and it does not count towards
`BufferSettings.disk_bytes`: that bounds files that are committed, and these are the only copies.
`driftlog_buffer_directories_set_aside` shows how many there are; replay removes what it has
produced.

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
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.leftovers import Leftovers, PartitionLeftovers
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
"""First and longest wait before what waits is looked at again."""
_SAID_S: Final = 60.0
"""Between two lines that say that something waits."""
_PATIENCE_S: Final = 10.0
"""Before the first of them."""
_BREATHE_BYTES: Final = 1024 * 1024
"""Let the loop run after this much was read."""


@dataclass(slots=True, eq=False)
class Directory:
    """One of an old session, whose batches are not all in the log."""

    note: Leftovers
    changed: bool = False
    """The note is not on the disk as it is here."""
    files: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Files with batches that were answered to acks=1 and may have no place, and their
    partitions."""

    @property
    def session_id(self) -> str:
        return self.note.session_id

    @property
    def undecided(self) -> set[TopicPartition]:
        """Partitions of which something is to be set aside, or may be."""
        return {tp for tps in self.files.values() for tp in tps}

    def has_noted(self, tp: TopicPartition, batch: BufferedBatch) -> bool:
        """Whether the batch is not to be put at its old offset any more."""
        of = self.note.partitions.get(tp)
        return of is not None and of.covers(batch.leader_epoch, batch.base_offset)

    def note_down(self, tp: TopicPartition, batch: BufferedBatch, reason: str) -> None:
        """The batch is not to be put at its old offset, nor what is behind it."""
        if not self.has_noted(tp, batch):
            of = self.note.partitions.setdefault(tp, PartitionLeftovers(reason))
            of.first_offsets[batch.leader_epoch] = batch.base_offset
            self.changed = True

    def drop(self, tps: set[TopicPartition]) -> None:
        """Nothing of these is set aside."""
        for number in list(self.files):
            self.files[number] -= tps
            if not self.files[number]:
                del self.files[number]


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
        """Decide about *directories*; each is given back when the disk has what is to be kept.

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
                advice="whether these records are in the log cannot be said yet: they stay in "
                "DIR/buffer, and are looked at again",
            )

    async def _try(self, directory: Directory) -> str:
        """One attempt; why the directory waits, or an empty string: it is decided."""
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
        """Those whose topics were deleted: absent from a read that begins now.

        Raises:
            CorruptError: a topic's key cannot be read: it may be any of them.
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

    # ── What is kept ──

    async def _keep(
        self, directory: Directory, logs: Mapping[TopicPartition, PartitionLog]
    ) -> None:
        session_id = directory.session_id
        kept = Leftovers(session_id)
        learned: set[PartitionLog] = set()
        for number in sorted(directory.files):
            data = await self._disk.read_file(session_id, number)
            buffers = await self._select(directory, number, data, logs, learned, kept)
            if not buffers:
                continue
            if kept.set_aside_at_ms is None:
                kept.set_aside_at_ms = self._wall_ms()
                await self._disk.create_kept(session_id)
            await self._disk.write_kept(session_id, number, b"".join(buffers))
        if kept.set_aside_at_ms is None:
            return
        where = await self._disk.finish_kept(session_id, kept.encode())
        self._counters.buffer_set_aside_records += kept.records
        self._counters.buffer_set_aside_bytes += kept.size_bytes
        names = sorted(f"{of.topic}-{tp.partition}" for tp, of in kept.partitions.items())
        self._log.warning(
            "records_set_aside",
            session=session_id,
            records=kept.records,
            size_bytes=kept.size_bytes,
            partitions=len(names),
            first=names[0],
            reasons=sorted({of.reason for of in kept.partitions.values()}),
            directory=where,
            advice="they were acknowledged with acks=1 by this agent and are in no log: "
            f"`driftlog buffer replay {where}` produces them at new offsets",
        )

    async def _select(
        self,
        directory: Directory,
        number: int,
        data: bytes,
        logs: Mapping[TopicPartition, PartitionLog],
        learned: set[PartitionLog],
        kept: Leftovers,
    ) -> list[bytes | memoryview]:
        """A buffer file of what of a file is set aside; empty: nothing.

        *learned*: logs whose manifests were asked.
        """
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
                continue  # torn or damaged: `recovery` says so
            if await self._is_displaced(header, logs[tp], learned):
                if not buffers:
                    buffers.append(encode_file_header(salt, number))
                topic_id = tp.topic_id.bytes
                buffers.append(
                    encode_entry_header(salt, topic_id, tp.partition, len(entry.batch), True)
                )
                buffers.append(entry.batch)
                self._count(directory, kept, tp, header, logs[tp].topic)
            since += len(entry.batch)
            if since >= _BREATHE_BYTES:
                since = 0
                await asyncio.sleep(0)
        return buffers

    async def _is_displaced(
        self, header: BatchHeader, log: PartitionLog, learned: set[PartitionLog]
    ) -> bool:
        epoch, offset = header.partition_leader_epoch, header.base_offset
        tail_tells = offset >= log.sealed_end or (log.epochs and log.epochs[0][0] <= epoch)
        if not tail_tells and log not in learned:
            await self._loader.learn_epochs(log)
            learned.add(log)
        batch = BufferedBatch(epoch, offset, acks_one=True)
        verdict = judge(batch, CommittedLog(log.epochs, log.log_end), continues=False)
        return verdict is Verdict.SET_ASIDE

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
