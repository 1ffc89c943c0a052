"""A KIP-848 group answers each heartbeat of these transcripts as Apache Kafka does."""

import time
from uuid import UUID

import pytest

from driftlog_agents.configs.group_settings import ConsumerSettings
from driftlog_agents.groups.classic.messages import (
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
)
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import (
    ConsumerHeartbeatResponse,
    DescribedConsumerGroup,
)
from driftlog_agents.protocol.errors import ErrorCode
from tests.agents.groups.consumer_group import CLICKS, ORDERS, Group, join_request, topics

NOBODY = ErrorCode.UNKNOWN_MEMBER_ID


def given(response: ConsumerHeartbeatResponse) -> dict[UUID, list[int]] | None:
    """What a heartbeat's answer says that the member is to have."""
    assert response.error is ErrorCode.NONE, response
    if response.assignment is None:
        return None
    return {topic: list(numbers) for topic, numbers in response.assignment.items()}


def assert_refused(expected: ErrorCode, response: ConsumerHeartbeatResponse) -> None:
    assert expected is response.error
    assert response.member_id is None
    assert 0 == response.heartbeat_interval_ms


def two_members() -> Group:
    """a and b share orders; both are at epoch 2."""
    group = Group()
    group.join("a")
    group.join("b")
    group.beat("a", 2)
    group.beat("a", 2, owned={ORDERS: [0, 1, 2]})
    group.beat("b", 3)
    return group


# ── Joining, and getting one's share ──


def test_the_first_member_gets_all_at_once() -> None:
    """
    One answer: its epoch, the interval, and the whole topic.
    """
    answer = Group().join("a")

    assert (
        ConsumerHeartbeatResponse(
            member_id="a",
            member_epoch=2,
            heartbeat_interval_ms=5_000,
            assignment={ORDERS: (0, 1, 2, 3, 4, 5)},
        )
        == answer
    )


def test_a_heartbeat_that_changes_nothing_says_and_stores_nothing() -> None:
    """
    No assignment in the answer, and no write.
    """
    group = Group()
    group.join("a")
    group.holds = True

    answer = group.beat("a", 2)

    assert (2, None) == (answer.member_epoch, given(answer))
    assert [] == group.to_store


def test_what_one_has_another_gets_only_when_it_was_given_back() -> None:
    """
    The transcript of KIP-848: revocation before the grant, each at its own epoch.
    """
    group = Group()
    group.join("a")

    joined = group.join("b")
    assert (3, {}) == (joined.member_epoch, given(joined))
    revoking = group.beat("a", 2)
    assert (2, {ORDERS: [0, 1, 2]}) == (revoking.member_epoch, given(revoking))
    waiting = group.beat("b", 3)
    assert (3, None) == (waiting.member_epoch, given(waiting))
    still = group.beat("a", 2, owned={ORDERS: [0, 1, 2, 3]})
    assert (2, None) == (still.member_epoch, given(still))
    done = group.beat("a", 2, owned={ORDERS: [0, 1, 2]})
    assert (3, None) == (done.member_epoch, given(done))
    granted = group.beat("b", 3)
    assert (3, {ORDERS: [3, 4, 5]}) == (granted.member_epoch, given(granted))
    assert "Stable" == group.machine.state


def test_a_group_says_what_state_it_is_in() -> None:
    """
    Empty, Assigning while the target waits, Reconciling, Stable, Empty again.
    """
    group = Group(settings=ConsumerSettings())
    states = [group.machine.state]
    group.join("a")
    states.append(group.machine.state)
    group.join("b")
    states.append(group.machine.state)
    group.pass_time(1_000)
    group.beat("b", 2)
    states.append(group.machine.state)
    for member in "ab":
        group.beat(member, -1)
    states.append(group.machine.state)

    assert ["Empty", "Stable", "Assigning", "Reconciling", "Empty"] == states


