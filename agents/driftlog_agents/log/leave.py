"""Ends a session that leaves: the others take its partitions, and nothing is lost.

    announce ──▶ the others read what they will need ──▶ stop claiming ──▶ retire all partitions
        ──▶ drain ──▶ release ──▶ remove the session's directory
              ╳ a store fails: batches of acks=1 stay on this disk for the next start

Offline partitions are not released: the next session on this disk then appends their buffered
batches at the same offsets.  (If another agent claims one after this session, its batches are set
aside.)  So are partitions whose claims are retained.

Shell.
"""

import asyncio
from collections.abc import Callable

import structlog

from driftlog_agents.log.drain import drained
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.leadership.partition_claims import PartitionClaims
from driftlog_agents.log.own_disk import OwnDisk
from driftlog_agents.log.partition.partition import State
from driftlog_agents.log.partition.topic_logs import LedTopics


class SessionLeave:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        settings: EngineSettings,
        claims: PartitionClaims,
        assignments: PartitionAssignments,
        handover: Handover,
        flusher: Flusher,
        own_disk: OwnDisk,
        topics: LedTopics,
        now_ms: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._claims = claims
        self._assignments = assignments
        self._handover = handover
        self._flusher = flusher
        self._own_disk = own_disk
        self._topics = topics
        self._now_ms = now_ms
        self._log = structlog.get_logger()

    async def announce(self) -> None:
        """Announces the leave, and waits for the others' warm-up, if there are others.

        Raises:
            FencedError: the session is over.
        """
        try:
            async with asyncio.timeout(self._settings.session.request_deadline_ms / 1000):
                if not await self._claims.leave():
                    return
        except TimeoutError:
            return  # they see it when the session is over
        await asyncio.sleep(self._settings.leadership.warm_up_ms / 1000)

    async def release(self) -> None:
        """Flushes, releases every partition for good, and removes the session's directory; nothing
        claims or hands over any more.

        Raises:
            FencedError: the session is over.
        """
        waiting = [log for log in self._topics.logs() if log.state is State.OFFLINE]
        self._handover.retire_all(self._topics.logs())
        settings, outage = self._settings, self._flusher.outage
        if not await drained(
            self._flusher, settings.drain_ms, settings.drain_failing_ms, self._now_ms
        ):
            self._log.warning(
                "drain_incomplete",
                bytes=self._flusher.pending_bytes,
                error=outage.error if outage.since_ms is not None else "the store is slow",
                advice="records acknowledged with acks=1 stay in DIR/buffer, and the next start on "
                "DIR appends them; acks=all records were not acknowledged, and are sent again",
            )
            return
        await self._handover.release([log for log in self._topics.logs() if log not in waiting])
        if not (waiting or self._assignments.retained_claims()):
            await self._own_disk.remove_own()
