"""Members of KIP-848 groups are told, request by request, what Apache Kafka tells them.

Both are told the same in one run, over a socket and as no client would say it; they answer the
same, to the letter of their messages.  Scripts with two members or more ask for the `range`
assignor: which of two equal members `uniform` gives what depends, in Kafka, on a hash; how much it
gives them does not.
Shell.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import consumer_group_heartbeat as ch
from driftlog_agents.protocol.messages import create_partitions as cp
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_topics as dt
from driftlog_agents.protocol.messages import describe_groups as dg
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import heartbeat as hb
from driftlog_agents.protocol.messages import join_group as jg
from driftlog_agents.protocol.messages import leave_group as lv
from driftlog_agents.protocol.messages import list_groups as lg
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages import sync_group as sg
from tests.clients.seen_topics import until_seen
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.wire import ask

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

INTERVAL: Final = {"group.consumer.assignment.interval.ms": "4000"}
"""So long that what is said at once is said within it, by a slow machine too."""

INTERVAL_S: Final = 4.2
"""A little more."""

_AT_ONCE: Final = 12
"""Scripts, each on one side: most of their time is waiting."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of Kafka and of driftlog."""
    parent: Path = tmp_path_factory.mktemp("consumers")
    configs = [word for name, value in INTERVAL.items() for word in ("--config", f"{name}={value}")]
    with (
        KafkaPeer(parent, INTERVAL) as kafka,
        DriftlogProcess(parent=parent, arguments=configs) as driftlog,
    ):
        for port in (kafka.port, driftlog.port):
            _ready(port)
        yield kafka.port, driftlog.port


