"""A consumer of very many partitions costs an agent work at each poll, or its session misses
records."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.fetch import reads
from driftlog_agents.process.metrics.collect import collect
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import delete_topics, fetch
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from driftlog_agents.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from driftlog_agents.protocol.types import NULL_UUID
from tests.agents.network.serving import Client, MiB, Serving, eventually, records

VERSION = 12


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with the limits that it has by itself."""
    async with Serving(tmp_path) as serving:
        yield serving


def batch(size: int = 1_000, seed: int = 0) -> bytearray:
    """One record of so many random bytes."""
    return encode_batch([Random(seed).randbytes(size)], timestamp_ms=1).data


class Session:
    """A client's fetch session on one topic."""

    def __init__(self, client: Client, topic: str = "t", version: int = VERSION) -> None:
        self.client = client
        self.topic = topic
        self.topic_id = NULL_UUID
        self.version = version
        self.session_id = self.epoch = 0

    def request(
        self, offsets: Mapping[int, int], forget: Iterable[int] = (), **limits: int
    ) -> FetchRequest:
        """The next request; the epoch goes on."""
        most = limits.pop("partition_max_bytes", MiB)
        partitions = [
            FetchPartition(partition=n, fetch_offset=at, partition_max_bytes=most)
            for n, at in offsets.items()
        ]
        name: dict[str, Any] = {"topic": self.topic, "topic_id": self.topic_id}
        gone = [ForgottenTopic(**name, partitions=list(forget))] if forget else []
        asked = FetchRequest(
            max_wait_ms=limits.get("max_wait_ms", 0),
            min_bytes=limits.get("min_bytes", 1),
            max_bytes=limits.get("max_bytes", 50 * MiB),
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(**name, partitions=partitions)] if partitions else [],
            forgotten_topics_data=gone,
        )
        self.epoch += 1
        return asked

    async def poll(
        self, offsets: Mapping[int, int] | None = None, forget: Iterable[int] = (), **limits: int
    ) -> dict[int, PartitionData]:
        """The partitions of the next answer."""
        answer = await self.ask(offsets, forget, **limits)
        assert 0 == answer.error_code
        assert self.epoch == 1 or answer.session_id == self.session_id
        self.session_id = answer.session_id
        return {
            data.partition_index: data for topic in answer.responses for data in topic.partitions
        }

    async def ask(
        self, offsets: Mapping[int, int] | None = None, forget: Iterable[int] = (), **limits: int
    ) -> FetchResponse:
        """The next answer."""
        request = self.request(offsets or {}, forget, **limits)
        return await self.client.call(fetch.API, self.version, request)


async def test_an_answer_has_what_changed(agent: Serving) -> None:
    """
    The first has all partitions; later ones those with records or another high watermark.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 3)
        session = Session(client)
        first = await session.poll({0: 0, 1: 0, 2: 0})
        nothing = await session.poll()
        await other.produce("t", {1: batch()})
        moved = await session.poll()
        behind = await session.poll({1: 1})
        after = await session.poll()

    assert [0, 1, 2] == list(first)
    assert session.session_id > 0
    assert ({}, {}, {}) == (nothing, behind, after)
    assert [1] == list(moved)
    assert (1, 1) == (moved[1].high_watermark, moved[1].last_stable_offset)
    assert len(batch()) == len(records(moved[1]))


async def test_a_session_waits_for_the_records_of_each_of_its_partitions(agent: Serving) -> None:
    """
    As long as it may, though its request names none; for so many bytes as it wants of all.
    """
    size = len(batch())
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 4)
        session = Session(client)
        await session.poll(dict.fromkeys(range(4), 0))
        began = time.monotonic()
        nothing = await session.poll(max_wait_ms=300)
        took_s = time.monotonic() - began
        wait = session.request({}, max_wait_ms=60_000, min_bytes=3 * size)
        number = client.send(fetch.API, VERSION, wait)
        answered = asyncio.create_task(client.receive())
        for partition in (2, 3):
            await other.produce("t", {partition: batch()})
        await asyncio.sleep(0.1)
        early = answered.done()
        await other.produce("t", {2: batch(seed=2)})
        got, answer = await answered

    assert {} == nothing
    assert 0.25 < took_s < 10
    assert not early, "answered before there was enough"
    assert number == got
    assert {2: 2 * size, 3: size} == {
        data.partition_index: len(records(data))
        for topic in answer.responses
        for data in topic.partitions
    }


async def test_forgotten_partitions_are_not_waited_for(agent: Serving) -> None:
    """
    Nor told; asked for again, they are told with all that they have.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 2)
        session = Session(client)
        await session.poll({0: 0, 1: 0})
        await session.poll({}, forget=[1])
        await other.produce("t", {1: batch()})
        without = await session.poll(max_wait_ms=100)
        again = await session.poll({1: 0})

    assert {} == without
    assert len(batch()) == len(records(again[1]))


async def test_a_session_without_partitions_ends_at_once(agent: Serving) -> None:
    """
    The answer has id 0, and the next request has no session.
    """
    async with agent.client() as client:
        await client.create("t")
        session = Session(client)
        await session.poll({0: 0})
        ended = await session.ask({}, forget=[0], max_wait_ms=60_000)
        after = await session.ask()

    assert (0, 0, []) == (ended.error_code, ended.session_id, ended.responses)
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == after.error_code
    assert 0 == len(agent.process.dispatcher.fetching.sessions)


