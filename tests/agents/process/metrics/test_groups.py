"""A group that falls behind would be seen by no alert."""

from pathlib import Path

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.process.metrics.groups import GroupFigures, collect
from driftlog_agents.process.metrics.partitions import OTHERS
from driftlog_agents.protocol.messages import offset_commit
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.agents.network.serving import Client, Serving


async def commit(client: Client, group: str, topic: str, offsets: dict[int, int]) -> None:
    """OffsetCommit of a group without members."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_metadata=""
        )
        for number, offset in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    )
    response = await client.call(offset_commit.API, 8, request)
    codes = {part.error_code for each in response.topics for part in each.partitions}
    assert {0} == codes


def shown(agent: Serving) -> dict[tuple[str, ...], float]:
    """Committed offsets and lags by their labels."""
    return {
        (sample.name.removeprefix("driftlog_group_"), *sample.labels.values()): sample.value
        for metric in collect(agent.process)
        for sample in metric.samples
        if sample.labels.get("group")
    }


async def test_the_lag_of_a_group_is_shown(tmp_path: Path) -> None:
    """
    By topic, over its partitions; an offset beyond the end, as after a loss, is no negative lag.
    """
    batch = encode_batch([b"x", b"y", b"z"], timestamp_ms=1).data
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 3)
        await client.create("u", 1)
        await client.produce("t", {0: batch, 1: batch})
        await commit(client, "g", "t", {0: 1, 1: 0, 2: 9})
        await commit(client, "g", "u", {0: 0})
        found = shown(agent)

    assert found == {
        ("committed_offset", "g", "t", "0"): 1,
        ("committed_offset", "g", "t", "1"): 0,
        ("committed_offset", "g", "t", "2"): 9,
        ("committed_offset", "g", "u", "0"): 0,
        ("lag_records", "g", "t"): 5,
        ("lag_records", "g", "u"): 0,
    }


async def test_offsets_beyond_the_limit_are_summed(tmp_path: Path) -> None:
    """
    Their lag counts, and they have no series.
    """
    batch = encode_batch([b"x", b"y"], timestamp_ms=1).data
    broker = BrokerSettings(driftlog_metrics_max_partitions=1)
    async with Serving(tmp_path, broker=broker) as agent, agent.client() as client:
        await client.create("t", 1)
        await client.produce("t", {0: batch})
        for group in ("first", "second", "third"):
            await commit(client, group, "t", {0: 0})
        found = shown(agent)

    assert found == {
        ("committed_offset", "first", "t", "0"): 0,
        ("lag_records", "first", "t"): 2,
        ("lag_records", OTHERS, OTHERS): 4,
    }


def left_out(agent: Serving) -> float:
    """Committed offsets without series."""
    name = "driftlog_group_offsets_without_series"
    (found,) = (
        sample.value
        for metric in collect(agent.process)
        for sample in metric.samples
        if sample.name == name
    )
    return found


async def test_a_group_of_many_partitions_hides_no_other_one(tmp_path: Path) -> None:
    """
    It has what the others leave, and what has no series is counted.
    """
    broker = BrokerSettings(driftlog_metrics_max_partitions=8)
    async with Serving(tmp_path, broker=broker) as agent, agent.client() as client:
        await client.create("t", 12)
        await commit(client, "large", "t", dict.fromkeys(range(8), 0))
        alone, none = shown(agent), left_out(agent)
        await commit(client, "large", "t", dict.fromkeys(range(12), 0))
        for group in ("a", "b"):
            await commit(client, group, "t", {0: 0})
        together, some = shown(agent), left_out(agent)

    def series(found: dict[tuple[str, ...], float]) -> dict[str, int]:
        groups = [labels[1] for labels in found if labels[0] == "committed_offset"]
        return {group: groups.count(group) for group in groups}

    assert ({"large": 8}, 0) == (series(alone), none)
    assert ({"large": 6, "a": 1, "b": 1}, 6) == (series(together), some)


async def test_a_long_group_id_is_cut(tmp_path: Path) -> None:
    """
    A client chooses it; two that begin with the same characters stay two.
    """
    ids = ["g" * 249, "ä" * 500, "ä" * 500 + "b"]
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 1)
        for group in ids:
            await commit(client, group, "t", {0: 0})
        labels = [labels[1] for labels in shown(agent) if labels[0] == "committed_offset"]

    assert ids[0] == labels[0]
    assert {"ä" * 124 + "-"} == {label[:125] for label in labels[1:]}
    assert [249, 265, 265] == [len(label.encode()) for label in labels]
    assert 3 == len(set(labels))


async def test_groups_may_change_between_two_slices_of_a_scrape(tmp_path: Path) -> None:
    """
    Each offset is a step, so the event loop goes on beside thousands of them.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 600)
        await commit(client, "g", "t", dict.fromkeys(range(300), 1))
        steps = GroupFigures(agent.process).steps()
        for _ in range(10):
            next(steps)
        await commit(client, "g", "t", dict.fromkeys(range(300, 600), 1))
        await commit(client, "new", "t", {0: 1})
        left = sum(1 for _ in steps)

    assert 290 <= left
