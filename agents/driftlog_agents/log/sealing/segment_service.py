"""Writes segments for the leaders of other agents.

    request, batches ──▶ the leader's cluster is ours? ──▶ room? ──▶ `range_segments` ──▶ references

A leader asks any agent with the role ``seal``.  The session that writes need not be the leader's
nor know the partition: the objects have names of their own, and only the leader's edit makes them
part of the log.

Shell.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from driftlog_agents.log.sealing.range_segments import FILLING, RangeSegments
from driftlog_agents.log.sealing.remote_segments import BusyError, RemoteError
from driftlog_agents.log.sealing.segment_request import SegmentRequest
from driftlog_agents.log.session.session import Session
from driftlog_tiering.batches.batch import BatchHeader, Buffer
from driftlog_tiering.formats.manifest_codec import encode_segments

AT_ONCE: Final = FILLING + 1
"""Ranges that are written at once: some fill a segment while another's is uploaded."""


class SegmentService:
    """See the module.

    Args:
        session: of the agent that writes.
    """

    def __init__(self, segments: RangeSegments, session: Session) -> None:
        self._segments = segments
        self._session = session
        self.at_once = AT_ONCE
        """Ranges that are written at once."""
        self.writing = 0
        """Ranges that are written now."""

    @property
    def is_full(self) -> bool:
        """Whether no other range can be written now."""
        return self.writing >= self.at_once

    async def write(self, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]) -> bytes:
        """The answer to *request*, whose batches are *chunks*.

        Raises:
            BusyError: too many ranges are written already.
            RemoteError: the leader is of another cluster.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk failed.
            What *chunks* raises.
        """
        ours = self._session.author.cluster_id
        if request.cluster_id != ours:
            raise RemoteError(
                f"the request is of cluster {request.cluster_id}; this agent is of {ours}"
            )
        headers: list[BatchHeader] = []
        with self._turn():
            return encode_segments(await self._segments.write(request.named, chunks, headers))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self.is_full:
            raise BusyError
        self.writing += 1
        try:
            yield
        finally:
            self.writing -= 1
