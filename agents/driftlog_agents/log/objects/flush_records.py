"""A flush object is not there: the records say where its batches are by now.

Partitions that are led where their flushes are kept are told of a rewrite (`consolidation/gc`).
The others find out when the old object is gone, a grace period later: the sessions that flushed
what is in the tail have other records by then, and the tail goes on with those.  What no record
names is damage, and says whoever reads it.

Shell.
"""

import asyncio
import contextlib
from typing import Final

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import FlushBatches, move
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import CorruptError

_AT_ONCE: Final = 4
"""Reads of sessions' records.  More: consumers behind a consolidation go on sooner, and commits
wait longer behind the reads."""


class MovedBatches:
    """Looks flush records up again, once at a time for a partition."""

    def __init__(
        self, *, session: Session, footers: FooterCache, strangers: UnknownKeys | None = None
    ) -> None:
        self._records = FlushRecordReads(session, footers, strangers or UnknownKeys())
        self._footers = footers
        self._looking = KeyedLock[PartitionLog]()
        self._reads = asyncio.Semaphore(_AT_ONCE)

    async def look_again(self, log: PartitionLog) -> None:
        """Let the tail of *log* read from the objects that flush records name now.

        Raises:
            FencedError: the session ended first.
        """
        async with self._looking.of(log):
            for session_id in _sessions(log):
                while not await self._look(log, session_id):
                    pass

    async def _look(self, log: PartitionLog, session_id: str) -> bool:
        """False: the records change just now."""
        records: dict[str, FlushRecord] = {}
        async with self._reads:  # and not while a footer is long in coming
            kvs = await self._records.records(session_id)
        for kv in kvs:
            # What cannot be read names nothing: who reads what it named finds nothing there.
            with contextlib.suppress(CorruptError):
                records[kv.key] = decode_flush_record(kv.value)
        named = {record.object_key for record in records.values()}
        before = _objects(log, session_id)
        if before <= named:
            return True  # nothing of it was replaced
        for key, record in records.items():
            if record.object_key in before:
                continue
            try:
                footer = await self._footers.get(key, record)
            except RecordGoneError:
                return False
            except ObjectUnavailableError:
                continue  # what needs it finds that out, and looks again later
            for s in footer.slices():
                if (s.topic_id, s.partition) == (log.topic_id, log.partition):
                    move(log, footer, s, record.object_key)
        return True


def _sessions(log: PartitionLog) -> list[str]:
    return list(dict.fromkeys(_data(tail.data).session_id for tail in log.slices))


def _objects(log: PartitionLog, session_id: str) -> set[str]:
    return {
        tail.stored_at.object_key
        for tail in log.slices
        if _data(tail.data).session_id == session_id
    }


def _data(data: object) -> FlushBatches:
    assert isinstance(data, FlushBatches)
    return data
