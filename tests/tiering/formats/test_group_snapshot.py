"""A snapshot of groups is not read as it was written, or damage is read as groups."""

import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_tiering.formats.group_snapshot import (
    PART_BYTES,
    CorruptGroupSnapshotError,
    GroupSnapshot,
    decode_group_snapshot,
    encode_group_snapshot,
    encode_in_parts,
)

SNAPSHOT = GroupSnapshot("a", 4_711, {"billing": b"\x00{", "billing/offsets/7/0": b""})
STORED = (
    b'{"format":"driftlog.groups","format_version":1,"cluster_id":"a","revision":4711,'
    b'"keys":{"billing":"AHs=","billing/offsets/7/0":""},"crc32":"'
)

SNAPSHOT_WITH_CONFIGS = GroupSnapshot("a", 4_711, {}, {"brokers": b"\x00{"})
STORED_WITH_CONFIGS = (
    b'{"format":"driftlog.groups","format_version":1,"cluster_id":"a","revision":4711,'
    b'"keys":{},"configs":{"brokers":"AHs="},"crc32":"'
)

snapshots = st.builds(
    GroupSnapshot,
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(0, 2**63 - 1),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.binary()),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.binary()),
)


def test_a_snapshot_is_stored_as_these_bytes() -> None:
    """
    A stored format: a change needs a new version.
    """
    assert encode_group_snapshot(SNAPSHOT).startswith(STORED)
    assert encode_group_snapshot(SNAPSHOT_WITH_CONFIGS).startswith(STORED_WITH_CONFIGS)


@given(snapshots)
def test_snapshots_decode_to_what_was_encoded(snapshot: GroupSnapshot) -> None:
    """
    Whatever the names of groups and the bytes of their values.
    """
    assert snapshot == decode_group_snapshot(encode_group_snapshot(snapshot))


@given(st.data())
def test_damage_is_told(data: st.DataObject) -> None:
    """
    Any changed byte, and any cut.
    """
    body = bytearray(encode_group_snapshot(SNAPSHOT))
    at = data.draw(st.integers(0, len(body) - 3))
    if data.draw(st.booleans()):
        body[at] ^= data.draw(st.integers(1, 255))
    else:
        del body[at:]

    with pytest.raises(CorruptGroupSnapshotError):
        decode_group_snapshot(body)


def test_parts_are_short_and_take_little_more_memory_than_the_values() -> None:
    """
    No call works for seconds, during which Python runs no other thread, and nothing is held several
    times: the values of all groups of a cluster may be half a gigabyte.
    """
    value_bytes, count = 50_000, 320
    tracemalloc.start()
    kvs = [(f"g{n}", Random(n).randbytes(value_bytes)) for n in range(count)]
    expected = GroupSnapshot("a", 1, dict(kvs[:3]))

    def taken() -> Iterator[tuple[str, bytes]]:
        kvs.reverse()
        while kvs:
            yield kvs.pop()

    first = list(encode_in_parts("a", 1, kvs[:3], ()))
    tracemalloc.reset_peak()
    parts = list(encode_in_parts("a", 1, taken(), ()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert expected == decode_group_snapshot(b"".join(first))
    assert count == len(decode_group_snapshot(b"".join(parts)).values)
    assert max(map(len, parts)) < PART_BYTES + 2 * value_bytes
    assert peak < 1.6 * count * value_bytes
