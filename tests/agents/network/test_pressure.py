"""Sockets are read again when waiting requests give their memory back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest

from benchmarks.batches import Codec, encode_batch, set_producer
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.produce import handler, waiting_batches
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.log.local.disk import AgentDisk, BufferFile
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import fetch, metadata, produce
from driftlog_metadata.stores.errors import UnavailableError
from tests.agents.network.serving import (
    ENGINE,
    Crowd,
    MiB,
    Serving,
    eventually,
    fetching,
    producing,
    records,
)
from tests.clients.batches import with_records

MEMORY_BYTES = 4 * MiB


MOST_WAITING = "driftlog.max.waiting.batch.bytes"


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent whose log may keep 4 MiB in memory."""
    engine = replace(ENGINE, memory=MemorySettings(memory_bytes=MEMORY_BYTES))
    async with Serving(tmp_path, engine=engine) as serving:
        yield serving


def batch(size: int, seed: int = 0) -> bytearray:
    """One record of so many random bytes."""
    return encode_batch([Random(seed).randbytes(size)], timestamp_ms=1).data


async def loading(path: Path) -> Serving:
    """An agent that leads "t" and is not given what is sealed of it: who calls this closes it."""
    async with Serving(path) as first, first.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch(10)})
        await first.engine.sealer.seal(first.log("t"))
    agent = Serving(path)
    await agent.begin()
    agent.objects.reads_of = "/t/"
    agent.objects.reads.close()
    await agent.process.ready.wait()
    return agent


# ── Pressure ──


