"""Each guarded transaction refuses what it guards against, on the simulator's store."""

from collections.abc import Awaitable
from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_metadata.schema.codec import (
    decode_agent,
    decode_flush_record,
    decode_head,
    decode_leader,
    decode_partition_state,
    decode_secret,
    encode_partition_state,
)
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    agent_key,
    flush_key,
    head_key,
    leader_key,
    partition_key,
    release_key,
    secret_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import (
    CLOSED,
    Agent,
    FlushRecord,
    Leader,
    Listener,
    PartitionState,
    TopicPartition,
)
from driftlog_metadata.stores.limits import check_txn
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Delete,
    KeyValue,
    LeaseNotFoundError,
    Put,
    TxnResult,
)
from driftlog_metadata.transactions.session_transactions import (
    CLAIMS_PER_TXN,
    Claim,
    Release,
    Txn,
    claim,
    claim_batches,
    close_head,
    commit,
    lease_id_of,
    open_session,
    release,
    write_state,
)
from tests.simulation.faults import now
from tests.support.clusters import CLUSTER, MARK
from tests.support.memory_store import MemoryMetadataStore

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
TP = TopicPartition(UUID(int=5), 3)
OTHER = TopicPartition(UUID(int=5), 4)
TTL_MS = 10_000


def record(seq: int) -> FlushRecord:
    """Of a flush."""
    return FlushRecord(object_key=f"flush/x/{seq}", size_bytes=100, footer_start=60)


class World:
    """A store, and sessions that come and go."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.store = MemoryMetadataStore(lambda: self.now_ms)
        self.fences: dict[str, int] = {}
        now(self.store.txn((), [MARK]))

    def snapshot(self) -> list[KeyValue]:
        """All keys but the cluster's."""
        return [kv for kv in self.store.snapshot() if kv.key != CLUSTER_KEY]

    async def send(self, txn: Txn) -> TxnResult:
        """One copy of a transaction."""
        return await self.store.txn(txn.compares, txn.then, txn.otherwise)

    async def begin(self, session_id: str, node_id: int = 1) -> TxnResult:
        """A session, with its lease."""
        await self.store.grant_lease(lease_id_of(session_id), TTL_MS)
        before = await self.store.get(agent_key(node_id))
        result = await self.send(
            open_session(
                agent(session_id, node_id),
                0 if before is None else before.mod_revision,
                CLUSTER,
                secret="5ec7e7",
            )
        )
        assert result.succeeded
        self.fences[session_id] = result.revision
        return result

    async def end(self, session_id: str) -> None:
        """Its lease is gone."""
        await self.store.revoke_lease(lease_id_of(session_id))

    async def commit(self, session_id: str, seq: int) -> TxnResult:
        """Its flush *seq*."""
        return await self.send(commit(session_id, self.fences[session_id], seq, record(seq)))

    async def head(self, session_id: str) -> int | None:
        """Its head."""
        kv = await self.store.get(head_key(session_id))
        return None if kv is None else decode_head(kv.value)

    async def read(self, tp: TopicPartition = TP, *, same_disk: bool = False) -> Claim:
        """A partition as it is, to be claimed."""
        leader, state = (
            await self.store.get(leader_key(tp)),
            await self.store.get(partition_key(tp)),
        )
        return Claim(
            tp=tp,
            leader=None if leader is None else decode_leader(leader.value),
            leader_revision=0 if leader is None else leader.mod_revision,
            state=PartitionState() if state is None else decode_partition_state(state.value),
            state_revision=0 if state is None else state.mod_revision,
            same_disk=same_disk,
        )

    async def claim(self, session_id: str, *claims: Claim) -> TxnResult:
        """Lead."""
        return await self.send(claim(session_id, self.fences[session_id], claims, cluster=CLUSTER))

    async def leader(self, tp: TopicPartition = TP) -> Leader | None:
        """Who leads."""
        return (await self.read(tp)).leader


