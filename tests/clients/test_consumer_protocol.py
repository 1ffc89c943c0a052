"""Groups of the new consumer protocol (KIP-848), of unmodified clients, against one agent.

What members are told request by request is in test_consumer_transcripts.py.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.clients.conftest import make_topic
from tests.clients.grouping import KIP_848, Members
from tests.support.components import java, kafka_jars
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(240)]

PARTITIONS: Final = 6
CLIENTS: Final = [
    "confluent",
    pytest.param(
        "java",
        marks=pytest.mark.skipif(
            not java() or kafka_jars() is None, reason="Java or Kafka's jars are missing"
        ),
    ),
]


@pytest.fixture
def group_id() -> str:
    """A group that nobody else uses."""
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(agent: DriftlogProcess) -> str:
    """A topic of `PARTITIONS`."""
    return make_topic(agent, PARTITIONS)


@pytest.fixture
def members(agent: DriftlogProcess, group_id: str, topic: str) -> Iterator[Members]:
    """Of `group_id`, on `topic`."""
    with Members(agent.bootstrap, group_id, topic) as found:
        yield found


@pytest.fixture
def more(agent: DriftlogProcess, topic: str) -> Callable[[], set[tuple[int, int]]]:
    """Writes 100 records more; returns where all are that were written so far."""
    numbers = itertools.count()

    def write() -> set[tuple[int, int]]:
        producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap, "log_level": 2})
        for n in itertools.islice(numbers, 99):
            producer.produce(topic, b"%d" % n, partition=n % PARTITIONS)
        last = next(numbers)
        producer.produce(topic, b"%d" % last, partition=last % PARTITIONS)
        assert producer.flush(60) == 0
        return {(n % PARTITIONS, n // PARTITIONS) for n in range(last + 1)}

    return write


def group_type(agent: DriftlogProcess, group_id: str) -> ConsumerGroupType:
    """Which protocol a group has now."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    found: ConsumerGroupType = admin.describe_consumer_groups([group_id])[group_id].result(60).type
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_members_join_leave_and_are_killed(
    members: Members, more: Callable[[], set[tuple[int, int]]], client: str
) -> None:
    """
    What was committed when a partition changed hands is not read again; who is killed is replaced
    when its session ends, and nothing is left out.
    """
    written = more()
    one = members.join(client, **KIP_848)
    members.until(lambda: set(members.places) == written, what="alone")
    other = members.join(client, **KIP_848)
    members.until(lambda: members.shared(PARTITIONS), what="two")
    third = members.join(client, **KIP_848)
    members.until(lambda: members.shared(PARTITIONS), what="three")
    written = more()
    members.until(lambda: set(members.places) == written, what="three, all read")
    members.leave(one)
    members.until(lambda: members.shared(PARTITIONS), what="two again")
    written = more()
    members.until(lambda: set(members.places) == written, what="two again, all read")
    assert {1} == set(members.places.values())
    if client == "java":  # librdkafka's heartbeats go on until it is freed, and then it leaves.
        members.abandon(third)
        members.until(lambda: members.shared(PARTITIONS), seconds=90, what="one")
    else:
        members.leave(third)
    written = more()

    members.until(lambda: written <= set(members.places), what="one, all read")
    members.leave(other)


@pytest.mark.parametrize("strategy", ["roundrobin", "range"])
def test_a_group_changes_its_protocol_while_it_reads(
    agent: DriftlogProcess,
    members: Members,
    group_id: str,
    more: Callable[[], set[tuple[int, int]]],
    strategy: str,
) -> None:
    """
    Members of the old protocol are replaced by members of the new one, one after the other, and
    those again by members of the old one: every record is read once.

    Not with librdkafka's cooperative-sticky: its leaders write user data into assignments, as soon
    as somebody has joined twice, and Kafka, too, refuses then to change the protocol.
    """
    old = {"partition.assignment.strategy": strategy}
    written = more()
    first = [members.join("confluent", **old) for _ in range(2)]
    members.until(lambda: members.shared(PARTITIONS), what="two old ones")
    members.until(lambda: set(members.places) == written, what="two old ones, all read")
    types = [group_type(agent, group_id)]
    new = []
    for member in first:
        new.append(members.join("confluent", **KIP_848))
        members.until(lambda: members.shared(PARTITIONS), what="one new one more")
        types.append(group_type(agent, group_id))
        members.leave(member)
        members.until(lambda: members.shared(PARTITIONS), what="one old one less")
    written = more()
    members.until(lambda: set(members.places) == written, what="new ones, all read")
    last = members.join("confluent", **old)
    for member in new:
        members.until(lambda: members.shared(PARTITIONS), what="back")
        members.leave(member)
    members.until(lambda: members.shared(PARTITIONS), what="an old one")
    written = more()
    members.until(lambda: set(members.places) == written, what="an old one, all read")
    types.append(group_type(agent, group_id))
    members.leave(last)

    classic, consumer = ConsumerGroupType.CLASSIC, ConsumerGroupType.CONSUMER
    assert [classic, consumer, consumer, classic] == types
    assert {1} == set(members.places.values())


def test_a_pattern_is_matched_by_the_agent_also_when_topics_come(
    agent: DriftlogProcess, group_id: str
) -> None:
    """
    librdkafka sends it as it is; the topics of that name are assigned, and no others.
    """
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    first, later = [f"{group_id}-a", f"{group_id}-b"], f"{group_id}-c"
    for name in [*first, f"x-{group_id}"]:
        admin.create_topics([NewTopic(name, 2)])[name].result(60)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": group_id,
            "group.protocol": "consumer",
            "log_level": 2,
        }
    )
    consumer.subscribe([f"^{group_id}-.*"])

    def until(names: set[str]) -> None:
        deadline = time.monotonic() + 60
        while (found := {(p.topic, p.partition) for p in consumer.assignment()}) != {
            (name, partition) for name in names for partition in range(2)
        }:
            assert time.monotonic() < deadline, found
            consumer.poll(0.1)

    until(set(first))
    admin.create_topics([NewTopic(later, 2)])[later].result(60)
    until({*first, later})
    consumer.close()
