"""`SharedCache`: the budget holds, what is being read stays, and nobody waits for ever."""

import asyncio

import pytest

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.log.reading.shared_cache import WANTED, SharedCache


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def new(
    clock: Clock, budget: int = 100, hold_ms: float = 10**6, patience_ms: float = 10**6
) -> SharedCache[str, str]:
    return SharedCache(budget_bytes=budget, hold_ms=hold_ms, patience_ms=patience_ms, now_ms=clock)


async def get(cache: SharedCache[str, str], key: str, size: int = 50) -> str:
    async def load() -> str:
        await asyncio.sleep(0)
        return key.upper()

    return await cache.get(key, size, load)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_value_is_loaded_once() -> None:
    """
    Who asks while it is loaded, and who asks later, get the same one.
    """
    cache = new(Clock())

    found = await asyncio.gather(*(get(cache, "a") for _ in range(5)), return_exceptions=False)

    assert ["A"] * 5 == found
    assert "A" == await get(cache, "a")
    assert (1, 50) == (cache.loads, cache.used_bytes)


async def test_a_value_that_was_dropped_is_loaded_again() -> None:
    """
    It gives its room back at once, to a load that waits for it, too.
    """
    cache = new(Clock())
    await get(cache, "a", 100)
    waits = asyncio.create_task(get(cache, "b", 100))
    await turns()
    assert not waits.done()
    cache.drop("a")
    cache.drop("unknown")

    assert "B" == await waits
    assert (2, 100) == (cache.loads, cache.used_bytes)
    cache.drop("b")
    assert 0 == cache.used_bytes
    assert "A" == await get(cache, "a")


async def test_an_error_is_shared_and_not_remembered() -> None:
    """
    All who waited for a load that failed get its error; the next one loads again.
    """
    cache = new(Clock())

    async def fail() -> str:
        await asyncio.sleep(0)
        raise ValueError("no")

    found = await asyncio.gather(
        *(cache.get("a", 50, fail) for _ in range(3)), return_exceptions=True
    )

    assert [ValueError] * 3 == [type(error) for error in found]
    assert (1, 0) == (cache.loads, cache.used_bytes)
    assert "A" == await get(cache, "a")


async def test_a_newcomer_waits_until_something_was_read_to_its_end() -> None:
    """
    Values in use are not evicted for another; one that is finished is, at once.
    """
    cache = new(Clock())
    await get(cache, "a")
    await get(cache, "b")
    assert not cache.has_room(50)
    newcomer = asyncio.create_task(get(cache, "c"))
    await turns()
    assert not newcomer.done()

    cache.finish("b")

    assert "C" == await newcomer
    assert [True, False, True] == ["a" in cache, "b" in cache, "c" in cache]
    assert 100 == cache.used_bytes


async def test_what_nobody_asks_for_any_more_makes_room() -> None:
    """
    A value that was not used for `hold_ms` goes, the oldest first.
    """
    clock = Clock()
    cache = new(clock, hold_ms=10)
    await get(cache, "a")
    await get(cache, "b")
    clock.now_ms = 5
    await get(cache, "a")
    clock.now_ms = 12
    assert cache.has_room(50)

    assert "C" == await get(cache, "c")
    assert [True, False, True] == ["a" in cache, "b" in cache, "c" in cache]


async def test_patience_ends() -> None:
    """
    Who has waited for `patience_ms` gets room although everything is in use.
    """
    clock = Clock()
    cache = new(clock, patience_ms=0)
    await get(cache, "a")
    await get(cache, "b")

    assert "C" == await get(cache, "c")
    assert ["b", "c"] == [key for key in "abc" if key in cache]


async def test_who_waits_behind_loads_alone_is_not_forgotten() -> None:
    """
    A load that ends is news for who found nothing to evict: its value may go in its time.
    """
    clock = Clock()
    cache = new(clock, hold_ms=0, patience_ms=0)
    gate = asyncio.Event()

    async def load() -> str:
        await gate.wait()
        return "A"

    first = asyncio.create_task(cache.get("a", 100, load))
    await turns()
    second = asyncio.create_task(get(cache, "b", 100))
    await turns()
    gate.set()

    async with asyncio.timeout(5):
        assert ("A", "B") == (await first, await second)


async def test_a_value_larger_than_the_budget_is_loaded_alone() -> None:
    """
    A row group of 200 MiB can be read too.
    """
    cache = new(Clock(), patience_ms=0)
    await get(cache, "a")

    assert "HUGE" == await get(cache, "huge", 1_000)
    assert ["huge"] == [key for key in ("a", "huge") if key in cache]


async def test_the_next_in_line_loads_when_the_first_is_cancelled() -> None:
    """
    A cancelled load gives its room back, and whoever waits for it begins again.
    """
    cache = new(Clock())
    gate = asyncio.Event()

    async def never() -> str:
        await gate.wait()
        raise AssertionError("cancelled before")

    first = asyncio.create_task(cache.get("a", 50, never))
    await turns()
    second = asyncio.create_task(get(cache, "a"))
    await turns()

    first.cancel()

    assert "A" == await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert 50 == cache.used_bytes


# ── Whose load is next ──


async def test_clients_take_turns_to_wait_for_room() -> None:
    """
    Twenty loads of a client wait for room, on a connection each: that of another client is next but
    one.
    """
    clock, order = Clock(), list[str]()
    cache = new(clock)
    loading = asyncio.Event()

    async def ask(address: str, key: str) -> None:
        work_for(Client(address))

        async def load() -> str:
            order.append(address)
            await loading.wait()
            clock.now_ms += 1
            return key

        await cache.get(key, 100, load)
        cache.finish(key)

    many = [asyncio.create_task(ask("10.0.0.1", f"many {n}")) for n in range(20)]
    await turns()
    little = asyncio.create_task(ask("10.0.0.2", "little"))
    await turns()
    loading.set()
    await asyncio.gather(little, *many)

    assert 21 == len(order)
    assert "10.0.0.2" in order[:3]


async def test_a_load_that_nobody_wants_any_more_is_not_made() -> None:
    """
    It is given up when its turn comes.  Another task that waits for the same value loads it.
    """
    cache = new(Clock())
    await get(cache, "a", 100)
    loaded: list[str] = []

    async def ask(key: str, *, wanted: bool) -> None:
        WANTED.set(lambda: wanted)

        async def load() -> str:
            loaded.append(f"{key} {wanted}")
            return key

        await cache.get(key, 100, load)

    given_up = [asyncio.create_task(ask(key, wanted=False)) for key in "bcd"]
    await turns()
    goes_on = asyncio.create_task(ask("d", wanted=True))
    await turns()
    cache.finish("a")
    async with asyncio.timeout(10):
        await goes_on

    assert ["d True"] == loaded
    assert [True] * 3 == [task.cancelled() for task in given_up]
    assert 100 == cache.used_bytes
