"""Consumer groups of unmodified clients read each record, once per group, and go on where they
were.

The classic protocol; what members see of several agents is in test_groups_of_agents.py.
"""

import itertools
import select
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final, Self

import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from driftlog_agents.protocol.messages.list_groups import ListGroupsRequest
from driftlog_agents.protocol.requests.registry import API
from tests.clients.conftest import make_topic, metrics
from tests.clients.grouping import SHORT_SESSION_MS, Members
from tests.support.components import java, kafka_jars
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(180)]

PARTITIONS: Final = 4
CLIENTS: Final = ["confluent", "aiokafka", "kafka-python"]


def produce(agent: DriftlogProcess, topic: str, count: int, first: int = 0) -> None:
    """*count* numbers, in turn to each partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    for n in range(first, first + count):
        producer.produce(topic, b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(60) == 0


def places(count: int) -> set[tuple[int, int]]:
    """Where `produce` put them."""
    return {(n % PARTITIONS, n // PARTITIONS) for n in range(count)}


@pytest.fixture
def group_id() -> str:
    """A group that nobody else uses."""
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def spread(agent: DriftlogProcess) -> str:
    """A topic of `PARTITIONS`."""
    return make_topic(agent, PARTITIONS)


@pytest.fixture
def admin(agent: DriftlogProcess) -> AdminClient:
    """librdkafka's."""
    return AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})


@pytest.fixture
def members(agent: DriftlogProcess, group_id: str, spread: str) -> Iterator[Members]:
    """Of `group_id`, on `spread`."""
    with Members(agent.bootstrap, group_id, spread) as found:
        yield found


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_shares_the_partitions_and_reads_each_record_once(
    agent: DriftlogProcess, members: Members, spread: str, client: str
) -> None:
    """
    Members join and leave one after the other: what was committed at each rebalance is not read
    again, and nothing is left out.
    """
    numbers = itertools.count(0, 100)

    def more() -> int:
        first = next(numbers)
        produce(agent, spread, 100, first)
        return first + 100

    total = more()
    one = members.join(client)
    members.until(lambda: set(members.places) == places(total), what="alone")
    other = members.join(client)
    members.until(lambda: members.shared(PARTITIONS), what="two")
    total = more()
    members.until(lambda: set(members.places) == places(total), what="two, all read")
    members.leave(one)
    total = more()
    members.until(lambda: members.shared(PARTITIONS), what="one again")
    members.until(lambda: set(members.places) == places(total), what="one again, all read")
    members.leave(other)

    assert {1} == set(members.places.values())


def test_clients_of_different_kinds_share_a_group(
    agent: DriftlogProcess, members: Members, spread: str
) -> None:
    """
    librdkafka, aiokafka and kafka-python agree on an assignor that all of them have.
    """
    produce(agent, spread, 200)
    for client in CLIENTS:
        settings: dict[str, Any] = {}
        if client == "confluent":
            settings["partition.assignment.strategy"] = "range,roundrobin"
        members.join(client, **settings)
    members.until(lambda: members.shared(PARTITIONS), what="shared")
    produce(agent, spread, 200, 200)

    members.until(lambda: set(members.places) == places(400), what="all read")


