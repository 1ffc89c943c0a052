"""Claims and releases partitions in the metadata store, as `claims` plans them.

    leader and partition keys, live sessions ──▶ plan ──▶ strays are released ──▶ one transaction
        for many claims ──refused──▶ the same again for the rest, by the present keys

Shell.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.leadership.claims import (
    StoredClaim,
    judge_refused,
    plan_claims,
    read_apart,
    way_out,
)
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.partition.partition import PartitionLog, PolicyKeys
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_leader
from driftlog_metadata.schema.keys import (
    LEADERS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    configs_key,
    leader_key,
    parse_leader_key,
    parse_session_key,
    partition_key,
    topic_key,
)
from driftlog_metadata.schema.model import ConfigsOwner, Leader, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import MAX_TXN_OPS, Get, KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import Claim, claim_batches

_TXNS_AT_ONCE: Final = 4
"""Reads and claims in flight.  More: thousands of partitions are led sooner, and the commits of
other agents wait longer behind them."""

_PLANNED: Final = 100
"""Claims that are planned in one slice: 0.6 ms."""

_READ_ALL: Final = 2_000
"""For more partitions, all keys of the cluster are read instead of single ones."""


class ClaimTransactions:
    """See the module; for one session.  Each method may raise `FencedError`, perhaps in a group:
    the session is over.

    Args:
        topics: every known topic, by id.
    """

    def __init__(
        self, session: Session, topics: Mapping[UUID, TopicEntry], unknown_keys: UnknownKeys
    ) -> None:
        self._session = session
        self._topics = topics
        self._unknown_keys = unknown_keys
        self._told: set[str] = set()
        """Errors of unreadable keys that are logged already."""
        self._log = structlog.get_logger()

    async def led_by(self, sessions: frozenset[str]) -> list[TopicPartition]:
        """The partitions whose leader keys name one of *sessions*."""
        return [
            tp
            for kv in await self._session.read_prefix(LEADERS_PREFIX)
            if (leader := self._leader(kv)) is not None
            and leader.session_id in sessions
            and (tp := self._unknown_keys.parsed(kv.key, parse_leader_key)) is not None
        ]

    def _leader(self, kv: KeyValue) -> Leader | None:
        try:
            return decode_at(kv.key, kv.value, decode_leader)
        except CorruptError as error:
            if self._unknown_keys.is_ours(kv.key, parse_leader_key):
                self._say_damaged(error)
            return None

    def _say_damaged(self, error: CorruptError) -> None:
        if str(error) in self._told:
            return  # the claim is retried several times a second
        self._told.add(str(error))
        self._log.error(
            "partition_not_claimed",
            error=str(error),
            advice="restore that key, or upgrade the agent if a later release wrote it; until "
            "then the partition has no leader",
        )

    def _refuse_damaged(self, taken: Taken, damaged: Mapping[TopicPartition, CorruptError]) -> None:
        for tp, error in damaged.items():
            self._say_damaged(error)
            taken.damaged[tp] = way_out(error)

    async def claim_all(
        self, taken: Taken, wanted: Collection[TopicPartition], old_sessions: frozenset[str]
    ) -> None:
        """Claims those of *wanted* that no live session leads, into *taken*."""
        wanted = [tp for tp in wanted if tp.topic_id in self._topics]
        keys = await self.read_keys(wanted)
        live = await self.live()
        mine = self._session.session_id
        plans = [
            plan_claims(
                wanted[at : at + _PLANNED], keys, live, mine, old_sessions, taken.retained_before
            )
            async for at in sliced(range(0, len(wanted), _PLANNED))
        ]
        for plan in plans:
            self._refuse_damaged(taken, plan.damaged)
            taken.refused.update(plan.refused)
        await release(self._session, [stray for plan in plans for stray in plan.strays])
        limit = asyncio.Semaphore(_TXNS_AT_ONCE)

        async def limited(batch: list[Claim]) -> None:
            async with limit:
                await self._claim(taken, batch, old_sessions)

        async with asyncio.TaskGroup() as tasks:
            for batch in claim_batches([claim for plan in plans for claim in plan.claims]):
                tasks.create_task(limited(batch))

    async def read_keys(self, wanted: Sequence[TopicPartition]) -> dict[str, KeyValue]:
        """Leader keys and partition keys of *wanted*; if one of a partition's is missing, both were
        read at one revision."""
        found: dict[str, KeyValue] = {}
        if len(wanted) > _READ_ALL:
            leaders = await self._session.read_prefix(LEADERS_PREFIX)
            states = await self._session.read_prefix(PARTITIONS_PREFIX)
            found = {kv.key: kv for kv in (*leaders, *states)}
            wanted = read_apart(wanted, found)
            for tp in wanted:
                found.pop(leader_key(tp), None)
                found.pop(partition_key(tp), None)
        limit = asyncio.Semaphore(_TXNS_AT_ONCE)

        async def read(some: Sequence[TopicPartition]) -> None:
            gets = tuple(Get(key(tp)) for tp in some for key in (leader_key, partition_key))
            async with limit:
                result = await self._session.transact(transactions.Txn((), gets))
            found.update((kv.key, kv) for kvs in result.reads for kv in kvs)

        async with asyncio.TaskGroup() as tasks:
            for at in range(0, len(wanted), MAX_TXN_OPS // 2):
                tasks.create_task(read(wanted[at : at + MAX_TXN_OPS // 2]))
        return found

    async def read_policy_keys(self, logs: Collection[PartitionLog]) -> None:
        """Sets `PartitionLog.policy_keys` of *logs*, which are claimed."""
        owners = ConfigsOwner(), ConfigsOwner(node_id=self._session.node_id)
        keys = [configs_key(owner) for owner in owners]
        names = sorted({log.topic for log in logs})
        most = MAX_TXN_OPS - len(keys)
        found: dict[str, PolicyKeys] = {}
        for at in range(0, len(names), most):
            some = names[at : at + most]
            gets = tuple(map(Get, (*keys, *map(topic_key, some))))
            result = await self._session.transact(transactions.Txn((), gets))
            revisions = [kvs[0].mod_revision if kvs else 0 for kvs in result.reads]
            configs = tuple(zip(keys, revisions, strict=False))
            for name, revision in zip(some, revisions[len(keys) :], strict=True):
                found[name] = PolicyKeys(result.revision, revision, configs)
        for log in logs:
            log.policy_keys = found[log.topic]

    async def live(self) -> set[str]:
        """Sessions whose keys exist."""
        kvs = await self._session.read_prefix(SESSIONS_PREFIX)
        found = (self._unknown_keys.parsed(kv.key, parse_session_key) for kv in kvs)
        return {session_id for session_id in found if session_id is not None}

    async def _claim(self, taken: Taken, claims: list[Claim], old_sessions: frozenset[str]) -> None:
        """Claims in one transaction; if it is refused, claims the rest by the present keys."""
        session = self._session
        entries = [self._topics.get(claim.tp.topic_id) for claim in claims]
        topics = {e.topic.name: e.create_revision for e in entries if e is not None}
        if len(topics) < len({claim.tp.topic_id for claim in claims}):
            taken.refused.update(claim.tp for claim in claims)  # a topic was deleted just now
            return
        result = await session.transact(
            transactions.claim(
                session.session_id, session.revision, claims, topics, cluster=session.cluster
            )
        )
        if result.succeeded:
            for claim in claims:
                taken.add(StoredClaim(claim, result.revision, result.revision), session.session_id)
            return
        *reads, own, cluster = result.reads
        session.check_cluster(cluster)
        if not own or own[0].create_revision != session.revision:
            raise FencedError("the session ended while it claimed its partitions")
        mine = session.session_id
        found = judge_refused(claims, reads, mine, old_sessions, taken.retained_before)
        self._refuse_damaged(taken, found.damaged)
        for stored in found.stored:
            taken.add(stored, session.session_id)
        again, refused = found.again(await self.live() if found.asks_live else ())
        taken.refused.update(refused)
        for batch in again:
            await self._claim(taken, batch, old_sessions)


async def release(session: Session, releases: Sequence[transactions.Release]) -> None:
    """Releases partitions, for good; one that is led elsewhere by now is skipped.

    Raises:
        FencedError: the session ended first.
    """
    for at in range(0, len(releases), MAX_TXN_OPS):
        some = releases[at : at + MAX_TXN_OPS]
        result = await session.transact(transactions.release(some))
        if result.succeeded or len(some) == 1:
            continue  # refused alone: led elsewhere, or an earlier try succeeded
        for one in some:
            await session.transact(transactions.release([one]))
