"""A dashboard that shows other offsets or bytes of a partition than it has misleads; series without
a limit fill Prometheus."""

from pathlib import Path

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.process.metrics.partitions import OTHERS, collect
from tests.agents.network.serving import Serving, eventually

Series = dict[tuple[str, ...], float]


def shown(agent: Serving) -> Series:
    """Values by name (without its prefix) and labels."""
    return {
        (sample.name.removeprefix("driftlog_partition_"), *sample.labels.values()): sample.value
        for metric in collect(agent.process)
        for sample in metric.samples
    }


async def test_each_tier_of_a_partition_is_shown(tmp_path: Path) -> None:
    """
    Two records are sealed, one is flushed, and one waits for the bucket; bytes are as received.
    """
    batch = encode_batch([b"x"], timestamp_ms=1).data
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 2)
        await client.produce("t", {0: batch})
        await client.produce("t", {0: batch})
        await agent.seal("t")
        await client.produce("t", {0: batch})
        agent.objects.writes.close()
        client.send_produce("t", {0: batch}, acks=1)
        await eventually(lambda: agent.log("t").log_end == 4)
        found = shown(agent)

    size = len(batch)
    assert [0, 2, 3, 4] == [
        found[name, "t", "0"]
        for name in ("log_start_offset", "sealed_end_offset", "high_watermark", "log_end_offset")
    ]
    tiers = ("buffer", "flushed", "sealed")
    assert [1, 1, 2] == [found["records", "t", "0", tier] for tier in tiers]
    assert [size, size, 2 * size] == [found["bytes", "t", "0", tier] for tier in tiers]
    assert [0, 0, 0] == [found["bytes", "t", "1", tier] for tier in tiers]


async def test_partitions_beyond_the_limit_are_summed(tmp_path: Path) -> None:
    """
    The first by topic and number have series of their own, whatever is produced.
    """
    batch = encode_batch([b"x"], timestamp_ms=1).data
    broker = BrokerSettings(driftlog_metrics_max_partitions=2)
    async with Serving(tmp_path, broker=broker) as agent, agent.client() as client:
        await client.create("b", 2)
        await client.create("a", 1)
        for topic, partition in (("b", 1), ("b", 1), ("b", 0), ("a", 0)):
            await client.produce(topic, {partition: batch})
        two = shown(agent)
        await client.create("c", 2)
        await client.produce("c", {1: batch})
        more = shown(agent)

    assert {("a", "0"), ("b", "0"), (OTHERS, OTHERS)} == {labels[1:3] for labels in two}
    assert 2 == two["records", OTHERS, OTHERS, "flushed"]
    assert 2 * len(batch) == two["bytes", OTHERS, OTHERS, "flushed"]
    assert 3 == more["records", OTHERS, OTHERS, "flushed"]
    assert two.keys() == more.keys()
    assert ("high_watermark", OTHERS, OTHERS) not in two


async def test_a_limit_of_none_leaves_the_sum(tmp_path: Path) -> None:
    """
    And an agent without partitions shows nothing of them.
    """
    broker = BrokerSettings(driftlog_metrics_max_partitions=0)
    async with Serving(tmp_path, broker=broker) as agent, agent.client() as client:
        before = shown(agent)
        await client.create("a", 1)
        await client.produce("a", {0: encode_batch([b"x"], timestamp_ms=1).data})
        after = shown(agent)

    assert {} == before
    assert {(OTHERS, OTHERS)} == {labels[1:3] for labels in after}
