"""Segments: what goes in comes out, at its offset, and a reader never meets a hole."""

import io
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    Codec,
    CorruptBatchError,
    CorruptRecordsError,
    build_batch,
    check_batch,
)
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.batches.compression import compress, decompress
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records
from driftlog_tiering.formats.manifest import LeaderEpoch
from driftlog_tiering.segments import columns
from driftlog_tiering.segments.columns import (
    RECORD_COLUMNS,
    SCHEMA,
    BatchEncoder,
    EncodedBatch,
)
from driftlog_tiering.segments.segment import (
    ROW_GROUP_BYTES,
    CorruptSegmentError,
    SegmentInfo,
    SegmentReader,
    SegmentWriter,
    footer_start,
)

MiB = 1024 * 1024
TOPIC_ID = UUID(int=5)
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""offset, timestamp (ms), timestamp type, key, value, headers."""

payloads = st.none() | st.binary(max_size=30)
records = st.builds(
    Record,
    timestamp_delta=st.integers(-1000, 1000),
    offset_delta=st.just(0),
    key=payloads,
    value=payloads,
    headers=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), payloads), max_size=2
    ).map(tuple),
)


def make_batch(
    base: int,
    content: list[Record],
    *,
    epoch: int = 0,
    codec: Codec = Codec.NONE,
    append_time: int | None = None,
    base_timestamp: int = 10_000,
    extra: int = 0,
) -> bytes:
    """A batch as it stands in the log; *extra*: offsets without records at its end."""
    section = b"".join(map(encode_record, content))
    greatest = max((base_timestamp + r.timestamp_delta for r in content), default=-1)
    return bytes(
        build_batch(
            compress(codec, section) if content else b"",
            base_offset=base,
            last_offset_delta=(content[-1].offset_delta if content else 0) + extra,
            record_count=len(content),
            attributes=codec | (0 if append_time is None else 8),
            base_timestamp=base_timestamp,
            max_timestamp=greatest if append_time is None else append_time,
            leader_epoch=epoch,
        )
    )


def rows_of(batch: bytes | bytearray) -> list[Row]:
    header = check_batch(batch, from_client=False)
    assert -1 == header.producer_id
    if not header.record_count:
        return []
    section = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], 10**8)
    return [
        (
            header.base_offset + r.offset_delta,
            header.max_timestamp
            if header.timestamp_type
            else header.base_timestamp + r.timestamp_delta,
            int(header.timestamp_type),
            r.key,
            r.value,
            r.headers,
        )
        for r in iterate_records(section, header.record_count)
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches with ascending offsets and epochs, with gaps within and between them."""
    offset = draw(st.integers(0, 3))
    epoch = 0
    batches = []
    for content in draw(st.lists(st.lists(records, max_size=5), max_size=6)):
        deltas, delta = [], 0
        for gap in draw(st.lists(st.sampled_from([0, 0, 0, 2]), min_size=5, max_size=5)):
            deltas.append(delta := delta + gap)
            delta += 1
        content = [r._replace(offset_delta=d) for r, d in zip(content, deltas, strict=False)]
        epoch += draw(st.sampled_from([0, 0, 1, 3]))
        batch = make_batch(
            offset,
            content,
            epoch=epoch,
            codec=draw(st.sampled_from(Codec)),
            append_time=draw(st.none() | st.integers(9_000, 12_000)),
            extra=draw(st.sampled_from([0, 0, 3])),
        )
        batches.append(batch)
        end = check_batch(batch, from_client=False).end_offset
        offset = end + draw(st.sampled_from([0, 0, 1, 5]))
    return batches


def sealed(
    batches: list[bytes], end: int | None = None, row_group_bytes: int = 250
) -> tuple[SegmentInfo, bytes]:
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink,
        topic="t\u00e9",
        topic_id=TOPIC_ID,
        partition=3,
        base=0,
        row_group_bytes=row_group_bytes,
    )
    for batch in batches:
        writer.append(batch)
    return writer.finish(writer.next_offset if end is None else end), sink.getvalue()