def test_javas_consumers_share_a_group_with_others(
    agent: DriftlogProcess, members: Members, spread: str
) -> None:
    """
    Kafka's own client by the classic protocol: beside aiokafka, alone after that one has left,
    and replaced when it is killed.
    """
    java(), kafka_jars()
    produce(agent, spread, 100)
    assignors = ",".join(
        f"org.apache.kafka.clients.consumer.{name}Assignor" for name in ("RoundRobin", "Range")
    )
    session = {"session.timeout.ms": SHORT_SESSION_MS}
    one = members.join("java", **session, **{"partition.assignment.strategy": assignors})
    other = members.join("aiokafka")
    members.until(lambda: members.shared(PARTITIONS), what="two")
    members.until(lambda: set(members.places) == places(100), what="two, all read")
    members.leave(other)
    members.until(lambda: members.shared(PARTITIONS), what="alone")
    produce(agent, spread, 100, 100)
    members.until(lambda: set(members.places) == places(200), what="alone, all read")
    stays = members.join("confluent", **{"partition.assignment.strategy": "range"})
    members.until(lambda: members.shared(PARTITIONS), what="two again")

    members.abandon(one)
    members.until(lambda: members.shared(PARTITIONS), what="one")
    assert {1} == set(members.places.values())
    produce(agent, spread, 100, 200)
    members.until(lambda: places(300) - places(200) <= set(stays.read), what="all read")


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_a_member_that_is_killed_is_replaced_when_its_session_ends(
    agent: DriftlogProcess, members: Members, spread: str, client: str
) -> None:
    """
    It goes without a word: after its session timeout the others have its partitions.
    """
    gone = members.join(client, session_timeout_ms=SHORT_SESSION_MS)
    stays = members.join(client)
    members.until(lambda: members.shared(PARTITIONS), what="two")

    members.abandon(gone)
    members.until(lambda: members.shared(PARTITIONS), what="one")
    produce(agent, spread, 100)

    members.until(lambda: set(stays.read) == places(100), what="all read")


def test_cooperative_members_keep_what_they_have(
    agent: DriftlogProcess, members: Members, spread: str
) -> None:
    """
    Incremental rebalancing (KIP-429): a member that joins takes its share, and the other one is
    never without the rest.
    """
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    one = members.join("confluent", **cooperative)
    members.until(lambda: len(one.partitions) == PARTITIONS, what="alone")
    least = PARTITIONS

    def settled() -> bool:
        nonlocal least
        least = min(least, len(one.partitions))
        return members.shared(PARTITIONS)

    members.join("confluent", **cooperative)
    members.until(settled, what="two")
    produce(agent, spread, 100)
    members.until(lambda: set(members.places) == places(100), what="all read")

    assert PARTITIONS // 2 == least


def test_a_static_member_comes_back_without_a_rebalance(
    agent: DriftlogProcess, members: Members, spread: str
) -> None:
    """
    Static membership (KIP-345): who has an instance id and is away for less than its session
    timeout finds its partitions; the other member hears nothing of it.
    """
    names = iter(("a", "b"))
    settings = {"enable.auto.offset.store": True}
    one, other = (
        members.join("confluent", **settings, **{"group.instance.id": name}) for name in names
    )
    members.until(lambda: members.shared(PARTITIONS), what="two")
    had, before = set(one.partitions), other.rebalances

    members.leave(one)
    time.sleep(1)
    again = members.join("confluent", **settings, **{"group.instance.id": "a"})
    members.until(lambda: again.partitions == had, what="back")
    produce(agent, spread, 100)
    members.until(lambda: set(members.places) == places(100), what="all read")

    assert before == other.rebalances


def test_what_was_committed_is_kept_over_a_restart_of_the_agent(
    agent: DriftlogProcess, group_id: str, spread: str
) -> None:
    """
    kill -9: offsets, their metadata and leader epochs are there again, and the next consumer
    begins where the last one ended.
    """
    produce(agent, spread, 40)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": group_id, "log_level": 2}
    )
    offsets = [
        TopicPartition(spread, n, n + 1, metadata=f"at {n}, ü", leader_epoch=0)
        for n in range(PARTITIONS)
    ]
    consumer.commit(offsets=offsets, asynchronous=False)

    agent.kill()
    agent.start()

    asked = [TopicPartition(spread, n) for n in range(PARTITIONS)]
    found = consumer.committed(asked, timeout=60)
    consumer.close()
    assert [(n + 1, f"at {n}, ü", 0) for n in range(PARTITIONS)] == [
        (tp.offset, tp.metadata, tp.leader_epoch) for tp in found
    ]


def test_members_go_on_over_a_restart_of_the_agent(
    agent: DriftlogProcess, members: Members, spread: str
) -> None:
    """
    The coordinator is killed and comes back: nobody has to join again, and nothing that was
    committed is read twice.
    """
    one = members.join("confluent", **{"reconnect.backoff.max.ms": 500})
    other = members.join("aiokafka")
    members.until(lambda: members.shared(PARTITIONS), what="two")
    produce(agent, spread, 100)
    members.until(lambda: set(members.places) == places(100), what="before")
    before = one.rebalances, other.rebalances

    agent.kill()
    agent.start()

    produce(agent, spread, 100, 100)
    members.until(lambda: set(members.places) == places(200), what="after")
    assert before == (one.rebalances, other.rebalances)
    assert {1} == set(members.places.values())


