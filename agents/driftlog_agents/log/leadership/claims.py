"""The two keys of each partition as they were read, and the claims that they allow.

    leader key   partition key
       ─             ─          never led: a fresh partition
       ●             ●          epoch and sealed end, as stored
       ●  xor        ●          damage: `MissingKeyError`; the partition is not claimed

The first claim creates both keys in one transaction; the deletion of the topic deletes both in one
transaction.  So if one key is missing, it was lost: without the leader key the epochs would
restart, and without the partition key the offsets would.

    keys, live sessions ──▶ ClaimPlan ──▶ one transaction for many claims ──holds──▶ claimed
                              │ ▲                │ does not
        a leader key names ◀──┘ │                ▼
        this session: release   └───────── RefusedClaims: which of them are claimed after all, and
        it first                           what is there now

A claim is repeated until it is answered.  So a key that names this session with the requested epoch
is an earlier try of the same claim whose answer was lost.  A key that names this session before any
request is a claim that was cancelled without an answer: no record was written under it, and it is
released.  But the claim of an unreadable partition is *retained* if buffered batches of it are on
this disk: the next claim replaces it, and no other session leads in between.

Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from driftlog_metadata.schema.codec import decode_at, decode_leader, decode_partition_state
from driftlog_metadata.schema.keys import leader_key, partition_key
from driftlog_metadata.schema.model import Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import Claim, Release

_DAMAGED_KEY: Final = (
    "restore that key (from a backup of the metadata store), or upgrade the agent if a later "
    "release wrote it; `driftlog partitions accept-loss` repairs a missing, not an unreadable key"
)


class MissingKeyError(CorruptError):
    """One of a partition's two keys is missing: its content is unknown."""

    def __init__(self, missing: str, there: str) -> None:
        super().__init__(
            f"{missing} is missing, but {there} exists: if `driftlog restore` left the partition "
            "offline, put back the object that it named, and run it again; else restore the key "
            "(from a backup of the metadata store), or see `driftlog partitions accept-loss`"
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
    """The claim that the keys of *tp* allow; *old_sessions*: dead sessions of this agent's disk.

    Raises:
        MissingKeyError: exactly one of the keys is there.
        CorruptError: one of the keys cannot be read.
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


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The actions for the wanted partitions, by the content of their keys."""

    claims: list[Claim] = field(default_factory=list)
    strays: list[Release] = field(default_factory=list)
    """Claims of this session that were cancelled without an answer."""
    refused: list[TopicPartition] = field(default_factory=list)
    """Partitions that a live session leads; and strays, until they are released."""
    damaged: dict[TopicPartition, CorruptError] = field(default_factory=dict)


def read_apart(
    wanted: Iterable[TopicPartition], keys: Mapping[str, KeyValue]
) -> list[TopicPartition]:
    """Those of *wanted* of which *keys* has one key only.  Leader keys and partition keys were read
    at two revisions: another agent may have made both in between."""
    return [tp for tp in wanted if (leader_key(tp) in keys) != (partition_key(tp) in keys)]


def plan_claims(
    wanted: Iterable[TopicPartition],
    keys: Mapping[str, KeyValue],
    live: Collection[str],
    session_id: str,
    old_sessions: frozenset[str],
    retained: Collection[TopicPartition] = (),
) -> ClaimPlan:
    """Plans claims of *wanted*.  *keys*: their existing keys; *live*: sessions whose keys exist;
    *retained*: partitions of which this session retains its claim."""
    plan = ClaimPlan()
    for tp in wanted:
        leader_kv, state_kv = keys.get(leader_key(tp)), keys.get(partition_key(tp))
        try:
            own = {session_id} if tp in retained else set()
            claim = as_claim(tp, leader_kv, state_kv, old_sessions | own)
        except CorruptError as error:
            plan.damaged[tp] = error
            continue
        leader = claim.leader
        if leader is not None and leader.session_id == session_id and not claim.same_disk:
            plan.strays.append(Release(tp, leader.leader_epoch, claim.leader_revision))
            plan.refused.append(tp)
        elif claim.needs_gone in live:
            plan.refused.append(tp)
        else:
            plan.claims.append(claim)
    return plan


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim in the metadata store, and the revisions of its keys."""

    claim: Claim
    leader_revision: int
    state_revision: int


@dataclass(slots=True)
class RefusedClaims:
    """The claims of one refused transaction, by the keys' present content."""

    stored: list[StoredClaim] = field(default_factory=list)
    """Claims that an earlier try of the same transaction stored; its answer was lost."""
    left: list[Claim] = field(default_factory=list)
    """Claims by the present keys."""
    damaged: dict[TopicPartition, CorruptError] = field(default_factory=dict)
    changed: bool = False
    """Whether a key differs from its claim.  If none does, the same transaction is refused again:
    the session of a leader lives, or a topic is gone."""

    @property
    def asks_live(self) -> bool:
        """Whether the next claims depend on which sessions live."""
        return self.changed and not all(claim.is_free for claim in self.left)

    def again(self, live: Collection[str]) -> tuple[list[list[Claim]], list[TopicPartition]]:
        """The next transactions, and the partitions that remain refused.

        Agents that start together claim the same partitions: the later agent loses those that are
        led by then, and claims the others of the batch together again.  One that is refused alone,
        by unchanged keys, stays refused.
        """
        if self.changed:
            left = [claim for claim in self.left if claim.needs_gone not in live]
            return [left] if left else [], [c.tp for c in self.left if c.needs_gone in live]
        if len(self.left) > 1:
            return [[claim] for claim in self.left], []
        return [], [claim.tp for claim in self.left]


def judge_refused(
    claims: Sequence[Claim],
    reads: Sequence[Sequence[KeyValue]],
    session_id: str,
    old_sessions: frozenset[str],
    retained: Collection[TopicPartition] = (),
) -> RefusedClaims:
    """Sorts refused *claims*.  *reads*: leader key and partition key of each, in order; *retained*:
    as in `plan_claims`."""
    found = RefusedClaims()
    for claim, leader_kvs, state_kvs in zip(claims, reads[::2], reads[1::2], strict=True):
        leader_kv = leader_kvs[0] if leader_kvs else None
        state_kv = state_kvs[0] if state_kvs else None
        try:
            own = {session_id} if claim.tp in retained else set()
            now = as_claim(claim.tp, leader_kv, state_kv, old_sessions | own)
        except CorruptError as error:
            found.damaged[claim.tp] = error
            continue
        leader = now.leader
        mine = leader if leader is not None and leader.session_id == session_id else None
        if mine is not None and mine.leader_epoch == claim.epoch:
            found.stored.append(StoredClaim(claim, now.leader_revision, now.state_revision))
            found.changed = True
        else:
            assert mine is None or now == claim, "another claim of this session"
            found.left.append(now)
            found.changed |= now != claim
    return found


def way_out(error: CorruptError) -> str:
    """The advice for the operator about a partition that *error* keeps from being claimed."""
    return str(error) if isinstance(error, MissingKeyError) else f"{error}; {_DAMAGED_KEY}"
