"""What a leader sends to an agent with the role seal becomes the segments that it would write."""

import asyncio
import io
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from driftlog_agents.configs.limits import SEGMENT_WRITES, Limits, Refusals
from driftlog_agents.foundation.offload import WatchedOffload, on_threads
from driftlog_agents.log.local.spool import spool_in
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.agent_choice import PAUSES_S
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.segments.remote_segments import RemoteSegments, SealAgents
from driftlog_agents.log.segments.segment_request import (
    MOST_CHUNK_BYTES,
    BusyError,
    RemoteError,
    SegmentRequest,
    decode_request,
    encode_request,
)
from driftlog_agents.log.segments.segment_service import SegmentService
from driftlog_agents.log.segments.write_turns import AT_ONCE, WriteTurns
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.process.http_guard import GUARD, HttpGuard, HttpPatience
from driftlog_agents.process.segment_client import HttpSegmentTransport
from driftlog_agents.process.segment_http import SILENT_S, SegmentHttp
from driftlog_metadata.schema.codec import encode_secret
from driftlog_metadata.schema.keys import secret_key
from driftlog_metadata.schema.model import ALL_ROLES, Agent, Role, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import BatchHeader, Codec
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import make_batch
from tests.agents.log.tiers import make_undecodable
from tests.agents.network.serving import eventually
from tests.support.memory_object_store import MemoryObjectStore

RECORDS = 50
TP = TopicPartition(UUID(int=5), 3)


def chunks_of(count: int, size: int = 2_000) -> list[list[Buffer]]:
    """Batches of random records at their offsets, ten a chunk."""
    rng = Random(1)
    made: list[Buffer] = []
    for n in range(count):
        batch = memoryview(make_batch([rng.randbytes(size) for _ in range(RECORDS)]))
        kernel.patch(batch, 0, n * RECORDS, 0)
        made.append(batch)
    return [made[i : i + 10] for i in range(0, count, 10)]


class Given(RangeReader):
    """Batches that are given; *fails* is raised after the first chunk."""

    def __init__(self, given: Sequence[list[Buffer]]) -> None:
        super().__init__(MemoryObjectStore(lambda: 0))
        self.given = given
        self.fails: Exception | None = None
        self.read = 0
        self.stop: asyncio.Event | None = None
        """Set: the second chunk waits for it."""
        self.closed = 0

    async def chunks(self, log: PartitionLog, base: int, end: int) -> AsyncGenerator[list[Buffer]]:
        try:
            for n, chunk in enumerate(self.given):
                if n == 1 and self.fails is not None:
                    raise self.fails
                if n == 1 and self.stop is not None:
                    await self.stop.wait()
                self.read += 1
                yield chunk
        finally:
            self.closed += 1


SECRET = "5ec7e7"


def session(cluster_id: str, stored: dict[str, bytes] | None = None) -> Any:
    """Of a cluster, as far as requests for segments need one; *stored*: what it reads."""

    async def read(key: str) -> KeyValue | None:
        value = (stored or {}).get(key)
        return None if value is None else KeyValue(key, value, 1, 1)

    return SimpleNamespace(
        session_id="7", secret=SECRET, author=SimpleNamespace(cluster_id=cluster_id), read=read
    )


@dataclass
class Two:
    """A leader, and an agent that it asks, which share a bucket."""

    objects: MemoryObjectStore
    reader: Given
    writer: SealedRangeWriter
    service: SegmentService
    other: LogCounters
    own: LogCounters
    agent: Agent
    full: list[bool]
    alone: SealedRangeWriter
    """The leader's, without other agents."""
    segments: RangeSegments
    """The other agent's."""
    offload: WatchedOffload
    there: list[bool]
    """Whether the leader sees the other agent."""
    refusals: Refusals
    """The other agent's."""
    stored: dict[str, bytes]
    """What the leader reads in the metadata store."""

    async def write(self, *, alone: bool = False) -> tuple[list[SegmentRef], list[BatchHeader]]:
        end = sum(map(len, self.reader.given)) * RECORDS
        log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=3, leader_epoch=0)
        headers: list[BatchHeader] = []
        writer = self.alone if alone else self.writer
        return await writer.write(log, 0, end, headers), headers


