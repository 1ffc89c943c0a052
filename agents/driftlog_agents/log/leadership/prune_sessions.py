"""Finished sessions are removed from a partition's list of sessions.

A session is *finished* for a partition when the session's key was gone before the flush records
were read, and none of its flush records holds a batch of the partition above the sealed end:

1. It was in the list at our claim, so its key had been created.  Once the key is gone, the session
   never commits again, whatever its head contains: every commit compares the key.
2. So its flush records are only deleted.  Those deleted before the read held only sealed batches of
   this partition, and a sealed end never decreases.
3. The write of the list compares the leader key and the partition key as our claim left them, so
   the list is still the one that we checked.

Without this the list of an idle partition would grow by a session at every start: the write of a
sealed end, which removes sessions too, never happens.  A session whose directory is still on this
disk stays in the lists of the partitions that continue here: see `recovery` about directories that
cannot be read.

The list of an offline partition keeps every session that may have flushed batches: a missing flush
record may be put back.  Only our own session is removed, which this claim added: an offline
partition admits no batch, so our session flushes none without another claim.

Pure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from driftlog_agents.log.leadership.taken_partitions import state_of
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import unsealed_sessions
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue, TxnResult
from driftlog_metadata.transactions.session_transactions import StateWrite

_FINISHED_SESSIONS: Final = 4
"""A list is rewritten when it has so many finished sessions.  Fewer: more writes at each start;
more: larger keys.  10,000 idle partitions take 157 transactions at every fourth start."""


def shorter_lists(
    session_id: str,
    logs: Mapping[TopicPartition, PartitionLog],
    live: set[str],
    needing: Callable[[TopicPartition], set[str]],
    joined: Collection[TopicPartition],
) -> list[StateWrite]:
    """The writes that shorten lists with many finished sessions.

    *session_id*: ours; *live*: sessions whose keys existed before the flush records were read;
    *needing*: sessions that stay in the partition's list; *joined*: partitions whose lists did not
    name our session before its claim.
    """
    writes: list[StateWrite] = []
    for tp, log in logs.items():
        if log.state is State.OFFLINE:
            kept = tuple(s for s in log.sessions if s != session_id or tp not in joined)
            least = 1  # at a later start it is unknown that it flushed nothing
        else:
            needed = live | needing(tp) | unsealed_sessions(log, log.sealed_end) | {session_id}
            kept = tuple(s for s in log.sessions if s in needed)
            least = _FINISHED_SESSIONS
        if len(log.sessions) - len(kept) >= least:
            writes.append(
                StateWrite(
                    tp=tp,
                    leader_revision=log.leader_revision,
                    state_revision=log.partition_revision,
                    state=replace(state_of(log), sessions=kept),
                )
            )
    return writes


def note_written(
    logs: Mapping[TopicPartition, PartitionLog], writes: Sequence[StateWrite], result: TxnResult
) -> None:
    """Notes in *logs* which of *writes*, one transaction, its *result* stored.  The others are left
    for a later takeover: this partition, or another one of the transaction, is not ours any
    more."""
    for i, write in enumerate(writes):
        revision = result.revision
        if not result.succeeded:
            leader, current = result.reads[2 * i : 2 * i + 2]
            if (
                not leader
                or leader[0].mod_revision != write.leader_revision
                or not current
                or not _says(current[0], write.state)
            ):
                continue
            revision = current[0].mod_revision  # an earlier try of this write, its answer lost
        log = logs[write.tp]
        log.sessions = write.state.sessions
        log.partition_revision = revision


def _says(kv: KeyValue, state: PartitionState) -> bool:
    """Whether *kv* holds *state*.  An unreadable key does not; its next write raises the error."""
    try:
        return decode_partition_state(kv.value) == state
    except CorruptError:
        return False
