"""The cleaner: a reader of a compacted partition has the same table, and misses no deletion."""

import asyncio
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftlog_metadata.schema.model import FORMAT_VERSION, Cluster, TopicPartition
from driftlog_tiering.batches.batch import Codec, build_batch, iterate_batches
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records
from driftlog_tiering.compaction.cleaner import Cleaned, Cleaner
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    LeaderEpoch,
    Manifest,
    ReplaceSegments,
    SegmentRef,
    SetLogStart,
    TombstoneHorizon,
    empty_manifest,
)
from driftlog_tiering.formats.manifests import VoidEditError, commit_edit, iter_segments
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import (
    CorruptSegmentError,
    SegmentReader,
    SegmentWriter,
    footer_start,
)
from tests.support.memory_object_store import MemoryObjectStore

TP = TopicPartition(UUID(int=7), 0)
RETENTION_MS = 1_000_000
READER_MS = CleanerSettings().reader_ms
POLICY = CompactionPolicy(delete_retention_ms=RETENTION_MS)


class Row(NamedTuple):
    """A record and its offset."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class MemorySpool:
    """A segment before its PUT."""

    def __init__(self) -> None:
        self.file = io.BytesIO()

    def body(self) -> Sequence[Buffer]:
        return [self.file.getvalue()]


@contextmanager
def spool() -> Iterator[MemorySpool]:
    yield MemorySpool()


async def inline(fn, *args):  # type: ignore[no-untyped-def]
    return fn(*args)


@dataclass
class Partition:
    """One partition in a bucket, its segments and its history; time stands still until moved."""

    segment_bytes: int = 600
    now_ms: int = 1_000_000_000
    history: dict[int, Row] = field(default_factory=dict)
    raws: list[tuple[int, int]] = field(default_factory=list)
    nonces: "count[int]" = field(default_factory=count)
    paused_ms: int = 0
    """Time that the store's clock counted, and ours did not."""
    put_ms: int = 0
    """How long a PUT takes."""
    void_after: int | None = None
    """Edits of the cleaner before another editor is faster."""
    changed_after: int | None = None
    """Edits of the cleaner before the topic is not compacted any more."""

    def __post_init__(self) -> None:
        self.store = MemoryObjectStore(lambda: self.now_ms + self.paused_ms)
        self.manifest: Manifest = empty_manifest("t", TP)
        self.policy = CompactionPolicy(
            delete_retention_ms=RETENTION_MS, segment_bytes=self.segment_bytes
        )

    # ── The bucket as the cleaner sees it ──

    async def get(self, key: str, start: int, end: int) -> Buffer:
        return await self.store.get(key, start, end)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        await self.store.put(key, body)
        self.now_ms += self.put_ms

    async def store_now_ms(self) -> int:
        return self.now_ms + self.paused_ms

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        assert size_bytes > 0
        return work(*args)

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        assert began_ms <= self.now_ms <= deadline_ms
        if self.void_after == 0:
            raise VoidEditError("another was faster", self.manifest)
        self.void_after = None if self.void_after is None else self.void_after - 1
        await self._edit(edit)

    async def _edit(self, edit: Edit) -> None:
        self.manifest = await commit_edit(
            self.store,
            self.manifest,
            edit,
            f"n{next(self.nonces)}",
            author=Cluster("c", FORMAT_VERSION),
            read_at_ms=self.now_ms,
            deadline_ms=self.now_ms + 1_000,
            now_ms=lambda: self.now_ms,
        )

    # ── What happens to it ──

    async def append(self, rows: Sequence[Row], end: int, epoch: int = 0) -> None:
        base = self.manifest.end
        sink = io.BytesIO()
        writer = SegmentWriter(
            sink, topic="t", topic_id=TP.topic_id, partition=0, base=base, row_group_bytes=200
        )
        for row in rows:
            writer.append(batch_of(row, epoch))
            self.history[row.offset] = row
        info = writer.finish(end)
        key = layout.segment_key("t", TP, base, end, f"s{next(self.nonces)}")
        await self.store.put(key, [sink.getvalue()])
        ref = info.reference(key, info.raw_bytes)
        await self._add(ref if rows else None, base, end)

    async def append_raw(self, end: int) -> None:
        base = self.manifest.end
        key = layout.segment_key("t", TP, base, end, f"r{next(self.nonces)}", SegmentKind.RAW)
        await self.store.put(key, [b"what it is, cannot be read"])
        ref = SegmentRef(
            key=key,
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=26,
            records=end - base,
            raw_bytes=26,
        )
        self.raws.append((base, end))
        await self._add(ref, base, end)

    async def _add(self, ref: SegmentRef | None, base: int, end: int) -> None:
        await self._edit(
            AddSegments(
                base=base,
                end=end,
                segments=() if ref is None else (ref,),
                leader_epochs=(),
                producers=None,
            )
        )

    async def set_log_start(self, offset: int) -> None:
        await self._edit(SetLogStart(offset))

    @property
    def environment(self) -> RewriteEnvironment:
        """Everything at once, on its clock."""
        return RewriteEnvironment(
            offload=inline,
            spool=spool,
            nonce=lambda: f"c{next(self.nonces)}",
            now_ms=lambda: self.now_ms,
        )

    async def clean(self, settings: CleanerSettings | None = None) -> Cleaned:
        cleaner = Cleaner(
            self,
            self.environment,
            seed=bytes(range(16)),
            settings=settings,
        )
        return await cleaner.clean(
            self.manifest, await self.segments(), self.manifest.end, self.policy, self._policy_now
        )

    async def _policy_now(self) -> CompactionPolicy | None:
        if self.changed_after == 0:
            return None
        self.changed_after = None if self.changed_after is None else self.changed_after - 1
        return self.policy

    # ── What a reader sees ──

    async def segments(self) -> list[SegmentRef]:
        return [ref async for ref in iter_segments(self.store, self.manifest)]

    async def rows(self) -> list[Row]:
        """Every record that can be read, from log start on."""
        found: list[Row] = []
        for ref in await self.segments():
            if ref.kind is SegmentKind.RAW:
                continue
            body = await self.store.get(ref.key)
            reader = SegmentReader(body[footer_start(body, len(body)) :], len(body), ref.footer_crc)
            assert (reader.base, reader.end) == (ref.base, ref.end)
            assert reader.records == ref.records
            assert ref.footer_crc is not None
            for group in reader.row_groups:
                found += rows_of(reader, group, body[group.start : group.end])
        return [row for row in found if row.offset >= self.manifest.log_start]


