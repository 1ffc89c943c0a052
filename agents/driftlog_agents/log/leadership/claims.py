"""A partition's two keys as they were read, and the claim that may be made of them.

    leader key   partition key
       ─             ─          nobody has led it: a fresh partition
       ●             ●          epoch and sealed end, as they say
       ●  xor        ●          damage: `MissingKeyError`; the partition is not claimed

Both keys are made by the first claim, in one transaction, and deleted with their topic, in one
transaction.  So one without the other was lost: without the leader key epochs would begin again,
and without the partition key offsets would.

Pure.
"""

from driftlog_metadata.schema.codec import decode_at, decode_leader, decode_partition_state
from driftlog_metadata.schema.keys import leader_key, partition_key
from driftlog_metadata.schema.model import Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import Claim


class MissingKeyError(CorruptError):
    """One of a partition's two keys is gone: what it said is not known."""

    def __init__(self, missing: str, there: str) -> None:
        super().__init__(
            f"{missing} is missing, and {there} is there: put it back (from a backup of the "
            f"metadata store), or see `driftlog partitions accept-loss`"
        )


def require_both(tp: TopicPartition, leader_kv: KeyValue | None, state_kv: KeyValue | None) -> None:
    """
    Raises:
        MissingKeyError: exactly one of the partition's keys is there.
    """
    if leader_kv is None and state_kv is not None:
        raise MissingKeyError(leader_key(tp), state_kv.key)
    if state_kv is None and leader_kv is not None:
        raise MissingKeyError(partition_key(tp), leader_kv.key)


def as_claim(
    tp: TopicPartition,
    leader_kv: KeyValue | None,
    state_kv: KeyValue | None,
    old_sessions: frozenset[str],
) -> Claim:
    """What may be claimed of *tp*; *old_sessions*: dead ones whose directories are ours.

    Raises:
        MissingKeyError: one of the keys is not there.
        CorruptError: one of them cannot be read.
    """
    assert leader_kv is None or leader_kv.key == leader_key(tp)
    assert state_kv is None or state_kv.key == partition_key(tp)
    require_both(tp, leader_kv, state_kv)
    leader: Leader | None = None
    if leader_kv is not None:
        leader = decode_at(leader_kv.key, leader_kv.value, decode_leader)
    state = PartitionState()
    if state_kv is not None:
        state = decode_at(state_kv.key, state_kv.value, decode_partition_state)
    return Claim(
        tp=tp,
        leader=leader,
        leader_revision=leader_kv.mod_revision if leader_kv else 0,
        state=state,
        state_revision=state_kv.mod_revision if state_kv else 0,
        same_disk=leader is not None and leader.session_id in old_sessions,
    )