def agent(session_id: str, node_id: int = 1) -> Agent:
    """An agent."""
    return Agent(
        node_id=node_id,
        session_id=session_id,
        listeners=(Listener("PLAINTEXT", "localhost", 9092),),
        http_address="localhost:9644",
        rack=None,
        started_at_ms=0,
    )


def give_up(*led: Claim) -> Txn:
    """Release partitions, as they were read."""
    return release([Release(c.tp, _epoch(c), c.leader_revision) for c in led])


def _epoch(read: Claim) -> int:
    assert read.leader is not None
    return read.leader.leader_epoch


@pytest.fixture
def world() -> World:
    """An empty store."""
    return World()


async def unchanged(world: World, answer: Awaitable[TxnResult]) -> TxnResult:
    """*answer*, for which nothing was changed."""
    before = world.snapshot()
    result = await answer
    assert not result.succeeded
    assert before == world.snapshot()
    return result


def first(reads: tuple[KeyValue, ...]) -> KeyValue | None:
    """Of a Get."""
    return reads[0] if reads else None


# ── Sessions ──


async def test_a_session_begins_with_its_fence_its_head_and_its_agent(world: World) -> None:
    """
    All at one revision; the head alone outlives the lease.
    """
    result = await world.begin(ONE, node_id=7)

    keys = {kv.key: kv for kv in world.snapshot()}
    assert set(keys) == {
        session_key(ONE),
        head_key(ONE),
        agent_key(7),
        release_key(ONE),
        secret_key(ONE),
    }
    assert {result.revision} == {kv.create_revision for kv in keys.values()}
    assert agent(ONE, 7) == decode_agent(keys[agent_key(7)].value)
    assert decode_secret(keys[secret_key(ONE)].value) == "5ec7e7"
    assert await world.head(ONE) == 0
    await world.end(ONE)
    assert [head_key(ONE)] == [kv.key for kv in world.snapshot()]


async def test_a_late_copy_of_a_session_that_lives_changes_nothing(world: World) -> None:
    """
    It reads the fence that its first copy created: the caller knows it for its own.
    """
    opened = await world.begin(ONE)
    await world.commit(ONE, 1)

    again = await unchanged(world, world.send(open_session(agent(ONE), 0, CLUSTER)))

    fence, at, head, _ = map(first, again.reads)
    assert fence is not None
    assert opened.revision == fence.create_revision
    assert at is not None
    assert head is not None
    assert 1 == decode_head(head.value)


async def test_a_session_that_is_over_does_not_begin_again(world: World) -> None:
    """
    Its lease may be granted again by a late copy: the head, which stayed, keeps the fence away.
    """
    await world.begin(ONE)
    await world.end(ONE)
    await world.store.grant_lease(lease_id_of(ONE), TTL_MS)

    again = await unchanged(world, world.send(open_session(agent(ONE), 0, CLUSTER)))

    assert [None, None, True, True] == [kv and True for kv in map(first, again.reads)]


async def test_a_session_needs_its_lease(world: World) -> None:
    """
    One that ran out before the session began: nothing is there.
    """
    with pytest.raises(LeaseNotFoundError):
        await world.send(open_session(agent(ONE), 0, CLUSTER))

    assert [] == world.snapshot()


async def test_an_agent_that_is_registered_is_not_overwritten_unseen(world: World) -> None:
    """
    The key's revision must be the one that was read; then the new session's lease has it.
    """
    await world.begin(ONE)
    await world.store.grant_lease(lease_id_of(TWO), TTL_MS)

    await unchanged(world, world.send(open_session(agent(TWO), 0, CLUSTER)))
    await world.begin(TWO)
    await world.end(ONE)

    assert (kv := await world.store.get(agent_key(1))) is not None
    assert TWO == decode_agent(kv.value).session_id


@pytest.mark.parametrize("session_id", ["0" * 32, "f" * 32, ONE, "0000000000000001" + "f" * 16])
def test_a_sessions_lease_id_is_one_that_etcd_takes(session_id: str) -> None:
    """
    1 ≤ id < 2^63, whatever the session's first digits are.
    """
    assert 1 <= lease_id_of(session_id) < 2**63


