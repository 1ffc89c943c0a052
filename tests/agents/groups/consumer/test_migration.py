"""Members of both protocols in one group, and groups that go from one to the other.

`tests/clients/test_consumer_transcripts.py` holds the same against Apache Kafka's answers.
"""

from dataclasses import replace

import pytest

from driftlog_agents.configs.group_settings import ClassicSettings, ConsumerSettings
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import JoinResponse, LeavingMember, Protocol
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.state import page_of
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.groups.consumer_group import AT_ONCE, ORDERS, Group, join_request, topics

MANY_TOPICS = encode_subscription(0, ConsumerProtocolSubscription(topics=[""] * 200_001))
GO_ON = ErrorCode.NONE
JOIN_AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


def with_classic() -> Group:
    """~a of KIP-848 and k of the classic protocol share orders; both are at epoch 3."""
    group = Group(topics(orders=4))
    group.join("~a")
    group.enter("k")
    group.beat("~a", 2)
    group.beat("~a", 2, owned={ORDERS: [0, 1]})
    group.enter("k")
    return group


def classic_group(
    assigned: bytes | None = None,
    protocol_type: str = "consumer",
    metadata: bytes | None = None,
    other: bytes | None = None,
) -> ClassicGroup:
    """k has all of orders, in generation 7; *other*: its metadata for another protocol."""
    protocols = () if other is None else (Protocol("other", other),)
    said = encode_subscription(1, ConsumerProtocolSubscription(topics=["orders"]))
    everything = [TopicPartition(topic="orders", partitions=[0, 1, 2, 3])]
    member = ClassicGroupMember(
        member_id="k",
        instance_id="i",
        client_id="classic",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=20_000,
        session_timeout_ms=10_000,
        protocols=(Protocol("range", said if metadata is None else metadata), *protocols),
        assignment=assigned
        or encode_assignment(1, ConsumerProtocolAssignment(assigned_partitions=everything)),
    )
    stored = ClassicValue(
        generation=7,
        protocol_type=protocol_type,
        protocol="range",
        leader="k",
        state_since_ms=0,
        members=(member,),
    )
    return ClassicGroup("g", ClassicSettings(), lambda prefix: f"{prefix}-1", 0, stored=stored)


def upgraded(settings: ConsumerSettings = AT_ONCE) -> Group:
    """The same, as a group of KIP-848."""
    group = Group(topics(orders=4), settings)
    group.machine = ConsumerGroup.upgraded(
        classic_group(), settings, group.cluster, lambda prefix: f"{prefix}-1", group.now_ms
    )
    return group


# ── Classic members ──


def test_a_classic_member_joins_twice_and_gets_an_id() -> None:
    """
    As in a classic group: from version 4 on, unless it is static.
    """
    group = Group()
    group.join("~a")

    refused = group.enter("", version=4)
    assert (ErrorCode.MEMBER_ID_REQUIRED, "classic-1") == (refused.error, refused.member_id)
    joined = group.enter(refused.member_id, version=4)
    assert (3, "consumer", "range") == (joined.generation, joined.protocol_type, joined.protocol)
    assert ("", ()) == (joined.leader, joined.members)
    assert "classic-2" == group.enter("", version=3).member_id


def test_a_classic_member_gets_what_others_have_given_back() -> None:
    """
    It is told to join again when what it waits for is free, and not before.
    """
    group = Group(topics(orders=4))
    group.join("~a")
    assert 3 == group.enter("k").generation
    assert {} == group.sync("k", 3)
    assert GO_ON is group.lives("k", 3)
    group.beat("~a", 2)
    assert GO_ON is group.lives("k", 3)
    group.beat("~a", 2, owned={ORDERS: [0, 1]})
    assert JOIN_AGAIN is group.lives("k", 3)
    assert 3 == group.enter("k").generation

    assert {"orders": [2, 3]} == group.sync("k", 3)
    assert GO_ON is group.lives("k", 3)
    assert "Stable" == group.machine.state


