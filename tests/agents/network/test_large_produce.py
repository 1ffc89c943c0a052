"""Produce requests of many partitions, many names or many bytes: bounded, and in their order."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.broker import BrokerSettings
from driftlog_agents.handlers import produce as handler
from driftlog_agents.handlers import produce_waiters, turns
from driftlog_agents.handlers.produce_frames import LEAST_ANSWER_BYTES
from driftlog_agents.limits import Limits
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import produce
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.agents.network.serving import Client, MiB, Serving, eventually, producing

ROOM = Limits(driftlog_max_response_queue_bytes=2 * MiB)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with a topic of 600 partitions, and room for 2 MiB of answers."""
    async with Serving(tmp_path, broker=BrokerSettings(limits=ROOM)) as serving:
        async with serving.client() as client:
            await client.create("wide", 600)
            await client.create("narrow")
        yield serving


def batch(value: bytes = b"x") -> bytearray:
    """One record."""
    return encode_batch([value], timestamp_ms=1).data


def many(partitions: int, *, topic: str = "wide", acks: int = -1) -> ProduceRequest:
    """Nothing for each of so many partitions, of which there may be none."""
    data = [PartitionProduceData(index=n, records=None) for n in range(partitions)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics)


def named(names: list[str]) -> ProduceRequest:
    """Nothing for partition 0 of topics that are not there."""
    data = [PartitionProduceData(index=0, records=None)]
    topics = [TopicProduceData(name=name, partition_data=data) for name in names]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


async def refused(agent: Serving, client: Client, request: ProduceRequest, version: int = 9) -> str:
    """Why the connection is closed."""
    with capture_logs() as lines:
        client.send(produce.API, version, request)
        assert await client.closed()
        await eventually(lambda: any("reason" in line for line in lines))
    assert 0 == agent.process.server.requests.budget.held_bytes
    return next(line["reason"] for line in lines if "reason" in line)


# ── What is refused ──


@pytest.mark.parametrize("version", [8, 9])
async def test_elements_of_a_produce_are_bounded(agent: Serving, version: int) -> None:
    """
    20,000 and no more, as of other requests; the connection is closed, and it is counted.
    """
    async with agent.client() as client:
        reason = await refused(agent, client, many(20_000), version)

    assert "driftlog.max.request.elements" in reason
    assert 1 == agent.process.refusals.counts["driftlog.max.request.elements"]


@pytest.mark.parametrize("partitions", [1, 300])
async def test_a_partition_named_twice_closes_the_connection(
    agent: Serving, partitions: int
) -> None:
    """
    Kafka would append the last of its batches, and say nothing of the others; nothing is appended
    here.
    """
    request = producing("wide", {n: batch() for n in range(partitions)})
    request.topic_data.append(producing("wide", {0: batch()}).topic_data[0])
    async with agent.client() as client:
        reason = await refused(agent, client, request)

    assert "names a partition twice" in reason
    assert 0 == agent.log("wide").log_end


