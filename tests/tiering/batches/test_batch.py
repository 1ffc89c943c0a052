"""Headers: what other clients write is understood, what is wrong is named, patches stay valid."""

from itertools import islice
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import default_records as kafka_python_records
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    MAX_TIMESTAMP_MS,
    Codec,
    CorruptBatchError,
    Reason,
    TimestampType,
    build_batch,
    check_batch,
    clear_log_append_time,
    empty_batch,
    iterate_batches,
    parse_header,
    patch_offset_and_epoch,
    set_max_timestamp,
    stamp_log_append_time,
)
from driftlog_tiering.batches.compression import decompress
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records

MESSAGES: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (1_760_000_000_000, b"key", b"value", []),
    (1_760_000_000_005, None, b"", [("h", b"1"), ("h", None), ("\u00e9", b"")]),
    (1_760_000_000_003, b"", None, []),
    (1_760_000_000_004, b"k" * 300, b"repeated" * 9_000, [("x", b"y" * 200)]),
]
LIBRARIES = {
    "aiokafka": (aiokafka_records, [0, 1, 2, 3, 4]),
    # Its snappy and lz4 need libraries that we do not install.
    "kafka-python": (kafka_python_records, [0, 1, 4]),
}
CASES = [(name, codec) for name, (_, codecs) in LIBRARIES.items() for codec in codecs]


def built_by(library: str, codec: int, **settings: Any) -> bytearray:
    """A batch of MESSAGES as that client's producer makes it."""
    made = LIBRARIES[library][0].DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=settings.get("producer_id", -1),
        producer_epoch=settings.get("producer_epoch", -1),
        base_sequence=settings.get("base_sequence", -1),
        batch_size=1_000_000,
    )
    for i, (timestamp, key, value, headers) in enumerate(MESSAGES):
        made.append(i, timestamp, key, value, headers)
    return bytearray(made.build())


def records_of(batch: bytes | bytearray) -> list[tuple[int, Any, Any, list[Any]]]:
    header = check_batch(batch)
    section = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], 10**6)
    kernel.scan(section, header.record_count, header.last_offset_delta, header.base_timestamp)
    return [
        (header.base_timestamp + r.timestamp_delta, r.key, r.value, list(r.headers))
        for r in iterate_records(section, header.record_count)
    ]


@pytest.mark.parametrize(("library", "codec"), CASES)
def test_batches_of_other_clients_are_read_whole(library: str, codec: int) -> None:
    """
    Keys, values, nulls, headers and timestamps, under every codec the client has.
    """
    batch = built_by(library, codec, producer_id=7, producer_epoch=1, base_sequence=11)
    header = check_batch(batch)

    assert Codec(codec) is header.codec
    assert (7, 1, 11, 4) == (*header[9:12], header.record_count)
    assert MESSAGES == records_of(batch)


@pytest.mark.parametrize("reader", [AiokafkaRecords, KafkaPythonRecords])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_other_clients_read_patched_and_stamped_batches(reader: Any, codec: Codec) -> None:
    """
    Base offset, leader epoch and LogAppendTime as the broker writes them, CRC valid.
    """
    batch = built_by("aiokafka", codec)
    patch_offset_and_epoch(batch, 2**40, 5)
    stamp_log_append_time(batch, 1_770_000_000_000)

    theirs = reader(bytes(batch)).next_batch()

    assert theirs.validate_crc()
    assert [
        (2**40 + i, 1_770_000_000_000, 1, key, value)
        for i, (_, key, value, _) in enumerate(MESSAGES)
    ] == [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in theirs]
    header = check_batch(batch, from_client=False)
    assert (2**40, 5) == (header.base_offset, header.partition_leader_epoch)
    assert TimestampType.LOG_APPEND_TIME is header.timestamp_type


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_without_the_append_time_is_as_before(codec: Codec) -> None:
    """
    Bit 3 is cleared, and the CRC fits.
    """
    batch = built_by("aiokafka", codec)
    before, max_timestamp = bytes(batch), check_batch(batch).max_timestamp
    stamp_log_append_time(batch, max_timestamp)

    clear_log_append_time(batch)

    assert before == batch


