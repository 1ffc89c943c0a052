"""The compiled kernel against its Python twin, on what is valid and on what is not."""

import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_tiering.batches import kernel, kernel_py
from driftlog_tiering.batches.batch import (
    MAX_TIMESTAMP_MS,
    CorruptRecordsError,
    Reason,
    build_batch,
    check_batch,
    parse_header,
)
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not built")

MUTATIONS = int(os.environ.get("DRIFTLOG_MUTATIONS", "100000"))

payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=200)
texts = st.text(st.characters(codec="utf-8"), max_size=10)
header_lists = st.lists(st.tuples(texts, payloads), max_size=3).map(tuple)
timestamp_deltas = st.integers(-(2**40), 2**40) | st.integers(-5, 5)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 0) -> list[Record]:
    """Records with ascending offset deltas, with gaps now and then."""
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1000]), min_size=min_size, max_size=8))
    records, offset_delta = [], -1
    for gap in gaps:
        offset_delta += 1 + gap
        records.append(
            Record(
                draw(timestamp_deltas),
                offset_delta,
                draw(payloads),
                draw(payloads),
                draw(header_lists),
            )
        )
    return records


def section(records: list[Record]) -> bytes:
    return b"".join(map(encode_record, records))


def buffers_for(rows: int, sizes: Sequence[int]) -> list[bytearray]:
    return [bytearray(n) for n in kernel_py.least_bytes(rows, sizes)]


def scanned(module: object, *args: object) -> object:
    """What scan says, or that it refused."""
    return result(module.scan, *args)  # type: ignore[attr-defined]


def result(function: Callable[..., object], *args: object) -> object:
    """What *function* says of records, or that it refused."""
    try:
        return function(*args)
    except CorruptRecordsError:
        return CorruptRecordsError


@given(record_lists(), st.integers(-(2**41), 2**41), st.booleans())
def test_scan_and_decode_fill_the_same_buffers_as_the_twin(
    records: list[Record], base_timestamp: int, log_append_time: bool
) -> None:
    """
    Sizes, all sixteen buffers and their validity bits are those of the Python twin.
    """
    data = section(records)
    last = records[-1].offset_delta if records else 0
    sizes = kernel_py.scan(data, len(records), last, base_timestamp, log_append_time)
    batch = (data, len(records), 77, base_timestamp, 123, int(log_append_time))
    doubled = [2 * n for n in sizes]
    ours, twins = (buffers_for(2 * len(records), doubled) for _ in range(2))

    kernel.decode([batch, batch], doubled, ours)
    kernel_py.decode([batch, batch], doubled, twins)

    assert sizes == kernel.scan(data, len(records), last, base_timestamp, log_append_time)
    assert twins == ours


@given(record_lists(min_size=1), st.integers(0, 2**41), st.integers(1, 600))
def test_columns_become_the_records_they_came_from(
    records: list[Record], base_timestamp: int, target_bytes: int
) -> None:
    """
    Rows.cut and Rows.encode invert decode, agree with the twin, and write what was there.
    """
    data = section(records)
    sizes = kernel.scan(data, len(records), records[-1].offset_delta, base_timestamp)
    buffers = buffers_for(len(records), sizes)
    kernel.decode([(data, len(records), 1000, base_timestamp, -1, 0)], sizes, buffers)
    compiled, twin = (m.Rows(len(records), buffers) for m in (kernel, kernel_py))

    start = 0
    seen: list[Record] = []
    while start < len(records):
        base = 1000 + records[start].offset_delta
        cut = compiled.cut(start, len(records), base, target_bytes)
        assert twin.cut(start, len(records), base, target_bytes) == cut
        stop, size, first_timestamp, greatest, kind = cut
        ours, twins = bytearray(size + 5), bytearray(size + 5)
        assert size + 5 == compiled.encode(start, stop, base, ours, 5)
        assert size + 5 == twin.encode(start, stop, base, twins, 5)
        assert twins == ours
        assert size <= target_bytes or stop == start + 1
        assert 0 == kind
        for record in iterate_records(bytes(ours[5:]), stop - start):
            seen.append(
                record._replace(
                    timestamp_delta=record.timestamp_delta + first_timestamp - base_timestamp,
                    offset_delta=record.offset_delta + base - 1000,
                )
            )
        assert greatest == max(r.timestamp_delta + base_timestamp for r in seen[start:stop])
        start = stop

    assert records == seen


