"""Writes the keys of led partitions, one write at a time for each partition.

    sealing ── sealed end, manifest version ──┐
                                              ├──▶ one txn: leader key and partition key are as
    deletion of records ── log start ─────────┘    last known ──▶ noted in the log

Each write replaces the result of the one before, so two concurrent writes would refuse each other.

Shell.
"""

from collections.abc import Callable

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.log.leadership.claims import require_both
from driftlog_agents.log.leadership.taken_partitions import state_of
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.transactions import session_transactions as transactions


class PartitionKeys:
    """Writes the keys of the partitions that one session leads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._writing = KeyedLock[PartitionLog]()

    async def write(
        self, log: PartitionLog, change: Callable[[PartitionState], PartitionState]
    ) -> PartitionState:
        """Stores the partition's state after *change*, notes it in *log* except the sealed end, and
        returns it.

        A caller that is cancelled here cannot know which state is stored, and must not write again.

        Raises:
            FencedError: the partition is led elsewhere, or the session ended first.
            UnavailableError: it is not led here any more, or its key has another value.
            MissingKeyError: one of its keys is gone, though its topic exists.
        """
        async with self._writing.of(log):
            state = change(state_of(log))
            log.partition_revision = await self._write(log, state)
            log.manifest_version = state.manifest_version
            log.sessions = state.sessions
            log.log_start = state.log_start
        return state

    async def _write(self, log: PartitionLog, state: PartitionState) -> int:
        """Writes the key; returns its new revision."""
        name = f"{log.topic}-{log.partition}"
        tp = TopicPartition(log.topic_id, log.partition)
        txn = transactions.write_state(tp, log.leader_revision, log.partition_revision, state)
        result = await self._session.transact(txn)
        if result.succeeded:
            return result.revision
        leader, current = result.reads
        if log.state is State.CLOSED or not (leader or current):
            # The topic was deleted during this write, perhaps by another agent, whose change this
            # agent has not seen yet; no session is lost.
            raise UnavailableError(f"{name} is not led here any more")
        require_both(tp, leader[0] if leader else None, current[0] if current else None)
        if leader[0].mod_revision != log.leader_revision:
            raise FencedError(f"{name} is led elsewhere")
        if decode_partition_state(current[0].value) != state:
            raise UnavailableError(f"{name}: its key has changed: try again")
        return current[0].mod_revision  # an earlier try of this write, its answer lost
