"""ListOffsets, OffsetForLeaderEpoch, DescribeLogDirs and InitProducerId answer truly."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.handlers.api import (
    api_versions,
    describe_log_dirs,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
)
from driftlog_agents.handlers.common.api_versions_table import (
    ADVERTISED,
    unsupported_version_response,
)
from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.handlers.table import HANDLERS
from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from driftlog_agents.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from driftlog_agents.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from driftlog_agents.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from driftlog_agents.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import ObjectStore
from tests.agents.handlers.asking import create, new
from tests.support.engine import RunningAgent

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
Found = tuple[int, int, int, int]
"""Error, offset, timestamp, leader epoch."""


def batch(
    *timestamps: int, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> bytearray:
    """A batch whose records have these timestamps (ms)."""
    base = timestamps[0]
    records = b"".join(
        encode_record(Record(t - base, i, b"k", b"v" * 50, ())) for i, t in enumerate(timestamps)
    )
    return build_batch(
        records,
        base_offset=0,
        last_offset_delta=len(timestamps) - 1,
        record_count=len(timestamps),
        attributes=0,
        base_timestamp=base,
        max_timestamp=max(timestamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


async def look(
    agent: RunningAgent,
    timestamp: int,
    *,
    topic: str = "t",
    partition: int = 0,
    epoch: int = -1,
    version: int = 10,
    isolation: int = 0,
) -> Found:
    """ListOffsets of one partition."""
    asked = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    response = await list_offsets.handle(agent.broker, request, agent.context(version))
    ((answer,),) = [t.partitions for t in response.topics]
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def three_tiers(agent: RunningAgent) -> None:
    """Offsets 0–2 sealed, 3–4 in a flush object of an earlier session, 5–6 in this one's."""
    await create(agent, new("t"))
    await agent.append("t", 0, batch(100, 300, 200))
    await agent.seal("t", 0)
    await agent.append("t", 0, batch(400, 350))
    await agent.lose_session()
    await agent.append("t", 0, batch(900, 500))


@pytest.mark.parametrize(
    "timestamp, expected",
    [
        (EARLIEST, (0, 0, -1, 0)),
        (EARLIEST_LOCAL, (0, 0, -1, 0)),
        (LATEST, (0, 7, -1, 1)),
        (LATEST_TIERED, (0, -1, -1, -1)),
        (MAX_TIMESTAMP, (0, 5, 900, 1)),
        (0, (0, 0, 100, 0)),
        (101, (0, 1, 300, 0)),
        (300, (0, 1, 300, 0)),
        (301, (0, 3, 400, 0)),
        (401, (0, 5, 900, 1)),
        (900, (0, 5, 900, 1)),
        (901, (0, -1, -1, -1)),
    ],
)
async def test_offsets_by_time_are_exact_in_every_tier(
    tmp_path: Path, timestamp: int, expected: Found
) -> None:
    """
    The first record, in offset order, at or after the time; with its own timestamp and the
    epoch that it was written in.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        found = await look(agent, timestamp)

    assert expected == found


@pytest.mark.parametrize(
    "ask, expected",
    [
        (lambda agent: look(agent, -6), (35, -1, -1, -1)),
        (lambda agent: look(agent, -100), (35, -1, -1, -1)),
        (lambda agent: look(agent, MAX_TIMESTAMP, version=6), (35, -1, -1, -1)),
        (lambda agent: look(agent, LATEST_TIERED, version=8), (35, -1, -1, -1)),
        (lambda agent: look(agent, MAX_TIMESTAMP), (0, -1, -1, -1)),
        (lambda agent: look(agent, 5), (0, -1, -1, -1)),
        (lambda agent: look(agent, LATEST, isolation=1), (0, 0, -1, 0)),
        (lambda agent: look(agent, LATEST, isolation=7), (42, -1, -1, -1)),
        (lambda agent: look(agent, LATEST, epoch=0), (0, 0, -1, 0)),
        (lambda agent: look(agent, LATEST, epoch=5), (75, -1, -1, -1)),
        (lambda agent: look(agent, EARLIEST, epoch=-2), (74, -1, -1, -1)),
        (lambda agent: look(agent, LATEST, partition=9), (3, -1, -1, -1)),
        (lambda agent: look(agent, LATEST, partition=-1), (3, -1, -1, -1)),
        (lambda agent: look(agent, LATEST, topic="nope"), (3, -1, -1, -1)),
    ],
)
async def test_an_empty_log_and_questions_that_make_no_sense(
    tmp_path: Path, ask: Callable[[RunningAgent], Awaitable[Found]], expected: Found
) -> None:
    """
    As Apache Kafka 4.3.1 answers, but for the isolation level (it says UNKNOWN_SERVER_ERROR).
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        found = await ask(agent)

    assert expected == found


