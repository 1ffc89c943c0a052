"""A classic group tells truly which offsets are in use, which expire, and whether it can go."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import ClassicGroupState, OffsetExpiry
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import (
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
)
from driftlog_agents.groups.classic.stored_value import (
    UNTOLD,
    ClassicValue,
    claimed_value,
    decode_value,
    encode_value,
)
from driftlog_agents.groups.classic.subscription import all_subscribed_topics, subscribed_topics
from driftlog_agents.groups.effects import Answer, Effect, Persist
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

SETTINGS = ClassicSettings(initial_rebalance_delay_ms=0, max_pending_members=3)
UNIX_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    return encode_subscription(1, ConsumerProtocolSubscription(topics=list(topics)))


def join(protocol_type: str, metadata: bytes, member_id: str = "", version: int = 0) -> JoinRequest:
    return JoinRequest(
        version=version,
        client_id="c",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type=protocol_type,
        protocols=(Protocol("p", metadata),),
    )


def new_group() -> ClassicGroup:
    ids = iter(range(100))
    return ClassicGroup(
        "g", SETTINGS, lambda prefix: f"{prefix}-{next(ids)}", 0, unix_offset_ms=UNIX_MS
    )


def stable(protocol_type: str = "consumer", metadata: bytes = b"") -> ClassicGroup:
    """One member, ``c-0``, and what it was given is stored."""
    group = new_group()
    group.join(1, join(protocol_type, metadata), 0)
    group.tick(0)
    store(group, group.sync(2, SyncRequest(version=0, generation=1, member_id="c-0"), 0), 0)
    assert group.state is ClassicGroupState.STABLE
    return group


def topics_of(group: ClassicGroup) -> frozenset[str] | None:
    said = group.subscriptions
    return None if said is None else all_subscribed_topics(said)


def store(group: ClassicGroup, effects: list[Effect], now_ms: int) -> None:
    for effect in effects:
        if isinstance(effect, Persist):
            group.persisted(effect.token, now_ms)


def empty(group: ClassicGroup, now_ms: int) -> ClassicGroup:
    request = LeaveRequest(members=(LeavingMember(member_id="c-0"),))
    store(group, group.leave(3, request, now_ms), now_ms)
    assert group.is_empty
    return group


def test_offsets_of_topics_that_members_subscribe_to_are_in_use() -> None:
    group = stable(metadata=subscription("a", "b"))

    assert topics_of(group) == frozenset(("a", "b"))
    assert group.is_subscribed_to("a", topics_of(group))
    assert not group.is_subscribed_to("c", topics_of(group))
    assert group.refuse_offset_delete() is ErrorCode.NONE
    assert group.offsets_expire(topics_of(group)) is OffsetExpiry.FROM_COMMIT


def test_where_nobody_can_read_the_subscription_all_topics_are_in_use() -> None:
    group = stable(metadata=b"not a subscription")

    assert topics_of(group) is None
    assert group.is_subscribed_to("anything", topics_of(group))
    assert group.offsets_expire(topics_of(group)) is OffsetExpiry.NEVER


def test_a_group_that_is_no_consumer_keeps_its_offsets_while_it_lives() -> None:
    group = stable("connect", subscription("a"))

    assert not group.is_subscribed_to("a", topics_of(group))
    assert group.refuse_offset_delete() is ErrorCode.NON_EMPTY_GROUP
    assert group.offsets_expire(topics_of(group)) is OffsetExpiry.NEVER


def test_offsets_of_an_empty_group_expire_from_when_it_became_empty() -> None:
    group = empty(stable(metadata=subscription("a")), now_ms=5_000)

    assert group.offsets_expire(topics_of(group)) is OffsetExpiry.FROM_EMPTY
    assert group.empty_since_ms == UNIX_MS + 5_000
    assert not group.is_subscribed_to("a", topics_of(group))
    assert group.refuse_offset_delete() is ErrorCode.NONE
    again = ClassicGroup.restore("g", group.value, SETTINGS, str, 0)
    assert again.empty_since_ms == UNIX_MS + 5_000
    assert again.offsets_expire(topics_of(again)) is OffsetExpiry.FROM_EMPTY


def test_offsets_of_a_group_that_never_had_members_expire_from_each_commit() -> None:
    group = new_group()

    assert group.offsets_expire(topics_of(group)) is OffsetExpiry.FROM_COMMIT
    assert group.validate_commit("", None, -1, 0) is ErrorCode.NONE


def test_only_an_empty_group_is_deleted_and_then_it_is_dead() -> None:
    group = stable()
    assert group.begin_delete() is ErrorCode.NON_EMPTY_GROUP
    empty(group, 0)

    assert group.begin_delete() is ErrorCode.NONE
    assert group.validate_commit("", None, -1, 0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.begin_delete() is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_transaction_commits_whatever_the_group_is_at_but_only_for_its_members() -> None:
    """Source: ClassicGroup#validateOffsetCommit, isTransactional."""
    group = stable()
    group.join(4, join("consumer", b"", "c-0"), 0)  # the leader wants to assign anew
    assert group.state is ClassicGroupState.COMPLETING_REBALANCE

    for transactional, expected in ((True, ErrorCode.NONE), (False, 27)):
        assert group.validate_commit("c-0", None, 2, 0, transactional=transactional) == expected
    assert group.validate_commit("", None, -1, 0, transactional=True) is ErrorCode.NONE
    unknown = group.validate_commit("c-9", None, 2, 0, transactional=True)
    assert unknown is ErrorCode.UNKNOWN_MEMBER_ID
    old = group.validate_commit("c-0", None, 1, 0, transactional=True)
    assert old is ErrorCode.ILLEGAL_GENERATION


