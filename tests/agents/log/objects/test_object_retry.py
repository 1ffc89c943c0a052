"""What is done about an object that the bucket does not give: if it broke, one object would stop an
agent, or a bucket that is away would move every partition."""

import asyncio

import pytest

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.log.objects.availability import READ_DEADLINE_MS, ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.object_retry import ObjectRetry
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import World, now_ms, on_virtual_time


class Reads:
    """An `ObjectRetry` over a bucket that is there, and how often it asked."""

    def __init__(self, world: World, probes: BucketProbes) -> None:
        self.world = world
        self.outage = FailureTracker()
        self.retry = ObjectRetry(probes, now_ms, self.outage, event="repeated", advice="none")
        self.requests = 0

    async def failing(self, error: Exception, *, once: bool = False) -> float:
        """Seconds until the object of a read that fails so each time is unavailable."""
        began_ms = now_ms()

        async def ask() -> None:
            self.requests += 1
            raise error

        with pytest.raises(ObjectUnavailableError, match="key"):
            await self.retry.read("key", ask, once=once)
        return (now_ms() - began_ms) / 1000


async def reads() -> Reads:
    world = World(t=1)
    life = await world.start()
    return Reads(world, life.engine.footers.probes)


@pytest.mark.parametrize("error", [NotFoundError("key"), CorruptError("bits")])
@on_virtual_time
async def test_an_object_that_the_bucket_says_it_has_not_is_unavailable_after_the_deadline(
    error: Exception,
) -> None:
    """
    A node of the store that is behind for a moment moves nothing, and that is no outage.
    """
    here = await reads()

    took_s = await here.failing(error)

    assert READ_DEADLINE_MS / 1000 <= took_s < READ_DEADLINE_MS / 1000 + 2
    assert here.requests > 2
    assert here.outage.since_ms is None


@on_virtual_time
async def test_an_object_without_an_answer_is_unavailable_when_the_bucket_answers_a_probe() -> None:
    """
    One more request after the probe; then the outage is over, as far as the bucket goes.
    """
    here = await reads()

    took_s = await here.failing(UnavailableError("503"))

    assert READ_DEADLINE_MS / 1000 <= took_s < READ_DEADLINE_MS / 1000 + 4
    assert here.outage.since_ms is None


@on_virtual_time
async def test_a_read_goes_on_while_the_bucket_is_away() -> None:
    """
    No other agent would do better: the outage is noted, and the read ends with the answer.
    """
    here = await reads()
    here.world.bucket.away = True
    there = asyncio.Event()

    async def ask() -> str:
        if not there.is_set():
            raise UnavailableError("503")
        return "answer"

    read = asyncio.create_task(here.retry.read("key", ask))
    await asyncio.sleep(60)
    lasted_ms = here.outage.lasted_ms(now_ms())
    there.set()

    assert "answer" == await read
    assert 60_000 == round(lasted_ms)
    assert here.outage.since_ms is None


@on_virtual_time
async def test_what_is_known_to_be_unavailable_takes_one_request() -> None:
    """
    It is looked for again and again; each look is one.
    """
    here = await reads()

    assert 0 == await here.failing(NotFoundError("key"), once=True)
    assert 1 == here.requests


@on_virtual_time
async def test_a_read_that_waits_for_its_slot_has_its_whole_deadline() -> None:
    """
    Other reads may take all slots for longer than the deadline: the object was not asked for yet.
    """
    here = await reads()
    slot = asyncio.Lock()
    sent_ms: list[float] = []

    async def ask() -> None:
        async with slot:
            sent_ms.append(now_ms())
            raise NotFoundError("key")

    await slot.acquire()
    read = asyncio.create_task(here.retry.read("key", ask))
    await asyncio.sleep(2 * READ_DEADLINE_MS / 1000)
    slot.release()

    with pytest.raises(ObjectUnavailableError):
        await read
    assert now_ms() - sent_ms[0] >= READ_DEADLINE_MS
    assert len(sent_ms) > 2


@pytest.mark.parametrize(
    "error", [ObjectUnavailableError("key", "its record is damaged"), FencedError("over")]
)
@on_virtual_time
async def test_an_error_that_is_a_verdict_is_passed_on(error: Exception) -> None:
    """
    To repeat the request would change nothing.
    """
    here = await reads()
    began_ms = now_ms()

    async def ask() -> None:
        raise error

    with pytest.raises(type(error)):
        await here.retry.read("key", ask)
    assert began_ms == now_ms()


@on_virtual_time
async def test_an_outage_ends_with_the_last_read_that_waits() -> None:
    """
    Else an agent that needs nothing of the bucket any more would be unfit.
    """
    here = await reads()
    here.world.bucket.away = True

    def read() -> "asyncio.Task[None]":
        async def ask() -> None:
            raise UnavailableError("503")

        return asyncio.create_task(here.retry.read("key", ask))

    first, last = read(), read()
    await asyncio.sleep(10)
    seen: list[bool] = []
    for task in (first, last):
        task.cancel()
        await asyncio.sleep(0.01)
        seen.append(here.outage.since_ms is not None)

    assert [True, False] == seen