def _ready(port: int) -> None:
    """Kafka makes its topic of offsets with the first request for a coordinator, and loads it."""
    deadline = time.monotonic() + 60
    find = fc.FindCoordinatorRequest(coordinator_keys=["g"])
    beat = ch.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    while (
        ask(port, ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code
        or ask(port, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat).error_code
        != ErrorCode.GROUP_ID_NOT_FOUND
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Talk:
    """One side's part: names of topics and groups are its own, and so are ids."""

    def __init__(self, port: int) -> None:
        self.lines: list[str] = []
        self._port = port
        self._prefix = uuid.uuid4().hex[:8]
        self._ids: dict[uuid.UUID, str] = {}
        self._members: dict[str, str] = {}
        """Ids that the coordinator made, by what we call their members."""

    # ── Topics ──

    def topic(self, name: str, partitions: int) -> None:
        topic = ct.CreatableTopic(
            name=self._named(name), num_partitions=partitions, replication_factor=1
        )
        request = ct.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        [made] = ask(self._port, ApiKey.CREATE_TOPICS, 7, request).topics
        assert made.error_code == 0
        self._ids[made.topic_id] = name
        self._until_seen(name, partitions)

    def extend(self, name: str, partitions: int) -> None:
        topic = cp.CreatePartitionsTopic(name=self._named(name), count=partitions, assignments=None)
        request = cp.CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)
        [done] = ask(self._port, ApiKey.CREATE_PARTITIONS, 3, request).results
        assert done.error_code == 0, done
        self._until_seen(name, partitions)

    def delete(self, name: str) -> None:
        request = dt.DeleteTopicsRequest(
            topics=[dt.DeleteTopicState(name=self._named(name))], timeout_ms=30_000
        )
        [done] = ask(self._port, ApiKey.DELETE_TOPICS, 6, request).responses
        assert done.error_code == 0, done
        self._until_seen(name, 0)

    def _until_seen(self, name: str, partitions: int) -> None:
        until_seen(self._port, self._named(name), self._id(name), partitions)

    # ── Members ──

    def beat(
        self,
        member: str,
        epoch: int,
        *,
        group: str = "g",
        version: int = 1,
        names: Iterable[str] | None = None,
        regex: str | None = None,
        owned: Mapping[str, list[int]] | None = None,
        instance: str | None = None,
        rack: str | None = None,
        timeout_ms: int = -1,
        assignor: str | None = None,
    ) -> None:
        said = f"{member} {epoch}"
        request = ch.ConsumerGroupHeartbeatRequest(
            group_id=self._named(group) if group.strip() else group,
            member_id=self._members.get(member, member if version or epoch else ""),
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=None if names is None else [self._named(n) for n in names],
            subscribed_topic_regex=regex and regex.replace("PREFIX", self._prefix),
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                ch.TopicPartitions(topic_id=self._id(topic), partitions=numbers)
                for topic, numbers in owned.items()
            ],
        )
        answer = ask(self._port, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
        if version == 0 and not request.member_id and answer.member_id:
            assert len(answer.member_id) == 22
            self._members[member] = answer.member_id
        error = ErrorCode(answer.error_code)
        if error:
            message = answer.error_message
            if error == ErrorCode.INVALID_REGULAR_EXPRESSION:
                message = message.partition("expression:")[0]  # RE2/J says otherwise what is wrong.
            self._say(f"{said}: {error.name} {message}")
            assert answer.member_id is None
        else:
            given = answer.assignment and self._partitions(answer.assignment.topic_partitions)
            self._say(
                f"{said}: {self._called(answer.member_id)} {answer.member_epoch} "
                f"{answer.heartbeat_interval_ms} {given}"
            )

    def join(self, member: str, **said: Any) -> None:
        """All that a member has to say."""
        defaults: dict[str, Any] = {"names": ["t"], "owned": {}, "timeout_ms": 60_000}
        self.beat(member, 0, **{**defaults, "assignor": "range", **said})

    # ── Members of the classic protocol ──

    def enter(
        self,
        member: str,
        *,
        names: Iterable[str] = ("t",),
        owned: Mapping[str, list[int]] | None = None,
        protocols: Iterable[str] = ("range",),
        instance: str | None = None,
        protocol_type: str = "consumer",
        version: int = 9,
    ) -> None:
        """JoinGroup."""
        subscription = encode_subscription(
            min(3, version),
            ConsumerProtocolSubscription(
                topics=[self._named(name) for name in names],
                owned_partitions=[
                    TopicPartition(topic=self._named(topic), partitions=numbers)
                    for topic, numbers in (owned or {}).items()
                ],
            ),
        )
        request = jg.JoinGroupRequest(
            group_id=self._named("g"),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id=self._members.get(member, ""),
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                jg.JoinGroupRequestProtocol(name=name, metadata=subscription) for name in protocols
            ],
        )
        answer = ask(self._port, ApiKey.JOIN_GROUP, version, request)
        error = ErrorCode(answer.error_code)
        if answer.member_id:
            self._members[member] = answer.member_id
        if error:
            self._say(f"{member} enters: {error.name}")
        else:
            self._say(
                f"{member} enters: {answer.generation_id} {answer.protocol_type} "
                f"{answer.protocol_name} {self._called(answer.leader)} "
                f"{sorted(self._called(m.member_id) for m in answer.members)}"
            )

    def sync(
        self,
        member: str,
        generation: int,
        protocol: str | None = "range",
        give: Mapping[str, Mapping[str, list[int]]] | None = None,
    ) -> None:
        assignments = [
            sg.SyncGroupRequestAssignment(
                member_id=self._members[name],
                assignment=encode_assignment(
                    1,
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            TopicPartition(topic=self._named(topic), partitions=numbers)
                            for topic, numbers in partitions.items()
                        ]
                    ),
                ),
            )
            for name, partitions in (give or {}).items()
        ]
        request = sg.SyncGroupRequest(
            group_id=self._named("g"),
            generation_id=generation,
            member_id=self._members.get(member, member),
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=assignments,
        )
        answer = ask(self._port, ApiKey.SYNC_GROUP, 5, request)
        given = None
        if answer.assignment:
            given = {
                topic.topic.removeprefix(self._prefix + "-"): sorted(topic.partitions)
                for topic in decode_assignment(answer.assignment).assigned_partitions
            }
        self._say(f"{member} syncs {generation}: {ErrorCode(answer.error_code).name} {given}")

    def lives(self, member: str, generation: int, instance: str | None = None) -> None:
        request = hb.HeartbeatRequest(
            group_id=self._named("g"),
            generation_id=generation,
            member_id=self._members.get(member, member),
            group_instance_id=instance,
        )
        answer = ask(self._port, ApiKey.HEARTBEAT, 4, request)
        self._say(f"{member} lives {generation}: {ErrorCode(answer.error_code).name}")

    def leave(self, *members: tuple[str, str | None]) -> None:
        """By member, or by an instance id and an empty name."""
        request = lv.LeaveGroupRequest(
            group_id=self._named("g"),
            members=[
                lv.MemberIdentity(
                    member_id=self._members.get(name, name), group_instance_id=instance
                )
                for name, instance in members
            ],
        )
        answer = ask(self._port, ApiKey.LEAVE_GROUP, 5, request)
        codes = [ErrorCode(m.error_code).name for m in answer.members]
        self._say(f"{members} leave: {ErrorCode(answer.error_code).name} {codes}")

    def describe_classic(self) -> None:
        request = dg.DescribeGroupsRequest(groups=[self._named("g")])
        [found] = ask(self._port, ApiKey.DESCRIBE_GROUPS, 6, request).groups
        members = sorted(
            (self._called(m.member_id), m.group_instance_id, self._read(m.member_assignment))
            for m in found.members
        )
        self._say(
            f"classic: {ErrorCode(found.error_code).name} {found.error_message} "
            f"{found.group_state} {found.protocol_type} {found.protocol_data} {members}"
        )

    def _read(self, assignment: bytes) -> str:
        if not assignment:
            return "nothing"
        found = decode_assignment(assignment).assigned_partitions
        return str({t.topic.removeprefix(self._prefix): sorted(t.partitions) for t in found})

    # ── What others ask ──

    def describe(self, group: str = "g", version: int = 1) -> None:
        request = cd.ConsumerGroupDescribeRequest(
            group_ids=[self._named(group)], include_authorized_operations=True
        )
        [found] = ask(self._port, ApiKey.CONSUMER_GROUP_DESCRIBE, version, request).groups
        self._say(
            f"describe: {ErrorCode(found.error_code).name} {found.error_message} "
            f"{found.group_state} {found.group_epoch} {found.assignment_epoch} "
            f"{found.assignor_name} {found.authorized_operations}"
        )
        for member in sorted(found.members, key=lambda m: self._called(m.member_id)):
            names = sorted(member.subscribed_topic_names)
            self._say(
                f"  {self._called(member.member_id)} {member.member_epoch} {member.instance_id} "
                f"{member.rack_id} {member.client_id} {member.client_host} {names} "
                f"{member.subscribed_topic_regex!r} {member.member_type} "
                f"has {self._partitions(member.assignment.topic_partitions)} "
                f"gets {self._partitions(member.target_assignment.topic_partitions)}"
            )

    def shares(self) -> None:
        """How many partitions members are to have, whoever they are."""
        request = cd.ConsumerGroupDescribeRequest(group_ids=[self._named("g")])
        [found] = ask(self._port, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups
        shares = [
            sum(len(topic.partitions) for topic in member.target_assignment.topic_partitions)
            for member in found.members
        ]
        self._say(f"shares: {found.assignment_epoch} {found.assignor_name} {sorted(shares)}")

    def groups(self) -> None:
        for types in ([], ["consumer"], ["Classic"]):
            request = lg.ListGroupsRequest(types_filter=types)
            found = ask(self._port, ApiKey.LIST_GROUPS, 5, request).groups
            mine = [g for g in found if g.group_id.startswith(self._prefix)]
            said = [f"{g.group_state} {g.group_type} {g.protocol_type}" for g in mine]
            self._say(f"groups {types}: {sorted(said)}")

    def commit(
        self, member: str, epoch: int, partitions: Mapping[str, list[int]], version: int = 10
    ) -> None:
        request = oc.OffsetCommitRequest(
            group_id=self._named("g"),
            generation_id_or_member_epoch=epoch,
            member_id=self._members.get(member, member),
            topics=[
                oc.OffsetCommitRequestTopic(
                    name=self._named(topic),
                    topic_id=self._id(topic),
                    partitions=[
                        oc.OffsetCommitRequestPartition(partition_index=p, committed_offset=7)
                        for p in numbers
                    ],
                )
                for topic, numbers in partitions.items()
            ],
        )
        answer = ask(self._port, ApiKey.OFFSET_COMMIT, version, request)
        found = [  # Kafka begins with those that it does not know.
            p for t in answer.topics for p in sorted(t.partitions, key=lambda p: p.partition_index)
        ]
        codes = [ErrorCode(p.error_code).name for p in found]
        self._say(f"commit {member} {epoch}: {codes}")

    def fetch(self, member: str | None, epoch: int) -> None:
        asked = of.OffsetFetchRequestGroup(
            group_id=self._named("g"),
            member_id=self._members.get(member, member) if member else member,
            member_epoch=epoch,
            topics=[
                of.OffsetFetchRequestTopics(
                    name=self._named("t"), topic_id=self._id("t"), partition_indexes=[0, 1]
                )
            ],
        )
        answer = ask(
            self._port, ApiKey.OFFSET_FETCH, 10, of.OffsetFetchRequest(groups=[asked])
        ).groups[0]
        offsets = [p.committed_offset for t in answer.topics for p in t.partitions]
        self._say(f"fetch {member} {epoch}: {ErrorCode(answer.error_code).name} {offsets}")

    # ── Names ──

    def _named(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _id(self, topic: str) -> uuid.UUID:
        found = [id_ for id_, name in self._ids.items() if name == topic]
        return found[-1] if found else uuid.UUID(int=77)

    def _called(self, member_id: str | None) -> str:
        return next(
            (name for name, id_ in self._members.items() if id_ == member_id), f"{member_id}"
        )

    def _partitions(self, found: Iterable[Any]) -> dict[str, list[int]]:
        return {
            self._ids[t.topic_id]: sorted(t.partitions)
            for t in sorted(found, key=lambda t: self._ids[t.topic_id])
        }

    def _say(self, line: str) -> None:
        self.lines.append(line.replace(self._prefix, "PREFIX"))


Script = Callable[[Talk], None]


def revocation_before_the_grant(c: Talk) -> None:
    c.topic("t", 6)
    c.join("a")
    c.beat("a", 2)
    c.describe()
    c.groups()
    c.join("b")
    c.describe()
    time.sleep(INTERVAL_S)
    c.beat("b", 2)
    c.describe()
    c.beat("a", 2)
    c.describe()
    c.beat("b", 3)
    c.beat("a", 2, owned={"t": [0, 1, 2, 3]})
    c.beat("a", 2, owned={"t": [0, 1, 2]})
    c.describe()
    c.beat("b", 3)
    c.beat("b", 3)
    c.describe()
    c.groups()


def epochs_that_are_not_the_members(c: Talk) -> None:
    c.topic("t", 2)
    c.beat("a", 2)
    c.beat("a", -1)
    c.join("a")
    time.sleep(INTERVAL_S)
    c.join("b")
    c.beat("a", 2)
    c.beat("a", 2, owned={"t": [0]})
    c.beat("b", 3)
    c.beat("a", 4)
    c.beat("a", 2)
    c.beat("a", 2, owned={"t": [0]})
    c.beat("a", 2, owned={"t": [1]})
    c.beat("a", 2, owned={"other": [0]})
    c.beat("a", 2, owned={})
    c.beat("x", 2)
    c.join("a")
    c.beat("a", 3, owned={"t": [0]}, names=["t"], timeout_ms=60_000)
    c.describe()


def leaving(c: Talk) -> None:
    c.topic("t", 3)
    c.join("a")
    time.sleep(INTERVAL_S)
    c.join("b")
    c.beat("a", 2, owned={})
    c.beat("b", -1)
    c.describe()
    c.beat("b", 3)
    c.beat("b", -1)
    c.beat("a", 2)
    time.sleep(INTERVAL_S)
    c.beat("a", 3, owned={"t": [0]})
    c.beat("a", 4, owned={"t": [0, 1, 2]})
    c.beat("a", -1)
    c.describe()
    c.groups()
    c.beat("a", 2)
    c.join("c")
    c.describe()


def static_members(c: Talk) -> None:
    c.topic("t", 4)
    c.join("a", instance="i")
    time.sleep(INTERVAL_S)
    c.join("b", instance="j")
    c.beat("a", 2, instance="i")
    c.beat("a", 2, instance="i", owned={"t": [0, 1]})
    c.beat("b", 3, instance="j")
    c.join("c", instance="i")
    c.join("a", instance="i")
    c.beat("c", 3, instance="i")
    c.beat("c", -2, instance="i")
    c.beat("a", 3, instance="k")
    c.beat("a", -2, instance="i")
    c.describe()
    c.beat("a", 3, instance="i")
    c.join("c", instance="i")
    c.describe()
    c.beat("a", 3, instance="i")
    c.beat("c", 3, instance="i")
    c.beat("c", -2, instance="i")
    c.join("d", instance="i", names=["t", "u"])
    c.describe()
    c.beat("d", -1, instance="i")
    c.describe()


def what_is_no_request(c: Talk) -> None:
    c.topic("t", 1)
    c.join("")
    c.join(" ")
    c.join("a", group=" ")
    c.join("a", instance=" ")
    c.join("a", rack="")
    c.join("a", timeout_ms=-1)
    c.join("a", owned=None)
    c.join("a", owned={"t": [0]})
    c.join("a", names=None)
    c.join("a", assignor="sticky")
    c.beat("a", -2)
    c.beat("a", -3)
    c.beat("", 2)
    c.beat("a", 6)
    c.beat("a", -1)
    c.describe()


def the_coordinator_makes_the_ids_of_version_0(c: Talk) -> None:
    c.topic("t", 2)
    c.join("a", version=0)
    c.beat("a", 2, version=0)
    c.beat("a", -1, version=0)
    c.describe(version=0)


def topics_change(c: Talk) -> None:
    c.topic("t", 2)
    c.join("a", names=["t", "u"])
    c.describe()
    c.topic("u", 1)
    time.sleep(INTERVAL_S)
    c.beat("a", 2)
    c.extend("t", 3)
    time.sleep(INTERVAL_S)
    c.beat("a", 3)
    c.delete("u")
    time.sleep(INTERVAL_S)
    c.beat("a", 4)
    c.describe()
    c.beat("a", 4, owned={"t": [0, 1, 2]})
    c.topic("u", 1)
    time.sleep(INTERVAL_S)
    c.beat("a", 5, owned={"t": [0, 1, 2]})
    c.topic("other", 1)
    time.sleep(INTERVAL_S)
    c.beat("a", 6)
    c.describe()


def subscriptions_change(c: Talk) -> None:
    c.topic("t", 2)
    c.topic("u", 2)
    c.join("a", names=["t", "u"])
    c.beat("a", 2, names=["t"])
    c.describe()
    c.beat("a", 2, owned={"t": [0, 1], "u": [0]})
    c.beat("a", 2, owned={"t": [0, 1]})
    time.sleep(INTERVAL_S)
    c.beat("a", 2, owned={"t": [0, 1]})
    c.beat("a", 3, names=["t", "u"], rack="r")
    time.sleep(INTERVAL_S)
    c.beat("a", 3)
    c.beat("a", 4, names=[])
    c.describe()


def assignors_are_voted_for(c: Talk) -> None:
    c.topic("t", 1)
    c.join("a", assignor=None)
    c.describe()
    time.sleep(INTERVAL_S)
    c.join("b", assignor="range")
    c.describe()
    c.beat("b", 3, assignor="uniform")
    c.describe()


def uniform_shares(c: Talk) -> None:
    c.topic("t", 7)
    c.topic("u", 5)
    for member in "abc":
        c.join(member, assignor="uniform")
    time.sleep(INTERVAL_S)
    c.beat("a", 2)
    c.shares()
    c.join("d", assignor="uniform", names=["t", "u"])
    time.sleep(INTERVAL_S)
    c.join("e", assignor="uniform", names=["u"])
    c.shares()
    c.extend("u", 11)
    time.sleep(INTERVAL_S)
    c.join("f", assignor="uniform", names=["u"])
    c.shares()
    c.beat("a", -1)
    time.sleep(INTERVAL_S)
    c.join("g", assignor="uniform", names=["t"])
    c.shares()
    c.lines = [line for line in c.lines if line.startswith("shares")]


def who_may_commit_and_fetch(c: Talk) -> None:
    c.topic("t", 2)
    c.commit("a", 2, {"t": [0]})
    c.commit("", -1, {"t": [0]})
    c.join("a")
    time.sleep(INTERVAL_S)
    c.join("b")
    c.beat("a", 2)
    c.commit("a", 2, {"t": [0, 1]})
    c.beat("a", 2, owned={"t": [0]})
    c.beat("b", 3)
    c.commit("a", 3, {"t": [0]})
    c.commit("a", 2, {"t": [0]})
    c.commit("a", 2, {"t": [0, 1]})
    c.commit("a", 1, {"t": [0]})
    c.commit("a", 4, {"t": [0]})
    c.commit("a", 2, {"t": [0, 7], "none": [0]})
    c.commit("a", 2, {"t": [7], "none": [0]})
    c.commit("x", 2, {"t": [0, 7], "none": [0]})
    c.commit("b", 2, {"t": [1]})
    c.commit("b", 3, {"t": [0, 1]})
    c.commit("x", 3, {"t": [0]})
    c.commit("", -1, {"t": [0]})
    c.commit("a", 3, {"t": [0]}, version=8)
    c.commit("a", 3, {"t": [0]}, version=9)
    c.fetch("a", 3)
    c.fetch("a", 2)
    c.fetch("a", 4)
    c.fetch("x", 3)
    c.fetch(None, -1)
    c.fetch("", -1)
    c.fetch("", 3)
    c.beat("a", -1)
    c.beat("b", -1)
    c.commit("", -1, {"t": [0]})
    c.commit("a", 3, {"t": [0]})
    c.fetch(None, -1)


def patterns(c: Talk) -> None:
    c.topic("t", 2)
    c.topic("u", 1)
    c.join("x", names=["none"])
    c.beat("x", -1)
    c.join("x", names=["u"])
    c.join("a", names=None, regex="PREFIX-(t|none)", assignor=None)
    time.sleep(INTERVAL_S)
    c.beat("a", 2)
    c.beat("x", 2)
    c.beat("a", 5)
    c.describe()
    time.sleep(INTERVAL_S)
    c.join("b", names=["u"], regex="PREFIX-(t|none)", assignor=None)
    c.describe()
    c.beat("b", 6)
    c.beat("b", -1)
    c.beat("a", 5, regex="")
    c.describe()
    c.beat("x", 5, regex="PREFIX-none", names=[])
    c.join("y", regex="(")


def a_pattern_alone(c: Talk) -> None:
    c.topic("t", 2)
    c.join("a", names=None, regex="PREFIX-t")
    time.sleep(INTERVAL_S)  # it is matched meanwhile, as soon as somebody has the time
    c.join("a", names=None, regex="PREFIX-t")
    c.describe()
    c.beat("a", 2)


def classic_members_come_and_go(c: Talk) -> None:
    c.topic("t", 4)
    c.join("~a")
    c.enter("k", protocol_type="connect")
    c.enter("k", protocols=())
    c.enter("k")
    c.enter("k")
    c.sync("k", 2)
    c.describe()
    c.describe_classic()
    time.sleep(INTERVAL_S)
    c.lives("k", 2)
    c.beat("~a", 2)
    c.lives("k", 2)
    c.sync("k", 2)
    c.enter("k")
    c.sync("k", 3)
    c.lives("k", 3)
    c.lives("k", 2)
    c.lives("~a", 3)
    c.sync("k", 3, protocol="sticky")
    c.beat("~a", 2, owned={"t": [0, 1]})
    c.lives("k", 3)
    c.enter("k")
    c.sync("k", 3)
    c.lives("k", 3)
    c.describe()
    c.commit("k", 3, {"t": [2]})
    c.commit("k", 2, {"t": [2]})
    c.commit("k", 4, {"t": [2]})
    c.fetch("k", 3)
    c.fetch("k", 2)
    c.enter("l", protocols=("roundrobin",))
    c.leave(("k", None), ("x", None))
    c.describe()


def classic_members_give_back_first(c: Talk) -> None:
    c.topic("t", 4)
    c.join("~z")
    c.enter("k")
    c.enter("k")
    time.sleep(INTERVAL_S)
    c.beat("~z", 2)
    c.beat("~z", -1)
    c.groups()


def a_group_goes_up_and_down(c: Talk) -> None:
    c.topic("t", 4)
    c.enter("k")
    c.enter("k")
    c.sync("k", 1, give={"k": {"t": [0, 1, 2, 3]}})
    c.lives("k", 1)
    c.describe()
    c.describe_classic()
    c.join("~z")
    c.describe()
    c.describe_classic()
    c.lives("k", 1)
    c.enter("k", owned={"t": [0, 1, 2, 3]})
    c.sync("k", 1)
    c.lives("k", 1)
    c.enter("k", owned={"t": [0, 1]})
    c.sync("k", 2)
    c.lives("k", 2)
    c.describe()
    c.beat("~z", 2)
    c.groups()
    c.beat("~z", -1)
    c.groups()
    c.describe()
    c.beat("~z", 2)
    c.lives("k", 2)
    c.enter("k", owned={"t": [0, 1]})
    c.sync("k", 3, give={"k": {"t": [0, 1, 2, 3]}})
    c.lives("k", 3)
    c.describe_classic()
    c.leave(("k", None))
    c.groups()
    c.join("~z")
    c.groups()


def groups_that_cannot_go_up(c: Talk) -> None:
    c.topic("t", 1)
    c.enter("k", protocol_type="connect")
    c.enter("k", protocol_type="connect")
    c.join("~z")
    c.beat("~z", 1)
    c.beat("~z", -1)


def static_members_change_protocols(c: Talk) -> None:
    c.topic("t", 2)
    c.enter("k", instance="i")
    c.sync("k", 1, give={"k": {"t": [0, 1]}})
    c.join("~z", instance="i")
    c.describe()
    c.lives("k", 1, instance="i")
    c.lives("k", 1)
    c.beat("~z", 1, instance="i")
    c.enter("n", instance="i")
    c.groups()
    c.describe_classic()
    c.leave(("", "i"))
    c.groups()


def a_static_member_takes_a_group_down_with_a_stale_target(c: Talk) -> None:
    c.topic("t", 2)
    c.join("~z", instance="i")
    c.join("~a")
    c.beat("~a", -1)
    c.enter("n", instance="i")
    c.groups()
    c.describe_classic()


SCRIPTS: Final[tuple[Script, ...]] = (
    revocation_before_the_grant,
    epochs_that_are_not_the_members,
    leaving,
    static_members,
    what_is_no_request,
    the_coordinator_makes_the_ids_of_version_0,
    topics_change,
    subscriptions_change,
    assignors_are_voted_for,
    uniform_shares,
    who_may_commit_and_fetch,
    patterns,
    a_pattern_alone,
    classic_members_come_and_go,
    classic_members_give_back_first,
    a_group_goes_up_and_down,
    groups_that_cannot_go_up,
    static_members_change_protocols,
    a_static_member_takes_a_group_down_with_a_stale_target,
)


Said = Mapping[Script, tuple["Future[list[str]]", "Future[list[str]]"]]


@pytest.fixture(scope="module")
def said(ports: tuple[int, int]) -> Iterator[Said]:
    """By Kafka and by driftlog, to each script: several are played at a time."""

    def play(script: Script, port: int) -> list[str]:
        talk = Talk(port)
        script(talk)
        return talk.lines

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        kafka, driftlog = ports
        yield {
            script: (pool.submit(play, script, kafka), pool.submit(play, script, driftlog))
            for script in SCRIPTS
        }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_members_are_told_what_kafka_tells_them(script: Script, said: Said) -> None:
    """
    Line by line, also where they are refused.
    """
    kafka, driftlog = said[script]

    assert kafka.result() == driftlog.result()
