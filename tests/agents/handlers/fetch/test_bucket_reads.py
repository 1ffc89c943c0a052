"""One partition whose object is slow or missing holds up the other partitions of a consumer, or a
consumer of several partitions of old records gets one of them at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.handlers.fetch.bucket_reads import (
    LEAST_BYTES,
    MOST_BYTES,
    BucketRead,
    BucketReads,
    BucketReadSettings,
    Outcome,
    most_bytes,
)
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from driftlog_tiering.batches.batch import parse_header
from driftlog_tiering.formats.manifest import SegmentRef
from tests.agents.log.tiers import World, make_batch
from tests.agents.network.serving import eventually


class Bucket:
    """Three segments of one record each, and the reads of requests."""

    def __init__(self) -> None:
        self.world = World()
        self.segments: list[SegmentRef] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.settings = BucketReadSettings(late_s=60.0)
        self.reads = BucketReads(self.world.reader, self.spawn, self.settings)

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def seal(self) -> None:
        for base in range(3):
            batch = make_batch(base, [(base, b"key", b"value")])
            self.segments.append(await self.world.seal([batch], base + 1))

    def asks(self, *offsets: int) -> list[BucketRead]:
        """A read at each offset, as of different partitions."""
        return [BucketRead(self.world.log, offset, 10**6, True, None) for offset in offsets]

    def slow(self, number: int) -> asyncio.Event:
        """The object of a segment comes when this is set."""
        return self.world.bucket.slow.setdefault(self.segments[number].key, asyncio.Event())

    async def end(self) -> None:
        """All reads end."""
        while self.tasks:
            await asyncio.wait(self.tasks)


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    """No read is late by itself, on a busy machine neither."""
    made = Bucket()
    await made.seal()
    yield made
    for comes in made.world.bucket.slow.values():
        comes.set()
    await made.end()


def offsets(outcomes: list[Outcome]) -> list[int | None]:
    """Where the first batch of each begins."""
    found: list[int | None] = []
    for outcome in outcomes:
        assert not isinstance(outcome, Exception)
        found.append(parse_header(outcome[0]).base_offset if outcome else None)
    return found


async def test_partitions_are_read_side_by_side(bucket: Bucket) -> None:
    """
    The second GET does not wait for the first.
    """
    store = bucket.world.bucket
    store.gate = asyncio.Event()
    reading = asyncio.create_task(bucket.reads.read(bucket.asks(0, 1, 2)))
    await eventually(lambda: len(store.gets) == 3)
    store.gate.set()

    assert [0, 1, 2] == offsets(await reading)


@pytest.mark.parametrize("slow", [0, 1])
async def test_a_slow_object_is_waited_for_once(bucket: Bucket, slow: int) -> None:
    """
    Its partition has nothing in this answer, and its records in a later one, with no second GET.
    """
    comes = bucket.slow(slow)
    bucket.settings.late_s = 0.001
    first = await bucket.reads.read(bucket.asks(0, 1))
    gets = bucket.world.bucket.gets[bucket.segments[slow].key]
    bucket.settings.late_s = 60.0
    async with asyncio.timeout(30):
        second = await bucket.reads.read(bucket.asks(0, 1))
    comes.set()
    await bucket.end()
    later = await bucket.reads.read(bucket.asks(slow))

    expected: list[int | None] = [0, 1]
    expected[slow] = None
    assert [expected, expected] == [offsets(first), offsets(second)]
    assert [slow] == offsets(later)
    assert 1 == gets


async def test_a_read_that_ends_between_two_requests_is_taken_by_the_next(bucket: Bucket) -> None:
    """
    Its records, or its error, with no second read, and once.
    """
    comes, damaged = bucket.slow(1), bucket.slow(2)
    key = bucket.segments[2].key
    bucket.world.bucket.damage = lambda name, body: bytes(len(body)) if name == key else body
    bucket.settings.late_s = 0.001
    first = await bucket.reads.read(bucket.asks(0, 1, 2))
    comes.set()
    damaged.set()
    await bucket.end()
    held = bucket.reads.kept_bytes
    second = await bucket.reads.read(bucket.asks(1, 2))

    assert [0, None, None] == offsets(first)
    assert [1] == offsets(second[:1])
    assert isinstance(second[1], DamagedObjectError)
    assert not bucket.tasks
    assert (len(second[0][0]), 0) == (held, bucket.reads.kept_bytes)  # type: ignore[index]


async def test_what_no_request_takes_is_given_up(bucket: Bucket) -> None:
    """
    After a moment, or when there is more than may wait.
    """
    bucket.settings.late_s = 0.001
    bucket.settings.kept_s = 0.001
    slow = [bucket.slow(1), bucket.slow(2)]
    await bucket.reads.read(bucket.asks(0, 1, 2))
    slow[0].set()
    await eventually(lambda: len(bucket.reads) == 1)
    await eventually(lambda: bucket.reads.kept_bytes == 0)
    bucket.settings.kept_s = 60.0
    bucket.settings.kept_bytes = 10
    slow[1].set()
    await bucket.end()

    assert 0 == bucket.reads.kept_bytes


async def test_a_request_waits_for_a_read_that_another_one_began(bucket: Bucket) -> None:
    """
    As for its own: else a consumer of the same partitions gets one of them at a time.
    """
    comes = [bucket.slow(0), bucket.slow(1)]
    first, second = (asyncio.create_task(bucket.reads.read(bucket.asks(0, 1))) for _ in range(2))
    await eventually(lambda: len(bucket.world.bucket.gets) == 2)
    comes[0].set()
    await eventually(lambda: len(bucket.reads) == 1)
    for _ in range(10):
        await asyncio.sleep(0)
    waits = not first.done(), not second.done()
    comes[1].set()

    assert (True, True) == waits
    assert [[0, 1], [0, 1]] == [offsets(await first), offsets(await second)]


async def test_requests_share_a_read(bucket: Bucket) -> None:
    """
    A hundred consumers of the same records make one read, also while it is slow.
    """
    comes = bucket.slow(2)
    reading = [asyncio.create_task(bucket.reads.read(bucket.asks(2))) for _ in range(100)]
    await eventually(lambda: bool(bucket.world.bucket.gets))
    tasks = len(bucket.tasks)
    comes.set()
    found = [offsets(await one) for one in reading]

    assert [[2]] * 100 == found
    assert 1 == tasks


async def test_a_request_that_leaves_takes_no_read_with_it(bucket: Bucket) -> None:
    """
    The read goes on for the others.
    """
    comes = bucket.slow(0)
    first, second = (asyncio.create_task(bucket.reads.read(bucket.asks(0))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    comes.set()

    assert [0] == offsets(await second)


class Room:
    """The memory for row groups: all of it is in use."""

    def __init__(self, bucket: Bucket) -> None:
        self._cache = bucket.world.reader.segments._row_groups  # noqa: SLF001
        self._free = asyncio.Event()
        self._full = asyncio.create_task(self._cache.get(("other", 0), 1 << 40, self._load))

    async def _load(self) -> Any:
        await self._free.wait()

    async def free(self) -> None:
        """There is room again."""
        self._free.set()
        await self._full
        self._cache.finish(("other", 0))


async def read_for(bucket: Bucket, client: Client, *asked: int) -> list[Outcome]:
    """The reads of a request of *client*."""
    work_for(client)
    return await bucket.reads.read(bucket.asks(*asked))


async def waits_for_room(bucket: Bucket, reads: int) -> None:
    """So many reads wait, and have their footers."""
    await eventually(lambda: len(bucket.reads) == reads)
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_read_that_waits_for_memory_is_given_up_when_its_clients_have_left(
    bucket: Bucket,
) -> None:
    """
    Their requests end, and a row group that nobody asks for takes no turn of another client.
    """
    gone, stays = Client("10.0.0.1"), Client("10.0.0.2")
    room = Room(bucket)
    reading = [
        asyncio.create_task(read_for(bucket, client, offset))
        for client, offset in ((gone, 0), (gone, 1), (stays, 1), (stays, 2))
    ]
    await waits_for_room(bucket, 3)
    gone.left = True
    await room.free()
    async with asyncio.timeout(10):
        found = [offsets(await one) for one in reading]

    assert [[None], [1], [1], [2]] == found
    assert 2 == bucket.world.reader.segments.row_groups_loaded - 1


async def test_a_read_waits_for_memory_while_its_client_is_between_two_requests(
    bucket: Bucket,
) -> None:
    """
    One of a partition that was late: it does not lose its turn.
    """
    client = Client("10.0.0.1")
    await read_for(bucket, client, 0)
    room = Room(bucket)
    bucket.settings.late_s = 0.001
    first = await read_for(bucket, client, 99, 1)
    await waits_for_room(bucket, 1)
    await room.free()
    await bucket.end()
    loads = bucket.world.reader.segments.row_groups_loaded
    second = await read_for(bucket, client, 1)

    assert isinstance(first[0], RefusedError)
    assert first[1] is None
    assert [1] == offsets(second)
    assert loads == bucket.world.reader.segments.row_groups_loaded


async def test_each_partition_has_its_own_error(bucket: Bucket) -> None:
    """
    Damage of one leaves the others whole.
    """
    key = bucket.segments[1].key
    bucket.world.bucket.damage = lambda name, body: bytes(len(body)) if name == key else body
    good, damaged, outside = await bucket.reads.read(bucket.asks(0, 1, 99))

    assert [0] == offsets([good])
    assert isinstance(damaged, DamagedObjectError)
    assert key in str(damaged)
    assert isinstance(outside, RefusedError)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == outside.code


async def test_a_read_that_the_agents_end_cuts_off_is_answered(bucket: Bucket) -> None:
    """
    Its request gets an error, and does not wait for ever.
    """
    bucket.slow(0)
    reading = asyncio.create_task(bucket.reads.read(bucket.asks(0)))
    await eventually(lambda: bool(bucket.world.bucket.gets))
    for cut in list(bucket.tasks):
        cut.cancel()
    (outcome,) = await reading

    assert isinstance(outcome, Exception)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], 0),
        ([1, 1], 2 * LEAST_BYTES),
        ([MOST_BYTES // 2] * 3, MOST_BYTES),
        ([1, 3 * MOST_BYTES, 1], 3 * MOST_BYTES),
    ],
)
def test_a_request_reads_from_the_bucket_what_a_few_partitions_or_its_largest_may_have(
    asked: list[int], expected: int
) -> None:
    """
    So much room for its answer is claimed before.
    """
    partitions = [FetchPartition(partition=0, partition_max_bytes=size) for size in asked]

    assert expected == most_bytes(FetchRequest(topics=[FetchTopic(partitions=partitions)]))
