"""A leader verifies its sealed objects by itself, names the damage, and gives way to producers.

If it failed: a damaged object would be found by the first consumer that needs it, or verification
would take the bucket from an overloaded agent.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from structlog.testing import capture_logs

from driftlog_agents.log.verification.schedule import VerificationSettings
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifests import load_newest
from tests.agents.log.lives import SETTINGS, Life, World, on_virtual_time

INTERVAL_S = 1_000.0
REPEAT_S = 20.0
VERIFIED = replace(
    SETTINGS,
    verification=VerificationSettings(
        interval_ms=int(INTERVAL_S * 1000), repeat_ms=int(REPEAT_S * 1000)
    ),
)


async def sealed() -> tuple[Life, str, bytes]:
    """An agent with one sealed segment; its key and body."""
    life = await World(t=1).start(VERIFIED)
    assert "committed" == await life.produce(b"a", b"b").answer()
    await life.seal()
    tp = TopicPartition(life.log().topic_id, 0)
    manifest = await load_newest(life.world.bucket, "t", tp)
    assert manifest is not None
    assert manifest.segments[0].footer_crc is not None
    key = manifest.segments[0].key
    return life, key, bytes(await life.world.bucket.get(key))


async def becomes(holds: Callable[[], bool], seconds: float = INTERVAL_S + 60) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@on_virtual_time
async def test_a_led_partition_is_verified_once_an_interval() -> None:
    """
    It is right: the counters say so, and nothing is damaged.
    """
    life, _, body = await sealed()
    counters = life.engine.counters

    await asyncio.sleep(INTERVAL_S + 60)

    assert 1 == counters.verified_partitions
    assert len(body) == counters.verified_bytes
    assert 0 == life.engine.upkeep.verification.damaged
    life.kill()


@on_virtual_time
async def test_damage_is_named_until_it_is_repaired() -> None:
    """
    The log has the object and the advice; the metric falls after the repair, without a restart.
    """
    life, key, body = await sealed()
    await life.world.bucket.delete([key])

    with capture_logs() as logs:
        await becomes(lambda: bool(life.engine.upkeep.verification.damaged))

    (line,) = [one for one in logs if one["event"] == "sealed_damage_found"]
    assert ("t-0", key, "missing", 0, 2) == tuple(
        line[name] for name in ("partition", "object", "kind", "base", "end")
    )
    assert "accept-loss" in line["advice"]
    await life.world.bucket.put(key, [body])
    await becomes(lambda: not life.engine.upkeep.verification.damaged, 3 * REPEAT_S)
    life.kill()


@on_virtual_time
async def test_an_unexpected_error_ends_no_session() -> None:
    """
    It is logged, and the partition is verified again soon; the agent goes on leading it.
    """

    class Bug(set[str]):
        def __contains__(self, key: object) -> bool:
            if str(key).endswith(".parquet"):
                raise TypeError("a bug")
            return False

    life, _, _ = await sealed()
    life.world.bucket.withheld = Bug()
    with capture_logs() as logs:
        await becomes(lambda: any(one["event"] == "verification_bug" for one in logs))

    life.world.bucket.withheld = set()
    await becomes(lambda: life.engine.counters.verified_partitions == 1, 3 * REPEAT_S)
    assert "committed" == await life.produce(b"c").answer()
    life.kill()


@on_virtual_time
async def test_nothing_is_read_while_producers_are_held_back() -> None:
    """
    The verification waits, and goes on when the agent has caught up.
    """
    life, _, _ = await sealed()
    counters = life.engine.counters
    life.engine.ports.backpressure.set("a test", held=True)

    await asyncio.sleep(2 * INTERVAL_S)

    assert 0 == counters.verified_partitions
    life.engine.ports.backpressure.set("a test", held=False)
    await becomes(lambda: counters.verified_partitions == 1, 10)
    life.kill()