async def test_who_waits_for_rewrites_is_not_read_and_others_are(agent: Serving) -> None:
    """
    Batches that wait for the thread that recompresses them are memory that no flush shows: from
    1 MiB of them on their connection is not read, whoever writes to other topics is, and at last
    everything is taken, in its order.
    """
    waiting = agent.process.dispatcher.producing.waiting
    async with agent.client() as client, agent.client() as other:
        await client.create("t", compression_type="zstd")
        await client.create("u")
        agent.rewrites.close()
        asked = [client.send_produce("t", {0: batch(MiB // 4, n)}) for n in range(64)]
        await eventually(lambda: waiting.held_bytes >= MiB)
        await other.produce("u", {0: batch(10)})
        held, requests = waiting.held_bytes, agent.process.dispatcher.producing.requests
        late = other.send_produce("t", {0: batch(10)}, acks=1)
        agent.rewrites.open()
        answers = [await client.receive() for _ in asked]
        number, _ = await other.receive()

    assert MiB <= held <= 2 * MiB
    assert requests < 64
    assert asked == [number for number, _ in answers]
    offsets = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert sorted(offsets) == offsets
    assert late == number
    assert 0 == waiting.held_bytes


@pytest.mark.parametrize("several", [1, 3, 2_500])
async def test_who_brings_batches_for_which_there_is_no_room_waits_in_turn(
    tmp_path: Path, several: int
) -> None:
    """
    With one batch or with many: who writes to other topics goes on, and at last each is taken once,
    in its producer's order.
    """
    limits = Limits(driftlog_max_waiting_batch_bytes=MiB // 2)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client() as client,
        agent.client() as other,
        agent.client() as healthy,
    ):
        await client.create("t", 2_500, compression_type="zstd")
        await client.create("u")
        agent.rewrites.close()
        dispatcher = agent.process.dispatcher
        asked = [client.send_produce("t", {0: batch(600_000)})]
        asked += [client.send_produce("t", {0: batch(10)})]
        await eventually(lambda: dispatcher.producing.waiting.scarce)
        late = []
        for sequence in range(3):
            data = batch(100)
            set_producer(data, 7, 0, sequence)
            late.append(other.send_produce("t", dict.fromkeys(range(several), data)))
        for _ in range(20):
            await healthy.produce("u", {0: batch(10)})
        held = dispatcher.producing.waiting.held_bytes
        agent.rewrites.open()
        answers = [await client.receive() for _ in asked] + [await other.receive() for _ in late]
        refusals = agent.process.broker.refusals.counts["driftlog.max.waiting.batch.bytes"]

    assert asked + late == [number for number, _ in answers]
    offsets = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert list(range(5)) == offsets
    assert held < 2 * MiB
    assert refusals > 0


async def test_who_leaves_while_there_is_no_room_is_waited_for_no_longer(tmp_path: Path) -> None:
    """
    And what it sent is taken, as what any producer left before the log could take more.
    """
    limits = Limits(driftlog_max_waiting_batch_bytes=MiB // 2)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client() as client,
    ):
        await client.create("t", compression_type="zstd")
        agent.rewrites.close()
        asked = client.send_produce("t", {0: batch(600_000)})
        await eventually(lambda: agent.process.dispatcher.producing.waiting.scarce)
        async with agent.client() as other:
            other.send_produce("t", {0: batch(10)}, acks=0)
            await eventually(lambda: len(agent.server.connections) == 2)
            other.writer.close()
            await other.writer.wait_closed()
        agent.rewrites.open()
        number, _ = await client.receive()
        await eventually(lambda: len(agent.server.connections) == 1)
        await eventually(lambda: agent.log("t").high_watermark == 2)

    assert asked == number


@pytest.mark.parametrize("several", [1, 2_500])
async def test_batches_of_one_address_leave_room_to_another(tmp_path: Path, several: int) -> None:
    """
    It has more to send than there is room for, also in a large request that is half admitted:
    another client's batches wait beside its own, and another's large request is admitted.
    """
    limits = Limits(driftlog_max_waiting_batch_bytes=2 * MiB)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client("127.0.0.2") as first,
        agent.client("127.0.0.2") as second,
        agent.client("127.0.0.2") as third,
        agent.client() as healthy,
    ):
        await healthy.create("t", 2_500, compression_type="zstd")
        await healthy.create("u", 2_500)
        agent.rewrites.close()
        waiting = agent.process.dispatcher.producing.waiting
        for flood in (first, second, third):
            flood.send_produce("t", dict.fromkeys(range(several), batch(900_000 // several)))
        await eventually(lambda: waiting.held_bytes > MiB)
        await eventually(lambda: agent.process.broker.refusals.counts[MOST_WAITING] > 0)
        large = await healthy.produce("u", dict.fromkeys(range(2_500), batch(10)))
        held = waiting.held_bytes
        asked = healthy.send_produce("t", {0: batch(10)})
        await eventually(lambda: waiting.held_bytes > held)
        agent.rewrites.open()
        number, _ = await healthy.receive()

    assert {0} == {large[n].error_code for n in range(2_500)}
    assert asked == number


async def test_who_has_waited_too_long_for_room_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nothing says that a client has left while it is not read: what it had sent took hours of the
    thread.  Whoever still waits for an answer has asked again by then.
    """
    limits = Limits(driftlog_max_waiting_batch_bytes=MiB // 2)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client() as client,
        agent.client() as other,
    ):
        await client.create("t", 2, compression_type="zstd")
        agent.rewrites.close()
        asked = client.send_produce("t", {0: batch(600_000)})
        await eventually(lambda: agent.process.dispatcher.producing.waiting.scarce)
        other.send_produce("t", {1: batch(10)}, acks=0)
        await eventually(lambda: agent.process.broker.refusals.counts[MOST_WAITING] > 0)
        monkeypatch.setattr(waiting_batches, "LONGEST_MS", -1)
        agent.rewrites.open()
        closed = await other.closed()
        number, _ = await client.receive()
        taken = agent.log("t", 1).log_end

    assert (True, asked, 0) == (closed, number, taken)


async def test_a_batch_without_acks_does_not_wait_for_ever(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With acks its client says when it gives up, or leaves.
    """
    async with agent.client() as client, agent.client() as other:
        await client.create("t", compression_type="zstd")
        agent.rewrites.close()
        asked = other.send_produce("t", {0: batch(10)})
        await eventually(lambda: agent.rewrites.waiting == 1)
        client.send_produce("t", {0: batch(10)}, acks=0)
        await eventually(lambda: len(agent.log("t").busy) == 2)
        monkeypatch.setattr(handler, "LONGEST_MS", -1)
        agent.rewrites.open()
        closed = await client.closed()
        number, _ = await other.receive()
        held, end = agent.process.dispatcher.producing.waiting.held_bytes, agent.log("t").log_end

    assert (True, asked, 0, 1) == (closed, number, held, end)


async def test_answers_of_a_request_are_counted_while_any_of_its_batches_waits(
    tmp_path: Path,
) -> None:
    """
    One batch of 1,001 waits, and the answers of the whole request are counted with it.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 1_000)
        await client.create("z", compression_type="zstd")
        agent.rewrites.close()
        data = batch(100)
        request = producing("t", dict.fromkeys(range(1000), data))
        request.topic_data += producing("z", {0: data}).topic_data
        asked = client.send(produce.API, 9, request)
        await eventually(lambda: agent.rewrites.waiting == 1)
        held = agent.process.dispatcher.producing.waiting.held_bytes
        agent.rewrites.open()
        number, _ = await client.receive()

    assert asked == number
    assert 1_000 * 256 < held < 1_010 * 256 + 2_000


async def test_a_batch_that_waits_keeps_no_frame_that_is_much_larger(agent: Serving) -> None:
    """
    Beside it are 4 MB for another topic, which are in the log.
    """
    async with agent.client() as client:
        await client.create("t", 8)
        await client.create("z", compression_type="zstd")
        agent.rewrites.close()
        large, little = batch(500_000), batch(300_000)
        request = producing("t", dict.fromkeys(range(8), large))
        request.topic_data += producing("z", {0: little}).topic_data
        asked = client.send(produce.API, 9, request)
        await eventually(lambda: agent.rewrites.waiting == 1)
        kept = [len(entry[2].obj) for entry in agent.log("z").busy]
        agent.rewrites.open()
        number, _ = await client.receive()

    assert (asked, [len(little)]) == (number, kept)


async def test_batches_that_wait_for_a_partition_are_told_when_its_topic_goes(
    tmp_path: Path,
) -> None:
    """
    Also where the bucket never says what is sealed: nothing stays counted, and the connection goes
    on.
    """
    agent = await loading(tmp_path)
    try:
        async with agent.client() as client:
            data = batch(MiB // 2)
            set_producer(data, 7, 0, 1)
            asked = [client.send_produce("t", {0: data}, acks=1) for _ in range(3)]
            waiting = agent.process.dispatcher.producing.waiting
            await eventually(lambda: waiting.held_bytes >= MiB)
            agent.engine.remove_topic(agent.log("t").topic_id)
            answers = [await client.receive() for _ in asked]
            held = waiting.held_bytes
        agent.objects.reads.open()
    finally:
        await agent.close()

    assert asked == [number for number, _ in answers]
    assert all(a.responses[0].partition_responses[0].error_code for _, a in answers)
    assert 0 == held


async def test_refused_rewrites_are_held_no_longer(agent: Serving) -> None:
    """
    Also where the batch cannot be decoded, is not allowed, or somebody's code fails.
    """
    async with agent.client() as client:
        await client.create("t", compression_type="zstd")
        garbage = with_records(encode_batch([b"x"], codec=Codec.LZ4).data, lambda r: bytes(len(r)))
        undecodable = await client.produce("t", {0: garbage})
        agent.rewrites.error = ValueError("a bug")
        client.send_produce("t", {0: batch(999)})
        closed = await client.closed()

    assert ErrorCode.INVALID_RECORD == undecodable[0].error_code
    assert closed
    await eventually(lambda: agent.process.dispatcher.producing.waiting.held_bytes == 0)


async def test_a_socket_is_not_read_while_its_batches_wait_for_their_partition(
    tmp_path: Path,
) -> None:
    """
    The same of batches that wait until their partition's producers are loaded.
    """
    agent = await loading(tmp_path)
    try:
        async with agent.client() as client:
            asked = []
            for n in range(32):
                data = batch(MiB // 4, n)
                set_producer(data, 7, 0, n)
                asked.append(client.send_produce("t", {0: data}))
            waiting = agent.process.dispatcher.producing.waiting
            await eventually(lambda: waiting.held_bytes >= MiB)
            await asyncio.sleep(0.3)
            held, parked = waiting.held_bytes, len(agent.log("t").parked)
            agent.objects.reads.open()
            answers = [await client.receive() for _ in asked]
        after = waiting.held_bytes
    finally:
        await agent.close()

    assert MiB <= held <= 2 * MiB
    assert parked < 32
    assert asked == [number for number, _ in answers]
    offsets = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert list(range(1, 33)) == offsets
    assert 0 == after


async def test_producers_wait_while_sealing_is_far_behind_and_consumers_do_not(
    tmp_path: Path,
) -> None:
    """
    The bucket takes flushes and no segments: at twice what may be unsealed producers are read no
    more, whoever only consumes is; when segments go again, everything is taken.
    """
    seal = SealSettings(check_interval_ms=20, segment_bytes=MiB, unsealed_bytes=2 * MiB)
    engine = replace(ENGINE, seal=replace(seal, unsealed_bytes_per_partition=0))
    async with (
        Serving(tmp_path, engine=engine) as agent,
        agent.client() as client,
        agent.client() as consumer,
    ):
        await client.create("t")
        agent.objects.writes_of = ".parquet"
        agent.objects.writes.close()
        server, log, asked = agent.server, agent.log("t"), []
        for n in range(256):
            asked.append(client.send_produce("t", {0: batch(MiB // 4, n)}))
            if len(asked) % 16 == 0:  # a slow machine takes much before it looks for pressure
                await eventually(lambda: log.high_watermark == len(asked) or server.overloaded)
        await eventually(lambda: agent.engine.ports.backpressure.reasons == {"sealing"})
        await asyncio.sleep(0.5)
        unsealed, requests = log.unsealed_bytes, agent.process.dispatcher.producing.requests
        fetched = await consumer.fetch("t", {0: 0})
        assert agent.engine.sealer.lag.behind
        agent.objects.writes.open()
        answers = [await client.receive() for _ in asked]
        await eventually(lambda: not server.overloaded)

    assert 4 * MiB < unsealed < 48 * MiB
    assert requests < 256
    assert records(fetched[0])
    assert asked == [number for number, _ in answers]


async def test_a_session_that_is_over_holds_nobody_up(tmp_path: Path) -> None:
    """
    Its last batches leave the thread that recompresses them when the next session serves: what it
    could not commit counts no more.
    """
    memory = MemorySettings(pending_bytes=MiB)
    async with (
        Serving(tmp_path, engine=replace(ENGINE, memory=memory)) as agent,
        agent.client() as client,
        agent.client() as other,
    ):
        await client.create("t", compression_type="zstd")
        await client.create("u")
        server, flusher = agent.server, agent.engine.flusher
        agent.rewrites.close()
        late = client.send_produce("t", {0: batch(1_000)})
        await eventually(lambda: agent.rewrites.waiting == 1)
        agent.objects.writes.close()
        for n in range(5):
            other.send_produce("u", {0: batch(MiB // 4, n)})
        await eventually(lambda: server.overloaded)
        lost = asyncio.create_task(agent.lose_session())
        await eventually(lambda: agent.process.broker.engine is None)
        agent.objects.writes.open()
        await lost
        await eventually(lambda: agent.engine.flusher.pending_bytes == 0)
        before = server.overloaded
        agent.rewrites.open()
        answer = await client.receive()

        assert (flusher.overloaded, before, server.overloaded) == (True, False, False)
        assert late == answer[0]


# ── What a batch pins ──


async def test_a_little_batch_does_not_keep_the_large_request_that_it_came_in(
    agent: Serving,
) -> None:
    """
    Beside it in the request were 900 kB that were refused: what is kept is the little batch, and
    it reads as it should.
    """
    refused = batch(900_000)
    refused[-1] ^= 1
    async with agent.client() as client:
        await client.create("t", 2)
        answers = [
            await client.produce("t", {0: refused, 1: batch(2_000, n)}, acks=1) for n in range(5)
        ]
        await client.produce("t", {1: batch(2_000, 5)})
        read = await client.fetch("t", {1: 0})
    views = [
        view
        for data in agent.engine.flusher.memory.committed
        for view in data.views or ()
        if len(view)
    ]

    assert [(ErrorCode.CORRUPT_MESSAGE, 0)] * 5 == [
        (a[0].error_code, a[1].error_code) for a in answers
    ]
    assert list(range(5)) == [a[1].base_offset for a in answers]
    assert 6 == len(views)
    kept = [len(cast(bytearray, view.obj)) for view in views if isinstance(view, memoryview)]
    assert max(kept) < 512 * 1024, f"a batch of 2 kB keeps {max(kept)} bytes"
    assert all(Random(n).randbytes(2_000) in records(read[1]) for n in range(6))


# ── A disk that fails under traffic ──


class FailingDisk:
    """A disk that makes no files while it is told so."""

    def __init__(self, behind: AgentDisk) -> None:
        self._behind = behind
        self.full = False
        self.tries = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._behind, name)

    def create_file(self, session_id: str, number: int) -> BufferFile:
        self.tries += 1
        if self.full:
            raise UnavailableError("no space left on device")
        return self._behind.create_file(session_id, number)


async def test_a_disk_is_tried_again_under_traffic_that_never_stops(tmp_path: Path) -> None:
    """
    Requests much more often than that do not put off the probe: soon after there is room, acks=1 is
    taken; and the probes are not as many as the requests.
    """
    disks: list[FailingDisk] = []

    def wrap(disk: AgentDisk) -> AgentDisk:
        disks.append(FailingDisk(disk))
        disks[-1].full = True
        return cast(AgentDisk, disks[-1])

    engine = replace(ENGINE, buffer=replace(ENGINE.buffer, probe_interval_ms=1_000))
    async with (
        Serving(tmp_path, engine=engine, disk=wrap) as agent,
        agent.client() as busy,
        agent.client() as client,
    ):
        await client.create("t")
        await client.create("busy")
        stop = asyncio.Event()

        async def traffic() -> int:
            sent = 0
            while not stop.is_set():
                assert (await busy.produce("busy", {0: batch(10)}))[0].error_code == 0
                sent += 1
            return sent

        began = time.monotonic()
        running = asyncio.create_task(traffic())
        await eventually(lambda: disks[0].tries >= 3)
        probes, while_s = disks[0].tries, time.monotonic() - began
        refused = await client.produce("t", {0: batch(10)}, acks=1)
        disks[0].full = False
        async with asyncio.timeout(8):
            while (  # noqa: ASYNC110  # nobody tells
                taken := await client.produce("t", {0: batch(10)}, acks=1)
            )[0].error_code:
                await asyncio.sleep(0.05)
        stop.set()
        sent = await running

    assert ErrorCode.KAFKA_STORAGE_ERROR == refused[0].error_code
    assert 0 == taken[0].error_code
    assert probes <= while_s + 2
    assert sent > probes


@pytest.mark.parametrize("partitions", [1, 3])
async def test_what_the_disk_did_not_take_is_answered_in_time_where_it_is_not_committed(
    tmp_path: Path, partitions: int
) -> None:
    """
    acks=1 waits for the commit then, and the bucket takes nothing either; as with acks=all, it may
    be in the log later.
    """
    disks: list[FailingDisk] = []

    def wrap(disk: AgentDisk) -> AgentDisk:
        disks.append(FailingDisk(disk))
        return cast(AgentDisk, disks[-1])

    async with Serving(tmp_path, disk=wrap) as agent, agent.client() as client:
        await client.create("t", partitions)
        agent.objects.writes.close()
        disks[0].full = True
        batches = {n: batch(10) for n in range(partitions)}
        late = await client.produce("t", batches, acks=1, timeout_ms=300)
        agent.objects.writes.open()
        await eventually(lambda: agent.log("t").high_watermark == 1)

    assert {ErrorCode.REQUEST_TIMED_OUT} == {answer.error_code for answer in late.values()}


async def test_the_first_request_of_a_producer_waits_too_while_the_log_takes_no_more(
    tmp_path: Path,
) -> None:
    """
    Ten producers come while producers are held, again and again: none of their batches is admitted
    and what they wait with does not grow; then each is, once, in its order.
    """
    async with Serving(tmp_path) as agent, AsyncExitStack() as stack:
        async with agent.client() as client:
            await client.create("t")
        server, log = agent.server, agent.log("t")
        clients = [await stack.enter_async_context(agent.client()) for _ in range(10)]
        server.hold_producers(True)
        asked = [[c.send_produce("t", {0: batch(10)}) for _ in range(3)] for c in clients]
        await eventually(lambda: sum(c.has_to_wait for c in server.connections) == 10)
        for _ in range(2_000):
            server.hold_producers(False)
            server.hold_producers(True)
            await asyncio.sleep(0)
        admitted = log.log_end
        server.hold_producers(False)
        answered = [[(await c.receive())[0] for _ in range(3)] for c in clients]

    assert 0 == admitted
    assert asked == answered
    assert 30 == log.log_end


async def test_what_many_wait_for_is_news_to_a_few_in_each_iteration(tmp_path: Path) -> None:
    """
    Two hundred consumers wait at the end of a partition, and are told something: with time for ten
    answers an iteration answers twelve at most, and all are answered.
    """
    async with Serving(tmp_path) as agent, AsyncExitStack() as stack:
        async with agent.client() as client:
            await client.create("t")
        server, log = agent.server, agent.log("t")
        share = LoopShare(server.loop, lambda: answers() * 0.0005)
        server.loop_share = share
        clients = [await stack.enter_async_context(agent.client()) for _ in range(200)]

        def answers() -> int:
            return sum(
                slot.answer is not None for c in server.connections for slot in c.writer.slots
            ) + sum(c.source.answers for c in server.connections)

        for client in clients:
            client.send(fetch.API, 11, fetching("t", {0: 0}, max_wait_ms=60_000))
        await eventually(lambda: len(log.waiting_fetches) == 200)
        for waiter in list(log.waiting_fetches):
            waiter.lost(log)
        most = before = answers()
        while answers() < 200:
            await asyncio.sleep(0)
            most, before = max(most, answers() - before), answers()
        taken = [(await client.receive())[1] for client in clients]

    assert most <= 12
    assert 200 == len(taken)


async def test_an_answer_of_little_batches_is_not_made_of_all_of_them(tmp_path: Path) -> None:
    """
    Of 12,000 that there are one fetch brings 10,000, at once though it asks for more bytes than
    they have, and the next one the rest.
    """
    patient = fetching("t", {0: 0}, max_wait_ms=60_000, min_bytes=8 * MiB)
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t")
        for _ in range(12):
            asked = [client.send_produce("t", {0: batch(10)}) for _ in range(1_000)]
            for _ in asked:
                await client.receive()
        client.send(fetch.API, 11, patient)
        _, answer = await client.receive()
        first = records(answer.responses[0].partitions[0])
        second = records((await client.fetch("t", {0: 10_000}))[0])

    size = len(batch(10))
    assert [10_000 * size, 2_000 * size] == [len(first), len(second)]


async def test_metadata_is_made_when_there_is_room_for_the_partitions_that_it_names(
    tmp_path: Path,
) -> None:
    """
    The first answer, too, however small the last ones were: a thousand at once made 12 MB each.
    Who leaves while it waits is waited for no longer.
    """
    every = metadata.MetadataRequest(topics=None)
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 400)
        crowd, room = Crowd(), agent.server.answers
        size = room.limit_bytes + 1
        assert room.take(crowd, size)
        async with agent.client() as other:
            other.send(metadata.API, 9, every)
            await eventually(lambda: room.waiting == 1)
        await eventually(lambda: room.waiting == 0)
        client.send(metadata.API, 9, every)
        await eventually(lambda: room.waiting == 1)
        room.release(crowd, size)
        _, answer = await client.receive()
        await eventually(lambda: room.held_bytes == 0)

    assert 400 == len(answer.topics[0].partitions)