def test_targets_are_computed_once_in_an_interval() -> None:
    """
    `group.consumer.assignment.interval.ms`: members that join within a second of a target share in
    the next one, which the first heartbeat after the second computes.
    """
    group = Group(settings=ConsumerSettings())
    group.join("a")
    joined = group.join("b")
    assert (2, {}) == (joined.member_epoch, given(joined))
    assert (3, 2) == (group.describe().group_epoch, group.describe().assignment_epoch)
    group.pass_time(999)
    assert 2 == group.beat("b", 2).member_epoch
    group.pass_time(1)

    assert 3 == group.beat("b", 2).member_epoch


def test_a_full_heartbeat_is_told_the_assignment_again() -> None:
    """
    A member that is not sure says everything, and hears everything.
    """
    group = two_members()

    answer = group.beat("a", 3, owned={ORDERS: [0]}, names=["orders"], rebalance_timeout_ms=60_000)

    assert {ORDERS: [0, 1, 2]} == given(answer)


def test_a_changed_subscription_takes_back_at_once() -> None:
    """
    A member that drops a topic is told so in the same answer, though the target waits.
    """
    group = Group(topics(orders=2, clicks=2), settings=ConsumerSettings())
    group.join("a", names=["orders", "clicks"])

    answer = group.beat("a", 2, names=["orders"])

    assert (2, {ORDERS: [0, 1]}) == (answer.member_epoch, given(answer))
    [member] = group.describe().members
    assert {ORDERS: (0, 1), CLICKS: (0, 1)} == member.assignment


def test_most_members_choose_the_assignor() -> None:
    """
    Those who ask for none do not count; `uniform` is the default.
    """
    group = Group()
    group.join("a")
    assert "uniform" == group.describe().assignor
    group.join("b", server_assignor="range")

    assert "range" == group.describe().assignor


# ── Topics ──


def test_a_topic_that_grows_is_assigned_anew() -> None:
    """
    The next heartbeat raises the group epoch, and only one does.
    """
    group = Group(topics(orders=2))
    group.join("a")
    group.change_topics(topics(2, orders=3))

    answer = group.beat("a", 2)

    assert (3, {ORDERS: [0, 1, 2]}) == (answer.member_epoch, given(answer))
    assert 3 == group.beat("a", 3).member_epoch


def test_a_topic_that_comes_is_assigned_to_who_waits_for_it() -> None:
    """
    Subscribing to what is not there is no error.
    """
    group = Group(topics())
    assert {} == given(group.join("a"))
    group.change_topics(topics(2, orders=1))

    assert {ORDERS: [0]} == given(group.beat("a", 2))


def test_a_topic_that_is_made_again_is_another_one() -> None:
    """
    Ids decide: what was assigned of the old one is taken back, then the new one is given.
    """
    group = Group(topics(orders=1))
    group.join("a")
    other = UUID(int=0xC)
    group.change_topics(type(group.cluster)(2, [("orders", other, 1)]))

    assert {} == given(group.beat("a", 2))
    assert {other: [0]} == given(group.beat("a", 2, owned={}))


def test_topics_of_others_change_nothing() -> None:
    """
    No epoch for a topic that nobody subscribes to.
    """
    group = Group(topics(orders=1))
    group.join("a")
    group.change_topics(topics(2, orders=1, clicks=5))

    assert 2 == group.beat("a", 2).member_epoch


# ── Epochs ──


def test_an_epoch_that_is_not_the_members_is_fenced() -> None:
    """
    Greater, or smaller and not just the answer lost.
    """
    group = two_members()

    assert_refused(ErrorCode.FENCED_MEMBER_EPOCH, group.beat("a", 4))
    assert_refused(ErrorCode.FENCED_MEMBER_EPOCH, group.beat("a", 2))
    assert_refused(ErrorCode.FENCED_MEMBER_EPOCH, group.beat("a", 2, owned={ORDERS: [0, 5]}))
    assert_refused(ErrorCode.FENCED_MEMBER_EPOCH, group.beat("a", 1, owned={ORDERS: [0]}))
    assert_refused(NOBODY, group.beat("x", 2))


