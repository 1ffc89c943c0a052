"""A metadata store that goes back, comes back empty or loses its cluster, under agents that run on.

    agents serve ── the store is another one ── hours ── the right store is back, agents restarted

In seeds of their own, when the other faults are over:

1. The agents find out within seconds, all of them, and none opens a session, claims, commits or
   deletes after that.  Without the cluster's key no session begins and nothing is claimed at all.
   (A store that is restored further on is told by the heads of sessions that committed after the
   copy: one agent, a small bump.  Or by the leap of revisions: several agents, of which some may
   have committed nothing, and a bump as etcd's manual advises.)
2. Nothing is acknowledged or shown that the right store does not have (`ledger`, which goes on
   looking at the right one).
3. Every object that the right store names is in the bucket, also when the collector's grace has
   passed.
4. With the right store, and agents that were started again, everything that was acknowledged is
   there, and everything goes on.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_metadata.schema.codec import decode_flush_record, decode_leader
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    FLUSHES_PREFIX,
    LEADERS_PREFIX,
    SESSIONS_PREFIX,
)
from driftlog_metadata.stores.store import Delete, Put, PutEvent, WatchEvent
from tests.simulation.clocks import has_clock_jumps
from tests.simulation.faults import now
from tests.support.clusters import MARK
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.world import World

_SINGLE: Final = (21, 33, 46)
_CLUSTER: Final = 42
_FURTHER_ON: Final = 32
"""Of every hundred seeds: several agents, whose store is restored further on."""
_EVERY: Final = 50

_FOUND_S: Final = 15.0
"""After so long every agent knows: the longest time between two looks, and its answer."""


class Kind(Enum):
    """What becomes of the store."""

    OLDER = "store restored"
    BUMPED = "store restored further on"
    """With ``--bump-revision``, while agents commit, or while they are idle."""
    EMPTY = "store emptied"
    MARK_GONE = "cluster key gone"
    OTHER = "cluster key another"


def has_store_loss(seed: int) -> bool:
    """Whether the seed has one: three in fifty of one agent, three in a hundred of several."""
    return seed % _EVERY in (*_SINGLE, _CLUSTER) or seed % 100 == _FURTHER_ON


def _kind(seed: int, rng: Random, *, many: bool) -> Kind:
    kind = rng.choice([kind for kind in Kind if kind is not Kind.BUMPED or not many])
    return Kind.BUMPED if seed % 100 == _FURTHER_ON else kind


def _is_idle(seed: int, kind: Kind) -> bool:
    return kind is Kind.BUMPED and seed // 100 % 2 == 1 and not has_clock_jumps(seed)


def is_restored_while_idle(seed: int) -> bool:
    """Whether the store of one agent is restored further on, while nothing is committed."""
    if not has_store_loss(seed) or seed % 100 == _FURTHER_ON or seed % _EVERY == _CLUSTER:
        return False
    return _is_idle(seed, _kind(seed, Random(f"store loss {seed}"), many=False))


def _begun(event: WatchEvent) -> str | None:
    """The key, where it makes a session, or makes one lead."""
    if not isinstance(event, PutEvent):
        return None
    kv = event.kv
    if kv.key.startswith(LEADERS_PREFIX):
        return None if decode_leader(kv.value).session_id is None else kv.key
    is_session = kv.key.startswith(SESSIONS_PREFIX) and kv.create_revision == kv.mod_revision
    return kv.key if is_session else None


class StoreLoss:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"store loss {world.seed}")
        self.kind = _kind(world.seed, self._rng, many=world.many)
        self._bump = 1_000_000_000 if world.many else 1_000
        self._is_idle = _is_idle(world.seed, self.kind)
        """Nothing is to be committed when the store is lost: no commit is what tells."""
        self._until_s: float | None = None
        """The wrong store is there, and from then on every agent knows."""

    @property
    def _is_ours(self) -> bool:
        """Whether the store is still the right one, but for its cluster's key."""
        return self.kind in (Kind.MARK_GONE, Kind.OTHER)

    def wrote(self, events: Sequence[WatchEvent]) -> bool:
        """Something was written; whether that was in another store than the right one."""
        if self._until_s is None:
            return False
        puts = [event.kv.key for event in events if isinstance(event, PutEvent)]
        late = self._world.loop.now_s > self._until_s or self.kind is Kind.EMPTY
        self._world.expect(not (puts and late), f"{self.kind.value}, and {puts} were put")
        if self._is_ours:
            begun = [key for event in events if (key := _begun(event))]
            self._world.expect(not begun, f"{self.kind.value}, and {begun} begun")
        return not self._is_ours

    async def run(self) -> None:
        """From agents that serve to agents that serve again."""
        world, rng = self._world, self._rng
        await world.ready()
        backup = world.metadata.copy()
        self._produce()
        await asyncio.sleep(rng.uniform(12, 25))
        self._produce()
        await asyncio.sleep(rng.uniform(0.5, 3))
        if self._is_idle:
            await self._idle()
        right = world.metadata.copy()
        await self._lose(backup)
        await asyncio.sleep(_FOUND_S + 1)
        self._check()
        if rng.random() < 0.5:
            for _ in range(9):
                world.pass_time(1.8 * 3_600)
                await asyncio.sleep(rng.uniform(1, 8))
        await asyncio.sleep(rng.uniform(1, 20))
        self._check()
        await self._mend(right)

    def _produce(self) -> None:
        for topic in self._world.first_topics:
            self._world.produce_to(topic, batches=20)

    async def _idle(self) -> None:
        """Until every producer is answered."""
        for _ in range(600):
            if all(producer.finished for producer in self._world.producers):
                return
            await asyncio.sleep(0.1)

    async def _lose(self, backup: MemoryMetadataStore) -> None:
        """At once; or just when the next session of an agent is on its way to the store."""
        world = self._world
        node = world.some_node()
        engine = node.process.engine
        if self._is_ours and engine is not None and self._rng.random() < 0.7:
            node.trap("Put:/driftlog/v1/agents/", lambda: self._replace(backup), early=True)
            await world.metadata.revoke_lease(engine.session.lease_id)
            await asyncio.sleep(_FOUND_S)
        if self._until_s is None:
            self._replace(backup)

    def _replace(self, backup: MemoryMetadataStore) -> None:
        world, store = self._world, self._world.metadata
        world.note(self.kind.value)
        self._until_s = world.loop.now_s + _FOUND_S
        match self.kind:
            case Kind.OLDER:
                store.become(backup)
            case Kind.BUMPED:
                store.become(backup, revision=store.revision + self._bump)
            case Kind.EMPTY:
                store.become(MemoryMetadataStore(lambda: int(world.now_ms())))
            case Kind.MARK_GONE:
                now(store.txn((), [Delete(CLUSTER_KEY)]))
            case Kind.OTHER:
                other = b'{"cluster_id":"another","format_version":1}'
                now(store.txn((), [Put(CLUSTER_KEY, other)]))

    def _check(self) -> None:
        world = self._world
        for node in world.nodes:
            process = node.process
            if node.last_life:
                continue
            told = process.store_watch.evidence is not None
            world.expect(told, f"{self.kind.value}, and {process.name} does not know")
            engine = process.engine
            lives = engine is not None and engine.session.alive
            world.expect(not lives, f"{self.kind.value}, and {process.name} has a session")

    async def _mend(self, right: MemoryMetadataStore) -> None:
        world = self._world
        for node in world.nodes:
            if not node.last_life:
                node.kill("kill")
        self._until_s = None
        if self._is_ours:
            await world.metadata.txn((), [MARK])
        else:
            world.metadata.become(right)
        there = {info.key async for page in world.bucket.list("") for info in page.objects}
        for kv in world.metadata.snapshot(FLUSHES_PREFIX):
            key = decode_flush_record(kv.value).object_key
            world.expect(key in there, f"{self.kind.value}: {key} is gone")
