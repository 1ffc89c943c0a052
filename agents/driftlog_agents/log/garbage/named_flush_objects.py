"""Which objects of a session flush records name, or may name yet.

    session's key and head ──▶ flush records ──▶ names (decoded off the event loop)
      (at one revision)          (at one revision, not an earlier one)

1. Only records of a session name objects of that session: its own flushes, and the consolidations
   of its records, whoever makes them.
2. A commit is the only thing that names an object a long time after its PUT (`collector`, 2).  It
   compares the session's key, which never comes back, and the head, which only grows.  So when
   the key is gone, or the head is at the object's sequence or above it, no commit names the object
   from then on.  Any other object may be named yet.
3. Key and head are read before the records.  A commit that came before the first read is in the
   second one, unless it was forgotten since; a commit that comes after it is of an object that may
   be named yet.  In the other order a commit between the two reads would be in neither.

Shell.
"""

from dataclasses import dataclass

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.garbage.metadata_reads import CollectorReads
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_flush_record, decode_head
from driftlog_metadata.schema.keys import flushes_prefix, head_key, parse_flush_key, session_key
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout


@dataclass(frozen=True, slots=True)
class NamedFlushObjects:
    """Of one session, as it was read."""

    session_id: str
    named: frozenset[str]
    """Keys of objects."""
    head: int | None
    """Flushes above it may be committed yet; None: the session is over."""
    damage: str = ""
    """Why the names cannot be told; then any object may be named."""

    def keep(self, object_key: str) -> bool:
        """Whether the session's *object_key* is named, or may be."""
        if self.damage or object_key in self.named:
            return True
        return self.head is not None and layout.parse_flush_key(object_key).seq > self.head


async def read_names(
    reads: CollectorReads, session_id: str, strangers: UnknownKeys, offload: Offload
) -> NamedFlushObjects:
    """The names of *session_id*.

    Raises:
        UnavailableError, OutcomeUnknownError, TimeoutError: the metadata store.
    """
    session, head = await reads.get(session_key(session_id), head_key(session_id))
    records = await reads.prefix(flushes_prefix(session_id))
    names: NamedFlushObjects = await offload(_decode, session_id, session, head, records, strangers)
    return names


def _decode(
    session_id: str,
    session: KeyValue | None,
    head: KeyValue | None,
    records: list[KeyValue],
    strangers: UnknownKeys,
) -> NamedFlushObjects:
    try:
        found = strangers.decoded(records, decode_flush_record, parse_flush_key)
        last = None if session is None else _last_committed(head)
    except CorruptError as error:
        return NamedFlushObjects(session_id, frozenset(), None, str(error))
    return NamedFlushObjects(session_id, frozenset(record.object_key for record in found), last)


def _last_committed(head: KeyValue | None) -> int:
    """-1: none, or no more; then all is kept until the session's key is gone, too."""
    return -1 if head is None else decode_at(head.key, head.value, decode_head)
