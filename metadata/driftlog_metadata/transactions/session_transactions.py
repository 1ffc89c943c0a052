"""Every guarded transaction of sessions, commits and leadership.

    open session ──▶ commit, commit, …          guarded by the session's key and its head
         │
         ├─▶ claim ──▶ seal, seal, … ──▶ release   guarded by the leader's and the partition's key
         │
         └─▶ over ──▶ its head: marked ──▶ deleted   guarded by the head, and the session's absence

Each builder returns a transaction; the caller sends it, repeats it and interprets the
answer (`session/session`, `leadership/takeover`, `sealing/sealer`).  All of them may be
repeated after a lost answer: a late copy finds a revision that has moved on.
They are design.md's rules, which were model-checked; every clause is needed.

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from driftlog_metadata.schema.codec import (
    encode_agent,
    encode_agent_release,
    encode_cluster,
    encode_ended_head,
    encode_flush_record,
    encode_head,
    encode_leader,
    encode_live_session,
    encode_node_id_use,
    encode_partition_state,
    encode_secret,
)
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    CLUSTER_KEY,
    agent_key,
    configs_key,
    flush_key,
    head_key,
    leader_key,
    node_id_key,
    partition_key,
    release_key,
    secret_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import (
    CLOSED,
    Agent,
    AgentRelease,
    Cluster,
    ConfigsOwner,
    EndedHead,
    FlushRecord,
    Leader,
    LiveSession,
    NodeIdUse,
    PartitionState,
    TopicPartition,
)
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    Delete,
    Get,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    ValueIs,
)


@dataclass(frozen=True, slots=True)
class Txn:
    """Arguments of `MetadataStore.txn`."""

    compares: tuple[Compare, ...]
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()


def lease_id_of(session_id: str) -> int:
    """The session's lease id, 1 ≤ id < 2^63; the session id is enough to revoke it."""
    return (int(session_id[:16], 16) >> 1) | 1


def open_session(
    agent: Agent,
    agent_revision: int,
    cluster: bytes,
    knows: AgentRelease | None = None,
    secret: str | None = None,
) -> Txn:
    """Create the fence, the head (on no lease) and the agent's keys, all at once.

    *agent_revision*: that of the agent's key as it was read, 0 if it was not there.
    *cluster*: the value of the cluster's key: no session begins in another cluster's store, nor at
    a level that the agent has not seen.  *knows*: what the agent says of itself.  *secret*: what
    requests of other agents to the session repeat; None: it takes none.
    Otherwise-reads: the session's key, to recognise an own attempt whose answer was lost;
    the agent's key; the head, which without the session's key proves that the session is over;
    the cluster's key.
    """
    session, head = session_key(agent.session_id), head_key(agent.session_id)
    lease = lease_id_of(agent.session_id)
    proof = () if secret is None else (secret,)
    return Txn(
        compares=(
            CreateRevisionIs(session, 0),
            CreateRevisionIs(head, 0),
            ModRevisionIs(agent_key(agent.node_id), agent_revision),
            ValueIs(CLUSTER_KEY, cluster),
        ),
        then=(
            Put(session, encode_live_session(LiveSession(node_id=agent.node_id)), lease),
            Put(head, encode_head(0)),
            Put(agent_key(agent.node_id), encode_agent(agent), lease),
            Put(
                release_key(agent.session_id), encode_agent_release(knows or AgentRelease()), lease
            ),
            *(Put(secret_key(agent.session_id), encode_secret(one), lease) for one in proof),
        ),
        otherwise=(Get(session), Get(agent_key(agent.node_id)), Get(head), Get(CLUSTER_KEY)),
    )


def raise_level(cluster: Cluster, revision: int, level: int, read_at_revision: int) -> Txn:
    """Raise the format level of *cluster*, whose key has *revision*, to *level*.

    *read_at_revision*: that of the read in which every live agent knew *level*.  An agent that came
    after it refuses the transaction; one that comes after the transaction finds another value of
    the cluster's key, which the opening of a session compares.
    """
    assert level > cluster.format_version
    raised = replace(cluster, format_version=level)
    return Txn(
        compares=(
            ModRevisionIs(CLUSTER_KEY, revision),
            NotWrittenSince(AGENTS_PREFIX, read_at_revision),
        ),
        then=(Put(CLUSTER_KEY, encode_cluster(raised)), Get(CLUSTER_KEY)),
    )


def report(session_id: str, session_revision: int, mod_revision: int, live: LiveSession) -> Txn:
    """Write *live* to the session's key; its fence, the key's create revision, stays.

    Otherwise-reads: the session's key.
    """
    key = session_key(session_id)
    return Txn(
        compares=(CreateRevisionIs(key, session_revision), ModRevisionIs(key, mod_revision)),
        then=(Put(key, encode_live_session(live), lease_id_of(session_id)),),
        otherwise=(Get(key),),
    )