def test_an_older_epoch_is_refused_at_once_whatever_the_member_says_it_owns() -> None:
    """
    Partitions were compared before epochs, all of the member's for each topic that it named: one
    heartbeat of 342 KB took 3 s.
    """
    group = Group(topics(orders=20_000))
    assert 2 == group.join("a").member_epoch
    owned: dict[UUID, list[int]] = {UUID(int=n): [] for n in range(1_000)}
    began = time.process_time()

    answer = group.beat("a", 1, owned=owned)

    assert time.process_time() - began < 0.2
    assert_refused(ErrorCode.FENCED_MEMBER_EPOCH, answer)


def test_a_lost_answer_is_given_again() -> None:
    """
    The previous epoch with partitions that are still the member's: it has not heard of the new one.
    """
    group = two_members()

    answer = group.beat("a", 2, owned={ORDERS: [0, 1, 2]})

    assert (3, None) == (answer.member_epoch, given(answer))


def test_a_fenced_member_joins_again() -> None:
    """
    With epoch 0 and nothing owned it is at its old place, without a new epoch for the group.
    """
    group = two_members()

    answer = group.join("a")

    assert (3, {ORDERS: [0, 1, 2]}) == (answer.member_epoch, given(answer))


# ── Leaving, and being silent ──


def test_who_leaves_is_told_so_and_others_get_what_it_had() -> None:
    """
    The answer repeats epoch -1; the next heartbeat of another one gets all.
    """
    group = two_members()

    left = group.beat("a", -1)
    assert ("a", -1, 0) == (left.member_id, left.member_epoch, left.heartbeat_interval_ms)
    answer = group.beat("b", 3)

    assert (4, {ORDERS: [0, 1, 2, 3, 4, 5]}) == (answer.member_epoch, given(answer))
    assert_refused(NOBODY, group.beat("a", 3))
    assert_refused(NOBODY, group.beat("a", -1))


def test_a_silent_member_is_gone_after_the_session_timeout() -> None:
    """
    45 seconds after its last heartbeat, and not before.
    """
    group = two_members()
    group.pass_time(44_999)
    group.beat("b", 3)
    assert {"a", "b"} == set(group.machine.members)
    group.pass_time(1)

    assert {"b"} == set(group.machine.members)
    assert {ORDERS: [0, 1, 2, 3, 4, 5]} == given(group.beat("b", 3))


def test_a_refused_heartbeat_keeps_no_session_alive() -> None:
    """
    A fenced member that never joins again is gone all the same.
    """
    group = two_members()
    group.pass_time(40_000)
    group.beat("a", 10)
    group.beat("b", 3)
    group.pass_time(5_000)

    assert {"b"} == set(group.machine.members)


def test_who_does_not_give_back_is_gone_after_its_rebalance_timeout() -> None:
    """
    Though it heartbeats: its partitions are another one's.
    """
    group = Group()
    group.join("a", rebalance_timeout_ms=10_000)
    group.join("b")
    group.beat("a", 2)
    group.pass_time(9_999)
    assert 2 == group.beat("a", 2, owned={ORDERS: [0, 1, 2, 3, 4, 5]}).member_epoch
    group.pass_time(1)

    assert_refused(NOBODY, group.beat("a", 2))
    assert {ORDERS: [0, 1, 2, 3, 4, 5]} == given(group.beat("b", 3))


def test_who_has_given_back_in_time_stays() -> None:
    """
    The rebalance timeout ends with the revocation.
    """
    group = Group()
    group.join("a", rebalance_timeout_ms=10_000)
    group.join("b")
    group.beat("a", 2)
    group.beat("a", 2, owned={ORDERS: [0, 1, 2]})
    group.pass_time(11_000)

    assert 3 == group.beat("a", 3).member_epoch


# ── Static members ──


