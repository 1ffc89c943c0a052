"""Clients that pipeline and do not wait, or ask and do not read: bounded, and others are served."""

import asyncio
import gc
import re
import socket
import struct
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.group_settings import ClassicSettings, GroupSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.groups.offsets import Committed, PageId
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.handlers.fetch.bucket_reads import LEAST_BYTES, MOST_BYTES
from driftlog_agents.network.limits.memory_budget import NETWORK_BYTES
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import api_versions, fetch, join_group, metadata
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from driftlog_agents.protocol.messages.fetch import FetchRequest, ForgottenTopic
from driftlog_agents.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from driftlog_agents.protocol.messages.metadata import MetadataRequest
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.foundation.types import KiB
from tests.agents.network.serving import (
    Client,
    Crowd,
    MiB,
    Serving,
    eventually,
    fetched,
    fetching,
    records,
)

QUEUE_BYTES = 16 * MiB
ANSWER_BYTES = 16 * MiB
NEVER_MS = 1e9

LIMITS = Limits(
    queued_max_requests=50,
    queued_max_request_bytes=QUEUE_BYTES,
    driftlog_max_response_queue_bytes=ANSWER_BYTES,
)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with room for 16 MiB of requests and 16 MiB of answers."""
    async with Serving(tmp_path, broker=BrokerSettings(limits=LIMITS)) as serving:
        async with serving.client() as client:
            await client.create("empty")
            await client.create("full")
        yield serving


def batch(size: int, seed: int = 0) -> bytearray:
    """One record of so many random bytes."""
    return encode_batch([Random(seed).randbytes(size)], timestamp_ms=1).data


def joining(group: str, size_bytes: int) -> JoinGroupRequest:
    """A new member with so much metadata."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size_bytes))],
    )


def padded(topic: str, size_bytes: int) -> FetchRequest:
    """A long poll of one partition, and topics of no use that are forgotten."""
    wanted = fetching(topic, {0: 0}, max_wait_ms=300_000)
    forgotten = [ForgottenTopic(topic="f" * 20_000) for _ in range(size_bytes // 20_000)]
    return replace(wanted, forgotten_topics_data=forgotten)


def queued(agent: Serving) -> int:
    """Unanswered requests other than Produce, counted where they are."""
    return sum(len(c.writer.slots) for c in agent.server.connections)


def holds_answers(agent: Serving, client: Client) -> bool:
    """Whether answers to that client wait in the agent."""
    name = "{}:{}".format(*client.writer.get_extra_info("sockname"))
    return any(c.answers.held_bytes > 0 for c in agent.server.connections if c.client_host == name)


async def wake(agent: Serving) -> None:
    """End the long polls of the empty topic."""
    async with agent.client() as client:
        await client.produce("empty", {0: batch(10)})


async def ask(agent: Serving) -> None:
    """A new client is answered."""
    async with agent.client() as client:
        assert (await client.call(api_versions.API, 0, ApiVersionsRequest())).error_code == 0


# ── Requests ──


async def test_behind_a_request_that_waits_few_are_taken_and_all_are_answered(
    agent: Serving,
) -> None:
    """
    Of 20,000 requests behind a long poll seven are taken as they came, and not decoded; when the
    poll is over all are answered, in their order.
    """
    async with agent.client() as client:
        polled = client.send(fetch.API, 11, fetching("empty", {0: 0}, max_wait_ms=60_000))
        asked = [client.send(api_versions.API, 0, ApiVersionsRequest()) for _ in range(20_000)]
        await eventually(lambda: queued(agent) == 8)
        await ask(agent)  # the loop has had its turns
        held, waiting = queued(agent), agent.server.requests.waiting
        counted = agent.process.refusals.counts["driftlog.connection.max.queued.requests"]
        await wake(agent)
        answers = [(await client.receive())[0] for _ in range(20_001)]

    assert (8, 7, 1) == (held, waiting, counted)
    assert [polled, *asked] == answers
    assert (0, 0) == (
        agent.server.requests.waiting,
        agent.server.requests.budget.held_bytes,
    )


async def test_produce_behind_a_long_poll_is_not_one_of_the_eight(agent: Serving) -> None:
    """
    Thirty of them are admitted, and the poll is answered by the first.
    """
    async with agent.client() as client:
        polled = client.send(fetch.API, 11, fetching("full", {0: 0}, max_wait_ms=60_000))
        sent = [client.send_produce("full", {0: batch(100, n)}) for n in range(30)]
        answers = [await client.receive() for _ in range(31)]

    assert [polled, *sent] == [number for number, _ in answers]
    assert list(range(30)) == [
        a.responses[0].partition_responses[0].base_offset for _, a in answers[1:]
    ]


async def test_consumers_that_wait_take_nothing_from_others(agent: Serving) -> None:
    """
    With a hundred long polls, each with requests behind it, queued.max.requests is used up: each
    connection has one that waits, and whoever asks one thing at a time is answered.
    """
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(agent.client()) for _ in range(100)]
        for client in crowd:
            client.send(fetch.API, 11, fetching("empty", {0: 0}, max_wait_ms=60_000))
            for _ in range(20):
                client.send(api_versions.API, 0, ApiVersionsRequest())
        await eventually(lambda: queued(agent) >= 150)
        for _ in range(3):
            await ask(agent)
        held = queued(agent)
        counted = agent.process.refusals.counts["queued.max.requests"]
        await wake(agent)
        for client in crowd:
            for _ in range(21):
                await client.receive()

    assert held <= 100 + 50 + 8 + 100
    assert 80 <= counted <= 100
    assert 0 == agent.server.requests.waiting


async def test_unanswered_produce_requests_of_all_connections_are_bounded(
    tmp_path: Path,
) -> None:
    """
    Twenty producers pipeline five hundred requests each while the store takes nothing: two hundred
    are in the agent and a few more of each, another client's one is taken, and in the end all are
    answered in their order.
    """
    limits = replace(LIMITS, driftlog_max_unanswered_requests=200)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        AsyncExitStack() as stack,
    ):
        async with agent.client() as client:
            await client.create("full")
        good, *crowd = [await stack.enter_async_context(agent.client()) for _ in range(21)]
        agent.objects.writes.close()
        asked = [
            [client.send_produce("full", {0: batch(10)}) for _ in range(500)] for client in crowd
        ]
        requests = agent.server.requests
        await eventually(lambda: len(requests.held_up) >= 20)
        held = requests.unanswered
        before = agent.log("full", 0).log_end
        last = good.send_produce("full", {0: batch(10)})
        await eventually(lambda: agent.log("full", 0).log_end == before + 1)
        agent.objects.writes.open()
        answered = [[(await client.receive())[0] for _ in range(500)] for client in crowd]
        end, _ = await good.receive()
        counted = agent.process.refusals.counts["driftlog.max.unanswered.requests"]

    assert held <= 200 + 20 * 2 * 16
    assert asked == answered
    assert last == end
    assert counted >= 20
    assert 0 == requests.unanswered


