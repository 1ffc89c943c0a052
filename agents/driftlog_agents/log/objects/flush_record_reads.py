"""The only reader of the flush records of sessions and of their footers.

Takeovers, the garbage collection of flush records and reads of moved batches use it.

Shell.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_flush_record, decode_topic
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

_READS_AT_ONCE: Final = 32
"""Concurrent reads of footers; `footer_cache` has no more in flight anyway."""

FEW_READS_AT_ONCE: Final = 4
"""An eighth of the reads of a takeover, for which clients wait."""


@dataclass(frozen=True, slots=True)
class Footers:
    """The footers of flush records, as far as they could be read."""

    found: list[tuple[str, FlushRecord, Footer]] = field(default_factory=list)
    """Key, record and footer, in the order of the keys."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Keys of records whose footer is unavailable or whose value is damaged, and why."""


class FlushRecordReads:
    """See the module.  Each read may raise `FencedError`: this agent's session is over.

    Args:
        at_once: maximum number of concurrent reads of footers.
    """

    def __init__(
        self,
        session: Session,
        footers: FooterCache,
        unknown_keys: UnknownKeys,
        at_once: int = _READS_AT_ONCE,
    ) -> None:
        self._session = session
        self._footers = footers
        self._unknown_keys = unknown_keys
        self._slots = asyncio.Semaphore(at_once)
        self._log = structlog.get_logger()

    def drop(self, object_key: str) -> None:
        """Removes the footer of an object that no flush record names any more."""
        self._footers.drop(object_key)

    async def named(self, prefix: str, parse: Callable[[str], str]) -> set[str]:
        """The ids of the sessions that keys under *prefix* name."""
        kvs = await self._session.read_prefix(prefix)
        found = (self._unknown_keys.parsed(kv.key, parse) for kv in kvs)
        return {session_id for session_id in found if session_id is not None}

    async def records(self, session_id: str) -> list[KeyValue]:
        """The session's flush records, as the metadata store has them at one revision."""
        kvs = await self._session.read_prefix(flushes_prefix(session_id))
        return [kv for kv in kvs if self._unknown_keys.is_ours(kv.key, parse_flush_key)]

    async def footers(
        self,
        kvs: Sequence[KeyValue],
        unavailable: Mapping[str, ObjectUnavailableError] | None = None,
    ) -> Footers:
        """The footers of flush records.

        Args:
            unavailable: objects that were unavailable a moment ago, and are not requested.

        Raises:
            RecordGoneError: one of the records was deleted meanwhile: read them again.
        """
        footers = Footers()
        gone: list[RecordGoneError] = []

        async def read(key: str, record: FlushRecord) -> Footer | None:
            try:
                if unavailable and (error := unavailable.get(record.object_key)) is not None:
                    raise error
                async with self._slots:
                    return await self._footers.get(key, record)
            except ObjectUnavailableError as error:
                footers.unavailable[key] = str(error)
            except RecordGoneError as error:
                gone.append(error)  # the task group must not raise it: see `ObjectRewriter.write`
            return None

        reads: list[tuple[str, FlushRecord, Footer | asyncio.Task[Footer | None]]] = []
        async with asyncio.TaskGroup() as tasks:
            async for kv in sliced(kvs):
                try:
                    record = decode_at(kv.key, kv.value, decode_flush_record)
                except CorruptError as error:
                    footers.unavailable[kv.key] = str(error)
                    continue
                footer = self._footers.known(record)
                if footer is None:
                    reads.append((kv.key, record, tasks.create_task(read(kv.key, record))))
                else:
                    reads.append((kv.key, record, footer))
        if gone:
            raise gone[0]
        for key, record, outcome in reads:
            found = outcome.result() if isinstance(outcome, asyncio.Task) else outcome
            if found is not None:
                footers.found.append((key, record, found))
        return footers

    async def topic_ids(self) -> set[UUID] | None:
        """Ids of the topics that exist; None: a topic's key cannot be read."""
        kvs = await self._session.read_prefix(TOPICS_PREFIX)
        try:
            topics = self._unknown_keys.decoded(kvs, decode_topic, parse_topic_key)
            return {topic.topic_id async for topic in sliced(topics)}
        except CorruptError as error:
            self._log.error(
                "topics_unreadable",
                error=str(error),
                advice="restore that key, or upgrade the agent; until then flush records of "
                "deleted topics stay",
            )
            return None
