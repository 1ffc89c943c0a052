"""DeleteRecords: what is deleted stays deleted, and nothing above it is lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.handlers.api import delete_records, describe_log_dirs
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.read_plan import OffsetOutOfRangeError
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from driftlog_agents.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.keys import PARTITIONS_PREFIX, partition_key
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Compare, MetadataStore, Operation, Put, TxnResult
from driftlog_tiering.batches.batch import parse_header
from driftlog_tiering.formats.manifests import iter_segments, load_newest
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.test_offsets_api import EARLIEST, EARLIEST_LOCAL, batch, look
from tests.support.engine import RunningAgent

NONE = ErrorCode.NONE
IMPATIENT = EngineSettings(
    session=SessionSettings(ttl_ms=60_000, request_deadline_ms=200, retry_ms=10),
    seal=SealSettings(check_interval_ms=20),
)


class Metadata:
    """A store that fails the writes of partitions' keys as it is told."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.losing = 0
        """So many answers are lost, of writes that happened."""
        self.refusing = False
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.writes = 0
        self.asked = asyncio.Event()
        """Something was written, or was to be."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        if not any(isinstance(op, Put) and op.key.startswith(PARTITIONS_PREFIX) for op in then):
            return await self._store.txn(compares, then, otherwise)
        self.writes += 1
        self.asked.set()
        if self.refusing:
            raise UnavailableError("as the test has it")
        await self.let_go.wait()
        result = await self._store.txn(compares, then, otherwise)
        if self.losing:
            self.losing -= 1
            raise OutcomeUnknownError("as the test has it")
        return result


async def delete(
    agent: RunningAgent,
    offset: int,
    *,
    partition: int = 0,
    topic: str = "t",
    timeout_ms: int = 30_000,
) -> tuple[ErrorCode, int]:
    """(error, low watermark)."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)],
            )
        ],
        timeout_ms=timeout_ms,
    )
    response = await delete_records.handle(agent.broker, request, agent.context(2))
    ((answer,),) = [t.partitions for t in response.topics]
    return ErrorCode(answer.error_code), answer.low_watermark


def asked(agent: RunningAgent) -> Metadata:
    """What stands behind the agent's witness of its store."""
    assert isinstance(agent.metadata_store, Metadata)
    return agent.metadata_store


async def stored(agent: RunningAgent) -> PartitionState:
    """What the partition's key says."""
    kv = await agent.broker.metadata.get(partition_key(_tp(agent.log("t", 0))))
    assert kv is not None
    return decode_partition_state(kv.value)


async def read_all(agent: RunningAgent) -> list[int]:
    """The base offsets of what a consumer finds that begins at the log's start."""
    log = agent.log("t", 0)
    await agent.engine.loaded(log)
    bases: list[int] = []
    offset = log.log_start
    while offset < log.high_watermark:
        for data in await agent.broker.reader.read(log, offset, 1, zstd=True):
            header = parse_header(data)
            bases.append(header.base_offset)
            offset = header.base_offset + header.last_offset_delta + 1
    return bases


async def refused(agent: RunningAgent, offset: int) -> bool:
    """Whether a consumer who asks there is told that it is out of range."""
    log = agent.log("t", 0)
    if agent.broker.reader.read_local(log, offset, 1 << 20) is not None:
        return False
    try:
        await agent.broker.reader.read(log, offset, 1 << 20, zstd=True)
    except OffsetOutOfRangeError:
        return True
    return False


async def named(agent: RunningAgent) -> tuple[int, list[tuple[int, int]]]:
    """Log start of the newest manifest, and the segments that it names."""
    objects = agent.broker.objects
    manifest = await load_newest(objects, "t", _tp(agent.log("t", 0)))
    assert manifest is not None
    segments = [(s.base, s.end) async for s in iter_segments(objects, manifest)]
    return manifest.log_start, segments


async def until_named(agent: RunningAgent, log_start: int) -> list[tuple[int, int]]:
    """Wait until the manifest begins there; the segments that it names then."""
    async with asyncio.timeout(30):
        while True:
            start, segments = await named(agent)
            if start == log_start:
                return segments
            await asyncio.sleep(0.02)