async def test_names_that_no_topic_can_have_are_not_repeated_by_the_megabyte(
    agent: Serving,
) -> None:
    """
    A few are answered as any topic that is not there; with many the connection is closed.
    """
    long = "a" * 32_000
    async with agent.client() as client, agent.client() as other:
        answer = await client.call(produce.API, 9, named([long, "b"]))
        reason = await refused(agent, other, named([f"{n}{long}" for n in range(200)]))

    codes = [t.partition_responses[0].error_code for t in answer.responses]
    assert [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 == codes
    assert [long, "b"] == [topic.name for topic in answer.responses]
    assert "name is null or too long" in reason


async def test_an_answer_that_would_be_too_large_is_refused_before_anything_is_appended(
    tmp_path: Path,
) -> None:
    """
    driftlog.max.response.bytes is of Produce, too.
    """
    limits = Limits(driftlog_max_response_bytes=5_000)
    async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent:
        async with agent.client() as client:
            await client.create("wide", 600)
            request = producing("wide", {n: batch() for n in range(300)})
            reason = await refused(agent, client, request)

        assert "driftlog.max.response.bytes" in reason
        assert 0 == agent.log("wide").log_end
        assert 1 == agent.process.refusals.counts["driftlog.max.response.bytes"]


async def test_a_batch_that_is_too_large_is_refused_before_its_crc_is_computed(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The CRC of 2 MB is nobody's business where 1 MB are allowed; two batches in one are still told
    from one.
    """
    checked: list[int] = []
    check = handler.kernel.check

    def counted(records: memoryview, pos: int, size: int) -> Any:
        checked.append(size)
        return check(records, pos, size)

    monkeypatch.setattr(handler.kernel, "check", counted)
    large = batch(bytes(2_000_000))
    async with agent.client() as client:
        one = (await client.produce("narrow", {0: large}))[0]
        two = (await client.produce("narrow", {0: batch(bytes(600_000)) * 2}))[0]

    assert ErrorCode.MESSAGE_TOO_LARGE == one.error_code
    assert "max.message.bytes" in (one.error_message or "")
    assert ErrorCode.INVALID_RECORD == two.error_code
    assert "more than one record batch" in (two.error_message or "")
    assert [] == checked


# ── What is taken ──


async def test_the_order_of_a_connection_is_kept_around_a_large_request(agent: Serving) -> None:
    """
    What is pipelined behind it is admitted after it: offsets and answers are in order, and nothing
    is held in the end.
    """
    async with agent.client() as client:
        asked = []
        for n in range(20):
            large = {p: batch(b"%d" % n) for p in range(600)}
            asked.append(client.send_produce("wide", large if n % 3 == 1 else {0: batch()}))
        answers = [await client.receive() for _ in asked]

    assert asked == [number for number, _ in answers]
    first = [answer.responses[0].partition_responses[0] for _, answer in answers]
    assert [(0, n) for n in range(20)] == [(each.error_code, each.base_offset) for each in first]
    assert {7} == {agent.log("wide", n).log_end for n in range(1, 600)}
    await eventually(lambda: agent.process.server.requests.budget.held_bytes == 0)


async def test_a_large_request_does_not_wait_for_the_answer_to_the_one_before(
    agent: Serving,
) -> None:
    """
    Producers pipeline: five of 600 partitions are in the log before the first is committed.
    """
    async with agent.client() as client:
        agent.objects.writes.close()
        for n in range(5):
            client.send_produce("wide", {p: batch(b"%d" % n) for p in range(600)})
        await eventually(lambda: agent.log("wide", 599).log_end == 5)
        waiting = agent.process.server.requests.budget.held_bytes
        agent.objects.writes.open()
        answers = [await client.receive() for _ in range(5)]

    assert 5 * 600 * 100 < waiting < 5 * MiB
    assert {0} == {p.error_code for _, a in answers for p in a.responses[0].partition_responses}


async def test_a_large_request_with_acks_zero_is_appended_and_not_answered(agent: Serving) -> None:
    """
    The answer that comes is to what is behind it.
    """
    async with agent.client() as client:
        client.send_produce("wide", {p: batch() for p in range(600)}, acks=0)
        answer = await client.produce("wide", {599: batch()})

    assert 1 == answer[599].base_offset


async def test_a_large_request_that_takes_too_long_is_answered(agent: Serving) -> None:
    """
    Its partitions are timed out in slices, but those that had been answered.
    """
    async with agent.client() as client:
        agent.objects.writes.close()
        batches = {p: batch() for p in range(600)}
        batches[3][-1] ^= 1
        answers = await client.produce("wide", batches, timeout_ms=200)
        agent.objects.writes.open()

    codes = {p.index: p.error_code for p in answers.values()}
    assert ErrorCode.CORRUPT_MESSAGE == codes.pop(3)
    assert {ErrorCode.REQUEST_TIMED_OUT} == set(codes.values())


async def test_a_batch_that_takes_long_to_check_is_checked_by_a_thread(agent: Serving) -> None:
    """
    Beside another of 5 MB; what is wrong with it is told as ever.
    """
    async with agent.client() as client:
        await client.create("big", 2, max_message_bytes="10000000")
        broken = batch(bytes(5_000_000))
        broken[-1] ^= 1
        answers = await client.produce("big", {0: batch(bytes(5_000_000)), 1: broken})

    assert (0, ErrorCode.CORRUPT_MESSAGE) == (answers[0].error_code, answers[1].error_code)


# ── What does not stall the others ──


async def test_crowds_have_one_slice_in_each_turn_of_the_loop(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Thirty connections with 1,900 partitions each: admitted and answered in slices, of which there
    is never more than one between two looks of another task; that is the work, not its time.
    """
    steps = 0
    run = turns.Turns.run

    async def counted(self: turns.Turns, work: Any) -> None:
        def each() -> Any:
            nonlocal steps
            for step in work:
                steps += 1
                yield step

        await run(self, each())

    monkeypatch.setattr(turns.Turns, "run", counted)
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    frame = produce.API.encode_request(9, 1, "x", many(1_900))
    most, before = 0, 0
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(agent.client()) for _ in range(30)]
        for client in crowd:
            client.writer.write(frame)
        while steps < 30 * 1_900:
            await asyncio.sleep(0)
            most, before = max(most, steps - before), steps

    assert 1 == most


async def test_small_requests_of_several_are_many_too(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A hundred of 200 partitions that come at once are not handled in one turn of the loop.
    """
    large = 0
    made = produce_waiters.ManyBatches._make

    async def counted(self: produce_waiters.ManyBatches) -> None:
        nonlocal large
        large += 1
        await made(self)

    monkeypatch.setattr(produce_waiters.ManyBatches, "_make", counted)
    async with agent.client() as client:
        asked = [client.send(produce.API, 9, many(200)) for _ in range(100)]
        answers = [(await client.receive())[0] for _ in asked]

    assert asked == answers
    assert large > 10


async def test_answers_that_nobody_takes_are_bounded(agent: Serving) -> None:
    """
    Of forty clients that read nothing and ask for answers of 400 KB, few are admitted: the others
    wait for room, until those that hold it are given up.
    """
    server = agent.process.server
    server.stalled_ms = 60_000.0
    frame = produce.API.encode_request(9, 1, "x", many(2_500))
    async with AsyncExitStack() as stack:
        for _ in range(40):
            client = await stack.enter_async_context(agent.client())
            client._reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.write(frame)
            client.writer.write(frame)
        await eventually(lambda: server.answers.waiting >= 30)
        held = server.answers.held_bytes
        written = sum(
            c._transport.get_write_buffer_size() for c in server.connections if c._transport
        )
        async with agent.client() as good:
            answer = await good.produce("narrow", {0: batch()})
        waiting = server.requests.budget.held_bytes
        server.stalled_ms = 500.0

        assert 0 == answer[0].error_code
        assert max(held, written) <= 2 * MiB + 2_501 * 400
        assert waiting > 30 * 2_500 * 6
    await eventually(lambda: server.answers.held_bytes == server.requests.budget.held_bytes == 0)


async def test_who_leaves_in_the_middle_leaves_nothing(agent: Serving) -> None:
    """
    While it is decoded, admitted, or waits for its commit.
    """
    server = agent.process.server
    agent.objects.writes.close()
    for n in range(6):
        async with agent.client() as client:
            client.send_produce("wide", {p: batch() for p in range(600)})
            if n % 2:
                await eventually(lambda n=n: agent.log("wide", 599).log_end > n // 2)  # type: ignore[misc]
            else:
                await client.writer.drain()
    agent.objects.writes.open()
    await eventually(lambda: not server.connections)
    await eventually(lambda: server.requests.budget.held_bytes == 0)
    async with agent.client() as client:
        assert 0 == (await client.produce("narrow", {0: batch()}))[0].error_code

    assert not agent.running.done()


def test_the_least_answer_is_what_it_is() -> None:
    """
    What `answer_bytes` counts for a partition is what the codec writes.
    """

    def size(partitions: int) -> int:
        answers = [produce.PartitionProduceResponse() for _ in range(partitions)]
        topic = produce.TopicProduceResponse(name="t", partition_responses=answers)
        frame = produce.API.encode_response(9, 1, produce.ProduceResponse(responses=[topic]))
        (length,) = struct.unpack_from(">i", frame)
        return int(length)

    assert LEAST_ANSWER_BYTES == size(11) - size(10)
