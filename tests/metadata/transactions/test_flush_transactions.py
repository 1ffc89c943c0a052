"""Flush records that go: each guard holds, late copies do nothing, and etcd takes the largest."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from driftlog_metadata.schema.codec import decode_flush_record, encode_flush_record
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, flush_key, session_key
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.limits import check_txn
from driftlog_metadata.stores.store import MAX_TXN_OPS, Delete, Put, TxnResult
from driftlog_metadata.transactions import flush_transactions
from driftlog_metadata.transactions.flush_transactions import (
    RECORDS_PER_TXN,
    Named,
    consolidate,
    forget,
)
from driftlog_metadata.transactions.session_transactions import Txn
from tests.support.memory_store import MemoryMetadataStore

MINE, DEAD = "11", "22"


def named(seq: int, name: str, level: int = 0, session_id: str = DEAD) -> Named:
    """A record of the object *name*."""
    record = FlushRecord(object_key=f"flush/{name}", size_bytes=9, footer_start=5)
    return flush_key(session_id, seq, level), record


OLD = [named(1, "a"), named(2, "b")]
NEW = [named(2, "c", 1)]


class World:
    """A store with my session and two records of a dead one."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(lambda: 0)
        self.revision = 0

    async def begin(self) -> None:
        """Write them."""
        result = await self.store.txn((), (Put(session_key(MINE), b"1"),))
        self.revision = result.revision
        await self.put(OLD)

    async def put(self, records: list[Named]) -> None:
        """As a commit does."""
        puts = tuple(Put(key, encode_flush_record(record)) for key, record in records)
        await self.store.txn((), puts)

    async def send(self, txn: Txn) -> TxnResult:
        """A transaction."""
        return await self.store.txn(txn.compares, txn.then, txn.otherwise)

    async def there(self) -> list[Named]:
        """Records, in key order."""
        _, kvs = await self.store.get_prefix(FLUSHES_PREFIX)
        return [(kv.key, decode_flush_record(kv.value)) for kv in kvs]

    def consolidation(self, dead: str | None = DEAD) -> Txn:
        """Of *OLD* by *NEW*."""
        return consolidate(MINE, self.revision, OLD, NEW, dead=dead)


def with_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run it in a new one."""

    def run() -> None:
        async def begun() -> None:
            world = World()
            await world.begin()
            await test(world)

        asyncio.run(begun())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@with_world
async def test_old_records_are_replaced_at_once_and_a_late_copy_does_nothing(world: World) -> None:
    """
    Also where the new record was replaced or forgotten meanwhile.
    """
    txn = world.consolidation()
    assert (await world.send(txn)).succeeded
    assert await world.there() == NEW

    late = await world.send(txn)
    assert not late.succeeded
    assert encode_flush_record(NEW[0][1]) == late.reads[1][0].value  # so it knows its own attempt
    assert await world.there() == NEW

    assert (await world.send(forget(NEW))).succeeded
    assert not (await world.send(txn)).succeeded
    assert await world.there() == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Delete(OLD[1][0]), id="an old record is gone"),
        pytest.param(
            Put(OLD[0][0], encode_flush_record(named(1, "other")[1])), id="an old record is another"
        ),
        pytest.param(Put(NEW[0][0], encode_flush_record(OLD[0][1])), id="a new key is taken"),
        pytest.param(Put(session_key(DEAD), b"1"), id="its session lives"),
        pytest.param(Delete(session_key(MINE)), id="my session is over"),
    ],
)
def test_nothing_is_replaced_where_a_guard_does_not_hold(change: Any) -> None:
    """
    Each of them would lose or double what was acknowledged, or take it from who keeps it.
    """

    @with_world
    async def check(world: World) -> None:
        await world.store.txn((), (change,))
        before = await world.there()

        assert not (await world.send(world.consolidation())).succeeded
        assert before == await world.there()

    check()


@with_world
async def test_a_session_that_began_again_under_the_same_key_is_another(world: World) -> None:
    """
    The fence is the revision at which the key was created.
    """
    await world.store.txn((), (Delete(session_key(MINE)),))
    await world.store.txn((), (Put(session_key(MINE), b"1"),))

    assert not (await world.send(world.consolidation())).succeeded


@with_world
async def test_records_are_forgotten_all_or_none_and_only_as_they_were_read(world: World) -> None:
    """
    A key may have been used again for what is needed.
    """
    other = named(1, "other")
    await world.put([other])

    assert not (await world.send(forget(OLD))).succeeded
    assert [other, OLD[1]] == await world.there()
    assert (await world.send(forget(OLD[1:]))).succeeded
    assert [other] == await world.there()


def test_the_largest_of_them_are_within_the_limits_of_etcd() -> None:
    """
    Operations, compares and bytes, with names as long as they come.
    """
    session_id = "f" * 32
    name = f"{session_id}/{'9' * 20}-{'f' * 16}.flush"
    many = [named(10**18 + n, name, session_id=session_id) for n in range(MAX_TXN_OPS)]
    new = [named(10**18, name, 2**31 - 1 - n, session_id) for n in range(60)]

    for txn in (
        forget(many),
        consolidate(MINE, 1, many[: RECORDS_PER_TXN - 60], new, dead=session_id),
        consolidate(MINE, 1, many[: RECORDS_PER_TXN - 1], new[:1], dead=session_id),
    ):
        check_txn(txn.compares, txn.then, txn.otherwise)
        assert max(len(txn.compares), len(txn.then)) <= MAX_TXN_OPS
    assert flush_transactions.RECORDS_PER_TXN + 2 == MAX_TXN_OPS
