"""A request that waits for the load of a group is answered when the session ends; a load reads a
bounded number of bytes at once.
"""

import asyncio
from dataclasses import replace
from random import Random
from string import ascii_letters, digits

import pytest

from driftlog_agents.groups.classic.messages import Protocol
from driftlog_agents.protocol.errors import RefusedError
from driftlog_metadata.stores.store import MAX_TXN_BYTES
from tests.agents.groups.coordinated import SETTINGS, Coordinated, Member
from tests.agents.log.lives import World, on_virtual_time


@on_virtual_time
async def test_who_waits_for_a_group_is_answered_when_the_session_ends_while_it_is_loaded() -> None:
    """
    However many wait; or their connections, and the agent that is to leave, wait for ever.
    """
    one = await Coordinated.start(World())
    loading = asyncio.Event()

    def never() -> float:
        loading.set()
        return 3_000

    one.store.latency_s = never
    asked = [asyncio.ensure_future(one.groups.group("g")) for _ in range(3)]
    await loading.wait()

    await one.life.lose_session()
    done, _ = await asyncio.wait(asked, timeout=10)

    assert set(asked) == done
    for each in asked:
        with pytest.raises(RefusedError, match="NOT_COORDINATOR"):
            each.result()


@on_virtual_time
async def test_large_groups_are_taken_over_by_bounded_requests_and_decoded_in_a_thread() -> None:
    """
    Whatever clients store: values of a megabyte, and pages full of texts.
    """
    settings = replace(SETTINGS, read_bytes=2 * MAX_TXN_BYTES)
    rng = Random(1)
    world = World()
    one = await Coordinated.start(world)
    offsets = {256 * page + n: n for page in range(12) for n in range(16)}
    for number in range(6):
        text = "".join(rng.choices(ascii_letters + digits, k=4096))
        await one.commit(f"offsets-{number}", offsets, metadata=text)
        member = Member(one, f"members-{number}", protocol_type="x")
        metadata = Random(number).randbytes(600_000)
        member.asked = replace(member.asked, protocols=(Protocol("p", metadata),))
        await member.join()
        await member.sync()
    one.kill()
    world.offloaded.clear()

    again = await Coordinated.start(world, settings)

    assert 12 == len(again.groups.groups)
    assert offsets == await again.fetch("offsets-5")
    assert 600_000 < again.store.most_read_bytes <= 2 * MAX_TXN_BYTES
    assert {"restored", "readable"} <= world.offloaded


@on_virtual_time
async def test_groups_that_have_grown_since_they_were_listed_are_read_one_by_one() -> None:
    """
    Their values are over what one answer may have: the same request would never be answered.
    """
    rng = Random(1)
    world = World()
    one = await Coordinated.start(world)
    for number in range(6):
        text = "".join(rng.choices(ascii_letters + digits, k=4_000))
        await one.commit(f"g{number}", {0: number}, metadata=text)
    one.kill()

    again = await Coordinated.start(world, answer_bytes=10_000)

    assert 6 == len(again.groups.groups)
    assert {0: 5} == await again.fetch("g5")
