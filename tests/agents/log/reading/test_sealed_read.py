"""If it broke, a consumer of the sealed log would get a hole, a damaged object, or a codec that it
cannot read."""

from collections.abc import Collection, Generator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.reading.read_plan import Batches
from driftlog_agents.log.reading.sealed_read import (
    Encode,
    Finish,
    Gap,
    IsLoaded,
    Load,
    Open,
    codec_for,
    encode,
    entry_at,
    prefetch_sealed,
    read_sealed,
    split_raw,
    take_raw,
)
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import Codec, parse_header
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentList, SegmentRef, list_ref
from driftlog_tiering.segments.segment import SegmentReader
from tests.agents.log.tiers import World, make_batch, make_undecodable

TOPIC_ID = UUID(int=7)


def segment(base: int, end: int) -> SegmentRef:
    return SegmentRef(key=f"{base}", base=base, end=end, size_bytes=1, records=1, raw_bytes=1)


@given(
    parts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12),
    listed=st.integers(0, 12),
    rest=st.integers(0, 3),
)
def test_each_offset_is_in_its_segment_or_in_a_gap_that_ends_at_the_next(
    parts: list[tuple[int, int]], listed: int, rest: int
) -> None:
    """
    Through lists, which are looked into: no offset is skipped, and a reader reaches the end.
    """
    at, refs = 0, []
    for gap, size in parts:
        refs.append(segment(at + gap, at + gap + size))
        at += gap + size
    end = at + rest
    older = SegmentList(1, segments=tuple(refs[:listed]))
    lists = (list_ref("list", older),) if older.segments else ()
    content = SegmentList(2, lists=lists, segments=tuple(refs[listed:]))

    for offset in range(end):
        found = entry_at(content, offset, end)
        if lists and found == lists[0]:
            found = entry_at(older, offset, lists[0].end)

        holding = next((ref for ref in refs if ref.base <= offset < ref.end), None)
        following = [ref.base for ref in refs if ref.base > offset]
        assert (holding or Gap(min(following, default=end))) == found


@pytest.mark.parametrize("zstd", [True, False])
@pytest.mark.parametrize("segment_codec", list(Codec))
@pytest.mark.parametrize("wanted", [None, *Codec])
def test_no_client_gets_a_codec_that_it_cannot_read(
    wanted: Codec | None, segment_codec: Codec, zstd: bool
) -> None:
    """
    The topic's codec, or the producers'; "uncompressed" is a codec like any other.
    """
    expected = segment_codec if wanted is None else wanted
    if not zstd and expected is Codec.ZSTD:
        expected = Codec.NONE

    assert expected is codec_for(wanted, segment_codec, zstd=zstd)


def test_an_object_of_other_batches_is_damaged() -> None:
    """
    A flipped bit, batches out of order, and batches of other offsets are never given out.
    """
    first, second = make_undecodable(4, 2), make_undecodable(6, 3)
    ref = SegmentRef(
        key="raw",
        kind=SegmentKind.RAW,
        base=4,
        end=9,
        size_bytes=len(first) + len(second),
        records=5,
        raw_bytes=1,
    )

    assert [4, 6] == [raw.header.base_offset for raw in split_raw(first + second, ref)]
    for damaged in (
        first[:-1] + b"\0" + second,
        second + first,
        first,
        make_undecodable(3, 3) + second,
        b"",
    ):
        with pytest.raises(CorruptError):
            split_raw(damaged, ref)


