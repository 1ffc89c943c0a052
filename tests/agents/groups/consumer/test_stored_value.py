"""A KIP-848 group that is read back from the store is the group that was stored."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.groups.consumer.state import (
    ClassicMember,
    ConsumerGroupMember,
    Head,
    MemberState,
    page_of,
)
from driftlog_agents.groups.consumer.stored_value import (
    GroupEncoder,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
    encode_target,
)
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.uuids() | st.sampled_from([UUID(int=1), UUID(int=2)])
PARTITION = st.tuples(IDS, st.integers(0, 300) | st.integers(0, 2**31 - 1))
EPOCH = st.integers(-(2**31), 2**31 - 1)
PARTITIONS = st.dictionaries(PARTITION, EPOCH, max_size=20)
MEMBERS = st.builds(
    ConsumerGroupMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
    topic_names=st.frozensets(TEXT, max_size=4),
    topic_regex=TEXT,
    server_assignor=st.none() | TEXT,
    epoch=st.integers(-2, 2**31 - 1),
    previous_epoch=st.integers(-1, 2**31 - 1),
    state=st.sampled_from(MemberState),
    assigned=PARTITIONS,
    pending=PARTITIONS,
    classic=st.none()
    | st.builds(
        ClassicMember,
        session_timeout_ms=EPOCH,
        protocols=st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
    ),
)
HEADS = st.builds(
    Head,
    epoch=EPOCH,
    assignment_epoch=EPOCH,
    metadata_hash=TEXT,
    target=st.dictionaries(TEXT, st.frozensets(PARTITION, max_size=30), max_size=5),
    regexes=st.dictionaries(TEXT, st.frozensets(TEXT, max_size=3), max_size=3),
    assigned_at_ms=st.none(),
)


@given(HEADS)
def test_a_group_is_read_as_it_was_written(head: Head) -> None:
    """
    But for when its target was computed: clocks of agents differ.
    """
    assert head == decode_head(encode_head(head))


@given(st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.member_id))
def test_members_are_read_as_they_were_written(members: list[ConsumerGroupMember]) -> None:
    """
    Sorted by their ids.
    """
    expected = sorted(members, key=lambda member: member.member_id)

    assert expected == decode_page(encode_page(members))


@given(st.lists(st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.member_id)))
def test_an_encoder_remembers_nothing_that_is_not_so_any_more(
    pages: list[list[ConsumerGroupMember]],
) -> None:
    """
    Pages and targets of one group after the other come to what they would come to alone.
    """
    encoder = GroupEncoder()
    for members in pages:
        target = {member.member_id: frozenset(member.assigned) for member in members}

        assert encode_page(members) == encoder.page(members)
        assert encode_target(target) == encoder.target(target)


def test_members_are_spread_over_32_pages() -> None:
    """
    By a hash that stays what it is: a stored format.
    """
    assert "members/03" == page_of("a")
    assert 32 == len({page_of(f"member-{i}") for i in range(1_000)})


def test_partitions_are_stored_as_ranges() -> None:
    """
    A member of a topic of 10,000 partitions is no larger for it.
    """
    topic = UUID(int=1)
    head = Head(target={"a": frozenset((topic, p) for p in range(10_000) if p != 7)})

    assert b'{"a":{"0":"0-6,8-9999"}}' in encode_head(head)


GOOD = encode_head(Head())
PAGE = encode_page([ConsumerGroupMember(member_id="a", assigned={(UUID(int=1), 0): 1})])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        GOOD[:-1],
        GOOD.replace(b"consumer", b"classic"),
        GOOD.replace(b'"epoch":1', b'"epoch":true'),
        GOOD.replace(b'"target":{}', b'"target":{"a":{"0":"0"}}'),
        GOOD.replace(b'"regexes":{}', b'"regexes":{"a":[1]}'),
        GOOD.replace(b'"metadata_hash":""', b'"metadata_hash":1'),
    ],
)
def test_what_is_no_group_is_corrupt(data: bytes) -> None:
    """
    Whatever it is.
    """
    with pytest.raises(CorruptError):
        decode_head(data)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        PAGE[:-2],
        PAGE.replace(b'"stable"', b'"wild"'),
        PAGE.replace(b'"0"', b'"0-"'),
        PAGE.replace(b'"0"', b'"x"'),
        PAGE.replace(b'"0"', b'"0-2000000000"'),
        PAGE.replace(b"00000000-", b"0000000-"),
        PAGE.replace(b'"member_id":"a",', b""),
        PAGE.replace(b'"client_id":""', b'"client_id":null'),
    ],
)
def test_what_is_no_page_is_corrupt(data: bytes) -> None:
    """
    Whatever it is.
    """
    with pytest.raises(CorruptError):
        decode_page(data)


def test_a_newer_format_is_not_taken_for_damage() -> None:
    """
    The agent is to be upgraded.
    """
    with pytest.raises(UnsupportedFormatError):
        decode_head(GOOD.replace(b'"version":1', b'"version":2'))
    with pytest.raises(UnsupportedFormatError):
        decode_page(PAGE.replace(b'"version":1', b'"version":2'))