def opened(data: bytes) -> SegmentReader:
    return SegmentReader(data[footer_start(data[-8:], len(data)) :], len(data), None)


def read(data: bytes, start: int, codec: Codec, batch_bytes: int) -> list[EncodedBatch]:
    """As a consumer reads: from *start* to the end, one row group after another."""
    reader = opened(data)
    out: list[EncodedBatch] = []
    while start < reader.end:
        group = reader.row_group_at(start)
        if group is None:
            out += reader.gap(start)
        else:
            made = reader.encoder(group, data[group.start : group.end])
            out += made.batches(start, codec=codec, batch_bytes=batch_bytes)
        assert out[-1].end_offset > start
        start = out[-1].end_offset
    return out


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_a_segment_gives_back_every_record_and_covers_every_offset(
    log: list[bytes], data: st.DataObject
) -> None:
    """
    Byte-identical keys, values, headers, timestamps and offsets, from wherever one starts;
    batches join without a hole up to the end; no batch mixes epochs.
    """
    expected = [row for batch in log for row in rows_of(batch)]
    epochs = {
        row[0]: check_batch(b, from_client=False).partition_leader_epoch
        for b in log
        for row in rows_of(b)
    }
    info, stored = sealed(log)
    end = info.end + data.draw(st.sampled_from([0, 0, 4]))
    info, stored = sealed(log, end)
    start = data.draw(st.integers(0, end))
    codec = data.draw(st.sampled_from(Codec))

    batches = read(stored, start, codec, data.draw(st.sampled_from([1, 60, 10_000])))

    assert [row for row in expected if row[0] >= start] == [
        row for batch in batches for row in rows_of(batch.data)
    ]
    at = start
    for batch in batches:
        header = check_batch(batch.data, from_client=False)
        assert (at, batch.end_offset) == (header.base_offset, header.end_offset)
        assert batch.record_count == header.record_count
        assert {header.partition_leader_epoch} >= {epochs[r[0]] for r in rows_of(batch.data)}
        assert header.codec is (codec if header.record_count else Codec.NONE)
        at = header.end_offset
    assert end == at
    assert info.records == len(expected)