async def test_large_requests_behind_one_another_are_bounded(agent: Serving) -> None:
    """
    Forty clients begin a Fetch of 1.6 MB behind a long poll: held are the budget and one of them,
    decoded none; small requests are answered beside them.
    """
    many = fetching("full", {0: 0}, max_wait_ms=0)
    many.topics[0].partitions = many.topics[0].partitions * 60_000
    server = agent.server
    async with AsyncExitStack() as stack:
        for _ in range(40):
            client = await stack.enter_async_context(agent.client())
            client.send(fetch.API, 11, fetching("empty", {0: 0}, max_wait_ms=60_000))
            client.writer.write(fetch.API.encode_request(4, 2, "x", many))
        await eventually(lambda: server.requests.budget.pressed)
        await ask(agent)
        held = server.requests.budget.held_bytes
        frames = sum(
            len(frame)
            for c in server.connections
            for slot in c.writer.slots
            for frame in gc.get_referents(slot)
            if isinstance(frame, memoryview)
        )
        await ask(agent)

        await wake(agent)

    assert frames <= held <= QUEUE_BYTES + 2 * MiB
    await eventually(lambda: server.requests.budget.held_bytes == 0)


async def test_the_largest_holder_is_closed_when_nothing_moves(tmp_path: Path) -> None:
    """
    JoinGroups of 900 kB hold theirs as long as the others do not join: who comes then waits, and is
    answered when the largest was closed; one line says which.
    """
    many = fetching("full", {0: 0}, max_wait_ms=0)
    many.topics[0].partitions = many.topics[0].partitions * 3_000
    settings = BrokerSettings(
        limits=Limits(queued_max_request_bytes=4 * MiB),
        groups=GroupSettings(classic=ClassicSettings(initial_rebalance_delay_ms=300_000)),
    )
    with capture_logs() as lines:
        async with Serving(tmp_path, broker=settings) as agent, AsyncExitStack() as stack:
            server = agent.server
            server.stalled_ms = 1_000.0
            for n in range(4):
                client = await stack.enter_async_context(agent.client())
                client.send(join_group.API, 3, joining(f"g{n}", 900_000))
            await eventually(lambda: server.requests.budget.waiting > 0)
            async with agent.client() as good:
                answer = await good.call(fetch.API, 4, many)
            refused = agent.process.refusals.counts["queued.max.request.bytes"]

    assert 1 == len(answer.responses)
    assert "requests_given_up" in [line["event"] for line in lines]
    assert refused >= 1


