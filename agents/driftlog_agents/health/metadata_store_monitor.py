"""Checks that the metadata store is still the one that this process has seen.

    every 10 s: the cluster's key and the session's head, linearizably ──▶ witness ──evidence──▶
    the collector, before it deletes ────────────────────────────────────────▲  ERROR, once a minute

Without this check, an agent that commits nothing would not notice that its store went back.

Shell.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from driftlog_metadata.schema.keys import CLUSTER_KEY, head_key
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Get
from driftlog_metadata.witness.witness import Evidence
from driftlog_metadata.witness.witnessed_store import WitnessedStore

_LOOK_S: Final = 10.0
"""Longer: an idle agent notices it later; shorter: more small reads from every agent."""

_DEADLINE_S: Final = 10.0
_REPEAT_S: Final = 60.0
"""Interval of the log line."""

_ADVICE: Final = (
    "restore the metadata store that this cluster had, and restart every agent; if its newest "
    "data are gone, stop every agent and restore the cluster from its bucket: driftlog restore"
)


class MetadataStoreMonitor:
    """See the module.  `run` while the process lives."""

    def __init__(self, store: WitnessedStore) -> None:
        self._store = store
        self._witness = store.witness
        self._evidence = asyncio.Event()
        self._witness.when_evident(self._evidence.set)
        self._log = structlog.get_logger()

    @property
    def evidence(self) -> Evidence | None:
        """The evidence that the store is not the known one; None: no evidence."""
        return self._witness.evidence

    async def confirm(self) -> None:
        """Check now that the store is the known one.

        Raises:
            FencedError: it is not.
            UnavailableError, OutcomeUnknownError, TimeoutError: it did not answer.
        """
        try:
            await self._ask()
        finally:
            self._witness.check()

    async def run(self) -> None:
        """Check until there is evidence, then log it until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look())
            await self._evidence.wait()
            looking.cancel()
        while True:
            self._say()
            await asyncio.sleep(_REPEAT_S)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            # The session reports an unavailable store, and `run` logs evidence.
            with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):
                await self._ask()

    async def _ask(self) -> None:
        own = self._witness.head_there
        committed = 0 if own is None else own.committed  # before the request: commits continue
        reads = [Get(CLUSTER_KEY)]
        if own is not None:
            reads.append(Get(head_key(own.session_id)))
        async with asyncio.timeout(_DEADLINE_S):
            result = await self._store.txn((), reads)
        self._witness.read_cluster(result.reads[0])
        if own is not None:
            # An unreadable head exists; its count is unknown, so it is no evidence.
            with contextlib.suppress(CorruptError):
                self._witness.read_head(result.reads[1], own, committed)

    def _say(self) -> None:
        evidence = self._witness.evidence
        assert evidence is not None
        self._log.error(
            evidence.event,
            reason=evidence.reason,
            revision_seen=evidence.revision_seen,
            revision_found=evidence.revision_found,
            means="records acknowledged since that backup may be missing from it; this agent leads "
            "nothing, claims nothing, commits nothing and deletes nothing until it is restarted",
            advice=_ADVICE,
        )
