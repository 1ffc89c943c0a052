"""Sessions that are finished for a partition go from its list.

A session is *finished* for a partition when its key was gone before the flush records were
read, and none of them holds a batch of it above the partition's sealed end:

1. It was in the list when we claimed, so its key had been created; that it is gone later says
   that it will never commit again, whatever its head says: every commit compares its key.
2. So its flush records only go, and those that were there before the read held, of this
   partition, what was sealed then; sealed ends never go back.
3. The list is written comparing leader key and partition key as our claim left them, so what is
   dropped is what we looked at.

Without this a partition that is idle gets a session per start for ever: the write of a sealed
end, which drops them too, never comes.  A session whose directory is still on this disk stays in
the lists of the partitions that go on here: see `recovery`, where a directory cannot be read.

Of a partition that is offline nothing is dropped that a session may have flushed: a record that is
missing may be put back.  Our own session goes, which this claim put into the list: a partition that
is offline admits nothing, so our session flushes nothing of it without another claim.

Pure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import unsealed_sessions
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue, TxnResult
from driftlog_metadata.transactions.session_transactions import StateWrite

_FINISHED_SESSIONS: Final = 4
"""A list is written again when so many in it are finished.  Fewer: more writes at each start;
more: larger keys.  10,000 idle partitions take 157 transactions at every fourth start."""


def shorter_lists(
    session_id: str,
    logs: Mapping[TopicPartition, PartitionLog],
    live: set[str],
    needing: Callable[[TopicPartition], set[str]],
    joined: Collection[TopicPartition],
) -> list[StateWrite]:
    """Writes of the lists that name many sessions that are finished for their partition.

    *session_id*: ours; *live*: sessions whose keys were there before the flush records were read;
    *needing*: those that stay in the partition's list, for their directories; *joined*: partitions
    whose lists did not name our session before it claimed them.
    """
    writes: list[StateWrite] = []
    for tp, log in logs.items():
        if log.state is State.OFFLINE:
            kept = tuple(s for s in log.sessions if s != session_id or tp not in joined)
            least = 1  # at a later start nothing says that it flushed nothing
        else:
            needed = live | needing(tp) | unsealed_sessions(log, log.sealed_end) | {session_id}
            kept = tuple(s for s in log.sessions if s in needed)
            least = _FINISHED_SESSIONS
        if len(log.sessions) - len(kept) >= least:
            state = PartitionState(
                sealed_end=log.sealed_end,
                manifest_version=log.manifest_version,
                log_start=log.log_start,
                sessions=kept,
            )
            writes.append(
                StateWrite(
                    tp=tp,
                    leader_revision=log.leader_revision,
                    state_revision=log.partition_revision,
                    state=state,
                )
            )
    return writes


def note_written(
    logs: Mapping[TopicPartition, PartitionLog], writes: Sequence[StateWrite], result: TxnResult
) -> None:
    """Note in *logs* what of *writes*, one transaction, is stored by its *result*.  What is not is
    left for another time: the partition is not ours any more, or its neighbour is not."""
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
            revision = current[0].mod_revision  # our own attempt, its answer lost
        log = logs[write.tp]
        log.sessions = write.state.sessions
        log.partition_revision = revision


def _says(kv: KeyValue, state: PartitionState) -> bool:
    """One that cannot be read says something else: what writes it next says that it cannot."""
    try:
        return decode_partition_state(kv.value) == state
    except CorruptError:
        return False
