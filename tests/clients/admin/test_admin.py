"""`driftlog.Admin` gets the same answers from an agent and from Apache Kafka.

Shell.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from driftlog import Admin, Consumer, Producer
from driftlog.errors import (
    ClosedError,
    GroupNotEmptyError,
    InvalidConfigError,
    RequestError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from tests.clients.python_client import QUICK, committed, member, new_topic, numbered, write

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as made:
        yield made


def name() -> str:
    return f"a-{uuid.uuid4().hex[:10]}"


def test_topics_are_created_described_extended_and_deleted(admin: Admin) -> None:
    """
    Each call returns when it is done, and the next one sees it.
    """
    topic = name()
    assert admin.topics.create(topic, 2, configs={"retention.ms": 1000, "preallocate": False})
    assert topic in admin.topics.list()
    described = admin.topics.describe(topic)[topic]
    assert [0, 1] == [partition.partition for partition in described.partitions]
    assert described.partitions[0].leader in described.partitions[0].in_sync
    assert described.topic_id
    admin.topics.add_partitions(topic, 3)
    assert {0: 0, 1: 0, 2: 0} == admin.topics.offsets(topic)
    admin.topics.delete(topic)
    assert topic not in admin.topics.list()


def test_refusals_of_topics_say_what_to_do(admin: Admin) -> None:
    """
    As exceptions of their own, with Kafka's code.
    """
    topic = name()
    admin.topics.create(topic)
    with pytest.raises(TopicExistsError, match="Choose another name") as raised:
        admin.topics.create(topic)
    assert 36 == raised.value.code
    assert not admin.topics.create(topic, if_not_exists=True)
    with pytest.raises(RequestError, match="Choose another name"):
        admin.topics.create("no/slash")
    with pytest.raises(InvalidConfigError, match="Look up the config"):
        admin.topics.create(name(), configs={"no.such.config": "1"})
    with pytest.raises(RequestError, match="none can be taken away"):
        admin.topics.add_partitions(topic, 1)
    with pytest.raises(UnknownTopicError, match="describe topic 'nowhere'"):
        admin.topics.describe("nowhere")
    with pytest.raises(UnknownTopicError, match="delete topic 'nowhere'"):
        admin.topics.delete("nowhere", topic)
    gone = time.monotonic() + 30
    while topic in admin.topics.list():  # of what is refused in part nothing is waited for
        assert time.monotonic() < gone
        time.sleep(0.05)
    admin.topics.delete("nowhere", if_exists=True)
    dry = name()
    admin.topics.create(dry, validate_only=True)
    assert dry not in admin.topics.list()


def test_configs_are_described_and_altered(admin: Admin) -> None:
    """
    Set, delete, append and subtract; what is not named stays; nothing is done to validate.
    """
    topic = name()
    admin.topics.create(topic)
    admin.configs.alter_topic(
        topic, {"retention.ms": 1000, "message.timestamp.type": "LogAppendTime"}
    )
    admin.configs.alter_topic(
        topic, append={"cleanup.policy": "compact"}, delete=["message.timestamp.type"]
    )
    configs = admin.configs.describe_topic(topic)
    assert ("1000", "DYNAMIC_TOPIC_CONFIG", False) == (
        configs["retention.ms"].value,
        configs["retention.ms"].source,
        configs["retention.ms"].default,
    )
    assert {"compact", "delete"} == set((configs["cleanup.policy"].value or "").split(","))
    assert ("CreateTime", True) == (
        configs["message.timestamp.type"].value,
        configs["message.timestamp.type"].default,
    )
    admin.configs.alter_topic(topic, subtract={"cleanup.policy": "delete"})
    admin.configs.alter_topic(topic, {"retention.ms": 2000}, validate_only=True)
    configs = admin.configs.describe_topic(topic)
    assert ("compact", "1000") == (configs["cleanup.policy"].value, configs["retention.ms"].value)
    with pytest.raises(InvalidConfigError):
        admin.configs.alter_topic(topic, {"retention.ms": "soon"})
    with pytest.raises(UnknownTopicError):
        admin.configs.describe_topic("nowhere")
    broker = admin.cluster().brokers[0].node_id
    assert "log.retention.ms" in admin.configs.describe_broker(broker)


def test_offsets_of_places(admin: Admin, servers: str) -> None:
    """
    Both ends, and times; a time after the last record is the end.
    """
    topic = new_topic(servers, 2, retention_ms="-1")  # its records are of 1970
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(10):
            producer.produce(topic, b"x", partition=0, timestamp=1_000 + n)

    assert {0: 10, 1: 0} == admin.topics.offsets(topic)
    assert {0: 0, 1: 0} == admin.topics.offsets(topic, "beginning")
    assert {0: 4, 1: 0} == admin.topics.offsets(topic, datetime.fromtimestamp(1.004, UTC))
    assert {0: 10, 1: 0} == admin.topics.offsets(topic, datetime.now(UTC))


def test_records_are_deleted(admin: Admin, servers: str) -> None:
    """
    Below an offset, or all; the rest is read.
    """
    topic = new_topic(servers)
    write(servers, topic, numbered(10))
    assert {0: 4} == admin.topics.delete_records(topic, {0: 4})
    assert {0: 4} == admin.topics.offsets(topic, "beginning")
    assert {0: 10} == admin.topics.delete_records(topic, {0: "end"})
    with pytest.raises(RequestError):
        admin.topics.delete_records(topic, {0: 11})


def test_the_cluster_says_who_it_is(admin: Admin, servers: str) -> None:
    """
    Its id and its brokers.
    """
    cluster = admin.cluster()

    assert cluster.cluster_id
    assert servers in {f"{broker.host}:{broker.port}" for broker in cluster.brokers}


def test_an_unreachable_cluster_and_a_closed_admin_are_named() -> None:
    """
    With the address, in good time.
    """
    admin = Admin(bootstrap_servers="127.0.0.1:1", timeout_s=0.5)
    begin = time.monotonic()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 refuses connections"):
        admin.topics.list()
    assert time.monotonic() - begin < 2
    admin.close()
    with pytest.raises(ClosedError):
        admin.topics.list()


def test_groups_are_listed_described_and_deleted(admin: Admin, servers: str) -> None:
    """
    With members while there are, with offsets and lag afterwards.
    """
    topic, group = new_topic(servers, 2), name()
    write(servers, topic, numbered(10), partition=0)
    with member(servers, topic, group, config={"client.id": "me"}) as consumer:
        for _ in range(4):
            next(consumer)
        described = admin.groups.describe(group)[group]
        assert ("Stable", "classic") == (described.state, described.kind)
        assert ["me"] == [found.client_id for found in described.members]
        assert {(topic, 0), (topic, 1)} == set(described.members[0].assignment)
        with pytest.raises(GroupNotEmptyError, match="Stop the group's members"):
            admin.groups.delete(group)

    assert "Empty" == admin.groups.describe(group)[group].state
    assert group in [listing.group for listing in admin.groups.list()]
    offsets = admin.groups.offsets(group)
    assert [(0, 4, 10, 6), (1, 0, 0, 0)] == [
        (o.partition, o.committed, o.end, o.lag) for o in offsets
    ]
    admin.groups.delete(group)
    with pytest.raises(UnknownGroupError, match="does not exist"):
        admin.groups.describe(group)
    with pytest.raises(UnknownGroupError):
        admin.groups.delete(group)
    with pytest.raises(UnknownGroupError):
        admin.groups.offsets(group)


def test_groups_are_reset(admin: Admin, servers: str) -> None:
    """
    To either end, an offset, a time, or shifted; within what is there; not with active members.
    """
    topic, group = new_topic(servers, 2, retention_ms="-1"), name()  # its records are of 1970
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(10):
            producer.produce(topic, b"%d" % n, partition=0, timestamp=1_000 + n)

    with pytest.raises(UnknownGroupError, match="name the topics"):
        admin.groups.reset(group, "beginning")
    with pytest.raises(UnknownTopicError):
        admin.groups.reset(group, "end", topics="nowhere")
    made = admin.groups.reset(group, 7, topics=topic)
    assert [(0, None, 7), (1, None, 0)] == [(r.partition, r.before, r.after) for r in made]
    assert 7 == committed(servers, group, topic)
    assert [(0, 7, 4)] == [
        (r.partition, r.before, r.after)
        for r in admin.groups.reset(group, shift_by=-3, partitions=[0], dry_run=True)
    ]
    assert 7 == committed(servers, group, topic)
    admin.groups.reset(group, shift_by=-30)
    assert 0 == committed(servers, group, topic)
    admin.groups.reset(group, datetime.fromtimestamp(1.006, UTC), topics=[topic])
    assert 6 == committed(servers, group, topic)
    admin.groups.reset(group, "end")
    assert 10 == committed(servers, group, topic)
    with pytest.raises(ValueError, match="give one of"):
        admin.groups.reset(group)

    with Consumer(topic, group=group, bootstrap_servers=servers, settings=QUICK) as consumer:
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.read(timeout_s=0.2)
        with pytest.raises(GroupNotEmptyError, match="1 members"):
            admin.groups.reset(group, "beginning")


def test_one_admin_serves_many_threads(admin: Admin) -> None:
    """
    It holds nothing that calls could mix up.
    """
    topics = [name() for _ in range(8)]
    threads = [threading.Thread(target=admin.topics.create, args=(topic, 1)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(topics) <= set(admin.topics.list())