# ── Fetches that wait ──


async def test_a_large_fetch_that_waits_counts_as_what_it_keeps(agent: Serving) -> None:
    """
    Four frames of 1.6 MB fill the room when they are decoded, and their clients wait for one
    partition: whoever comes then is answered at once.
    """
    server = agent.server
    parked = padded("empty", 1_600_000)
    many = fetching("full", {0: 0}, max_wait_ms=0)
    many.topics[0].partitions = many.topics[0].partitions * 3_000
    async with AsyncExitStack() as stack:
        for _ in range(4):
            client = await stack.enter_async_context(agent.client())
            client.send(fetch.API, 11, parked)
        await eventually(lambda: len(agent.log("empty").waiting_fetches) == 4)
        await eventually(lambda: server.requests.budget.held_bytes <= 4 * 3 * KiB)
        async with agent.client() as good:
            answer = await good.call(fetch.API, 4, many)
        waiting = len(agent.log("empty").waiting_fetches)

    assert 1 == len(answer.responses)
    assert 4 == waiting
    await eventually(lambda: server.requests.budget.held_bytes == 0)
    assert 0 == server.requests.kept_bytes


@pytest.mark.parametrize(
    ("limits", "config"),
    [
        (Limits(queued_max_request_bytes=2 * MiB + 100 * KiB), "queued.max.request.bytes"),
        # Requests have an eighth, and the five that are nobody's.
        (Limits(driftlog_max_network_bytes=(2 * MiB + 100 * KiB) * 4 // 3), NETWORK_BYTES),
    ],
    ids=["requests", "network"],
)
async def test_fetches_that_would_keep_more_than_half_of_the_room_do_not_wait(
    tmp_path: Path, limits: Limits, config: str
) -> None:
    """
    Of four that wait for a thousand partitions each, with room for two of them, two are answered
    with nothing, at once; a Fetch of one partition waits as ever.
    """
    settings = BrokerSettings(limits=limits)
    async with Serving(tmp_path, broker=settings) as agent, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(agent.client()) for _ in range(5)]
        await clients[0].create("wide", 1_000)
        wanted = fetching("wide", dict.fromkeys(range(1_000), 0), max_wait_ms=300_000)
        for client in clients[:2]:
            client.send(fetch.API, 11, wanted)
        await eventually(lambda: len(agent.log("wide").waiting_fetches) == 2)
        kept = agent.server.requests.kept_bytes
        answers = [await client.call(fetch.API, 11, wanted) for client in clients[2:4]]
        clients[4].send(fetch.API, 11, fetching("wide", {0: 0}, max_wait_ms=300_000))
        await eventually(lambda: len(agent.log("wide").waiting_fetches) == 3)
        refused = agent.process.refusals.counts[config]
        waiting = agent.server.requests.budget.waiting

    assert 2 * 1_000 * 500 < kept <= MiB + 50 * KiB
    assert [[0] * 1_000] * 2 == [
        [data.error_code for data in fetched(answer).values()] for answer in answers
    ]
    assert 0 == waiting
    assert refused >= 2


async def test_a_request_for_which_no_room_were_enough_is_refused(agent: Serving) -> None:
    """
    A Fetch of 2 MB may come to 18 MB, of the 16 that all requests may hold: it would have all
    others wait.  The line says what it asked for, and it is counted.
    """
    with capture_logs() as lines:
        async with agent.client() as client:
            client.send(fetch.API, 11, padded("empty", 2_000_000))
            closed = await client.closed()
    (line,) = (line for line in lines if line["event"] == "frame_refused")

    assert closed
    assert re.match(
        r"a Fetch of 20\d{5} bytes may come to 18\d{6} when it is decoded, of 16777216 that all "
        r"requests together may hold: ask for less at once \(queued.max.request.bytes\)$",
        line["reason"],
    )
    assert line["client_id"]
    assert 1 == agent.process.refusals.counts["queued.max.request.bytes"]
    await eventually(lambda: agent.server.requests.budget.held_bytes == 0)


# ── Answers ──


async def fill(agent: Serving, batches: int) -> None:
    """So many MiB, which are read from their segment."""
    async with agent.client() as client:
        for n in range(batches):
            await client.produce("full", {0: batch(MiB - 1_000, n)})
    await agent.seal("full")


async def test_answers_that_nobody_takes_are_bounded_and_given_up(agent: Serving) -> None:
    """
    Thirty clients ask for 8 MiB and read nothing: what is held is the budget and an answer; and a
    good one that asks for as much is answered with a batch at least.
    """
    server = agent.server
    await fill(agent, 9)
    wanted = fetching("full", {0: 0}, partition_max_bytes=8 * MiB)
    highest = 0
    with capture_logs():
        async with AsyncExitStack() as stack:
            for _ in range(30):
                client = await stack.enter_async_context(agent.client())
                client.stop_reading()
                client.send(fetch.API, 11, wanted)
            await eventually(lambda: server.answers.waiting > 0)
            async with agent.client() as good:
                number = good.send(fetch.API, 11, wanted)
                answer = asyncio.create_task(good.receive())
                while not answer.done():
                    # A machine without a core for this test takes nothing either: the good one is
                    # not given up for that.
                    server.stalled_ms = NEVER_MS if holds_answers(agent, good) else 1_000.0
                    held = sum(
                        unsent_bytes for _, unsent_bytes in (c.got for c in server.connections)
                    )
                    highest = max(highest, held, server.answers.held_bytes)
                    await asyncio.sleep(0.02)
                answered, response = await answer
            server.stalled_ms = 1_000.0
            await eventually(lambda: server.answers.waiting == 0)

    assert number == answered
    assert len(records(response.responses[0].partitions[0])) >= MiB - 1_000
    assert highest <= ANSWER_BYTES + 10 * MiB
    await eventually(lambda: server.answers.held_bytes == 0)


def test_what_is_counted_of_answers_is_what_they_hold(tmp_path: Path) -> None:
    """
    Eight clients take none of a batch of 1 MiB but what the kernel has of it: the batch is counted
    whole, for so it is kept.
    """
    uvloop = pytest.importorskip("uvloop", reason="asyncio's own transports copy what is left")

    async def held_and_counted() -> tuple[int, int]:
        async with Serving(tmp_path) as agent, AsyncExitStack() as stack:
            async with agent.client() as client:
                await client.create("full")
            await fill(agent, 1)
            for listening in chain.from_iterable(agent.server.bound):
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            clients = [await stack.enter_async_context(agent.client()) for _ in range(8)]
            await eventually(lambda: len(agent.server.connections) == 8)
            stack.callback(tracemalloc.stop)
            tracemalloc.start()
            for n, client in enumerate(clients):
                client.stop_reading()
                # (clients that ask for the same share one batch, which counts for each)
                wanted = fetching("full", {0: 0}, partition_max_bytes=MiB - n)
                client.send(fetch.API, 11, wanted)
            await eventually(lambda: all(c.writer.paused for c in agent.server.connections))
            made = tracemalloc.take_snapshot().filter_traces(
                (tracemalloc.Filter(True, "*/driftlog_tiering/segments/columns.py"),)
            )
            return sum(trace.size for trace in made.traces), agent.server.answers.held_bytes

    held, counted = uvloop.run(held_and_counted())

    assert held > 7 * MiB
    assert held - 8 * KiB <= counted <= held + 8 * KiB


async def test_small_answers_and_one_that_is_larger_than_the_room_are_made(
    agent: Serving,
) -> None:
    """
    Beside clients that hold all the room and read nothing a small fetch and a Metadata request are
    answered at once; an answer of 17 MiB where 16 may wait is answered whole.
    """
    server = agent.server
    server.stalled_ms = NEVER_MS  # so who is answered did not wait for somebody to be given up
    await fill(agent, 21)
    wanted = fetching("full", {0: 0})
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(agent.client())
        whole = await alone.fetch("full", {0: 0})
        crowd = Crowd()
        assert server.answers.take(crowd, 3 * MiB)
        for _ in range(4):
            client = await stack.enter_async_context(agent.client())
            client.stop_reading()
            client.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.waiting > 0)
        async with agent.client() as good:
            await good.call(metadata.API, 5, MetadataRequest(topics=None))
            await good.produce("empty", {0: batch(1_000)})
            little = await good.fetch("empty", {0: 0})
        # They are given up as soon as that is what others wait for.
        server.stalled_ms = 500.0
        refused = agent.process.refusals.counts
        await eventually(lambda: refused["driftlog.max.response.queue.bytes"] >= 1)
        server.answers.release(crowd, 3 * MiB)

    assert len(records(whole[0])) > ANSWER_BYTES
    assert len(records(little[0])) > 1_000


