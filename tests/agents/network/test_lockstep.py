"""A producer that waits for each answer gets early flushes; pipelined ones still share theirs."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from tests.agents.network.serving import ENGINE, Client, Serving

QUIET_S = 6.0
BATCH = encode_batch([b"x"], timestamp_ms=1).data


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """Its patience is long enough to be seen, and three seconds are no pause."""
    flush = FlushSettings(
        quiet_ms=QUIET_S * 1000,
        flush_interval_ms=4 * QUIET_S * 1000,
        lockstep_ms=QUIET_S / 2 * 1000,
    )
    async with Serving(tmp_path, engine=replace(ENGINE, flush=flush)) as serving:
        yield serving


async def timed(client: Client, requests: int = 1) -> float:
    """Seconds until so many pipelined requests are answered."""
    began = time.monotonic()
    for _ in range(requests):
        client.send_produce("t", {0: bytearray(BATCH)})
        await asyncio.sleep(0.01)
    for _ in range(requests):
        await client.receive()
    return time.monotonic() - began


async def test_a_producer_in_lockstep_is_waited_for_once(agent: Serving) -> None:
    """
    The first request may be one of many; who answers an answer with one request sends one.
    """
    async with agent.client() as client:
        await client.create("t")
        first = await timed(client)
        others = [await timed(client) for _ in range(3)]

    assert QUIET_S <= first
    assert max(others) < QUIET_S / 2
    assert 4 == agent.engine.counters.flushes_early


async def test_a_pipelining_producer_still_shares_its_flushes(agent: Serving) -> None:
    """
    Five requests in flight are one object, again and again, and not one and four.
    """
    async with agent.client() as client:
        await client.create("t")
        first = await timed(client, 5)
        second = await timed(client, 5)

    assert QUIET_S <= first
    assert second < QUIET_S / 2
    assert 2 == agent.engine.counters.flushes_early
