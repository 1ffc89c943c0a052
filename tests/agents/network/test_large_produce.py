"""Produce requests of many partitions, names or bytes are bounded, and answered in their order."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.produce import waiters as produce_waiters
from driftlog_agents.handlers.produce.timeouts import ProduceTimeouts
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.network.slots import Slot
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import api_versions, fetch, produce
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from driftlog_tiering.batches import kernel
from tests.agents.network.serving import (
    Client,
    MiB,
    Serving,
    eventually,
    fetching,
    one_in_a_slice,
    producing,
)

ROOM = Limits(driftlog_max_response_queue_bytes=2 * MiB)
WIDE = 2_100
"""Partitions; a batch for each of them is a large request."""


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with a topic of many partitions, and room for 2 MiB of answers."""
    async with Serving(tmp_path, broker=BrokerSettings(limits=ROOM)) as serving:
        async with serving.client() as client:
            await client.create("wide", WIDE)
            await client.create("narrow", 10, max_message_bytes="2000000")
        yield serving


@pytest.fixture
async def one_each() -> None:
    """Slices end after one batch."""
    one_in_a_slice()


def batch(value: bytes = b"x") -> bytearray:
    """One record."""
    return encode_batch([value], timestamp_ms=1).data


def wide(value: bytes = b"x") -> dict[int, bytearray]:
    """A batch for each partition."""
    return {partition: batch(value) for partition in range(WIDE)}