@asynccontextmanager
async def two(
    path: Path,
    given: Sequence[list[Buffer]],
    *,
    cluster: str = "ours",
    most: int = 1 << 24,
    roles: frozenset[Role] = ALL_ROLES,
    hung_ms: float = 60_000.0,
    pauses_s: Sequence[float] = PAUSES_S,
    silent_s: tuple[float, float] = (SILENT_S, SILENT_S),
    large_bytes: int = MOST_CHUNK_BYTES,
) -> AsyncIterator[Two]:
    """*silent_s*: how long the leader waits, and the other agent."""
    objects, own, other = MemoryObjectStore(lambda: 0), LogCounters(), LogCounters()
    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        offload = WatchedOffload(on_threads(pool), lambda: loop.time() * 1000, hung_ms)

        def segments(counters: LogCounters, seed: int) -> RangeSegments:
            return RangeSegments(
                objects=objects,
                offload=offload,
                spool=spool_in(path / str(seed)),
                rng=Random(seed),
                counters=counters,
            )

        others = segments(other, 1)
        refusals = Refusals()
        turns = WriteTurns(AT_ONCE, partial(refusals.count, SEGMENT_WRITES))
        service = SegmentService(others, session(cluster), turns)
        engine: Any = SimpleNamespace(
            segment_service=service,
            agent=SimpleNamespace(roles=roles),
            ports=SimpleNamespace(offload=offload),
        )
        app = web.Application()
        app[GUARD] = HttpGuard(Limits(), (), Refusals(), HttpPatience())
        served = SegmentHttp(
            lambda: engine,
            most,
            lambda: offload.hangs,
            silent_s=silent_s[1],
            large_bytes=large_bytes,
        )
        app.add_routes([served.route()])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        agent = cast(
            Agent, SimpleNamespace(node_id=7, session_id="7", http_address=f"{host}:{port}")
        )
        full, there = [False], [True]
        stored = {secret_key("7"): encode_secret(SECRET)}
        reader = Given(given)
        writer = SealedRangeWriter(
            offload=offload,
            rng=Random(3),
            reader=reader,
            segments=segments(own, 2),
            remote=RemoteSegments(
                agents=SealAgents(
                    HttpSegmentTransport(silent_s[0]), lambda _: [agent] if there[0] else []
                ),
                session=session("ours", stored),
                offload=offload,
                now_ms=lambda: loop.time() * 1000,
                is_behind=lambda: full[0],
                requests=own.segment_requests,
                pauses_s=pauses_s,
            ),
        )
        try:
            alone = SealedRangeWriter(
                offload=offload, rng=Random(4), reader=reader, segments=segments(own, 4)
            )
            yield Two(
                objects,
                reader,
                writer,
                service,
                other,
                own,
                agent,
                full,
                alone,
                others,
                offload,
                there,
                refusals,
                stored,
            )
        finally:
            await runner.cleanup()


async def keys(objects: MemoryObjectStore) -> list[str]:
    return [each.key async for page in objects.list("") for each in page.objects]


async def offsets(objects: MemoryObjectStore, refs: list[SegmentRef]) -> list[int]:
    found: list[int] = []
    for ref in refs:
        table = pq.read_table(io.BytesIO(await objects.get(ref.key)), columns=["offset"])
        found += table["offset"].to_pylist()
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_the_other_agent_writes_the_segment_that_the_leader_would_write(
    tmp_path: Path, codec: Codec
) -> None:
    """Otherwise what a partition holds would depend on who sealed it."""
    given = chunks_of(45)
    async with two(tmp_path, given) as w:
        refs, headers = await w.write()
        assert w.other.sealed_bytes > 0 == w.own.sealed_bytes
        ours, own_headers = await w.write(alone=True)
        assert headers == own_headers
        assert await offsets(w.objects, refs) == list(range(45 * RECORDS))
        assert await w.objects.get(refs[0].key) == await w.objects.get(ours[0].key)
        assert refs[0].received_bytes == ours[0].received_bytes
        assert refs[0].key != ours[0].key


async def test_a_range_whose_reading_fails_is_no_segment(tmp_path: Path) -> None:
    """A range that was cut off would be sealed as a gap: acknowledged records would be gone."""
    async with two(tmp_path, chunks_of(30)) as w:
        w.reader.fails = CorruptError("flush object 3 lacks batches")
        with pytest.raises(CorruptError, match="flush object 3"):
            await w.write()
        assert w.other.sealed_bytes == w.own.sealed_bytes == 0
        assert not await keys(w.objects)
        assert w.reader.closed == 1
        assert not w.service.turns.are_taken