@given(
    record_lists(),
    st.integers(0, 2**41),
    st.integers(-(2**42), 2**42),
    st.sampled_from([0, 0, 1, 2, 1000, 2**40]),
)
def test_timestamps_within_a_batch_are_found_as_the_twin_finds_them(
    records: list[Record], base: int, target: int, start: int
) -> None:
    """
    The first record at or after a time, or else the first with the largest time; of all records,
    and of those from an offset on.
    """
    data = section(records)
    stamped = [(r.offset_delta, base + r.timestamp_delta) for r in records]
    after = [pair for pair in stamped if pair[0] >= start]
    largest = max(after, key=lambda pair: (pair[1], -pair[0]), default=None)
    first = next((pair for pair in after if pair[1] >= target), largest)

    for module in (kernel, kernel_py):
        assert first == module.find_timestamp(data, len(records), base, target, start)
        assert largest == module.find_timestamp(data, len(records), base, 2**62, start)
        greatest = module.max_timestamp(data, len(records), base)
        assert max((ts for _, ts in stamped), default=-1) == greatest


@pytest.mark.parametrize("module", [kernel, kernel_py])
def test_a_lookup_makes_no_objects_of_what_it_passes_over(module: Any) -> None:
    """
    A record of 100,000 headers and one of 1 MiB: less than 64 KiB of memory, in the twin, too.
    """
    headers = (("", None),) * 100_000
    records = [Record(1, 0, bytes(2**20), bytes(2**20), ()), Record(2, 1, None, None, headers)]
    data = section(records)

    tracemalloc.start()
    try:
        found = module.find_timestamp(data, 2, 0, 9, 1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (1, 2) == found
    assert peak_bytes < 64 * 1024


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut out, doubled or cut off."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del out[at : at + rng.randint(1, 4)]
            case 2:
                out[at:at] = rng.choice([b"\xff\xff\xff\xff\x0f", b"\x80", b"\x01", b"\xff" * 10])
            case 3 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case _:
                del out[at:]
    return bytes(out)


def some_records(rng: random.Random) -> list[Record]:
    def payload() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randint(0, 30))])

    return [
        Record(
            rng.randint(-10, 10**6),
            i,
            payload(),
            payload(),
            tuple(
                (rng.choice(["", "k", "\u00e9\u20ac"]), payload()) for _ in range(rng.randint(0, 2))
            ),
        )
        for i in range(rng.randint(0, 4))
    ]


