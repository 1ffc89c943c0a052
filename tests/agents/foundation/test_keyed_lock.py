"""A lock for each key: if it broke, a partition would be sealed twice at a time."""

import asyncio

from driftlog_agents.foundation.keyed_lock import KeyedLock


async def test_one_at_a_time_holds_a_key_in_the_order_of_asking() -> None:
    """
    Others of the same key wait, also when the holder fails or is cancelled; other keys do not.
    """
    locks, seen = KeyedLock[str](), list[str]()

    async def hold(name: str, key: str, error: Exception | None = None) -> None:
        async with locks.of(key):
            seen.append(f"+{name}")
            await asyncio.sleep(0)
            seen.append(f"-{name}")
            if error is not None:
                raise error

    tasks = [
        asyncio.create_task(hold(*args))
        for args in (("a", "k", KeyError()), ("b", "k"), ("c", "k"), ("other", "l"))
    ]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert ["+a", "-a", "+c", "-c"] == [entry for entry in seen if "other" not in entry]
    assert seen.index("+other") < seen.index("-a")


async def test_a_few_hold_a_key_together() -> None:
    """
    Further ones wait until one of them leaves.
    """
    locks, seen, leave = KeyedLock[str](at_once=2), list[int](), asyncio.Event()

    async def hold(number: int) -> None:
        async with locks.of("k"):
            seen.append(number)
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(hold(number))
        while len(seen) < 2:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        together = list(seen)
        leave.set()

    assert [0, 1] == together
    assert [0, 1, 2, 3] == seen
    assert 0 == len(locks)


async def test_a_lock_that_nothing_wants_is_forgotten() -> None:
    """
    Thousands of partitions and topics come and go.
    """
    locks = KeyedLock[int]()

    async def hold(key: int) -> None:
        async with locks.of(key):
            assert key % 7
            await asyncio.sleep(0)

    await asyncio.gather(*(hold(i % 10) for i in range(100)), return_exceptions=True)

    assert 0 == len(locks)