def test_admin_clients_list_describe_and_delete_groups(
    agent: DriftlogProcess, members: Members, spread: str, group_id: str, admin: AdminClient
) -> None:
    """
    A group is listed and described with its members; it is deleted when it is empty, and not
    before; its offsets are gone then.
    """
    produce(agent, spread, 40)
    one = members.join("confluent")
    members.until(lambda: len(one.read) == 40, what="all read")

    listed = {g.group_id: g for g in admin.list_consumer_groups().result(30).valid}
    assert ConsumerGroupState.STABLE == listed[group_id].state
    assert not listed[group_id].is_simple_consumer_group
    described = admin.describe_consumer_groups([group_id])[group_id].result(30)
    assert ConsumerGroupState.STABLE == described.state
    assert "range" == described.partition_assignor
    (member,) = described.members
    assert "/127.0.0.1" == member.host
    partitions = {(tp.topic, tp.partition) for tp in member.assignment.topic_partitions}
    assert {(spread, n) for n in range(PARTITIONS)} == partitions
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group_id])[group_id].result(30)
    members.leave(one)
    assert dict.fromkeys(range(PARTITIONS), 10) == committed(admin, group_id, spread)

    admin.delete_consumer_groups([group_id])[group_id].result(30)

    assert {} == committed(admin, group_id, spread)
    assert group_id not in {g.group_id for g in admin.list_consumer_groups().result(30).valid}
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group_id])[group_id].result(30)


def committed(admin: AdminClient, group_id: str, topic: str) -> dict[int, int]:
    """All offsets of a group, by partition."""
    asked = [ConsumerGroupTopicPartitions(group_id)]
    found = admin.list_consumer_group_offsets(asked)[group_id].result(30)
    return {
        tp.partition: tp.offset
        for tp in found.topic_partitions
        if tp.topic == topic and tp.offset >= 0
    }


def test_offsets_are_altered_while_nobody_reads(
    agent: DriftlogProcess, members: Members, spread: str, group_id: str, admin: AdminClient
) -> None:
    """
    An administrator sets a group back: not while it has members; then the next one reads again.
    """
    produce(agent, spread, 40)
    one = members.join("confluent")
    members.until(lambda: len(one.read) == 40, what="all read")
    back = ConsumerGroupTopicPartitions(
        group_id, [TopicPartition(spread, n, 5) for n in range(PARTITIONS)]
    )
    refused = admin.alter_consumer_group_offsets([back])[group_id].result(30)
    assert {"UNKNOWN_MEMBER_ID"} == {tp.error.name() for tp in refused.topic_partitions}
    members.leave(one)

    admin.alter_consumer_group_offsets([back])[group_id].result(30)

    assert dict.fromkeys(range(PARTITIONS), 5) == committed(admin, group_id, spread)
    again = members.join("confluent")
    members.until(lambda: len(again.read) == 20, what="read again")


def test_offsets_of_a_topic_that_is_made_again_are_gone(
    agent: DriftlogProcess, group_id: str, admin: AdminClient
) -> None:
    """
    Offsets belong to a topic's id: under the same name nothing is committed afterwards.
    """
    topic = make_topic(agent)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": group_id, "log_level": 2}
    )
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    assert {0: 3} == committed(admin, group_id, topic)

    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)

    assert {} == committed(admin, group_id, topic)
    consumer.close()


