"""Keys of the keyspace never change, read back exactly, and no string reaches another one's key."""

import re
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema import keys
from driftlog_metadata.schema.model import ConfigsOwner, TopicPartition

TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
TP = TopicPartition(TOPIC_ID, 7)

GOLDEN = [
    (keys.node_id_key(3), "/driftlog/v1/node_ids/3"),
    (keys.agent_key(3), "/driftlog/v1/agents/3"),
    (keys.session_key("5e55"), "/driftlog/v1/sessions/5e55"),
    (keys.head_key("5e55"), "/driftlog/v1/heads/5e55"),
    (keys.flush_key("5e55", 41), "/driftlog/v1/flushes/5e55/00000000000000000041"),
    (keys.flush_key("5e55", 41, 1, 12), "/driftlog/v1/flushes/5e55/00000000000000000041.1.12"),
    (keys.topic_key("clicks.eu-1_x"), "/driftlog/v1/topics/clicks.eu-1_x"),
    (keys.topic_key(".."), "/driftlog/v1/topics/.."),
    (keys.topic_key("a/b %ü"), "/driftlog/v1/topics/a%2Fb%20%25%C3%BC"),
    (keys.deleted_key(TOPIC_ID), f"/driftlog/v1/deleted/{TOPIC_ID}"),
    (keys.import_key(TOPIC_ID), f"/driftlog/v1/imports/{TOPIC_ID}"),
    (keys.configs_key(ConfigsOwner()), "/driftlog/v1/configs/brokers"),
    (keys.configs_key(ConfigsOwner(node_id=3)), "/driftlog/v1/configs/brokers/3"),
    (keys.configs_key(ConfigsOwner(group_id="a/b")), "/driftlog/v1/configs/groups/a%2Fb"),
    (keys.leader_key(TP), f"/driftlog/v1/leaders/{TOPIC_ID}/7"),
    (keys.partition_key(TP), f"/driftlog/v1/partitions/{TOPIC_ID}/7"),
    (keys.group_key("billing/eu"), "/driftlog/v1/groups/billing%2Feu"),
    (keys.group_key(""), "/driftlog/v1/groups/%"),
    (keys.group_member_key("billing", "c-1 a"), "/driftlog/v1/groups/billing/members/c-1%20a"),
    (
        keys.group_offsets_key("billing", TOPIC_ID, 3),
        f"/driftlog/v1/groups/billing/offsets/{TOPIC_ID}/3",
    ),
    (keys.release_key("5e55"), "/driftlog/v1/releases/5e55"),
    (keys.secret_key("5e55"), "/driftlog/v1/secrets/5e55"),
    (keys.CLUSTER_KEY, "/driftlog/v1/cluster"),
    (keys.PRODUCER_IDS_KEY, "/driftlog/v1/producer_ids"),
]

PARSERS: list[Callable[[str], object]] = [
    keys.parse_node_id_key,
    keys.parse_agent_key,
    keys.parse_session_key,
    keys.parse_head_key,
    keys.parse_flush_key,
    keys.parse_topic_key,
    keys.parse_deleted_key,
    keys.parse_import_key,
    keys.parse_configs_key,
    keys.parse_leader_key,
    keys.parse_partition_key,
    keys.parse_group_key,
]


def group_key(key: keys.GroupKey) -> str:
    """What `parse_group_key` inverts."""
    if key.member_id is not None:
        return keys.group_member_key(key.group_id, key.member_id)
    if key.topic_id is not None:
        return keys.group_offsets_key(key.group_id, key.topic_id, key.page)
    return keys.group_key(key.group_id)


def escaped(name: str) -> str:
    """*name* as it stands in a key: the definition, byte by byte."""
    return re.sub(rb"[^A-Za-z0-9._~-]", lambda m: b"%%%02X" % m[0][0], name.encode()).decode()


int32s = st.integers(0, 2**31 - 1)
strings = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
partitions = st.builds(TopicPartition, st.uuids(), int32s)
group_ids = st.text(st.characters(exclude_categories=["Cs"]))
group_keys = st.one_of(
    group_ids.map(keys.GroupKey),
    st.tuples(group_ids, strings).map(lambda parts: keys.GroupKey(*parts)),
    st.tuples(group_ids, st.none(), st.uuids(), int32s).map(lambda parts: keys.GroupKey(*parts)),
)
owners = st.one_of(
    st.just(ConfigsOwner()),
    int32s.map(lambda node_id: ConfigsOwner(node_id=node_id)),
    strings.map(lambda group_id: ConfigsOwner(group_id=group_id)),
)
seqs = st.integers(0, 2**63 - 1)
flushes = st.tuples(strings, seqs, st.just(0), st.just(0))
consolidated = st.tuples(strings, seqs, st.integers(1, 2**31 - 1), int32s)