async def test_a_read_of_the_bucket_claims_what_it_may_come_to(agent: Serving) -> None:
    """
    Of forty partitions that are asked for, as many are read there as fit 4 MiB, and 1 MiB while
    others hold more than a quarter of the room: three clients read beside one another.
    """
    await fill(agent, 2)
    partitions = dict.fromkeys(range(40), 0)
    wanted = fetching("full", partitions, partition_max_bytes=2 * MiB)
    server = agent.server
    agent.objects.reads.close()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(agent.client()) for _ in range(3)]
        for client in clients:
            client.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.held_bytes >= 2 * MOST_BYTES + MiB)
        held, waiting = server.answers.held_bytes, server.answers.waiting
        agent.objects.reads.open()
        answers = [(await client.receive())[1] for client in clients]

    assert (2 * MOST_BYTES + MiB, 0) == (held, waiting)
    for answer in answers:
        assert len(records(answer.responses[0].partitions[0])) >= MiB - 1_000


@pytest.mark.parametrize(
    ("partition_max_bytes", "max_bytes", "reads", "claimed"),
    [
        (0, 50 * MiB, 8, MOST_BYTES),
        (1, 50 * MiB, 8, MOST_BYTES),
        (MiB, 50 * MiB, 4, MOST_BYTES),
        (MiB, 1, 1, LEAST_BYTES),
    ],
)
async def test_a_request_for_little_makes_few_reads_of_the_bucket(
    agent: Serving, partition_max_bytes: int, max_bytes: int, reads: int, claimed: int
) -> None:
    """
    However little it asks for: each read loads a row group, for which other clients wait.
    """
    partitions = range(20)
    async with agent.client() as client:
        await client.create("wide", len(partitions))
        await client.produce("wide", {n: batch(1_000, n) for n in partitions})
        await agent.seal("wide")
        agent.objects.reads.close()
        limits = {"max_bytes": max_bytes, "partition_max_bytes": partition_max_bytes}
        wanted = fetching("wide", dict.fromkeys(partitions, 0), **limits)
        client.send(fetch.API, 11, wanted)
        await eventually(lambda: agent.objects.reads.waiting > 0)
        made = len(agent.process.dispatcher.fetching.bucket), agent.server.answers.held_bytes
        agent.objects.reads.open()
        _, answer = await client.receive()

    assert (reads, claimed) == made
    assert any(data.records for data in fetched(answer).values())


