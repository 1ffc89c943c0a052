"""Committed offsets are those of a plain dictionary, through pages, replay and expiry."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.groups.offsets import (
    PAGE_PARTITIONS,
    Committed,
    GroupOffsets,
    PageId,
    page_of,
    verdict,
)
from driftlog_agents.groups.storage_format import (
    COMPRESSED_BYTES,
    StoredGroup,
    decode_group,
    decode_member,
    decode_page,
    encode_group,
    encode_member,
    encode_page,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

TOPICS = (UUID(int=1), UUID(int=2))
HOUR_MS = 3_600_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commits = st.builds(
    Committed,
    offset=st.integers(-(2**63) + 1, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=texts,
    commit_ms=st.integers(0, 2**62),
    expire_ms=st.none() | st.integers(0, 2**62),
)
places = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 1000))
changes = st.dictionaries(places, st.none() | commits, max_size=20)


@given(st.lists(changes, max_size=6))
def test_offsets_are_what_was_stored_last(rounds: list[dict[TopicPartition, Committed]]) -> None:
    """
    Pages that are stored and read back hold exactly what a dictionary of all changes would.
    """
    expected: dict[TopicPartition, Committed] = {}
    store: dict[PageId, bytes] = {}
    offsets = GroupOffsets()
    for change in rounds:
        pages = offsets.pages(change)
        assert expected == dict(offsets.items()), "a decision changes nothing"
        for page_id, page in pages.items():
            if page:
                store[page_id] = encode_page(page, "n")
            else:
                del store[page_id]
        offsets.replay(pages)
        for tp, committed in change.items():
            if committed is None:
                expected.pop(tp, None)
            else:
                expected[tp] = committed
        restored = GroupOffsets()
        restored.replay({i: decode_page(data, i.page) for i, data in store.items()})
        assert expected == dict(offsets.items()) == dict(restored.items())
        assert all(expected.get(tp) == offsets.get(tp) for tp in change)
        assert len(expected) == len(offsets)
        assert {tp.topic_id for tp in expected} == offsets.topic_ids


def test_a_page_has_256_partitions_of_a_topic() -> None:
    """
    A page is a stored format: which partitions are in it is not to change.
    """
    places = [TopicPartition(TOPICS[0], n) for n in (0, 255, 256, 2**31 - 1)]

    assert [0, 0, 1, 8_388_607] == [page_of(tp).page for tp in places]


def test_forgetting_touches_only_what_is_there() -> None:
    """
    Of a topic, or of some partitions; what nobody has committed is no change.
    """
    offsets = GroupOffsets()
    one, other = TopicPartition(TOPICS[0], 1), TopicPartition(TOPICS[1], 1)
    offsets.replay(offsets.pages({one: Committed(offset=1), other: Committed(offset=2)}))

    assert {one: None} == offsets.forget([one, TopicPartition(TOPICS[0], 2)])
    assert {other: None} == offsets.forget_topic(TOPICS[1])


def test_offsets_expire_by_when_they_were_committed_or_what_the_client_said() -> None:
    """
    At the retention and not a millisecond before; a topic that is read keeps its own, whatever
    the client said.
    """
    offsets = GroupOffsets()
    places = [TopicPartition(TOPICS[0], n) for n in range(4)]
    read = TopicPartition(TOPICS[1], 0)
    old = Committed(offset=1, commit_ms=1_000)
    offsets.replay(
        offsets.pages(
            {
                places[0]: old,
                places[1]: replace(old, commit_ms=1_001),
                places[2]: replace(old, commit_ms=HOUR_MS, expire_ms=1_000 + HOUR_MS),
                places[3]: replace(old, expire_ms=2_000 + HOUR_MS),
                read: replace(old, expire_ms=1),
            }
        )
    )

    expired = offsets.expire(
        1_000 + HOUR_MS, HOUR_MS, lambda committed: committed.commit_ms, lambda t: t == TOPICS[1]
    )

    assert {places[0]: None, places[2]: None} == expired


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("x" * 10, ErrorCode.NONE),
        ("x" * 11, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("ü" * 10, ErrorCode.NONE),
        ("\N{GRINNING FACE}" * 5, ErrorCode.NONE),
        ("\N{GRINNING FACE}" * 6, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_measured_as_java_does(metadata: str, error: ErrorCode) -> None:
    """
    In UTF-16 units: what Kafka takes is taken here.
    """
    assert error is verdict(Committed(offset=1, metadata=metadata), 10)


# ── Stored ──


def test_values_are_those_of_format_version_1() -> None:
    """
    What is written today must be found tomorrow.
    """
    page = {
        1: Committed(offset=7, leader_epoch=3, metadata="ü", commit_ms=5),
        2: Committed(offset=8, expire_ms=9),
    }
    group = StoredGroup(session_id="5e55", kind="classic", body=b'{"version":1}')

    assert '{"v":1,"nonce":"n","offsets":{"1":[7,3,5,"ü"],"2":[8,-1,0,"",9]}}'.encode() == (
        encode_page(page, "n")
    )
    assert (
        b'{"v":1,"nonce":"n","session_id":"5e55","kind":"classic","group":{"version":1}}'
        == encode_group(group, "n")
    )
    assert b'{"v":1,"nonce":"n","member":{"a":[1]}}' == encode_member(b'{"a":[1]}', "n")


def test_what_is_large_is_compressed_and_comes_back() -> None:
    """
    More than 4 KiB is a zstd frame; what is up to that stays readable for people.
    """
    page = {n: Committed(offset=n, metadata="some metadata") for n in range(PAGE_PARTITIONS)}
    data = encode_page(page, "n")
    assert data[:4] == b"\x28\xb5\x2f\xfd"
    assert len(data) < COMPRESSED_BYTES
    body = b'{"x":"%b"}' % (b"y" * 100_000)

    assert page == decode_page(data, 0)
    assert body == decode_member(encode_member(body, "n"))
    group = StoredGroup(session_id="s", kind="consumer", body=body)
    assert group == decode_group(encode_group(group, "n"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\x28\xb5\x2f\xfdx",
        b'{"v":1,"nonce":"n"}',
        b'{"v":1,"nonce":"n","offsets":[]}',
        b'{"v":1,"nonce":"n","offsets":{},"more":1}',
        b'{"v":1,"nonce":"n","offsets":{"256":[1,-1,0,""]}}',
        b'{"v":1,"nonce":"n","offsets":{"01":[1,-1,0,""]}}',
        b'{"v":1,"nonce":"n","offsets":{"-1":[1,-1,0,""]}}',
        b'{"v":1,"nonce":"n","offsets":{"1":[1,-2,0,""]}}',
        b'{"v":1,"nonce":"n","offsets":{"1":[true,-1,0,""]}}',
        b'{"v":1,"nonce":"n","offsets":{"1":[1,-1,0]}}',
        b'{"v":1,"nonce":"n","offsets":{"1":[1,-1,0,"",2,3]}}',
        b'{"v":1,"nonce":"n","offsets":{"1":[1,-1,0,"\\ud800"]}}',
    ],
)
def test_what_no_encoder_writes_is_refused(data: bytes) -> None:
    """
    Damage is said, never taken for offsets.
    """
    with pytest.raises(CorruptError):
        decode_page(data, 0)
    with pytest.raises(CorruptError):
        decode_group(data)
    with pytest.raises(CorruptError):
        decode_member(data)


def test_a_newer_format_says_what_to_do() -> None:
    """
    An older agent beside a newer one refuses what it cannot read, and names the way out.
    """
    with pytest.raises(UnsupportedFormatError, match="upgrade"):
        decode_page(b'{"v":2}', 0)
