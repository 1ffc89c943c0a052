"""A buffer file reads back truly after a crash, and after an earlier use of the same file."""

import struct
from uuid import UUID

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.local.buffer_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    Entry,
    PassedOver,
    decode_file_header,
    encode_entry_header,
    encode_file_header,
    entries,
)
from driftlog_metadata.stores.errors import CorruptError

TOPIC = UUID(int=7)
SALTS = st.integers(0, 2**64 - 1)
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.uuids(),
        st.integers(0, 2**31 - 1),
        st.booleans(),
        st.binary(max_size=200).map(memoryview),
    ),
    max_size=8,
)


def encode(salt: int, written: list[Entry], number: int = 1) -> bytes:
    """A file as `BufferLog` writes it."""
    parts = [encode_file_header(salt, number)]
    for entry in written:
        size = len(entry.batch)
        parts.append(
            encode_entry_header(salt, entry.topic_id.bytes, entry.partition, size, entry.acks_one)
        )
        parts.append(bytes(entry.batch))
    return b"".join(parts)


def some(*values: bytes) -> list[Entry]:
    """Entries of one partition."""
    return [Entry(TOPIC, 3, False, memoryview(value)) for value in values]


# ── What is stored ──


def test_a_file_that_has_the_name_of_an_earlier_use_has_no_entries() -> None:
    """
    It was recycled, and its new name was not durable when the power was lost: so nothing was in it.
    """
    written = some(b"a", b"b")

    assert written == list(entries(encode(1, written, number=5), 5))
    assert [] == list(entries(encode(1, written, number=5), 1))


@given(SALTS, st.integers(0, 2**64 - 1), ENTRIES)
def test_entries_come_back_in_order(salt: int, number: int, written: list[Entry]) -> None:
    """
    Topic, partition, whether it was promised to acks=1, and the batch as it was.
    """
    data = encode(salt, written, number)

    assert (salt, number) == decode_file_header(data)
    assert written == list(entries(data))


def test_the_stored_form_does_not_change() -> None:
    """
    Byte for byte the module's docstring: another release reads the file.
    """
    head = b"DLBF" + struct.pack(">HHQQ", 1, 0, 0xA5, 9)
    file_header = head + struct.pack(">I", crc32c.crc32c(head)) + bytes(4)
    rest = struct.pack(">QIB3x16siI", 0xA5, 5, 1, TOPIC.bytes, 3, 0)
    entry_header = b"DLBE" + struct.pack(">I", crc32c.crc32c(rest)) + rest

    assert (32, 48) == (len(file_header), len(entry_header))
    assert (32, 48) == (FILE_HEADER_BYTES, ENTRY_HEADER_BYTES)
    assert file_header == encode_file_header(0xA5, 9)
    assert entry_header == encode_entry_header(0xA5, TOPIC.bytes, 3, 5, True)


# ── Torn ──


def test_a_torn_tail_ends_before_the_first_entry_that_is_not_whole() -> None:
    """
    At every byte where a crash may have cut the file.
    """
    written = some(b"first", b"", b"third" * 20)
    data = encode(1, written)
    ends = [len(encode(1, written[:n])) for n in range(4)]

    for cut in range(len(data) + 1):
        whole = sum(1 for end in ends[1:] if end <= cut)
        assert written[:whole] == list(entries(data[:cut]))


def test_pages_that_never_reached_the_disk_end_the_file() -> None:
    """
    A page of zeros anywhere (power was lost before the sync): what stands before it is read, and
    nothing behind it that its own header does not vouch for.
    """
    written = some(b"x" * 400, b"y" * 400, b"z" * 400)
    data = encode(1, written)
    ends = [len(encode(1, written[:n])) for n in range(4)]

    for at in range(0, len(data) - 64, 16):
        torn = data[:at] + bytes(64) + data[at + 64 :]
        found = list(entries(torn))
        before = sum(1 for end in ends[1:] if end <= at) if at >= FILE_HEADER_BYTES else 0
        assert written[:before] == found[:before]
        assert [len(e.batch) for e in found] == [400] * len(found)


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_entry_header_ends_the_file(bit: int) -> None:
    """
    Every one of its 48 bytes is covered: no wrong partition, no wrong length.
    """
    written = some(b"first", b"second")
    data = bytearray(encode(1, written))
    second = len(encode(1, written[:1]))
    for at in range(second, second + ENTRY_HEADER_BYTES):
        data[at] ^= 1 << bit
        assert written[:1] == list(entries(bytes(data)))
        data[at] ^= 1 << bit
    assert written == list(entries(bytes(data)))