def _tp(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic_id, log.partition)


async def three_tiers(agent: RunningAgent) -> None:
    """[0, 3) and [3, 6) sealed, [6, 8) in a flush object of an old session, [8, 10) here."""
    await create(agent, new("t"))
    await agent.append("t", 0, batch(1, 2, 3))
    await agent.seal("t", 0)
    await agent.append("t", 0, batch(4, 5, 6))
    await agent.seal("t", 0)
    await agent.append("t", 0, batch(7, 8))
    await agent.lose_session()
    await agent.append("t", 0, batch(9, 10))


@pytest.mark.parametrize(
    ("offset", "start", "bases", "segments"),
    [
        (2, 2, [0, 3, 6, 8], [(0, 3), (3, 6)]),
        (3, 3, [3, 6, 8], [(3, 6)]),
        (5, 5, [3, 6, 8], [(3, 6)]),
        (6, 6, [6, 8], []),
        (7, 7, [6, 8], []),
        (9, 9, [8], []),
        (-1, 10, [], []),
    ],
)
async def test_a_log_starts_where_it_was_told_to_and_stays_so(
    tmp_path: Path, offset: int, start: int, bases: list[int], segments: list[tuple[int, int]]
) -> None:
    """
    In every tier: below it fetches are out of range, from it on all is there; it is stored when
    it is answered, and a lost session, a restart and sealing do not change it.  The manifest
    forgets the segments below it.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        await read_all(agent)

        assert (NONE, start) == await delete(agent, offset)

        assert start == (await stored(agent)).log_start
        for look_at in (EARLIEST, EARLIEST_LOCAL):
            assert (NONE, start) == (await look(agent, look_at))[:2]
        assert await refused(agent, start - 1)
        assert _aligned(bases, start) == _aligned(await read_all(agent), start)
        assert segments == await until_named(agent, min(start, 6))
        await agent.lose_session()
        assert await refused(agent, start - 1)
        assert _aligned(bases, start) == _aligned(await read_all(agent), start)
    async with RunningAgent(tmp_path) as agent:
        assert (NONE, start) == (await look(agent, EARLIEST))[:2]
        assert await refused(agent, start - 1)
        assert _aligned(bases, start) == _aligned(await read_all(agent), start)
        assert 10 == await agent.append("t", 0, batch(11))
        assert 11 == await agent.seal("t", 0)
        assert (NONE, start) == (await look(agent, EARLIEST))[:2]
        assert await refused(agent, start - 1)
        assert _aligned([*bases, 10], start) == _aligned(await read_all(agent), start)
        named_after = await until_named(agent, start)
        assert all(end > start for _, end in named_after)
        assert 11 == named_after[-1][1]


def _aligned(bases: list[int], start: int) -> list[int]:
    """Sealed batches are made anew, and may begin at log start."""
    return [max(base, start) for base in bases]


async def test_log_start_does_not_go_back_nor_beyond_what_is_committed(tmp_path: Path) -> None:
    """
    What is deleted already is answered with the log start that there is, and nothing is written;
    what is not committed cannot be deleted.
    """
    async with RunningAgent(tmp_path, metadata=Metadata) as agent:
        await three_tiers(agent)
        assert (NONE, 7) == await delete(agent, 7)
        metadata = asked(agent)
        writes = metadata.writes

        assert (NONE, 7) == await delete(agent, 7)
        assert (NONE, 7) == await delete(agent, 0)
        assert (ErrorCode.OFFSET_OUT_OF_RANGE, -1) == await delete(agent, 11)
        assert (ErrorCode.OFFSET_OUT_OF_RANGE, -1) == await delete(agent, -2)
        assert 7 == (await stored(agent)).log_start
        assert writes == metadata.writes


async def test_a_lost_answer_is_asked_for_again(tmp_path: Path) -> None:
    """
    The write that happened is recognised; the next one, and sealing, go on from it.
    """
    async with RunningAgent(tmp_path, metadata=Metadata, engine=IMPATIENT) as agent:
        await three_tiers(agent)
        metadata = asked(agent)

        metadata.losing = 2
        assert (NONE, 7) == await delete(agent, 7)
        assert (NONE, 8) == await delete(agent, 8)
        metadata.losing = 1
        assert 10 == await agent.seal("t", 0)

        assert (8, 10) == ((await stored(agent)).log_start, (await stored(agent)).sealed_end)
        assert [8] == await read_all(agent)


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_every_partition_is_deleted_in_no_time(tmp_path: Path, timeout_ms: int) -> None:
    """
    Kafka's leader deletes before it looks at the timeout; nearly all partitions were left as they
    were, and all were answered with a timeout.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 40))
        for partition in range(40):
            await agent.append("t", partition, batch(1, 2))
        asked = [DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(40)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=timeout_ms
        )
        response = await delete_records.handle(agent.broker, request, agent.context(2))
        starts = [agent.log("t", partition).log_start for partition in range(40)]

    assert [(NONE, 2)] * 40 == [
        (told.error_code, told.low_watermark) for told in response.topics[0].partitions
    ]
    assert [2] * 40 == starts