async def test_a_leader_that_goes_away_leaves_no_segment(tmp_path: Path) -> None:
    """Its batches end without the empty frame; the other agent's turn is free again."""
    async with two(tmp_path, chunks_of(30)) as w:
        w.reader.stop = asyncio.Event()
        writes = [asyncio.create_task(w.write()) for _ in range(AT_ONCE)]
        await eventually(lambda: w.service.turns.are_taken)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        await eventually(lambda: not w.service.turns.taken)
        assert not await keys(w.objects)
        assert w.reader.closed == AT_ONCE


async def test_a_full_agent_gets_no_batches_and_is_asked_again(tmp_path: Path) -> None:
    """Otherwise a leader would send segments that nobody writes, or compress while another can."""
    async with two(tmp_path, chunks_of(30)) as w:
        w.service.turns.at_once = 0
        write = asyncio.create_task(w.write())
        await eventually(lambda: w.own.segment_requests.outcomes["refused"] == 2)
        assert not write.done()
        assert w.reader.read <= 4 * 2  # what was read ahead of an answer
        w.service.turns.at_once = AT_ONCE
        await write
        assert w.other.sealed_bytes > 0 == w.own.sealed_bytes
        assert w.own.segment_requests.outcomes == {"ok": 1, "refused": 2, "failed": 0}
        assert w.refusals.counts[SEGMENT_WRITES] == 2


async def test_a_leader_that_is_behind_does_not_wait_for_a_full_agent(tmp_path: Path) -> None:
    """Its producers would have to wait soon."""
    async with two(tmp_path, chunks_of(30)) as w:
        w.service.turns.at_once, w.full[0] = 0, True
        refs, _ = await w.write()
        assert w.own.sealed_bytes > 0 == w.other.sealed_bytes
        assert await offsets(w.objects, refs) == list(range(30 * RECORDS))


@pytest.mark.parametrize("fault", ["cluster", "frame", "store", "gone", "role", "secret"])
async def test_an_agent_that_cannot_is_left_alone_and_the_leader_writes(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing goes on whatever happens to other agents."""
    cluster, most = "other" if fault == "cluster" else "ours", 999 if fault == "frame" else 1 << 24
    roles = frozenset({Role.SERVE}) if fault == "role" else ALL_ROLES
    async with two(tmp_path, chunks_of(20), cluster=cluster, most=most, roles=roles) as w:
        if fault == "secret":
            w.stored.clear()  # as an older build, which stores none
        if fault == "gone":
            w.agent.http_address = "127.0.0.1:1"  # type: ignore[misc]
        if fault == "store":

            async def away(key: str, body: Sequence[Buffer]) -> None:
                raise UnavailableError("the bucket is away")

            monkeypatch.setattr(w.segments, "put", away)
        refs, _ = await w.write()
        assert w.own.sealed_bytes > 0
        assert await offsets(w.objects, refs) == list(range(20 * RECORDS))
        before = w.reader.closed
        await w.write()
        assert w.reader.closed == before + 1, "the other agent was asked again at once"


async def test_batches_that_cannot_be_decoded_are_the_leaders_own(tmp_path: Path) -> None:
    """They are kept as they came; whether they were so here is not for another agent to say."""
    bad = memoryview(bytearray(make_undecodable(10 * RECORDS, RECORDS)))
    async with two(tmp_path, [*chunks_of(10), [bad]]) as w:
        refs, _ = await w.write()
        assert [ref.kind.value for ref in refs] == ["parquet", "raw"]
        assert (w.own.undecodable_batches, w.other.undecodable_batches) == (1, 0)
        assert len(await keys(w.objects)) == 2, "the other agent wrote something"


async def test_a_leader_does_not_wait_for_an_agent_that_left_the_cluster(tmp_path: Path) -> None:
    """A machine that is gone answers nothing, and its connection lasts for minutes."""
    async with two(tmp_path, chunks_of(30)) as w:
        w.reader.stop = asyncio.Event()
        write = asyncio.create_task(w.write())
        await eventually(lambda: w.service.turns.taken == 1)
        w.there[0] = False
        await eventually(lambda: w.own.segment_requests.outcomes["failed"] == 1)
        w.reader.stop.set()
        await write
        assert w.own.sealed_bytes > 0 == w.other.sealed_bytes


async def test_an_agent_whose_threads_hang_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its turns ends: a leader that took it for a full one would wait for it at each range,
    and its other partitions behind that."""
    disk = threading.Event()
    async with two(tmp_path, chunks_of(20), hung_ms=100.0) as w:
        write_one = w.segments.write_one

        async def hang(named: PartitionRange, chunks: AsyncIterator[list[Buffer]]) -> SegmentRef:
            await w.offload(disk.wait)
            return await write_one(named, chunks)

        monkeypatch.setattr(w.segments, "write_one", hang)
        try:
            hung = [asyncio.create_task(w.write()) for _ in range(AT_ONCE)]
            await eventually(lambda: w.service.turns.are_taken and w.offload.hangs)
            refs = [(await w.write())[0] for _ in range(2)]
            assert w.own.segment_requests.outcomes == {"ok": 0, "refused": 0, "failed": 1}
            assert await offsets(w.objects, refs[1]) == list(range(20 * RECORDS))
        finally:
            disk.set()
        await asyncio.gather(*hung)
        assert not w.offload.hangs
        assert w.own.segment_requests.outcomes == {"ok": AT_ONCE, "refused": 0, "failed": 1}


async def test_full_agents_are_not_waited_for_for_long(tmp_path: Path) -> None:
    """The leader's other partitions wait behind this one."""
    async with two(tmp_path, chunks_of(30), pauses_s=(0.1, 0.1)) as w:
        w.service.turns.at_once = 0
        await w.write()
        assert w.own.sealed_bytes > 0
        assert w.own.segment_requests.outcomes["refused"] == 3


async def test_who_sends_little_by_little_loses_its_turn(tmp_path: Path) -> None:
    """Three such connections would keep all leaders from an agent for ever; and what it seals
    itself never waits for another's network."""
    given = [[batch] for chunk in chunks_of(30) for batch in chunk]
    async with two(tmp_path, given, silent_s=(SILENT_S, 6.0)) as w:
        named = PartitionRange("t", TP, 0, 30 * RECORDS)

        async def slowly() -> AsyncGenerator[list[Buffer]]:
            for chunk in given:
                yield chunk
                await asyncio.sleep(0.4)

        async def send() -> None:
            async with aclosing(slowly()) as sent:
                await HttpSegmentTransport().write(
                    w.agent, SegmentRequest("ours", "7", named, SECRET), sent
                )

        sends = [asyncio.create_task(send()) for _ in range(AT_ONCE)]
        await eventually(lambda: w.service.turns.are_taken)
        log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=3, leader_epoch=0)
        own = SealedRangeWriter(
            offload=w.offload, rng=Random(5), reader=w.reader, segments=w.segments
        )
        await own.write(log, 0, 30 * RECORDS, [])
        assert w.service.turns.are_taken, "its own segment waited for theirs"
        found = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(each) for each in found] == [RemoteError] * AT_ONCE