# ── Addresses ──


async def connect(agent: Serving, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from an address of this machine."""
    return await asyncio.open_connection("127.0.0.1", agent.port, local_addr=(source, 0))


async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether it is answered, and not closed."""
    writer.write(api_versions.API.encode_request(0, 1, "x", ApiVersionsRequest()))
    try:
        async with asyncio.timeout(90):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def test_an_address_has_its_share_of_connections(tmp_path: Path) -> None:
    """
    Two of each, of one three; the others are closed and counted by the limit that refused them.
    Lines name the address and its count, the first at once; when one leaves another may come.
    """
    limits = Limits(max_connections_per_ip=2, max_connections_per_ip_overrides="127.0.0.3:3")
    with capture_logs() as lines:
        async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent:
            served, kept = {}, []
            for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                pairs = [await connect(agent, source) for _ in range(5)]
                kept += pairs
                served[source] = [await is_served(*pair) for pair in pairs]
            kept[0][1].transport.abort()
            await eventually(lambda: len(agent.server.connections) == 6)
            again = await is_served(*await connect(agent, "127.0.0.2"))

    assert {"127.0.0.2": 2, "127.0.0.3": 3, "127.0.0.4": 2} == {
        source: sum(answered) for source, answered in served.items()
    }
    assert again
    counts = agent.process.refusals.counts
    assert 6 == counts["max.connections.per.ip"]
    assert 2 == counts["max.connections.per.ip.overrides"]
    told = [line for line in lines if line["event"] == "connection_refused"]
    by_address: Counter[str] = Counter()
    for line in told:
        by_address[line["client"]] += line["count"]
    assert {"127.0.0.2": 3, "127.0.0.3": 2, "127.0.0.4": 3} == by_address
    assert len(told) < 8


async def test_connections_over_the_rate_wait_and_one_of_another_address_hardly(
    tmp_path: Path,
) -> None:
    """
    Of fifteen from one address five are served at once, the others one a second; one from another
    address does not wait for all of them; none is closed.
    """
    limits = Limits(max_connection_creation_rate=1)
    async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent:
        flood = [await connect(agent, "127.0.0.2") for _ in range(15)]
        other = await connect(agent, "127.0.0.3")
        answered = [asyncio.create_task(is_served(*pair)) for pair in flood]
        assert await is_served(*other)
        waiting = sum(not task.done() for task in answered)
        results = await asyncio.gather(*answered)

    assert waiting > 0
    assert [True] * 15 == results
    assert agent.process.refusals.counts["max.connection.creation.rate"] >= 1


async def test_a_large_request_is_run_once_while_there_is_too_much_of_all(tmp_path: Path) -> None:
    """
    Each of the connections has one answer, and the next one is to its next request.
    """
    limits = Limits(queued_max_request_bytes=MiB, driftlog_max_group_member_bytes=100_000)
    settings = BrokerSettings(limits=limits)
    join = joining("g", 400_000)

    async def ask(agent: Serving) -> int:
        async with agent.client() as client:
            refused = await client.call(join_group.API, 3, join)
            await client.call(metadata.API, 9, MetadataRequest(topics=None))
            return int(refused.error_code)

    async with Serving(tmp_path, broker=settings) as agent:
        codes = await asyncio.gather(*(ask(agent) for _ in range(6)))
        requests = agent.process.dispatcher.requests()

    assert [ErrorCode.INVALID_REQUEST] * 6 == codes
    assert (6, 6) == (requests[ApiKey.JOIN_GROUP], requests[ApiKey.METADATA])


async def test_an_answer_over_all_offsets_of_groups_claims_room_before_it_is_made(
    agent: Serving,
) -> None:
    """
    Requests of a few bytes for much: one at a time goes beyond the room that there is, though each
    looks four groups up at once.
    """
    coordinator = agent.process.broker.groups
    assert coordinator is not None
    topic_id = agent.process.broker.topics.by_name["full"].topic_id
    page = {n: Committed(offset=n, metadata="x" * 30_000) for n in range(100)}
    names = [f"g{n}" for n in range(4)]
    for name in names:
        group = await coordinator.made(name, CLASSIC)
        group.offsets.replay({PageId(topic_id, 0): page})
        await group.store({TopicPartition(topic_id, 0): page[0]})
    wanted = of.OffsetFetchRequest(
        groups=[of.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    )

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(agent.client()) for _ in range(3)]
        answers = await asyncio.gather(*(client.call(of.API, 8, wanted) for client in clients))

    assert agent.server.answers.granted > 0
    for answer in answers:
        assert [100] * 4 == [len(group.topics[0].partitions) for group in answer.groups]


async def test_what_one_client_is_answered_is_not_claimed_for_others(agent: Serving) -> None:
    """
    After an answer of 3 MB, the same API answers others in a few bytes while there is no room.
    """
    coordinator, room = agent.process.broker.groups, agent.server.answers
    assert coordinator is not None
    topic_id = agent.process.broker.topics.by_name["full"].topic_id
    page = {n: Committed(offset=n, metadata="x" * 30_000) for n in range(100)}
    group = await coordinator.made("large", CLASSIC)
    group.offsets.replay({PageId(topic_id, 0): page})
    every = of.OffsetFetchRequestGroup(group_id="large", topics=None)
    one = of.OffsetFetchRequestGroup(
        group_id="small", topics=[of.OffsetFetchRequestTopics(name="full", partition_indexes=[0])]
    )
    crowd = Crowd()

    async with agent.client() as large, agent.client() as small:
        answer = await large.call(of.API, 8, of.OffsetFetchRequest(groups=[every]))
        assert 100 == len(answer.groups[0].topics[0].partitions)
        assert room.take(crowd, room.limit_bytes + 1)
        answer = await small.call(of.API, 8, of.OffsetFetchRequest(groups=[one]))
        room.release(crowd, room.limit_bytes + 1)

    assert 1 == len(answer.groups[0].topics[0].partitions)
