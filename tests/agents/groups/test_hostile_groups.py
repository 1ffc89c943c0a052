"""Group requests of one client (ids of 32 KB, groups that are never stored) disturb no other
client.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from driftlog_agents.groups import sizes
from driftlog_agents.groups.classic.messages import Protocol
from driftlog_agents.groups.consumer.messages import JOIN_EPOCH, LEAVE_EPOCH, ConsumerHeartbeat
from driftlog_agents.groups.coordinator.consumer_requests import heartbeat
from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import GROUPS_PREFIX
from driftlog_metadata.stores.quota import Usage
from driftlog_metadata.stores.store import Put
from tests.agents.groups.coordinated import SETTINGS, Coordinated, Member
from tests.agents.log.lives import World, on_virtual_time

LARGEST = "%" * 32_767
"""A group id as long as a string of the protocol can be; its key has three bytes for each.  Agents
of 0.1.0 made such groups."""


@pytest.fixture
def _long_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_GROUP_ID_BYTES", len(LARGEST))


@pytest.mark.usefixtures("_long_ids")
@on_virtual_time
async def test_offsets_of_groups_with_long_ids_are_read_at_once() -> None:
    """
    One OffsetFetch may name more groups than fit the transaction that confirms them.
    """
    one = await Coordinated.start(World())
    groups = [f"{n:02}{LARGEST[2:]}" for n in range(20)]
    for group in groups:
        await one.commit(group, {0: 7})

    found = await asyncio.gather(*(one.fetch(group) for group in groups))

    assert [{0: 7}] * 20 == found
    await asyncio.sleep(1)
    assert not one.task.done()


@pytest.mark.usefixtures("_long_ids")
@on_virtual_time
async def test_groups_with_long_ids_are_taken_over() -> None:
    """
    As many of them are claimed together as a transaction holds.
    """
    world = World()
    one = await Coordinated.start(world)
    groups = [f"{n:02}{LARGEST[2:]}" for n in range(20)]
    for group in groups:
        await one.commit(group, {0: 7})
    one.kill()

    again = await Coordinated.start(world)

    assert set(groups) == set(again.groups.groups)
    await asyncio.sleep(1)
    assert not again.task.done()


@on_virtual_time
async def test_a_group_with_a_long_id_goes_on_but_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Each of its pages of offsets has its id in the key: one client took an agent to 2.4 GB.
    """
    world = World()
    one = await Coordinated.start(world)
    with monkeypatch.context() as older:
        older.setattr(sizes, "MAX_GROUP_ID_BYTES", len(LARGEST))
        await one.commit(LARGEST, {0: 7})
    one.kill()
    again = await Coordinated.start(world)

    await again.commit(LARGEST, {0: 8, 300: 9})
    with pytest.raises(RefusedError, match=r"INVALID_GROUP_ID.*1024 bytes"):
        await again.commit("é" * 512 + "g", {0: 7})
    await again.commit("é" * 512, {0: 7})

    assert [{0: 8, 300: 9}, {0: 7}] == [await again.fetch(g) for g in (LARGEST, "é" * 512)]


@on_virtual_time
async def test_a_strangers_key_under_a_group_is_passed_over() -> None:
    """
    What somebody puts there with etcdctl does not end the agent that takes the group over.
    """
    world = World()
    one = await Coordinated.start(world)
    await one.commit("g", {0: 7})
    one.kill()
    await world.metadata.txn((), [Put(f"{GROUPS_PREFIX}g/x", b"1")])

    again = await Coordinated.start(world)

    assert {0: 7} == await again.fetch("g")
    await again.commit("g", {0: 8})
    assert {0: 8} == await again.fetch("g")
    assert not again.task.done()


@on_virtual_time
async def test_who_comes_while_a_group_is_being_deleted_is_answered() -> None:
    """
    Between the decision and the store's answer: told to come again.
    """
    one = await Coordinated.start(World())
    await heartbeat(one.groups, "g", _beat(JOIN_EPOCH))
    await heartbeat(one.groups, "g", _beat(LEAVE_EPOCH))
    group = one.groups.groups["g"]
    await group.store({one.tp(0): Committed(offset=7)})
    one.store.latency_s = lambda: 0.2

    deleting = asyncio.ensure_future(group.delete())
    await asyncio.sleep(0.05)
    late = asyncio.ensure_future(group.store({one.tp(0): None}))
    again = asyncio.ensure_future(group.delete())

    assert ErrorCode.NONE == await deleting
    for came in (late, again):
        with pytest.raises(RefusedError):
            await asyncio.wait_for(came, 5)


