"""Finds batches whose flush object is gone: flush records name the object that has them now.

If the agent that rewrites flush objects leads the partition, it updates the tail itself
(`consolidation/gc`).  Other leaders find out when the old object is gone, a grace period later: the
sessions that flushed the tail have other records by then, and the tail is read from those.  A batch
that no record names is damage, which its reader reports.

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
from driftlog_agents.log.partition.tail import move, session_of
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import CorruptError

_AT_ONCE: Final = 4
"""Concurrent reads of sessions' records.  More: consumers behind a consolidation resume sooner, and
commits wait longer behind the reads."""


class MovedBatches:
    """Reads flush records again, one read at a time for each partition."""

    def __init__(
        self, *, session: Session, footers: FooterCache, unknown_keys: UnknownKeys | None = None
    ) -> None:
        self._records = FlushRecordReads(session, footers, unknown_keys or UnknownKeys())
        self._footers = footers
        self._looking = KeyedLock[PartitionLog]()
        self._reads = asyncio.Semaphore(_AT_ONCE)

    async def look_again(self, log: PartitionLog) -> None:
        """Updates the tail of *log* to the objects that flush records name now.

        Raises:
            FencedError: the session ended first.
        """
        async with self._looking.of(log):
            for session_id in dict.fromkeys(map(session_of, log.slices)):
                while not await self._look(log, session_id):
                    pass

    async def _look(self, log: PartitionLog, session_id: str) -> bool:
        """Updates the batches of one session; False: its records changed meanwhile."""
        records: dict[str, FlushRecord] = {}
        async with self._reads:  # but not during a slow read of a footer
            kvs = await self._records.records(session_id)
        for kv in kvs:
            # An unreadable record is skipped: a reader of its batches then gets the error.
            with contextlib.suppress(CorruptError):
                records[kv.key] = decode_flush_record(kv.value)
        named = {record.object_key for record in records.values()}
        before = _objects(log, session_id)
        if before <= named:
            return True  # no object was replaced
        for key, record in records.items():
            if record.object_key in before:
                continue
            try:
                footer = await self._footers.get(key, record)
            except RecordGoneError:
                return False
            except ObjectUnavailableError:
                continue  # a reader of it gets the error, and tries again later
            for s in footer.slices():
                if (s.topic_id, s.partition) == (log.topic_id, log.partition):
                    move(log, footer, s, record.object_key)
        return True


def _objects(log: PartitionLog, session_id: str) -> set[str]:
    return {tail.stored_at.object_key for tail in log.slices if session_of(tail) == session_id}