def test_a_file_that_was_created_and_not_written_is_empty() -> None:
    """
    No bytes, a piece of a header, zeros, noise or a damaged header: nobody was promised anything.
    """
    header = encode_file_header(1, 1)
    damaged = bytearray(header)
    damaged[9] ^= 1

    for data in (b"", header[:31], bytes(100), b"\xff" * 100, bytes(damaged)):
        assert decode_file_header(data) is None
        assert [] == list(entries(data))


@given(st.binary(max_size=400))
def test_noise_behind_the_last_entry_is_not_read(noise: bytes) -> None:
    """
    Whatever the disk had there.
    """
    written = some(b"first", b"second")

    assert written == list(entries(encode(1, written) + noise))


# ── Used again ──


@given(ENTRIES, ENTRIES, st.integers(1, 2**64 - 1))
def test_entries_of_an_earlier_use_are_not_read(
    earlier: list[Entry], later: list[Entry], salt: int
) -> None:
    """
    The file is overwritten in place from its start: where the new use ends, old entries may
    stand, whole and well formed. The salt tells them apart.
    """
    old, new = encode(0, earlier), encode(salt, later)

    assert later == list(entries(new + old[len(new) :]))


def test_old_entries_are_not_read_at_any_alignment() -> None:
    """
    Entries of one size: the new use ends exactly where an old one begins, each time.
    """
    values = [bytes([n]) * 10 for n in range(20)]
    old = encode(1, some(*values))
    for count in range(21):
        written = some(*[value[::-1] for value in values[:count]])
        new = encode(2, written)
        assert written == list(entries(new + old[len(new) :]))


# ── Other versions ──


def test_a_file_of_another_version_is_refused_with_the_way_out() -> None:
    """
    Not read as empty: it may hold what was answered to acks=1.
    """
    head = b"DLBF" + struct.pack(">HHQQ", 2, 0, 1, 1)
    data = head + struct.pack(">I", crc32c.crc32c(head)) + bytes(4)

    for read in (lambda: decode_file_header(data), lambda: list(entries(data))):
        with pytest.raises(CorruptError, match=r"version 2; this release reads 1: .* SIGTERM"):
            read()


# ── Damaged ──


@pytest.mark.parametrize("bit", range(8))
def test_what_follows_a_damaged_header_is_read(bit: int) -> None:
    """
    One entry is lost and counted; those before and behind it are whole.
    """
    written = some(b"first" * 9, b"second" * 9, b"third" * 9, b"fourth" * 9)
    data = bytearray(encode(7, written))
    second, third = (len(encode(7, written[:n])) for n in (1, 2))
    for at in range(second, second + ENTRY_HEADER_BYTES):
        passed_over = PassedOver()
        data[at] ^= 1 << bit
        assert [written[0], *written[2:]] == list(entries(bytes(data), passed_over=passed_over))
        data[at] ^= 1 << bit
        passed_over.followed()
        assert (1, third - second) == (passed_over.entries, passed_over.size_bytes)


def test_what_follows_a_damaged_file_header_is_read() -> None:
    """
    Its salt stands in each entry.
    """
    written = some(b"first", b"second")
    data = bytearray(encode(7, written))
    data[9] ^= 1

    assert written == list(entries(bytes(data), 1))


def test_a_batch_that_looks_like_entries_is_none() -> None:
    """
    A client sends what was an entry of another file: behind damage it is not taken for one.
    """
    forged = encode(8, some(b"forged"))[FILE_HEADER_BYTES:]
    written = some(b"first", forged, b"third")
    data = bytearray(encode(7, written))
    data[len(encode(7, written[:1]))] ^= 1

    assert [written[0], written[2]] == list(entries(bytes(data)))