async def test_records_without_a_time_have_a_largest_one(tmp_path: Path) -> None:
    """
    Kafka answers −3 with the first of them, in every tier; it was as if there were no records.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await agent.append("t", 0, batch(-1, -1))
        unsealed = await look(agent, MAX_TIMESTAMP)
        await agent.seal("t", 0)
        sealed = await look(agent, MAX_TIMESTAMP)

    assert [(0, 0, -1, 0)] * 2 == [unsealed, sealed]


async def test_one_partition_twice_is_refused(tmp_path: Path) -> None:
    """
    Both times.
    """
    twice = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)] * 2
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=twice)])
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        response = await list_offsets.handle(agent.broker, request, agent.context(10))

    assert [42, 42] == [p.error_code for p in response.topics[0].partitions]


async def test_between_two_sessions_consumers_ask_again(tmp_path: Path) -> None:
    """
    NOT_LEADER_OR_FOLLOWER is retriable, and says that the topic is not gone.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        engine, agent.broker.engine = agent.broker.engine, None
        code, *_ = await look(agent, LATEST)
        epochs = await ends(agent, 0)
        agent.broker.engine = engine

    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == code == epochs[0]


# ── Leader epochs ──


async def ends(agent: RunningAgent, epoch: int, current: int = -1) -> tuple[int, int, int]:
    """OffsetForLeaderEpoch of t-0: error, epoch, end offset."""
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )
    response = await offset_for_leader_epoch.handle(agent.broker, request, agent.context(4))
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def test_an_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    """
    Also across segments; the present one ends at the log's end; a future one is not known.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        found = {epoch: await ends(agent, epoch) for epoch in (-2, -1, 0, 1, 2)}
        fenced = [await ends(agent, 0, current) for current in (0, 1, 2)]

    assert {
        -2: (0, -2, 0),
        -1: (0, -1, -1),
        0: (0, 0, 5),
        1: (0, 1, 7),
        2: (0, -1, -1),
    } == found
    assert [74, 0, 75] == [code for code, _, _ in fenced]


class SlowManifests:
    """A bucket whose manifests are read when the test says so."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        if "/manifest/" in key:
            await self.gate.wait()
        return await self._store.get(key, start, end)


def slow_manifests() -> tuple[list[SlowManifests], Callable[[ObjectStore], Any]]:
    """The store of an agent that is started with the second, once it is."""
    stores: list[SlowManifests] = []

    def slow(store: ObjectStore) -> Any:
        stores.append(SlowManifests(store))
        return stores[0]

    return stores, slow


async def test_epochs_wait_for_the_manifest_and_the_latest_offset_does_not(
    tmp_path: Path,
) -> None:
    """
    A partition that is being loaded knows its end, and not yet what is below its tail.
    """
    stores, slow = slow_manifests()
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await agent.append("t", 0, batch(100, 300))
        await agent.seal("t", 0)
    async with RunningAgent(tmp_path, objects=slow) as agent:
        latest = await look(agent, LATEST)
        waiting = [
            asyncio.create_task(look(agent, EARLIEST)),
            asyncio.create_task(look(agent, 101)),
        ]
        ending = asyncio.create_task(ends(agent, 0))
        done, _ = await asyncio.wait((*waiting, ending), timeout=0.05)
        stores[0].gate.set()
        earliest, found = [await task for task in waiting]
        end = await ending

    assert set() == done
    assert (0, 2, -1, 1) == latest
    assert (0, 0, -1, 0) == earliest
    assert (0, 1, 300, 0) == found
    assert (0, 0, 2) == end


async def test_epochs_of_the_tail_are_told_while_the_manifest_is_read(tmp_path: Path) -> None:
    """
    Some of the first is sealed; where it and all later ones end is known without the bucket.
    """
    stores, slow = slow_manifests()
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await agent.append("t", 0, batch(100, 300))
        await agent.seal("t", 0)
        await agent.append("t", 0, batch(400))
    async with RunningAgent(tmp_path, objects=slow) as agent:
        state = agent.log("t", 0).state
        async with asyncio.timeout(5):
            loading = [await ends(agent, epoch) for epoch in (0, 1, 2)]
        stores[0].gate.set()
        await agent.engine.loaded(agent.log("t", 0))
        loaded = [await ends(agent, epoch) for epoch in (0, 1, 2)]

    assert State.LOADING is state
    assert [(0, 0, 3), (0, 1, 3), (0, -1, -1)] == loading
    assert loading == loaded


# ── Sizes ──


