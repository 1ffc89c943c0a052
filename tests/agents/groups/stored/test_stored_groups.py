"""A takeover of groups reads more at once than the agent has memory for, or leaves a group out."""

from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import (
    CONSUMER,
    StoredGroup,
    decode_group,
    encode_group,
    encode_member,
    encode_page,
)
from driftlog_agents.groups.stored import stored_groups
from driftlog_agents.groups.stored.stored_groups import (
    LISTED_AT_ONCE,
    GroupListing,
    Listed,
    claim_of,
    decode_values,
    in_parts,
    readable,
    reading,
)
from driftlog_metadata.schema.keys import (
    GROUPS_PREFIX,
    GroupKey,
    group_key,
    group_member_key,
    group_offsets_key,
    parse_group_key,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError
from driftlog_metadata.stores.store import KeyValue

TOPIC = UUID(int=5)
STORED = StoredGroup(session_id="old", kind=CONSUMER, body=b'{"v":1}')


def kv(key: str, value: bytes = b"", revision: int = 7) -> KeyValue:
    return KeyValue(key, value, revision, revision)


def one(name: str, size: int) -> Listed:
    return Listed(group_id=name, key_bytes=size, members=0, pages=0)


def listing(keys: Iterable[str]) -> list[Listed]:
    """The groups of *keys*."""
    found = GroupListing()
    for key in keys:
        found.add(key)
    return list(found.groups())


@given(st.lists(st.integers(0, 60), max_size=150), st.integers(1, 100))
@example([0] * (LISTED_AT_ONCE + 1), 1)
def test_parts_have_every_group_once_and_no_more_than_fits(sizes: list[int], most: int) -> None:
    """
    In their order; a group that is larger alone is a part of its own.
    """
    some = [one(f"g{n}", size) for n, size in enumerate(sizes)]

    parts = in_parts(some, most, lambda listed: listed.key_bytes)

    assert some == [listed for part in parts for listed in part]
    for part in parts:
        assert sum(listed.key_bytes for listed in part) <= most or len(part) == 1
        assert 1 <= len(part) <= LISTED_AT_ONCE


def test_a_listing_counts_the_keys_of_each_group() -> None:
    """
    Keys without their group's own key are of no group, and unrecognised keys neither.
    """
    keys = [
        group_key("a"),
        group_member_key("a", "m"),
        group_offsets_key("a", TOPIC, 0),
        group_offsets_key("a", TOPIC, 1),
        group_key("b"),
        group_member_key("deleted", "m"),
        f"{GROUPS_PREFIX}a/strange",
        f"{GROUPS_PREFIX}a/",
        f"{GROUPS_PREFIX}%zz",
    ]

    found = listing(keys)

    assert [("a", 1, 2), ("b", 0, 0)] == [(g.group_id, g.members, g.pages) for g in found]
    assert 3 * len(group_key("a")) == found[0].key_bytes


def test_a_listing_parses_the_id_of_a_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whatever it has: 20,000 groups of 10 topics took 1.9 s.
    """
    parsed: list[str] = []

    def parse(key: str) -> GroupKey:
        parsed.append(key)
        return parse_group_key(key)

    monkeypatch.setattr(stored_groups, "parse_group_key", parse)

    found = listing([group_key("g"), *(group_offsets_key("g", TOPIC, n) for n in range(20))])

    assert [20] == [group.pages for group in found]
    assert [group_key("g")] == parsed


def test_a_claim_changes_the_session_and_nothing_else() -> None:
    """
    A group of a kind that only a newer driftlog can read is not claimed.
    """
    key = group_key("g")
    claim = claim_of(kv(key, encode_group(STORED, "1")), "mine", "2")
    newer = encode_group(StoredGroup(session_id="old", kind="share", body=b"{}"), "1")

    assert StoredGroup(session_id="mine", kind=CONSUMER, body=STORED.body) == claim.group
    assert claim.group == decode_group(claim.value)
    with pytest.raises(UnsupportedFormatError, match="kind 'share'"):
        claim_of(kv(key, newer), "mine", "2")


def test_the_values_of_a_group_are_its_members_and_its_offsets() -> None:
    """
    With the revision of each key, which its next write compares.
    """
    member, page = group_member_key("g", "m"), group_offsets_key("g", TOPIC, 1)
    committed = Committed(offset=9, leader_epoch=1, metadata="", commit_ms=3)
    kvs = [
        kv(member, encode_member(b'{"v":2}', "1"), 8),
        kv(page, encode_page({300: committed}, "1"), 9),
        kv(f"{GROUPS_PREFIX}g/strange", b"?"),
    ]

    values = decode_values(STORED, kvs)

    assert {"": STORED.body, "members/m": b'{"v":2}'} == values.bodies
    assert committed == values.offsets.get(TopicPartition(TOPIC, 300))
    assert {member: 8, page: 9} == values.revisions


def test_a_group_that_cannot_be_read_keeps_no_other_one_from_being_read() -> None:
    """
    Whether its values are damaged or show a bug.
    """

    def damaged() -> int:
        raise CorruptError("damaged")

    def bug() -> int:
        with reading("key"):
            raise KeyError("bug")

    assert {"c": 3} == readable({"a": damaged, "b": bug, "c": lambda: 3})