@on_virtual_time
async def test_the_last_one_that_leaves_is_answered_though_its_group_is_deleted() -> None:
    """
    Both are decided while another write is in flight: they go in one.
    """
    one = await Coordinated.start(World())
    member = await one.member("g")
    group = one.groups.groups["g"]
    one.store.latency_s = lambda: 0.2
    storing = asyncio.ensure_future(group.store({one.tp(0): Committed(offset=7)}))
    await asyncio.sleep(0.05)

    leaving = asyncio.ensure_future(member.leave())
    await asyncio.sleep(0)
    deleting = asyncio.ensure_future(group.delete())

    await storing
    assert ErrorCode.NONE == await asyncio.wait_for(leaving, 5)
    assert ErrorCode.NONE == await asyncio.wait_for(deleting, 5)


@on_virtual_time
async def test_a_page_of_offsets_has_no_more_text_than_it_may() -> None:
    """
    Each commit of one of its 256 partitions writes all of it; what is not stored yet counts, too.
    """
    one = await Coordinated.start(World(t=256))
    text = "x" * 4096

    async def refused(partition: int, text: str) -> bool:
        try:
            await one.commit("g", {partition: 1}, metadata=text)
        except RefusedError as error:
            return error.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
        return False

    at_once = await asyncio.gather(*(refused(n, text) for n in range(17)))

    assert [False] * 16 + [True] == at_once
    assert await refused(17, "a word more")
    assert not await refused(17, "")
    assert not await refused(0, "y" * 4096), "in the place of another one"
    assert not await refused(0, "")
    assert not await refused(17, "a word more")
    one.kill()
    again = await Coordinated.start(one.life.world)
    with pytest.raises(RefusedError):
        await again.commit("g", {18: 1}, metadata=text)


@on_virtual_time
async def test_groups_grow_little_while_the_metadata_store_has_little_room() -> None:
    """
    What they have goes on, and what a consumer needs to begin.
    """
    one = await Coordinated.start(World(t=300))
    quota = one.life.engine.ports.quota
    for size, is_scarce in ((59, False), (60, True), (80, True), (59, False)):
        usage = Usage(member="m", size_bytes=size, quota_bytes=100, full=False, revision=1)
        quota.told([usage])
        group = f"{size}-{is_scarce}"
        await one.commit(group, dict.fromkeys(range(200), 1))
        await one.commit(group, dict.fromkeys(range(200), 2))
        growing = one.commit(f"{group}-new", dict.fromkeys(range(300), 1))
        if is_scarce:
            with pytest.raises(RefusedError, match="COORDINATOR_NOT_AVAILABLE"):
                await growing
        else:
            await growing


@on_virtual_time
async def test_long_subscriptions_are_read_off_the_event_loop_when_somebody_asks() -> None:
    """
    Half a million names fit a JoinGroup; a rebalance needs none of them.
    """
    one = await Coordinated.start(World(t=1))
    topics = ["t", *("" for _ in range(20_000))]
    metadata = encode_subscription(0, ConsumerProtocolSubscription(topics=topics))
    member = Member(one, "g", protocol_type="consumer")
    member.asked = replace(member.asked, protocols=(Protocol("p", metadata),))
    await member.join()
    await member.sync()
    assert "all_subscribed_topics" not in one.life.world.offloaded

    group = one.groups.groups["g"]
    subscribed = await group.subscribed(["t", "another"])

    assert frozenset({"t"}) == subscribed
    assert "all_subscribed_topics" in one.life.world.offloaded
    assert [True, False] == [group.is_used(name, subscribed) for name in ("t", "another")]


@on_virtual_time
async def test_a_commit_of_nothing_leaves_no_group() -> None:
    """
    None of its partitions could be committed; or a page of them does not fit the metadata store.
    """
    settings = replace(SETTINGS, offset_metadata_max_bytes=200_000)
    one = await Coordinated.start(World(), settings)
    await one.commit("nothing", {})
    rng = Random(1)
    much = {
        one.tp(number): Committed(offset=1, metadata=rng.randbytes(100_000).hex())
        for number in range(16)
    }
    group = await one.groups.made("much", CLASSIC)
    with pytest.raises(RefusedError, match="UNKNOWN_SERVER_ERROR"):
        await group.store(much)

    assert {} == one.groups.groups
    await one.commit("g", {0: 1})
    group = one.groups.groups["g"]
    with pytest.raises(RefusedError, match="UNKNOWN_SERVER_ERROR"):
        await group.store({**much, one.tp(256): Committed(offset=1)})
    await group.store(dict(list(much.items())[:10]))


def _beat(epoch: int) -> ConsumerHeartbeat:
    joins = epoch == JOIN_EPOCH
    return ConsumerHeartbeat(
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=30_000,
        topic_names=("t",) if joins else None,
        owned={} if joins else None,
    )