async def test_nobody_is_told_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While the metadata store is away nothing is deleted, and who asked is told that it took too
    long; that request may still be done, and then holds.
    """
    monkeypatch.setattr(delete_records, "_LEAST_WAIT_S", 0.1)
    async with RunningAgent(tmp_path, metadata=Metadata, engine=IMPATIENT) as agent:
        await three_tiers(agent)
        metadata = asked(agent)

        metadata.refusing = True
        assert (ErrorCode.REQUEST_TIMED_OUT, -1) == await delete(agent, 7, timeout_ms=300)
        assert 0 == agent.log("t", 0).log_start
        assert not await refused(agent, 6)
        metadata.refusing = False

        assert (NONE, 8) == await delete(agent, 8)
        assert 10 == await agent.seal("t", 0)
        assert (8, 10) == ((await stored(agent)).log_start, (await stored(agent)).sealed_end)


async def test_sealing_and_deletion_at_once_take_turns(tmp_path: Path) -> None:
    """
    Both write the partition's key: neither undoes what the other said.
    """
    async with RunningAgent(tmp_path, metadata=Metadata) as agent:
        await three_tiers(agent)
        metadata = asked(agent)
        metadata.let_go.clear()
        metadata.asked.clear()

        async with asyncio.TaskGroup() as tasks:
            sealed = tasks.create_task(agent.seal("t", 0))
            await metadata.asked.wait()
            deleted = [tasks.create_task(delete(agent, offset)) for offset in (7, 9, 8)]
            await asyncio.sleep(0.05)
            metadata.let_go.set()

        assert 10 == sealed.result()
        assert [(NONE, 7), (NONE, 9), (NONE, 9)] == [task.result() for task in deleted]
        state = await stored(agent)
        assert (9, 10) == (state.log_start, state.sealed_end)
        assert await refused(agent, 8)


async def test_what_is_deleted_is_not_counted_any_more(tmp_path: Path) -> None:
    """
    DescribeLogDirs tells the size of the segments that are left.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        await agent.seal("t", 0)
        before = await _size(agent)

        await delete(agent, 6)
        await until_named(agent, 6)
        some = await _size(agent)
        await delete(agent, -1)
        await until_named(agent, 10)

        assert before > some > 0
        assert 0 == await _size(agent)


async def _size(agent: RunningAgent) -> int:
    request = DescribeLogDirsRequest(topics=None)
    response = await describe_log_dirs.handle(agent.broker, request, agent.context(4))
    return response.results[0].topics[0].partitions[0].partition_size


async def test_what_is_not_led_here_is_not_deleted(tmp_path: Path) -> None:
    """
    A partition that was given up is refused; one that cannot be read says so.
    """
    async with RunningAgent(tmp_path) as agent:
        await three_tiers(agent)
        log = agent.log("t", 0)
        engine = agent.engine

        engine.partitions.retire(log)

        assert (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) == await delete(agent, 3)
        assert 0 == (await stored(agent)).log_start
