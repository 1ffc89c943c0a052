"""SIGTERM while an agent starts, works or owes answers; connections closed on; sessions lost."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch, set_producer
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.log.local.disk import AgentDisk, BufferFile
from driftlog_agents.network.listeners import AddressTakenError, take
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import (
    api_versions,
    init_producer_id,
    produce,
)
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from driftlog_agents.protocol.messages.init_producer_id import InitProducerIdRequest
from driftlog_metadata.stores.errors import StoreError, UnavailableError
from driftlog_metadata.stores.store import (
    Compare,
    KeyValue,
    MetadataStore,
    Operation,
    TxnResult,
    Watch,
)
from tests.agents.network.serving import (
    Client,
    Gate,
    Serving,
    eventually,
    producing,
    records,
)


def batch(value: bytes = b"x") -> bytearray:
    """One record."""
    return encode_batch([value], timestamp_ms=1).data


class GatedMetadata:
    """A metadata store, each kind of whose requests can be held up."""

    def __init__(self, behind: MetadataStore) -> None:
        self._behind = behind
        self.gates = {kind: Gate() for kind in ("txn", "get_prefix", "grant_lease")}

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        await self.gates["txn"].passed()
        return await self._behind.txn(compares, then, otherwise)

    async def get(self, key: str) -> KeyValue | None:
        return await self._behind.get(key)

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        await self.gates["get_prefix"].passed()
        return await self._behind.get_prefix(prefix, keys_only=keys_only)

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        await self.gates["grant_lease"].passed()
        await self._behind.grant_lease(lease_id, ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        await self._behind.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._behind.revoke_lease(lease_id)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        return self._behind.watch(prefix, start_revision)

    async def close(self) -> None:
        await self._behind.close()


# ── SIGTERM before it is ready ──


async def stop_while(path: Path, gate_of: Callable[[Serving, GatedMetadata], Gate]) -> None:
    """Stop an agent that waits at a gate; the gate is not opened before it has left."""
    stores: list[GatedMetadata] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(GatedMetadata(store))
        return stores[-1]

    async with Serving(path) as first, first.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch()})
    agent = Serving(path, metadata=wrap)
    try:
        await agent.begin()
        gate = gate_of(agent, stores[0])
        gate.close()
        await eventually(lambda: gate.waiting > 0)
        agent.process.stop()
        await asyncio.wait([agent.running], timeout=10)
        assert agent.running.done(), "the stop was not heard"
        assert not agent.process.ready.is_set()
        await agent.running
    finally:
        await agent.close()


async def end_of_log(path: Path) -> tuple[int, int]:
    """What the next agent says: error code and high watermark."""
    async with Serving(path) as agent, agent.client() as client:
        answer = await client.fetch("t", {0: 0})
    return answer[0].error_code, answer[0].high_watermark


@pytest.mark.parametrize("kind", ["grant_lease", "get_prefix", "txn"])
async def test_a_stop_is_heard_while_the_metadata_store_does_not_answer(
    tmp_path: Path, kind: str
) -> None:
    """
    Whatever the session that begins waits for: it is given up, the process leaves, and the next
    one serves what was there.
    """
    await stop_while(tmp_path, lambda _, store: store.gates[kind])

    assert (0, 1) == await end_of_log(tmp_path)


@pytest.mark.parametrize("name", ["cluster.json", ".flush"])
async def test_a_stop_is_heard_while_the_bucket_does_not_answer(tmp_path: Path, name: str) -> None:
    """
    Before anything, when the cluster is looked up; and in the session, when footers are read.
    """

    def gate_of(agent: Serving, _: GatedMetadata) -> Gate:
        agent.objects.reads_of = name
        return agent.objects.reads

    await stop_while(tmp_path, gate_of)

    assert (0, 1) == await end_of_log(tmp_path)


class Stubborn(Gate):
    """Who waits at it does not hear that it is cancelled: it goes on, or fails in its own way."""

    async def passed(self) -> None:
        try:
            await super().passed()
        except asyncio.CancelledError:
            self.open()  # the reads after it do not wait
            if self.error is not None:
                raise self.error from None


@pytest.mark.parametrize("error", [None, UnavailableError("the connection was closed")])
async def test_a_start_that_does_not_hear_the_stop_leaves_nothing_behind(
    tmp_path: Path, error: Exception | None
) -> None:
    """
    The cluster is looked up when SIGTERM comes; whether that is answered after all, or fails
    while it is given up: the port is free when the agent has left, and the error is told.
    """
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    agent = Serving(tmp_path)
    with capture_logs() as lines:
        try:
            await agent.begin()
            gate = agent.objects.reads = Stubborn()
            gate.error = error
            gate.close()
            await eventually(lambda: gate.waiting > 0)
            agent.process.stop()
            await asyncio.wait([agent.running], timeout=10)
            assert agent.running.done(), "the stop was not heard"
            await agent.running
            listeners = [] if error else agent.server.bound[0]
        finally:
            await agent.close()
    del agent
    gc.collect()
    await asyncio.sleep(0)

    assert [] == [listener for listener in listeners if listener.fileno() != -1]
    assert [] == lost
    assert [repr(error)] * bool(error) == [
        line["error"] for line in lines if line["event"] == "start_given_up"
    ]


async def test_a_port_that_is_taken_still_says_so(tmp_path: Path) -> None:
    """
    What start-up raises is raised, not taken for a stop.
    """
    async with Serving(tmp_path / "first") as first:
        second = Serving(tmp_path / "second", port=first.port)
        try:
            await second.begin()
            with pytest.raises(AddressTakenError, match=f"{first.port} is in use"):
                await second.running
        finally:
            second.running = asyncio.create_task(asyncio.sleep(0))
            await second.close()


async def test_a_port_that_somebody_else_listened_on_first_says_so(tmp_path: Path) -> None:
    """
    Both were bound to it, which is allowed while nobody listens: the same words, one line.
    """
    stores: list[GatedMetadata] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(GatedMetadata(store))
        stores[0].gates["grant_lease"].close()
        return stores[0]

    (bound,) = await take("127.0.0.1", 0, "--listener")
    port = bound.getsockname()[1]
    agent = Serving(tmp_path, port=port, metadata=wrap)
    try:
        await agent.begin()
        await eventually(lambda: stores[0].gates["grant_lease"].waiting > 0)
        bound.listen()
        stores[0].gates["grant_lease"].open()
        with pytest.raises(ExceptionGroup) as raised:
            await agent.running
        agent.running = asyncio.create_task(asyncio.sleep(0))
    finally:
        bound.close()
        await agent.close()

    told = raised.value.subgroup(AddressTakenError)
    assert told is not None
    assert f"--listener 127.0.0.1:{port} is in use" in repr(told)


# ── SIGTERM while answers are owed ──


async def test_what_was_admitted_is_answered_before_its_connection_is_closed(
    tmp_path: Path,
) -> None:
    """
    The store is slow when SIGTERM comes: who waits gets the acknowledgement and then the end of
    the stream; who comes later is sent elsewhere; new connections are not taken.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as late:
        await client.create("t")
        agent.objects.writes.close()
        client.send_produce("t", {0: batch(b"before")})
        await eventually(lambda: agent.objects.writes.waiting > 0)
        agent.process.stop()
        await eventually(lambda: not agent.engine.ready.is_set())
        refused = await late.produce("t", {0: batch(b"after")})
        agent.objects.writes.open()
        _, answer = await client.receive()
        ended = await client.closed(), await late.closed()
        await agent.running
        with pytest.raises(ConnectionError):
            async with agent.client():
                pass

    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == refused[0].error_code
    assert 0 == answer.responses[0].partition_responses[0].error_code
    assert (True, True) == ended
    assert (0, 1) == await end_of_log(tmp_path)