def test_a_static_member_comes_back_to_what_it_had() -> None:
    """
    Epoch -2, then a join with the instance id and another member id: no new epoch for anybody.
    """
    group = Group()
    group.join("a", instance_id="i")
    group.join("b")
    group.beat("a", 2, instance_id="i")
    group.beat("a", 2, instance_id="i", owned={ORDERS: [0, 1, 2]})
    group.beat("b", 3)
    left = group.beat("a", -2, instance_id="i")
    assert ("a", -2) == (left.member_id, left.member_epoch)

    answer = group.join("c", instance_id="i")

    assert ("c", 3, {ORDERS: [0, 1, 2]}) == (answer.member_id, answer.member_epoch, given(answer))
    assert 3 == group.describe().group_epoch
    assert_refused(ErrorCode.FENCED_INSTANCE_ID, group.beat("a", 3, instance_id="i"))


def test_an_instance_id_is_one_members() -> None:
    """
    UNRELEASED_INSTANCE_ID while the other one has not left; UNKNOWN_MEMBER_ID when nobody has it.
    """
    group = Group()
    group.join("a", instance_id="i")

    assert_refused(ErrorCode.UNRELEASED_INSTANCE_ID, group.join("b", instance_id="i"))
    assert_refused(NOBODY, group.beat("a", 2, instance_id="j"))
    assert_refused(ErrorCode.FENCED_INSTANCE_ID, group.beat("b", 2, instance_id="i"))
    assert_refused(ErrorCode.FENCED_INSTANCE_ID, group.beat("b", -1, instance_id="i"))


def test_a_static_member_that_does_not_come_back_is_gone() -> None:
    """
    A session timeout after its last heartbeat.
    """
    group = Group()
    group.join("a", instance_id="i")
    group.beat("a", -2, instance_id="i")
    group.pass_time(45_000)

    assert group.machine.is_empty


def test_a_static_member_that_is_away_need_not_give_back() -> None:
    """
    It has nothing any more; its rebalance timeout does not end its place.
    """
    group = Group()
    group.join("a", instance_id="i", rebalance_timeout_ms=10_000)
    group.join("b")
    group.beat("a", 2, instance_id="i")
    group.beat("a", -2, instance_id="i")
    group.pass_time(10_000)

    assert {"a", "b"} == set(group.machine.members)
    assert {ORDERS: [3, 4, 5]} == given(group.beat("b", 3))


def test_a_static_member_may_leave_for_good() -> None:
    """
    Epoch -1 is that of other members.
    """
    group = Group()
    group.join("a", instance_id="i")
    group.beat("a", -1, instance_id="i")

    assert group.machine.is_empty
    assert 3 == group.join("b", instance_id="i").member_epoch - 1


# ── Limits ──


def test_a_full_group_takes_no_more() -> None:
    """
    `group.consumer.max.size`; whoever is in may join again.
    """
    group = Group(settings=ConsumerSettings(max_size=1))
    group.join("a")

    assert_refused(ErrorCode.GROUP_MAX_SIZE_REACHED, group.join("b"))
    assert ErrorCode.NONE is group.join("a").error


# ── Patterns ──


def test_a_pattern_is_matched_and_then_assigned() -> None:
    """
    The first answer does not wait for it; the next heartbeat has what it matches.
    """
    group = Group(topics(orders=1, clicks=1, other=1))
    group.join("x", names=["other"])
    joined = group.join("a", names=None, topic_regex="or.*|cl.*")
    assert {} == given(joined)
    group.resolve()

    answer = group.beat("a", joined.member_epoch)

    assert {ORDERS: [0], CLICKS: [0]} == given(answer)
    assert group.machine.is_subscribed_to("clicks")


