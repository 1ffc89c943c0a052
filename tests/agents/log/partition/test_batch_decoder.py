"""Large batches are decoded one after the other, so that they do not fill the memory together."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_tiering.batches.batch_limits import HEADERS, BatchLimits

LIMITS = BatchLimits(decompressed_bytes=100)


class Batches:
    """What is decoded now, and in which order it began."""

    def __init__(self, decoding: BatchDecoder) -> None:
        self.decoding = decoding
        self.now = 0
        self.most = 0
        self.order: list[str] = []

    async def decode(self, name: str, size_bytes: int | None = None) -> None:
        async with self.decoding.large(size_bytes):
            size = LIMITS.decompressed_bytes if size_bytes is None else min(size_bytes, 100)
            self.now += size
            self.most = max(self.most, self.now)
            self.order.append(name)
            await asyncio.sleep(0.001)
            self.now -= size


async def test_what_is_decoded_at_once_is_bounded_and_nobody_is_passed() -> None:
    """
    Large ones wait, in the order in which they came; one that is larger than all goes alone.
    """
    settled: list[int] = []

    async def settle() -> None:
        settled.append(1)

    batches = Batches(BatchDecoder(LIMITS, settle=settle))
    async with asyncio.TaskGroup() as tasks:
        for n, size in enumerate([60, 60, 30, None, 40, 40, 500, 10]):
            tasks.create_task(batches.decode(str(n), size))

    assert [str(n) for n in range(8)] == batches.order
    assert 100 == batches.most
    assert 8 == len(settled)


async def test_of_reads_one_at_most_waits_with_others_that_of_the_client_that_has_had_least() -> (
    None
):
    """
    However many a client has: a batch that a producer waits for is next, and so is another client.
    """
    order: list[str] = []

    async def work(fn: Callable[[], None]) -> None:
        await asyncio.sleep(0.001)
        fn()

    decoder = BatchDecoder(LIMITS, offload=work)

    async def read(address: str) -> None:
        work_for(Client(address))
        await decoder.read_large(partial(order.append, address))

    async def produce() -> None:
        async with decoder.large():
            order.append("produce")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(read("10.0.0.1"))
        tasks.create_task(produce())
        tasks.create_task(read("10.0.0.2"))

    assert 22 == len(order)
    assert "produce" in order[:2]
    assert "10.0.0.2" in order[:4]


@pytest.mark.parametrize("begun", [False, True])
async def test_one_that_is_cancelled_leaves_its_turn_to_the_next(begun: bool) -> None:
    """
    Whether it waits, or has just been told to begin.
    """
    batches = Batches(BatchDecoder(LIMITS))
    first = asyncio.create_task(batches.decode("first"))
    await asyncio.sleep(0)
    second = asyncio.create_task(batches.decode("second"))
    third = asyncio.create_task(batches.decode("third"))
    await asyncio.sleep(0)
    if begun:
        first.add_done_callback(lambda _: second.cancel())
    else:
        second.cancel()
    await asyncio.wait([first, second, third], timeout=5)

    assert third.done()
    assert ("first", "third") == (batches.order[0], batches.order[-1])
    async with asyncio.timeout(5):
        await batches.decode("last")


def test_a_batch_over_a_limit_is_counted_by_its_config() -> None:
    """
    As `driftlog_refused_total` names it.
    """
    counted: list[str] = []
    BatchDecoder(LIMITS, counted.append).refuse(HEADERS)

    assert ["driftlog.max.batch.headers"] == counted