@pytest.mark.parametrize(("chunk_bytes", "expected"), [(1 << 20, AT_ONCE), (1 << 19, 1)])
async def test_one_batch_that_is_larger_than_a_chunk_is_held_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, expected: int
) -> None:
    """Three of 100 MiB would take 600 MiB, which no budget counts.  Ordinary frames do not wait."""
    (given,) = chunks_of(10)
    async with two(tmp_path, [given], large_bytes=chunk_bytes) as w:
        held, most, together = 0, 0, asyncio.Event()

        async def hold(_: PartitionRange, chunks: AsyncIterator[list[Buffer]]) -> SegmentRef:
            nonlocal held, most
            async for _batches in chunks:
                held += 1
                most = max(most, held)
                if held == AT_ONCE:
                    together.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(together.wait(), 0.3)
                held -= 1
            raise UnavailableError("it is not needed")

        async def send() -> None:
            async with aclosing(w.reader.chunks(cast(PartitionLog, None), 0, 0)) as sent:
                await HttpSegmentTransport().write(
                    w.agent,
                    SegmentRequest("ours", "7", PartitionRange("t", TP, 0, 10 * RECORDS), SECRET),
                    sent,
                )

        monkeypatch.setattr(w.segments, "write_one", hold)
        found = await asyncio.gather(*(send() for _ in range(AT_ONCE)), return_exceptions=True)

    assert ['503: {"error": "it is not needed"}'] * AT_ONCE == list(map(str, found))
    assert expected == most


