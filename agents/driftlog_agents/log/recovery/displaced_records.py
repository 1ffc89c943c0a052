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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.buffer_format import Entry
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.leftovers import Leftovers
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.displaced_batches import DisplacedBatches
from driftlog_agents.log.recovery.leftover_batches import Directory
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import TOPICS_PREFIX, parse_topic_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader

_PAUSE_S: Final = (0.5, 30.0)
"""First and longest wait before undecided directories are tried again."""
_SAID_S: Final = 60.0
"""Time between two log lines about undecided directories."""
_PATIENCE_S: Final = 10.0
"""Time before the first of these log lines."""
_BREATHE_BYTES: Final = 1024 * 1024
"""The event loop runs after so many bytes: keep-alives must not wait for a long recovery."""


async def breathing(
    batches: Iterable[tuple[Entry, BatchHeader]],
) -> AsyncIterator[tuple[Entry, BatchHeader]]:
    """Yields *batches*; the event loop runs in between."""
    since = 0
    for entry, header in batches:
        yield entry, header
        since += len(entry.batch)
        if since >= _BREATHE_BYTES:
            since = 0
            await asyncio.sleep(0)


class DisplacedRecords:
    """See the module."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        session: Session,
        takeover: Takeover,
        loader: MetadataLoader,
        unknown_keys: UnknownKeys,
        counters: LogCounters,
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._session = session
        self._takeover = takeover
        self._loader = loader
        self._unknown_keys = unknown_keys
        self._counters = counters
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._log = structlog.get_logger()
        self._said_ms = 0.0

    async def set_aside(
        self, directories: Sequence[Directory], waits: Callable[[Directory], Awaitable[str]]
    ) -> AsyncIterator[Directory]:
        """Decides about *directories*; yields each one when its displaced records are set aside on
        the disk.  *waits*: why a directory cannot be decided now; empty: it can.

        Raises:
            FencedError: the session ended first.
        """
        waiting = list(directories)
        self._said_ms = self._now_ms() - (_SAID_S - _PATIENCE_S) * 1000
        pause_s, longest_s = _PAUSE_S
        while waiting := [directory for directory in waiting if not directory.stays]:
            reasons: dict[str, str] = {}
            for directory in list(waiting):
                reason = await waits(directory)
                if directory.stays:
                    continue
                reason = reason or await self._try(directory)
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
            if directory.stays:
                continue
            self._log.warning(
                "leftovers_delayed",
                session=directory.session_id,
                partitions=len(directory.undecided | directory.waiting),
                reason=reasons[directory.session_id],
                advice="retrying; it is not known yet whether the log has these records: they stay "
                "in DIR/buffer",
            )

    async def _try(self, directory: Directory) -> str:
        """Tries once to decide; returns why the directory waits; empty: it is decided."""
        try:
            found = await self._takeover.look(directory.undecided, self._now_ms())
            if found.unknown:
                gone = await self._gone(found.unknown)
                self._drop(directory, gone)
                waits = {tp: why for tp, why in found.unknown.items() if tp not in gone}
                if waits:
                    tp = min(waits)
                    return f"{tp}: {waits[tp]}"
            await self._keep(directory, found.logs)
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
        topics = self._unknown_keys.decoded(kvs, decode_topic, parse_topic_key)
        there = {topic.topic_id async for topic in sliced(topics)}
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
        displaced = DisplacedBatches(directory, logs)
        kept = displaced.kept
        for number in sorted(directory.files):
            buffers = await self._select(displaced, session_id, number)
            if not buffers:
                continue
            if kept.set_aside_at_ms is None:
                kept.set_aside_at_ms = self._wall_ms()
                await self._disk.create_kept(session_id)
            data = b"".join((displaced.file_header(number), *buffers))
            await self._disk.write_kept(session_id, number, data)
        if kept.set_aside_at_ms is not None:
            where = await self._disk.finish_kept(session_id, kept.encode())
            self._say_set_aside(kept, where)
        if displaced.deleted:
            self._say_deleted(session_id, displaced)

    async def _select(
        self, displaced: DisplacedBatches, session_id: str, number: int
    ) -> list[bytes | memoryview]:
        """The displaced batches of one file, as a file that is set aside holds them."""
        data = await self._disk.read_file(session_id, number)
        buffers: list[bytes | memoryview] = []
        async for entry, header in breathing(displaced.promised(number, data)):
            if (log := displaced.needs_epochs(entry, header)) is not None:
                await self._loader.learn_epochs(log)
            buffers += displaced.decide(entry, header)
        return buffers

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

    def _say_deleted(self, session_id: str, displaced: DisplacedBatches) -> None:
        records = sum(displaced.deleted.values())
        self._counters.buffer_deleted_records += records
        names = displaced.deleted_names
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