async def sizes(agent: RunningAgent, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    return await describe_log_dirs.handle(agent.broker, request, agent.context(5))


async def test_sizes_are_those_of_batches_as_received_sealed_or_not(tmp_path: Path) -> None:
    """
    One directory; null means all partitions, an empty list none, unknown_keys nothing.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        (everything,) = (await sizes(agent, DescribeLogDirsRequest(topics=None))).results
        (nothing,) = (await sizes(agent, DescribeLogDirsRequest(topics=[]))).results
        some = [
            DescribableLogDirTopic(topic="t", partitions=[0, 9]),
            DescribableLogDirTopic(topic="nope", partitions=[0]),
        ]
        (chosen,) = (await sizes(agent, DescribeLogDirsRequest(topics=some))).results
        received = [batch(100, 300, 200), batch(400, 350), batch(900, 500)]

    ((partition,),) = [t.partitions for t in everything.topics]
    assert sum(map(len, received)) == partition.partition_size
    assert str(tmp_path / "bucket") == everything.log_dir
    assert [] == nothing.topics
    assert everything.topics == chosen.topics


# ── Producer ids ──


async def acquire(agent: RunningAgent, **asked: object) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    for name, value in asked.items():
        setattr(request, name, value)
    return await init_producer_id.handle(agent.broker, request, agent.context(5))


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    """
    Nor across blocks, sessions and restarts, whoever asks at once; always at epoch 0.
    """
    given: list[InitProducerIdResponse] = []
    for _ in range(2):
        async with RunningAgent(tmp_path) as agent:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(acquire(agent)) for _ in range(1_500)]
            given += [task.result() for task in asked]
            await agent.lose_session()
            given.append(await acquire(agent, producer_id=3, producer_epoch=2))

    assert {(0, 0)} == {(r.error_code, r.producer_epoch) for r in given}
    assert 3_002 == len({r.producer_id for r in given})


async def test_two_agents_take_different_blocks(tmp_path: Path) -> None:
    """
    Though both read the last block before either took the next.
    """
    async with RunningAgent(tmp_path) as agent:
        agents = [ProducerIds(agent.broker) for _ in range(5)]
        given = await asyncio.gather(*(ids.next() for ids in agents))

    assert [0, 1_000, 2_000, 3_000, 4_000] == sorted(given)


@pytest.mark.parametrize(
    "asked, code",
    [
        ({"producer_id": 3}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 3}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "x"}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
async def test_what_is_no_idempotent_producer_is_refused(
    tmp_path: Path, asked: dict[str, object], code: ErrorCode
) -> None:
    """
    A transactional id with an error that clients do not repeat.
    """
    async with RunningAgent(tmp_path) as agent:
        answer = await acquire(agent, **asked)

    assert (code, -1, -1) == (answer.error_code, answer.producer_id, answer.producer_epoch)
    assert not code.retriable


async def test_between_two_sessions_producers_ask_again(tmp_path: Path) -> None:
    """
    With the error that producers repeat without looking for a coordinator.
    """
    async with RunningAgent(tmp_path) as agent:
        engine, agent.broker.engine = agent.broker.engine, None
        answer = await acquire(agent)
        agent.broker.engine = engine

    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == answer.error_code


# ── Versions ──


@pytest.mark.parametrize(
    "version, name, software, code",
    [
        (4, "apache-kafka-java", "4.3.1", 0),
        (3, "x", "1.0", 0),
        (3, "", "1", 42),
        (3, "a b", "1", 42),
        (3, "-a", "1", 42),
        (3, "a", "1.-", 42),
        (3, "a\n", "1", 42),
        (0, "", "", 0),
    ],
)
async def test_clients_that_do_not_say_properly_who_they_are_are_refused(
    tmp_path: Path, version: int, name: str, software: str, code: int
) -> None:
    """
    From version 3 on, as Apache Kafka 4.3.1 does.
    """
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    async with RunningAgent(tmp_path) as agent:
        answer = await api_versions.handle(agent.broker, request, agent.context(version))

    assert code == answer.error_code
    assert bool(code) == (not answer.api_keys)


def test_what_is_advertised_is_answered() -> None:
    """
    Every API that we name has a handler; Produce starts at 0 for older librdkafka.
    """
    assert set(ADVERTISED) == {*HANDLERS, ApiKey.PRODUCE, ApiKey.FETCH}
    assert (0, 11) == ADVERTISED[ApiKey.PRODUCE]
    assert (0, 4) == ADVERTISED[ApiKey.API_VERSIONS]


def test_an_unknown_version_of_api_versions_is_told_the_known_ones() -> None:
    """
    Error 35 and the range of this key alone, in version 0 (KIP-511).
    """
    answer = unsupported_version_response()

    assert 35 == answer.error_code
    assert [(18, 0, 4)] == [(k.api_key, k.min_version, k.max_version) for k in answer.api_keys]
