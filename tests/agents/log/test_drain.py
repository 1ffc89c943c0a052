"""A leaving agent that drops flushes which would be committed, or waits for ever, fails here."""

import asyncio

import pytest

from driftlog_agents.log.drain import drained
from driftlog_metadata.stores.errors import UnavailableError
from tests.agents.log.lives import World, now_ms, on_virtual_time


@pytest.mark.parametrize(
    ("put_s", "refused", "expected", "within_ms"),
    [
        (0.0, False, True, 1_000),
        (3.0, False, True, 4_000),
        (60.0, False, False, 10_000),
        (0.0, True, False, 6_000),
    ],
)
@on_virtual_time
async def test_a_drain_waits_for_slow_flushes_and_gives_up_failing_ones(
    put_s: float, refused: bool, expected: bool, within_ms: int
) -> None:
    """
    Up to 10 s if they are slow, 5 s if they fail.
    """
    world = World(t=1)
    life = await world.start()
    world.bucket.put_s = put_s
    if refused:
        world.bucket.fates = [UnavailableError("slow down")] * 1_000
    life.produce(b"v")
    await asyncio.sleep(0.5)
    began_ms = now_ms()

    found = await drained(life.engine.flusher, 10_000, 5_000, now_ms)

    assert expected == found
    assert now_ms() - began_ms <= within_ms
