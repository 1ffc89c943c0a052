"""Clients that leave before they are answered: what was counted for them is given back, once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers import dispatcher
from driftlog_agents.handlers.api import list_offsets as list_offsets_handler
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.fetch import handler
from driftlog_agents.handlers.fetch.bucket_reads import MOST_BYTES
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.queued_requests import QueuedRequest
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages import fetch, list_offsets, metadata
from driftlog_agents.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from driftlog_agents.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from driftlog_tiering.foundation.types import Buffer
from tests.agents.network.serving import Crowd, MiB, Serving, eventually, fetching, records

LIMITS = Limits(
    queued_max_request_bytes=16 * MiB,
    driftlog_max_response_queue_bytes=16 * MiB,
)
NOTHING = {"frames": 0, "requests": 0, "answers": 0}


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with room for 16 MiB of requests and 16 MiB of answers, and 5 MiB of records."""
    async with Serving(tmp_path, broker=BrokerSettings(limits=LIMITS)) as serving:
        async with serving.client() as client:
            await client.create("full")
            for n in range(5):
                value = Random(n).randbytes(MiB - 1_000)
                await client.produce("full", {0: encode_batch([value], timestamp_ms=1).data})
        yield serving


async def gone(agent: Serving) -> None:
    """The agent has noticed that nobody is connected."""
    await eventually(lambda: not agent.server.connections)


# ── Answers ──


