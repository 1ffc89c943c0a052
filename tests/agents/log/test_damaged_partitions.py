"""A missing or damaged manifest or producer snapshot stops its own partition, and no other.

On every metadata store: the agents are real, and their bucket is a directory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.admission_verdict import parks
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import ObjectStore
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.test_offsets_api import EARLIEST, LATEST, ends, look
from tests.agents.log.lives import ONE, World, make_batch, on_virtual_time
from tests.agents.log.recovery.test_recovery import left_behind, overtaken, settle
from tests.support.engine import PATIENT, RunningAgent
from tests.support.memory_store import MemoryMetadataStore

SEALED, TAIL, STRANGER = 7, 8, 9
"""Producers: one is in the snapshot only, one in the footers, one in neither."""
MANIFEST, SNAPSHOT = "manifest/*.json", "producers/*.snapshot"
STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


def remove(file: Path) -> None:
    file.unlink()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.unlink()
    file.write_bytes(data)


class Subject:
    """One agent after the other on a path, and the files of t-0."""

    def __init__(self, store: MetadataStore, path: Path) -> None:
        self.store = store
        self.path = path
        self.starts = 0

    @asynccontextmanager
    async def agent(
        self, engine: EngineSettings = PATIENT, **kwargs: Any
    ) -> AsyncIterator[RunningAgent]:
        """The next start; real time is not waited for."""
        self.starts += 1
        async with RunningAgent(
            self.path / "agent",
            engine=replace(engine, read_deadline_ms=300.0),
            metadata=lambda _: self.store,
            seed=self.starts,
            **kwargs,
        ) as agent:
            yield agent

    def file(self, pattern: str) -> Path:
        """The one object."""
        (found,) = (self.path / "agent" / "bucket" / "topics" / "t").glob(f"*/00000/{pattern}")
        return found


@pytest.fixture(params=["memory", "sqlite"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    """t-0 has two sealed records of `SEALED` and two of `TAIL` that are not; t-1 is empty."""
    store: MetadataStore
    if request.param == "memory":
        store = cast(MetadataStore, MemoryMetadataStore(lambda: 0))
    else:
        store = await SqliteMetadataStore.open(tmp_path / "shared.db", lambda: 0)
    made = Subject(store, tmp_path)
    async with made.agent() as agent:
        await create(agent, new("t", 2))
        await produce(agent, SEALED, 0)
        await agent.seal("t", 0)
    async with made.agent() as agent:
        await produce(agent, TAIL, 0)
    yield made
    await store.close()


async def produce(agent: RunningAgent, producer: int, sequence: int, partition: int = 0) -> int:
    """Two records; returns their offset."""
    values = make_batch([b"a", b"b"], producer=producer, epoch=0, sequence=sequence)
    return await agent.append("t", partition, values)


async def refusal(agent: RunningAgent, producer: int, sequence: int) -> tuple[int, str]:
    """What two records are answered that are refused."""
    with pytest.raises(RefusedError) as refused:
        await produce(agent, producer, sequence)
    return int(refused.value.code), str(refused.value)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the agent does in the background."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("hurt", [remove, flip])
@pytest.mark.parametrize("pattern", [MANIFEST, SNAPSHOT])
async def test_what_needs_no_snapshot_is_written_and_the_rest_is_refused_with_the_reason(
    subject: Subject, pattern: str, hurt: Callable[[Path], None]
) -> None:
    """
    Producers without an id, and those that the footers show; also their duplicates.
    """
    file = subject.file(pattern)
    hurt(file)
    async with subject.agent() as agent:
        plain = await agent.append("t", 0, make_batch([b"x"]))
        known = [await produce(agent, TAIL, 2), await produce(agent, TAIL, 0)]
        refused = [
            await refusal(agent, SEALED, 2),
            await refusal(agent, SEALED, 0),
            await refusal(agent, STRANGER, 0),
            await refusal(agent, TAIL, 40),
        ]
        log = agent.log("t", 0)
        end = log.high_watermark

    assert (4, [5, 2], 7) == (plain, known, end)
    assert [STORAGE_ERROR] * 4 == [code for code, _ in refused]
    assert all(file.name in said for _, said in refused)
    assert file.name in log.damage


@pytest.mark.parametrize("pattern", [MANIFEST, SNAPSHOT])
async def test_who_waited_for_the_snapshot_is_told_that_it_is_damaged(
    subject: Subject, pattern: str
) -> None:
    """
    In the order in which they came: what needs no snapshot goes on behind what does.
    """
    flip(subject.file(pattern))
    gate = asyncio.Event()

    class Gated:
        """A bucket whose manifests come when the test lets them."""

        def __init__(self, store: ObjectStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
            if "/manifest/" in key or "/producers/" in key:
                await gate.wait()
            return await self._store.get(key, start, end)

    async with subject.agent(objects=lambda store: cast(ObjectStore, Gated(store))) as agent:
        log = agent.log("t", 0)
        told: list[object] = []
        for producer in (SEALED, -1):
            park(agent, log, producer, told)
        before = list(told)
        gate.set()
        async with asyncio.timeout(10):
            await agent.engine.loaded(log)

    assert [] == before
    assert [ErrorCode.KAFKA_STORAGE_ERROR, 4] == told


def park(agent: RunningAgent, log: PartitionLog, producer: int, told: list[object]) -> None:
    """Produce as the handler does: what cannot be judged waits."""
    batch = make_batch([b"a", b"b"], producer=producer, epoch=0, sequence=2)
    header = check_batch(batch)
    admission = agent.engine.admission
    assert parks(log, producer, 0, 2, 2)

    def resume() -> None:
        try:
            admitted = admission.admit(
                log,
                memoryview(batch),
                (2, 0, producer, 0, 2, 0, header.max_timestamp),
                0,
                ConnectionActivity(),
                None,
            )
        except RefusedError as error:
            told.append(error.code)
        else:
            told.append(admitted.base_offset)

    log.parked.append(resume)


async def test_the_tail_is_read_and_sealed_offsets_name_what_is_damaged(subject: Subject) -> None:
    """
    By offset, by time and by epoch: what the manifest alone knows is an error, and nothing else.
    """
    file = subject.file(MANIFEST)
    flip(file)
    async with subject.agent() as agent:
        log = agent.log("t", 0)
        await agent.engine.loaded(log)
        (tail,) = await agent.broker.reader.read(log, 2, 1_000_000, zstd=True)
        with pytest.raises(DamagedObjectError, match=file.name):
            await agent.broker.reader.read(log, 0, 1_000_000, zstd=True)
        found = [await look(agent, timestamp) for timestamp in (LATEST, EARLIEST, 1)]
        epochs = [await ends(agent, epoch) for epoch in (0, 1, 2)]
        with pytest.raises(CorruptError, match=file.name):
            await agent.seal("t", 0)
        sealed = await agent.seal("t", 1)
        damaged = agent.broker.reader.damaged_reads

    assert 2 == check_batch(tail, from_client=False).base_offset
    assert [(0, 4), (0, 0), (STORAGE_ERROR, -1)] == [answer[:2] for answer in found]
    assert [(STORAGE_ERROR, -1, -1), (0, 1, 4), (0, 2, 4)] == epochs
    assert 0 == sealed
    assert 2 == damaged


@pytest.mark.parametrize("pattern", [MANIFEST, SNAPSHOT])
async def test_what_is_put_back_is_found_without_a_start(subject: Subject, pattern: str) -> None:
    """
    Then everything is judged by everything again, what was written meanwhile included.
    """
    file = subject.file(pattern)
    whole = file.read_bytes()
    file.unlink()
    async with subject.agent() as agent:
        log = agent.log("t", 0)
        await refusal(agent, SEALED, 2)
        await produce(agent, TAIL, 2)
        file.write_bytes(whole)
        await until(lambda: log.state is State.ONLINE)
        offsets = [
            await produce(agent, SEALED, 0),
            await produce(agent, TAIL, 2),
            await produce(agent, SEALED, 2),
            await produce(agent, STRANGER, 0),
        ]
        damage = log.damage
        first = await ends(agent, 0)
        sealed = await agent.seal("t", 0)

    assert [0, 4, 6, 8] == offsets
    assert "" == damage
    assert (0, 0, 2) == first
    assert 10 == sealed


async def test_what_comes_behind_a_refused_batch_waits_for_it(subject: Subject) -> None:
    """
    Two batches of a producer that nobody knows are on their way when the snapshot is back: the
    first was refused, and the second is not taken in its place.
    """
    file = subject.file(SNAPSHOT)
    whole = file.read_bytes()
    file.unlink()
    async with subject.agent() as agent:
        log = agent.log("t", 0)
        first = await refusal(agent, STRANGER, 0)
        file.write_bytes(whole)
        await until(lambda: log.state is State.ONLINE)
        second = await refusal(agent, STRANGER, 2)
        offsets = [await produce(agent, STRANGER, 0), await produce(agent, STRANGER, 2)]

    assert [STORAGE_ERROR, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)] == [first[0], second[0]]
    assert [4, 6] == offsets


async def test_a_lost_session_goes_on_though_the_manifest_is_gone(subject: Subject) -> None:
    """
    What its own last leader buffered is judged without it: nobody can have led since.
    """
    async with subject.agent() as agent:
        await produce(agent, TAIL, 2)
        subject.file(MANIFEST).unlink()
        await agent.lose_session()
        log = agent.log("t", 0)
        known = await produce(agent, TAIL, 2)
        plain = await agent.append("t", 0, make_batch([b"x"]))

    assert (4, 6) == (known, plain)
    assert "" != log.damage
    assert "" == log.offline_reason


async def test_a_damaged_partition_takes_no_more_than_may_be_unsealed(subject: Subject) -> None:
    """
    Its neighbour does, for that is sealed; duplicates are answered all the same.
    """
    subject.file(MANIFEST).unlink()
    settings = replace(
        PATIENT,
        seal=SealSettings(unsealed_bytes=200, unsealed_bytes_per_partition=0, check_interval_ms=20),
    )
    async with subject.agent(engine=settings) as agent:
        log = agent.log("t", 0)
        await produce(agent, TAIL, 2)
        sequence = 4
        with suppress(RefusedError):  # it is full from one look of sealing to the next
            while not log.full:
                await produce(agent, TAIL, sequence)
                sequence += 2
        duplicate = await produce(agent, TAIL, 2)
        code, said = await refusal(agent, TAIL, sequence)
        neighbour = [await produce(agent, STRANGER, 2 * n, 1) for n in range(4)]

    assert (4, STORAGE_ERROR) == (duplicate, code)
    assert log.damage in said
    assert [0, 2, 4, 6] == neighbour


async def test_sealing_stops_where_it_finds_damage_and_goes_on_when_it_is_repaired(
    subject: Subject,
) -> None:
    """
    Nothing is written that no manifest will name; all who are known stay so, and others too.
    """
    settings = replace(PATIENT, seal=SealSettings(segment_bytes=1, check_interval_ms=20))
    async with subject.agent(engine=settings) as agent:
        log = agent.log("t", 0)
        await until(lambda: log.sealed_end == 4)
        (newest,) = [
            file
            for file in (subject.path / "agent" / "bucket").glob(f"topics/t/*/00000/{SNAPSHOT}")
            if file.name.startswith(f"{4:020d}")
        ]
        segments = subject.path / "agent" / "bucket" / "topics" / "t"
        before = len(list(segments.glob("*/00000/*.parquet")))
        whole = newest.read_bytes()
        newest.unlink()
        await produce(agent, STRANGER, 0)
        await until(lambda: log.damage != "")
        during = len(list(segments.glob("*/00000/*.parquet")))
        named = newest.name in log.damage
        await agent.engine.deletion.delete_to(log, 2)
        started = await _manifest_starts(agent, log, 2)
        written = await produce(agent, SEALED, 2)
        newest.write_bytes(whole)
        await until(lambda: log.sealed_end == 8)
        await until(lambda: log.damage == "")

    assert before == during
    assert named
    assert started  # what is deleted is deleted in the bucket too: a restore would bring it back
    assert 6 == written


async def _manifest_starts(agent: RunningAgent, log: PartitionLog, offset: int) -> bool:
    """Whether the partition's manifest comes to start at *offset*, and *log* stays damaged."""
    tp = TopicPartition(log.topic_id, log.partition)
    bucket = DirectoryObjectStore(agent.path / "bucket")
    for _ in range(500):
        manifest = await load_newest(bucket, log.topic, tp)
        if manifest is not None and manifest.log_start == offset:
            return log.damage != ""
        await asyncio.sleep(0.02)
    return False