@pytest.mark.parametrize("name", ["/manifest/", "/producers/"])
async def test_a_stop_does_not_wait_for_partitions_that_are_loaded(
    tmp_path: Path, name: str
) -> None:
    """
    The bucket is silent about what is sealed when SIGTERM comes: who waits for it is told so, and
    the process leaves, long before such a request is given up; nothing is lost.
    """
    idempotent = batch()
    set_producer(idempotent, 99, 0, 0)
    async with Serving(tmp_path) as first, first.client() as client:
        await client.create("t")
        await client.produce("t", {0: idempotent})
        await first.seal("t")
    agent = Serving(tmp_path)
    try:
        await agent.begin()
        agent.objects.reads_of = name
        agent.objects.reads.close()
        await agent.process.ready.wait()
        async with agent.client() as client:
            stranger = batch()
            set_producer(stranger, 100, 0, 0)
            client.send_produce("t", {0: stranger})
            await eventually(lambda: bool(agent.log("t").parked))
            agent.process.stop()
            _, answer = await client.receive()
            await asyncio.wait([agent.running], timeout=10)
            left = agent.running.done()
    finally:
        await agent.close()

    assert left, "the stop waited for the bucket"
    code = answer.responses[0].partition_responses[0].error_code
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == code
    assert (0, 1) == await end_of_log(tmp_path)


