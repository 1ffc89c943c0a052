"""Several partitions are sealed at once, and each by one sealing at a time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.batches import encode_batch
from tests.agents.network.serving import Serving, eventually


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent that seals when it is told to."""
    async with Serving(tmp_path) as serving:
        yield serving


def batch() -> bytearray:
    """One record."""
    return encode_batch([b"value"], timestamp_ms=1).data


async def test_one_is_sealed_while_the_segment_of_another_is_put(agent: Serving) -> None:
    """
    A store that keeps one PUT waiting does not keep other partitions' segments.
    """
    async with agent.client() as client:
        await client.create("t", 2)
        await client.produce("t", {0: batch(), 1: batch()}, acks=-1)
        agent.objects.writes_of = ".parquet"
        agent.objects.writes.close()
        sealer = agent.engine.sealer
        sealing = [asyncio.create_task(sealer.seal(agent.log("t", p))) for p in (0, 1)]
        await eventually(lambda: agent.objects.writes.waiting == 2)
        agent.objects.writes.open()

        assert [1, 1] == await asyncio.gather(*sealing)
    assert 2 == agent.engine.counters.segments_sealed


async def test_two_who_seal_one_partition_make_one_segment(agent: Serving) -> None:
    """
    The second waits for the first, and finds it done; so does who comes after one that failed.
    """
    async with agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch()}, acks=-1)
        agent.objects.writes_of = ".parquet"
        agent.objects.writes.close()
        sealer = agent.engine.sealer
        first, second, third = (asyncio.create_task(sealer.seal(agent.log("t"))) for _ in range(3))
        await eventually(lambda: agent.objects.writes.waiting == 1)
        first.cancel()
        await eventually(lambda: first.done() and agent.objects.writes.waiting == 1)
        await asyncio.sleep(0.05)
        assert 1 == agent.objects.writes.waiting
        agent.objects.writes.open()

        assert [1, 1] == list(await asyncio.gather(second, third))
    assert 1 == agent.engine.counters.segments_sealed
