"""What clients make a coordinator store and remember.

Shell.
"""

import time
from typing import Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from driftlog_agents.protocol.messages.delete_groups import DeleteGroupsRequest
from driftlog_agents.protocol.messages.join_group import JoinGroupRequestProtocol
from driftlog_agents.protocol.messages.leave_group import LeaveGroupRequest
from tests.attack.attacks import Attack, Budget, Target
from tests.attack.members import (
    MEMBER_ID_REQUIRED,
    SUBSCRIPTION,
    commit_request,
    join_request,
)
from tests.attack.state import VICTIM

_REMOVED: Final = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
_REMOVED_S: Final = 60.0


class _UnreadableGroup(Attack):
    """A group is readable and removable, whatever was committed to it."""

    item = "5"
    group: str
    version: int
    offset: int = 0
    retention_ms: int = -1

    def run(self, target: Target) -> None:
        """Commit; that may be refused."""
        target.groups.add(self.group)
        request = commit_request(
            self.group, VICTIM, [0], offset=self.offset, retention_ms=self.retention_ms
        )
        with target.connect() as connection:
            target.ask(connection, ApiKey.OFFSET_COMMIT, self.version, request)

    def again(self, target: Target) -> None:
        """Remove the group."""
        deadline = time.monotonic() + _REMOVED_S
        code: int | None = None
        while time.monotonic() < deadline:
            with target.connect() as connection:
                request = DeleteGroupsRequest(groups_names=[self.group])
                answer = target.ask(connection, ApiKey.DELETE_GROUPS, 1, request)
            code = None if answer is None else answer.results[0].error_code
            if code in _REMOVED:
                return
            time.sleep(0.3)
        target.fail(f"DeleteGroups cannot remove it: error {code}")


class UnreadableOffset(_UnreadableGroup):
    """OffsetCommit 7 of the offset −2⁶³."""

    name = "unreadable-offset"
    group, version, offset = "bricked-by-offset", 7, -(2**63)


class UnreadableRetention(_UnreadableGroup):
    """OffsetCommit 2 with a retention of 2⁶³ − 1 ms."""

    name = "unreadable-retention"
    group, version, retention_ms = "bricked-by-retention", 2, 2**63 - 1


class ShortLivedGroups(Attack):
    """Groups that are made, left and forgotten, one after the other."""

    name = "short-lived-groups"
    item = "15"
    budget = Budget.CROWD

    def run(self, target: Target) -> None:
        """Eight at a time on one connection would be the same: a coordinator is one thread."""
        until = target.deadline
        with target.connect() as connection:
            while time.monotonic() < until and target.agent.is_alive():
                group = f"short-{target.sent}"
                answer = target.ask(connection, ApiKey.JOIN_GROUP, 3, join_request(group))
                if answer is not None and answer.error_code == MEMBER_ID_REQUIRED:
                    again = join_request(group, member_id=answer.member_id)
                    answer = target.ask(connection, ApiKey.JOIN_GROUP, 3, again)
                if answer is None:
                    return
                leave = LeaveGroupRequest(group_id=group, member_id=answer.member_id)
                target.ask(connection, ApiKey.LEAVE_GROUP, 2, leave)


class SlowPatterns(Attack):
    """KIP-848 members whose regular expressions take a matcher that goes back for ever."""

    name = "slow-patterns"
    item = "5"

    def run(self, target: Target) -> None:
        """Many members, each with a pattern of its own."""
        patterns = ("(a+)+$", "(.*)*x", "((a|b|c|.)*){50}y", "v(i|ic|ict)*m" * 20, "(" * 500)
        until = target.deadline
        with target.connect(timeout_s=10) as connection:
            for number in range(500):
                if time.monotonic() > until:
                    break
                request = ConsumerGroupHeartbeatRequest(
                    group_id="patterns",
                    member_id=f"m-{number}",
                    rebalance_timeout_ms=2**31 - 1,
                    subscribed_topic_regex=patterns[number % len(patterns)],
                    topic_partitions=[],
                )
                if target.ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request) is None:
                    break
        target.groups.add("patterns")


class DowngradedGroup(Attack):
    """A classic member whose metadata has no version, in a group that goes to KIP-848 and back."""

    name = "downgraded-group"
    item = "1"
    arguments = (
        "--config",
        "group.consumer.session.timeout.ms=3000",
        "--config",
        "group.consumer.heartbeat.interval.ms=1000",
    )

    def run(self, target: Target) -> None:
        """What was never read is read when the session of the last member of KIP-848 is over."""
        target.groups.add("downgraded")
        protocols = [
            JoinGroupRequestProtocol(name="a", metadata=SUBSCRIPTION),
            JoinGroupRequestProtocol(name="b", metadata=b""),
        ]
        with target.connect(timeout_s=10) as connection:
            first = join_request("downgraded")
            first.protocols = protocols
            target.ask(connection, ApiKey.JOIN_GROUP, 3, first)
            beat = ConsumerGroupHeartbeatRequest(
                group_id="downgraded",
                member_id="k",
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[VICTIM],
                topic_partitions=[],
            )
            target.ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat)
            second = join_request("downgraded")
            second.protocols = [JoinGroupRequestProtocol(name="b", metadata=SUBSCRIPTION)]
            target.ask(connection, ApiKey.JOIN_GROUP, 3, second)
            target.ask(connection, ApiKey.JOIN_GROUP, 3, first)
            time.sleep(4)


class ManyProtocols(Attack):
    """JoinGroups with 20,000 protocols without metadata, others each time."""

    name = "many-protocols"

    def run(self, target: Target) -> None:
        """Of one member, which joins again and again, and of new ones."""
        until = target.deadline
        member_id = ""
        with target.connect(timeout_s=10) as connection:
            for number in range(200):
                if time.monotonic() > until:
                    break
                request = join_request("protocols", member_id=member_id if number % 2 else "")
                request.protocols += [
                    JoinGroupRequestProtocol(name=f"{number}-{n}") for n in range(19_000)
                ]
                answer = target.ask(connection, ApiKey.JOIN_GROUP, 3, request)
                if answer is None:
                    break
                member_id = answer.member_id or member_id


ATTACKS: Final = (
    UnreadableOffset,
    UnreadableRetention,
    ShortLivedGroups,
    SlowPatterns,
    DowngradedGroup,
    ManyProtocols,
)
