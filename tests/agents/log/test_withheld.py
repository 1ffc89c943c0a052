"""One object that the bucket withholds costs its own partition alone."""

import asyncio
from dataclasses import replace

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.log.flush_records import SMALL, flushes, records
from tests.agents.log.lives import ONE, SETTINGS, Keys, Life, World, on_virtual_time
from tests.simulation.agent import SETTINGS as SIMULATED

_MANIFESTS_OF_0 = Keys({"/00000/manifest/"})


async def led_again(life: Life, partition: int) -> None:
    """Hand over a partition, and lead it in a later epoch."""
    log = life.log(partition)
    await life.engine.handover.give_up([log])
    while life.engine.log("t", partition) in (None, log):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@on_virtual_time
async def test_a_restart_waits_for_no_manifest_with_all_that_it_led() -> None:
    """
    A partition that was led twice by one session needs its manifest before what is buffered of it
    is judged: it is led, and what was acks=1 appended, once it is given.  The others are led
    meanwhile.
    """
    world = World(t=20)
    life = await world.start()
    for partition in range(20):
        assert await life.produce(b"old", partition=partition).answer() == "committed"
    await led_again(life, 0)
    assert await life.produce(b"new").answer() == "committed"
    await life.seal()
    world.bucket.away = True
    assert await life.produce(b"promised", acks=ONE).answer() == "synced"
    life.kill()
    world.bucket.away = False
    world.bucket.withheld = _MANIFESTS_OF_0

    back = await world.start(ready=False)
    async with asyncio.timeout(60):
        await back.engine.ready.wait()
    await asyncio.sleep(2)
    led = {log.partition for log in back.engine.logs()}
    world.bucket.withheld = set()

    assert set(range(1, 20)) == led
    await back.ready()
    assert await back.produce(b"later").answer() == "committed"
    await asyncio.sleep(60)
    assert [b"promised", b"later"] == [value for _, _, value in await back.committed()]
    assert [] == world.set_aside()


@on_virtual_time
async def test_what_another_agent_cannot_open_it_gives_back_and_leads_when_it_can() -> None:
    """
    An agent that joins needs an object that is not given.  It leads none of what was handed to it,
    releases it each time, and leads it when the object is given; the rest is led all the time.
    """
    world = World(t=60)
    first = await world.start()
    for _ in range(3):
        results = [first.produce(b"x", partition=partition) for partition in range(60)]
        for result in results:
            assert await result.answer() == "committed"
    world.bucket.withheld = {world.bucket.puts[0]}

    second = await world.other_disk().start(ready=False)
    await asyncio.sleep(90)
    during = len(first.engine.logs()), len(second.engine.logs())
    for log in first.engine.logs():
        assert await first.produce(b"y", partition=log.partition).answer() == "committed"
    world.bucket.withheld = set()
    await asyncio.sleep(70)

    assert 20 <= during[0] <= 40
    assert 0 == during[1]
    assert not first.task.done()
    assert not second.task.done()
    assert 60 == len(first.engine.logs()) + len(second.engine.logs())
    for log in second.engine.logs():
        assert await second.produce(b"y", partition=log.partition).answer() == "committed"


@on_virtual_time
async def test_a_footer_that_is_not_given_costs_its_own_record() -> None:
    """
    The others are rewritten without it, also where no footer is in memory.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    life.engine.footers.encoded.budget_bytes = 0  # as where there are more than have room
    await flushes(life, 2)
    world.bucket.withheld = {world.bucket.puts[0]}

    for first in range(2, 92, 30):
        await flushes(life, 30, first=first)
        await asyncio.sleep(60)

    assert len(await records(world)) < 20


@on_virtual_time
async def test_a_manifest_that_is_not_given_holds_no_producers_of_others() -> None:
    """
    Its partition is damaged for now: it takes what has room, and is refused then, while the
    others are sealed and written to.  When it is given it is sealed as well.
    """
    settings = replace(SETTINGS, seal=SIMULATED.seal)
    world = World(t=2)
    life = await world.start(settings)
    for partition in (0, 1):
        assert await life.produce(b"x" * 500, partition=partition).answer() == "committed"
        await life.seal(partition)
    await life.stop()
    world.bucket.withheld = _MANIFESTS_OF_0
    life = await world.start(settings)
    pressure = world.pressure
    refused: list[tuple[int, ErrorCode, bool]] = []
    for _ in range(500):
        for partition in (0, 1):
            try:
                assert await life.produce(b"y" * 500, partition=partition).answer() == "committed"
            except RefusedError as error:
                refused.append((partition, error.code, "no read quorum" in str(error)))
        await asyncio.sleep(0.4)

    assert {(0, ErrorCode.KAFKA_STORAGE_ERROR, True)} == set(refused)
    assert not any(pressure) or pressure[-1] is False
    assert not life.engine.sealer.lag.held
    assert life.log(1).unsealed_bytes < 10_000

    world.bucket.withheld = set()
    await asyncio.sleep(130)
    assert not life.log(0).damage
    assert await life.produce(b"z").answer() == "committed"
    await asyncio.sleep(30)
    assert life.log(0).unsealed_bytes < 10_000
