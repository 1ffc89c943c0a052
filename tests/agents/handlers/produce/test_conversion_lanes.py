"""A heavy rewrite holds no light one, and a client waits for no other's queue."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from benchmarks import batches
from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.handlers.produce.batch_conversion import rewrite
from driftlog_agents.handlers.produce.conversion_lanes import ConversionLanes
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.batches.batch_limits import BatchLimits, OverBatchLimitError
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.foundation.types import Offload
from tests.agents.log.lives import make_batch
from tests.clients.batches import good, with_records

MiB = 1 << 20

CLIENT = Client("10.0.0.1")


def thread(stack: ThreadPoolExecutor) -> Offload:
    async def offload(fn: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(stack, fn, *args)

    return offload


def lanes(
    light: ThreadPoolExecutor, heavy: ThreadPoolExecutor, decoding: BatchDecoder, now: list[float]
) -> ConversionLanes:
    return ConversionLanes(
        light=thread(light), heavy=thread(heavy), decoding=decoding, now_ms=lambda: now[0]
    )


async def never(*_: Any) -> None:
    """The lane that a test does not use."""
    raise AssertionError("the other lane")


def bomb(size_bytes: int) -> memoryview:
    """A zstd batch of one record of zeros."""
    plain = make_batch([bytes(size_bytes)])
    return memoryview(
        with_records(
            good(codec=batches.Codec.ZSTD), lambda _: bytes(compress(Codec.ZSTD, plain[61:]))
        )
    )


async def test_small_batches_pass_large_ones_that_are_being_rewritten() -> None:
    """
    Four batches that come to 20 MiB are rewritten, one at a time, and none of them is done: a
    hundred small ones are.
    """
    hold, begun, heavy_now = threading.Event(), threading.Event(), []

    def held(*args: Any) -> Any:
        most_bytes = args[3]
        if most_bytes > 4 * MiB:
            heavy_now.append(1)
            begun.set()
            assert hold.wait(10)
        return rewrite(0, *args)

    limits = TopicLimits(max_message_bytes=MiB, codec=Codec.GZIP)
    large, small = bomb(20 * MiB), memoryview(good(b"x", codec=batches.Codec.ZSTD))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        work = lanes(one, two, BatchDecoder(), [0.0])

        def asked(batch: memoryview) -> Any:
            return work.run(CLIENT, held, limits, batch, kernel.check(batch, 0, len(batch)))

        heavy = [asyncio.create_task(asked(large)) for _ in range(4)]
        assert await asyncio.to_thread(begun.wait, 10)
        async with asyncio.timeout(10):
            light = await asyncio.gather(*(asked(small) for _ in range(100)))
        unfinished = [task.done() for task in heavy]
        at_once = len(heavy_now)
        hold.set()
        done = await asyncio.gather(*heavy)

    assert [False] * 4 == unfinished
    assert 1 == at_once
    assert {Codec.GZIP} == {one.checked[1] & 7 for one in [*light, *done]}


async def test_small_batches_go_first_and_those_that_wait_move_up() -> None:
    """
    A batch of 1 MiB lets pass what is smaller and comes in the next five seconds from its client.
    """
    order: list[int] = []
    hold = threading.Event()

    def rewritten(_: Any, records: memoryview, *__: Any) -> None:
        assert hold.wait(10)
        order.append(len(records))

    now = [0.0]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        work = lanes(one, two, BatchDecoder(), now)
        tasks = []
        for at_ms, size in ((0, 7), (0, MiB), (0, 100), (4_000, 101), (6_000, 102)):
            now[0] = at_ms
            records = memoryview(bytes(size))
            tasks.append(asyncio.create_task(work.run(CLIENT, rewritten, None, records, None)))
            await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(*tasks)

    assert [7, 100, 101, MiB, 102] == order


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize("size_bytes", [100, 5 * MiB])
async def test_a_client_waits_for_one_batch_of_a_client_that_has_a_hundred(
    size_bytes: int, connections: int
) -> None:
    """
    In either lane, however many connections those are of.  A client of the same address waits for
    one batch of each.  Its own batch is not the smallest.
    """
    flood = [Client("10.0.0.1") for _ in range(connections)]
    beside, other = Client("10.0.0.1"), Client("10.0.0.2")
    order: list[Client] = []
    now, all_asked = [0.0], asyncio.Event()

    async def rewritten(_: Callable[..., Any], client: Client, *__: Any) -> None:
        await all_asked.wait()
        order.append(client)
        now[0] += 1

    heavy = size_bytes > 4 * MiB
    async with asyncio.TaskGroup() as tasks:
        work = ConversionLanes(
            light=never if heavy else rewritten,
            heavy=rewritten if heavy else never,
            decoding=BatchDecoder(),
            now_ms=lambda: now[0],
        )

        def asked(client: Client, size: int) -> None:
            tasks.create_task(work.run(client, rewrite, client, memoryview(bytes(size)), None))

        for number in range(100):
            asked(flood[number % connections], size_bytes)
        await asyncio.sleep(0)
        asked(beside, size_bytes + 1)
        asked(other, size_bytes + 1)
        await asyncio.sleep(0)
        all_asked.set()

    assert [flood[0], other] == order[:2]
    assert order.index(beside) <= connections + 1
    assert dict.fromkeys(flood, 100 // connections) | {beside: 1, other: 1} == Counter(order)


async def test_a_client_that_leaves_while_it_waits_keeps_no_other_waiting() -> None:
    """
    The lane goes on with the next batch: of the same client, and of another.
    """
    order: list[int] = []
    begun, hold = asyncio.Event(), asyncio.Event()

    async def rewritten(_: Callable[..., Any], number: int, *__: Any) -> None:
        begun.set()
        await hold.wait()
        order.append(number)

    work = ConversionLanes(
        light=rewritten, heavy=never, decoding=BatchDecoder(), now_ms=lambda: 0.0
    )
    clients = (CLIENT, CLIENT, CLIENT, Client("10.0.0.2"), Client("10.0.0.3"))
    tasks = [
        asyncio.create_task(work.run(client, rewrite, number, memoryview(b"x"), None))
        for number, client in enumerate(clients)
    ]
    await begun.wait()
    for number in (1, 3):
        tasks[number].cancel()
    hold.set()
    async with asyncio.timeout(10):
        ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert [0, 2, 4] == sorted(order)
    assert [1, 3] == [n for n, end in enumerate(ended) if isinstance(end, asyncio.CancelledError)]


async def test_a_batch_that_comes_to_too_much_is_refused_and_counted() -> None:
    """
    By the name of the config.
    """
    counted: list[str] = []
    decoding = BatchDecoder(BatchLimits(decompressed_bytes=6 * MiB), counted.append)
    limits = TopicLimits(max_message_bytes=MiB, codec=Codec.GZIP)
    batch = bomb(7 * MiB)
    checked = kernel.check(batch, 0, len(batch))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        work = lanes(one, two, decoding, [0.0])
        with pytest.raises(OverBatchLimitError, match=r"driftlog\.max\.batch\.decompressed"):
            await work.run(CLIENT, partial(rewrite, 0), limits, batch, checked)

    assert ["driftlog.max.batch.decompressed.bytes"] == counted
