"""Requests about offsets and empty groups are answered as Apache Kafka answers them, in every
version.

Both are asked the same in one run, over a socket, and must answer the same, field by field: errors,
what is not there, what may not be.  Only ids of topics and addresses are their own.
Shell.
"""

import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_groups as dg
from driftlog_agents.protocol.messages import delete_topics as dt
from driftlog_agents.protocol.messages import describe_groups as ds
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import heartbeat as hb
from driftlog_agents.protocol.messages import join_group as jg
from driftlog_agents.protocol.messages import leave_group as lv
from driftlog_agents.protocol.messages import list_groups as lg
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import offset_delete as od
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages import sync_group as sg
from driftlog_agents.protocol.requests.registry import API
from tests.clients.seen_topics import until_seen
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.wire import ask

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

_STRANGER: Final = uuid.UUID(int=0xDEAD)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of Kafka and of driftlog."""
    parent: Path = tmp_path_factory.mktemp("offsets")
    with KafkaPeer(parent) as kafka, DriftlogProcess(parent=parent) as driftlog:
        for port in (kafka.port, driftlog.port):
            _ready(port)
        yield kafka.port, driftlog.port


def _ready(port: int) -> None:
    deadline = time.monotonic() + 60
    find = fc.FindCoordinatorRequest(coordinator_keys=["g"])
    listed = lg.ListGroupsRequest()
    while (
        ask(port, ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code
        or ask(port, ApiKey.LIST_GROUPS, 4, listed).error_code
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Talk:
    """One side's part."""

    def __init__(self, port: int) -> None:
        self.lines: list[str] = []
        self._port = port
        self._prefix = uuid.uuid4().hex[:8]
        self.ids: dict[str, uuid.UUID] = {}
        self._member = ""

    def named(self, name: str) -> str:
        """A name that only this run uses."""
        return f"{self._prefix}-{name}" if name else ""

    def topic(self, name: str) -> None:
        """A new one of three partitions."""
        topic = ct.CreatableTopic(name=self.named(name), num_partitions=3, replication_factor=1)
        request = ct.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        [made] = ask(self._port, ApiKey.CREATE_TOPICS, 7, request).topics
        assert made.error_code == 0
        self.ids[name] = made.topic_id
        until_seen(self._port, self.named(name), made.topic_id, 3)

    def delete(self, name: str) -> None:
        """It is gone."""
        request = dt.DeleteTopicsRequest(
            topics=[dt.DeleteTopicState(name=self.named(name))], timeout_ms=30_000
        )
        [done] = ask(self._port, ApiKey.DELETE_TOPICS, 6, request).responses
        assert done.error_code == 0, done
        # Kafka's coordinator forgets its offsets before it hears of what is made afterwards.
        self.topic(f"after-{name}")

    def say(self, key: ApiKey, version: int, request: Any) -> Any:
        """Ask, and write down what was answered."""
        answer = ask(self._port, key, version, request)
        self.lines.append(f"{key.kafka_name} {version}: {self._fields(answer)}")
        return answer

    def _fields(self, answer: Any) -> Any:
        match answer:
            case uuid.UUID():
                names = {topic_id: name for name, topic_id in self.ids.items()}
                return names.get(answer, str(answer))
            case str():
                text = answer.replace(f"{self._prefix}-", "")
                return re.sub(r"test-[0-9a-f]{8}-[0-9a-f-]{27}", "MEMBER", text)
            case list():
                return sorted((self._fields(item) for item in answer), key=repr)
            case bytes():
                return answer.replace(f"{self._prefix}-".encode(), b"")
            case int() | None:
                return answer
            case _:
                return self._message(answer)

    def _message(self, answer: Any) -> dict[str, Any]:
        found = {f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}
        for own in ("node_id", "host", "port"):
            if found.get(own) not in (None, -1, ""):
                found[own] = "…"
        return {name: self._fields(value) for name, value in found.items()}

    # ── Offsets ──

    def commit(
        self,
        version: int,
        group: str = "g",
        *,
        topics: tuple[str, ...] = ("t",),
        partitions: tuple[int, ...] = (0,),
        offset: int = 7,
        generation: int = -1,
        member: str = "",
        metadata: str | None = "m",
        epoch: int = 4,
    ) -> None:
        said = [
            oc.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata,
            )
            for partition in partitions
        ]
        request = oc.OffsetCommitRequest(
            group_id=self.named(group),
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[
                oc.OffsetCommitRequestTopic(
                    name=self.named(name),
                    topic_id=self.ids.get(name, _STRANGER),
                    partitions=said,
                )
                for name in topics
            ],
        )
        self.say(ApiKey.OFFSET_COMMIT, version, request)

    def fetch(
        self,
        version: int,
        group: str = "g",
        topics: tuple[str, ...] | None = ("t",),
        partitions: tuple[int, ...] = (0, 1),
        *,
        member: str | None = None,
        epoch: int = -1,
    ) -> None:
        request = of.OffsetFetchRequest(
            group_id=self.named(group),
            topics=None
            if topics is None
            else [
                of.OffsetFetchRequestTopic(
                    name=self.named(name), partition_indexes=list(partitions)
                )
                for name in topics
            ],
        )
        if version >= 8:
            several = (
                None
                if topics is None
                else [
                    of.OffsetFetchRequestTopics(
                        name=self.named(name),
                        topic_id=self.ids.get(name, _STRANGER),
                        partition_indexes=list(partitions),
                    )
                    for name in topics
                ]
            )
            groups = [
                of.OffsetFetchRequestGroup(
                    group_id=name, topics=several, member_id=member, member_epoch=epoch
                )
                for name in (self.named(group), self.named("nobody"))
            ]
            request = of.OffsetFetchRequest(groups=groups)
        self.say(ApiKey.OFFSET_FETCH, version, request)

    def forget(self, group: str, topics: tuple[str, ...], partitions: tuple[int, ...]) -> None:
        request = od.OffsetDeleteRequest(
            group_id=self.named(group),
            topics=[
                od.OffsetDeleteRequestTopic(
                    name=self.named(name),
                    partitions=[
                        od.OffsetDeleteRequestPartition(partition_index=n) for n in partitions
                    ],
                )
                for name in topics
            ],
        )
        self.say(ApiKey.OFFSET_DELETE, 0, request)

    # ── Groups ──

    def find(self, version: int, key: str, key_type: int = 0) -> None:
        request = fc.FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        self.say(ApiKey.FIND_COORDINATOR, version, request)

    def groups(
        self, version: int, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
    ) -> None:
        request = lg.ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        answer = ask(self._port, ApiKey.LIST_GROUPS, version, request)
        answer.groups = [g for g in answer.groups if g.group_id.startswith(self._prefix)]
        self.lines.append(f"ListGroups {version} {states} {types}: {self._fields(answer)}")

    def describe(self, version: int, *groups: str, operations: bool = False) -> None:
        request = ds.DescribeGroupsRequest(
            groups=[self.named(group) for group in groups],
            include_authorized_operations=operations,
        )
        self.say(ApiKey.DESCRIBE_GROUPS, version, request)

    def drop(self, version: int, *groups: str) -> None:
        request = dg.DeleteGroupsRequest(groups_names=[self.named(group) for group in groups])
        self.say(ApiKey.DELETE_GROUPS, version, request)

    def join(self, group: str, protocol_type: str, topic: str = "") -> None:
        """One member, alone, with its assignment."""
        metadata = b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
        if topic:
            name = self.named(topic).encode()
            metadata = b"\x00\x00\x00\x00\x00\x01" + len(name).to_bytes(2) + name + b"\xff" * 4
        request = jg.JoinGroupRequest(
            group_id=self.named(group),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type=protocol_type,
            protocols=[jg.JoinGroupRequestProtocol(name="p", metadata=metadata)],
        )
        request.member_id = ask(self._port, ApiKey.JOIN_GROUP, 7, request).member_id
        joined = self.say(ApiKey.JOIN_GROUP, 7, request)
        self.member, self.generation = joined.member_id, joined.generation_id
        sync = sg.SyncGroupRequest(
            group_id=request.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=protocol_type,
            protocol_name="p",
            assignments=[sg.SyncGroupRequestAssignment(member_id=self.member, assignment=b"a")],
        )
        self.say(ApiKey.SYNC_GROUP, 5, sync)

    def leave(self, group: str) -> None:
        request = lv.LeaveGroupRequest(
            group_id=self.named(group), members=[lv.MemberIdentity(member_id=self.member)]
        )
        self.say(ApiKey.LEAVE_GROUP, 4, request)

    def beat(self, group: str, generation: int, member: str) -> None:
        request = hb.HeartbeatRequest(
            group_id=self.named(group), generation_id=generation, member_id=member
        )
        self.say(ApiKey.HEARTBEAT, 4, request)