# ── Closed connections ──


async def test_nothing_is_taken_that_came_behind_what_closed_a_connection(tmp_path: Path) -> None:
    """
    A refused acks=0 closes its connection; what stood behind it in the same packet is not
    appended, for its producer believes that nothing of it was.
    """
    broken = batch(b"wrong CRC")
    broken[-1] ^= 1
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        frames = [
            client.encode(produce.API, 9, producing("t", {0: data}, acks=acks))[1]
            for data, acks in ((batch(b"ahead"), 0), (broken, 0), (batch(b"behind"), 0))
        ]
        client.writer.write(b"".join(frames))
        closed = await client.closed()
        await eventually(lambda: agent.log("t").high_watermark > 0)
        answer = await other.produce("t", {0: batch(b"next")})
        read = records((await other.fetch("t", {0: 0}))[0])

    assert closed
    assert 1 == answer[0].base_offset
    assert b"behind" not in read


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (ValueError("a bug"), "handler_bug"),
        (StoreError("no such thing"), "request_failed"),
        (ExceptionGroup("of a request's parts", [StoreError("no such thing")]), "request_failed"),
        (ExceptionGroup("both", [StoreError("no such thing"), ValueError("a")]), "handler_bug"),
    ],
)
async def test_a_request_that_fails_costs_its_connection_and_no_other(
    tmp_path: Path, error: Exception, event: str
) -> None:
    """
    A bug in a handler, and a store that says what nobody expected: one line in the log, that
    connection closed with all that is behind it, and the session goes on.
    """
    stores: list[GatedMetadata] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(GatedMetadata(store))
        return stores[-1]

    with capture_logs() as lines:
        async with (
            Serving(tmp_path, metadata=wrap) as agent,
            agent.client() as client,
            agent.client() as other,
        ):
            await other.create("t")
            stores[0].gates["txn"].error = error
            asked = InitProducerIdRequest(transactional_id=None)
            client.send(init_producer_id.API, 1, asked)
            client.send(api_versions.API, 0, ApiVersionsRequest())
            closed = await client.closed()
            stores[0].gates["txn"].error = None
            answer = await other.produce("t", {0: batch()})
            sessions = agent.process.sessions

    assert closed
    assert 0 == answer[0].error_code
    assert 1 == sessions
    assert 1 == [line["event"] for line in lines].count(event)


async def test_more_connections_than_there_may_be_are_closed_at_once(tmp_path: Path) -> None:
    """
    Those that are there go on, and when one leaves another may come.
    """
    async with Serving(tmp_path, broker=BrokerSettings(max_connections=2)) as agent:
        async with agent.client() as first, agent.client() as second:
            await ask(first)
            await ask(second)
            async with agent.client() as third:
                assert await third.closed()
            await ask(first)
        await eventually(lambda: not agent.server.connections)
        async with agent.client() as fourth:
            await ask(fourth)


async def test_idle_connections_are_closed_and_those_that_wait_are_not(tmp_path: Path) -> None:
    """
    Silence of connections.max.idle.ms ends a connection, unless an answer is owed to it.
    """
    settings = BrokerSettings(connections_max_idle_ms=5_000)
    async with Serving(tmp_path, broker=settings) as agent:
        async with agent.client() as other:
            await other.create("t")
        agent.objects.writes.close()
        async with agent.client() as idle, agent.client() as waiting:
            waiting.send_produce("t", {0: batch()})
            await ask(idle)
            closed = await idle.closed()
            await asyncio.sleep(2.0)  # and looked at once more
            agent.objects.writes.open()
            _, answer = await waiting.receive()

    assert closed
    assert 0 == answer.responses[0].partition_responses[0].error_code