def _latest_of(found: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    """The first with the largest time of those that are there."""
    return max(filter(None, found), key=lambda pair: (pair[1], -pair[0]), default=(-1, -1))


@settings(max_examples=100, deadline=None)
@given(logs(), st.integers(8_900, 12_100))
def test_lookups_by_time_are_record_exact(log: list[bytes], target: int) -> None:
    """
    The first record at or after a time, and the first of the largest time, from offsets and
    timestamps alone; the writer knows the latter.
    """
    rows = [row for batch in log for row in rows_of(batch)]
    info, data = sealed(log)
    reader = opened(data)

    found = None
    for group in reader.row_groups_since(target):
        start, end = reader.times_range(group)
        found = reader.find_timestamp(group, data[start:end], target)
        break
    latest, late = [], []
    middle = rows[len(rows) // 2][0] if rows else 0
    for group in reader.row_groups:
        start, end = reader.times_range(group)
        latest.append(reader.find_latest(group, data[start:end]))
        late.append(reader.find_latest(group, data[start:end], middle))

    assert next(((r[0], r[1]) for r in rows if r[1] >= target), None) == found
    greatest = max(rows, key=lambda r: (r[1], -r[0]), default=None)
    expected = (greatest[0], greatest[1]) if greatest else (-1, -1)
    assert expected == (info.max_timestamp_offset, info.max_timestamp_ms)
    assert expected == _latest_of(latest)
    after = [(r[0], r[1]) for r in rows if r[0] >= middle]
    assert _latest_of(after) == _latest_of(late)
    assert min((r[1] for r in rows), default=-1) == info.min_timestamp_ms


@given(logs(), st.integers(8_900, 12_100), st.integers(0, 9))
def test_lookups_by_time_in_a_batch_are_record_exact(
    log: list[bytes], target: int, skipped: int
) -> None:
    """
    Under every codec, with LogAppendTime too, where there is no record, and from an offset on.
    """
    for batch in log:
        header = check_batch(batch, from_client=False)
        for start in (0, header.base_offset + skipped):
            rows = [(r[0], r[1]) for r in rows_of(batch) if r[0] >= start]
            latest = max(rows, key=lambda p: (p[1], -p[0]), default=None)
            first = next((r for r in rows if r[1] >= target), latest)
            if header.record_count and header.attributes & 8:
                # All have one time: Kafka answers with the batch's first offset.
                at = max(header.base_offset, start)
                first = (at, header.max_timestamp) if at < header.end_offset else None

            assert first == columns.find_timestamp(batch, target, start)


def some_log(count: int = 30) -> list[bytes]:
    rng = random.Random(7)
    log = []
    for i in range(count):
        content = [
            Record(rng.randint(0, 9), d, b"key%d" % (d % 3), rng.randbytes(50), (("h", b"1"),))
            for d in range(10)
        ]
        log.append(
            make_batch(10 * i, content, epoch=i // 10, codec=Codec.LZ4, base_timestamp=1000 * i)
        )
    return log


def test_the_footer_says_what_the_writer_said() -> None:
    """
    Facts and row groups survive; the footer alone is enough to know them.
    """
    info, data = sealed(some_log(), end=333)
    reader = opened(data)

    assert (0, 333, 300, info.row_groups) == (
        reader.base,
        reader.end,
        reader.records,
        reader.row_groups,
    )
    assert ("t\u00e9", TOPIC_ID, 3, Codec.LZ4, "CreateTime") == (
        reader.topic,
        reader.topic_id,
        reader.partition,
        reader.codec,
        reader.timestamp_type,
    )
    assert (LeaderEpoch(0, 0), LeaderEpoch(1, 100), LeaderEpoch(2, 200)) == reader.leader_epochs
    assert (info.raw_bytes, len(data)) == (reader.raw_bytes, info.size_bytes)
    assert len(info.row_groups) > 10


def test_the_file_is_spark_s_kafka_schema_with_the_encodings_promised() -> None:
    """
    Types, field ids, encodings, statistics, page index, order: as any Parquet reader sees them.
    """
    _, data = sealed(some_log())
    file = pq.ParquetFile(io.BytesIO(data))
    group = file.metadata.row_group(1)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(9)}

    assert file.schema_arrow.equals(SCHEMA)
    assert [str(i).encode() for i in range(1, 9)] == [
        f.metadata[b"PARQUET:field_id"] for f in file.schema_arrow
    ]
    dictionary = {name for name, c in columns.items() if "RLE_DICTIONARY" in c.encodings}
    delta = {name for name, c in columns.items() if "DELTA_BINARY_PACKED" in c.encodings}
    statistics = {name for name, c in columns.items() if c.is_stats_set}
    assert ({"key", "topic"}, {"offset", "timestamp"}, {"offset", "timestamp"}) == (
        dictionary,
        delta,
        statistics,
    )
    assert {"ZSTD"} == {c.compression for c in columns.values()}
    assert all(c.has_offset_index for c in columns.values())
    assert [4] == [s.column_index for s in group.sorting_columns]


def test_nulls_empties_and_missing_headers_are_what_a_query_sees() -> None:
    """
    NULL headers where a record has none; null and empty keys and values differ.
    """
    content = [Record(0, 0, None, b"", ()), Record(1, 1, b"", None, (("a", None), ("a", b"")))]
    _, data = sealed([make_batch(0, content)])

    rows = pq.read_table(io.BytesIO(data)).drop_columns(["timestamp"]).to_pylist()

    common = {"topic": "t\u00e9", "partition": 3, "timestampType": 0}
    headers = [{"key": "a", "value": None}, {"key": "a", "value": b""}]
    assert [
        {**common, "key": None, "value": b"", "offset": 0, "headers": None},
        {**common, "key": b"", "value": None, "offset": 1, "headers": headers},
    ] == rows


def test_a_batch_that_cannot_be_decoded_leaves_the_segment_as_it_was() -> None:
    """
    It can be finished before the garbage, and holds what came before.
    """
    log = some_log(3)
    garbage = bytes(build_batch(b"\xff" * 40, **_fields(30, codec=0)))
    bomb = bytes(build_batch(compress(Codec.ZSTD, bytes(3_000_000)), **_fields(30, codec=4)))
    broken = bytearray(log[-1])
    broken[-1] ^= 1
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink,
        topic="t",
        topic_id=TOPIC_ID,
        partition=0,
        base=0,
        limits=BatchLimits(decompressed_bytes=1_000_000),
    )
    for batch in log:
        writer.append(batch)
    before = writer.raw_bytes
    for bad in (garbage, bomb):
        with pytest.raises(CorruptRecordsError):
            writer.append(bad)
    with pytest.raises(CorruptBatchError):
        writer.append(broken)

    assert (30, before) == (writer.next_offset, writer.raw_bytes)
    info = writer.finish(30)
    assert 30 == info.records == len(read_rows(sink.getvalue()))


def test_a_batch_that_comes_to_very_much_in_columns_is_refused() -> None:
    """
    A kilobyte of empty headers would be tens of megabytes, and 23 kB of them gigabytes: it is
    refused before its columns are made, and what is kept as it came costs its own bytes.
    """
    writer = SegmentWriter(io.BytesIO(), topic="t", topic_id=TOPIC_ID, partition=0, base=0)

    def with_headers(count: int) -> bytes:
        body = b"\0\0\0\1\1" + zigzag(count) + b"\0\1" * count
        section = compress(Codec.ZSTD, zigzag(len(body)) + body)
        return bytes(build_batch(section, **_fields(0, codec=4)))

    for count in (BatchLimits().headers + 1, 50_000_000):
        batch = with_headers(count)
        tracemalloc.start()
        with pytest.raises(CorruptRecordsError):
            writer.append(batch)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 200 * MiB
    writer.append(with_headers(10_000))

    assert 1 == writer.next_offset


def zigzag(value: int) -> bytes:
    """As in records."""
    out = bytearray()
    value <<= 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(base: int, codec: int) -> dict[str, int]:
    return {
        "base_offset": base,
        "last_offset_delta": 0,
        "record_count": 1,
        "attributes": codec,
        "base_timestamp": 0,
        "max_timestamp": 0,
    }


def read_rows(data: bytes) -> list[Row]:
    return [row for batch in read(data, 0, Codec.NONE, 10**6) for row in rows_of(batch.data)]


def test_a_range_without_records_is_an_empty_batch() -> None:
    """
    A reader goes on at its end; 2^32 offsets take more than one batch.
    """
    _, data = sealed([], end=2**32)
    batches = read(data, 5, Codec.ZSTD, 1000)

    assert [5, 5 + 2**31 - 1] == [b.base_offset for b in batches]
    assert 2**32 == batches[-1].end_offset


def test_gaps_over_two_billion_offsets_are_bridged() -> None:
    """
    Offset deltas are int32: batches in between are empty, records keep their offsets.
    """
    far = 10 + 2**33
    log = [make_batch(base, [Record(0, 0, b"k", b"v", ())]) for base in (10, far)]
    _, data = sealed(log, row_group_bytes=10**6)

    batches = read(data, 0, Codec.NONE, 10**6)

    assert [10, far] == [row[0] for b in batches for row in rows_of(b.data)]
    assert [b.end_offset for b in batches[:-1]] == [b.base_offset for b in batches[1:]]


@pytest.mark.parametrize("codec", Codec)
def test_aiokafka_reads_what_a_segment_gives(codec: Codec) -> None:
    """
    An independent decoder sees the same records.
    """
    log = some_log()
    _, data = sealed(log)
    expected = [row[:5] for batch in log for row in rows_of(batch)]

    theirs: list[Any] = []
    for batch in read(data, 0, codec, 2000):
        parsed = AiokafkaRecords(bytes(batch.data)).next_batch()
        assert parsed.validate_crc()
        theirs += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in parsed]

    assert expected == theirs


