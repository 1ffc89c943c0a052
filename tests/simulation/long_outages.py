"""Outages that last longer than the collector's grace, while sessions live on.

    faults are over ──▶ the bucket takes no flush objects, or commits are not taken
      ──longer than a grace period, keep-alives succeed, the collector looks──▶ all is well again

| what is not taken | |
|---|---|
| PUTs of one flush | refused; those behind it are stored, and wait for its commit |
| PUTs of all flushes | refused |
| commits | refused; or every write to the metadata store, as where its space is used up |
| commits | without an answer: they never act, or all of them act when the outage is over |

A grace of minutes stands for the twelve hours, as for all seeds that have a short one.

What is checked, of every seed:

1. No record names an object whose PUT is older than it may be, whenever the record's transaction
   acts.
2. The collector deletes nothing that a live session may still commit.
3. A record names an object of its own session: the collector looks for names nowhere else.

That every record's object is there, and that everything is answered, `world` checks anyway.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_metadata.schema.codec import decode_flush_record, decode_head
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, head_key, parse_flush_key, session_key
from driftlog_metadata.stores.errors import DeclinedError, UnavailableError
from driftlog_metadata.stores.store import Compare, Operation, Put, PutEvent, TxnResult, WatchEvent
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.faults import NoAnswerError, now
from tests.simulation.final_log import read_topics
from tests.simulation.ledger import WatchedStore
from tests.support.memory_object_store import MemoryObjectStore

if TYPE_CHECKING:
    from tests.simulation.world import World

_SEEDS: Final = (6, 31, 52, 56)
"""Last two digits of the seeds that have one: of one agent, and (52) of several."""

_MARGIN_MS: Final = 30_000
"""A request travels for eight seconds at most, and a pause lasts for twenty."""


def has_long_outage(seed: int) -> bool:
    """Whether the seed has one: one in 25."""
    return seed % 100 in _SEEDS


class Kind(Enum):
    """What is not taken, and how."""

    ONE_PUT = "PUTs of one flush refused"
    PUTS = "PUTs refused"
    COMMITS = "commits refused"
    WRITES = "metadata writes refused"
    SILENT = "commits not answered"
    LATE = "commits not answered, and acting late"


class LongOutage:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"long outage {world.seed}")
        self.there = has_long_outage(world.seed)
        self._kind: Kind | None = None
        """What is not taken just now."""
        self._refused: tuple[str, int] | None = None
        """The one flush, by session and sequence."""
        self._held: list[tuple[Sequence[Compare], Sequence[Operation], Sequence[Operation]]] = []

    async def run(self) -> None:
        """One outage, if the seed has one."""
        if not self.there:
            return
        world, rng = self._world, self._rng
        for node in world.nodes:
            node.recover()
        await asyncio.sleep(rng.uniform(3, 10))
        self._kind = rng.choice(tuple(Kind))
        world.note(self._kind.value)
        for topic in (await read_topics(world)).values():
            world.produce_to(topic, batches=6)
        await asyncio.sleep(rng.uniform(1.05, 1.5) * world.grace.ms / 1000)
        self._kind = None
        held, self._held = self._held, []
        for compares, then, otherwise in held:
            now(world.metadata.txn(compares, then, otherwise))

    # ── What the stores ask ──

    def put(self, key: str) -> None:
        """A PUT arrives.

        Raises:
            UnavailableError: it is not taken.
        """
        flush = _flush_of(key) if self._kind in (Kind.ONE_PUT, Kind.PUTS) else None
        if flush is None:
            return
        if self._kind is Kind.ONE_PUT:
            self._refused = self._refused or (flush.session_id, flush.seq)
            if self._refused != (flush.session_id, flush.seq):
                return
        raise UnavailableError("507 the bucket is full")

    def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> None:
        """A transaction arrives.

        Raises:
            DeclinedError: it is not taken.
            NoAnswerError: it does not act, or not now.
        """
        puts = [op.key for op in then if isinstance(op, Put)]
        commits = any(key.startswith(FLUSHES_PREFIX) for key in puts)
        match self._kind:
            case Kind.COMMITS if commits:
                raise DeclinedError("permission denied")
            case Kind.WRITES if puts:
                raise DeclinedError("database space exceeded")
            case Kind.SILENT if commits:
                raise NoAnswerError
            case Kind.LATE if commits:
                self._held.append((compares, then, otherwise))
                raise NoAnswerError
            case _:
                pass

    # ── What they are held to ──

    def named(self, record_key: str, value: bytes) -> None:
        """A flush record is put."""
        key = decode_flush_record(value).object_key
        of = parse_flush_key(record_key).session_id, layout.parse_flush_key(key).session_id
        self._world.expect(of[0] == of[1], f"{record_key} names an object of another session")
        info, error = now(self._world.bucket.stat(key))
        if error is not None:
            return  # the ledger says so
        age_ms = self._world.now_ms() - info.modified_ms
        limit_ms = self._world.grace.named_within_ms + _MARGIN_MS
        self._world.expect(age_ms < limit_ms, f"{key} is named {age_ms / 1000:.0f} s after its PUT")

    def deleted(self, keys: Sequence[str]) -> None:
        """Objects are about to go."""
        there: dict[str, int | None] = {}
        for key in keys:
            flush = _flush_of(key)
            if flush is None or self._is_young(key):
                continue
            if flush.session_id not in there:
                there[flush.session_id] = self._head(flush.session_id)
            head = there[flush.session_id]
            self._world.expect(
                head is None or flush.seq <= head,
                f"{key} is deleted, and its session, which lives, has committed {head}",
            )

    def _is_young(self, key: str) -> bool:
        """Then the collector, which has a grace, does not delete it; another fault may."""
        info, error = now(self._world.bucket.stat(key))
        grace_ms = self._world.grace.ms
        return error is not None or self._world.now_ms() - info.modified_ms < grace_ms

    def _head(self, session_id: str) -> int | None:
        session, _ = now(self._world.metadata.get(session_key(session_id)))
        head, _ = now(self._world.metadata.get(head_key(session_id)))
        return None if session is None or head is None else decode_head(head.value)


def _flush_of(key: str) -> layout.FlushObjectKey | None:
    """None: it is another kind of object, or not ours."""
    try:
        return layout.parse_flush_key(key)
    except ValueError:
        return None


class OutageStore(WatchedStore):
    """A metadata store that asks the world's `LongOutage`."""

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        self._world.long_outage.txn(compares, then, otherwise)
        return await super().txn(compares, then, otherwise)

    def _end(self, events: Sequence[WatchEvent]) -> None:
        super()._end(events)
        for event in events:
            if isinstance(event, PutEvent) and event.kv.key.startswith(FLUSHES_PREFIX):
                self._world.long_outage.named(event.kv.key, event.kv.value)


class OutageBucket(MemoryObjectStore):
    """The bucket, alike; it shows `CollectedObjects` what comes and goes."""

    def __init__(self, world: "World") -> None:
        super().__init__(lambda: int(world.loop.now_s * 1000))
        self._world = world

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        self._world.long_outage.put(key)
        await super().put(key, body)
        self._world.collected.put(key)
        self._world.merges.put(key)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        await super().create(key, body)
        self._world.collected.put(key)
        self._world.merges.put(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._world.long_outage.deleted(keys)
        self._world.collected.deleted(keys)
        await super().delete(keys)
