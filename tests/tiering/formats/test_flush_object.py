"""Footers of flush objects read back as they were stored, and damaged ones are refused."""

import struct
from array import array
from collections.abc import Callable
from dataclasses import astuple
from itertools import pairwise
from uuid import UUID

import crc32c
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from driftlog_tiering.formats.flush_object import (
    CorruptFlushObjectError,
    FlushBatch,
    Footer,
    RestoreFacts,
    Slice,
    decode_footer,
    encode_footer,
    find_footer,
    footer_reads,
)

TYPECODES = "iiiqihqhiqiiq"
A, B = UUID(int=0xA), UUID(int=0xB)


def columns_of(batches: list[FlushBatch]) -> list["array[int]"]:
    """The batches, by column."""
    return [
        array(typecode, [batch[i] for batch in batches]) for i, typecode in enumerate(TYPECODES)
    ]


def encode(
    batches: list[FlushBatch],
    topic_ids: tuple[UUID, ...] = (A, B),
    facts: RestoreFacts | None = None,
) -> bytes:
    """A footer of session *s*."""
    return encode_footer(
        facts=facts,
        session_id="s",
        seq=8,
        committed_seq=5,
        topic_ids=topic_ids,
        columns=columns_of(batches),
    )


def batch(topic: int, partition: int, base: int, records: int, position: int) -> FlushBatch:
    """One of 100 bytes without a producer."""
    return FlushBatch(
        topic, partition, 3, base, records - 1, 0, -1, -1, -1, 1_000, position, 100, 70
    )


GOOD = [
    batch(0, 0, 10, 5, 0),
    batch(0, 0, 15, 1, 100),
    batch(0, 7, 0, 2, 200),
    batch(1, 7, 2, 3, 300),
]


UNTIMED = [one._replace(flushed_at_ms=0) for one in GOOD]


def stored_as(version: int, batches: list[FlushBatch]) -> bytes:
    """A footer as a release wrote it: before version 3 without the last column."""
    body = zstandard.ZstdDecompressor().decompress(encode(batches)[16:])
    return packed(body if version == 3 else body[: len(body) - 8 * len(batches)], version)


@st.composite
def objects(draw: st.DrawFn) -> tuple[tuple[UUID, ...], list[FlushBatch]]:
    """Topics and batches as `log.tail.lay_out` makes them."""
    topic_ids = tuple(sorted(draw(st.sets(st.uuids(), min_size=1, max_size=4))))
    places = draw(st.sets(st.tuples(st.integers(0, len(topic_ids) - 1), st.integers(0, 2**31 - 1))))
    batches, position = [], 0
    for topic, partition in sorted(places):
        offset = draw(st.integers(0, 2**62))
        for _ in range(draw(st.integers(1, 3))):
            records = draw(st.integers(1, 2**31))
            length = draw(st.integers(61, 1_000_000))
            int16, int32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
            int64 = st.integers(-(2**63), 2**63 - 1)
            batches.append(
                FlushBatch(
                    topic,
                    partition,
                    draw(int32),
                    offset,
                    records - 1,
                    draw(int16),
                    draw(int64),
                    draw(int16),
                    draw(int32),
                    draw(int64),
                    position,
                    length,
                    draw(st.integers(0, 2**63 - 1)),
                )
            )
            offset += records
            position += length
    return topic_ids, batches


def facts_of(batches: list[FlushBatch], *names: str) -> RestoreFacts:
    """What version 4 has of *batches*."""
    return RestoreFacts(
        names,
        array("q", [one.base_offset - 1 for one in batches]),
        array("q", [-1 for _ in batches]),
        2,
        11,
    )


# ── What is stored ──


@given(objects(), st.lists(st.text(max_size=250), min_size=4, max_size=4))
def test_what_restore_needs_comes_back_as_it_was(
    made: tuple[tuple[UUID, ...], list[FlushBatch]], names: list[str]
) -> None:
    """
    Version 4: where epochs and the log began, topics by name, and the place of a rewrite.
    """
    topic_ids, batches = made
    facts = facts_of(batches, *names[: len(topic_ids)])

    footer = decode_footer(encode(batches, topic_ids, facts))

    found = footer.facts
    assert found is not None
    assert batches == [footer.batch(i) for i in range(len(footer))]
    assert (facts.topic_names, facts.epoch_starts, facts.log_starts) == (
        found.topic_names,
        found.epoch_starts,
        found.log_starts,
    )
    assert (2, 11) == (found.level, found.index)


@given(st.data())
def test_a_cut_off_body_of_version_4_is_told(data: st.DataObject) -> None:
    """
    Also where only the names or the place of a rewrite are cut.
    """
    stored = encode(GOOD, facts=facts_of(GOOD, "clicks", "views"))
    body = zstandard.ZstdDecompressor().decompress(stored[16:])

    with pytest.raises(CorruptFlushObjectError):
        decode_footer(packed(body[: data.draw(st.integers(0, len(body) - 1))], 4))


