"""A trace of a Produce request that shows steps of another request misleads."""

import asyncio
from pathlib import Path

from benchmarks.batches import encode_batch, set_producer
from driftlog_agents.handlers.produce.traces import ProduceTrace
from tests.agents.network.serving import Serving


class Kept:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.traces: list[ProduceTrace] = []

    def ended(self, trace: ProduceTrace) -> None:
        self.traces.append(trace)


async def test_each_way_of_a_request_is_traced(tmp_path: Path) -> None:
    """
    acks=all through a flush, acks=1 through the disk, and a refusal; the steps in their order.
    """
    batch = encode_batch([b"x"], timestamp_ms=1).data
    kept = Kept()
    async with Serving(tmp_path, traces=kept) as agent, agent.client() as client:
        await client.create("t")
        for acks, data in ((-1, batch), (1, batch), (-1, b"\0" * 80)):
            told = len(kept.traces)
            async with asyncio.timeout(20):
                while len(kept.traces) == told:
                    answers = await client.produce("t", {0: data}, acks=acks)
            last = kept.traces[-1]
            assert answers[0].base_offset == last.base_offset

    flushed, synced, refused = kept.traces
    assert ["committed", "synced"] == [flushed.outcome, synced.outcome]
    assert ("t", 0) == (flushed.topic, flushed.partition)
    assert refused.outcome not in ("committed", "synced")
    assert (None, None) == (synced.flush, refused.flush)
    assert flushed.flush is not None
    _, *steps = flushed.flush
    steps = [flushed.received_ms, *steps, flushed.answered_ms]
    assert steps == sorted(steps)
    assert synced.received_ms <= synced.answered_ms


async def test_a_duplicate_has_no_flush(tmp_path: Path) -> None:
    """
    A duplicate of a committed batch is answered at once: no flush is shown for it.
    """
    first = bytearray(encode_batch([b"x"], timestamp_ms=1).data)
    set_producer(first, 1000, 0, 0)
    kept = Kept()
    async with Serving(tmp_path, traces=kept) as agent, agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: first})
        told = len(kept.traces)
        async with asyncio.timeout(20):
            while len(kept.traces) == told:
                answers = await client.produce("t", {0: first})
        assert 0 == answers[0].error_code

    assert "committed" == kept.traces[-1].outcome
    assert kept.traces[-1].flush is None
