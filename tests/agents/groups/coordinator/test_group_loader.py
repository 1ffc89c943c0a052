"""A request that waits for the load of a group is answered when the session ends."""

import asyncio

import pytest

from driftlog_agents.protocol.errors import RefusedError
from tests.agents.groups.coordinated import Coordinated
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