@pytest.mark.parametrize("reader", [AiokafkaRecords, KafkaPythonRecords])
def test_other_clients_go_on_behind_an_empty_batch(reader: Any) -> None:
    """
    No record, and the next offset is the end of what it covers.
    """
    theirs = reader(empty_batch(100, 2**31 + 50, 3)).next_batch()

    assert [] == list(theirs)
    assert 2**31 + 50 == theirs.next_offset


FIELDS: dict[str, int] = {
    "base_offset": 0,
    "last_offset_delta": 0,
    "record_count": 1,
    "attributes": 0,
    "base_timestamp": 5,
    "max_timestamp": 5,
}


def simple(**fields: int) -> bytearray:
    return build_batch(encode_record(Record(0, 0, None, b"v", ())), **(FIELDS | fields))


@pytest.mark.parametrize(
    ("reason", "batch"),
    [
        (Reason.LENGTH, simple()[:60]),
        (Reason.LENGTH, simple()[:-1]),
        (Reason.LENGTH, simple() + b"x"),
        (Reason.LENGTH, b""),
        (Reason.MAGIC, simple()[:16] + b"\x01" + simple()[17:]),
        (Reason.CRC, simple()[:-1] + b"\xff"),
        (Reason.COUNT, simple(last_offset_delta=1)),
        (Reason.COUNT, simple(record_count=0)),
        (Reason.CODEC, simple(attributes=5)),
        (Reason.NEGATIVE, simple(base_offset=-1)),
        (Reason.NEGATIVE, simple(producer_id=4, producer_epoch=0)),
        (Reason.NEGATIVE, simple(producer_id=4, base_sequence=0)),
        (Reason.NEGATIVE, simple(producer_id=-2)),
        (Reason.TIMESTAMP, simple(max_timestamp=MAX_TIMESTAMP_MS + 1)),
        (Reason.TIMESTAMP, simple(base_timestamp=-MAX_TIMESTAMP_MS - 1)),
        (Reason.CONTROL, simple(attributes=0x20)),
        (Reason.BASE_OFFSET, simple(base_offset=1)),
        (Reason.OFFSET_OVERFLOW, simple(base_offset=2**63 - 1)),
    ],
)
def test_what_is_wrong_is_named(reason: Reason, batch: bytes | bytearray) -> None:
    """
    By the compiled kernel in the same words.
    """
    with pytest.raises(CorruptBatchError) as caught:
        check_batch(batch)

    assert reason is caught.value.reason
    assert int(reason) == kernel.check(batch, 0, len(batch))


def test_batches_that_were_read_back_may_have_gaps_or_be_empty() -> None:
    """
    Only a client's must count one record per offset, from 0.
    """
    for batch in (empty_batch(7, 9, 1), simple(base_offset=3, last_offset_delta=8)):
        header = check_batch(batch, from_client=False)
        assert not isinstance(kernel.check(batch, 0, len(batch), False), int)
        with pytest.raises(CorruptBatchError):
            check_batch(batch)
        assert header.end_offset == header.base_offset + header.last_offset_delta + 1


def test_a_max_timestamp_that_a_client_left_unset_is_recomputed() -> None:
    """
    From the records, with a CRC made anew.
    """
    batch = built_by("aiokafka", Codec.NONE)
    set_max_timestamp(batch, -1)
    header = check_batch(batch)
    section = memoryview(batch)[HEADER_BYTES:]

    greatest = kernel.max_timestamp(section, header.record_count, header.base_timestamp)
    set_max_timestamp(batch, greatest)

    assert 1_760_000_000_005 == check_batch(batch).max_timestamp


@given(st.lists(st.integers(0, 200), max_size=5), st.integers(0, 60))
def test_a_buffer_of_batches_is_cut_into_them(sizes: list[int], missing: int) -> None:
    """
    All of them, or those before the one that is cut off and then LENGTH.
    """
    batches = [build_batch(bytes(n), **FIELDS) for n in sizes]
    joined = b"".join(batches)
    whole = [(parse_header(b), bytes(b)) for b in batches]

    assert whole == [(h, bytes(v)) for h, v in iterate_batches(joined)]
    if missing and batches:
        cut = iterate_batches(joined[:-missing])
        assert whole[:-1] == [(h, bytes(v)) for h, v in islice(cut, len(batches) - 1)]
        with pytest.raises(CorruptBatchError) as caught:
            list(cut)
        assert Reason.LENGTH is caught.value.reason