def test_a_classic_member_gives_back_before_others_get_it() -> None:
    """
    What it says that it owns when it joins is what it has.
    """
    group = Group()
    group.join("~a")
    group.enter("k")
    group.beat("~a", 2)
    group.beat("~a", 2, owned={ORDERS: [0, 1, 2]})
    group.enter("k")
    assert {"orders": [3, 4, 5]} == group.sync("k", 3)
    group.join("~z")
    group.beat("~a", 3)
    assert JOIN_AGAIN is group.lives("k", 3)
    assert 3 == group.enter("k", owned={"orders": [3, 4, 5]}).generation
    assert {"orders": [3, 4]} == group.sync("k", 3)
    assert not group.beat("~z", 4).assignment
    assert JOIN_AGAIN is group.lives("k", 3)

    assert 4 == group.enter("k", owned={"orders": [3, 4]}).generation
    assert {"orders": [3, 4]} == group.sync("k", 4)
    assert {ORDERS: (5,)} == group.beat("~z", 4).assignment


def test_a_classic_member_gives_back_what_it_dropped() -> None:
    """
    At once, though the target waits: it is told to join again at the epoch that it has.
    """
    group = Group(topics(orders=2, clicks=2), ConsumerSettings())
    group.enter("k", names=["orders", "clicks"])
    assert 2 == group.enter("k", owned={"orders": [0, 1], "clicks": [0, 1]}).generation
    assert {"orders": [0, 1]} == group.sync("k", 2)

    assert JOIN_AGAIN is group.lives("k", 2)
    assert 2 == group.enter("k", owned={"orders": [0, 1]}).generation
    assert GO_ON is group.lives("k", 2)


def test_requests_of_other_generations_and_members_are_refused() -> None:
    """
    Each with the error of the classic protocol.
    """
    group = with_classic()

    assert ErrorCode.ILLEGAL_GENERATION is group.lives("k", 2)
    assert ErrorCode.UNKNOWN_MEMBER_ID is group.lives("x", 3)
    assert ErrorCode.UNKNOWN_MEMBER_ID is group.lives("~a", 3)
    assert ErrorCode.ILLEGAL_GENERATION is group.sync("k", 2)
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL is group.sync("k", 3, protocol="sticky")
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL is group.enter("l", protocols=["sticky"]).error
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL is group.enter("l", protocol_type="sr").error
    assert ErrorCode.ILLEGAL_GENERATION is group.machine.validate_commit(
        "k", None, 9, [(ORDERS, 2)], version=8
    )
    assert GO_ON is group.machine.validate_commit("k", None, 3, [(ORDERS, 2)], version=8)


def test_a_classic_member_that_does_not_join_again_is_gone() -> None:
    """
    After its rebalance timeout, though it heartbeats; likewise one that has joined and does not
    sync, and one that is silent for its own session timeout.
    """
    group = with_classic()
    group.sync("k", 3)
    group.join("~z")
    group.lives("k", 3)
    for _ in range(5):
        group.pass_time(3_999)
        assert JOIN_AGAIN is group.lives("k", 3)
    group.pass_time(5)
    assert ErrorCode.UNKNOWN_MEMBER_ID is group.lives("k", 3)

    group = with_classic()
    group.enter("l", session_timeout_ms=60_000)
    group.sync("l", 4)
    group.join("~z")
    group.beat("~a", 3)
    assert JOIN_AGAIN is group.sync("l", 4)
    group.pass_time(20_000)
    assert "l" not in group.machine.members

    group = with_classic()
    for _ in range(2):
        group.pass_time(9_999)
        group.lives("k", 3)
    group.pass_time(2)
    assert {"~a"} == set(group.machine.members)

    group = with_classic()
    group.sync("k", 3)
    group.pass_time(10_000)
    assert {"~a"} == set(group.machine.members)


def test_classic_members_leave() -> None:
    """
    Each is answered; an administrator names an instance id alone.
    """
    group = with_classic()
    group.enter("", instance_id="i")

    left = group.leave(
        LeavingMember(member_id="k"),
        LeavingMember(member_id="x"),
        LeavingMember(member_id="", instance_id="i"),
        LeavingMember(member_id="", instance_id="j"),
    )

    assert [GO_ON, ErrorCode.UNKNOWN_MEMBER_ID] * 2 == left
    assert {"~a"} == set(group.machine.members)


def test_classic_members_are_kept_over_a_restart() -> None:
    """
    What they speak, and how long they may be silent.
    """
    group = with_classic()
    group.restart()

    assert GO_ON is group.lives("k", 3)
    assert {"orders": [2, 3]} == group.sync("k", 3)
    group.pass_time(10_000)
    assert {"~a"} == set(group.machine.members)


# ── Up ──