async def ask(client: Client) -> None:
    """The connection works."""
    assert (await client.call(api_versions.API, 0, ApiVersionsRequest())).error_code == 0


# ── Sessions that are lost ──


@pytest.mark.parametrize("acks", [-1, 1])
async def test_whoever_waits_is_told_when_the_session_ends(tmp_path: Path, acks: int) -> None:
    """
    Requests that wait for the store, for a rewrite and for producers that are being loaded are
    all answered with a retriable error, and the same connection is served by the next session.
    """
    async with Serving(tmp_path) as first, first.client() as client:
        await client.create("loading")
        await client.produce("loading", {0: batch()})
        await first.engine.sealer.seal(first.log("loading"))
    agent = Serving(tmp_path)
    try:
        await agent.begin()
        agent.objects.reads_of = "loading"
        agent.objects.reads.close()
        await agent.process.ready.wait()
        async with agent.client() as client:
            await client.create("plain")
            await client.create("rewritten", compression_type="lz4")
            agent.objects.writes.close()
            agent.rewrites.close()
            idempotent = batch()
            set_producer(idempotent, 99, 0, 5)
            client.send_produce("plain", {0: batch()})
            client.send_produce("rewritten", {0: batch()}, acks=acks)
            client.send_produce("loading", {0: idempotent}, acks=acks)
            await eventually(lambda: agent.rewrites.waiting > 0)
            await eventually(lambda: bool(agent.log("loading").parked))
            lost = asyncio.create_task(agent.lose_session())
            await eventually(lambda: agent.process.broker.engine is None)
            agent.rewrites.open()
            agent.objects.writes.open()
            agent.objects.reads.open()
            answers = [(await client.receive())[1] for _ in range(3)]
            await lost
            again = await client.produce("plain", {0: batch(b"again")})
        codes = [a.responses[0].partition_responses[0].error_code for a in answers]
    finally:
        await agent.close()

    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3 == codes
    assert 0 == again[0].error_code


class SlowDisk:
    """A disk whose syncs wait at a gate."""

    def __init__(self, behind: AgentDisk) -> None:
        self._behind = behind
        self.syncs = Gate()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    def create_file(self, session_id: str, number: int) -> BufferFile:
        return cast(BufferFile, SlowFile(self._behind.create_file(session_id, number), self.syncs))


class SlowFile:
    """One of its files."""

    def __init__(self, behind: BufferFile, gate: Gate) -> None:
        self._behind = behind
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def sync(self) -> None:
        await self._gate.passed()
        await self._behind.sync()


async def test_whoever_waits_for_a_sync_is_told_when_the_session_ends(tmp_path: Path) -> None:
    """
    The disk hangs, and the session ends meanwhile: acks=1 is answered with a retriable error,
    those of the sync that hangs and those that wait for the next one.
    """
    disks: list[SlowDisk] = []

    def wrap(disk: AgentDisk) -> AgentDisk:
        disks.append(SlowDisk(disk))
        return cast(AgentDisk, disks[-1])

    async with Serving(tmp_path, disk=wrap) as agent, agent.client() as client:
        await client.create("t")
        agent.objects.writes.close()
        disks[0].syncs.close()
        client.send_produce("t", {0: batch(b"in the sync that hangs")}, acks=1)
        await eventually(lambda: disks[0].syncs.waiting > 0)
        client.send_produce("t", {0: batch(b"for the next one")}, acks=1)
        await eventually(lambda: agent.log("t").log_end == 2)
        lost = asyncio.create_task(agent.lose_session())
        answers = [(await client.receive())[1] for _ in range(2)]
        disks[0].syncs.open()
        agent.objects.writes.open()
        await lost
    codes = [a.responses[0].partition_responses[0].error_code for a in answers]

    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 == codes
