"""What the keeper reads: sessions, their flush records, the footers of those, and topics.

Shell.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import (
    TOPICS_PREFIX,
    flushes_prefix,
    parse_flush_key,
    parse_topic_key,
)
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats.flush_object import Footer

_READS_AT_ONCE: Final = 4
"""Of footers: an eighth of what a takeover may read, for which clients wait."""


class FlushRecordReads:
    """See the module.  Each read may raise `FencedError`: our own session is over."""

    def __init__(self, session: Session, footers: FooterCache, strangers: UnknownKeys) -> None:
        self._session = session
        self._footers = footers
        self._strangers = strangers
        self._slots = asyncio.Semaphore(_READS_AT_ONCE)
        self._log = structlog.get_logger()

    async def named(self, prefix: str, parse: Callable[[str], str]) -> set[str]:
        """The sessions that keys under *prefix* name."""
        kvs = await self._session.read_prefix(prefix)
        found = (self._strangers.parsed(kv.key, parse) for kv in kvs)
        return {session_id for session_id in found if session_id is not None}

    async def records(self, session_id: str) -> list[KeyValue]:
        """The session's flush records, as they stand in the metadata store."""
        kvs = await self._session.read_prefix(flushes_prefix(session_id))
        return [kv for kv in kvs if self._strangers.is_ours(kv.key, parse_flush_key)]

    async def footers(
        self, records: Sequence[tuple[str, FlushRecord]]
    ) -> list[Footer | ObjectUnavailableError] | None:
        """The footer of each, or why there is none now; None: one of the records is not there any
        more."""

        async def read(key: str, record: FlushRecord) -> Footer | ObjectUnavailableError | None:
            try:
                async with self._slots:
                    return await self._footers.get(key, record)
            except ObjectUnavailableError as error:
                return error
            except RecordGoneError:
                return None  # not the group's to raise: see `ObjectRewriter.write`

        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read(key, record)) for key, record in records]
        found = [footer for each in reads if (footer := each.result()) is not None]
        return found if len(found) == len(records) else None

    async def topic_ids(self) -> set[UUID] | None:
        """Topics that are there; None: that cannot be told."""
        kvs = await self._session.read_prefix(TOPICS_PREFIX)
        try:
            topics = self._strangers.decoded(kvs, decode_topic, parse_topic_key)
        except CorruptError as error:
            self._log.error(
                "topics_unreadable",
                error=str(error),
                advice="flush records of topics that were deleted stay until that key is what it "
                "was; or upgrade the agent",
            )
            return None
        return {topic.topic_id for topic in topics}