@pytest.mark.parametrize("silent_s", [(0.3, SILENT_S), (SILENT_S, 0.3)])
async def test_neither_side_waits_for_the_other_for_ever(
    tmp_path: Path, silent_s: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen machine would otherwise hold a partition's sealing, or another agent's turn."""
    async with two(tmp_path, chunks_of(30, size=20), silent_s=silent_s) as w:
        if silent_s[0] == SILENT_S:
            w.reader.stop = asyncio.Event()
            write = asyncio.create_task(w.write())
            await eventually(lambda: w.own.segment_requests.outcomes["failed"] == 1)
            w.reader.stop.set()
            await write
        else:
            held = asyncio.Event()
            put = w.segments.put

            async def slow(key: str, body: Sequence[Buffer]) -> None:
                await held.wait()
                await put(key, body)

            monkeypatch.setattr(w.segments, "put", slow)
            await w.write()
            held.set()
        assert w.own.sealed_bytes > 0


@pytest.mark.parametrize("said", ["", "7", "5ec7e8"])
async def test_what_the_agents_tell_everybody_makes_no_segment(tmp_path: Path, said: str) -> None:
    """
    The cluster's id and the session's are public.  A stranger's segment under a made-up topic would
    hide the topic of that name from a restore and from jobs; its requests would hold every turn.
    """
    async with two(tmp_path, chunks_of(10)) as w:
        named = PartitionRange("t", TP, 0, 10 * RECORDS)

        async def batches() -> AsyncGenerator[list[Buffer]]:
            for chunk in w.reader.given:
                yield chunk
            await asyncio.Event().wait()

        async with asyncio.timeout(20), aclosing(batches()) as sent:
            with pytest.raises(RemoteError, match=r"403.*secret") as refused:
                await HttpSegmentTransport().write(
                    w.agent, SegmentRequest("ours", "7", named, said), sent
                )
        assert SECRET not in str(refused.value)
        assert not await keys(w.objects)
        assert not w.service.turns.taken


def test_the_secret_of_a_request_is_not_shown() -> None:
    """
    Neither in a line of the log nor in an error.
    """
    request = SegmentRequest("ours", "7", PartitionRange("t", TP, 0, 10), SECRET)

    assert SECRET not in repr(request)
    assert request == decode_request(encode_request(request))
    assert request.proves(SECRET)
    assert not request.proves(None)
    assert not replace(request, secret="").proves(None)
    assert not replace(request, secret="\ud800").proves(SECRET)


async def test_the_transport_says_what_it_was_answered(tmp_path: Path) -> None:
    """A leader decides by the kind of failure."""
    async with two(tmp_path, chunks_of(10)) as w:
        named = PartitionRange("t", TP, 0, 10 * RECORDS)
        transport = HttpSegmentTransport()

        async def batches() -> AsyncGenerator[list[Buffer]]:
            for chunk in w.reader.given:
                yield chunk

        w.service.turns.at_once = 0
        async with aclosing(batches()) as sent:
            with pytest.raises(BusyError):
                await transport.write(w.agent, SegmentRequest("ours", "7", named, SECRET), sent)
        w.service.turns.at_once = AT_ONCE
        async with aclosing(batches()) as sent:
            with pytest.raises(RemoteError, match=r"409.*cluster theirs"):
                await transport.write(w.agent, SegmentRequest("theirs", "7", named, SECRET), sent)
        async with aclosing(batches()) as sent:
            with pytest.raises(RemoteError, match=r"409.*session 8"):
                await transport.write(w.agent, SegmentRequest("ours", "8", named), sent)

        async def broken() -> AsyncGenerator[list[Buffer]]:
            raise UnavailableError("the bucket is away")
            yield []

        async with aclosing(broken()) as sent:
            with pytest.raises(UnavailableError, match="the bucket is away"):
                await transport.write(w.agent, SegmentRequest("ours", "7", named, SECRET), sent)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_agent_that_stops_reading_is_given_up(fails: bool) -> None:
    """Also while the last frames wait for it, or when the leader's range cannot be read on: all
    sealing of the leader waits for this answer."""
    go_on = asyncio.Event()

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await go_on.wait()
        writer.close()

    server = await asyncio.start_server(stuck, "127.0.0.1", 0, limit=64 * 1024)
    host, port = server.sockets[0].getsockname()[:2]
    agent = Agent(
        node_id=2,
        session_id="7",
        listeners=(),
        http_address=f"{host}:{port}",
        rack=None,
        started_at_ms=0,
    )

    async def batches() -> AsyncGenerator[list[Buffer]]:
        for _ in range(2):  # one that is sent, one that waits behind it
            yield [bytes(16 * 1024**2)]
        if fails:
            raise UnavailableError("the bucket is away")

    request = SegmentRequest("ours", "7", PartitionRange("t", TP, 0, 100))
    try:
        async with asyncio.timeout(20), aclosing(batches()) as sent:
            with pytest.raises(RemoteError, match="it is silent"):
                await HttpSegmentTransport(silent_s=0.3).write(agent, request, sent)
    finally:
        go_on.set()
        server.close()