def offsets_in_every_version(talk: Talk) -> None:
    talk.topic("t")
    for version in range(2, 11):
        talk.commit(version, offset=version, metadata=f"v{version}")
        for asked in API[ApiKey.OFFSET_FETCH].served:
            talk.fetch(asked)
    for asked in API[ApiKey.OFFSET_FETCH].served:
        if asked >= 2:
            talk.fetch(asked, topics=None)


def what_is_not_there(talk: Talk) -> None:
    talk.topic("t")
    for version in (2, 8, 9, 10):
        talk.commit(version, topics=("none",))
        talk.commit(version, topics=("t", "none"), partitions=(0, 1))
        talk.commit(version, group="other", generation=3, member="m")
        for topics in (("none",), ("t", "none")):
            talk.commit(
                version, "other", topics=topics, partitions=(0, 7), generation=3, member="m"
            )
    for version in (1, 2, 5, 7, 8, 9, 10):
        talk.fetch(version, group="nobody")
        talk.fetch(version, topics=("none",))
        talk.fetch(version, topics=("t", "none"), partitions=(0, 2))
    talk.fetch(9, member="m", epoch=1)
    talk.fetch(9, group="nobody", member="m", epoch=1)
    talk.forget("nobody", ("t",), (0,))
    talk.forget("g", ("t", "none"), (0, 1, 3, -1))
    talk.fetch(8)