def rows_of(reader: SegmentReader, group, data: bytes) -> list[Row]:  # type: ignore[no-untyped-def]
    """As a consumer gets them."""
    found = []
    encoded = reader.encoder(group, data).batches(group.first_offset, codec=Codec.NONE)
    for batch in encoded:
        for header, view in iterate_batches(batch.data):
            for record in iterate_records(view[61:], header.record_count):
                found.append(
                    Row(
                        header.base_offset + record.offset_delta,
                        header.base_timestamp + record.timestamp_delta,
                        record.key,
                        record.value,
                        record.headers,
                    )
                )
    return found


def batch_of(row: Row, epoch: int) -> bytes:
    """A batch of one record."""
    record = Record(0, 0, row.key, row.value, row.headers)
    return bytes(
        build_batch(
            encode_record(record),
            base_offset=row.offset,
            last_offset_delta=0,
            record_count=1,
            attributes=0,
            base_timestamp=row.timestamp_ms,
            max_timestamp=row.timestamp_ms,
            leader_epoch=epoch,
        )
    )


def table_of(rows: Sequence[Row]) -> dict[bytes, bytes]:
    """What a consumer that reads them all ends with."""
    table: dict[bytes, bytes] = {}
    for row in rows:
        if row.key is None:
            continue
        if row.value is None:
            table.pop(row.key, None)
        else:
            table[row.key] = row.value
    return table


def rows_from(base: int, *pairs: tuple[bytes | None, bytes | None]) -> list[Row]:
    """Neighbours from *base* on."""
    return [Row(base + i, 1_000 + base + i, key, value) for i, (key, value) in enumerate(pairs)]