# ── Commits ──


async def test_commits_go_in_order_and_each_once(world: World) -> None:
    """
    Head and record at one revision; a gap, a repeat and a step back change nothing, and read the
    head that says what happened.
    """
    await world.begin(ONE)
    for seq in (1, 2, 3):
        assert (await world.commit(ONE, seq)).succeeded

    for seq, known in ((1, True), (3, True), (5, False)):
        result = await unchanged(world, world.commit(ONE, seq))
        fence, head = map(first, result.reads)
        assert fence is not None
        assert head is not None
        assert known == (decode_head(head.value) >= seq)
    for seq in (1, 2, 3):
        assert (kv := await world.store.get(flush_key(ONE, seq))) is not None
        assert (record(seq), 0) == (decode_flush_record(kv.value), kv.lease_id)


async def test_a_commit_after_the_session_changes_nothing(world: World) -> None:
    """
    A zombie cannot commit; what it had committed it still finds, without its fence.
    """
    await world.begin(ONE)
    await world.commit(ONE, 1)
    await world.end(ONE)

    result = await unchanged(world, world.commit(ONE, 2))
    assert first(result.reads[0]) is None
    result = await unchanged(world, world.commit(ONE, 1))
    assert (head := first(result.reads[1])) is not None
    assert decode_head(head.value) >= 1


async def test_a_fence_that_was_made_again_is_another_session(world: World) -> None:
    """
    The revision it was created at counts, not that a key of that name is there.
    """
    await world.begin(ONE)
    await world.end(ONE)
    await world.store.txn([], [Put(session_key(ONE), b"1")])

    await unchanged(world, world.commit(ONE, 1))


async def test_no_late_commit_gets_past_a_closed_head(world: World) -> None:
    """
    Its session lives on, as far as the store knows: the process on its disk is another.
    """
    await world.begin(ONE)
    await world.commit(ONE, 1)
    before = await world.store.get(head_key(ONE))
    assert before is not None

    assert (await world.send(close_head(ONE, before.mod_revision))).succeeded

    assert await world.head(ONE) == CLOSED
    for seq in (1, 2, 3):
        result = await unchanged(world, world.commit(ONE, seq))
        assert (head := first(result.reads[1])) is not None
        assert decode_head(head.value) < seq
    result = await unchanged(world, world.send(close_head(ONE, before.mod_revision)))
    assert (head := first(result.reads[0])) is not None
    assert CLOSED == decode_head(head.value)


async def test_a_head_that_moved_is_not_closed_unseen(world: World) -> None:
    """
    The commit that came between is read, and then closed behind.
    """
    await world.begin(ONE)
    stale = await world.store.get(head_key(ONE))
    assert stale is not None
    await world.commit(ONE, 1)

    result = await unchanged(world, world.send(close_head(ONE, stale.mod_revision)))

    assert (head := first(result.reads[0])) is not None
    assert 1 == decode_head(head.value)
    assert (await world.send(close_head(ONE, head.mod_revision))).succeeded


def test_sequence_numbers_begin_at_1() -> None:
    """
    0 is the head of a session that has committed nothing; below it is *closed*.
    """
    with pytest.raises(AssertionError):
        commit(ONE, 1, 0, record(0))


# ── Claims ──


async def test_a_first_claim_leads_with_epoch_0(world: World) -> None:
    """
    Leader and partition keys at one revision, on no lease.
    """
    await world.begin(ONE)

    result = await world.claim(ONE, await world.read())

    found = await world.read()
    assert (Leader(ONE, 0), (ONE,)) == (found.leader, found.state.sessions)
    assert (result.revision, result.revision) == (found.leader_revision, found.state_revision)
    await world.end(ONE)
    assert Leader(ONE, 0) == await world.leader()