@pytest.mark.parametrize(("key", "golden"), GOLDEN)
def test_keys_are_those_of_format_version_1(key: str, golden: str) -> None:
    """
    A key format is a stored format: what is written today must be found tomorrow.
    """
    assert golden == key


@pytest.mark.parametrize(
    ("write", "parse", "values"),
    [
        (keys.node_id_key, keys.parse_node_id_key, int32s),
        (keys.agent_key, keys.parse_agent_key, int32s),
        (keys.session_key, keys.parse_session_key, strings),
        (keys.head_key, keys.parse_head_key, strings),
        (lambda value: keys.flush_key(*value), keys.parse_flush_key, flushes),
        (lambda value: keys.flush_key(*value), keys.parse_flush_key, consolidated),
        (keys.topic_key, keys.parse_topic_key, strings),
        (keys.deleted_key, keys.parse_deleted_key, st.uuids()),
        (keys.import_key, keys.parse_import_key, st.uuids()),
        (keys.configs_key, keys.parse_configs_key, owners),
        (keys.leader_key, keys.parse_leader_key, partitions),
        (keys.partition_key, keys.parse_partition_key, partitions),
        (group_key, keys.parse_group_key, group_keys),
    ],
)
@given(data=st.data())
def test_parsers_invert_their_functions(
    write: Callable[[Any], str],
    parse: Callable[[str], object],
    values: st.SearchStrategy[Any],
    data: st.DataObject,
) -> None:
    """
    Every value comes back from its key, whatever strings users choose.
    """
    value = data.draw(values)

    assert value == parse(write(value))


@given(st.one_of(strings, st.text("aé %=_\r\n\x00\x7f\x80", min_size=1)))
def test_all_bytes_but_unreserved_ones_are_escaped(name: str) -> None:
    """
    A key has two digits for each byte of UTF-8 that is not unreserved, and is read back.
    """
    key = keys.topic_key(name)

    assert (f"/driftlog/v1/topics/{escaped(name)}", name) == (key, keys.parse_topic_key(key))


@given(st.text("%=_.-0123456789abcdefABCDEFg\r\n \té", min_size=1))
def test_no_other_spelling_of_a_name_is_accepted(text: str) -> None:
    """
    What is not percent-encoded, in upper case and as little as can be, is no key.
    """
    decoded = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes((int(m[1], 16),)), text.encode())
    name = decoded.decode(errors="replace")
    try:
        found = keys.parse_topic_key(f"/driftlog/v1/topics/{text}")
    except ValueError:
        found = None

    assert (name if escaped(name) == text else None) == found


def test_a_long_name_takes_no_call_for_each_byte() -> None:
    """
    A client names hundreds of groups of 32,767 bytes in a request: their keys hold nobody up.
    """
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    name = "é" * 16_000
    sys.setprofile(count)
    try:
        there = keys.parse_topic_key(keys.topic_key(name))
    finally:
        sys.setprofile(None)

    assert name == there
    assert calls < 10


@given(strings, strings, st.integers(0, 2**63 - 1))
def test_no_string_reaches_under_another_ones_prefix(one: str, other: str, seq: int) -> None:
    """
    A session's flush prefix covers its own records and nobody else's.
    """
    covered = keys.flush_key(other, seq).startswith(keys.flushes_prefix(one))

    assert (one == other) == covered


@given(group_ids, group_keys)
def test_a_groups_prefix_covers_what_is_its_own(one: str, key: keys.GroupKey) -> None:
    """
    Deleting a group leaves every other group alone, whatever they are called.
    """
    part = key.member_id is not None or key.topic_id is not None

    covered = group_key(key).startswith(keys.group_prefix(one))

    assert (one == key.group_id and part) == covered


@given(partitions, st.uuids())
def test_a_topics_prefix_covers_its_partitions_only(tp: TopicPartition, other: UUID) -> None:
    """
    Partition 1's key is a prefix of partition 10's; the topic's prefix is not confused by it.
    """
    assert keys.leader_key(tp).startswith(keys.leaders_prefix(tp.topic_id))
    assert keys.partition_key(tp).startswith(keys.partitions_prefix(tp.topic_id))
    assert (other == tp.topic_id) == keys.leader_key(tp).startswith(keys.leaders_prefix(other))


@given(st.lists(st.integers(0, 2**63 - 1), unique=True))
def test_flush_keys_sort_as_their_sequences(seqs: list[int]) -> None:
    """
    Reading a session's prefix yields its flushes in commit order.
    """
    by_key = sorted(keys.flush_key("s", seq) for seq in seqs)

    assert sorted(seqs) == [keys.parse_flush_key(key).seq for key in by_key]


@given(st.sets(st.tuples(seqs, st.integers(1, 9)), min_size=1))
def test_what_replaces_flushes_stands_where_the_last_of_them_stood(
    places: set[tuple[int, int]],
) -> None:
    """
    Behind every flush up to it, and before every later one, so that key order stays commit order.
    """
    by_key = sorted(keys.flush_key("s", *place) for place in places)

    assert sorted(places) == [keys.parse_flush_key(key)[1:3] for key in by_key]