def test_each_key_keeps_its_newest_record_at_its_offset() -> None:
    async def main() -> None:
        log = Partition()
        await log.append(rows_from(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")), 3)
        await log.append(rows_from(3, (b"a", b"3"), (b"c", b"1")), 5)
        done = await log.clean()
        assert [(r.offset, r.key, r.value) for r in await log.rows()] == [
            (1, b"b", b"1"),
            (3, b"a", b"3"),
            (4, b"c", b"1"),
        ]
        assert (log.manifest.cleaned_end, log.manifest.end) == (5, 5)
        (ref,) = await log.segments()
        assert (ref.base, ref.end, ref.records) == (0, 5, 3)
        assert (done.end, done.keys, done.segments_written) == (5, 3, 1)

    asyncio.run(main())


def test_headers_timestamps_and_leader_epochs_stay() -> None:
    async def main() -> None:
        log = Partition()
        first = Row(0, 77, b"a", b"1", (("h", b"x"), ("h", None)))
        await log.append([first], 1, epoch=3)
        await log.append([Row(1, 5, b"b", None), Row(2, 6, b"c", b"")], 3, epoch=5)
        await log.clean()
        assert await log.rows() == [first, Row(1, 5, b"b", None), Row(2, 6, b"c", b"")]
        (ref,) = await log.segments()
        body = await log.store.get(ref.key)
        reader = SegmentReader(body[footer_start(body, len(body)) :], len(body), ref.footer_crc)
        assert reader.leader_epochs == (LeaderEpoch(3, 0), LeaderEpoch(5, 1))
        assert (ref.min_timestamp_ms, ref.max_timestamp_ms, ref.max_timestamp_offset) == (5, 77, 0)

    asyncio.run(main())


def test_keys_that_do_not_fit_the_map_wait_for_the_next_run() -> None:
    async def main() -> None:
        log = Partition()
        keys = [(b"k%d" % i, b"1") for i in range(6)]
        await log.append(rows_from(0, *keys), 6)
        await log.append(rows_from(6, *keys), 12)
        small = CleanerSettings(map_bytes=24 * 5, map_load=0.9)  # four keys
        assert (await log.clean(small)).end == 4
        assert log.manifest.cleaned_end == 4
        assert len(await log.rows()) == 12
        ends = [(await log.clean(small)).end for _ in range(3)]
        assert ends == [8, 12, 12]
        assert [row.offset for row in await log.rows()] == list(range(6, 12))

    asyncio.run(main())


def test_a_tombstone_goes_after_its_horizon_and_not_before() -> None:
    async def main() -> None:
        log = Partition()
        await log.append(rows_from(0, (b"a", b"1"), (b"a", None)), 2)
        await log.clean()
        assert await log.rows() == [Row(1, 1_001, b"a", None)]
        (ref,) = await log.segments()
        (horizon,) = ref.horizons
        assert horizon.end == 2
        assert horizon.at_ms >= log.now_ms + 30_000
        log.now_ms = horizon.at_ms + RETENTION_MS + READER_MS - 1
        await log.append(rows_from(2, (b"b", b"1")), 3)
        await log.clean()
        assert [row.key for row in await log.rows()] == [b"a", b"b"]
        (ref,) = await log.segments()
        assert ref.horizons == (TombstoneHorizon(3, horizon.at_ms),)
        log.now_ms += 1
        await log.append(rows_from(3, (b"c", b"1")), 4)
        await log.clean()
        assert [row.key for row in await log.rows()] == [b"b", b"c"]
        (ref,) = await log.segments()
        assert ref.horizons == ()

    asyncio.run(main())


def test_no_tombstone_above_an_undecodable_segment_goes() -> None:
    async def main() -> None:
        log = Partition()
        await log.append(rows_from(0, (b"a", b"1"), (b"b", None)), 2)
        await log.append_raw(4)
        await log.append(rows_from(4, (b"c", None)), 5)
        await log.clean()
        kinds = [(ref.kind, len(ref.horizons)) for ref in await log.segments()]
        assert kinds == [
            (SegmentKind.PARQUET, 1),
            (SegmentKind.RAW, 0),
            (SegmentKind.PARQUET, 0),
        ]
        log.now_ms += 10 * RETENTION_MS
        await log.append(rows_from(5, (b"d", b"1")), 6)
        await log.clean()
        assert [row.key for row in await log.rows()] == [b"a", b"c", b"d"]
        await log.set_log_start(4)
        await log.append(rows_from(6, (b"e", b"1")), 7)
        await log.clean()
        log.now_ms += 10 * RETENTION_MS
        await log.append(rows_from(7, (b"f", b"1")), 8)
        await log.clean()
        assert [row.key for row in await log.rows()] == [b"d", b"e", b"f"]

    asyncio.run(main())


def test_records_without_a_key_go_and_a_range_without_records_has_no_segment() -> None:
    async def main() -> None:
        log = Partition()
        await log.append(rows_from(0, (None, b"1"), (None, None)), 2)
        await log.clean()
        assert await log.segments() == []
        assert (log.manifest.cleaned_end, log.manifest.end) == (2, 2)

    asyncio.run(main())


def test_a_damaged_segment_ends_the_run_and_changes_nothing() -> None:
    async def main() -> None:
        log = Partition()
        await log.append(rows_from(0, (b"a", b"1"), (b"a", b"2")), 2)
        (ref,) = await log.segments()
        body = bytearray(await log.store.get(ref.key))
        await log.store.delete([ref.key])
        body[10] ^= 1
        await log.store.put(ref.key, [bytes(body)])
        before = log.manifest
        with pytest.raises(CorruptSegmentError):
            await log.clean()
        assert log.manifest == before

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["void_after", "changed_after"])
def test_a_long_run_commits_in_pieces_and_one_that_is_void_ends_it(ends: str) -> None:
    """
    Another edit was faster, or the configs of the topic have changed: values that are there stay.
    """

    async def main() -> None:
        log = Partition(segment_bytes=1, put_ms=int(CleanerSettings().piece_ms) + 1)
        setattr(log, ends, 1)
        await log.append(rows_from(0, (b"a", b"1"), (b"b", b"1")), 2)
        await log.append(rows_from(2, (b"c", b"1"), (b"d", b"1")), 4)
        await log.append(rows_from(4, (b"a", b"2"), (b"c", b"2")), 6)
        with pytest.raises(VoidEditError):
            await log.clean()
        assert [row.offset for row in await log.rows()] == [1, 2, 3, 4, 5]
        assert log.manifest.cleaned_end == 0
        setattr(log, ends, None)
        assert (await log.clean()).end == 6
        assert [row.offset for row in await log.rows()] == [1, 3, 4, 5]
        assert log.manifest.cleaned_end == 6

    asyncio.run(main())


# ── Any history ──

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b""]) | st.none()
VALUES = st.sampled_from([b"1", b"2", b"x" * 90]) | st.none()


