"""Reads which objects of a session flush records name, or may still name.

    session's key and head ──▶ flush records ──▶ names (decoded off the event loop)
      (at one revision)          (at one revision, not an earlier one)

1. Only records of a session name objects of that session: its own flushes, and the consolidations
   of its records by any agent.
2. Only a commit names an object a long time after its PUT (`collector`, 2).  It compares the
   session's key, which is never created again, and the head, which only grows.  So once the key is
   gone, or the head is at or above the object's sequence number, no commit names the object.  Any
   other object may still be named.
3. Key and head are read before the records.  The record of a commit before the first read is in the
   second read, unless it was deleted since; a commit after the first read is of an object that may
   still be named.  In the other order a commit between the two reads would be in neither.

Shell.
"""

from dataclasses import dataclass

from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_flush_record, decode_head
from driftlog_metadata.schema.keys import flushes_prefix, head_key, parse_flush_key, session_key
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Offload


@dataclass(frozen=True, slots=True)
class NamedFlushObjects:
    """The named objects of one session, as they were read."""

    session_id: str
    named: frozenset[str]
    """Keys of objects."""
    head: int | None
    """Sequence number; flushes above it may still be committed; None: the session is over."""
    damage: str = ""
    """Why the names are unknown; then any object may be named: `keep` is not asked."""

    def keep(self, object_key: str) -> bool:
        """Whether the session's *object_key* is named, or may still be."""
        if object_key in self.named:
            return True
        return self.head is not None and layout.parse_flush_key(object_key).seq > self.head


async def read_names(
    reads: CollectorReads, session_id: str, unknown_keys: UnknownKeys, offload: Offload
) -> NamedFlushObjects:
    """Reads the names of *session_id*.

    Raises:
        UnavailableError, OutcomeUnknownError, TimeoutError: the metadata store.
    """
    session, head = await reads.get(session_key(session_id), head_key(session_id))
    records = await reads.prefix(flushes_prefix(session_id))
    names: NamedFlushObjects = await offload(
        _decode, session_id, session, head, records, unknown_keys
    )
    return names


def _decode(
    session_id: str,
    session: KeyValue | None,
    head: KeyValue | None,
    records: list[KeyValue],
    unknown_keys: UnknownKeys,
) -> NamedFlushObjects:
    try:
        found = unknown_keys.decoded(records, decode_flush_record, parse_flush_key)
        named = frozenset(record.object_key for record in found)
        last = None if session is None else _last_committed(head)
    except CorruptError as error:
        return NamedFlushObjects(session_id, frozenset(), None, str(error))
    return NamedFlushObjects(session_id, named, last)


def _last_committed(head: KeyValue | None) -> int:
    """The head's sequence number; -1: there is no head; then every object is kept until the
    session's key is gone, too."""
    return -1 if head is None else decode_at(head.key, head.value, decode_head)
