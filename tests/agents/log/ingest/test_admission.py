"""Admission bounds what an agent holds while its bucket answers late."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from driftlog_agents.log.ingest.admission import Admitted
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.quota import Usage
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.foundation.types import Buffer, MiB
from driftlog_tiering.stores.object_store import ObjectStore
from tests.agents.handlers.asking import create, new
from tests.agents.log.lives import make_batch
from tests.agents.network.serving import one_in_a_slice
from tests.support.engine import RunningAgent

ALL, ONE, NOBODY = -1, 1, 0


class Bucket:
    """Takes no flush objects until its gate is open."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if key.startswith("flush/"):
            self.asked.set()
            await self.gate.wait()
        await self._store.put(key, body)


class Request:
    """One that waits, and says what it was told."""

    def __init__(self) -> None:
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def committed(self, log: PartitionLog) -> None:
        self.told.set_result("committed")

    def synced(self, log: PartitionLog) -> None:
        self.told.set_result("synced")

    def unsynced(self, log: PartitionLog) -> None:
        pass

    def lost(self, log: PartitionLog) -> None:
        self.told.set_result("lost")


class Subject:
    """An agent with one partition, and its bucket."""

    def __init__(self, agent: RunningAgent, bucket: Bucket) -> None:
        self.agent = agent
        self.bucket = bucket

    @property
    def log(self) -> PartitionLog:
        """The partition."""
        return self.agent.log("t", 0)

    def produce(
        self, sequence: int, records: int = 2, *, acks: int = ALL, epoch: int = 0
    ) -> tuple[Admitted, Request]:
        """A batch of producer 7."""
        batch = make_batch([b"v"] * records, producer=7, epoch=epoch, sequence=sequence)
        header, request = check_batch(batch), Request()
        admitted = self.agent.engine.admission.admit(
            self.log,
            memoryview(batch),
            (records, header.attributes, 7, epoch, sequence, 0, header.max_timestamp),
            acks,
            ConnectionActivity(),
            request,
        )
        return admitted, request


@pytest.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    """An agent that leads topic *t*, with its bucket's gate closed."""
    buckets: list[Bucket] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        buckets.append(Bucket(store))
        return cast(ObjectStore, buckets[-1])

    async with RunningAgent(tmp_path, objects=wrap) as agent:
        await create(agent, new("t"))
        await agent.engine.loaded(agent.log("t", 0))
        yield Subject(agent, buckets[0])
        buckets[0].gate.set()


async def test_a_duplicate_is_answered_when_its_original_is_committed_and_not_before(
    subject: Subject,
) -> None:
    """
    Both get the original's offset; afterwards a duplicate need not wait; it is appended never.
    """
    subject.produce(0)
    original, first = subject.produce(2)
    duplicate, second = subject.produce(2)
    assert Admitted(2, answered=False) == original == duplicate
    synced, third = subject.produce(4, acks=ONE)
    assert await third.told == "synced"
    await subject.bucket.asked.wait()
    assert not synced.answered
    assert (False, False) == (first.told.done(), second.told.done())

    subject.bucket.gate.set()

    assert ("committed", "committed") == (await first.told, await second.told)
    again, _ = subject.produce(2)
    assert Admitted(2, answered=True) == again
    assert subject.log.log_end == 6


def is_kept(frame: bytearray) -> bool:
    """Whether there is a view of *frame*: then it cannot grow."""
    try:
        frame.append(0)
    except BufferError:
        return True
    return False


@pytest.mark.parametrize(
    ("value_bytes", "frame_bytes", "most_bytes"),
    [
        (70, 128 * 1024, 17 * 128 * 1024),  # each frame is counted, and none copied
        (70, MiB, 16 * 2_000),
        (300_000, 8 * MiB, 16 * 302_000),
    ],
)
async def test_the_frames_that_batches_keep_in_memory_are_counted_or_their_batches_copied(
    subject: Subject, value_bytes: int, frame_bytes: int, most_bytes: int
) -> None:
    """
    Whatever the size of a batch: one of 256 KiB kept 100 MiB, which nothing counted.
    """
    batch, memory = make_batch([b"v" * value_bytes]), subject.agent.engine.flusher.memory
    fields = (1, 0, -1, -1, -1, 0, check_batch(batch).max_timestamp)
    frames = [batch + bytes(frame_bytes - len(batch)) for _ in range(16)]
    for frame in frames:
        view = memoryview(frame)[: len(batch)]
        subject.agent.engine.admission.admit(subject.log, view, fields, NOBODY, None, None)
        del view

    assert sum(map(len, filter(is_kept, frames))) <= memory.held_bytes <= most_bytes