def nothing(partitions: int) -> ProduceRequest:
    """No batch for each of so many partitions, of which there may be none."""
    data = [PartitionProduceData(index=n, records=None) for n in range(partitions)]
    topics = [TopicProduceData(name="wide", partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


async def refused(client: Client, request: ProduceRequest) -> str:
    """Why the connection is closed."""
    with capture_logs() as lines:
        client.send(produce.API, 9, request)
        assert await client.closed()
        await eventually(lambda: any("reason" in line for line in lines))
    return str(next(line["reason"] for line in lines if "reason" in line))


# ── What is refused ──


async def test_an_answer_that_would_be_too_large_is_refused_before_anything_is_appended(
    tmp_path: Path,
) -> None:
    """
    driftlog.max.response.bytes is of Produce, too.
    """
    limits = Limits(driftlog_max_response_bytes=50_000)
    async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent:
        async with agent.client() as client:
            await client.create("wide", WIDE)
            reason = await refused(client, producing("wide", wide()))

        assert "driftlog.max.response.bytes" in reason
        assert 0 == agent.log("wide").log_end
        assert 1 == agent.process.refusals.counts["driftlog.max.response.bytes"]


async def test_a_batch_that_is_too_large_is_refused_before_its_crc_is_computed(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The CRC of 4 MB is nobody's business where 2 MB are allowed; two batches in one are still told
    from one.
    """
    checked: list[int] = []
    check = kernel.check

    def counted(records: memoryview, pos: int, size: int) -> Any:
        checked.append(size)
        return check(records, pos, size)

    monkeypatch.setattr(kernel, "check", counted)
    async with agent.client() as client:
        one = (await client.produce("narrow", {0: batch(bytes(4_000_000))}))[0]
        two = (await client.produce("narrow", {0: batch(bytes(1_500_000)) * 2}))[0]

    assert ErrorCode.MESSAGE_TOO_LARGE == one.error_code
    assert "max.message.bytes" in (one.error_message or "")
    assert ErrorCode.INVALID_RECORD == two.error_code
    assert "more than one record batch" in (two.error_message or "")
    assert [] == checked


# ── What is taken ──


@pytest.mark.usefixtures("one_each")
async def test_the_order_of_a_connection_is_kept_around_large_requests(agent: Serving) -> None:
    """
    What is pipelined behind one is admitted after it, to the same partition or another; another
    client's batches come between.
    """
    async with agent.client() as client, agent.client() as other:
        asked = []
        for n in range(9):
            large = n % 3 == 1
            value = b"%d" % n
            few = {0: batch(value), WIDE - 1: batch(value)}
            asked.append(client.send_produce("wide", wide(value) if large else few))
        between = await other.produce("narrow", {0: batch()})
        admitted = agent.log("wide", WIDE - 1).log_end
        answers = [await client.receive() for _ in asked]

    assert asked == [number for number, _ in answers]
    offsets = [
        {p.index: p.base_offset for p in answer.responses[0].partition_responses}
        for _, answer in answers
    ]
    assert list(range(9)) == [each[0] for each in offsets] == [each[WIDE - 1] for each in offsets]
    assert {3} == {agent.log("wide", n).log_end for n in range(1, WIDE - 1)}
    assert 0 == between[0].error_code
    assert admitted < 9, "the other client waited for all of them"


async def test_many_bytes_are_admitted_in_slices_too(agent: Serving) -> None:
    """
    Ten batches of 1 MB, and one behind them.
    """
    async with agent.client() as client:
        large = client.send_produce("narrow", {p: batch(bytes(1_000_000)) for p in range(10)})
        small = client.send_produce("narrow", {9: batch(), 8: batch()})
        (first, _), (second, answer) = await client.receive(), await client.receive()

    assert [large, small] == [first, second]
    assert [1, 1] == [p.base_offset for p in answer.responses[0].partition_responses]


async def test_a_large_request_with_acks_zero_is_appended_and_not_answered(agent: Serving) -> None:
    """
    The answer that comes is to what is behind it.
    """
    async with agent.client() as client:
        client.send_produce("wide", wide(), acks=0)
        answer = await client.produce("wide", {WIDE - 1: batch()})

    assert 1 == answer[WIDE - 1].base_offset


async def test_a_large_request_that_takes_too_long_is_answered(agent: Serving) -> None:
    """
    All but what had been answered before.
    """
    async with agent.client() as client:
        agent.objects.writes.close()
        batches = wide()
        batches[3][-1] ^= 1
        answers = await client.produce("wide", batches, timeout_ms=500)
        agent.objects.writes.open()

    codes = {p.index: p.error_code for p in answers.values()}
    assert ErrorCode.CORRUPT_MESSAGE == codes.pop(3)
    assert {ErrorCode.REQUEST_TIMED_OUT} == set(codes.values())


@pytest.mark.usefixtures("one_each")
async def test_what_is_left_when_the_session_ends_is_refused(agent: Serving) -> None:
    """
    No batch is given to an engine that has ended; what it had is not acknowledged either.
    """
    async with agent.client() as client:
        agent.objects.writes.close()
        client.send_produce("wide", wide())
        await eventually(lambda: agent.log("wide", 10).log_end == 1)
        left = agent.engine
        agent.objects.writes.open()
        await agent.lose_session()
        _, answer = await client.receive()
        appended = await client.produce("wide", {WIDE - 1: batch()})

    codes = [p.error_code for p in answer.responses[0].partition_responses]
    assert left is not agent.engine
    assert WIDE == len(codes)
    assert {0, ErrorCode.NOT_LEADER_OR_FOLLOWER} >= set(codes)
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in codes
    assert codes[WIDE - 1] or appended[WIDE - 1].base_offset == 1


# ── What does not stall the others ──


async def in_each_iteration(admitted: Callable[[], int], until: int) -> int:
    """Most that was admitted between two looks of a task, until so much was."""
    most = before = 0
    while before < until:
        await asyncio.sleep(0)
        most, before = max(most, admitted() - before), admitted()
    return most


SHARE = 2_000
"""Batches that an iteration has time for, by the clock of `each_takes_time`."""


def each_takes_time(agent: Serving) -> Callable[[], int]:
    """How many batches were looked at; connections from now on measure time by them."""
    producing = agent.process.dispatcher.producing
    share = LoopShare(agent.server.loop, lambda: producing.errors * 0.005 / SHARE)
    agent.server.loop_share = share
    return lambda: producing.errors


async def test_a_crowd_has_one_share_of_an_iteration_of_the_loop(agent: Serving) -> None:
    """
    Thirty connections with 1,900 partitions each, which is not large: not all at once.
    """
    frame = produce.API.encode_request(9, 1, "x", nothing(1_900))
    looked_at = each_takes_time(agent)
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(agent.client()) for _ in range(30)]
        for client in crowd:
            client.writer.write(frame)
        most = await in_each_iteration(looked_at, 30 * 1_900)

    assert most <= SHARE + 1_900


async def test_a_pipeline_has_one_share_of_an_iteration_of_the_loop(agent: Serving) -> None:
    """
    A hundred requests of 200 partitions that come at once: none is lost, the order is kept.
    """
    looked_at = each_takes_time(agent)
    async with agent.client() as client:
        asked = [client.send(produce.API, 9, nothing(200)) for _ in range(100)]
        most = await in_each_iteration(looked_at, 100 * 200)
        answers = [(await client.receive())[0] for _ in asked]

    assert asked == answers
    assert most <= SHARE + 200


async def test_answers_that_nobody_takes_are_bounded(agent: Serving) -> None:
    """
    Of eight clients that read nothing and ask for answers of hundreds of KB, few are admitted: the
    others wait for room, until those that hold it are given up.
    """
    server = agent.server
    server.stalled_ms = 60_000.0
    for listening in chain.from_iterable(server.bound):  # else the kernel takes the answers
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    frame = produce.API.encode_request(9, 1, "x", nothing(2_500))
    async with AsyncExitStack() as stack:
        for _ in range(8):
            client = await stack.enter_async_context(agent.client())
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.write(frame)
            client.writer.write(frame)
        await eventually(lambda: server.answers.waiting == 7)
        held = server.answers.held_bytes
        async with agent.client() as good:
            answer = await good.produce("narrow", {0: batch()})
        server.stalled_ms = 200.0

        assert 0 == answer[0].error_code
        assert held <= 2 * MiB + 2_501 * 400
        await eventually(lambda: server.answers.waiting == 0)
    await eventually(lambda: agent.held_bytes == {"frames": 0, "requests": 0, "answers": 0})


async def test_frames_that_wait_to_be_admitted_are_counted(agent: Serving) -> None:
    """
    Until it is its turn, which a Fetch that waits for records has.
    """
    budget = agent.server.frame_budget
    async with agent.client() as client:
        waiting_fetch = fetching("narrow", {0: 0}, max_wait_ms=30_000)
        client.send(fetch.API, 11, waiting_fetch)
        client.send_produce("wide", wide())
        await eventually(lambda: budget.held_bytes > 100_000)
        waiting = budget.held_bytes
        async with agent.client() as other:
            await other.produce("narrow", {0: batch()})
        await client.receive()
        await client.receive()

    assert waiting > WIDE * 70
    assert 0 == budget.held_bytes


@pytest.mark.usefixtures("one_each")
async def test_who_leaves_in_the_middle_leaves_nothing(agent: Serving) -> None:
    """
    While it is decoded, admitted, or waits for its commit; `Serving` looks at what is counted.
    """
    agent.objects.writes.close()
    for n in range(6):
        async with agent.client() as client:
            client.send_produce("wide", wide())
            at = 5 if n % 3 == 1 else WIDE - 1
            if n % 3:
                end = agent.log("wide", at).log_end
                await eventually(lambda at=at, end=end: agent.log("wide", at).log_end > end)  # type: ignore[misc]
            else:
                await client.writer.drain()
    agent.objects.writes.open()
    await eventually(lambda: not agent.server.connections)
    async with agent.client() as client:
        assert 0 == (await client.produce("narrow", {0: batch()}))[0].error_code

    assert not agent.running.done()


async def test_a_frame_behind_a_fetch_that_waits_is_given_up_where_others_need_its_room(
    agent: Serving,
) -> None:
    """
    It waits as long as the Fetch likes: its connection is closed, and the others go on.
    """
    server = agent.server
    server.frame_budget.limit_bytes = 8 * MiB
    server.stalled_ms = 500.0
    async with agent.client() as hoarder, agent.client() as good:
        waits = fetching("narrow", {5: 0}, max_wait_ms=2**31 - 1, min_bytes=2**30)
        hoarder.send(fetch.API, 11, waits)
        hoarder.send_produce("wide", {p: batch(bytes(2_000)) for p in range(WIDE)})
        await eventually(lambda: server.frame_budget.held_bytes > 4_000_000)
        answer = await good.produce("narrow", {0: batch(bytes(900_000))})

        assert 0 == answer[0].error_code
        assert await hoarder.closed()


async def test_a_client_that_leaves_behind_another_ones_large_request_leaves_no_frame(
    agent: Serving,
) -> None:
    """
    While it waits to be admitted: its connection is closed in seconds.
    """
    server = agent.server
    async with agent.client() as client:
        waits = fetching("narrow", {5: 0}, max_wait_ms=30_000, min_bytes=2**20)
        client.send(fetch.API, 11, waits)
        client.send_produce("wide", wide())
        await eventually(lambda: server.frame_budget.held_bytes > 100_000)
    await eventually(lambda: not server.connections)

    assert 0 == server.frame_budget.held_bytes


async def test_a_pipeline_of_single_batches_goes_on_where_an_iteration_is_used_up(
    agent: Serving,
) -> None:
    """
    Hundreds of requests are unanswered, while others have several batches: all are admitted.
    """
    log = agent.log("narrow")
    agent.objects.writes.close()
    async with agent.client() as client, agent.client() as other:
        several = produce.API.encode_request(9, 1, "x", nothing(1_999))
        for n in range(400):
            client.send_produce("narrow", {0: batch()})
            if n % 20 == 0:
                other.writer.write(several)
                await asyncio.sleep(0)
        await eventually(lambda: log.log_end == 400)
        agent.objects.writes.open()
        answers = [(await client.receive())[1] for _ in range(400)]

    offsets = [a.responses[0].partition_responses[0].base_offset for a in answers]
    assert list(range(400)) == offsets


async def test_what_waits_for_its_partition_is_answered_in_time_with_acks_one_too(
    agent: Serving,
) -> None:
    """
    One batch, and several: a partition is handed over, and does not come back.
    """
    log = agent.log("narrow")
    agent.engine.partitions.pause(log)
    codes = []
    async with agent.client() as client:
        for more in ({}, {1: batch()}):
            answers = await client.produce("narrow", {0: batch(), **more}, acks=1, timeout_ms=300)
            codes += [answers[0].error_code]
    agent.engine.partitions.resume(log)

    assert [ErrorCode.REQUEST_TIMED_OUT] * 2 == codes


async def test_a_request_that_is_not_admitted_is_not_timed_out() -> None:
    """
    Where the disk did not take the first of its batches, and the others wait for their slices.
    """
    told: list[object] = []

    class Timeouts:
        """Remembers what is expected."""

        def expect(self, _: object, pending: object, __: int) -> None:
            told.append(pending)

    timeouts, slot = cast(ProduceTimeouts, Timeouts()), cast(Slot, None)
    request = produce_waiters.SeveralBatches(timeouts, slot, 9, 1, 3, 300)
    request.unsynced()
    before = list(told)
    request.all_admitted(expected=False)
    request.unsynced()

    assert ([], [request]) == (before, told)


async def test_who_asks_something_else_does_not_wait_for_a_crowd_that_produces(
    agent: Serving,
) -> None:
    """
    Nor who produces one batch: they come between those that have several.
    """
    frame = produce.API.encode_request(9, 1, "x", nothing(1_900))
    producing = agent.process.dispatcher.producing
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(agent.client())
        crowd = [await stack.enter_async_context(agent.client()) for _ in range(60)]
        await good.produce("narrow", {0: batch()}, acks=1)
        for client in crowd:
            client.writer.write(frame * 5)
        await eventually(lambda: producing.errors > 0)
        await good.produce("narrow", {0: batch()}, acks=1)
        await good.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
        done = producing.errors

    assert done < 5 * 60 * 1_900
