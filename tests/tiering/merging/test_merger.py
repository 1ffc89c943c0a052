"""The merger: readers of merged segments see the records that they saw before, and the same log."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftlog_tiering.formats.manifest import Manifest, SegmentRef, TombstoneHorizon
from driftlog_tiering.formats.manifests import VoidEditError
from driftlog_tiering.merging.merger import Merged, Merger
from driftlog_tiering.merging.policy import MergePolicy, next_merge
from driftlog_tiering.segments.segment import CorruptSegmentError, SegmentReader, footer_start
from tests.tiering.compaction.test_cleaner import Partition, Row, rows_from

POLICY = MergePolicy(segment_bytes=1 << 20, span_ms=None, factor=2)


def run(test: Callable[[Partition], Coroutine[Any, Any, None]]) -> None:
    """Run *test* with an empty partition."""
    asyncio.run(test(Partition()))


async def merge(log: Partition, segments: list[SegmentRef] | None = None) -> Merged:
    """Merge all segments of *log*, or *segments*."""
    merger = Merger(log, log.environment)
    return await merger.merge(log.manifest, segments or await log.segments())


def test_the_records_stay_and_the_manifest_names_one_segment() -> None:
    async def test(log: Partition) -> None:
        rows = rows_from(0, (b"a", b"1"), (None, b"2"), (b"a", None), (b"", b""))
        rows[1] = replace_headers(rows[1])
        await log.append(rows[:1], 1, epoch=3)
        await log.append(rows[1:3], 5, epoch=3)
        await log.append([Row(6, 2, b"z", b"9")], 8, epoch=5)
        before, segments = log.manifest, await log.segments()
        done = await merge(log)

        assert await log.rows() == [*rows[:3], Row(6, 2, b"z", b"9")]
        assert await log.segments() == [done.added]
        assert sums(segments) == sums([done.added])
        assert (done.added.base, done.added.end, done.added.merges) == (0, 8, 1)
        assert (done.added.max_timestamp_ms, done.added.max_timestamp_offset) == (1_002, 2)
        assert unchanged(before) == unchanged(log.manifest)
        body = await log.store.get(done.added.key)
        assert done.added.footer_crc is not None
        tail = body[footer_start(body, len(body)) :]
        reader = SegmentReader(tail, len(body), done.added.footer_crc)
        assert [(e.epoch, e.start_offset) for e in reader.leader_epochs] == [(3, 0), (5, 5)]

    run(test)


def replace_headers(row: Row) -> Row:
    """*row* with headers."""
    return row._replace(headers=(("h", b"x"), ("h", None)))


def sums(segments: list[SegmentRef]) -> tuple[int, ...]:
    """What a merge must not change."""
    return (
        sum(each.records for each in segments),
        sum(each.raw_bytes for each in segments),
        sum(each.received_bytes for each in segments),
        min(each.min_timestamp_ms for each in segments),
        max(each.max_timestamp_ms for each in segments),
    )


def unchanged(manifest: Manifest) -> Manifest:
    """*manifest* without what a merge changes."""
    return replace(manifest, version=0, nonce="", segments=(), lists=())


def test_horizons_are_appended_and_stay_as_they_are() -> None:
    """
    Else a tombstone goes before a reader of the older value has seen it.
    """

    async def test(log: Partition) -> None:
        for at in range(3):
            await log.append(rows_from(at, (b"k%d" % at, None)), at + 1)
        found = await log.segments()
        info_of = [
            replace(each, horizons=(TombstoneHorizon(each.end, 9 - each.base),)) for each in found
        ]
        log.manifest = replace(log.manifest, segments=tuple(info_of))
        await merge(log)
        (made,) = await log.segments()
        assert made.horizons == tuple(TombstoneHorizon(at + 1, 9 - at) for at in range(3))

    run(test)


def test_a_replaced_segment_makes_the_merge_void() -> None:
    """
    By identity: a segment of the same range is another one.
    """

    async def test(log: Partition) -> None:
        for at in range(3):
            await log.append(rows_from(at, (b"k", b"v")), at + 1)
        chosen = await log.segments()
        await merge(log, chosen[:2])
        with pytest.raises(VoidEditError):
            await merge(log, chosen)
        same_range = [replace(log.manifest.segments[0], key=chosen[0].key), chosen[2]]
        with pytest.raises((VoidEditError, CorruptSegmentError)):
            await merge(log, same_range)
        assert len(await log.rows()) == 3

    run(test)


def test_a_segment_with_other_sums_than_its_reference_is_refused() -> None:
    async def test(log: Partition) -> None:
        for at in range(2):
            await log.append(rows_from(at, (b"k", b"v")), at + 1)
        first, second = await log.segments()
        with pytest.raises(CorruptSegmentError, match="not what the manifest says"):
            await merge(log, [first, replace(second, records=2)])
        assert await log.segments() == [first, second]

    run(test)


def test_damaged_rows_are_not_copied() -> None:
    async def test(log: Partition) -> None:
        for at in range(2):
            await log.append(rows_from(at, (b"k", b"value" * 50)), at + 1)
        first, second = await log.segments()
        body = bytearray(await log.store.get(second.key))
        body[100] ^= 1
        await log.store.delete([second.key])
        await log.store.put(second.key, [bytes(body)])
        with pytest.raises(CorruptSegmentError, match="damaged"):
            await merge(log)
        assert await log.segments() == [first, second]

    run(test)


rows = st.lists(
    st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=300)), max_size=5
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(rows, st.integers(0, 2), st.integers(0, 1)), min_size=2, max_size=9))
def test_however_often_all_is_merged_readers_see_the_same_log(
    parts: list[tuple[list[tuple[bytes | None, bytes | None]], int, int]],
) -> None:
    async def test(log: Partition) -> None:
        epoch = 0
        for pairs, gap, later in parts:
            epoch += later
            base = log.manifest.end
            await log.append(rows_from(base, *pairs), base + len(pairs) + gap + 1, epoch)
            expected = list(log.history.values())
            while chosen := next_merge(
                await log.segments(), POLICY, log_start=0, cleaned_end=0, end=log.manifest.end
            ):
                before = sums(list(chosen))
                done = await merge(log, list(chosen))
                assert before == sums([done.added])
                assert await log.rows() == expected
        assert await log.rows() == list(log.history.values())

    run(test)