async def test_a_session_goes_on_with_another_connection(agent: Serving) -> None:
    """
    Also where a request of it waits on the first one, which is answered that its epoch is over.
    """
    async with agent.client() as client, agent.client() as second, agent.client() as other:
        await other.create("t")
        session = Session(client)
        await session.poll({0: 0})
        client.send(fetch.API, VERSION, session.request({}, max_wait_ms=300))
        sessions = agent.process.dispatcher.fetching
        await eventually(lambda: sessions.requests == 2)
        session.client = second
        nothing = await session.poll()
        await other.produce("t", {0: batch()})
        found = await session.poll()
        _, late = await client.receive()

    assert {} == nothing
    assert records(found[0])
    assert (ErrorCode.INVALID_FETCH_SESSION_EPOCH, []) == (late.error_code, late.responses)


async def test_partitions_that_are_led_elsewhere_are_told_at_each_poll(agent: Serving) -> None:
    """
    A partition that is not known delays no answer if it is the only one, and brings none forward
    if it is not (KafkaApis#handleFetchRequest): a consumer of a deleted topic polled without end.
    When a topic is deleted, its partition has an error at once.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 2)
        session = Session(client)
        alone = await session.poll({9: 0}, max_wait_ms=60_000)
        began_s = time.monotonic()
        errors = [await session.poll({0: 0}, max_wait_ms=100)]
        errors.append(await session.poll(max_wait_ms=100))
        waited_s = time.monotonic() - began_s
        await session.poll({}, forget=[9])
        number = client.send(fetch.API, VERSION, session.request({}, max_wait_ms=60_000))
        await eventually(lambda: len(agent.log("t").waiting_fetches) == 1)
        topics = [DeleteTopicState(name="t")]
        request = DeleteTopicsRequest(topics=topics, topic_names=["t"], timeout_ms=30_000)
        await other.call(delete_topics.API, 5, request)
        got, gone = await client.receive()

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [{9: unknown, 0: 0}, {9: unknown}] == [
        {n: data.error_code for n, data in answer.items()} for answer in errors
    ]
    assert ([9], True) == ([*alone], waited_s >= 0.2)
    assert number == got
    (topic,) = gone.responses
    assert all(data.error_code for data in topic.partitions)


async def test_a_session_outlives_the_agents_session(agent: Serving) -> None:
    """
    Its partitions have errors while the agent leads none, and their records then.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t")
        session = Session(client)
        await session.poll({0: 0})
        await agent.lose_session()
        await eventually(lambda: agent.engine.log("t", 0) is not None)
        await other.produce("t", {0: batch()})
        found = await session.poll(max_wait_ms=10_000)

    assert len(batch()) == len(records(found[0]))


async def test_topics_by_id(agent: Serving) -> None:
    """
    From version 13 on; a request by names is none of such a session.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 2)
        session = Session(client, version=17)
        session.topic_id = agent.log("t").topic_id
        await session.poll({0: 0, 1: 0})
        await other.produce("t", {1: batch()})
        found = await session.poll()
        session.version = VERSION
        by_name = await session.ask()

    assert [1] == list(found)
    assert ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR == by_name.error_code


async def test_records_that_only_the_bucket_has_come_through_a_session(agent: Serving) -> None:
    """
    Of several partitions together; what is late comes later.
    """
    count = 6
    async with agent.client() as client, agent.client() as other:
        await other.create("t", count)
        for partition in range(count):
            await other.produce("t", {partition: batch(seed=partition)})
        await agent.seal("t")
        session = Session(client)
        found: dict[int, bytes] = {}
        reads = agent.process.broker.reader.objects
        agent.objects.reads.close()
        asked = asyncio.create_task(
            session.poll(dict.fromkeys(range(count), 0), partition_max_bytes=MiB // 16)
        )
        await eventually(lambda: reads.requests == count)
        agent.objects.reads.open()
        answer = await asked
        while len(found) < count:
            new = {n: records(data) for n, data in answer.items() if data.records}
            assert new
            assert not new.keys() & found.keys()
            found |= new
            answer = await session.poll(dict.fromkeys(new, 1))

    assert all(found.values())


async def test_an_idle_poll_of_two_thousand_partitions_reads_none(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A wait for one that moves reads that one.
    """
    checked: list[int] = []

    def checks(**fields: Any) -> PartitionData:
        checked.append(fields["partition_index"])
        return PartitionData(**fields)

    async with agent.client() as client, agent.client() as other:
        await other.create("t", 2_000)
        session = Session(client)
        first = await session.poll(dict.fromkeys(range(2_000), 0))
        monkeypatch.setattr(reads, "PartitionData", checks)
        nothing = await session.poll(max_wait_ms=50)
        idle = list(checked)
        client.send(fetch.API, VERSION, session.request({}, max_wait_ms=60_000))
        await eventually(lambda: agent.process.dispatcher.fetching.requests == 3)
        await other.produce("t", {77: batch()})
        _, answer = await client.receive()

    assert 2_000 == len(first)
    assert ({}, []) == (nothing, idle)
    assert {77} == set(checked)
    assert [77] == [d.partition_index for topic in answer.responses for d in topic.partitions]


async def test_a_client_without_a_session_for_want_of_room_is_served(tmp_path: Path) -> None:
    """
    It gets id 0 with its records, and the refusal is counted.
    """
    limits = Limits(max_incremental_fetch_session_cache_slots=1)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client() as client,
        agent.client() as other,
    ):
        await other.create("t")
        await other.produce("t", {0: batch()})
        has, has_none = Session(client), Session(other)
        await has.poll({0: 0})
        found = await has_none.poll({0: 0})
        (refused,) = (
            sample.value
            for metric in collect(agent.observed)
            for sample in metric.samples
            if sample.labels.get("limit") == "max.incremental.fetch.session.cache.slots"
        )

    assert has.session_id > 0
    assert 0 == has_none.session_id
    assert records(found[0])
    assert 1 == refused
