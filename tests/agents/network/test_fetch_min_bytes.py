"""A consumer that waits for more bytes is answered before they are there, or is not answered when
they are."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import fetch
from tests.agents.network.serving import Client, Serving, eventually, fetched, fetching, records


def batch(seed: int) -> bytearray:
    """One record of 1,000 random bytes."""
    return encode_batch([Random(seed).randbytes(1_000)], timestamp_ms=1).data


SIZE = len(batch(0))


async def one_flush(client: Client, batches: int) -> None:
    """Produce so many batches to partition 0 at once; they are committed together."""
    for seed in range(batches):
        client.send_produce("t", {0: batch(seed)})
    for _ in range(batches):
        await client.receive()


async def test_batches_before_the_offset_do_not_count(tmp_path: Path) -> None:
    """
    A fetch in the middle of a large flush waits for as much as it wants behind its offset.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        await one_flush(other, 8)
        wants = fetching("t", {0: 6}, max_wait_ms=60_000, min_bytes=4 * SIZE)
        number = client.send(fetch.API, 11, wants)
        await eventually(lambda: len(agent.log("t").waiting_fetches) == 1)
        await other.produce("t", {0: batch(8)})
        await other.produce("t", {0: batch(9)})
        got, answer = await client.receive()

    assert number == got
    assert 4 * SIZE == len(records(fetched(answer)[0]))


async def test_more_is_not_wanted_than_an_answer_may_have(tmp_path: Path) -> None:
    """
    `min_bytes` above `max_bytes` is `max_bytes`: such a fetch is answered when that is there.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        await one_flush(other, 4)
        wants = {"max_wait_ms": 60_000, "min_bytes": 2**30, "max_bytes": 2 * SIZE}
        found = await client.fetch("t", {0: 0}, **wants)

    assert 2 * SIZE == len(records(found[0]))


async def test_what_is_there_is_not_waited_for(tmp_path: Path) -> None:
    """
    Enough bytes of which an answer takes only whole batches are answered at once.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        await one_flush(other, 4)
        wants = {"max_wait_ms": 60_000, "min_bytes": 2 * SIZE + 10}
        found = await client.fetch("t", {0: 0}, **wants, partition_max_bytes=2 * SIZE + 10)

    assert 2 * SIZE == len(records(found[0]))


@pytest.mark.parametrize("topics", [["t", "nope"], ["nope", "t"]])
async def test_a_partition_that_is_not_known_brings_no_answer_forward(
    tmp_path: Path, topics: list[str]
) -> None:
    """
    The request waits for the records of the others, as in Kafka; answered at once, a consumer of a
    deleted topic and of an idle one polls without end.  Alone, it is answered at once; and so is an
    offset out of range.
    """
    wants = {"max_wait_ms": 60_000, "min_bytes": 1}
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t", 2)
        alone = await client.fetch("nope", {0: 0}, **wants)
        strange = await client.fetch("t", {0: 0, 1: 99}, **wants)
        asked = fetching("t", {0: 0}, **wants)
        asked.topics = [topic for name in topics for topic in fetching(name, {0: 0}).topics]
        client.send(fetch.API, 11, asked)
        await eventually(lambda: len(agent.log("t").waiting_fetches) == 1)
        await other.produce("t", {0: batch(0)})
        _, answer = await client.receive()

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (unknown, ErrorCode.OFFSET_OUT_OF_RANGE) == (alone[0].error_code, strange[1].error_code)
    told = {topic.topic: topic.partitions[0] for topic in answer.responses}
    assert (unknown, SIZE) == (told["nope"].error_code, len(records(told["t"])))


@pytest.mark.parametrize("field", ["current_leader_epoch", "last_fetched_epoch"])
async def test_a_negative_epoch_is_none(tmp_path: Path, field: str) -> None:
    """
    `FetchRequest#optionalEpoch`: it was fenced, or out of range.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch(0)})
        asked = fetching("t", {0: 0})
        setattr(asked.topics[0].partitions[0], field, -2)
        answer = fetched(await client.call(fetch.API, 12, asked))

    assert (0, SIZE) == (answer[0].error_code, len(records(answer[0])))


async def test_the_id_of_no_topic_is_an_unknown_one(tmp_path: Path) -> None:
    """
    The error of a name, 3, is none of those that clients expect for an id.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t")
        answer = fetched(await client.call(fetch.API, 13, fetching("", {0: 0})))

    assert ErrorCode.UNKNOWN_TOPIC_ID == answer[0].error_code


async def test_records_of_the_bucket_keep_to_the_limit_of_the_answer(tmp_path: Path) -> None:
    """
    A first batch that is larger than its partition's limit leaves less for the other partitions.
    """
    large = encode_batch([Random(0).randbytes(700_000)], timestamp_ms=1).data
    limits = {"max_bytes": 1_200_000, "partition_max_bytes": 600_000}
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 2)
        await client.produce("t", {0: large, 1: large})
        await agent.seal("t")
        agent.objects.reads.close()
        client.send(fetch.API, 11, fetching("t", {0: 0, 1: 0}, **limits))
        reads = agent.process.broker.reader.objects
        await eventually(lambda: reads.requests == 2)
        agent.objects.reads.open()
        _, answer = await client.receive()
        sizes = [len(records(data)) for data in fetched(answer).values() if data.records]

    assert 1 == len(sizes)
    assert 700_000 < sizes[0]