def what_may_not_be(talk: Talk) -> None:
    talk.topic("t")
    talk.commit(8, metadata="x" * 4096)
    talk.commit(8, metadata="x" * 4097)
    talk.commit(8, partitions=(0, 1), metadata=None, epoch=-1)
    talk.commit(8, offset=-1)
    talk.commit(8, partitions=(7,))
    talk.commit(10, partitions=(0, 7))
    talk.fetch(8, partitions=(0, 1, 7))
    talk.fetch(7, partitions=())
    talk.commit(8, group="")
    talk.fetch(7, group="")
    talk.forget("", ("t",), (0,))
    talk.fetch(7, group="")


def a_topic_that_is_made_again(talk: Talk) -> None:
    talk.topic("t")
    talk.topic("u")
    talk.commit(8, topics=("t", "u"))
    talk.delete("t")
    talk.fetch(8, topics=("t", "u"))
    talk.fetch(8, topics=None)
    talk.topic("t")
    talk.fetch(8, topics=("t", "u"))


def groups_that_nobody_is_in(talk: Talk) -> None:
    talk.topic("t")
    talk.commit(8, group="a")
    talk.commit(8, group="b")
    for version in API[ApiKey.LIST_GROUPS].served:
        talk.groups(version)
    talk.groups(5, states=("Empty",))
    talk.groups(5, states=("empty",), types=("Classic",))
    talk.groups(5, states=("Stable",))
    talk.groups(5, types=("consumer",))
    talk.groups(5, types=("nonsense",))
    for version in API[ApiKey.DESCRIBE_GROUPS].served:
        talk.describe(version, "a", "nobody")
    talk.describe(6, "a", "a", operations=True)
    for version in API[ApiKey.DELETE_GROUPS].served:
        talk.drop(version, "a", "nobody")
    talk.fetch(8, group="a")
    talk.groups(5)


def groups_with_a_member(talk: Talk) -> None:
    talk.topic("t")
    talk.topic("u")
    talk.join("c", "consumer", "t")
    talk.commit(8, group="c", topics=("t", "u"), generation=talk.generation, member=talk.member)
    talk.commit(8, group="c")
    talk.commit(8, group="c", generation=talk.generation + 1, member=talk.member)
    talk.commit(8, group="c", generation=talk.generation, member="nobody")
    talk.describe(5, "c")
    talk.groups(5)
    talk.drop(2, "c")
    talk.forget("c", ("t", "u"), (0, 3))
    talk.fetch(8, group="c", topics=("t", "u"))
    talk.beat("c", talk.generation, talk.member)
    talk.leave("c")
    talk.beat("c", talk.generation, talk.member)
    talk.describe(5, "c")
    talk.groups(5)
    talk.forget("c", ("t",), (0,))
    talk.commit(8, group="c")
    talk.join("w", "connect")
    talk.forget("w", ("t",), (0,))
    talk.describe(5, "w")
    talk.leave("w")
    talk.drop(2, "c", "w")
    talk.describe(6, "c", "w")


def coordinators(talk: Talk) -> None:
    for version in API[ApiKey.FIND_COORDINATOR].served:
        talk.find(version, "g")
    for version in (1, 4, 6):
        talk.find(version, "g", key_type=9)
        talk.find(version, "")


@pytest.mark.parametrize(
    "script",
    [
        offsets_in_every_version,
        what_is_not_there,
        what_may_not_be,
        a_topic_that_is_made_again,
        groups_that_nobody_is_in,
        groups_with_a_member,
        coordinators,
    ],
    ids=lambda script: script.__name__,
)
def test_both_say_the_same(ports: tuple[int, int], script: Callable[[Talk], None]) -> None:
    """
    Line by line.
    """

    def play(port: int) -> list[str]:
        talk = Talk(port)
        script(talk)
        return talk.lines

    with ThreadPoolExecutor(2) as both:
        kafka, driftlog = both.map(play, ports)

    different = [pair for pair in zip(kafka, driftlog, strict=True) if pair[0] != pair[1]]
    assert not different, "\n".join("\n".join(pair) for pair in different)
