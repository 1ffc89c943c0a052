"""The disk of this agent at the begin of a session: what earlier sessions left there is taken over.

    create this session's directory ──▶ claim the partitions of the old ones ──▶ append their
        leftovers ──▶ remove each old directory once its batches are committed or set aside

No other batch is admitted before the leftovers are appended (`recovery/recovery`).

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.recovery.displaced_records import DisplacedRecords
from driftlog_agents.log.recovery.recovery import Recovery, unreadable
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session_ports import Ports
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=0.2)


class OwnDisk:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        ports: Ports,
        session: Session,
        flusher: Flusher,
        takeover: Takeover,
        loader: MetadataLoader,
    ) -> None:
        self._ports = ports
        self._session = session
        self._flusher = flusher
        self._takeover = takeover
        self._loader = loader
        self._taken = Taken()
        self._recovery: Recovery | None = None
        self._log = structlog.get_logger()

    async def create_directory(self) -> None:
        """Creates the session's directory; repeats that while the disk fails.

        Raises:
            FencedError: the session ended first.
        """

        async def failed(error: Exception) -> None:
            if not self._session.alive:
                raise FencedError("the session ended before its directory was created") from error
            self._log.warning("session_directory_failed", error=str(error), advice="retrying")

        await _RETRY.run(partial(self._ports.disk.create_session, self._session.session_id), failed)

    async def old_sessions(self) -> list[str]:
        """The other sessions that have directories on this disk; waits while the disk fails."""
        while True:
            try:
                found = self._ports.disk.sessions()
            except UnavailableError as error:
                unreadable(self._ports.counters, error)
                await asyncio.sleep(_RETRY.wait_s)
            else:
                return [
                    session_id for session_id in found if session_id != self._session.session_id
                ]

    async def claim(self, old_sessions: list[str]) -> Taken:
        """Claims the partitions that *old_sessions* led.

        Raises:
            FencedError: the session ended first; perhaps in a group.
        """
        self._taken = await self._takeover.own(old_sessions, self._ports.now_ms())
        return self._taken

    async def append_leftovers(self) -> int:
        """Appends the batches of the old sessions to the claimed partitions; returns how many.

        Raises:
            FencedError: the session ended first.
        """
        ports = self._ports
        self._recovery = Recovery(
            disk=ports.disk,
            flusher=self._flusher,
            taken=self._taken,
            takeover=self._takeover,
            loader=self._loader,
            displaced=DisplacedRecords(
                disk=ports.disk,
                session=self._session,
                takeover=self._takeover,
                loader=self._loader,
                unknown_keys=ports.unknown_keys,
                counters=ports.counters,
                now_ms=ports.now_ms,
                wall_ms=ports.wall_ms,
            ),
            counters=ports.counters,
            now_ms=ports.now_ms,
        )
        await self._recovery.append_leftovers(self._taken.old_sessions)
        return self._recovery.batches

    async def append_later(self, taken: Taken) -> None:
        """Appends the buffered batches of claimed partitions that could not be read at the start.

        Raises:
            FencedError: the session is over.
        """
        if self._recovery is not None:
            await self._recovery.append_later(taken)

    async def remove_directories(self, retains_claim: Callable[[TopicPartition], bool]) -> None:
        """Deletes each old directory once its batches are committed or set aside; see
        `Recovery.remove_directories`.

        Raises:
            FencedError: the session ended first.
        """
        assert self._recovery is not None, "leftovers are appended first"
        await self._recovery.remove_directories(retains_claim)

    def remove_own(self) -> Awaitable[None]:
        """Deletes the session's directory: every batch of it is committed, or kept elsewhere."""
        return self._ports.disk.remove_session(self._session.session_id)

    def buffering(self, tp: TopicPartition) -> set[str]:
        """Dead sessions whose batches of *tp* are on this disk."""
        return self._taken.buffering(tp)