def test_a_classic_group_goes_on_as_one_of_kip_848() -> None:
    """
    Its member has what it had, at its generation; the new one waits for its share.
    """
    group = upgraded()
    joined = group.join("~z")

    assert (8, {}) == (joined.member_epoch, joined.assignment)
    assert JOIN_AGAIN is group.lives("k", 7, "i")
    assert 7 == group.enter("k", instance_id="i", owned={"orders": [0, 1, 2, 3]}).generation
    assert 8 == group.enter("k", instance_id="i", owned={"orders": [0, 1]}).generation
    assert {ORDERS: (2, 3)} == group.beat("~z", 8).assignment


def test_an_upgrade_is_stored_with_the_member_that_brings_it() -> None:
    """
    All members at once; before that the classic group is what there is.
    """
    group = upgraded()
    group.join("~z")
    assert {"", page_of("k"), page_of("~z")} == set(group.stored)
    group.restart()

    assert {"k", "~z"} == set(group.machine.members)
    assert JOIN_AGAIN is group.lives("k", 7, "i")


def test_an_upgrade_that_could_not_be_stored_is_tried_again_whole() -> None:
    """
    The next write has the classic members too.
    """
    group = upgraded()
    group.holds = True
    group.heartbeat("~z", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    group.fail()
    group.holds = False
    group.join("~y")
    group.restart()

    assert {"k", "~y"} == set(group.machine.members)


@pytest.mark.parametrize(
    ("classic", "why"),
    [
        (classic_group(protocol_type="connect"), "does not use the consumer embedded protocol"),
        (classic_group(metadata=b"?"), "embedded consumer protocol is malformed"),
        (classic_group(assigned=b"\x00\x01\xff"), "embedded consumer protocol is malformed"),
        (
            classic_group(encode_assignment(1, ConsumerProtocolAssignment(user_data=b"mine"))),
            "unsupported custom assignor",
        ),
        (classic_group(metadata=MANY_TOPICS), "subscribe to too many topics"),
    ],
)
def test_what_is_no_group_of_consumers_stays_what_it_is(classic: ClassicGroup, why: str) -> None:
    """
    GROUP_ID_NOT_FOUND, and why.
    """
    with pytest.raises(RefusedError, match=why) as refused:
        ConsumerGroup.upgraded(classic, AT_ONCE, topics(orders=4), str, 0)

    assert ErrorCode.GROUP_ID_NOT_FOUND is refused.value.code


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (ConsumerSettings(migration_policy="downgrade"), "online upgrade is disabled"),
        (ConsumerSettings(max_size=0), "exceeds the consumer group maximum size"),
    ],
)
def test_a_group_goes_up_only_where_it_may(settings: ConsumerSettings, why: str) -> None:
    """
    `group.consumer.migration.policy` and `group.consumer.max.size`.
    """
    with pytest.raises(RefusedError, match=why):
        ConsumerGroup.upgraded(classic_group(), settings, topics(orders=4), str, 0)


# ── Down ──


def test_a_group_goes_down_when_its_last_member_of_kip_848_leaves() -> None:
    """
    The classic group has the others with what they were to have, and rebalances.
    """
    group = with_classic()
    left = group.heartbeat("~a", -1)
    [effect] = group.downgrades
    assert {} == group.answers
    group.perform(group.machine.persisted(effect.token, group.now_ms))

    assert [left] == list(group.answers)
    assert effect.has_to
    [member] = effect.value.members
    assert (3, "k", 10_000) == (
        effect.value.generation,
        member.member_id,
        member.session_timeout_ms,
    )
    assert [TopicPartition(topic="orders", partitions=[2, 3])] == decode_assignment(
        member.assignment
    ).assigned_partitions


def test_a_group_goes_down_with_members_whose_metadata_is_no_subscription() -> None:
    """
    A classic group takes any bytes; those of a protocol that was not chosen then are read at last.
    """
    group = Group(topics(orders=4))
    classic = classic_group(other=b"")
    group.machine = ConsumerGroup.upgraded(
        classic, AT_ONCE, group.cluster, lambda prefix: f"{prefix}-1", group.now_ms
    )
    group.join("~a")
    group.enter("l", protocols=["other"])
    group.heartbeat("~a", -1)

    [effect] = group.downgrades
    assert "other" == effect.value.protocol
    assert [[0, 1], [3]] == [
        [
            n
            for topic in decode_assignment(one.assignment).assigned_partitions
            for n in topic.partitions
        ]
        for one in effect.value.members
    ]


