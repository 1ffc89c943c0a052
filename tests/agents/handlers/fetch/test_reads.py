"""If it broke, one Fetch of a few bytes would keep the agent from all its clients, or a consumer of
many partitions would get a few of them with each answer."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.handlers.fetch import handler, request
from driftlog_agents.log.partition import local_plan
from driftlog_agents.protocol.api import take_apart
from driftlog_agents.protocol.messages.fetch import PartitionData
from tests.agents.network.serving import Client, Serving, eventually, records

BATCH = encode_batch([b"x"], timestamp_ms=1).data
PARTITIONS = 3
EACH = 4
"""Batches of each partition."""


async def fill(client: Client) -> None:
    """Each batch is in a flush of its own."""
    await client.create("t", PARTITIONS)
    for _ in range(EACH):
        await client.produce("t", dict.fromkeys(range(PARTITIONS), BATCH))


def batches(found: dict[int, PartitionData]) -> list[int]:
    """How many came of each partition."""
    return [len(records(found[n])) // len(BATCH) for n in range(PARTITIONS)]


@pytest.mark.parametrize("slowly", [False, True])
async def test_the_partitions_of_an_answer_have_a_limit_of_batches_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slowly: bool
) -> None:
    """
    Also where they are so many that they are read in slices; the client, which would wait for
    more, goes on at once.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await fill(client)
        monkeypatch.setattr(local_plan, "MOST_BATCHES", EACH + 1)
        if slowly:
            monkeypatch.setattr(request, "MANY_PARTITIONS", 1)
            monkeypatch.setattr(handler, "MANY_PARTITIONS", 1)
        asked = dict.fromkeys(range(PARTITIONS), 0)
        found = await client.fetch("t", asked, max_wait_ms=60_000, min_bytes=1 << 20)

    assert [EACH, 1, 0] == batches(found)


async def test_partitions_that_one_step_cannot_read_are_read_in_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The answer has all of them: a consumer of many would make a request for each few.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await fill(client)
        monkeypatch.setattr(local_plan, "MOST_SLICES", EACH - 1)
        found = await client.fetch("t", dict.fromkeys(range(PARTITIONS), 0))
        alone = await client.fetch("t", {0: EACH - 1})

    assert [EACH - 1] * PARTITIONS == batches(found)
    assert 1 == len(records(alone[0])) // len(BATCH)


async def test_a_consumer_of_a_log_in_pieces_gets_every_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No answer is empty, however little one step may read.
    """
    seen: Counter[int] = Counter()
    async with Serving(tmp_path) as agent, agent.client() as client:
        await fill(client)
        monkeypatch.setattr(local_plan, "MOST_SLICES", 1)
        monkeypatch.setattr(local_plan, "MOST_BATCHES", 2)
        at = dict.fromkeys(range(PARTITIONS), 0)
        while any(offset < EACH for offset in at.values()):
            found = await client.fetch("t", {n: at[n] for n in at if at[n] < EACH})
            came = {n: len(records(data)) // len(BATCH) for n, data in found.items()}
            assert 1 <= sum(came.values()) <= 2
            for n, count in came.items():
                at[n] += count
                seen[n] += count

    assert dict.fromkeys(range(PARTITIONS), EACH) == seen


async def test_an_answer_of_very_many_partitions_is_taken_apart_after_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With its request, by a thread, also where it waits first; the client has all of it.
    """
    taken: list[str] = []

    def noting(messages: list[Any]) -> None:
        taken.extend(type(one).__name__ for one in messages)
        take_apart(messages)

    async with Serving(tmp_path) as agent, agent.client() as client:
        await fill(client)
        monkeypatch.setattr(request, "MANY_PARTITIONS", 1)
        monkeypatch.setattr(handler, "MANY_PARTITIONS", 1)
        monkeypatch.setattr(handler, "take_apart", noting)
        found = await client.fetch("t", dict.fromkeys(range(PARTITIONS), 0))
        await eventually(lambda: len(taken) == 2)
        waited = await client.fetch("t", dict.fromkeys(range(PARTITIONS), EACH), max_wait_ms=10)
        await eventually(lambda: len(taken) == 5)

    assert [EACH] * PARTITIONS == batches(found)
    assert [0] * PARTITIONS == [data.error_code for data in waited.values()]
    assert ["FetchTopic", "FetchableTopicResponse"] == taken[:2] == taken[3:]
    assert ["FetchableTopicResponse"] == taken[2:3]
