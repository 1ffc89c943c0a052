"""If it broke, ListOffsets would name a wrong record, or read the whole log to find it."""

import tracemalloc
from array import array
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.partition import StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches, tail_slice
from driftlog_agents.log.reading.sealed_read import Open, split_raw
from driftlog_agents.log.reading.time_search import (
    Ask,
    Found,
    LookInBatch,
    LookInGroup,
    Search,
    Tiers,
    find_first,
    find_latest,
)
from driftlog_tiering.batches.batch import Codec, build_batch
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.segments.segment import SegmentReader
from tests.agents.log.tiers import World, make_batch, make_undecodable

TOPIC_ID = UUID(int=7)
MOST_BYTES = 10**6


class Tail:
    """A tail of flushes whose batches a search asks for one by one."""

    def __init__(self, flushes: Sequence[Sequence[Sequence[int]]]) -> None:
        """*flushes*: of each its batches, of each its records' timestamps."""
        self.slices: list[TailSlice] = []
        self.rows: list[Found] = []
        self.bodies: dict[int, bytes] = {}
        self.asked: list[int] = []
        """Base offsets of the batches that were looked into."""
        for batches in flushes:
            base = offset = len(self.rows)
            for times in batches:
                records = [(time_ms, None, b"v") for time_ms in times]
                self.bodies[offset] = make_batch(offset, records)
                self.rows += ((offset + i, time_ms) for i, time_ms in enumerate(times))
                offset += len(times)
            bases = [at for at in self.bodies if at >= base]
            data = FlushBatches(
                session_id="s",
                base_offsets=array("q", bases),
                lengths=array("i", [1] * len(bases)),
                positions=array("i", range(len(bases))),
                max_timestamps_ms=array("q", [max(times) for times in batches]),
            )
            s = Slice(TOPIC_ID, 0, base, offset, 0, len(bases))
            self.slices.append(tail_slice(data, s, StoredAt("key", 0)))

    def run(self, search: Search) -> Found | None:
        answer: Any = None
        try:
            while True:
                answer = self._answer(search.send(answer))
        except StopIteration as end:
            found: Found | None = end.value
            return found

    def _answer(self, ask: Ask) -> Any:
        if ask is None:
            return None
        assert isinstance(ask, LookInBatch)
        data = ask.tail.data
        assert isinstance(data, FlushBatches)
        self.asked.append(data.base_offsets[ask.at])
        found, large = ask.look(self.bodies[data.base_offsets[ask.at]], MOST_BYTES)
        assert not large
        return found


times_of = st.lists(
    st.lists(
        st.lists(st.integers(0, 60), min_size=1, max_size=4),  # a batch
        min_size=1,
        max_size=4,
    ),  # a flush
    max_size=5,
)


@given(flushes=times_of, target_ms=st.integers(0, 61), start=st.integers(0, 40))
def test_the_first_record_since_a_time_is_found_in_offset_order(
    flushes: list[list[list[int]]], target_ms: int, start: int
) -> None:
    """
    Times go up and down; log start may be within a batch; only batches that may hold it are read.
    """
    tail = Tail(flushes)
    expected = next((row for row in tail.rows if row[0] >= start and row[1] >= target_ms), None)

    found = tail.run(find_first(target_ms, Tiers(start, None, tail.slices)))

    assert expected == found
    latest = {row[0]: row[1] for row in tail.rows}
    for base in tail.asked:
        times = [latest[at] for at in latest if base <= at < base + 4]
        assert max(times) >= target_ms
    assert len(set(tail.asked)) == len(tail.asked) <= 1 + sum(base < start for base in tail.bodies)


@given(flushes=times_of, start=st.integers(0, 40))
def test_the_latest_record_is_the_first_with_the_largest_time(
    flushes: list[list[list[int]]], start: int
) -> None:
    """
    Of all records from log start on (ListOffsets −3).
    """
    tail = Tail(flushes)
    rows = [row for row in tail.rows if row[0] >= start]
    expected = max(rows, key=lambda row: (row[1], -row[0]), default=None)

    assert expected == tail.run(find_latest(Tiers(start, None, tail.slices)))


def test_headers_that_say_a_later_time_are_believed_once() -> None:
    """
    A thousand batches whose headers say 99, and whose records have 5: each is looked into by one
    search, whether for the latest record or for the first since a time; searches that believe
    none of them find what they found.
    """
    tail = Tail([[[5]] * 500] * 2)
    footers = []
    for each in tail.slices:
        assert isinstance(each.data, FlushBatches)
        footers.append(each.data.max_timestamps_ms)
        footers[-1][:] = array("q", [99] * 500)
    tiers = Tiers(0, None, tail.slices)

    first = tail.run(find_latest(tiers)), len(tail.asked)
    again = tail.run(find_latest(tiers)), len(tail.asked)
    since = tail.run(find_first(50, tiers)), len(tail.asked)
    begin = tail.run(find_first(5, tiers)), len(tail.asked)

    assert ((0, 5), 1_000) == first
    assert ((0, 5), 1_001) == again
    assert (None, 1_001) == since
    assert ((0, 5), 1_002) == begin
    assert [{99}] * 2 == [set(times) for times in footers]