def test_topics_that_somebody_subscribes_to_are_no_growth() -> None:
    """
    By name or by a pattern; an absent one has no partitions.
    """
    group = Group(topics(orders=1, clicks=1, other=3))
    group.join("x", names=["other"])
    group.join("a", names=None, topic_regex="or.*")
    group.resolve()

    def growth_bytes(*names: str) -> int:
        return group.machine.assigned_growth_bytes(names, None)

    assert 0 == growth_bytes("orders", "other", "absent")
    assert growth_bytes("clicks") == growth_bytes("orders", "clicks", "clicks") > 0


def test_a_pattern_matches_topics_that_come_later() -> None:
    """
    At most every ten seconds, by a heartbeat that sees that topics have come.
    """
    group = Group(topics(orders=1))
    group.join("x")
    group.join("a", names=[], topic_regex="[a-z]+s")
    group.resolve()
    epoch = group.beat("a", 2).member_epoch
    group.change_topics(topics(2, orders=1, clicks=1))
    group.beat("a", epoch)
    assert [] == group.to_resolve
    group.pass_time(10_001)
    group.beat("a", epoch)
    group.resolve()

    assert CLICKS in (given(group.beat("a", epoch)) or {})


def test_a_pattern_shares_topics_that_others_name() -> None:
    """
    No topic is new to the group, and yet there is something to share.
    """
    group = Group(topics(orders=2))
    group.join("x")
    group.join("a", names=None, topic_regex="o.*")
    group.resolve()
    group.beat("x", 2)
    group.beat("x", 2, owned={ORDERS: [0]})

    assert 1 == len((given(group.beat("a", 2)) or {}).get(ORDERS, []))


def test_a_group_that_begins_with_a_pattern_is_stored_at_once() -> None:
    """
    At epoch 1, which is that of a group that has nothing to assign.
    """
    group = Group(topics(orders=2))
    assert (1, {}) == (group.join("a", names=None, topic_regex="o.*").member_epoch, {})
    group.restart()
    assert 1 == group.beat("a", 1).member_epoch
    group.resolve()

    assert {ORDERS: [0, 1]} == given(group.beat("a", 1))


def test_a_pattern_that_another_member_has_is_matched_already() -> None:
    """
    Then the group epoch rises with the join itself.
    """
    group = Group(topics(orders=2))
    group.join("x")
    group.beat("x", -1)
    group.join("a", names=[], topic_regex="o.*")
    group.resolve()
    before = group.describe().group_epoch

    group.join("b", names=[], topic_regex="o.*")

    assert before + 1 == group.describe().group_epoch
    assert [] == group.to_resolve


def test_a_pattern_that_nobody_has_any_more_is_forgotten() -> None:
    """
    With the last member that subscribes to it, and with a subscription that changes.
    """
    group = Group(topics(orders=1))
    group.join("x", names=["none"])
    group.join("a", names=[], topic_regex="o.*")
    group.resolve()
    group.beat("a", group.describe().members[1].member_epoch, topic_regex="", names=["none"])

    assert not group.machine.is_subscribed_to("orders")
    assert b'"regexes":{}' in group.stored[""]


def test_patterns_that_could_not_be_matched_are_matched_by_a_later_heartbeat() -> None:
    """
    Nothing hangs on one attempt.
    """
    group = Group(topics(orders=1))
    epoch = group.join("x").member_epoch
    group.join("a", names=[], topic_regex="o.*")
    group.to_resolve.clear()
    group.perform(group.machine.regexes_resolved(None, group.now_ms))
    group.beat("a", epoch)
    group.resolve()

    assert group.machine.is_subscribed_to("orders")


# ── Commits and fetches ──