async def test_a_partition_is_not_taken_from_a_session_that_lives(world: World) -> None:
    """
    Only when its key is gone, with the next epoch, and both sessions in the list.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    await world.claim(ONE, await world.read())
    wanted = await world.read()

    result = await unchanged(world, world.claim(TWO, wanted))
    assert (leader := first(result.reads[0])) is not None
    assert Leader(ONE, 0) == decode_leader(leader.value)
    await world.end(ONE)
    assert (await world.claim(TWO, wanted)).succeeded

    found = await world.read()
    assert (Leader(TWO, 1), (ONE, TWO)) == (found.leader, found.state.sessions)


async def test_a_released_partition_is_free_at_once(world: World) -> None:
    """
    Whoever released it may live; the epoch goes up all the same.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    await world.claim(ONE, await world.read())
    mine = await world.read()
    assert (await world.send(give_up(mine))).succeeded
    assert Leader(None, 0) == await world.leader()

    assert (await world.claim(TWO, await world.read())).succeeded

    assert Leader(TWO, 1) == await world.leader()


async def test_of_two_claims_one_wins(world: World) -> None:
    """
    Both read the same; the loser reads who was first.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    read = await world.read()
    await world.claim(TWO, read)

    result = await unchanged(world, world.claim(ONE, read))

    leader, state, fence, _ = map(first, result.reads)
    assert leader is not None
    assert Leader(TWO, 0) == decode_leader(leader.value)
    assert state is not None
    assert fence is not None
    assert world.fences[ONE] == fence.create_revision


async def test_a_late_copy_of_a_claim_changes_nothing(world: World) -> None:
    """
    Neither while it leads, nor after it released, nor when another leads.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    read = await world.read()
    await world.claim(ONE, read)
    await unchanged(world, world.claim(ONE, read))
    await world.send(give_up(await world.read()))
    await unchanged(world, world.claim(ONE, read))
    await world.claim(TWO, await world.read())

    await unchanged(world, world.claim(ONE, read))


async def test_a_session_that_is_over_claims_nothing(world: World) -> None:
    """
    Its fence must have the revision it was created at.
    """
    await world.begin(ONE)
    await world.end(ONE)

    await unchanged(world, world.send(claim(ONE, world.fences[ONE], [_fresh(TP)], cluster=CLUSTER)))


async def test_a_claim_needs_the_partitions_state_as_it_was_read(world: World) -> None:
    """
    A sealed end written meanwhile is not overwritten with the old one.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    await world.claim(ONE, await world.read())
    before = await world.read()
    sealed = replace(before.state, sealed_end=50, manifest_version=1)
    await world.send(write_state(TP, before.leader_revision, before.state_revision, sealed))
    await world.end(ONE)

    await unchanged(world, world.claim(TWO, before))

    await world.claim(TWO, await world.read())
    expected = PartitionState(sealed_end=50, manifest_version=1, sessions=(ONE, TWO))
    assert expected == (await world.read()).state


async def test_the_same_disk_takes_over_from_a_session_that_still_has_its_key(
    world: World,
) -> None:
    """
    Its head is closed, so it need not be gone; its revisions must still be those that were read.
    """
    await world.begin(ONE)
    await world.claim(ONE, await world.read())
    read = await world.read(same_disk=True)
    await world.begin(TWO)

    assert (await world.claim(TWO, read)).succeeded

    assert Leader(TWO, 1) == await world.leader()
    await unchanged(world, world.claim(TWO, read))


async def test_a_batch_of_claims_is_all_or_nothing(world: World) -> None:
    """
    One that is taken meanwhile spoils it; each claim's keys are read, in order.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    both = [await world.read(TP), await world.read(OTHER)]
    await world.claim(TWO, both[1])

    result = await unchanged(world, world.claim(ONE, *both))

    assert [0, 0, 1, 1, 1, 1] == [len(reads) for reads in result.reads]
    assert await world.leader(TP) is None


