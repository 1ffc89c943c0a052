"""Writes segments for the leaders of other agents.

    request, batches ──▶ our cluster, session, secret? ──▶ room? ──▶ `range_segments` ──▶ reference

This session need not know the partition: the object has a name of its own, and only the leader's
edit makes it part of the log.  But a segment that no leader asked for is there all the same: jobs
and a restore list the bucket.  So the request repeats the session's secret.

Shell.
"""

from collections.abc import AsyncIterator

from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.segments.segment_request import (
    RemoteError,
    SegmentRequest,
    StrangerError,
)
from driftlog_agents.log.segments.write_turns import WriteTurns
from driftlog_agents.log.session.session import Session
from driftlog_tiering.formats.manifest_codec import encode_segments
from driftlog_tiering.foundation.types import Buffer


class SegmentService:
    """See the module.

    Args:
        session: of the agent that writes.
        turns: of the agent.
    """

    def __init__(self, segments: RangeSegments, session: Session, turns: WriteTurns) -> None:
        self._segments = segments
        self._session = session
        self.turns = turns

    async def write(self, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]) -> bytes:
        """The answer to *request*, whose batches are *chunks*.

        Raises:
            BusyError: too many ranges are written already.
            RemoteError: the request is to another session, or of another cluster.
            StrangerError: it does not repeat the session's secret.
            UndecodableError: the leader has to write the range itself.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk failed.
            What *chunks* raises.
        """
        ours = self._session.author.cluster_id
        if request.cluster_id != ours:
            raise RemoteError(
                f"the request is of cluster {request.cluster_id}; this agent is of {ours}"
            )
        if request.session_id != self._session.session_id:
            raise RemoteError(
                f"the request is to session {request.session_id}, and this is "
                f"{self._session.session_id}: two agents have one address, or it has restarted"
            )
        if not request.proves(self._session.secret):
            raise StrangerError(
                "the request lacks the session's secret, which agents of the cluster read in its "
                "metadata store: an agent of an older build, or a stranger"
            )
        with self.turns.turn():
            return encode_segments([await self._segments.write_one(request.named, chunks)])