async def test_a_duplicate_with_acks_1_is_answered_when_its_original_is_on_the_disk(
    subject: Subject,
) -> None:
    """
    Whatever the original had asked for: the bucket is not waited for.
    """
    _, original = subject.produce(0, acks=ALL)
    duplicate, request = subject.produce(0, acks=ONE)

    assert await request.told == "synced"
    assert (Admitted(0, answered=False), False) == (duplicate, original.told.done())


@pytest.mark.parametrize("acks", [ALL, ONE])
async def test_of_the_copies_of_a_batch_only_the_newest_waits(subject: Subject, acks: int) -> None:
    """
    A client that sends a batch again has given the copy before it up.  330 bytes of each of a
    million copies were kept until the bucket took objects again, and then answered at once.
    """
    _, original = subject.produce(0)
    copies = [subject.produce(0, acks=acks)[1] for _ in range(1_000)]

    told = [await copy.told for copy in copies[:-1]]
    assert ["lost"] * 999 == told
    assert (False, False) == (original.told.done(), copies[-1].told.done())
    subject.bucket.gate.set()

    expected = "committed" if acks == ALL else "synced"
    assert ("committed", expected) == (await original.told, await copies[-1].told)


async def test_duplicates_are_answered_in_slices(subject: Subject) -> None:
    """
    A flush is cut before its batches are sent again, so its steps do not count these answers.
    """
    sequences = range(0, 10, 2)
    for sequence in sequences:
        subject.produce(sequence, acks=NOBODY)
    copies = [subject.produce(sequence)[1] for sequence in sequences]
    one_in_a_slice()
    subject.bucket.gate.set()

    assert "committed" == await copies[0].told
    assert not copies[-1].told.done()
    assert ["committed"] * 5 == [await copy.told for copy in copies]


async def test_what_nobody_waits_for_is_answered_at_once(subject: Subject) -> None:
    """
    acks=0: the original, and its duplicate.
    """
    assert Admitted(0, answered=True) == subject.produce(0, acks=NOBODY)[0]
    assert Admitted(0, answered=True) == subject.produce(0, acks=NOBODY)[0]
    assert subject.log.log_end == 2


@pytest.mark.parametrize(
    "sequence, epoch, expected",
    [
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (9, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_a_refused_batch_leaves_nothing_behind(
    subject: Subject, sequence: int, epoch: int, expected: ErrorCode
) -> None:
    """
    Kafka's code for it, no offset taken, and the next good batch is fit.
    """
    subject.produce(0, epoch=3)

    with pytest.raises(RefusedError) as refusal:
        subject.produce(sequence, epoch=epoch)

    assert (expected, 2) == (refusal.value.code, subject.log.log_end)
    assert Admitted(2, answered=False) == subject.produce(2, epoch=3)[0]


async def test_a_partition_that_is_not_led_admits_nothing(subject: Subject) -> None:
    """
    Closed, offline, or of a session whose lease has run out by the agent's own clock.
    """
    log, session = subject.log, subject.agent.engine.session
    codes = []
    for state in (State.CLOSED, State.OFFLINE):
        log.state = state
        with pytest.raises(RefusedError) as refusal:
            subject.produce(0)
        codes.append(refusal.value.code)
    log.state = State.ONLINE
    session.end("as the test has it")
    with pytest.raises(RefusedError) as refusal:
        subject.produce(0)

    expected = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
    assert [*expected, ErrorCode.NOT_LEADER_OR_FOLLOWER] == [*codes, refusal.value.code]
    assert log.log_end == 0


async def test_a_full_metadata_store_takes_nothing_new_and_answers_what_was_taken(
    subject: Subject,
) -> None:
    """
    A retriable error for what is new; a duplicate of what is committed gets its offset.
    """
    subject.bucket.gate.set()
    original, request = subject.produce(0)
    assert await request.told == "committed"
    quota = subject.agent.engine.ports.quota
    quota.told(
        [Usage(member="m", size_bytes=9, quota_bytes=10, full=False, revision=1)],
    )
    duplicate, _ = subject.produce(0)
    with pytest.raises(RefusedError) as refusal:
        subject.produce(2)
    refused_end = subject.log.log_end
    quota.told([Usage(member="m", size_bytes=1, quota_bytes=10, full=False, revision=1)])
    _, request = subject.produce(2)

    assert Admitted(original.base_offset, answered=True) == duplicate
    assert ErrorCode.NOT_ENOUGH_REPLICAS is refusal.value.code
    assert refusal.value.code.retriable
    assert "90% full" in str(refusal.value)
    assert (original.base_offset + 2, "committed") == (refused_end, await request.told)