@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=6), max_bytes=st.integers(0, 600))
def test_raw_batches_come_whole_and_within_the_limit(counts: list[int], max_bytes: int) -> None:
    """
    From the batch that holds the offset on; one at least.
    """
    bodies, at = [], 0
    for count in counts:
        bodies.append(make_undecodable(at, count))
        at += count
    size = sum(map(len, bodies))
    ref = SegmentRef(key="raw", base=0, end=at, size_bytes=size, records=at, raw_bytes=1)
    raw = split_raw(b"".join(bodies), ref)

    for offset in range(at):
        found = take_raw(raw, offset, max_bytes, at)

        first = next(i for i, one in enumerate(raw) if one.header.end_offset > offset)
        got = [bytes(b) for b in found.buffers]
        assert bodies[first : first + len(got)] == got
        assert len(got) == 1 or sum(map(len, got)) <= max_bytes
        rest = bodies[first + len(got) :]
        assert not rest or sum(map(len, got)) + len(rest[0]) > max_bytes
        assert raw[first + len(got) - 1].header.end_offset == found.end


async def answers(
    world: World, plan: Generator[Any, Any, Any], loaded: Collection[int] = ()
) -> tuple[Any, list[tuple[str, int]]]:
    """The result of *plan*, where the row groups *loaded* are in memory, and what it does with
    which row group."""
    done: list[tuple[str, int]] = []
    answer: Any = None
    while True:
        try:
            ask = plan.send(answer)
        except StopIteration as end:
            return end.value, done
        if not isinstance(ask, Open):
            done.append((type(ask).__name__, ask.of.group.index))
        match ask:
            case Open(ref):
                body = await world.bucket.get(ref.key)
                answer = SegmentReader(body, ref.size_bytes, None)
            case Encode(of, offset, codec, max_bytes):
                data = await world.bucket.get(of.ref.key, of.group.start, of.group.end)
                rows = of.reader.encoder(of.group, data)
                answer = encode(rows, offset, codec, max_bytes, 10**6)
            case IsLoaded(of) | Load(of):
                answer = of.group.index in loaded
            case Finish():
                answer = None
            case _:
                raise AssertionError(ask)


async def groups_of_two() -> World:
    """A segment of four row groups, of two records each, and offsets without a record after it."""
    world = World()
    batches = [make_batch(2 * i, [(1, None, b"v" * 100)] * 2) for i in range(4)]
    await world.seal(batches, 10, row_group_bytes=150)
    return world


async def test_a_read_adds_the_row_groups_that_are_loaded_and_waits_for_no_other() -> None:
    """
    Each one that it read to the end may be evicted.
    """
    world = await groups_of_two()
    plan = read_sealed(world.manifest, 1, 10**6, None, zstd=True)

    found, done = await answers(world, plan, loaded=(1, 2))

    assert isinstance(found, Batches)
    assert (6, 6) == (found.end, found.unit_end)
    assert [1, 2, 4] == [parse_header(batch).base_offset for batch in found.buffers]
    each = [(("Encode", i), ("Finish", i), ("IsLoaded", i + 1)) for i in range(3)]
    assert [step for steps in each for step in steps] == done


async def test_a_read_ends_within_a_row_group_where_its_limit_is() -> None:
    """
    That row group stays for the next fetch.
    """
    world = await groups_of_two()

    found, done = await answers(world, read_sealed(world.manifest, 0, 1, None, zstd=True), (1,))

    assert (2, 2) == (found.end, found.unit_end)
    assert [("Encode", 0), ("Finish", 0)] == done


async def test_a_read_reaches_the_end_over_offsets_without_a_record() -> None:
    """
    Behind the last record, to the segment's end.
    """
    world = await groups_of_two()

    found, _ = await answers(world, read_sealed(world.manifest, 6, 10**6, None, zstd=True))

    assert (10, 10) == (found.end, found.unit_end)


async def test_reading_ahead_goes_on_only_over_what_is_in_memory() -> None:
    """
    Outside the manifest there is nothing to read ahead.
    """
    world = await groups_of_two()

    assert (4, [("Load", 1)]) == await answers(world, prefetch_sealed(world.manifest, 3), (1,))
    assert (None, [("Load", 1)]) == await answers(world, prefetch_sealed(world.manifest, 3))
    assert (None, []) == await answers(world, prefetch_sealed(world.manifest, 10))