@given(objects(), st.text(max_size=40), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_footer_comes_back_as_it_was(
    made: tuple[tuple[UUID, ...], list[FlushBatch]], session_id: str, seq: int, committed: int
) -> None:
    """
    Every number of every batch, the topics, the session and both sequence numbers.
    """
    topic_ids, batches = made
    data = encode_footer(
        session_id=session_id,
        seq=seq,
        committed_seq=committed,
        topic_ids=topic_ids,
        columns=columns_of(batches),
    )

    footer = decode_footer(data)

    assert (session_id, seq, committed) == (footer.session_id, footer.seq, footer.committed_seq)
    assert topic_ids == footer.topic_ids
    assert batches == [footer.batch(i) for i in range(len(footer))]


def test_the_stored_form_does_not_change() -> None:
    """
    Byte for byte what the module's docstring says: a footer of another release is read.
    """
    batches = [
        FlushBatch(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12),
        FlushBatch(0, 1, -2, 8, 0, -5, -6, -7, -8, -9, 11, 2**31 - 1, 2**63 - 1),
    ]
    body = b"".join(
        [
            struct.pack(">qq", 5, 8),
            b"\0\1s",
            struct.pack(">i", 2) + A.bytes + B.bytes,
            struct.pack(">i", 2),
            struct.pack(">2i2i2i", 0, 0, 1, 1, 2, -2),
            struct.pack(">2q2i2h", 3, 8, 4, 0, 5, -5),
            struct.pack(">2q2h2i", 6, -6, 7, -7, 8, -8),
            struct.pack(">2q2i2i", 9, -9, 0, 11, 11, 2**31 - 1),
            struct.pack(">2q", 12, 2**63 - 1),
        ]
    )

    data = encode(batches)

    packed = data[16:]
    assert struct.pack(">4sHHII", b"DLFF", 3, 0, crc32c.crc32c(packed), len(body)) == data[:16]
    assert body == zstandard.ZstdDecompressor().decompress(packed)


def test_a_stored_footer_is_read() -> None:
    """
    These bytes were written by the first release, and stand in buckets.  They do not say when their
    batches were flushed.
    """
    stored = bytes.fromhex(GOLDEN)

    footer = decode_footer(stored)

    assert ("s", 8, 5, (A, B)) == astuple(footer)[:4]
    assert UNTIMED == [footer.batch(i) for i in range(len(footer))]


GOLDEN = (
    "444c464600010000b1fc8be40000011b28b52ffd601b000503007403000005000800017300000002000a000b"
    "0000000400010007030a000f000201ff0003e8000064000000c80000012c64000000640000006412002f19ae"
    "000064c075c44f76302e57302e901820022b40bf5d66606b4086406e404a80ad056d"
)


@pytest.mark.parametrize("version", [2, 3])
def test_each_run_without_a_gap_is_a_slice_and_version_1_has_one(version: int) -> None:
    """
    A session that led a partition twice: others wrote what is between.  Version 1, of one flush,
    has no gap.
    """
    batches = [batch(0, 0, 10, 5, 0), batch(0, 0, 20, 2, 100), batch(0, 0, 22, 3, 200)]

    footer = decode_footer(stored_as(version, batches))

    assert [Slice(A, 0, 10, 15, 0, 1), Slice(A, 0, 20, 25, 1, 2)] == list(footer.slices())
    with pytest.raises(CorruptFlushObjectError, match="a gap in offsets before batch 1"):
        decode_footer(stored_as(1, batches))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_offsets_that_go_back_are_refused_where_gaps_are_not(version: int) -> None:
    """
    The same offsets twice in one object.
    """
    twice = [batch(0, 0, 10, 5, 0), batch(0, 0, 14, 2, 100)]

    with pytest.raises(CorruptFlushObjectError, match="batch 1 begins before its predecessor ends"):
        decode_footer(stored_as(version, twice))


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_are_read_and_do_not_know_when_a_batch_was_flushed(version: int) -> None:
    """
    All the rest is there.
    """
    footer = decode_footer(stored_as(version, GOOD))

    assert UNTIMED == [footer.batch(i) for i in range(len(footer))]


def test_an_object_without_batches_has_no_slices() -> None:
    """
    A rewrite may leave nothing; that is no damage.
    """
    footer = decode_footer(encode([], ()))

    assert (0, []) == (len(footer), list(footer.slices()))


# ── Slices ──


def test_slices_are_cut_where_topic_or_partition_changes() -> None:
    """
    Offsets half-open, batches by first and count; the same partition number of two topics is two.
    """
    expected = [
        Slice(A, 0, 10, 16, 0, 2),
        Slice(A, 7, 0, 2, 2, 1),
        Slice(B, 7, 2, 5, 3, 1),
    ]

    assert expected == list(decode_footer(encode(GOOD)).slices())


@given(objects())
def test_slices_cover_every_batch_once(made: tuple[tuple[UUID, ...], list[FlushBatch]]) -> None:
    """
    Batches of a slice are of its partition and join without a gap from its base to its end.
    """
    topic_ids, batches = made
    footer = decode_footer(encode(batches, topic_ids))

    at = 0
    for part in footer.slices():
        assert at == part.first
        offset = part.base
        for i in range(part.first, part.first + part.count):
            one = footer.batch(i)
            assert (part.topic_id, part.partition, offset) == (
                topic_ids[one.topic_index],
                one.partition,
                one.base_offset,
            )
            offset += one.last_offset_delta + 1
        assert part.end == offset
        at += part.count
    assert len(batches) == at


# ── What is refused ──


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_is_believed(bit: int) -> None:
    """
    Every byte matters but the two that are reserved; what is damaged raises that it is.
    """
    good = encode(GOOD)
    for at in set(range(len(good))) - {6, 7}:
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        with pytest.raises(CorruptFlushObjectError):
            decode_footer(bytes(bad))


def test_a_footer_that_is_cut_short_is_refused() -> None:
    """
    At every length, and with a byte too many.
    """
    good = encode(GOOD)
    for end in range(len(good)):
        with pytest.raises(CorruptFlushObjectError):
            decode_footer(good[:end])
    with pytest.raises(CorruptFlushObjectError):
        decode_footer(good + b"\0")


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    """
    Anything but a footer raises that it is none.
    """
    with pytest.raises(CorruptFlushObjectError):
        decode_footer(noise)


@given(
    st.integers(0, 400),
    st.binary(max_size=16),
    st.integers(0, 16),
)
def test_a_body_that_contradicts_itself_is_refused_whatever_its_checksum(
    at: int, inserted: bytes, removed: int
) -> None:
    """
    Behind a right CRC (a bug wrote it) the body is damaged anywhere: it raises, or what it says
    can be relied on: indexes in range, batches back to back, offsets in order.
    """
    body = bytearray(zstandard.ZstdDecompressor().decompress(encode(GOOD)[16:]))
    body[at : at + removed] = inserted

    try:
        footer = decode_footer(packed(bytes(body)))
    except CorruptFlushObjectError:
        return

    check(footer)


def packed(body: bytes, version: int = 3) -> bytes:
    """*body* as a footer with a right checksum."""
    data = zstandard.ZstdCompressor().compress(body)
    return struct.pack(">4sHHII", b"DLFF", version, 0, crc32c.crc32c(data), len(body)) + data


def check(footer: Footer) -> None:
    """What readers rely on."""
    position = 0
    for i in range(len(footer)):
        one = footer.batch(i)
        assert 0 <= one.topic_index < len(footer.topic_ids)
        assert (position, True) == (one.position, one.length > 0)
        assert one.base_offset >= 0
        assert one.last_offset_delta >= 0
        position += one.length
    slices = list(footer.slices())
    assert len(footer) == sum(part.count for part in slices)
    for one_slice, later in pairwise(slices):
        same = one_slice[:2] == later[:2]
        assert not same or one_slice.end < later.base


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b._replace(topic_index=2), id="a topic that is not there"),
        pytest.param(lambda b: b._replace(topic_index=-1), id="a topic below the first"),
        pytest.param(lambda b: b._replace(partition=-1), id="out of order"),
        pytest.param(lambda b: b._replace(base_offset=14), id="an overlap"),
        pytest.param(lambda b: b._replace(last_offset_delta=-1), id="no records"),
        pytest.param(lambda b: b._replace(position=99), id="bytes of the batch before"),
        pytest.param(lambda b: b._replace(position=101), id="bytes of nobody"),
        pytest.param(lambda b: b._replace(length=0), id="no bytes"),
        pytest.param(lambda b: b._replace(length=-100), id="negative bytes"),
        pytest.param(lambda b: b._replace(flushed_at_ms=-1), id="flushed before 1970"),
    ],
)
def test_a_batch_that_does_not_fit_its_neighbours_is_refused(
    damage: Callable[[FlushBatch], FlushBatch],
) -> None:
    """
    Taken apart one rule at a time, in the second of four batches.
    """
    bad = [GOOD[0], damage(GOOD[1]), *GOOD[2:]]

    with pytest.raises(CorruptFlushObjectError):
        decode_footer(encode(bad))


def test_a_footer_is_found_at_the_end_of_an_object() -> None:
    """
    Without the flush record that says where it starts; also where records hold the magic.
    """
    footer = encode(GOOD)
    whole = b"records DLFF records" + footer

    for tail in (whole, footer):
        found = find_footer(tail)
        assert found is not None
        assert astuple(decode_footer(footer)) == astuple(found)
    assert find_footer(footer[1:]) is None
    assert find_footer(b"a probe") is None


def test_another_version_is_refused_by_name() -> None:
    """
    The message says what this release reads and what to do.
    """
    newer = bytearray(encode(GOOD))
    newer[5] = 5

    with pytest.raises(
        CorruptFlushObjectError, match=r"version 5; this release reads 1 to 4: upgrade"
    ):
        decode_footer(bytes(newer))


def test_an_object_is_read_from_its_end_in_growing_parts() -> None:
    """
    The last read is of all of it.
    """
    assert [0] == list(footer_reads(16 * 1024))
    assert [1, 0] == list(footer_reads(16 * 1024 + 1))
    assert [(1024 - 16) * 1024, (1024 - 256) * 1024, 0] == list(footer_reads(1024 * 1024))