def test_a_classic_member_without_a_version_in_any_metadata_is_refused() -> None:
    """
    Nothing could be told to it in its own format.
    """
    group = with_classic()
    request = replace(
        join_request("l"), protocols=(*join_request("l").protocols, Protocol("b", b""))
    )
    group.requests += 1
    group.perform(group.machine.join(group.requests, request, group.now_ms))

    answer = group.answers[group.requests]
    assert isinstance(answer, JoinResponse)
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL is answer.error


def test_who_comes_while_a_group_goes_down_comes_again() -> None:
    """
    To the classic group that it is then.
    """
    group = with_classic()
    group.heartbeat("~a", -1)
    late = group.heartbeat("~b", 0, names=["orders"], owned={})
    [effect] = group.downgrades
    group.perform(group.machine.persisted(effect.token, group.now_ms))

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE is group.error_of(late)


def test_who_comes_with_the_last_member_s_leave_is_not_forgotten() -> None:
    """
    Both wait while something else is stored.
    """
    group = with_classic()
    group.holds = True
    group.heartbeat("~b", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    for member, epoch in (("~a", -1), ("~b", -1)):
        group.heartbeat(member, epoch)
    late = group.heartbeat("~c", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    group.store()
    group.holds = False
    [effect] = group.downgrades
    group.perform(group.machine.persisted(effect.token, group.now_ms))

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE is group.error_of(late)


def test_a_downgrade_that_could_not_be_stored_has_not_happened() -> None:
    """
    The member that left is there, and has its timeout.
    """
    group = with_classic()
    left = group.heartbeat("~a", -1)
    [effect] = group.downgrades
    group.perform(group.machine.not_persisted(effect.token, ErrorCode.NOT_COORDINATOR, 0))

    assert ErrorCode.NOT_COORDINATOR is group.error_of(left)
    assert 3 == group.beat("~a", 3).member_epoch
    assert GO_ON is group.lives("k", 3)


def test_a_group_goes_down_when_its_last_member_of_kip_848_is_silent() -> None:
    """
    With whoever is late with it.
    """
    group = with_classic()
    group.sync("k", 3)
    for _ in range(5):
        group.pass_time(9_000)
        if not group.downgrades:
            group.lives("k", 3)

    assert ["k"] == [member.member_id for member in group.downgrades[0].value.members]


@pytest.mark.parametrize(
    "settings",
    [
        ConsumerSettings(assignment_interval_ms=0, migration_policy="upgrade"),
        ConsumerSettings(assignment_interval_ms=0, classic_max_size=0),
    ],
)
def test_a_group_goes_down_only_where_it_may(settings: ConsumerSettings) -> None:
    """
    Else its classic members go on in a group of KIP-848.
    """
    group = Group(settings=settings)
    group.join("~a")
    group.enter("k")
    group.beat("~a", -1)

    assert [] == group.downgrades
    assert 4 == group.enter("k").generation
    assert {"orders": [0, 1, 2, 3, 4, 5]} == group.sync("k", 4)


def test_a_static_member_takes_its_place_in_either_protocol() -> None:
    """
    And the group goes down with it, without a rebalance if it subscribes to the same.
    """
    group = upgraded()
    replaced = group.join("~z", instance_id="i")
    assert (7, {ORDERS: (0, 1, 2, 3)}) == (replaced.member_epoch, replaced.assignment)
    assert ErrorCode.FENCED_INSTANCE_ID is group.lives("k", 7, "i")
    group.requests += 1
    with pytest.raises(KeyError):  # It is answered when the classic group is stored.
        group.enter("", instance_id="i")
    [effect] = group.downgrades

    assert not effect.has_to
    assert ["i"] == [member.instance_id for member in effect.value.members]


def test_a_group_goes_down_with_a_rebalance_if_its_target_is_behind() -> None:
    """
    Who left before has partitions that the classic group would give to nobody until it rebalances.
    """
    group = upgraded()
    group.join("~z", instance_id="i")
    group.join("~a")
    group.beat("~a", -1)
    group.send(lambda id_: group.machine.join(id_, join_request("", instance_id="i"), group.now_ms))
    [effect] = group.downgrades

    assert effect.has_to


def test_disabled_migration_keeps_classic_members_out() -> None:
    """
    `group.consumer.migration.policy=disabled`.
    """
    group = Group(settings=ConsumerSettings(migration_policy="disabled"))
    group.join("~a")

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL is group.enter("k").error