def commit(session_id: str, session_revision: int, seq: int, record: FlushRecord) -> Txn:
    """Commit flush *seq* ≥ 1.  Otherwise-reads: the session's key, the head.

    A head ≥ *seq* means committed, whether or not the session lives; anything else
    means that the session is dead.
    """
    assert seq >= 1
    return Txn(
        compares=(
            CreateRevisionIs(session_key(session_id), session_revision),
            ValueIs(head_key(session_id), encode_head(seq - 1)),
        ),
        then=(
            Put(head_key(session_id), encode_head(seq)),
            Put(flush_key(session_id, seq), encode_flush_record(record)),
        ),
        otherwise=(Get(session_key(session_id)), Get(head_key(session_id))),
    )


def close_head(session_id: str, head_revision: int) -> Txn:
    """Make every commit of the session fail for ever, late copies too."""
    key = head_key(session_id)
    return Txn(
        compares=(ModRevisionIs(key, head_revision),),
        then=(Put(key, encode_head(CLOSED)),),
        otherwise=(Get(key),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadHead:
    """The head of a session whose key is gone, as it was read."""

    session_id: str
    revision: int
    head: int


HEADS_PER_TXN: Final = MAX_TXN_OPS // 2
"""Two compares for each head or node id."""


def mark_ended(heads: Sequence[DeadHead], ended_ms: int) -> Txn:
    """Record when the sessions of *heads* (at most `HEADS_PER_TXN`) were seen to be over.

    The values of the heads stay: they still resolve a commit without an answer.
    """
    return Txn(
        compares=_still_dead(heads),
        then=tuple(
            Put(head_key(h.session_id), encode_ended_head(EndedHead(h.head, ended_ms)))
            for h in heads
        ),
    )


def delete_heads(heads: Sequence[DeadHead]) -> Txn:
    """Delete all of *heads* (at most `HEADS_PER_TXN`), or none.

    Without its head a commit that still has no answer counts as failed, so a head is kept for
    longer than any commit waits.
    """
    return Txn(
        compares=_still_dead(heads), then=tuple(Delete(head_key(h.session_id)) for h in heads)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNodeId:
    """A node id, as its key was read."""

    node_id: int
    revision: int
    use: NodeIdUse


def mark_unused(ids: Sequence[KnownNodeId], now_ms: int) -> Txn:
    """Record since when *ids* (at most `HEADS_PER_TXN`) are unused."""
    return Txn(compares=_still_unused(ids), then=_unused_since(ids, now_ms))


def mark_used(ids: Sequence[KnownNodeId]) -> Txn:
    """Remove the marks from *ids* (at most `HEADS_PER_TXN`): live agents have them."""
    return Txn(
        compares=tuple(ModRevisionIs(node_id_key(one.node_id), one.revision) for one in ids),
        then=_unused_since(ids, None),
    )


def delete_node_ids(ids: Sequence[KnownNodeId]) -> Txn:
    """Delete all of *ids* (at most `HEADS_PER_TXN`), or none; other agents may take them then.

    The configs of a broker go with its id: an agent that takes the id has another machine.
    """
    configs = (ConfigsOwner(node_id=one.node_id) for one in ids)
    return Txn(
        compares=_still_unused(ids),
        then=(
            *(Delete(node_id_key(one.node_id)) for one in ids),
            *(Delete(configs_key(owner)) for owner in configs),
        ),
    )


def _unused_since(ids: Sequence[KnownNodeId], at_ms: int | None) -> tuple[Put, ...]:
    uses = ((one.node_id, replace(one.use, unused_since_ms=at_ms)) for one in ids)
    return tuple(Put(node_id_key(number), encode_node_id_use(use)) for number, use in uses)


def _still_unused(ids: Sequence[KnownNodeId]) -> tuple[Compare, ...]:
    assert 0 < len(ids) <= HEADS_PER_TXN
    compares: list[Compare] = []
    for one in ids:
        compares.append(ModRevisionIs(node_id_key(one.node_id), one.revision))
        compares.append(CreateRevisionIs(agent_key(one.node_id), 0))
    return tuple(compares)


def _still_dead(heads: Sequence[DeadHead]) -> tuple[Compare, ...]:
    assert 0 < len(heads) <= HEADS_PER_TXN
    compares: list[Compare] = []
    for h in heads:
        compares.append(ModRevisionIs(head_key(h.session_id), h.revision))
        compares.append(CreateRevisionIs(session_key(h.session_id), 0))
    return tuple(compares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A partition as it was read, to be led next.  Revision 0: the key is not there.

    ``same_disk``: the old leader had this agent's directory and its head is closed, so that its
    session need not be gone.
    """

    tp: TopicPartition
    leader: Leader | None
    leader_revision: int
    state: PartitionState
    state_revision: int
    same_disk: bool = False

    @property
    def epoch(self) -> int:
        """The leader epoch that this claim asks for."""
        return 0 if self.leader is None else self.leader.leader_epoch + 1

    @property
    def needs_gone(self) -> str | None:
        """The session that must be gone for this claim."""
        return None if self.leader is None or self.same_disk else self.leader.session_id

    @property
    def is_free(self) -> bool:
        """Whether no session needs to be gone for this claim."""
        return self.needs_gone is None

    def state_under(self, session_id: str) -> PartitionState:
        """The partition's state with *session_id* as its newest leader."""
        if session_id in self.state.sessions:
            return self.state
        return replace(self.state, sessions=(*self.state.sessions, session_id))


def claim(
    session_id: str,
    session_revision: int,
    claims: Sequence[Claim],
    topics: Mapping[str, int] | None = None,
    *,
    cluster: bytes,
) -> Txn:
    """Lead all of *claims* (as many as `claim_batches` says) or none.

    *topics*: create revision by topic name, of topics that must still be there.  (design.md has
    no such clause: without it a claim that comes after a deletion leaves keys behind.)
    *cluster*: as in `open_session`.
    Otherwise-reads: leader key and partition key of each claim, in order; then the key of
    *session_id*, and the cluster's.
    """
    assert claims
    compares: list[Compare] = [
        CreateRevisionIs(session_key(session_id), session_revision),
        ValueIs(CLUSTER_KEY, cluster),
    ]
    for name, revision in (topics or {}).items():
        compares.append(CreateRevisionIs(topic_key(name), revision))
    then: list[Operation] = []
    otherwise: list[Operation] = []
    for c in claims:
        compares.append(ModRevisionIs(leader_key(c.tp), c.leader_revision))
        compares.append(ModRevisionIs(partition_key(c.tp), c.state_revision))
        if c.leader is not None and c.leader.session_id is not None and not c.same_disk:
            assert c.leader.session_id != session_id
            compares.append(CreateRevisionIs(session_key(c.leader.session_id), 0))
        then.append(Put(leader_key(c.tp), encode_leader(Leader(session_id, c.epoch))))
        state = c.state_under(session_id)
        then.append(Put(partition_key(c.tp), encode_partition_state(state)))
        otherwise += [Get(leader_key(c.tp)), Get(partition_key(c.tp))]
    otherwise += [Get(session_key(session_id)), Get(CLUSTER_KEY)]
    assert len(compares) <= MAX_TXN_OPS
    return Txn(tuple(compares), tuple(then), tuple(otherwise))


_CLAIM_BYTES: Final = 500
"""Approximate size of one claim's keys and leader value, without its sessions."""


def claim_batches(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """*claims* in transactions that keep to the store's limits, also with a topic compared for
    each of them."""
    batch: list[Claim] = []
    size = 0
    for c in claims:
        sessions = sum(len(s) + 3 for s in c.state.sessions)
        one = _CLAIM_BYTES + sessions
        if batch and (len(batch) == CLAIMS_PER_TXN or size + one > MAX_TXN_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(c)
        size += one
    if batch:
        yield batch


CLAIMS_PER_TXN: Final = (MAX_TXN_OPS - 2) // 4
"""Three compares for each claim and one for its topic; one for the session, one for the cluster."""


@dataclass(frozen=True, slots=True)
class Release:
    """A partition to be released, with its leader's key as this agent wrote it."""

    tp: TopicPartition
    leader_epoch: int
    leader_revision: int


def release(releases: Sequence[Release]) -> Txn:
    """Release all of *releases* (at most `MAX_TXN_OPS`) for good, or none.

    Otherwise-reads: the leader's key of each, in order.
    """
    return Txn(
        compares=tuple(ModRevisionIs(leader_key(r.tp), r.leader_revision) for r in releases),
        then=tuple(
            Put(leader_key(r.tp), encode_leader(Leader(None, r.leader_epoch))) for r in releases
        ),
        otherwise=tuple(Get(leader_key(r.tp)) for r in releases),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWrite:
    """The next state of a partition, written by the leader that read these revisions."""

    tp: TopicPartition
    leader_revision: int
    state_revision: int
    state: PartitionState


STATES_PER_TXN: Final = MAX_TXN_OPS // 2
"""Two compares for each partition."""


def write_states(writes: Sequence[StateWrite]) -> Txn:
    """Replace the state of all partitions of *writes* (at most `STATES_PER_TXN`), or of none.

    Otherwise-reads: leader key and partition key of each, in order.
    """
    assert 0 < len(writes) <= STATES_PER_TXN
    compares: list[Compare] = []
    otherwise: list[Operation] = []
    for w in writes:
        compares.append(ModRevisionIs(leader_key(w.tp), w.leader_revision))
        compares.append(ModRevisionIs(partition_key(w.tp), w.state_revision))
        otherwise += [Get(leader_key(w.tp)), Get(partition_key(w.tp))]
    then = tuple(Put(partition_key(w.tp), encode_partition_state(w.state)) for w in writes)
    return Txn(tuple(compares), then, tuple(otherwise))


def write_state(
    tp: TopicPartition, leader_revision: int, state_revision: int, state: PartitionState
) -> Txn:
    """Replace the state of the partition (sealed end, log start …), as its leader.

    Otherwise-reads: the leader's key, the partition's key.
    """
    write = StateWrite(
        tp=tp, leader_revision=leader_revision, state_revision=state_revision, state=state
    )
    return write_states([write])
