"""Final heads in the bucket: the last flush that each ended session has committed.

    a session is over, managed here ──its head──┐
    closed here, on its own disk ──its head─────┴──▶ flush/{session}/final-{head}

A restore from the bucket alone refutes flush objects above it: no producer was told that they are
committed.  A head above a flush that was committed would be harmless, one below would lose it: so
an object is put only for the value of a head that can never change again.

An object that cannot be put is put again at the next look, until the collector records the end of
the session (`garbage/session_head_gc`); one that exists is the same, or is newer than the metadata
store, which is an old backup then (`cluster/newer_objects`).

Shell.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from driftlog_agents.log.consolidation.known_final_heads import KnownFinalHeads, final_head
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import head_key
from driftlog_metadata.schema.model import FINAL_HEADS_LEVEL
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import FinalHead, encode_final_head
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

_TIMEOUT_S: Final = 30.0


class FinalHeads:
    """Puts the final heads that one session learns of."""

    def __init__(self, session: Session, objects: ObjectStore) -> None:
        self._session = session
        self._objects = objects
        self._known = KnownFinalHeads()
        self._log = structlog.get_logger()

    def closed(self, heads: Mapping[str, KeyValue]) -> None:
        """These sessions' heads had these values when they were closed."""
        self._known.closed(heads)

    async def put(self, ended: Collection[str]) -> None:
        """Put the final heads of the sessions that were closed here, and of *ended*, whose keys
        were gone in a read that began after their heads were read.

        Raises:
            FencedError: our own session is over, or the metadata store is an old backup.
        """
        if self._session.author.format_version < FINAL_HEADS_LEVEL:
            return
        for session_id in self._known.pending(ended):
            final = self._known.of_closed(session_id)
            if final is None:
                final = final_head(session_id, await self._session.read(head_key(session_id)))
            try:
                if final is not None:
                    async with asyncio.timeout(_TIMEOUT_S):
                        await self._session.check_newer(session_id, self._objects)
                        await self._create(final)
            except CorruptError as error:  # of this session; the store answers for others
                self._log.debug("final_head_not_put", session=session_id, error=str(error))
                continue
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                self._log.debug("final_head_not_put", session=session_id, error=str(error))
                return
            self._known.done(session_id)

    async def _create(self, final: FinalHead) -> None:
        key = layout.final_head_key(final.session_id, final.head)
        with contextlib.suppress(AlreadyExistsError):
            await self._objects.create(key, [encode_final_head(final)])