class Appended(NamedTuple):
    """Records, with a gap before each."""

    rows: list[tuple[int, bytes | None, bytes | None]]


class Raw(NamedTuple):
    """An undecodable segment of so many offsets."""

    offsets: int


class Waited(NamedTuple):
    """Time that passes."""

    ms: int


class Cleans(NamedTuple):
    """A run with a map of so many slots."""

    slots: int


class Deleted(NamedTuple):
    """DeleteRecords up to this share of the log."""

    share: float


STEPS = st.lists(
    st.builds(Appended, st.lists(st.tuples(st.integers(0, 2), KEYS, VALUES), max_size=8))
    | st.builds(Waited, st.sampled_from([1, RETENTION_MS // 4, 2 * RETENTION_MS]))
    | st.builds(Cleans, st.sampled_from([2, 4, 1000]))
    | st.builds(Raw, st.integers(1, 2))
    | st.builds(Deleted, st.floats(0, 1)),
    max_size=14,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STEPS)
def test_a_reader_ends_with_the_same_table_and_misses_no_deletion(steps: list[object]) -> None:
    async def main() -> None:
        log = Partition()
        older_seen_ms: dict[int, int] = {}
        """Of each tombstone: when an older value of its key was last readable."""
        for step in steps:
            before = await log.rows()
            match step:
                case Appended(rows):
                    offset, made = log.manifest.end, []
                    for gap, key, value in rows:
                        offset += gap
                        made.append(Row(offset, log.now_ms, key, value))
                        offset += 1
                    if offset > log.manifest.end:
                        await log.append(made, offset)
                case Raw(offsets):
                    await log.append_raw(log.manifest.end + offsets)
                case Waited(ms):
                    log.now_ms += ms
                case Deleted(share):
                    await log.set_log_start(
                        max(log.manifest.log_start, int(share * log.manifest.end))
                    )
                case Cleans(slots):
                    done = await log.clean(CleanerSettings(map_bytes=24 * slots))
                    assert log.manifest.cleaned_end == max(done.end, log.manifest.cleaned_end)
                case _:
                    raise AssertionError(step)
            await check(log, before, older_seen_ms, compacted=isinstance(step, Cleans))

    asyncio.run(main())


async def check(
    log: Partition, before: list[Row], older_seen_ms: dict[int, int], *, compacted: bool
) -> None:
    """What holds after every step."""
    after = await log.rows()
    start, cleaned = log.manifest.log_start, log.manifest.cleaned_end
    offsets = [row.offset for row in after]
    assert offsets == sorted(set(offsets))
    for row in after:
        assert log.history[row.offset] == row, "a record changed"
    wanted = [row for offset, row in sorted(log.history.items()) if offset >= start]
    assert table_of(after) == table_of(wanted), "a reader ends with another table"
    assert [row for row in wanted if row.offset >= cleaned] == [
        row for row in after if row.offset >= cleaned
    ], "a record above cleaned end is gone"
    if compacted:
        keys = [row.key for row in after if row.offset < cleaned]
        assert None not in keys
        assert len(set(keys)) == len(keys), "two records of one key"
        for raw in log.raws:
            if raw[1] > start:
                assert any((r.base, r.end) == raw for r in await log.segments())
    there = {row.offset for row in after}
    for row in before:
        if row.value is None and row.key is not None and row.offset not in there:
            newer = any(r.key == row.key and r.offset > row.offset for r in after)
            if compacted and not newer:
                seen_ms = older_seen_ms.get(row.offset, 0)
                assert log.now_ms - seen_ms >= RETENTION_MS + READER_MS, "a deletion is missed"
                assert not any(start < end <= row.offset for _, end in log.raws)
    for row in after:
        if row.value is None and any(r.key == row.key and r.offset < row.offset for r in after):
            older_seen_ms[row.offset] = log.now_ms