def test_garbage_is_refused_or_read_as_the_twin_reads_it() -> None:
    """
    Both raise or both agree, on mutated record sections; what scan accepts, decode copies.
    Lookups by time agree, too.
    """
    rng = random.Random(1)
    disagreements: list[Any] = []
    for _ in range(MUTATIONS // 10):
        records = some_records(rng)
        data = mutated(rng, section(records))
        args = (data, len(records), max(0, len(records) - 1), rng.choice([0, MAX_TIMESTAMP_MS - 9]))
        twin, ours = scanned(kernel_py, *args), scanned(kernel, *args)
        if twin != ours:
            disagreements.append((args, twin, ours))
        if isinstance(ours, tuple):
            buffers = buffers_for(len(records), ours)
            kernel.decode([(data, len(records), 0, args[3], -1, 0)], ours, buffers)
        sought = (*args[:2], args[3], args[3] + rng.choice([5, 10**9]), rng.choice([0, 1, 2]))
        twin, ours = (result(m.find_timestamp, *sought) for m in (kernel_py, kernel))
        if twin != ours:
            disagreements.append((sought, twin, ours))

    assert [] == disagreements


def test_a_flood_of_garbage_neither_crashes_nor_writes_outside_its_buffers() -> None:
    """
    DRIFTLOG_MUTATIONS sections (100,000 unless told) through scan, lookups and decode with
    sizes that are not theirs; the bytes behind every buffer stay as they were.
    """
    rng = random.Random(2)
    sound = [(section(r), len(r)) for r in (some_records(rng) for _ in range(500))]
    right = {data: kernel.scan(data, n, max(0, n - 1), 0) for data, n in sound}
    guard = b"\xa5" * 16
    outcomes = [0, 0]
    for i in range(MUTATIONS):
        data, n = sound[i % len(sound)]
        bad = mutated(rng, data)
        outcomes[scanned(kernel, bad, n, max(0, n - 1), 0) is CorruptRecordsError] += 1
        if i % 8:
            continue
        with suppress(CorruptRecordsError):
            kernel.max_timestamp(bad, n, 0)
        with suppress(CorruptRecordsError):
            kernel.find_timestamp(bad, n, 0, 5)
        least = kernel_py.least_bytes(n, right[data])
        buffers = [bytearray(size) + guard for size in least]
        with suppress(CorruptRecordsError):
            kernel.decode([(bad, n, 0, 0, -1, 0)], right[data], buffers)
        assert all(guard == b[size:] for b, size in zip(buffers, least, strict=True))

    assert all(outcomes)


@pytest.mark.parametrize(
    "text",
    [
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"\xe2\x82",
        b"\xff",
        b"\xf0\x8f\xbf\xbf",
    ],
)
def test_a_header_key_that_is_not_utf8_is_refused(text: bytes) -> None:
    """
    A column of strings must be UTF-8: overlong forms, surrogates and cut sequences are not.
    """
    body = b"\0\0\0\x01\x01\x02" + bytes([2 * len(text)]) + text + b"\x01"
    data = bytes([2 * len(body)]) + body

    for module in (kernel, kernel_py):
        assert CorruptRecordsError is scanned(module, data, 1, 0, 0)


@given(st.integers(0, 0x10FFFF).filter(lambda c: not 0xD800 <= c <= 0xDFFF))
def test_every_code_point_is_utf8(code_point: int) -> None:
    """
    What Python encodes, the kernel accepts.
    """
    data = encode_record(Record(0, 0, None, None, ((chr(code_point), None),)))

    assert kernel_py.scan(data, 1, 0, 0) == kernel.scan(data, 1, 0, 0)


@pytest.mark.parametrize("target", [MAX_TIMESTAMP_MS, -MAX_TIMESTAMP_MS])
def test_timestamps_up_to_the_bound_fit_and_no_further(target: int) -> None:
    """
    ms must fit int64 microseconds, wherever base and delta lie.
    """
    for base in (0, target, -1):
        data = encode_record(Record(target - base, 0, None, None, ()))
        beyond = encode_record(Record(target - base + (1 if target > 0 else -1), 0, None, None, ()))
        for module in (kernel, kernel_py):
            assert isinstance(scanned(module, data, 1, 0, base), tuple)
            assert CorruptRecordsError is scanned(module, beyond, 1, 0, base)


@settings(max_examples=300)
@given(st.binary(max_size=40_000), st.integers(0, 2**32 - 1), st.integers(0, 7))
def test_crc32c_is_the_package_s(data: bytes, value: int, skip: int) -> None:
    """
    At every length around the block sizes and at every alignment.
    """
    view = memoryview(data)[skip:]

    assert crc32c(view, value) == kernel.crc32c(view, value)


@pytest.mark.parametrize("size", [0, 7, 8, 767, 768, 769, 12_287, 12_288, 12_289, 100_000])
def test_crc32c_around_its_block_sizes(size: int) -> None:
    """
    Three long blocks, three short ones, words, bytes.
    """
    data = random.Random(size).randbytes(size)

    assert crc32c(data) == kernel.crc32c(data)


def sound_batch(rng: random.Random) -> bytearray:
    records = some_records(rng) or [Record(0, 0, None, b"v", ())]
    return build_batch(
        section(records),
        base_offset=0,
        last_offset_delta=len(records) - 1,
        record_count=len(records),
        attributes=rng.choice([0, 1, 4, 8, 16]),
        base_timestamp=5,
        max_timestamp=10,
        producer_id=rng.choice([-1, 3]),
        producer_epoch=0,
        base_sequence=7,
    )


def test_check_says_of_any_header_what_the_twin_says() -> None:
    """
    Every field driven to its edges, with a CRC that is right: the same reason or fields.
    """
    rng = random.Random(3)
    fields = [(0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (23, 4), (27, 8), (35, 8)]
    fields += [(43, 8), (51, 2), (53, 4), (57, 4)]
    answers = set()
    for _ in range(20_000):
        batch = sound_batch(rng)
        for at, size in rng.sample(fields, rng.choice([0, 1, 1, 1, 2])):
            bits = 8 * size
            value = rng.choice([0, 1, 5, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2**bits - 1])
            value = rng.choice([value, rng.getrandbits(bits)])
            batch[at : at + size] = value.to_bytes(size, "big")
            if at != 17:
                batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        around = b"xyz" + batch + b"tail"
        from_client = rng.random() < 0.7
        length = rng.choice([len(batch)] * 9 + [len(batch) - 1, 60, 10**6, -1])
        ours = kernel.check(around, 3, length, from_client)
        assert kernel_py.check(around, 3, length, from_client) == ours
        answers.add(ours if isinstance(ours, int) else 0)

    assert {0, *map(int, Reason)} == answers


def test_patch_leaves_the_crc_valid() -> None:
    """
    Offset and epoch are outside the CRC; nothing else changes.
    """
    batch = sound_batch(random.Random(4))
    twin = bytearray(batch)
    before = parse_header(batch)

    kernel.patch(batch, 0, 2**40, 9)
    kernel_py.patch(twin, 0, 2**40, 9)

    after = check_batch(batch, from_client=False)
    assert before._replace(base_offset=2**40, partition_leader_epoch=9) == after
    assert twin == batch


def test_buffers_that_are_too_small_are_refused() -> None:
    """
    A wrong caller gets ValueError, not memory of others.
    """
    data = section([Record(0, 0, b"key", b"value", (("h", b"x"),))])
    sizes = kernel.scan(data, 1, 0, 0)
    full = buffers_for(1, sizes)
    kernel.decode([(data, 1, 0, 0, -1, 0)], sizes, full)
    for short in range(16):
        buffers = [b[:-1] if i == short else b for i, b in enumerate(full)]
        for module in (kernel, kernel_py):
            with pytest.raises(ValueError):
                module.decode([(data, 1, 0, 0, -1, 0)], sizes, buffers)
        with pytest.raises(ValueError):
            kernel.Rows(1, buffers)


def test_arrow_buffers_are_good_enough() -> None:
    """
    What pyarrow allocates is writable and aligned.
    """
    data = section([Record(0, 0, b"key", None, ())])
    sizes = kernel.scan(data, 1, 0, 0)
    buffers = [pa.allocate_buffer(n) for n in kernel_py.least_bytes(1, sizes)]

    kernel.decode([(data, 1, 0, 0, -1, 0)], sizes, buffers)

    key = pa.Array.from_buffers(pa.binary(), 1, list(buffers[3:6]))
    assert [b"key"] == key.to_pylist()


WITHOUT_COMPILER = """
import io, sys, uuid, warnings
sys.modules["driftlog_tiering.batches._kernel"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import Codec, build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.segments.segment import SegmentReader, SegmentWriter
section = encode_record(Record(0, 0, b"key", None, (("h", b"x"),)))
batch = build_batch(section, base_offset=0, last_offset_delta=0, record_count=1, attributes=0,
                    base_timestamp=5, max_timestamp=5, leader_epoch=0)
sink = io.BytesIO()
writer = SegmentWriter(sink, topic="t", topic_id=uuid.UUID(int=1), partition=0, base=0)
writer.append(batch)
writer.finish(1)
data = sink.getvalue()
reader = SegmentReader(data, len(data), None)
(group,) = reader.row_groups
(again,) = reader.encoder(group, data[group.start:group.end]).batches(0, codec=Codec.NONE)
print(kernel.COMPILED, caught[0].category.__name__, bytes(again.data) == bytes(batch))
"""


def test_without_the_compiled_kernel_the_twin_does_all_and_says_so() -> None:
    """
    A RuntimeWarning, and a batch goes into a segment and comes back the same.
    """
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, check=True
    )

    assert "False RuntimeWarning True" == run.stdout.strip()


# ── Compaction ──

KEYS = st.lists(st.none() | st.sampled_from([b"", b"a", b"bb", b"c" * 30]), max_size=12)


def key_rows(kernel_of: Any, keys: list[bytes | None], has_value: list[bool], base: int) -> Any:
    """Rows of these keys, every second offset."""
    offsets = pa.array([base + 2 * i for i in range(len(keys))], pa.int64())
    values = pa.array([b"v" if each else None for each in has_value], pa.binary())
    key = pa.array(keys, pa.binary())
    buffers = [offsets.buffers()[1], *key.buffers(), values.buffers()[0]]
    return kernel_of.KeyRows(len(keys), buffers)


@given(st.lists(KEYS, max_size=4), st.integers(2, 8), st.integers(0, 60), st.data())
def test_key_maps_are_alike(
    parts: list[list[bytes | None]], slots: int, end: int, data: st.DataObject
) -> None:
    maps = [k.KeyMap(24 * slots, 0.9, bytes(range(16))) for k in (kernel, kernel_py)]
    assert maps[0].capacity == maps[1].capacity
    made = []
    for number, keys in enumerate(parts):
        has_value = data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
        made.append([key_rows(k, keys, has_value, 100 * number) for k in (kernel, kernel_py)])
    for rows in made:
        taken = [m.add(r, 0, r.count) for m, r in zip(maps, rows, strict=True)]
        assert taken[0] == taken[1]
    assert maps[0].keys == maps[1].keys
    for rows in made:
        first, second = (m.survivors(r, 5 * end, end) for m, r in zip(maps, rows, strict=True))
        assert first == second


def test_the_hash_of_keys_is_siphash() -> None:
    # Source: the reference implementation's vectors_sip128, of no bytes and of 00 01 … 0e.
    seed = bytes(range(16))
    found = [
        b"".join(word.to_bytes(8, "little") for word in kernel.KeyMap(48, 0.5, seed).hash_of(data))
        for data in (b"", bytes(range(15)))
    ]
    assert found[0].hex() == "a3817f04ba25a8e66df67214c7550293"
    assert found[1].hex() == "5493e99933b0a8117e08ec0f97cfc3d9"


@pytest.mark.parametrize(
    ("count", "buffers"),
    [
        (1, [bytes(8), None, bytes(4), b"", None]),  # one key offset of two
        (1, [bytes(7), None, bytes(8), b"", None]),
        (2, [bytes(16), None, bytes(12), b"", None]),  # record offsets that do not ascend
        (1, [bytes(8), None, (1).to_bytes(4, "little") * 2, b"", None]),  # past the data
        (9, [bytes(72), bytes(1), bytes(40), b"", None]),  # validity of eight
        (-1, [bytes(8), None, bytes(8), b"", None]),
        (1, [bytes(8), None, bytes(8), b""]),
    ],
)
def test_key_rows_refuse_buffers_that_do_not_fit(count: int, buffers: list[bytes | None]) -> None:
    with pytest.raises(ValueError):
        kernel.KeyRows(count, buffers)