@pytest.mark.parametrize("place", [(-1,), (2**63,), (1, 0, 1), (1, -1, 0), (1, 1, -1)])
def test_a_flush_that_cannot_be_has_no_key(place: tuple[int, ...]) -> None:
    """
    A sequence over int64, and an index of what replaces nothing.
    """
    with pytest.raises(ValueError, match=r"not a|no index"):
        keys.flush_key("s", *place)


@given(st.sampled_from(GOLDEN), st.data())
def test_parsers_accept_exactly_what_their_functions_write(
    golden: tuple[str, str], data: st.DataObject
) -> None:
    """
    A key changed anywhere is refused with ValueError, or it is the key of another value.
    """
    key = golden[1]
    at = data.draw(st.integers(0, len(key)))
    cut = data.draw(st.integers(0, 2))
    changed = key[:at] + data.draw(st.text("0aA/%.-C +٣", max_size=3)) + key[at + cut :]
    writers: list[Callable[[Any], str]] = [
        keys.node_id_key,
        keys.agent_key,
        keys.session_key,
        keys.head_key,
        lambda value: keys.flush_key(*value),
        keys.topic_key,
        keys.deleted_key,
        keys.import_key,
        keys.configs_key,
        keys.leader_key,
        keys.partition_key,
        group_key,
    ]

    for parse, write in zip(PARSERS, writers, strict=True):
        try:
            value = parse(changed)
        except ValueError:
            continue
        assert changed == write(value)


@pytest.mark.parametrize(
    ("parse", "key"),
    [
        (keys.parse_group_key, "/driftlog/v1/groups/"),
        (keys.parse_group_key, "/driftlog/v1/groups/g/"),
        (keys.parse_group_key, "/driftlog/v1/groups/g/members/"),
        (keys.parse_group_key, "/driftlog/v1/groups/g/members/a/b"),
        (keys.parse_group_key, f"/driftlog/v1/groups/g/offsets/{TOPIC_ID}"),
        (keys.parse_group_key, f"/driftlog/v1/groups/g/offsets/{TOPIC_ID}/00"),
        (keys.parse_topic_key, "/driftlog/v1/topics/"),
        (keys.parse_topic_key, "/driftlog/v1/topics/a/b"),
        (keys.parse_topic_key, "/driftlog/v1/topics/a%2fb"),
        (keys.parse_topic_key, "/driftlog/v1/topics/%61"),
        (keys.parse_topic_key, "/driftlog/v1/topics/%FF"),
        (keys.parse_topic_key, "/driftlog/v1/topics/%"),
        (keys.parse_topic_key, "/driftlog/v2/topics/a"),
        (keys.parse_topic_key, "x/driftlog/v1/topics/a"),
        (keys.parse_agent_key, "/driftlog/v1/agents/03"),
        (keys.parse_agent_key, "/driftlog/v1/agents/-1"),
        (keys.parse_agent_key, "/driftlog/v1/agents/2147483648"),
        (keys.parse_agent_key, "/driftlog/v1/agents/٣"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/41"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.1"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.0.0"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.0.1"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.01.0"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.1.0.0"),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/00000000000000000041.1."),
        (keys.parse_flush_key, "/driftlog/v1/flushes/s/99999999999999999999"),
        (keys.parse_leader_key, f"/driftlog/v1/leaders/{TOPIC_ID}"),
        (keys.parse_leader_key, f"/driftlog/v1/leaders/{TOPIC_ID}/"),
        (keys.parse_leader_key, f"/driftlog/v1/leaders/{TOPIC_ID.hex}/7"),
        (keys.parse_deleted_key, f"/driftlog/v1/deleted/{str(TOPIC_ID).upper()}"),
    ],
)
def test_foreign_keys_are_refused(parse: Callable[[str], object], key: str) -> None:
    """
    What no function of this version writes raises ValueError.
    """
    with pytest.raises(ValueError, match=r"."):
        parse(key)


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_strings_without_a_key_are_refused(name: str) -> None:
    """
    The empty string would be its own prefix; a lone surrogate has no UTF-8.
    """
    with pytest.raises(ValueError, match=r"."):
        keys.topic_key(name)


def test_numbers_out_of_range_are_refused() -> None:
    """
    A key that its parser would refuse is never written.
    """
    writes: list[Callable[[], str]] = [
        lambda: keys.agent_key(-1),
        lambda: keys.agent_key(2**31),
        lambda: keys.partition_key(TopicPartition(TOPIC_ID, -1)),
        lambda: keys.flush_key("s", -1),
        lambda: keys.flush_key("s", 2**63),
    ]
    for write in writes:
        with pytest.raises(ValueError, match=r"."):
            write()