def test_damage_is_an_error_of_its_own() -> None:
    """
    Cut, mixed up, of others, from the future: CorruptSegmentError, never wrong rows.
    """
    _, data = sealed(some_log())
    reader = opened(data)
    group, other = reader.row_groups[:2]
    sound = data[group.start : group.end]
    good = reader.read_table(group, sound)

    for bad in (b"", sound[:-1], data[other.start : other.end], bytes(len(sound))):
        with pytest.raises(CorruptSegmentError):
            reader.encoder(group, bad)
    for tail in (b"", data[-7:], data[:-1], data[-100:], b"\0" * 100):
        with pytest.raises(CorruptSegmentError):
            SegmentReader(tail, len(data), None)
    foreign = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(CorruptSegmentError):
        SegmentReader(foreign.getvalue(), foreign.tell(), None)
    with pytest.raises(CorruptSegmentError):
        opened(data.replace(b'"format_version": 1', b'"format_version": 2'))
    assert good.equals(reader.read_table(group, sound))


def test_a_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    pyarrow's own error of it is one of its exceptions, as those of damage are.
    """
    _, data = sealed(some_log())
    reader = opened(data)
    group = reader.row_groups[0]
    body = data[group.start : group.end]

    def lacks(*_: Any, **__: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of 1 GiB failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lacks)

    for read in (reader.encoder, lambda g, d: reader.read_table(g, d)):
        with pytest.raises(UnavailableError, match="too little memory"):
            read(group, body)


def same_key_batches(count: int, codec: Codec = Codec.ZSTD) -> list[bytes]:
    """Batches of one key of 28 KiB, 290 times: 8 MiB of records, and a dictionary of one entry."""
    key = random.Random(5).randbytes(28 * 1024)
    content = [Record(0, delta, key, None, ()) for delta in range(290)]
    return [make_batch(n * 290, content, codec=codec) for n in range(count)]


def test_a_row_group_says_what_it_takes_in_memory() -> None:
    """
    Where a key repeats, the file has it once, and the table has it in each row: caches and the
    turns of large row groups would count a hundredth.
    """
    headers = tuple(("", None) for _ in range(50_000))
    bombs = [make_batch(n, [Record(0, 0, b"", None, headers)], codec=Codec.ZSTD) for n in range(6)]
    for batches in (same_key_batches(3), bombs, some_log()):
        info, data = sealed(batches)
        reader = opened(data)
        assert info.row_groups == reader.row_groups
        for group in reader.row_groups:
            table = reader.read_table(group, data[group.start : group.end], RECORD_COLUMNS)
            assert 0.99 * table.nbytes < group.decoded_bytes < 2 * table.nbytes + 4096


def test_a_footer_without_its_facts_is_damage() -> None:
    """
    No statistics, other columns, facts of another type: no reader meets None or text for a number.
    """
    _, data = sealed([make_batch(0, [Record(0, 0, b"k", b"v", ())])])
    reader = opened(data)
    (group,) = reader.row_groups
    table = reader.read_table(group, data[group.start : group.end])
    found = pq.read_metadata(io.BytesIO(data)).metadata or {}
    facts = json.loads(found[b"driftlog.segment"])

    def foreign(rows: pa.Table, changed: dict[str, Any], statistics: bool = True) -> SegmentReader:
        sink = io.BytesIO()
        with pq.ParquetWriter(
            sink, rows.schema, write_statistics=statistics, store_schema=False
        ) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"driftlog.segment": json.dumps({**facts, **changed})})
        return SegmentReader(sink.getvalue(), sink.tell(), None)

    assert group.first_offset == foreign(table, {}).row_groups[0].first_offset
    older = {"row_group_bytes": None, "raw_bytes": 3 * ROW_GROUP_BYTES}
    assert ROW_GROUP_BYTES == foreign(table, older).row_groups[0].decoded_bytes
    with pytest.raises(CorruptSegmentError, match="statistics of offset"):
        foreign(table, {}, statistics=False)
    names = ["other" if name == "offset" else name for name in table.column_names]
    with pytest.raises(CorruptSegmentError, match="other columns"):
        foreign(table.rename_columns(names), {})
    for name, value in (
        *(("base", None), ("end", "1"), ("partition", 3.0), ("raw_bytes", -1), ("topic", 1)),
        *(("topic_id", 5), ("codec", "best"), ("timestamp_type", "Never"), ("format_version", "1")),
        *(("leader_epochs", [[0, None]]), ("leader_epochs", 0), ("row_group_crcs", {})),
        *(("row_group_bytes", [1, 1]), ("row_group_bytes", ["1"]), ("row_group_bytes", 1)),
    ):
        with pytest.raises(CorruptSegmentError):
            foreign(table, {name: value})


def test_no_flipped_bit_of_a_footer_is_parsed() -> None:
    """
    Arrow ends the process at some of them: with the reference's CRC a reader refuses all of them.
    """
    info, data = sealed(some_log())
    start = footer_start(data, len(data))
    flips = [(at, bit) for at in range(start, len(data)) for bit in range(8)]
    end = range(len(flips) - 64, len(flips))  # its length, and the magic
    for at, bit in [*random.Random(7).sample(flips, 500), *(flips[i] for i in end)]:
        bad = bytearray(data)
        bad[at] ^= 1 << bit
        with pytest.raises(CorruptSegmentError):
            SegmentReader(bad, len(bad), info.footer_crc)

    assert info.records == SegmentReader(data[start:], len(data), info.footer_crc).records
    assert info.footer_crc == kernel.crc32c(data[start:])
    assert info.footer_crc == info.reference("key", 0).footer_crc


def test_flipped_bits_of_a_footer_without_a_crc_do_not_end_the_process() -> None:
    """
    Segments of format 1: Arrow raises what it would throw past pyarrow. In a child process: a
    regression ends that one.
    """
    info, data = sealed(some_log())
    assert info.row_groups
    child = subprocess.run(
        [sys.executable, "-c", _PARSE_FLIPPED], input=data, capture_output=True, check=False
    )

    assert (0, b"") == (child.returncode, child.stderr)
    refused, parsed = map(int, child.stdout.split())
    assert min(refused, parsed) > 100


_PARSE_FLIPPED = """
import random, sys
from driftlog_tiering.segments.segment import CorruptSegmentError, SegmentReader, footer_start