def test_ids_that_nobody_uses_are_bounded() -> None:
    group = new_group()

    answers = [group.join(i, join("consumer", b"", version=4), 0) for i in range(5)]

    errors = [_error(effect) for (effect,) in answers]
    required, full = ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED
    assert errors == [required] * 3 + [full] * 2
    group.tick(10_000)
    (again,) = group.join(9, join("consumer", b"", version=4), 10_000)
    assert again == Answer(9, JoinResponse(error=required, member_id="c-3"))


def _error(effect: Effect) -> ErrorCode:
    assert isinstance(effect, Answer)
    assert isinstance(effect.response, JoinResponse)
    return effect.response.error


# ── Subscriptions ──


@given(topics=st.lists(st.text(max_size=20), max_size=5), version=st.integers(0, 3))
def test_a_subscription_of_any_version_says_its_topics(topics: list[str], version: int) -> None:
    said = ConsumerProtocolSubscription(
        topics=topics,
        user_data=b"?",
        owned_partitions=[TopicPartition(topic="x", partitions=[1])],
        rack_id="r",
    )

    assert subscribed_topics(encode_subscription(version, said)) == frozenset(topics)


def test_a_version_1_that_ends_like_a_version_0_is_understood() -> None:
    """Clients have written that; Kafka reads no more than version 0 of any version."""
    version_0 = encode_subscription(0, ConsumerProtocolSubscription(topics=["t"]))

    assert subscribed_topics(b"\0\1" + version_0[2:]) == frozenset("t")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_subscription_or_none(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)

    assert topics is None or all(topic.encode() in metadata for topic in topics)


@pytest.mark.parametrize("cut", range(len(subscription("topic")) - 4))
def test_a_subscription_that_is_cut_off_is_none(cut: int) -> None:
    assert subscribed_topics(subscription("topic")[:cut]) is None


def test_a_count_of_a_thousand_million_topics_costs_nothing() -> None:
    assert subscribed_topics(struct.pack(">hi", 0, 1_000_000_000)) is None


# ── Values ──

_names = st.text(max_size=8)
_members = st.builds(
    ClassicGroupMember,
    member_id=_names,
    instance_id=st.none() | _names,
    client_id=_names,
    client_host=_names,
    rebalance_timeout_ms=st.integers(-(2**31), 2**31 - 1),
    session_timeout_ms=st.integers(0, 2**31 - 1),
    protocols=st.builds(lambda data: (Protocol("p", data),), st.binary(max_size=9)),
    assignment=st.binary(max_size=9),
)


def _instance(member: ClassicGroupMember) -> object:
    return id(member) if member.instance_id is None else member.instance_id


@given(
    members=st.lists(_members, max_size=4, unique_by=(lambda m: m.member_id, _instance)),
    generation=st.integers(0, 2**31 - 1 - UNTOLD),
    since_ms=st.integers(0, 2**53),
)
def test_a_value_is_read_as_it_was_written(
    members: list[ClassicGroupMember], generation: int, since_ms: int
) -> None:
    value = ClassicValue(
        generation=generation,
        reserved=generation + UNTOLD,
        protocol_type="t" if members else None,
        protocol="p" if members else None,
        leader=members[-1].member_id if members else None,
        state_since_ms=since_ms,
        members=tuple(members),
    )

    assert decode_value(encode_value(value)) == value


def test_a_claim_changes_nothing_but_what_is_reserved() -> None:
    value = stable(metadata=b"m").value
    claimed = claimed_value(value)

    before, after = decode_value(value), decode_value(claimed)

    assert after.reserved == before.reserved + UNTOLD
    assert claimed.replace(b'"reserved":2000', b'"reserved":1000') == value


@pytest.mark.parametrize(
    "damage",
    [
        (b'"generation":1', b'"generation":-1'),
        (b'"generation":1', b'"generation":1001'),
        (b'"generation":1', b'"generation":"1"'),
        (b'"leader":"c-0"', b'"leader":"c-1"'),
        (b'"leader":"c-0"', b'"leader":null'),
        (b'"protocol":"p"', b'"protocol":null'),
        (b'"protocol_type":"consumer"', b'"protocol_type":null'),
        (b'"subscription":"', b'"subscription":"!'),
        (b'"members":[', b'"members":[7,'),
        (b'"v":1', b'"v":0'),
        (b'"state_since_ms":', b'"since":'),
        (b"}", b""),
    ],
)
def test_a_value_that_nobody_wrote_is_refused(damage: tuple[bytes, bytes]) -> None:
    value = stable(metadata=b"m").value
    assert damage[0] in value

    with pytest.raises(CorruptError, match="not a classic group"):
        decode_value(value.replace(*damage))


def test_a_value_of_a_newer_driftlog_says_so() -> None:
    value = stable().value.replace(b'"v":1', b'"v":2')

    with pytest.raises(UnsupportedFormatError, match="upgrade"):
        ClassicGroup.restore("g", value, SETTINGS, str, 0)
