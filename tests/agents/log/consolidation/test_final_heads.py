"""Without it a restore serves flushes of ended sessions that no producer was told of."""

import asyncio

import pytest

from driftlog_metadata.schema.keys import head_key
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import FinalHead, decode_final_head, encode_final_head
from tests.agents.log.flush_records import NEVER, flushes
from tests.agents.log.lives import World, on_virtual_time


async def final_heads(world: World) -> dict[str, int]:
    """Of the bucket, by session; each object says what its name says."""
    found: dict[str, int] = {}
    for key in world.bucket.keys("/final-"):
        named = layout.parse_final_head_key(key)
        said = decode_final_head(await world.bucket.get(key))
        assert (named.session_id, named.head) == (said.session_id, said.head)
        assert said.session_id not in found
        found[said.session_id] = said.head
    return found


@on_virtual_time
async def test_the_keeper_of_a_dead_session_puts_its_final_head() -> None:
    """
    Once, with the last flush that was committed; no live session has one.
    """
    world = World(t=2)
    dead = await world.start(NEVER)
    await flushes(dead, 3)
    kv = await world.metadata.get(head_key(dead.session_id))
    assert kv is not None
    dead.kill()
    keeper = await world.other_disk().start(NEVER)
    await asyncio.sleep(NEVER.consolidation.sealed_interval_ms / 1000 + 60)
    found = await final_heads(world)
    keys = world.bucket.keys("/final-")
    await asyncio.sleep(NEVER.consolidation.sealed_interval_ms / 1000 + 60)

    assert {dead.session_id: 3} == found
    assert keys == world.bucket.keys("/final-")
    assert keeper.session_id not in found


@on_virtual_time
async def test_an_agent_that_closes_a_head_puts_it_as_it_was() -> None:
    """
    Back on its own disk: the metadata store then says closed, and no number any more.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 2)
    first.kill()
    await world.start(NEVER)
    await asyncio.sleep(NEVER.consolidation.sealed_interval_ms / 1000 + 60)

    assert {first.session_id: 2} == await final_heads(world)


@on_virtual_time
async def test_a_final_head_that_cannot_be_put_is_put_later() -> None:
    """
    The bucket refuses to create objects for a while; nothing else waits for that.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 1)
    first.kill()
    world.bucket.refused_creates = True
    life = await world.start(NEVER)
    await asyncio.sleep(NEVER.consolidation.sealed_interval_ms / 1000 + 60)
    before = await final_heads(world)
    await flushes(life, 1, first=1)
    world.bucket.refused_creates = False
    await asyncio.sleep(2 * NEVER.consolidation.sealed_interval_ms / 1000 + 60)

    assert {} == before
    assert {first.session_id: 1} == await final_heads(world)


@on_virtual_time
async def test_a_final_head_above_the_store_ends_the_session() -> None:
    """
    The metadata store is an old backup: the head that it has is not the session's last one.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 2)
    first.kill()
    newer = FinalHead(first.session_id, 7, world.metadata.revision + 1_000)
    await world.bucket.put(
        layout.final_head_key(first.session_id, newer.head), [encode_final_head(newer)]
    )
    life = await world.start(NEVER)

    with pytest.raises(FencedError, match="driftlog restore"):
        await asyncio.wait_for(life.task, 600)

    assert {first.session_id: 7} == await final_heads(world)


@on_virtual_time
async def test_a_damaged_final_head_holds_up_no_other() -> None:
    """
    Whether the metadata store is older than that one is not known; of other sessions it is.
    """
    world = World(t=2)
    lives = [await world.start(NEVER)]
    await flushes(lives[0], 1)
    lives[0].kill()
    lives.append(await world.other_disk().start(NEVER))
    await flushes(lives[1], 1, first=1)
    lives[1].kill()
    damaged, other = sorted(life.session_id for life in lives)
    await world.bucket.put(layout.final_head_key(damaged, 9), [b"damaged"])
    await world.other_disk().other_disk().start(NEVER)
    await asyncio.sleep(2 * NEVER.consolidation.sealed_interval_ms / 1000 + 60)

    heads = [layout.parse_final_head_key(key) for key in world.bucket.keys("/final-")]
    assert [(damaged, 9), (other, 1)] == [(head.session_id, head.head) for head in heads]