@on_virtual_time
async def test_leftovers_that_only_the_manifest_can_judge_wait_for_it() -> None:
    """
    Others have led since, and all they wrote is sealed: where the old leader's epoch ended is in
    the manifest alone.  What was promised is set aside when it is back, and once.
    """
    world = World()
    old = await left_behind(world, ONE)
    await overtaken(world, records=2, seal=True)
    (key,) = [
        info.key
        async for page in world.bucket.list("topics/t/")
        for info in page.objects
        if "/manifest/" in info.key
    ]
    body = await world.bucket.get(key)
    await world.bucket.delete([key])

    life = await world.start()
    await settle()
    found = (life.log().state, life.log().log_end, old.session_id in world.directories)
    await world.bucket.put(key, [body])
    await asyncio.sleep(60)
    await life.produce(b"new").answer()

    assert (State.LOADING, 4, True) == found
    assert [(2, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories
    assert [b"new"] == [value for _, _, value in await life.committed()]


@on_virtual_time
async def test_leftovers_below_a_tail_of_later_leaders_are_judged_by_the_manifest() -> None:
    """
    The tail's epochs are later than theirs: where theirs ended lies in what is sealed, and what
    is behind that was promised and is not in the log.
    """
    world = World()
    await left_behind(world, ONE)
    world.bucket.away = False
    elsewhere = world.other_disk()
    for seal in (True, False):
        life = await elsewhere.start()
        await life.produce(b"other").answer()
        if seal:
            assert await life.seal() == 3
        await life.stop()
    life = await world.start()
    await settle()
    await life.produce(b"new").answer()

    assert [b"other", b"new"] == [value for _, _, value in await life.committed()]
    assert [(2, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories
