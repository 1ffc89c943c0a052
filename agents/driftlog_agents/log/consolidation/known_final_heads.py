"""Which final heads are put into the bucket, and of which value.

    closed here, with its value ──┐
    over, its head read ──────────┴──▶ pending ──put──▶ done

1. Only the value of a head that can never change again is final: of a head that was closed here,
   the last one; of a session that is over, the one that was read after its key was gone.
2. A head that the collector has marked is put already, hours ago, and may be deleted again.
3. The collector logs a head that cannot be read.

Pure.
"""

from collections.abc import Collection, Mapping

from driftlog_metadata.schema.codec import decode_ended_head, decode_head
from driftlog_metadata.schema.model import CLOSED
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats.bucket_files import FinalHead


class KnownFinalHeads:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._closed: dict[str, FinalHead] = {}
        """Heads that were closed here: the metadata store has their numbers no more."""
        self._done: set[str] = set()

    def closed(self, heads: Mapping[str, KeyValue]) -> None:
        """These sessions' heads had these values when they were closed."""
        for session_id, kv in heads.items():
            final = _final(session_id, kv)
            if final is not None:
                self._closed[session_id] = final

    def pending(self, ended: Collection[str]) -> list[str]:
        """The sessions whose final heads are not put: those that were closed here, and *ended*."""
        return sorted({*self._closed, *ended} - self._done)

    def of_closed(self, session_id: str) -> FinalHead | None:
        """The final head of a session that was closed here."""
        return self._closed.get(session_id)

    def done(self, session_id: str) -> None:
        """The session's final head is in the bucket, or it has none."""
        self._done.add(session_id)
        self._closed.pop(session_id, None)


def final_head(session_id: str, kv: KeyValue | None) -> FinalHead | None:
    """The final head of a session that is over, by a read of its head; None: there is none, or the
    bucket has it."""
    if kv is None or _is_marked(kv):
        return None
    return _final(session_id, kv)


def _is_marked(kv: KeyValue) -> bool:
    """Whether the collector has recorded the session's end."""
    try:
        return decode_ended_head(kv.value) is not None
    except CorruptError:
        return True


def _final(session_id: str, kv: KeyValue) -> FinalHead | None:
    try:
        head = decode_head(kv.value)
    except CorruptError:
        return None
    return None if head == CLOSED else FinalHead(session_id, head, kv.mod_revision)
