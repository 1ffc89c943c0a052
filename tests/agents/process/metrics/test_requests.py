"""Latencies and outcomes of an agent that serves would be missing from its metrics."""

import asyncio
from pathlib import Path

from benchmarks.batches import encode_batch
from driftlog_agents.process.metrics.collect import collect
from driftlog_metadata.stores.errors import UnavailableError
from tests.agents.network.serving import Serving, eventually


def values(agent: Serving, name: str) -> dict[tuple[str, ...], float]:
    """The values of one series by its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in collect(agent.observed)
        for sample in metric.samples
        if sample.name == name
    }


async def test_requests_are_timed_by_api(tmp_path: Path) -> None:
    """
    Of Produce the next one a few times a second, with one batch or several, also when it is
    refused; of other APIs each request is.
    """
    batch = encode_batch([b"x"], timestamp_ms=1).data
    async with Serving(tmp_path) as agent, agent.client() as client:

        def timed() -> float:
            return values(agent, "driftlog_request_seconds_count")["Produce",]

        await client.create("t", 2)
        sent = 0
        for batches in ({0: batch, 1: batch}, {0: batch}, {0: b"\0" * 80}):
            before = timed()
            async with asyncio.timeout(20):
                while timed() == before:
                    await client.produce("t", batches)
                    sent += 1
            assert timed() <= sent
        await client.fetch("t", {0: 0})
        counts = values(agent, "driftlog_request_seconds_count")
        received = values(agent, "driftlog_requests_total")
        records = values(agent, "driftlog_committed_records_total")
        ends = agent.log("t", 0).high_watermark + agent.log("t", 1).high_watermark

    assert counts["Produce",] == received["Produce",] == sent
    assert 1 == counts["Fetch",]
    assert 1 == counts["CreateTopics",]
    assert {(): ends} == records


async def test_outcomes_of_flush_commit_and_seal_are_counted(tmp_path: Path) -> None:
    """
    A refused PUT counts as refused, and its repetition as ok.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 1)
        agent.objects.writes.error = UnavailableError("503")
        client.send_produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
        refused = ("flush", "refused")
        await eventually(lambda: values(agent, "driftlog_operations_total")[refused] > 0)
        agent.objects.writes.error = None
        await eventually(lambda: agent.log("t").high_watermark == 1)
        await agent.seal("t")
        found = values(agent, "driftlog_operations_total")
        times = values(agent, "driftlog_operation_seconds_count")

    assert [1, 1, 1] == [found[operation, "ok"] for operation in ("flush", "commit", "seal")]
    assert 0 == found["compact", "failed"]
    assert 1 + found[refused] == times["flush",]


async def test_the_lease_and_the_buffers_are_shown(tmp_path: Path) -> None:
    """
    What is left of the lease, and how full buffers are.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 1)
        await client.produce("t", {0: encode_batch([b"x" * 5000], timestamp_ms=1).data})
        left = values(agent, "driftlog_lease_remaining_seconds")[()]
        disk = values(agent, "driftlog_buffer_disk_bytes")[()]
        await eventually(lambda: values(agent, "driftlog_event_loop_delay_seconds_count")[()] > 0)

    assert 0 < left <= 60
    assert disk > 5000