data = sys.stdin.buffer.read()
start = footer_start(data, len(data))
rng = random.Random(3)
refused = parsed = 0
for _ in range(3_000):
    bad = bytearray(data)
    bad[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
    try:
        SegmentReader(bad, len(bad), None)
    except CorruptSegmentError:
        refused += 1
    else:
        parsed += 1
print(refused, parsed)
"""


def test_no_flipped_bit_becomes_a_record() -> None:
    """
    A row group's bytes have a CRC: whatever is damaged is refused before it is decoded.
    """
    rng = random.Random(3)
    _, data = sealed(some_log())
    reader = opened(data)
    group = reader.row_groups[0]
    for _ in range(300):
        bad = bytearray(data[group.start : group.end])
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptSegmentError):
            reader.encoder(group, bad)


def test_damaged_offsets_and_timestamps_are_refused_or_within_what_the_footer_says() -> None:
    """
    A lookup by time fetches a part of a row group that has no CRC of its own.
    """
    rng = random.Random(4)
    _, data = sealed(some_log())
    reader = opened(data)
    group = reader.row_groups[0]
    start, end = reader.times_range(group)
    refused = 0
    for _ in range(1000):
        bad = bytearray(data[start:end])
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        try:
            found = reader.find_timestamp(group, bad, 5)
        except CorruptSegmentError:
            refused += 1
        else:
            assert found is None or group.first_offset <= found[0] <= group.last_offset

    assert refused


def test_rows_with_nulls_where_none_may_be_are_refused() -> None:
    """
    A table of somebody else's is not turned into records that never were.
    """
    _, data = sealed(some_log(1))
    table = pq.read_table(io.BytesIO(data))
    nulls = table.set_column(4, table.field(4), pa.nulls(table.num_rows, pa.int64()))

    backwards = table.take(list(range(table.num_rows))[::-1])

    with pytest.raises(ValueError, match="null offset"):
        BatchEncoder(nulls, ())
    with pytest.raises(ValueError, match="ascend"):
        BatchEncoder(backwards, ())


def test_a_slice_of_a_table_is_encoded_from_its_own_rows() -> None:
    """
    Arrow slices share buffers; offsets into them must not be lost.
    """
    log = some_log(1)
    _, data = sealed(log)
    table = pq.read_table(io.BytesIO(data)).slice(3, 4)

    (batch,) = BatchEncoder(table, ()).batches(3, 7, codec=Codec.NONE)

    assert rows_of(log[0])[3:7] == rows_of(batch.data)


def test_a_row_group_ends_by_what_it_takes_in_memory() -> None:
    """
    Rows of other segments come with a share of their batches' size, which may be far too small;
    and records without content take many times their bytes: a merge would hold gigabytes.
    """
    empty = pa.nulls(470_000)
    numbers = pa.array(range(len(empty)), pa.int64())
    zeros = pa.repeat(pa.scalar(0, pa.int32()), len(empty))
    columns = [empty, empty, empty, zeros, numbers, numbers, zeros, empty]
    types = [c.cast(f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    encoder = BatchEncoder(pa.Table.from_arrays(types, schema=SCHEMA), [LeaderEpoch(0, 0)])
    batches = encoder.batches(0, len(empty), codec=Codec.NONE, batch_bytes=MiB)
    _, small = sealed([bytes(each.data) for each in batches], row_group_bytes=17 * MiB // 4)
    reader = opened(small)
    assert reader.raw_bytes < 17 * MiB // 4
    assert 2 == len(reader.row_groups)

    _, data = sealed(same_key_batches(3), row_group_bytes=MiB)
    reader, sink = opened(data), io.BytesIO()
    writer = SegmentWriter(
        sink, topic="t", topic_id=TOPIC_ID, partition=3, base=0, row_group_bytes=MiB
    )
    for group in reader.row_groups:
        rows = reader.read_table(group, data[group.start : group.end], RECORD_COLUMNS)
        for start in range(0, rows.num_rows, 10):
            writer.append_rows(rows.slice(start, 10), reader, 100)
    info = writer.finish(writer.next_offset)
    assert all(group.decoded_bytes < 5 * MiB for group in info.row_groups)
    assert read_rows(data) == read_rows(sink.getvalue())


def test_an_abandoned_segment_writes_nothing_more() -> None:
    """
    Left before it is finished, it leaves no footer, and its sink may be closed at once.
    """
    sink = io.BytesIO()
    with SegmentWriter(sink, topic="t", topic_id=TOPIC_ID, partition=0, base=0) as writer:
        writer.append(some_log(1)[0])
    size = sink.tell()
    sink.close()
    del writer

    assert size <= len(b"PAR1")


def test_a_finished_segment_stays_finished() -> None:
    """
    Leaving the context afterwards changes nothing.
    """
    sink = io.BytesIO()
    with SegmentWriter(sink, topic="t", topic_id=TOPIC_ID, partition=0, base=0) as writer:
        writer.append(some_log(1)[0])
        info = writer.finish(10)

    assert info.size_bytes == sink.tell()
    assert 10 == len(read_rows(sink.getvalue()))


def test_the_kernel_is_the_compiled_one() -> None:
    """
    These tests are about what runs in production.
    """
    assert kernel.COMPILED