@pytest.mark.parametrize(
    ("member", "epoch", "partitions", "expected"),
    [
        ("a", 3, [(ORDERS, 0)], ErrorCode.NONE),
        ("a", 2, [(ORDERS, 0)], ErrorCode.NONE),  # had it then already (KIP-1251)
        ("a", 2, [(ORDERS, 0), (ORDERS, 5)], ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 1, [(ORDERS, 0)], ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 4, [(ORDERS, 0)], ErrorCode.STALE_MEMBER_EPOCH),
        ("b", 2, [(ORDERS, 5)], ErrorCode.STALE_MEMBER_EPOCH),  # it came with epoch 2
        ("x", 3, [(ORDERS, 0)], ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, [(ORDERS, 0)], ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit(
    member: str, epoch: int, partitions: list[tuple[UUID, int]], expected: ErrorCode
) -> None:
    """
    The member's epoch, or the one that a partition came with or a later one.
    """
    machine = two_members().machine

    assert expected is machine.validate_commit(member, None, epoch, partitions, version=9)


def test_commits_of_old_versions_say_no_member_epoch() -> None:
    """
    UNSUPPORTED_VERSION: they would take it for a generation.
    """
    machine = two_members().machine

    assert ErrorCode.UNSUPPORTED_VERSION is machine.validate_commit(
        "a", None, 2, [(ORDERS, 0)], version=8
    )
    assert ErrorCode.NONE is machine.validate_commit(
        "a", None, 2, [(ORDERS, 0)], version=3, transactional=True
    )


def test_anybody_may_commit_for_a_group_without_members() -> None:
    """
    Tools that reset offsets do.
    """
    group = Group()
    group.join("a")
    group.beat("a", -1)

    assert ErrorCode.NONE is group.machine.validate_commit("", None, -1, [], version=9)


@pytest.mark.parametrize(
    ("member", "epoch", "expected"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 3, ErrorCode.NONE),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 4, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_fetch_offsets(member: str | None, epoch: int, expected: ErrorCode) -> None:
    """
    Those who are no members, and members of the present epoch.
    """
    assert expected is two_members().machine.validate_fetch(member, epoch)


# ── Storing ──


def test_nobody_is_answered_before_it_is_stored() -> None:
    """
    And what comes meanwhile is decided after it, and stored in one write.
    """
    group = Group()
    group.holds = True
    first = group.heartbeat("a", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    others = [
        group.heartbeat(m, 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000) for m in "bc"
    ]
    assert {} == group.answers
    [persist] = group.to_store
    group.to_store = []
    group.perform(group.machine.persisted(persist.token, group.now_ms))
    assert [first] == list(group.answers)
    group.store()

    assert [first, *others] == list(group.answers)


def test_what_could_not_be_stored_has_not_happened() -> None:
    """
    The error goes to all whose answer hung on it; the state is as before, timeouts too.
    """
    group = two_members()
    before = group.describe()
    group.holds = True
    answers = [group.heartbeat("c", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)]
    group.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == [group.error_of(id_) for id_ in answers]
    group.holds = False
    assert before.members == group.describe().members
    assert before.group_epoch == group.describe().group_epoch
    group.pass_time(45_000)
    assert group.machine.is_empty


def test_who_left_and_could_not_be_forgotten_has_its_timeout_again() -> None:
    """
    Or it would be a member for ever.
    """
    group = two_members()
    group.holds = True
    group.heartbeat("a", -1)
    group.fail()
    group.holds = False
    assert {"a", "b"} == set(group.machine.members)
    group.pass_time(45_000)

    assert group.machine.is_empty


def test_a_topic_change_that_could_not_be_stored_is_seen_again() -> None:
    """
    By the next heartbeat.
    """
    group = Group(topics(orders=1))
    group.join("a")
    group.change_topics(topics(2, orders=2))
    group.holds = True
    group.heartbeat("a", 2)
    group.fail()
    group.holds = False

    assert {ORDERS: [0, 1]} == given(group.beat("a", 2))


def test_another_agent_goes_on_without_a_rebalance() -> None:
    """
    Epochs, assignments and what is still to be given back are as they were told.
    """
    group = Group()
    group.join("a", instance_id="i", rack_id="r", server_assignor="range")
    group.join("b")
    group.beat("a", 2, instance_id="i")
    before = group.describe()
    group.restart()

    after = group.describe()
    assert {m.member_id: m for m in before.members} == {m.member_id: m for m in after.members}
    assert (3, 3, "Reconciling") == (after.group_epoch, after.assignment_epoch, after.state)
    assert 3 == group.beat("a", 2, instance_id="i", owned={ORDERS: [0, 1, 2]}).member_epoch
    assert {ORDERS: [3, 4, 5]} == given(group.beat("b", 3))


def test_after_a_restart_members_have_a_full_session_timeout() -> None:
    """
    And those who have to give something back a full rebalance timeout.
    """
    group = Group()
    group.join("a", rebalance_timeout_ms=10_000)
    group.join("b")
    group.beat("a", 2)
    group.pass_time(9_000)
    group.restart()
    group.pass_time(9_999)
    assert {"a", "b"} == set(group.machine.members)
    group.pass_time(1)
    assert {"b"} == set(group.machine.members)
    group.pass_time(35_000)

    assert group.machine.is_empty


def test_a_thousand_members_that_time_out_at_once_are_one_write() -> None:
    """
    Of 33 keys at most: etcd's transactions have 128 operations.
    """
    group = Group(settings=ConsumerSettings(assignment_interval_ms=1_000))
    for i in range(1_000):
        group.join(f"member-{i}")
    group.holds = True
    group.pass_time(45_000)
    group.decide()

    [persist] = group.to_store
    assert len(persist.puts) <= 33
    group.store()
    assert group.machine.is_empty
    assert [""] == list(group.stored)


def test_who_resigns_answers_everybody() -> None:
    """
    Those who wait and those who come.
    """
    group = two_members()
    group.holds = True
    waiting = [group.heartbeat("c", 0, names=["orders"]), group.heartbeat("a", 3)]
    group.perform(group.machine.resign(ErrorCode.NOT_COORDINATOR))
    later = group.heartbeat("b", 3)

    assert [ErrorCode.NOT_COORDINATOR] * 3 == [group.error_of(id_) for id_ in [*waiting, later]]
    assert group.machine.deadline_ms is None


def test_only_a_group_without_members_is_deleted() -> None:
    """
    Meanwhile nobody joins it.
    """
    group = Group()
    group.join("a")
    assert ErrorCode.NON_EMPTY_GROUP is group.machine.begin_delete()
    group.beat("a", -1)
    assert ErrorCode.NONE is group.machine.begin_delete()
    assert_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, group.join("b"))


def test_members_that_fall_silent_together_go_together() -> None:
    """
    One epoch more, one write, and no step for each pair of them.
    """
    group = Group(topics(orders=4))
    group.join("~a")
    for number in range(500):
        group.join(f"~b{number}")
    epoch = group.describe().group_epoch
    group.holds = True

    group.pass_time(46_000)
    group.decide()

    assert 1 == len(group.to_store)
    group.store()
    assert [] == group.to_store
    assert (epoch + 1, ()) == (group.describe().group_epoch, group.describe().members)


# ── Long decisions ──


def test_what_takes_long_is_decided_off_the_event_loop_and_in_its_turn() -> None:
    """
    A join that assigns thousands of partitions; what comes meanwhile waits, and is decided after.
    """
    group = Group(topics(orders=2_000))
    group.holds = True
    first = group.heartbeat("a", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    second = group.heartbeat("b", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    assert group.to_decide is not None
    assert ("Assigning", False) == (group.machine.state, group.machine.is_empty)
    assert group.machine.deadline_ms is None
    group.decide()
    assert {} == group.answers
    group.store()
    assert [first] == list(group.answers)
    group.decide()
    group.store()

    assert [first, second] == list(group.answers)
    group.holds = False
    [numbers] = group.describe().members[1].target.values()
    assert 1_000 == len(numbers)


def test_many_events_that_waited_for_a_write_are_decided_off_the_event_loop() -> None:
    """
    All members of a large group heartbeat while it is written.
    """
    group = two_members()
    group.holds = True
    group.heartbeat("c", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
    waiting = [group.heartbeat("a", 3) for _ in range(101)]
    group.store()

    assert group.to_decide is not None
    group.holds = False
    group.decide()
    group.store()
    assert set(waiting) <= group.answers.keys()


@pytest.mark.parametrize("joins", [1, 5])
def test_many_names_are_read_off_the_event_loop(joins: int) -> None:
    """
    Each event that changes a group reads all names, also those of topics that are not there: 100
    joins to 8 members with 13,000 names stopped the event loop for 3 s.
    """
    group = Group()
    names = [f"absent-{n}" for n in range(20_000 // joins)]
    group.join("a", names=names)
    group.holds = True
    group.heartbeat("a", 2, rack_id="r")
    asked = [
        group.heartbeat(f"b{n}", 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
        for n in range(joins)
    ]
    group.store()

    assert group.to_decide is not None
    group.holds = False
    group.decide()
    group.store()
    assert set(asked) <= group.answers.keys()


def crowd() -> tuple[Group, list[str]]:
    """A group whose answers and writes are held back, and more members than the loop's share."""
    group = Group()
    names = [f"m{number}" for number in range(ConsumerGroup.long_members + 2)]
    for name in names:
        group.join(name)
    group.holds = True
    return group, names


def test_very_many_members_are_described_off_the_event_loop() -> None:
    """
    As they were when it was asked: 10,000 members took 93 ms of the loop.
    """
    group, names = crowd()
    asked = group.send(lambda id_: group.machine.describe(id_, group.now_ms))
    later = group.heartbeat(names[0], -1)
    assert group.to_decide is not None
    group.holds = False
    group.decide()
    described = group.answers[asked]

    assert isinstance(described, DescribedConsumerGroup)
    assert names == [member.member_id for member in described.members]
    assert later in group.answers
    assert names[1:] == list(group.machine.members)


def test_very_many_members_leave_off_the_event_loop() -> None:
    """
    One LeaveGroup names them: 5,000 members took 136 ms of the loop.
    """
    group, names = crowd()
    leaving = LeaveRequest(members=tuple(LeavingMember(member_id=name) for name in names[1:]))
    asked = group.send(lambda id_: group.machine.leave(id_, leaving, group.now_ms))
    assert group.to_decide is not None
    group.holds = False
    group.decide()

    left = group.answers[asked]
    assert isinstance(left, LeaveResponse)
    assert {ErrorCode.NONE} == {member.error for member in left.members}
    assert names[:1] == list(group.machine.members)


def test_very_many_members_expire_off_the_event_loop() -> None:
    """
    A client that had joined them all is gone: their sessions end together.
    """
    group, names = crowd()
    group.pass_time(3_600_000)
    assert group.to_decide is not None
    assert names == list(group.machine.members)
    group.holds = False
    group.decide()

    assert [] == list(group.machine.members)


def test_many_names_of_a_classic_member_are_read_off_the_event_loop() -> None:
    """
    As those of a member of KIP-848 are.
    """
    group = Group()
    group.join("a")
    group.holds = True
    names = [f"absent-{number}" for number in range(ConsumerGroup.long_names + 1)]
    request = join_request("", names)
    group.send(lambda id_: group.machine.join(id_, request, group.now_ms))

    assert group.to_decide is not None


def test_who_resigns_in_the_middle_of_a_long_decision_answers_everybody() -> None:
    """
    And what the thread has decided is not stored.
    """
    group = Group(topics(orders=2_000))
    group.holds = True
    asked = [
        group.heartbeat(name, 0, names=["orders"], owned={}, rebalance_timeout_ms=1_000)
        for name in "ab"
    ]
    group.perform(group.machine.resign(ErrorCode.NOT_COORDINATOR))
    assert [ErrorCode.NOT_COORDINATOR] * 2 == [group.error_of(one) for one in asked]
    group.decide()

    assert [] == group.to_store