async def test_who_leaves_during_a_read_of_the_bucket_takes_no_room_along(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Six Fetches of 4 MiB end when nobody waits for them, of 16 that there is room for: nothing is
    held, and the next is answered.
    """
    reader = agent.process.broker.reader
    local, read = reader.read_local, asyncio.Event()
    held_up = done = 0

    async def late(log: object, offset: int, limit: int, **_: object) -> object:
        nonlocal held_up, done
        held_up += 1
        await read.wait()
        done += 1
        return local(log, offset, limit)  # type: ignore[arg-type]

    wanted = fetching("full", {0: 0}, partition_max_bytes=4 * MiB)
    monkeypatch.setattr(reader, "read_local", lambda *_: None)
    monkeypatch.setattr(reader, "read", late)
    for n in range(6):
        read.clear()
        async with agent.client() as client:
            client.send(fetch.API, 11, wanted)
            await eventually(lambda n=n: held_up == n + 1)  # type: ignore[misc]
        await gone(agent)
        read.set()
        await eventually(lambda n=n: done == n + 1)  # type: ignore[misc]
    held = agent.held_bytes
    async with agent.client() as good:
        answer = await good.fetch("full", {0: 0}, partition_max_bytes=4 * MiB)

    assert NOTHING == held
    assert len(records(answer[0])) >= MiB - 1_000


@pytest.mark.parametrize("partitions", [1, 2_000])
async def test_what_is_read_of_the_bucket_is_counted_until_it_is_there(
    agent: Serving, partitions: int
) -> None:
    """
    A client leaves while the bucket does not answer: the room is given back when it has.  That is
    the room of one partition, or the most that a request reads of several.
    """
    await agent.seal("full")
    agent.objects.reads.close()
    wanted = fetching("full", dict.fromkeys(range(partitions), 0), partition_max_bytes=4 * MiB)
    async with agent.client() as client:
        client.send(fetch.API, 11, wanted)
        await eventually(lambda: agent.objects.reads.waiting > 0)
        asked = agent.held_bytes["answers"]
    await gone(agent)
    left = agent.held_bytes["answers"]
    agent.objects.reads.open()
    await eventually(lambda: agent.held_bytes == NOTHING)

    room = min(partitions * 4 * MiB, MOST_BYTES)
    assert (room, room) == (asked, left)


async def test_no_large_answer_is_encoded_for_who_has_left(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The bucket gives what a Fetch of 2,000 partitions asked for when its client is gone.
    """
    encoded = 0

    async def encode(work: Callable[..., Any], *args: Any) -> Any:
        nonlocal encoded
        encoded += work == fetch.API.encode_response_parts
        return work(*args)

    monkeypatch.setattr(handler, "off_the_loop", encode)
    await agent.seal("full")
    agent.objects.reads.close()
    wanted = fetching("full", dict.fromkeys(range(2_000), 0), partition_max_bytes=4 * MiB)
    async with agent.client() as client:
        client.send(fetch.API, 11, wanted)
        await eventually(lambda: agent.objects.reads.waiting > 0)
    await gone(agent)
    agent.objects.reads.open()
    await eventually(lambda: agent.held_bytes == NOTHING)
    for_nobody = encoded
    async with agent.client() as client:
        await client.call(fetch.API, 11, wanted)

    assert (0, 1) == (for_nobody, encoded)


async def test_who_leaves_when_it_is_told_of_room_takes_none(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The connection closes in the turn of the loop before its Fetch goes on.
    """
    await agent.seal("full")
    server = agent.server
    wanted = fetching("full", {0: 0}, partition_max_bytes=12 * MiB)
    agent.objects.reads.close()
    leaves: list[str] = []
    in_turn = Connection.in_turn

    def leave_first(told: Connection, step: Callable[[], None]) -> None:
        if told.client_host not in leaves:
            in_turn(told, step)
        else:
            told.close()
            told.soon(lambda: told.soon(step))  # behind `connection_lost`

    monkeypatch.setattr(Connection, "in_turn", leave_first)
    async with agent.client() as first, agent.client() as second:
        leaves.append("{}:{}".format(*second.writer.get_extra_info("sockname")))
        first.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.held_bytes > 0)
        crowd = Crowd()
        assert server.answers.take(crowd, 4 * MiB)
        second.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.waiting == 1)
        server.answers.release(crowd, 4 * MiB)
        agent.objects.reads.open()
        assert len(records((await first.receive())[1].responses[0].partitions[0])) > 0
        assert await second.closed()
    await gone(agent)

    assert NOTHING == agent.held_bytes


async def test_lookups_by_time_end_when_their_client_leaves(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    They went on for thirty seconds, for nobody.
    """
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(agent.process.broker.reader, "max_timestamp", forever)
    asked = ListOffsetsPartition(partition_index=0, timestamp=-3)
    topic = ListOffsetsTopic(name="full", partitions=[asked])
    async with agent.client() as client:
        client.send(list_offsets.API, 7, ListOffsetsRequest(topics=[topic]))
        await begun.wait()
    async with asyncio.timeout(10):
        await ended.wait()
    await gone(agent)
    await eventually(lambda: agent.held_bytes == NOTHING)


async def test_a_client_that_left_before_its_lookups_began_has_none(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It may leave while the partitions that it named are looked at, which goes in slices.
    """
    looking, left = asyncio.Event(), asyncio.Event()

    async def slowly(items: Sequence[Any]) -> AsyncIterator[Any]:
        looking.set()
        await left.wait()
        for item in items:
            yield item

    async def forever(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(list_offsets_handler, "sliced", slowly)
    monkeypatch.setattr(agent.process.broker.reader, "max_timestamp", forever)
    asked = ListOffsetsPartition(partition_index=0, timestamp=-3)
    topic = ListOffsetsTopic(name="full", partitions=[asked])
    async with agent.client() as client:
        client.send(list_offsets.API, 7, ListOffsetsRequest(topics=[topic]))
        await looking.wait()
    await gone(agent)
    left.set()
    await eventually(lambda: agent.held_bytes == NOTHING)


async def test_a_handler_whose_client_has_left_gets_no_room(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It ends there: it neither makes its answer without any budget, nor counts for anybody.
    """
    begun, left, ended = asyncio.Event(), asyncio.Event(), list[str]()

    async def handle(_: Broker, __: MetadataRequest, context: RequestContext) -> MetadataResponse:
        begun.set()
        await left.wait()
        try:
            await context.room(MiB)
        except RefusedError:
            ended.append("refused")
            raise
        ended.append("made")
        return MetadataResponse()

    monkeypatch.setattr(dispatcher, "HANDLERS", {ApiKey.METADATA: handle})
    async with agent.client() as client:
        client.send(metadata.API, 8, MetadataRequest(topics=None))
        await begun.wait()
    await gone(agent)
    left.set()
    await eventually(lambda: bool(ended))

    assert ["refused"] == ended
    assert NOTHING == agent.held_bytes


async def test_what_an_answer_claims_is_counted_until_its_handler_ends(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its client leaves meanwhile: the objects are there, and so is their room, until it is over.
    """
    begun, left = asyncio.Event(), asyncio.Event()

    async def handle(_: Broker, __: MetadataRequest, context: RequestContext) -> MetadataResponse:
        await context.room(MiB)
        begun.set()
        await left.wait()
        return MetadataResponse()

    monkeypatch.setattr(dispatcher, "HANDLERS", {ApiKey.METADATA: handle})
    async with agent.client() as client:
        client.send(metadata.API, 8, MetadataRequest(topics=None))
        await begun.wait()
    await gone(agent)
    held = agent.held_bytes["answers"]
    left.set()
    await eventually(lambda: agent.held_bytes == NOTHING)

    assert MiB == held


async def test_the_thread_encodes_nothing_for_clients_that_left_while_they_waited_for_it(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Their turn of the thread ends as soon as it comes.
    """
    free, waiting, ended = asyncio.Event(), 0, list[str]()

    async def handle(_: Broker, __: MetadataRequest, ___: RequestContext) -> MetadataResponse:
        return MetadataResponse(brokers=[MetadataResponseBroker(host="h")] * 5_000)

    async def late(work: Callable[..., Any], *args: Any) -> Any:
        nonlocal waiting
        waiting += 1
        await free.wait()
        try:
            answer = work(*args)
        except RefusedError:
            ended.append("refused")
            raise
        ended.append("encoded")
        return answer

    monkeypatch.setattr(dispatcher, "HANDLERS", {ApiKey.METADATA: handle})
    monkeypatch.setattr(dispatcher, "off_the_loop", late)
    async with agent.client() as client, agent.client() as stays:
        stays.send(metadata.API, 8, MetadataRequest(topics=None))
        client.send(metadata.API, 8, MetadataRequest(topics=None))
        await eventually(lambda: waiting == 2)
        client.writer.close()
        await eventually(lambda: len(agent.server.connections) == 1)
        free.set()
        answer = (await stays.receive())[1]
    await gone(agent)

    assert 5_000 == len(answer.brokers)
    assert ["encoded", "refused"] == sorted(ended)
    assert NOTHING == agent.held_bytes


# ── Connections that are not read ──


async def test_who_leaves_while_it_is_not_read_is_noticed(agent: Serving) -> None:
    """
    Five clients pipeline behind Fetches that would wait for 24 days, and close: a second or two
    later they count as connections no more, and nothing of them is held.
    """
    server = agent.server
    wanted = fetching("full", {0: 5}, max_wait_ms=2**31 - 1)
    clients = [agent.client() for _ in range(5)]
    for client in clients:
        await client.__aenter__()
        for _ in range(20):
            client.send(fetch.API, 11, wanted)
    await eventually(lambda: [c.unread_file is None for c in server.connections] == [False] * 5)
    for client in clients:
        client.writer.close()
    await gone(agent)

    assert NOTHING == agent.held_bytes
    assert not agent.log("full").waiting_fetches


# ── Requests ──


async def test_what_is_answered_and_not_written_when_its_client_leaves_is_given_back(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Metadata requests of a megabyte, whose connections end between the answer and its turn.
    """
    respond = QueuedRequest.respond

    def respond_and_close(slot: QueuedRequest, answer: Sequence[Buffer]) -> None:
        respond(slot, answer)
        slot.connection.close()

    monkeypatch.setattr(QueuedRequest, "respond", respond_and_close)
    names = [MetadataRequestTopic(name=f"{'t' * 200}{n}") for n in range(5_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    async with agent.client() as client:
        client.send(metadata.API, 8, request)
        closed = await client.closed()
    await gone(agent)

    assert closed
    assert NOTHING == agent.held_bytes


async def test_a_large_fetch_is_counted_as_long_as_a_thread_has_it(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its client leaves while a frame of 1.6 MB waits to be decoded: nobody else gets that room before
    the thread has let go.
    """
    decoded, held_up = asyncio.Event(), 0

    async def late(work: Callable[..., Any], *args: Any) -> Any:
        nonlocal held_up
        held_up += 1
        await decoded.wait()
        return work(*args)

    monkeypatch.setattr(dispatcher, "off_the_loop", late)
    many = fetching("full", {0: 0})
    many.topics[0].partitions = many.topics[0].partitions * 100_000
    frame = fetch.API.encode_request(4, 1, "x", many)
    async with agent.client() as client:
        client.writer.write(frame)
        await eventually(lambda: held_up == 1)
    await gone(agent)
    held = agent.held_bytes["requests"]
    decoded.set()
    await eventually(lambda: agent.held_bytes == NOTHING)

    assert held >= len(frame)


@pytest.mark.parametrize("partitions", [1, 2_000])
async def test_a_fetch_is_counted_as_long_as_it_reads(
    agent: Serving, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """
    Its client leaves while the bucket does not answer.
    """
    read = asyncio.Event()
    held_up = 0

    async def late(*_: Any, **__: Any) -> list[Buffer]:
        nonlocal held_up
        held_up += 1
        await read.wait()
        return []

    monkeypatch.setattr(agent.process.broker.reader, "read_local", lambda *_: None)
    monkeypatch.setattr(agent.process.broker.reader, "read", late)
    wanted = fetching("full", dict.fromkeys(range(partitions), 0), max_wait_ms=60_000)
    async with agent.client() as client:
        client.send(fetch.API, 11, wanted)
        await eventually(lambda: held_up == 1)
    await gone(agent)
    held = agent.held_bytes["requests"]
    read.set()
    await eventually(lambda: agent.held_bytes == NOTHING)

    assert held > 0
