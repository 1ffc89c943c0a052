"""What is accepted from clients is stored so that it is read again, whatever it is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import JoinRequest, JoinResponse, Protocol, SyncRequest
from driftlog_agents.groups.classic.stored_value import (
    LAST_GENERATION,
    ClassicValue,
    claimed_value,
    decode_value,
    encode_value,
)
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.state import Head
from driftlog_agents.groups.consumer.stored_value import HEAD, decode_head, encode_head
from driftlog_agents.groups.coordinator.write_batcher import GroupWrite
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.offsets import Committed, as_int64
from driftlog_agents.groups.storage_format import (
    MAX_BYTES,
    StoredGroup,
    decode_group,
    decode_page,
    encode_group,
    encode_page,
)
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
    encode_assignment,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.schema.keys import group_key, parse_group_key
from driftlog_metadata.stores.errors import CorruptError
from tests.agents.groups.consumer.test_migration import classic_group
from tests.agents.groups.consumer_group import AT_ONCE, ORDERS, Group, topics

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(INT64, INT32, TEXT, INT64)
def test_every_offset_commit_is_read_again(
    offset: int, epoch: int, metadata: str, retention_ms: int
) -> None:
    """
    Made as the handler makes it.
    """
    now_ms = 1_800_000_000_000
    committed = Committed(
        offset=offset,
        leader_epoch=max(epoch, -1),
        metadata=metadata,
        commit_ms=now_ms,
        expire_ms=as_int64(now_ms + retention_ms),
    )

    assert {7: committed} == decode_page(encode_page({7: committed}, "n"), 0)


@given(
    st.integers() | INT64, st.integers() | INT32, st.integers() | INT64, st.none() | st.integers()
)
def test_an_offset_that_could_not_be_read_again_is_not_made(
    offset: int, epoch: int, commit_ms: int, expire_ms: int | None
) -> None:
    """
    A bug ends where it is, with one connection, and not when the group is loaded.
    """
    try:
        committed = Committed(
            offset=offset, leader_epoch=epoch, commit_ms=commit_ms, expire_ms=expire_ms
        )
    except AssertionError:
        return

    assert {7: committed} == decode_page(encode_page({7: committed}, "n"), 0)


@given(TEXT)
def test_every_group_id_is_a_key(group_id: str) -> None:
    """
    And the key says which.
    """
    assert group_id == parse_group_key(group_key(group_id)).group_id


MEMBERS = st.builds(
    ClassicGroupMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    protocols=st.binary(max_size=20).map(lambda said: (Protocol("p", said),)),
    assignment=st.binary(max_size=20),
)


@given(
    st.integers(0, 2**32),
    st.integers(0, 2**32),
    st.none() | TEXT,
    st.none() | st.just("p") | TEXT,
    st.none() | TEXT,
    st.lists(MEMBERS, max_size=3, unique_by=(lambda m: m.member_id, lambda m: m.instance_id)),
)
def test_every_classic_group_that_can_be_made_is_read_again(
    generation: int,
    reserved: int,
    protocol_type: str | None,
    protocol: str | None,
    leader: str | None,
    members: list[ClassicGroupMember],
) -> None:
    """
    And what its next coordinator stores, too.
    """
    try:
        value = ClassicValue(
            generation=generation,
            reserved=reserved,
            protocol_type=protocol_type,
            protocol=protocol,
            leader=members[0].member_id if members else leader,
            state_since_ms=0,
            members=tuple(
                replace(m, protocols=(Protocol(protocol or "", m.protocols[0].metadata),))
                for m in members
            ),
        )
    except AssertionError:
        return

    stored = encode_value(value)
    for _ in range(3):
        assert value == replace(decode_value(stored), reserved=value.reserved)
        stored = claimed_value(stored)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), TEXT, st.integers(0, 9))
def test_whatever_a_member_says_is_read_again(client_id: str, name: str, version: int) -> None:
    """
    Joined and assigned by itself, then loaded by another coordinator.
    """
    group, _ = _assigned(client_id, name, version, b"\x00\xff")
    again = ClassicGroup.restore(
        "g", group.value, ClassicSettings(), lambda prefix: f"{prefix}-2", 0
    )

    assert [m.client_id for m in group.members] == [m.client_id for m in again.members]
    assert group.generation == again.generation


def test_generations_begin_again_behind_the_last() -> None:
    """
    They are int32 on the wire, and negative ones mean that there is none; the group goes on, and
    its next coordinator reads it.
    """
    last = ClassicValue(
        generation=LAST_GENERATION,
        reserved=LAST_GENERATION + 500,
        protocol_type="x",
        state_since_ms=0,
    )
    group, joined = _assigned("c", "p", 3, b"m", claimed_value(encode_value(last)))

    assert 1 == joined.generation == group.generation
    assert 1 == decode_value(claimed_value(group.value)).generation


def _assigned(
    client_id: str, name: str, version: int, metadata: bytes, stored: bytes | None = None
) -> tuple[ClassicGroup, JoinResponse]:
    """A group whose one member has its assignment."""
    settings = ClassicSettings(initial_rebalance_delay_ms=0)
    new_id = lambda prefix: f"{prefix}-1"  # noqa: E731
    if stored is None:
        group = ClassicGroup("g", settings, new_id, 0)
    else:
        group = ClassicGroup.restore("g", stored, settings, new_id, 0)
    asked = JoinRequest(
        version=version,
        client_id=client_id,
        client_host="/127.0.0.1",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=2**31 - 1,
        member_id="",
        instance_id="i",
        protocol_type="x",
        protocols=(Protocol(name, metadata),),
    )
    [answer] = [*group.join(1, asked, 0), *group.tick(0)]
    assert isinstance(answer, Answer)
    joined = answer.response
    assert isinstance(joined, JoinResponse)
    said = ((joined.member_id, b"\x00\xff"), ("nobody", b"x"))
    sync = SyncRequest(
        version=3, generation=joined.generation, member_id=joined.member_id, assignments=said
    )
    [persist] = group.sync(2, sync, 0)
    assert isinstance(persist, Persist)
    group.persisted(persist.token, 0)
    return group, joined


# ── KIP-848 ──


@pytest.mark.parametrize("partitions", [[-1], [-5, 0], [2**31 - 1], list(range(-3, 9)), [4]])
def test_partitions_that_a_leader_made_up_do_not_reach_the_next_coordinator(
    partitions: list[int],
) -> None:
    """
    A classic group becomes one of KIP-848 with what its leader has assigned; its topic has four.
    """
    assigned = encode_assignment(
        1,
        ConsumerProtocolAssignment(
            assigned_partitions=[TopicPartition(topic="orders", partitions=partitions)]
        ),
    )
    group = Group(topics(orders=4))
    group.machine = ConsumerGroup.upgraded(
        classic_group(assigned),
        AT_ONCE,
        group.cluster,
        lambda prefix: f"{prefix}-1",
        group.now_ms,
    )
    group.join("~a")
    group.restart()

    there = {(ORDERS, p) for p in partitions if 0 <= p < 4}
    assert there >= set(group.machine.members["k"].assigned)


def test_epochs_begin_again_before_they_are_no_int32() -> None:
    """
    Members are unknown then, and join the same group as a new one.
    """
    group = Group(topics(orders=4))
    group.join("~a")
    head = decode_head(group.stored[HEAD])
    late = replace(head, epoch=2**31 - 1, assignment_epoch=2**31 - 1)
    group.stored[HEAD] = encode_head(late)
    group.restart()

    request = group.heartbeat("~a", 2)

    assert ErrorCode.UNKNOWN_MEMBER_ID is group.error_of(request)
    assert 2 == group.join("~a").member_epoch
    group.restart()
    assert 2 == group.beat("~a", 2).member_epoch


def test_two_members_with_one_partition_are_damage_and_no_bug() -> None:
    """
    What is stored is read as such: it ends no agent.
    """
    group = Group(topics(orders=4))
    group.join("~a")
    page = next(name for name in group.stored if name)
    twice = group.stored[page].replace(b'"members":[', b'"members":[%b,')
    body = group.stored[page].partition(b'"members":[')[2].removesuffix(b"]}")
    group.stored[page] = twice % body.replace(b'"~a"', b'"~b"')

    with pytest.raises(CorruptError):
        group.restart()


def test_a_value_that_is_too_large_fits_no_transaction() -> None:
    """
    However well it could be compressed: it could not be read again.
    """
    small, large = (
        StoredGroup(session_id="s", kind="classic", body=b'{"a":"%b"}' % (b"x" * size))
        for size in (MAX_BYTES - 1_000, MAX_BYTES)
    )
    values = [encode_group(small, "n"), encode_group(large, "n")]

    assert small == decode_group(values[0])
    assert [True, False] == [
        GroupWrite(revisions={"k": 0}, puts={"k": value}).fits for value in values
    ]


def test_a_head_of_many_partitions_is_read_again() -> None:
    """
    More than a range of a damaged value may have.
    """
    head = Head(target={"m": frozenset((ORDERS, p) for p in range(1_100_000))})

    assert head == decode_head(encode_head(head))