async def test_a_session_is_listed_once(world: World) -> None:
    """
    One that released and leads again is in the list where it was.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    for session_id in (ONE, TWO, ONE):
        await world.claim(session_id, await world.read())
        await world.send(give_up(await world.read()))

    found = await world.read()
    assert (Leader(None, 2), (ONE, TWO)) == (found.leader, found.state.sessions)


async def test_as_many_claims_as_are_said_to_fit_into_a_transaction_do(world: World) -> None:
    """
    Every one of another topic, with a leader that must be gone and a long list of sessions: within
    etcd's limits.
    """
    await world.begin(ONE)
    claims = [_long(n, sessions=50) for n in range(CLAIMS_PER_TXN)]
    topics = {f"{n:0>249}": 2**62 for n in range(CLAIMS_PER_TXN)}

    (batch,) = claim_batches(claims)
    txn = claim(ONE, world.fences[ONE], batch, topics, cluster=CLUSTER)

    check_txn(txn.compares, txn.then, txn.otherwise)
    assert MAX_TXN_OPS - 4 < len(txn.compares)
    assert not (await world.send(txn)).succeeded
    with pytest.raises(AssertionError):
        claim(
            ONE,
            world.fences[ONE],
            [*claims, _long(99, sessions=1)],
            {**topics, "t": 1},
            cluster=CLUSTER,
        )
    with pytest.raises(AssertionError):
        claim(ONE, world.fences[ONE], [], cluster=CLUSTER)


@pytest.mark.parametrize("sessions", [0, 1, 50, 1_500, 10_000, 40_000])
def test_batches_of_claims_keep_to_both_limits(sessions: int) -> None:
    """
    All claims, in their order, in transactions that etcd takes, however long the lists are; and no
    more of them than that takes.
    """
    claims = [_long(n, sessions=sessions) for n in range(3 * CLAIMS_PER_TXN + 1)]

    batches = list(claim_batches(claims))

    assert claims == [c for batch in batches for c in batch]
    sizes = [len(batch) for batch in batches]
    for batch in batches:
        topics = {f"{c.tp.partition:0>249}": 2**62 for c in batch}
        txn = claim(ONE, 5, batch, topics, cluster=CLUSTER)
        check_txn(txn.compares, txn.then, txn.otherwise)
    one = len(encode_partition_state(claims[0].state_under(ONE)))
    fitting = min(CLAIMS_PER_TXN, max(1, int(0.9 * MAX_TXN_BYTES) // (one + 500)))
    assert min(sizes[:-1]) >= fitting


def test_claims_of_nothing_are_no_transaction() -> None:
    """
    `claim` refuses an empty one.
    """
    assert [] == list(claim_batches([]))


async def test_a_claim_of_a_topic_that_is_gone_leaves_no_keys(world: World) -> None:
    """
    Deleted meanwhile, or deleted and made again under its name: the claim was of the other one.
    """
    await world.begin(ONE)
    made = await world.store.txn((), [Put(topic_key("t"), b"{}")])
    fresh = _fresh(TP)
    for change in (Delete(topic_key("t")), Put(topic_key("t"), b"{}")):
        await world.store.txn((), [change])
        stale = claim(ONE, world.fences[ONE], [fresh], {"t": made.revision}, cluster=CLUSTER)
        await unchanged(world, world.send(stale))
    now = await world.store.get(topic_key("t"))
    assert now is not None

    result = await world.send(
        claim(ONE, world.fences[ONE], [fresh], {"t": now.create_revision}, cluster=CLUSTER)
    )

    assert result.succeeded
    assert Leader(ONE, 0) == await world.leader(TP)


async def test_a_claim_does_not_mind_what_became_of_its_topics_value(world: World) -> None:
    """
    More partitions, other configs: it is the topic that was meant.
    """
    await world.begin(ONE)
    made = await world.store.txn((), [Put(topic_key("t"), b"{}")])
    await world.store.txn((), [Put(topic_key("t"), b"[]")])

    txn = claim(ONE, world.fences[ONE], [_fresh(TP)], {"t": made.revision}, cluster=CLUSTER)

    assert (await world.send(txn)).succeeded


def test_a_session_does_not_wait_for_its_own_end() -> None:
    """
    What it leads already it need not claim: that would need its own key to be gone.
    """
    mine = replace(_fresh(TP), leader=Leader(ONE, 3), leader_revision=9)

    with pytest.raises(AssertionError):
        claim(ONE, 5, [mine], cluster=CLUSTER)


def _long(number: int, *, sessions: int) -> Claim:
    """Of keys and values as long as they get."""
    return Claim(
        tp=TopicPartition(UUID(int=2**128 - 1), 2**31 - 1 - number),
        leader=Leader(TWO, 2**31 - 2),
        leader_revision=2**62,
        state=PartitionState(
            sealed_end=2**62,
            manifest_version=2**62,
            log_start=2**62,
            sessions=tuple(f"{n:032x}" for n in range(sessions)),
        ),
        state_revision=2**62,
    )


def _fresh(tp: TopicPartition) -> Claim:
    return Claim(tp=tp, leader=None, leader_revision=0, state=PartitionState(), state_revision=0)


# ── As the leader ──


async def test_a_release_of_an_earlier_leadership_changes_nothing(world: World) -> None:
    """
    A late copy finds another revision, and reads who leads.
    """
    await world.begin(ONE, 1)
    await world.begin(TWO, 2)
    await world.claim(ONE, await world.read())
    first_time = await world.read()
    await world.send(give_up(first_time))
    await unchanged(world, world.send(give_up(first_time)))
    await world.claim(TWO, await world.read())

    result = await unchanged(world, world.send(give_up(first_time)))

    assert (leader := first(result.reads[0])) is not None
    assert Leader(TWO, 1) == decode_leader(leader.value)


async def test_a_batch_of_releases_is_all_or_nothing(world: World) -> None:
    """
    One that is not led any more spoils it; each leader's key is read, in order.
    """
    await world.begin(ONE)
    await world.claim(ONE, await world.read(TP), await world.read(OTHER))
    led = [await world.read(TP), await world.read(OTHER)]
    await world.send(give_up(led[1]))

    result = await unchanged(world, world.send(give_up(*led)))

    leaders = [decode_leader(kv.value) for (kv,) in result.reads]
    assert [Leader(ONE, 0), Leader(None, 0)] == leaders
    assert (await world.send(give_up(led[0]))).succeeded


def test_as_many_releases_as_are_said_to_fit_into_a_transaction_do() -> None:
    """
    As many as etcd takes operations.
    """
    releases = [
        Release(TopicPartition(UUID(int=2**128 - 1), 2**31 - 1 - n), 2**31 - 1, 2**62)
        for n in range(MAX_TXN_OPS)
    ]

    txn = release(releases)

    check_txn(txn.compares, txn.then, txn.otherwise)


async def test_only_the_leader_writes_what_is_sealed(world: World) -> None:
    """
    One that was deposed changes nothing, though the partition's key is as it read it.
    """
    await world.begin(ONE, 1)
    await world.claim(ONE, await world.read())
    deposed = await world.read()
    await world.send(give_up(deposed))
    assert deposed.state_revision == (await world.read()).state_revision

    sealed = PartitionState(sealed_end=10, manifest_version=1, sessions=(ONE,))
    result = await unchanged(
        world,
        world.send(write_state(TP, deposed.leader_revision, deposed.state_revision, sealed)),
    )

    assert (leader := first(result.reads[0])) is not None
    assert Leader(None, 0) == decode_leader(leader.value)


async def test_a_late_copy_of_a_sealed_end_does_not_undo_a_later_one(world: World) -> None:
    """
    Same leader, two writes: the first again finds that the partition's key has moved on.
    """
    await world.begin(ONE)
    await world.claim(ONE, await world.read())
    at = await world.read()
    one = write_state(
        TP, at.leader_revision, at.state_revision, PartitionState(sealed_end=10, sessions=(ONE,))
    )
    assert (await world.send(one)).succeeded
    at = await world.read()
    newest = PartitionState(sealed_end=20, sessions=(ONE,))
    assert (
        await world.send(write_state(TP, at.leader_revision, at.state_revision, newest))
    ).succeeded

    result = await unchanged(world, world.send(one))

    assert (state := first(result.reads[1])) is not None
    assert newest == decode_partition_state(state.value)
