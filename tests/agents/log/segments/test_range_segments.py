"""A segment is what its writer wrote, whatever happened to the one before it."""

import asyncio
import gc
import io
import os
import threading
from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any, cast
from uuid import UUID

import pyarrow.parquet as pq
import pytest
import structlog

from driftlog_agents.foundation.offload import on_threads
from driftlog_agents.log.local.spool import FileSpool, spool_in
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.segments import batch_faults, range_segments
from driftlog_agents.log.segments.batch_faults import BatchFault, RangeBounds
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import HEADER_BYTES, BatchHeader, Codec, build_batch
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import make_batch
from tests.agents.log.tiers import make_undecodable
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.range_writer import range_writer

RECORDS = 50


def batches(count: int) -> list[Buffer]:
    """Of `RECORDS` random records each, at their offsets."""
    rng = Random(1)
    made: list[Buffer] = []
    for n in range(count):
        batch = memoryview(make_batch([rng.randbytes(2_000) for _ in range(RECORDS)]))
        kernel.patch(batch, 0, n * RECORDS, 0)
        made.append(batch)
    return made


class Given(RangeReader):
    """Batches that are given; after the second chunk something may happen."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore(lambda: 0))
        self.given: list[list[Buffer]] = []
        self.fails = False
        self.kept: list[BaseException] = []

    async def chunks(self, log: PartitionLog, base: int, end: int) -> AsyncGenerator[list[Buffer]]:
        for n, chunk in enumerate(self.given):
            if n == 2 and self.fails:
                raise UnavailableError("slow down")
            if n == 2:
                self.kept.clear()  # the last that knew the writer that failed
                gc.collect()
            yield chunk


async def test_a_segment_that_failed_writes_nothing_into_the_next(tmp_path: Path) -> None:
    """
    The error, with its frames and the writer in them, is let go while the next segment is written
    into the same file: pyarrow's writer would end its own segment there.
    """
    objects = MemoryObjectStore(lambda: 0)
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    with ThreadPoolExecutor(1) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=objects,
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=LogCounters(),
        )
        made = batches(100)
        reader.given = [made[i : i + 20] for i in range(0, 100, 20)]
        reader.fails = True
        with pytest.raises(UnavailableError) as caught:
            await writing.write(log, 0, 100 * RECORDS, [])
        reader.kept.append(caught.value)
        del caught
        reader.fails = False

        (ref,) = await writing.write(log, 0, 100 * RECORDS, [])

    body = await objects.get(ref.key)
    assert ref.size_bytes == len(body)
    offsets = pq.read_table(io.BytesIO(body), columns=["offset"])["offset"].to_pylist()
    assert list(range(100 * RECORDS)) == offsets


async def test_neighbours_that_cannot_be_decoded_are_one_object_and_one_line(
    tmp_path: Path,
) -> None:
    """
    Whatever a client sends: not an object and a line for each batch of it.  The batches are there
    as they came, one behind the other, and what can be decoded is a segment.
    """
    objects = MemoryObjectStore(lambda: 0)
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    given: list[Buffer] = batches(1)
    for n in range(1, 41):
        batch = memoryview(bytearray(make_undecodable(n * RECORDS, RECORDS, 50 + n % 7)))
        given.append(batch)
    last = memoryview(make_batch([b"x"] * RECORDS))
    kernel.patch(last, 0, 41 * RECORDS, 0)
    given.append(last)
    headers: list[BatchHeader] = []
    with ThreadPoolExecutor(1) as pool, structlog.testing.capture_logs() as lines:
        counters = LogCounters()
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=objects,
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=counters,
        )
        reader.given = [given[i : i + 10] for i in range(0, 42, 10)]
        refs = await writing.write(log, 0, 42 * RECORDS, headers)

    before, raw, after = refs
    assert [(0, 1), (1, 41), (41, 42)] == [
        (ref.base // RECORDS, ref.end // RECORDS) for ref in refs
    ]
    assert (SegmentKind.PARQUET, SegmentKind.PARQUET) == (before.kind, after.kind)
    assert b"".join(given[1:41]) == await objects.get(raw.key)
    assert (40 * RECORDS, 56) == (raw.records, raw.max_timestamp_ms)
    assert [n * RECORDS for n in range(42)] == [header.base_offset for header in headers]
    assert 40 == counters.undecodable_batches
    (line,) = lines
    assert ("batches_undecodable", 40, 1) == (line["event"], line["batches"], line["objects"])


async def test_large_batches_of_all_partitions_are_decoded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each has a row group of its own; one that comes to too much is kept as it came, and counted.
    """
    packed = compress(Codec.ZSTD, make_batch([bytes(9 << 20)])[HEADER_BYTES:])
    over = compress(Codec.ZSTD, make_batch([bytes(21 << 20)])[HEADER_BYTES:])

    def at(base: int, section: Buffer) -> Buffer:
        return build_batch(
            section,
            base_offset=base,
            last_offset_delta=0,
            record_count=1,
            attributes=Codec.ZSTD,
            base_timestamp=1,
            max_timestamp=1,
            leader_epoch=0,
        )

    small = memoryview(make_batch([b"x"]))
    given = [small, at(1, packed), at(2, packed), at(3, over), at(4, over), at(5, packed)]
    counted: list[str] = []
    decoding = BatchDecoder(BatchLimits(decompressed_bytes=20 << 20), counted.append)
    lock, now = threading.Lock(), {"decoded": 0, "most": 0}
    append = batch_faults.append_large

    def watched(*arguments: Any) -> Any:
        with lock:
            now["decoded"] += 1
            now["most"] = max(now["most"], now["decoded"])
        try:
            return append(*arguments)
        finally:
            with lock:
                now["decoded"] -= 1

    monkeypatch.setattr(range_segments, "append_large", watched)
    objects = MemoryObjectStore(lambda: 0)
    found = []
    with ThreadPoolExecutor(4) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=objects,
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=LogCounters(),
            decoding=decoding,
        )
        reader.given = [given]
        logs = [
            PartitionLog(topic="t", topic_id=UUID(int=5), partition=n, leader_epoch=0)
            for n in range(3)
        ]
        found = await asyncio.gather(*(writing.write(log, 0, 6, []) for log in logs))

    kinds = [SegmentKind.PARQUET, SegmentKind.RAW, SegmentKind.PARQUET]
    for refs in found:
        assert kinds == [ref.kind for ref in refs]
        assert [(0, 3), (3, 5), (5, 6)] == [(ref.base, ref.end) for ref in refs]
        groups = pq.ParquetFile(io.BytesIO(await objects.get(refs[0].key))).metadata
        assert [1, 1, 1] == [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    assert 1 == now["most"]
    assert {"driftlog.max.batch.decompressed.bytes"} == set(counted)
    assert 2 * 3 == len(counted)


async def test_a_range_ends_where_it_took_enough_to_decode(tmp_path: Path) -> None:
    """
    A few kilobytes as received may take minutes of a thread: what was decoded is committed first,
    and other partitions have their turn.  Batches that cannot be decoded count, too.
    """
    most = 40 * RECORDS * 2_000
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    sound = batches(60)
    bad: list[Buffer] = [bytearray(make_undecodable(n * RECORDS, RECORDS)) for n in range(60)]
    counters = LogCounters()
    with ThreadPoolExecutor(1) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=MemoryObjectStore(lambda: 0),
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=counters,
            bounds=RangeBounds(work_bytes=most, undecodable_bytes=most // 4, raw_batches=3),
        )

        async def write(given: list[Buffer]) -> list[tuple[int, int]]:
            headers: list[BatchHeader] = []
            reader.given = [given[:30], given[30:]]
            refs = await writing.write(log, 0, len(given) * RECORDS, headers)
            assert refs[-1].end == headers[-1].end_offset
            return [(ref.base // RECORDS, ref.end // RECORDS) for ref in refs]

        assert [(0, 40)] == await write(sound)
        assert [(0, 40)] == await write(sound[:40])
        assert [(0, 3), (3, 6)] == await write(bad)
        assert [(0, 20), (20, 23)] == await write(sound[:20] + bad[20:23] + sound[23:])
    assert 6 + 3 == counters.undecodable_batches


async def test_a_range_of_another_leader_does_not_end_where_an_own_one_would(
    tmp_path: Path,
) -> None:
    """
    The answer is one segment: the leader would write a range itself that is sent and cut off.
    """

    async def chunks() -> AsyncGenerator[list[Buffer]]:
        yield batches(60)

    with ThreadPoolExecutor(1) as pool:
        segments = RangeSegments(
            objects=MemoryObjectStore(lambda: 0),
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=LogCounters(),
            bounds=RangeBounds(work_bytes=40 * RECORDS * 2_000),
        )
        named = PartitionRange("t", TopicPartition(UUID(int=5), 0), 0, 60 * RECORDS)
        own = await segments.write(named, chunks(), [])
        other = await segments.write_one(named, chunks())

    assert [40 * RECORDS, 60 * RECORDS] == [own[-1].end, other.end]


async def test_an_object_of_neighbours_is_no_larger_than_is_read_at_once(tmp_path: Path) -> None:
    """
    A reader of one batch reads its object; a batch that is larger than that is alone.
    """
    objects = MemoryObjectStore(lambda: 0)
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    size = len(make_undecodable(0, 1))
    with ThreadPoolExecutor(1) as pool:

        async def write(raw_bytes: int) -> list[SegmentRef]:
            reader = Given()
            reader.given = [[bytearray(make_undecodable(n, 1)) for n in range(10)]]
            writing = range_writer(
                reader=reader,
                objects=objects,
                offload=on_threads(pool),
                spool=spool_in(tmp_path),
                bounds=RangeBounds(raw_bytes=raw_bytes),
            )
            return await writing.write(log, 0, 10, [])

        refs, alone = await write(300), await write(1)

    assert list(range(10)) == [n for ref in refs for n in range(ref.base, ref.end)]
    assert {300 // size} == {ref.size_bytes // size for ref in refs[:-1]}
    assert [(n, n + 1) for n in range(10)] == [(ref.base, ref.end) for ref in alone]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_flush_object_that_lacks_batches_is_not_sealed_as_a_gap(
    tmp_path: Path, kept: int
) -> None:
    """
    Cut off between two batches nothing of what is left is damaged, and yet records are missing.
    """
    objects = MemoryObjectStore(lambda: 0)
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    made = batches(3)
    data = FlushBatches(
        session_id="s",
        base_offsets=array("q", [0, RECORDS, 2 * RECORDS]),
        lengths=array("i", map(len, made)),
        positions=array("i", [0, len(made[0]), len(made[0]) + len(made[1])]),
        max_timestamps_ms=array("q", [0, 0, 0]),
    )
    stored_at = StoredAt("flush/s/1.flush", 0)
    log.restore(TailSlice(0, 3 * RECORDS, data, 0, 3, data.size_bytes, stored_at), 0.0)
    await objects.put(stored_at.object_key, made[:kept])
    with ThreadPoolExecutor(1) as pool:
        writing = range_writer(
            objects=objects,
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=LogCounters(),
            reader=RangeReader(objects),
        )
        with pytest.raises(CorruptError, match="lacks the 3 batches"):
            await writing.write(log, 0, 3 * RECORDS, [])


async def test_a_seal_that_is_cancelled_leaves_its_file_when_its_thread_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The thread still writes into the spool: until it has ended the next segment gets another file,
    and then that one is used again.
    """
    objects = MemoryObjectStore(lambda: 0)
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    entered, go_on = threading.Event(), threading.Event()
    append = batch_faults.append_batches

    def held(*arguments: Any) -> tuple[int, BatchFault | None]:
        entered.set()
        assert go_on.wait(10)
        return append(*arguments)

    used: list[int] = []
    make = spool_in(tmp_path)

    @contextmanager
    def spool() -> Iterator[FileSpool]:
        with make() as made:
            used.append(os.fstat(made.file.fileno()).st_ino)
            yield made

    with ThreadPoolExecutor(2) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=objects,
            offload=on_threads(pool),
            spool=spool,
            rng=Random(2),
            counters=LogCounters(),
        )
        made = batches(60)
        reader.given = [made[i : i + 30] for i in (0, 30)]
        monkeypatch.setattr(range_segments, "append_batches", held)
        cancelled = asyncio.create_task(writing.write(log, 0, 60 * RECORDS, []))
        assert await asyncio.to_thread(entered.wait, 10)
        cancelled.cancel()
        monkeypatch.setattr(range_segments, "append_batches", append)
        (during,) = await writing.write(log, 0, 60 * RECORDS, [])
        assert not cancelled.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        (after,) = await writing.write(log, 0, 60 * RECORDS, [])

    first, second, third = used
    assert first != second
    assert third in {first, second}
    assert await objects.get(during.key) == await objects.get(after.key)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
async def test_a_full_disk_is_a_store_that_cannot_now(tmp_path: Path) -> None:
    """
    The agent tries again; any other error would end it.
    """
    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    objects = MemoryObjectStore(lambda: 0)
    disk = {"full": True}
    roomy = spool_in(tmp_path)

    @contextmanager
    def spool() -> Iterator[FileSpool]:
        if disk["full"]:
            with Path("/dev/full").open("wb", buffering=0) as file:
                yield FileSpool(cast(IO[bytes], file))
        else:
            with roomy() as made:
                yield made

    with ThreadPoolExecutor(1) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=objects,
            offload=on_threads(pool),
            spool=spool,
            rng=Random(2),
            counters=LogCounters(),
        )
        reader.given = [batches(40)]
        with pytest.raises(UnavailableError, match="No space left"):
            await writing.write(log, 0, 40 * RECORDS, [])
        disk["full"] = False
        (ref,) = await writing.write(log, 0, 40 * RECORDS, [])

    assert 40 * RECORDS == ref.records


async def test_a_store_that_is_slow_is_not_taken_for_the_disk(tmp_path: Path) -> None:
    """
    Its TimeoutError stays one: the class is below OSError.
    """

    class Slow(MemoryObjectStore):
        async def put(self, key: str, body: Sequence[Buffer]) -> None:
            raise TimeoutError

    log = PartitionLog(topic="t", topic_id=UUID(int=5), partition=0, leader_epoch=0)
    with ThreadPoolExecutor(1) as pool:
        reader = Given()
        writing = range_writer(
            reader=reader,
            objects=Slow(lambda: 0),
            offload=on_threads(pool),
            spool=spool_in(tmp_path),
            rng=Random(2),
            counters=LogCounters(),
        )
        reader.given = [batches(1)]
        with pytest.raises(TimeoutError):
            await writing.write(log, 0, RECORDS, [])


async def test_a_thread_is_waited_for_however_often_its_caller_is_cancelled() -> None:
    """
    By a deadline, and then by an agent that leaves: the thread still has its arguments.
    """
    entered, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        entered.set()
        assert go_on.wait(10)
        ended.append(True)

    with ThreadPoolExecutor(1) as pool:
        call = asyncio.create_task(on_threads(pool)(work))
        assert await asyncio.to_thread(entered.wait, 10)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0.01)
        given_up = call.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert not given_up
    assert ended