@pytest.mark.parametrize("start", [0, 1])
def test_what_one_search_saw_of_a_batch_all_later_ones_know(start: int) -> None:
    """
    A header says 99, and the records say less: one search in vain looks into the batch, and none
    after it for whatever later time.  The batch that log start is in is one of them.
    """
    tail = Tail([[[7, 5, 6]]])
    data = tail.slices[0].data
    assert isinstance(data, FlushBatches)
    data.max_timestamps_ms[0] = 99
    tiers = Tiers(start, None, tail.slices)

    in_vain = [tail.run(find_first(since, tiers)) for since in (90, 50, 8)]

    assert [None] * 3 == in_vain
    assert [0] == tail.asked
    assert ((0, 7), (2, 6))[start] == tail.run(find_latest(tiers))


def test_a_batch_that_log_start_is_in_is_looked_into_without_objects() -> None:
    """
    A record of 100,000 headers behind log start: less than a megabyte of memory, was six.
    """
    tail = Tail([[[7, 5, 6]]])
    headers = (("", None),) * 100_000
    records = [Record(0, 0, None, b"v", ()), Record(5, 1, None, b"v", headers)]
    section = b"".join(map(encode_record, records))
    batch = build_batch(
        compress(Codec.ZSTD, section, None),
        base_offset=0,
        last_offset_delta=1,
        record_count=2,
        attributes=Codec.ZSTD,
        base_timestamp=1,
        max_timestamp=6,
    )
    tail.bodies[0] = bytes(batch)

    tracemalloc.start()
    try:
        found = tail.run(find_latest(Tiers(1, None, tail.slices)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (1, 6) == found
    assert peak_bytes < 2**20


def test_a_long_search_lets_other_requests_run() -> None:
    """
    Each 64 slices that hold nothing: other connections are served meanwhile.
    """
    tail = Tail([[[1]]] * 200)
    search = find_first(2, Tiers(0, None, tail.slices))

    assert [None] * 3 == list(search)


def test_a_batch_that_cannot_be_decoded_stands_for_itself() -> None:
    """
    With its first offset from log start on and its largest timestamp: nothing is missed.
    """
    tail = Tail([[[5, 5, 5], [9]]])
    tail.bodies[0] = make_undecodable(0, 3, 5)

    assert (0, 5) == tail.run(find_first(4, Tiers(0, None, tail.slices)))
    assert (2, 5) == tail.run(find_first(4, Tiers(2, None, tail.slices)))
    assert (3, 9) == tail.run(find_latest(Tiers(0, None, tail.slices)))


async def answers(world: World, search: Search) -> tuple[Found | None, list[str]]:
    """What *search* finds in the sealed log of *world*, and the objects that it asks for."""
    opened: list[str] = []
    answer: Any = None
    while True:
        try:
            ask = search.send(answer)
        except StopIteration as end:
            return end.value, opened
        match ask:
            case Open(SegmentListRef() as ref):
                answer = decode_segment_list(await world.bucket.get(ref.key), ref)
            case Open(SegmentRef() as ref):
                body = await world.bucket.get(ref.key)
                if ref.kind is SegmentKind.RAW:
                    answer = split_raw(body, ref)
                else:
                    answer = SegmentReader(body, ref.size_bytes, ref.footer_crc)
            case LookInGroup(of, look):
                times = of.reader.times_range(of.group)
                answer = look(await world.bucket.get(of.ref.key, *times))
            case _:
                raise AssertionError(ask)
        if isinstance(ask, Open):
            opened.append(ask.ref.key)


async def test_a_search_opens_only_what_may_hold_the_record() -> None:
    """
    Lists, segments and row groups whose largest timestamp is too early are passed over.
    """
    world = World()
    refs = [
        await world.seal([make_batch(i, [(time_ms, None, b"v")])], i + 1)
        for i, time_ms in enumerate((10, 20, 40, 30, 50))
    ]
    await world.store_lists(2, 2)
    tiers = Tiers(0, world.manifest, ())

    found, opened = await answers(world, find_first(25, tiers))

    assert (2, 40) == found
    lists = [key for key in opened if key not in [ref.key for ref in refs]]
    assert [refs[2].key] == [key for key in opened if key not in lists]
    assert 2 == len(lists), "the upper list and the second of the two below it"
    assert ((4, 50), []) == await answers(world, find_latest(Tiers(4, world.manifest, ())))
    assert (None, []) == await answers(world, find_first(51, tiers))


async def test_a_segment_that_log_start_is_in_counts_from_there() -> None:
    """
    Its latest record may be below log start: then the others are compared.
    """
    world = World()
    await world.seal([make_batch(0, [(90, None, b"v"), (10, None, b"v"), (20, None, b"v")])], 3)

    for start, latest in ((0, (0, 90)), (1, (2, 20)), (2, (2, 20))):
        found, _ = await answers(world, find_latest(Tiers(start, world.manifest, ())))
        assert latest == found
    found, _ = await answers(world, find_first(5, Tiers(1, world.manifest, ())))
    assert (1, 10) == found


async def test_the_headers_of_raw_objects_are_compared_as_they_are() -> None:
    """
    Records in them cannot be decoded; a batch stands for all of its records.
    """
    world = World()
    await world.seal_raw(make_undecodable(0, 2, 10), make_undecodable(2, 2, 30))

    for start, target_ms, expected in ((0, 5, (0, 10)), (1, 5, (1, 10)), (0, 20, (2, 30))):
        found, _ = await answers(world, find_first(target_ms, Tiers(start, world.manifest, ())))
        assert expected == found
    found, _ = await answers(world, find_latest(Tiers(3, world.manifest, ())))
    assert (3, 30) == found