def test_offsets_of_a_topic_that_is_read_are_not_deleted(
    agent: DriftlogProcess, members: Members, spread: str, group_id: str
) -> None:
    """
    OffsetDelete (KIP-496): GROUP_SUBSCRIBED_TO_TOPIC for a topic of its members; others go.
    """
    unused = make_topic(agent)
    produce(agent, spread, 40)
    one = members.join("confluent")
    members.until(lambda: len(one.read) == 40, what="all read")
    members.leave(one)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": group_id, "log_level": 2}
    )
    consumer.commit(offsets=[TopicPartition(unused, 0, 3)], asynchronous=False)
    consumer.close()
    members.join("confluent")
    members.until(lambda: members.shared(PARTITIONS), what="back")
    admin = kafka.KafkaAdminClient(bootstrap_servers=agent.bootstrap)
    read, left = kafka.TopicPartition(spread, 0), kafka.TopicPartition(unused, 0)

    try:
        found = admin.delete_group_offsets(group_id, [read, left])
        offsets = admin.list_group_offsets(group_id)[group_id]
    finally:
        admin.close()

    assert ["GroupSubscribedToTopicError", "NoError"] == [
        getattr(found[tp], "__name__", type(found[tp]).__name__) for tp in (read, left)
    ]
    assert read in offsets
    assert left not in offsets


def test_groups_are_counted(group_id: str) -> None:
    """
    What an operator looks at: groups, members, commits, rebalances.  On an agent of its own: static
    members of other tests are there until their sessions end.
    """
    with DriftlogProcess() as agent:
        spread = make_topic(agent, PARTITIONS)
        before = metrics(agent)
        produce(agent, spread, 40)
        with Members(agent.bootstrap, group_id, spread) as members:
            one = members.join("confluent")
            members.until(lambda: len(one.read) == 40, what="all read")
            there = metrics(agent)
            members.leave(one)
        after = metrics(agent)
        admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
        admin.delete_consumer_groups([group_id])[group_id].result(30)
        gone = metrics(agent)

    def rise(name: str, first: dict[str, float], last: dict[str, float]) -> float:
        return last[f"driftlog_{name}"] - first[f"driftlog_{name}"]

    groups = 'groups{protocol="classic"}'
    assert 1 == rise(groups, before, there)
    assert 1 == rise("group_members", before, there)
    assert 1 == rise("group_rebalances_total", before, there)
    assert -1 == rise("group_members", there, after)
    assert 1 <= rise("group_commits_total", before, after)
    assert PARTITIONS <= rise("group_offsets_committed_total", before, after)
    assert -1 == rise(groups, after, gone)


def test_a_join_that_waits_holds_up_its_own_connection_only(
    agent: DriftlogProcess, group_id: str
) -> None:
    """
    A group waits for a member that does not come back.  Who joins waits, and so does what is sent
    behind it on its connection; other connections are answered.  Who hangs up meanwhile leaves
    nothing behind: its connection is gone from the metrics at once.
    """
    with Talking(agent.port) as one, Talking(agent.port) as other, Talking(agent.port) as third:
        one.joins(group_id)
        assert ErrorCode.NONE == one.hears(ApiKey.JOIN_GROUP, 7).error_code
        other.joins(group_id)
        other.says(ApiKey.LIST_GROUPS, 3, ListGroupsRequest())
        third.says(ApiKey.LIST_GROUPS, 3, ListGroupsRequest())

        listed = third.hears(ApiKey.LIST_GROUPS, 3)

        assert group_id in {group.group_id for group in listed.groups}
        assert other.is_silent(1.0)
        before = metrics(agent)["driftlog_connections"]
        other.hang_up()
        deadline = time.monotonic() + 10
        while metrics(agent)["driftlog_connections"] >= before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Talking:
    """One connection of a member."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        self._socket.close()

    def says(self, key: ApiKey, version: int, request: Any) -> None:
        self._socket.sendall(API[key].encode_request(version, 7, "test", request))

    def hears(self, key: ApiKey, version: int) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        return API[key].decode_response(version, self._exactly(size))[1]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "it hung up"
            data += more
        return data

    def is_silent(self, seconds: float) -> bool:
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return not readable

    def joins(self, group_id: str) -> None:
        """The second time, with the id that the first answer gives."""
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="p", metadata=b"")],
        )
        self.says(ApiKey.JOIN_GROUP, 7, request)
        request.member_id = self.hears(ApiKey.JOIN_GROUP, 7).member_id
        self.says(ApiKey.JOIN_GROUP, 7, request)
